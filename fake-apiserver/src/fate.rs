//! What can become of a pod, as its status tells it.

use serde_json::{Value, json};

use crate::kubelet::NODE;
use crate::time;

/// What can become of a pod. Once set by hand, the kubelet leads the pod no further; asked to go, it still goes, unless
/// its node is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// No node takes it: Pending, with the scheduler's message.
    Unschedulable(String),
    /// A container waits: `ImagePullBackOff`, `ErrImagePull`, `CreateContainerConfigError` …
    Waiting {
        /// The container, or the init container.
        container: String,
        /// The reason.
        reason: String,
        /// The message.
        message: String,
    },
    /// A container ended, and waits to be started again.
    CrashLoop {
        /// The container, or the init container.
        container: String,
        /// With what it ended last.
        exit_code: i32,
    },
    /// An init container ended, not well; the pod failed.
    InitFailed {
        /// The init container.
        container: String,
        /// With what it ended.
        exit_code: i32,
    },
    /// The pod failed, for a reason such as `Evicted` or `DeadlineExceeded`. Its processes are gone.
    Failed {
        /// The reason.
        reason: String,
        /// The message.
        message: String,
    },
    /// All containers ended well. Its processes are gone.
    Succeeded,
    /// The first container was killed for its memory, and the pod failed. Its processes are gone.
    OomKilled,
    /// It runs, and is not ready.
    NotReady,
    /// Nobody hears from its node: phase Unknown. Its processes go on, and exec still reaches them; a rule can say
    /// otherwise. Asked to go, it stays, until it is forced.
    Unknown,
    /// Nobody hears from its node, and the control plane has taken `Ready` away: the phase and the containers stay what the
    /// node said last. Its processes go on, and exec still reaches them; a rule can say otherwise. Asked to go, it stays,
    /// until it is forced.
    Unheard,
    /// The gate, or another container, was ended for it did not listen in that many seconds, and was started anew.
    Deaf {
        /// The container, or the init container.
        container: String,
        /// How long it ran.
        seconds: u64,
    },
    /// Its node is lost and it was asked to go: a deletion that stays, until it is forced. Its processes go on.
    NodeLost,
}

impl Fate {
    /// The kubelet's word for an image that does not come.
    #[must_use]
    pub fn image_pull_back_off(container: &str) -> Self {
        Self::Waiting {
            container: container.to_owned(),
            reason: "ImagePullBackOff".to_owned(),
            message: "Back-off pulling image: not found".to_owned(),
        }
    }

    /// Evicted by its node.
    #[must_use]
    pub fn evicted() -> Self {
        Self::Failed {
            reason: "Evicted".to_owned(),
            message: "The node was low on resource: ephemeral-storage.".to_owned(),
        }
    }

    /// Whether nobody hears from its node.
    pub(crate) fn loses_node(&self) -> bool {
        matches!(self, Self::Unknown | Self::Unheard | Self::NodeLost)
    }

    /// Whether its processes end with it.
    pub(crate) fn ends_processes(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Succeeded | Self::OomKilled | Self::InitFailed { .. })
    }

    pub(crate) fn apply(&self, pod: &mut Value) {
        match self {
            Self::Unschedulable(message) => {
                pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
                if let Some(spec) = pod["spec"].as_object_mut() {
                    spec.remove("nodeName");
                }
                condition(pod, "PodScheduled", false, "Unschedulable", message);
            }
            Self::Waiting { container, reason, message } => {
                scheduled(pod);
                containers(pod, &waiting("ContainerCreating", ""), false);
                one(pod, container, &waiting(reason, message), None);
                phase(pod, "Pending");
                not_ready(pod, "ContainersNotReady");
            }
            Self::CrashLoop { container, exit_code } => {
                scheduled(pod);
                let state = waiting("CrashLoopBackOff", "back-off 10s restarting failed container");
                one(pod, container, &state, Some(&terminated(*exit_code, "Error")));
                phase(pod, if is_init(pod, container) { "Pending" } else { "Running" });
                not_ready(pod, "ContainersNotReady");
            }
            Self::InitFailed { container, exit_code } => {
                scheduled(pod);
                containers(pod, &waiting("PodInitializing", ""), false);
                one(pod, container, &terminated(*exit_code, "Error"), None);
                phase(pod, "Failed");
                not_ready(pod, "ContainersNotInitialized");
            }
            Self::Failed { reason, message } => {
                containers(pod, &terminated(137, "Error"), false);
                phase(pod, "Failed");
                pod["status"]["reason"] = reason.clone().into();
                pod["status"]["message"] = message.clone().into();
                not_ready(pod, "PodFailed");
            }
            Self::Succeeded => {
                containers(pod, &terminated(0, "Completed"), false);
                phase(pod, "Succeeded");
                not_ready(pod, "PodCompleted");
            }
            Self::OomKilled => {
                containers(pod, &terminated(137, "OOMKilled"), false);
                phase(pod, "Failed");
                not_ready(pod, "PodFailed");
            }
            Self::NotReady => {
                scheduled(pod);
                running(pod);
                containers(pod, &started(), false);
                not_ready(pod, "ContainersNotReady");
            }
            Self::Unknown => {
                phase(pod, "Unknown");
                pod["status"]["reason"] = "NodeLost".into();
                not_ready(pod, "NodeStatusUnknown");
            }
            Self::Unheard => condition(pod, "Ready", false, "", ""),
            Self::Deaf { container, seconds } => {
                scheduled(pod);
                containers(pod, &waiting("PodInitializing", ""), false);
                let mut last = terminated(137, "Error");
                last["terminated"]["startedAt"] = time::seconds_ago(*seconds).into();
                one(pod, container, &started(), Some(&last));
                unstarted(pod, container);
                phase(pod, "Pending");
                not_ready(pod, "ContainersNotReady");
            }
            Self::NodeLost => {
                pod["metadata"]["deletionTimestamp"] = time::now().into();
                pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
                pod["status"]["reason"] = "NodeLost".into();
                not_ready(pod, "NodeStatusUnknown");
            }
        }
    }
}

pub(crate) fn waiting(reason: &str, message: &str) -> Value {
    let mut state = json!({"waiting": {"reason": reason}});
    if !message.is_empty() {
        state["waiting"]["message"] = message.into();
    }
    state
}

pub(crate) fn terminated(exit_code: i32, reason: &str) -> Value {
    let now = time::now();
    json!({"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": now, "finishedAt": now}})
}

pub(crate) fn started() -> Value {
    json!({"running": {"startedAt": time::now()}})
}

fn phase(pod: &mut Value, phase: &str) {
    pod["status"]["phase"] = phase.into();
}

pub(crate) fn scheduled(pod: &mut Value) {
    pod["spec"]["nodeName"] = NODE.into();
    condition(pod, "PodScheduled", true, "", "");
}

pub(crate) fn running(pod: &mut Value) {
    phase(pod, "Running");
    pod["status"]["hostIP"] = "10.0.0.1".into();
    pod["status"]["podIP"] = "10.1.0.1".into();
    pod["status"]["podIPs"] = json!([{"ip": "10.1.0.1"}]);
    pod["status"]["startTime"] = time::now().into();
    condition(pod, "Initialized", true, "", "");
}

fn not_ready(pod: &mut Value, reason: &str) {
    condition(pod, "Ready", false, reason, "");
    condition(pod, "ContainersReady", false, reason, "");
}

pub(crate) fn ready(pod: &mut Value) {
    condition(pod, "Ready", true, "", "");
    condition(pod, "ContainersReady", true, "", "");
}

pub(crate) fn condition(pod: &mut Value, kind: &str, holds: bool, reason: &str, message: &str) {
    let mut condition = json!({
        "type": kind,
        "status": if holds { "True" } else { "False" },
        "lastTransitionTime": time::now(),
    });
    if !reason.is_empty() {
        condition["reason"] = reason.into();
    }
    if !message.is_empty() {
        condition["message"] = message.into();
    }
    let conditions = &mut pod["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(list) => {
            list.retain(|other| other["type"] != kind);
            list.push(condition);
        }
        None => *conditions = json!([condition]),
    }
}

fn is_init(pod: &Value, container: &str) -> bool {
    specs(pod, "initContainers").iter().any(|spec| spec["name"] == container)
}

fn specs(pod: &Value, field: &str) -> Vec<Value> {
    pod["spec"][field].as_array().cloned().unwrap_or_default()
}

fn status_of(spec: &Value, state: &Value, ready: bool) -> Value {
    json!({
        "name": spec["name"],
        "image": spec["image"],
        "imageID": "",
        "ready": ready,
        "started": state.get("running").is_some(),
        "restartCount": 0,
        "state": state,
    })
}

/// Puts all containers into one state. Sidecars, the init containers that go on, share it; the other init containers
/// are done as soon as a container runs or has run.
pub(crate) fn containers(pod: &mut Value, state: &Value, ready: bool) {
    let past_init = state.get("waiting").is_none();
    let main: Vec<Value> = specs(pod, "containers").iter().map(|spec| status_of(spec, state, ready)).collect();
    let init: Vec<Value> = specs(pod, "initContainers")
        .iter()
        .map(|spec| match (spec["restartPolicy"] == "Always", past_init) {
            (true, _) => status_of(spec, state, ready),
            (false, true) => status_of(spec, &terminated(0, "Completed"), true),
            (false, false) => status_of(spec, &waiting("PodInitializing", ""), false),
        })
        .collect();
    pod["status"]["containerStatuses"] = main.into();
    if !init.is_empty() {
        pod["status"]["initContainerStatuses"] = init.into();
    }
}

/// A container runs, and its startup probe has not succeeded.
fn unstarted(pod: &mut Value, container: &str) {
    for field in ["containerStatuses", "initContainerStatuses"] {
        for status in pod["status"][field].as_array_mut().into_iter().flatten().filter(|s| s["name"] == container) {
            status["started"] = false.into();
        }
    }
}

/// Puts one container into a state, and leaves the others.
fn one(pod: &mut Value, container: &str, state: &Value, last: Option<&Value>) {
    let (list, field) = match is_init(pod, container) {
        true => ("initContainers", "initContainerStatuses"),
        false => ("containers", "containerStatuses"),
    };
    if !pod["status"][field].is_array() {
        containers(pod, &waiting("PodInitializing", ""), false);
    }
    let Some(spec) = specs(pod, list).into_iter().find(|spec| spec["name"] == container) else { return };
    let mut status = status_of(&spec, state, false);
    if let Some(last) = last {
        status["lastState"] = last.clone();
        status["restartCount"] = 1.into();
    }
    if let Some(statuses) = pod["status"][field].as_array_mut() {
        for old in statuses.iter_mut().filter(|old| old["name"] == container) {
            *old = status.clone();
        }
    }
}
