//! What a case runs on: one harness, two slots, and shorthands that name what they wanted.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isolation::{
    Backend, Error, ErrorKind, ExecOutput, ExecSpec, ExecStatus, NodeRoot, NodeSpec, OpCtx, PrepareReport, SlotName,
    SlotState, Status,
};
use tokio::time::sleep;

use super::{Fault, Footprint, Harness};
use crate::{Failure, Outcome, ensure, equal};

/// How long an ordinary call may take.
const CALL: Duration = Duration::from_secs(60);

/// What a case runs on.
pub struct Bed {
    honest: Arc<dyn Harness>,
    harness: Arc<dyn Harness>,
    backend: Arc<dyn Backend>,
    before: Footprint,
    trail: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bed").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// `result`, or a failure of `step`, which should have succeeded.
pub(super) fn ok<T>(step: &str, result: isolation::Result<T>) -> Outcome<T> {
    result.map_err(|error| Failure::new(step, "success", format!("{error:?}")))
}

/// The error of `result`, which must be of `kind`.
pub(super) fn refused<T: Debug>(step: &str, result: isolation::Result<T>, kind: ErrorKind) -> Outcome<Error> {
    match result {
        Err(error) if error.kind() == kind => Ok(error),
        Err(error) => Err(Failure::new(step, format!("an error of kind {kind:?}"), format!("{error:?}"))),
        Ok(value) => Err(Failure::new(step, format!("an error of kind {kind:?}"), crate::short(&value))),
    }
}

/// Fails `step` if there are lines.
pub(super) fn none(step: &str, want: &str, lines: &[String]) -> Outcome {
    ensure(lines.is_empty(), step, want, || lines.join(", "))
}

/// Looks until something is found, at most `limit` long and at least once; what was found.
pub(super) async fn until<T, F>(limit: Duration, look: impl Fn() -> F) -> Outcome<Option<T>>
where
    F: Future<Output = Outcome<Option<T>>>,
{
    let begun = Instant::now();
    loop {
        // Looking takes long on a busy machine, so the clock counts and not the looks.
        let late = begun.elapsed() > limit;
        let found = look().await?;
        if found.is_some() || late {
            return Ok(found);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

impl Bed {
    pub(super) async fn open(honest: Arc<dyn Harness>, harness: Arc<dyn Harness>) -> Outcome<Self> {
        let backend = harness.backend();
        // What an earlier run was killed over.
        for slot in honest.pair().both() {
            ok("destroying what is left of a slot", honest.backend().destroy(&OpCtx::new(CALL), slot).await)?;
        }
        let before = honest.footprint().await;
        Ok(Self { honest, harness, backend, before, trail: Mutex::default() })
    }

    pub(super) fn trail(&self) -> String {
        self.trail.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    pub(super) async fn close(&self) -> Outcome {
        for slot in self.honest.pair().both() {
            let destroyed = self.honest.backend().destroy(&OpCtx::new(CALL), slot).await;
            ok("destroying a slot after the case", destroyed)?;
        }
        let after = self.honest.footprint().await;
        none("after both slots were destroyed", "that nothing is left", &self.before.changes(&after))
    }

    fn note(&self, line: impl Into<String>) {
        let mut trail = self.trail.lock().unwrap_or_else(PoisonError::into_inner);
        if trail.len() == 20 {
            trail.remove(0);
        }
        trail.push(line.into());
    }

    pub(super) fn harness(&self) -> &Arc<dyn Harness> {
        &self.harness
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The first slot.
    pub(super) fn a(&self) -> SlotName {
        self.harness.pair().a().clone()
    }

    /// The second slot.
    pub(super) fn b(&self) -> SlotName {
        self.harness.pair().b().clone()
    }

    pub(super) fn ctx(&self) -> OpCtx {
        OpCtx::new(CALL)
    }

    pub(super) fn spec(&self, slot: &SlotName) -> NodeSpec {
        self.harness.spec(slot)
    }

    pub(super) async fn footprint(&self) -> Footprint {
        self.harness.footprint().await
    }

    /// What changed since the case began.
    pub(super) async fn changes(&self) -> Vec<String> {
        self.before.changes(&self.footprint().await)
    }

    pub(super) async fn inject(&self, fault: Fault<'_>) -> Outcome<Box<dyn std::any::Any + Send>> {
        let step = format!("bringing about {fault:?}");
        self.note(&step);
        let injected = self.harness.inject(fault).await;
        injected.ok_or_else(|| Failure::new(step, "that the harness can, as it claims", "it can't"))
    }

    pub(super) async fn prepare_with(&self, spec: &NodeSpec) -> Outcome<(Arc<dyn NodeRoot>, PrepareReport)> {
        self.note(format!("prepare {} with {} grants", spec.slot, spec.grants.len()));
        ok("preparing a slot", self.backend.prepare(&self.ctx(), spec).await)
    }

    pub(super) async fn prepare(&self, slot: &SlotName) -> Outcome<Arc<dyn NodeRoot>> {
        self.prepare_with(&self.spec(slot)).await.map(|(root, _)| root)
    }

    pub(super) async fn start(&self, slot: &SlotName) -> Outcome {
        self.note(format!("start {slot}"));
        ok("starting a slot", self.backend.start(&self.ctx(), slot).await)
    }

    pub(super) async fn stop(&self, slot: &SlotName) -> Outcome {
        self.note(format!("stop {slot}"));
        ok("stopping a slot", self.backend.stop(&self.ctx(), slot).await)
    }

    pub(super) async fn restart(&self, slot: &SlotName) -> Outcome {
        self.note(format!("restart {slot}"));
        ok("restarting a slot", self.backend.restart(&self.ctx(), slot).await)
    }

    pub(super) async fn destroy(&self, slot: &SlotName) -> Outcome {
        self.note(format!("destroy {slot}"));
        ok("destroying a slot", self.backend.destroy(&self.ctx(), slot).await)
    }

    pub(super) async fn status(&self, slot: &SlotName) -> Outcome<Status> {
        ok("looking at a slot", self.backend.status(&self.ctx(), slot).await)
    }

    pub(super) async fn state(&self, step: &str, slot: &SlotName, want: &[SlotState]) -> Outcome {
        let status = self.status(slot).await?;
        ensure(want.contains(&status.state), step, &format!("one of {want:?}"), || crate::short(&status))
    }

    /// Prepares and starts the first slot.
    pub(super) async fn up(&self) -> Outcome<(SlotName, Arc<dyn NodeRoot>)> {
        let slot = self.a();
        let root = self.prepare(&slot).await?;
        self.start(&slot).await?;
        Ok((slot, root))
    }

    pub(super) async fn exec(&self, slot: &SlotName, spec: &ExecSpec) -> isolation::Result<ExecOutput> {
        self.note(format!("exec in {slot}: {spec:?}"));
        self.backend.exec(&self.ctx(), slot, spec).await
    }

    /// Runs a script that must succeed; its output without the last newlines.
    pub(super) async fn sh(&self, slot: &SlotName, script: &str) -> Outcome<String> {
        let output = ok("running a command", self.exec(slot, &sh(script)).await)?;
        equal(&format!("the end of `{script}`"), output.status, ExecStatus::Exited(0))?;
        Ok(output.stdout_text())
    }

    /// Waits until a slot runs as another instance than `before`.
    pub(super) async fn runs_anew(&self, step: &str, slot: &SlotName, before: &Status) -> Outcome {
        let look = || async {
            let now = self.status(slot).await?;
            Ok((now.running() && now.instance != before.instance).then_some(()))
        };
        match until(CALL, look).await? {
            Some(()) => Ok(()),
            None => {
                let want = format!("that {slot} runs as another instance within a minute");
                Err(Failure::new(step, want, crate::short(&self.status(slot).await?)))
            }
        }
    }

    /// Waits until a process has `mark` among its arguments.
    pub(super) async fn seen(&self, mark: &str) -> Outcome {
        let seen = until(Duration::from_secs(20), || async { Ok((running(mark) > 0).then_some(())) }).await?;
        seen.ok_or_else(|| Failure::new("running a command", "to see it run within 20 s", "nothing"))
    }

    /// Waits until no process has `mark` among its arguments.
    pub(super) async fn gone(&self, step: &str, mark: &str) -> Outcome {
        let gone = until(Duration::from_secs(5), || async { Ok((running(mark) == 0).then_some(())) }).await?;
        let left = || processes(mark).join(", ");
        gone.ok_or_else(|| Failure::new(step, "that no process of the command is left after 5 s", left()))
    }
}

/// A script as a command.
pub(super) fn sh(script: &str) -> ExecSpec {
    ExecSpec::new(["sh", "-c", script])
}

/// A minute and a half as an argument of `sleep` that no other command has.
pub(super) fn mark() -> String {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("the operating system has a source of randomness");
    format!("90.{:010}", u32::from_le_bytes(bytes))
}

/// How many processes of this machine have `mark` as an argument, zombies not counted.
pub(super) fn running(mark: &str) -> usize {
    processes(mark).len()
}

/// The processes that have `mark` as an argument: pid and command line.
fn processes(mark: &str) -> Vec<String> {
    let Ok(list) = std::fs::read_dir("/proc") else { return Vec::new() };
    let has = |line: &[u8]| line.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes());
    let process = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok().filter(|line| has(line))?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        Some(format!("{} {}", entry.file_name().display(), line.trim_end()))
    };
    list.flatten().filter_map(process).collect()
}
