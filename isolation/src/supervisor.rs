//! Node stacks that are programs of this host.

mod marked;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures::FutureExt;
use tokio::task::JoinSet;

use self::marked::MARK;
use crate::{
    Cancel, Effect, Error, ErrorKind, ExecOutput, ExecStatus, ExecStream, HostCommand, HostRunner, Journal, OpCtx,
    Result, SlotName, SlotPair, SlotState, Status, SystemRunner,
};

const RUN: &str = "run a command in the node";

/// Runs node stacks that are programs of this host, such as a virtual machine's, where no service manager does.
///
/// A slot's main program is started, watched, told about and stopped; what it writes is the slot's [`Journal`]. Commands run beside it, as
/// programs of this host. All of them carry a mark in their environment, by which a stop finds what has left its process group; what
/// drops the mark, too, is not found: a backend that must contain what it runs needs control groups or a namespace. One slot of
/// the pair runs at a time.
///
/// A slot runs as long as its supervisor. Dropping that kills what runs, and does not wait for it. The locks of lifecycle calls and what a
/// slot is on disk are the backend's.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use isolation::{HostCommand, OpCtx, SlotName, SlotPair, SlotState, Supervisor, SystemRunner};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> isolation::Result<()> {
/// let nodes = Supervisor::new("/run/mine", SlotPair::default(), Arc::new(SystemRunner::default()));
/// let slot = SlotName::new("kube1")?;
/// nodes.start(&slot, HostCommand::new("sleep", ["infinity"]))?;
/// let ctx = OpCtx::new(Duration::from_secs(10));
/// let output = nodes.exec(&ctx, &slot, HostCommand::new("echo", ["hello"])).await?;
/// assert_eq!(output.stdout_text(), "hello");
/// nodes.stop(&slot).await?;
/// assert_eq!(nodes.status(&slot).state, SlotState::Stopped);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Supervisor {
    name: String,
    pair: SlotPair,
    runner: Arc<dyn HostRunner>,
    journal: Journal,
    nodes: Mutex<HashMap<SlotName, Node>>,
    commands: AtomicU64,
}

/// What a slot that was started once does now.
#[derive(Debug)]
enum Node {
    Up(Running),
    Down(SlotState),
}

#[derive(Debug)]
struct Running {
    main: ExecStream,
    since: SystemTime,
    instance: String,
    /// Ends the commands that run beside it.
    ended: Cancel,
    /// Listen to the main program; gone with it.
    _listeners: JoinSet<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Supervisor {
    /// The unit as which a main program writes to the journal.
    pub const UNIT: &str = "main.service";

    /// A supervisor of the slots of `pair`, whose main programs `runner` starts. `name` tells its processes from those of every other
    /// supervisor on the host: the backend's directory, for example.
    pub fn new(name: impl Into<String>, pair: SlotPair, runner: Arc<dyn HostRunner>) -> Self {
        Self {
            name: name.into(),
            pair,
            runner,
            journal: Journal::default(),
            nodes: Mutex::default(),
            commands: AtomicU64::new(0),
        }
    }

    /// What the slots have written. It outlives a stop, and may be written to.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What the marks of a slot begin with.
    fn mark(&self, slot: &SlotName) -> String {
        format!("{}:{slot}:", self.name)
    }

    /// The slots, those whose program ended by itself told as failed; what it left running ends, too.
    fn nodes(&self) -> MutexGuard<'_, HashMap<SlotName, Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, node) in nodes.iter_mut() {
            if let Node::Up(running) = node
                && running.main.wait().now_or_never().is_some()
            {
                *node = Node::Down(SlotState::Failed);
                marked::end_now(&self.mark(slot));
            }
        }
        nodes
    }

    /// Starts a slot's main program, and says whether it did: one that runs is left alone. Needs a runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] while the other slot of the pair runs; [`ErrorKind::CommandNotFound`], [`ErrorKind::Transport`].
    pub fn start(&self, slot: &SlotName, main: HostCommand) -> Result<bool> {
        let mut nodes = self.nodes();
        if let Some(Node::Up(_)) = nodes.get(slot) {
            return Ok(false);
        }
        if let Ok(other) = self.pair.other(slot)
            && let Some(Node::Up(_)) = nodes.get(other)
        {
            return Err(Error::new(ErrorKind::Conflict, "start the slot").with_detail(format!("{other} is running")));
        }
        let mut main = self.runner.stream(main.with_env(MARK, self.mark(slot)))?;
        let mut listeners = JoinSet::new();
        for output in [main.stdout.take(), main.stderr.take()].into_iter().flatten() {
            let (journal, slot) = (self.journal.clone(), slot.clone());
            listeners.spawn(async move { journal.copy(&slot, Self::UNIT, output).await });
        }
        let since = SystemTime::now();
        let nanos = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let instance = format!("{}.{nanos}", main.pid().unwrap_or_default());
        let running = Running { main, since, instance, ended: Cancel::new(), _listeners: listeners };
        nodes.insert(slot.clone(), Node::Up(running));
        Ok(true)
    }

    /// Kills all that runs for a slot and waits until it is gone. Succeeds when nothing does. A dropped future can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if a process does not go.
    pub async fn stop(&self, slot: &SlotName) -> Result<()> {
        self.nodes().entry(slot.clone()).and_modify(|node| *node = Node::Down(SlotState::Stopped));
        marked::end(&self.mark(slot)).await
    }

    /// Forgets a slot that was stopped, its journal included, as when it is destroyed. One that runs is killed.
    pub fn forget(&self, slot: &SlotName) {
        if let Some(Node::Up(_)) = self.nodes().remove(slot) {
            marked::end_now(&self.mark(slot));
        }
        self.journal.forget(slot);
    }

    /// How a slot is doing that is prepared: `Prepared` if it was never started.
    pub fn status(&self, slot: &SlotName) -> Status {
        match self.nodes().get(slot) {
            Some(Node::Up(running)) => {
                let status = Status::new(SlotState::Running).with_since(running.since);
                let status = status.with_instance(&running.instance).with_detail("the main process runs");
                running.main.pid().into_iter().fold(status, Status::with_main_pid)
            }
            Some(Node::Down(state)) => Status::new(*state),
            None => Status::new(SlotState::Prepared),
        }
    }

    /// The command with a mark of its own, and what ends it when the slot stops.
    fn beside(&self, slot: &SlotName, command: HostCommand) -> Result<(HostCommand, Cancel, String)> {
        let nodes = self.nodes();
        let Some(Node::Up(running)) = nodes.get(slot) else { return Err(Error::new(ErrorKind::NotRunning, RUN)) };
        let mark = format!("{}{}", self.mark(slot), self.commands.fetch_add(1, Ordering::Relaxed));
        Ok((command.with_env(MARK, &mark), running.ended.clone(), mark))
    }

    /// Runs a command beside a slot's main program: [`HostCommand::of`] makes one. If the call is dropped or cancelled, or the command runs
    /// past its time, all that it has started is killed; otherwise what it has left running stays until the slot stops.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRunning`], with an unknown effect if the slot was stopped meanwhile; else as [`HostRunner::run`].
    pub async fn exec(&self, ctx: &OpCtx, slot: &SlotName, command: HostCommand) -> Result<ExecOutput> {
        let (command, ended, mark) = self.beside(slot, command)?;
        let mut cleanup = Cleanup(Some(mark.clone()));
        let runner = SystemRunner::default();
        let output = tokio::select! {
            biased;
            () = ended.cancelled() => {
                let stopped = Error::new(ErrorKind::NotRunning, RUN);
                return Err(stopped.with_effect(Effect::Unknown).with_detail("the slot was stopped meanwhile"));
            }
            output = runner.run(ctx, command) => output?,
        };
        if output.status == ExecStatus::TimedOut {
            marked::end(&mark).await?;
        }
        cleanup.0 = None;
        Ok(output)
    }

    /// Starts a command to talk to beside a slot's main program. It ends with the slot; dropping the stream kills its process group.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRunning`]; else as [`HostRunner::stream`].
    pub fn exec_stream(&self, slot: &SlotName, command: HostCommand) -> Result<ExecStream> {
        let (command, ended, _) = self.beside(slot, command)?;
        SystemRunner::default().stream(command).map(|stream| stream.with_cancel(&ended))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let slots: Vec<_> = self.nodes().drain().map(|(slot, _)| slot).collect();
        for slot in slots {
            marked::end_now(&self.mark(&slot));
        }
    }
}

/// Kills what a command that was cut short has started.
struct Cleanup(Option<String>);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(mark) = &self.0 {
            marked::end_now(mark);
        }
    }
}
