//! Conveniences for callers.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::{
    Backend, Effect, Error, ErrorKind, Event, EventSink, ExecOutput, ExecSpec, LogOptions, OpCtx, Result, SlotRef,
    SlotState, SlotStats, UnitName,
};

/// What to do with a unit of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnitAction {
    /// Start it.
    Start,
    /// Stop it.
    Stop,
    /// Restart it.
    Restart,
    /// Have it start at boot.
    Enable,
    /// Have it not start at boot.
    Disable,
}

impl UnitAction {
    fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }
}

/// How far a node has to be up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ready {
    /// A command runs inside.
    Booted,
    /// The node's service manager has settled: `running` or `degraded`.
    SystemRunning,
    /// This unit is active.
    Unit(UnitName),
}

/// Conveniences for callers. Every backend has them and none can override them.
pub trait BackendExt: Backend {
    /// Runs a command that has to succeed, and gives its output.
    ///
    /// # Errors
    ///
    /// As [`Backend::exec`]; [`ErrorKind::Command`] if it exits with anything
    /// but 0.
    fn exec_ok(
        &self,
        ctx: &OpCtx,
        slot: &dyn SlotRef,
        spec: &ExecSpec,
    ) -> impl Future<Output = Result<ExecOutput>> + Send {
        async move { self.exec(ctx, slot, spec).await?.success() }
    }

    /// Does something with a unit of the node, through its own service manager.
    ///
    /// # Errors
    ///
    /// As [`exec_ok`](Self::exec_ok).
    fn unit(
        &self,
        ctx: &OpCtx,
        slot: &dyn SlotRef,
        unit: &UnitName,
        action: UnitAction,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            let spec = ExecSpec::new(["systemctl", action.verb(), "--", unit.as_str()]);
            self.exec_ok(ctx, slot, &spec).await.map(drop)
        }
    }

    /// Waits until the node is up as far as `ready` says.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] at the context's deadline, with the last status in
    /// its text; [`ErrorKind::NotRunning`] at once if the slot has failed or is stopped.
    fn wait_ready(&self, ctx: &OpCtx, slot: &dyn SlotRef, ready: &Ready) -> impl Future<Output = Result<()>> + Send {
        async move {
            let begun = tokio::time::Instant::now();
            let mut seen = String::from("not asked yet");
            let mut pause = Duration::from_millis(50);
            loop {
                if ctx.remaining().is_zero() {
                    let late = Error::timeout("wait for the node", begun.elapsed()).with_effect(Effect::None);
                    return Err(late.with_detail(format!("it was last {seen}")));
                }
                // Bounded here, too: what waits for a node ends whatever its backend does.
                let status = match ctx.bound("look at the slot", self.status(ctx, slot)).await {
                    Err(error) if error.kind() == ErrorKind::Timeout && ctx.remaining().is_zero() => continue,
                    status => status?,
                };
                seen = format!("{} {}", status.state, status.detail);
                match status.state {
                    SlotState::Absent => {
                        return Err(Error::new(ErrorKind::UnknownSlot, "wait for the node"));
                    }
                    SlotState::Failed | SlotState::Stopped | SlotState::Prepared => {
                        return Err(Error::new(ErrorKind::NotRunning, "wait for the node").with_detail(seen));
                    }
                    _ => {}
                }
                if status.running() {
                    let probe = match ready {
                        Ready::Booted => ExecSpec::new(["true"]),
                        Ready::SystemRunning => ExecSpec::new(["systemctl", "is-system-running"]),
                        Ready::Unit(unit) => ExecSpec::new(["systemctl", "is-active", "--", unit.as_str()]),
                    };
                    match ctx.bound("ask the node", self.exec(ctx, slot, &probe)).await {
                        Ok(output) if output.status.success() => return Ok(()),
                        // A node with one failed unit is degraded: it has settled all the same.
                        Ok(output) if *ready == Ready::SystemRunning && output.stdout_text() == "degraded" => {
                            return Ok(());
                        }
                        Ok(output) => seen = format!("{seen}: {}", output.stdout_text().escape_debug()),
                        Err(error) => seen = format!("{seen}: {error}"),
                    }
                }
                sleep(pause.min(ctx.remaining())).await;
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        }
    }

    /// The log as text, at most `limit` bytes of it; a following log is read as if it did not follow.
    ///
    /// # Errors
    ///
    /// As [`Backend::logs`] and [`LogStream::close`](crate::LogStream::close).
    fn logs_to_string(
        &self,
        ctx: &OpCtx,
        slot: &dyn SlotRef,
        options: &LogOptions,
        limit: usize,
    ) -> impl Future<Output = Result<String>> + Send {
        async move {
            let options = options.clone().with_follow(false);
            let stream = ctx.bound("open a log", self.logs(ctx, slot, &options)).await?;
            let content = ctx.bound("read a log", stream.read_all(limit)).await;
            let content = content.map_err(|error| error.with_effect(Effect::None))?;
            Ok(String::from_utf8_lossy(&content).into_owned())
        }
    }

    /// A context like `ctx` whose calls on `slot` also tell what they do to the receiver, and the receiver. Where
    /// `ctx` sends its events gets them too; when `capacity` events wait in the receiver, newer ones are dropped.
    fn events(&self, ctx: &OpCtx, slot: &dyn SlotRef, capacity: usize) -> (OpCtx, mpsc::Receiver<Event>) {
        let (own, receiver) = EventSink::channel(capacity);
        let (slot, before) = (slot.slot().clone(), ctx.events().clone());
        let both = EventSink::new(move |event| {
            if event.slot == slot {
                own.emit(event.clone());
            }
            before.emit(event);
        });
        (ctx.clone().with_events(both), receiver)
    }

    /// What the slot uses of its host: the counters of the control group that its main process is in.
    ///
    /// # Errors
    ///
    /// As [`Backend::status`]; [`ErrorKind::UnknownSlot`], [`ErrorKind::NotRunning`];
    /// [`ErrorKind::Unsupported`] if the backend names no main process or the host has no unified control groups.
    fn stats(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> impl Future<Output = Result<SlotStats>> + Send {
        async move {
            const READ: &str = "read what the slot uses";
            let status =
                ctx.bound(READ, self.status(ctx, slot)).await.map_err(|error| error.with_effect(Effect::None))?;
            let pid = match status.main_pid {
                _ if status.state == SlotState::Absent => return Err(Error::new(ErrorKind::UnknownSlot, READ)),
                _ if !status.running() => return Err(Error::new(ErrorKind::NotRunning, READ)),
                Some(pid) => pid,
                None => return Err(Error::new(ErrorKind::Unsupported, READ).with_detail("no main process is known")),
            };
            let read = async {
                let read = tokio::task::spawn_blocking(move || SlotStats::of_process(pid)).await;
                read.unwrap_or_else(|cause| Err(Error::new(ErrorKind::Transport, READ).because(cause)))
            };
            ctx.bound(READ, read).await.map_err(|error| error.with_effect(Effect::None))
        }
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}
