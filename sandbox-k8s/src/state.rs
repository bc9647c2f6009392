//! What a Pod tells of its sandbox: pure, and a table in the tests.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
};
use sandbox::{Death, Recreated};

use crate::gate::{STARTUP_FAILURES as GATE_STARTUP, is_gated};
use crate::names::{GATE, NETSETUP, SANDBOX};

/// What a sandbox is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs commands.
    Ready,
    /// It is on its way, as far as one can see.
    Starting(String),
    /// It is not on its way, for a reason that can still pass.
    Stuck(Stuck, String),
    /// Its first process has ended, and the Pod has not yet said why.
    Dying,
    /// It is dead for good.
    Dead(Dead),
    /// Somebody is removing it.
    Ending,
}

/// How a sandbox died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) why: Recreated,
    /// Whether it ever ran, so that files are lost with it.
    pub(crate) ran: bool,
}

/// What keeps a Pod from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stuck {
    /// The image cannot be pulled at the moment.
    Pull,
    /// The image can never be had: its name is none, or it is absent and may not be pulled.
    Image,
    /// No node takes it.
    Unschedulable,
    /// It waits for somebody outside to let it be scheduled.
    Gated,
    /// The container cannot be made.
    Container,
    /// The gate ends each time it starts, as one does whose token nobody has recorded, or it has had its time and never listened.
    Gate,
}

/// What is said of a Pod whose node the control plane has lost sight of.
const UNHEARD_OF: &str = "nobody hears from its node";
/// By how many seconds less than it may a gate can have run when the kubelet ends it because it does not listen.
const GATE_SLACK: i64 = 5;
/// The longest text that is taken over from a status.
const MAX_TEXT: usize = 1024;

/// A bounded copy of words that the cluster, or something in the Pod, has written.
pub(crate) fn words(parts: &[Option<&str>]) -> String {
    let mut text = String::new();
    for part in parts.iter().flatten().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.extend(part.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT));
    }
    text
}

/// Reads the state of a Pod.
pub(crate) fn state(pod: &Pod) -> State {
    if pod.metadata.deletion_timestamp.is_some() {
        return State::Ending;
    }
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let sandbox = container(status, SANDBOX);
    match status.phase.as_deref() {
        Some("Failed" | "Succeeded") => return State::Dead(dead(pod, status)),
        // Whatever else it says is what the node said last.
        _ if is_unheard_of(pod) => return State::Starting(words(&[Some(UNHEARD_OF), status.message.as_deref()])),
        Some("Running")
            if sandbox.is_some_and(|c| c.ready) && (!is_gated(pod) || gate_of(status).is_some_and(|c| c.ready)) =>
        {
            return State::Ready;
        }
        _ => {}
    }
    let reason = |c: &ContainerStatus| c.state.as_ref()?.waiting.as_ref().map(|w| w.reason.clone().unwrap_or_default());
    if let Some(gate) = gate_of(status) {
        let last = gate.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let deaf = last.filter(|_| !has_begun(sandbox)).and_then(deaf_for);
        let wrong = match (reason(gate).as_deref(), deaf) {
            (Some("CrashLoopBackOff"), None) => Some("the gate ends again and again".to_owned()),
            // It goes on ending, as the kubelet starts it anew.
            (_, Some(seconds)) if gate.started != Some(true) => {
                Some(format!("the gate did not listen in {seconds} seconds"))
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            let code = last.map(|end| format!("exit code {}", end.exit_code));
            let text = words(&[Some(&wrong), last.and_then(|end| end.message.as_deref()), code.as_deref()]);
            return State::Stuck(Stuck::Gate, text);
        }
    }
    if sandbox.and_then(terminated).is_some() {
        return State::Dying;
    }
    let inits = status.init_container_statuses.iter().flatten();
    let waiting = inits.chain(sandbox).find_map(|c| c.state.as_ref()?.waiting.as_ref());
    if let Some(waiting) = waiting {
        let text = words(&[waiting.reason.as_deref(), waiting.message.as_deref()]);
        match waiting.reason.as_deref().unwrap_or_default() {
            "InvalidImageName" | "ErrImageNeverPull" => return State::Stuck(Stuck::Image, text),
            "ErrImagePull"
            | "ImagePullBackOff"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => {
                return State::Stuck(Stuck::Pull, text);
            }
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "CrashLoopBackOff"
            | "StartError" => return State::Stuck(Stuck::Container, text),
            _ => return State::Starting(text),
        }
    }
    let scheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
    if let Some(condition) = scheduled {
        let text = words(&[condition.reason.as_deref(), condition.message.as_deref()]);
        match condition.reason.as_deref() {
            Some("Unschedulable") => return State::Stuck(Stuck::Unschedulable, text),
            Some("SchedulingGated") => return State::Stuck(Stuck::Gated, text),
            _ => return State::Starting(text),
        }
    }
    let phase = status.phase.as_deref().unwrap_or("no phase yet");
    State::Starting(words(&[Some(phase), status.reason.as_deref(), status.message.as_deref()]))
}

fn container<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    status.container_statuses.iter().flatten().find(|c| c.name == name)
}

fn gate_of(status: &PodStatus) -> Option<&ContainerStatus> {
    status.init_container_statuses.iter().flatten().find(|c| c.name == GATE)
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// Whether the sandbox of a Pod has ever run, so that files are lost with it. Where the Pod does not tell, it has: a loss that was none
/// is better told than one that was.
pub(crate) fn has_run(pod: &Pod) -> bool {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let Some(sandbox) = container(status, SANDBOX) else {
        if failed_init(status).is_some() {
            return false;
        }
        // An evicted Pod can have lost its containers' states.
        let told = matches!(status.reason.as_deref(), Some("Evicted" | "NodeLost"));
        let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        return told || (placed && status.start_time.is_some());
    };
    let started =
        |end: &ContainerStateTerminated| !matches!(end.reason.as_deref(), Some("StartError" | "ContainerCannotRun"));
    let in_state = |state: &ContainerState| state.running.is_some() || state.terminated.as_ref().is_some_and(started);
    sandbox.started == Some(true)
        || sandbox.state.as_ref().is_some_and(in_state)
        || sandbox.last_state.as_ref().is_some_and(in_state)
}

/// The init container that ended badly, and how. A gate outlives the sandbox, and how it ends says nothing of that.
fn failed_init(status: &PodStatus) -> Option<(&str, &ContainerStateTerminated)> {
    let mut inits = status.init_container_statuses.iter().flatten().filter(|c| c.name != GATE);
    inits.find_map(|c| terminated(c).filter(|end| end.exit_code != 0).map(|end| (c.name.as_str(), end)))
}

/// For how many seconds a gate has run that never listened, where that is as long as it may. Both times are of the same node: clocks differ.
fn deaf_for(end: &ContainerStateTerminated) -> Option<i64> {
    let seconds = end.finished_at.as_ref()?.0.duration_since(end.started_at.as_ref()?.0).as_secs();
    // A kubelet begins to count a little late, and times are whole seconds.
    (seconds + GATE_SLACK >= i64::from(GATE_STARTUP)).then_some(seconds)
}

/// Whether a container has ever been started; a sandbox is once its gate listens.
fn has_begun(container: Option<&ContainerStatus>) -> bool {
    let in_state = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
    container.is_some_and(|c| c.restart_count > 0 || c.state.as_ref().is_some_and(in_state))
}

/// Whether nobody hears from the Pod's node, so that it may well be running. All else that its status tells is what the node said last:
/// the control plane only ever takes `Ready` away, and leaves the containers' own word.
pub(crate) fn is_unheard_of(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let condition = |name: &str| status.conditions.iter().flatten().find(|c| c.type_ == name);
    match status.phase.as_deref() {
        Some("Unknown") => true,
        Some("Running") => {
            let taken = condition("Ready")
                // Who has gates of readiness is told of them by a reason, and that is none of ours.
                .is_some_and(|c| c.status != "True" && c.reason.as_deref() != Some("ReadinessGatesNotReady"));
            taken && condition("ContainersReady").is_some_and(|c| c.status == "True")
        }
        _ => false,
    }
}

/// How the sandbox of a Pod that has ended died.
fn dead(pod: &Pod, status: &PodStatus) -> Dead {
    let ran = has_run(pod);
    if let Some((name, end)) = failed_init(status) {
        let what = if name == NETSETUP { "the network could not be cut off" } else { "an init container failed" };
        let code = format!("exit code {}", end.exit_code);
        let detail = words(&[Some(what), end.message.as_deref(), Some(&code)]);
        return Dead { why: Recreated::new(Death::Ended, detail), ran };
    }
    let end = container(status, SANDBOX).and_then(terminated);
    let code = end.map(|end| format!("exit code {}", end.exit_code));
    let detail = words(&[
        status.reason.as_deref(),
        status.message.as_deref(),
        end.and_then(|end| end.reason.as_deref()),
        end.and_then(|end| end.message.as_deref()),
        code.as_deref(),
    ]);
    Dead { why: Recreated::new(cause(status), detail), ran }
}

/// Why the cluster removes a Pod, or is about to, where it says so: a drain, a taint, a lost node. That somebody asked for it says nothing.
pub(crate) fn removal(pod: &Pod) -> Option<Recreated> {
    let status = pod.status.as_ref()?;
    let reason = cause(status);
    let disrupted = disruption(status);
    let parts = [
        status.reason.as_deref(),
        status.message.as_deref(),
        disrupted.and_then(|c| c.reason.as_deref()),
        disrupted.and_then(|c| c.message.as_deref()),
    ];
    (reason != Death::Ended).then(|| Recreated::new(reason, words(&parts)))
}

fn disruption(status: &PodStatus) -> Option<&PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget" && c.status == "True")
}

/// Why a Pod has ended, or is being removed.
fn cause(status: &PodStatus) -> Death {
    match status.reason.as_deref().unwrap_or_default() {
        "Evicted" | "Preempting" | "Preempted" => return Death::Evicted,
        "NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated" | "NodeAffinity" => return Death::NodeLost,
        _ => {}
    }
    let sandbox = container(status, SANDBOX);
    match sandbox.and_then(terminated).and_then(|end| end.reason.as_deref()) {
        Some("OOMKilled") => return Death::OomKilled,
        Some("ContainerStatusUnknown") => return Death::NodeLost,
        _ => {}
    }
    match disruption(status).and_then(|c| c.reason.as_deref()) {
        Some("DeletionByTaintManager" | "DeletionByPodGC") => Death::NodeLost,
        Some(_) => Death::Evicted,
        None => Death::Ended,
    }
}

/// Why the sandbox of a Pod is no more; `None` while it lives, as far as one can see. The flag: whether that is the last word.
pub(crate) fn death(pod: &Pod) -> Option<(Death, bool)> {
    match state(pod) {
        // It may come back.
        _ if pod.metadata.deletion_timestamp.is_none() && is_unheard_of(pod) => Some((Death::NodeLost, false)),
        State::Dead(dead) => Some((dead.why.reason, true)),
        State::Dying => Some((Death::Ended, false)),
        State::Ending => {
            let nothing = PodStatus::default();
            match cause(pod.status.as_ref().unwrap_or(&nothing)) {
                // That its first process ended is the effect of the removal.
                Death::Ended => Some((Death::Deleted, true)),
                cause => Some((cause, true)),
            }
        }
        State::Ready | State::Starting(_) | State::Stuck(..) => None,
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
