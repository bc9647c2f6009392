//! Node stacks that are programs of this host.

mod marked;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::marked::MARK;
use crate::blocking::on_thread;
use crate::nonce::{is_nonce, nonce};
use crate::process::LATE_OUTPUT;
use crate::{
    Cancel, Effect, Error, ErrorKind, ExecOutput, ExecStatus, ExecStream, HostCommand, HostRunner, Journal, NodeFs,
    NodePath, OpCtx, Result, SlotName, SlotPair, SlotState, Status, SystemRunner,
};

/// How long one that tidies up may wait for another that does, too.
const TIDY: Duration = Duration::from_secs(1);

const RUN: &str = "run a command in the node";

/// Runs node stacks that are programs of this host, such as a virtual machine's, where no service manager does.
///
/// A slot's main program is started without input, watched, told about and stopped; what it writes is the slot's [`Journal`]. Commands run
/// beside it, as programs of this host. All of them carry a mark in their environment, by which a stop finds what has left its process
/// group; what drops the mark, too, is not found, and neither is what may not be looked at by whoever runs the supervisor: a backend that
/// must contain what it runs needs control groups or a namespace. One slot of the pair runs at a time.
///
/// A slot runs as long as its supervisor. Dropping that kills what runs, and does not wait for it. What a process that was killed could not
/// end is ended by the next one: all of it before the first start, a slot's own by its stop. So a directory has one supervisor at a
/// time. The locks of lifecycle calls and what a slot is on disk are the backend's.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use isolation::{HostCommand, OpCtx, SlotName, SlotPair, SlotState, Supervisor, SystemRunner};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> isolation::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let dir = dir.path();
/// let nodes = Supervisor::new(dir, SlotPair::default(), Arc::new(SystemRunner::default()));
/// let slot = SlotName::new("kube1")?;
/// nodes.start(&slot, HostCommand::new("sleep", ["infinity"])).await?;
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
    dir: PathBuf,
    pair: SlotPair,
    runner: Arc<dyn HostRunner>,
    journal: Journal,
    nodes: Mutex<HashMap<SlotName, Node>>,
    commands: AtomicU64,
    /// What all marks begin with, once it is known.
    secret: Arc<Mutex<Option<String>>>,
    /// What an earlier process left is gone. Whoever makes or removes the directory's file holds it.
    clean: Arc<tokio::sync::Mutex<bool>>,
}

/// A slot that was started once.
#[derive(Debug)]
struct Node {
    now: Now,
    /// Listen to its main programs; each outlives its program for a moment, and is gone with the node.
    listeners: JoinSet<()>,
}

#[derive(Debug)]
enum Now {
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
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Supervisor {
    /// The unit as which a main program writes to the journal.
    pub const UNIT: &str = "main.service";

    /// The file below the directory that holds what tells this supervisor's processes from all others: nobody else may read it.
    pub const MARK: &str = "supervisor.mark";

    /// A supervisor of the slots of `pair`, whose main programs `runner` starts. `dir` is the backend's own: a start makes it, and in it the
    /// file [`MARK`](Self::MARK), which goes with the last slot that is forgotten.
    pub fn new(dir: impl Into<PathBuf>, pair: SlotPair, runner: Arc<dyn HostRunner>) -> Self {
        Self {
            dir: dir.into(),
            pair,
            runner,
            journal: Journal::default(),
            nodes: Mutex::default(),
            commands: AtomicU64::new(0),
            secret: Arc::default(),
            clean: Arc::default(),
        }
    }

    /// What the slots have written. It outlives a stop, and may be written to.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    fn known(&self) -> MutexGuard<'_, Option<String>> {
        self.secret.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all marks begin with, as the directory's file has it; `None` if there is none and it was not to be made. `held` is what must not
    /// be given back before the file was made.
    async fn secret<T: Send + 'static>(&self, make: bool, held: T) -> Result<(Option<String>, T)> {
        let (dir, known) = (self.dir.clone(), Arc::clone(&self.secret));
        on_thread("look at the supervisor's directory", move || {
            let secret = secret_of(&dir, make)?;
            if secret.is_some() {
                known.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&secret);
            }
            Ok((secret, held))
        })
        .await
    }

    /// Removes the directory's file once nothing needs it any more: no slot, and no process of an earlier supervisor.
    async fn tidy(&self) {
        // A start that is under way needs it, and is not waited for.
        let Ok(mut clean) = timeout(TIDY, Arc::clone(&self.clean).lock_owned()).await else { return };
        if !self.nodes.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            return;
        }
        // The next one looks for itself, whether the file is gone by then or not.
        (*self.known(), *clean) = (None, false);
        let dir = self.dir.clone();
        let removed = on_thread("remove the supervisor's file", move || {
            let _clean = clean;
            if let Some(secret) = secret_of(&dir, false)?
                && let Ok(0) = marked::count(&format!("{secret}:"))
            {
                let _ = std::fs::remove_file(dir.join(Self::MARK));
            }
            Ok(())
        });
        // What is left over here the next one takes up.
        let _ = removed.await;
    }

    /// What the marks of a slot begin with; `None` if none was started. Each part of a mark ends in a colon, so that no mark begins
    /// another's.
    fn mark(&self, slot: &SlotName) -> Option<String> {
        self.known().as_ref().map(|secret| format!("{secret}:{slot}:"))
    }

    /// Kills what runs for a slot, here and now: a drop can't wait, and a thread that is asked for while the runtime ends never comes.
    fn kill(&self, slot: &SlotName) {
        if let Some(mark) = self.mark(slot) {
            let _ = marked::end_now(&mark);
        }
    }

    /// Kills what runs for a slot, and does not wait for it.
    fn kill_soon(&self, slot: &SlotName) {
        match (self.mark(slot), tokio::runtime::Handle::try_current()) {
            (Some(mark), Ok(runtime)) => drop(runtime.spawn_blocking(move || marked::end_now(&mark))),
            _ => self.kill(slot),
        }
    }

    /// The slots, those whose program ended by itself told as failed; what it left running ends, too.
    fn nodes(&self) -> MutexGuard<'_, HashMap<SlotName, Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, node) in nodes.iter_mut() {
            if let Now::Up(running) = &mut node.now
                && running.main.wait().now_or_never().is_some()
            {
                node.now = Now::Down(SlotState::Failed);
                self.kill_soon(slot);
            }
        }
        nodes
    }

    /// Starts a slot's main program, and says whether it did: one that runs is left alone. The program has no input.
    ///
    /// The first start ends what an earlier process has left of the slots. A dropped future can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSlot`] for a slot of another pair; [`ErrorKind::Conflict`] while the other slot of the pair runs;
    /// [`ErrorKind::CommandNotFound`], [`ErrorKind::Transport`];
    /// [`ErrorKind::Timeout`] and [`ErrorKind::Io`] if what was left does not go.
    pub async fn start(&self, slot: &SlotName, main: HostCommand) -> Result<bool> {
        let mut clean = Arc::clone(&self.clean).lock_owned().await;
        if !*clean {
            let (secret, held) = self.secret(true, clean).await?;
            clean = held;
            if let Some(secret) = secret {
                marked::end(&format!("{secret}:")).await?;
            }
            *clean = true;
        }
        self.launch(slot, main)
    }

    fn launch(&self, slot: &SlotName, main: HostCommand) -> Result<bool> {
        let mut nodes = self.nodes();
        let up = |slot| nodes.get(slot).is_some_and(|node: &Node| matches!(node.now, Now::Up(_)));
        if up(slot) {
            return Ok(false);
        }
        let other = self.pair.other(slot)?;
        if up(other) {
            return Err(Error::new(ErrorKind::Conflict, "start the slot").with_detail(format!("{other} is running")));
        }
        let mark = self.mark(slot).map(|mark| format!("{mark}main:")).unwrap_or_default();
        let mut main = self.runner.stream(main.with_env(MARK, mark))?;
        main.stdin = None;
        let since = SystemTime::now();
        let nanos = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let instance = format!("{}.{nanos}", main.pid().unwrap_or_default());
        let outputs = [main.stdout.take(), main.stderr.take()];
        let ended = Cancel::new();
        let running = Running { main, since, instance, ended: ended.clone() };
        let down = || Node { now: Now::Down(SlotState::Prepared), listeners: JoinSet::new() };
        let node = nodes.entry(slot.clone()).or_insert_with(down);
        node.now = Now::Up(running);
        while node.listeners.try_join_next().is_some() {}
        for output in outputs.into_iter().flatten() {
            let (journal, slot, ended) = (self.journal.clone(), slot.clone(), ended.clone());
            node.listeners.spawn(async move {
                let late = async {
                    ended.cancelled().await;
                    sleep(LATE_OUTPUT).await;
                };
                tokio::select! {
                    () = journal.copy(&slot, Self::UNIT, output) => {}
                    () = late => {}
                }
            });
        }
        Ok(true)
    }

    /// Kills all that runs for a slot, also what an earlier process has left, and waits until it is gone. Succeeds when nothing does. A dropped
    /// future can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if a process does not go, [`ErrorKind::Io`] if the processes could not be looked at.
    pub async fn stop(&self, slot: &SlotName) -> Result<()> {
        self.nodes().entry(slot.clone()).and_modify(|node| node.now = Now::Down(SlotState::Stopped));
        match self.secret(false, ()).await? {
            (Some(secret), ()) => marked::end(&format!("{secret}:{slot}:")).await,
            (None, ()) => Ok(()),
        }
    }

    /// Forgets a slot that was stopped, its journal included, as when it is destroyed. One that runs is killed. A dropped future can be
    /// repeated: call this before the slot's files are removed, since whoever repeats a removal may find no slot any more.
    pub async fn forget(&self, slot: &SlotName) {
        let node = self.nodes().remove(slot);
        self.journal.forget(slot);
        if let (Some(Now::Up(_)), Some(mark)) = (node.map(|node| node.now), self.mark(slot)) {
            let killed = on_thread("end the processes of the slot", move || Ok(marked::end_now(&mark)));
            let _ = killed.await;
        }
        self.tidy().await;
    }

    /// How a slot is doing that is prepared: `Prepared` if this supervisor never started it.
    pub fn status(&self, slot: &SlotName) -> Status {
        match self.nodes().get(slot).map(|node| &node.now) {
            Some(Now::Up(running)) => {
                let status = Status::new(SlotState::Running).with_since(running.since);
                let status = status.with_instance(&running.instance).with_detail("the main process runs");
                running.main.pid().into_iter().fold(status, Status::with_main_pid)
            }
            Some(Now::Down(state)) => Status::new(*state),
            None => Status::new(SlotState::Prepared),
        }
    }

    /// The command with a mark of its own, and what ends it when the slot stops.
    fn beside(&self, slot: &SlotName, command: HostCommand) -> Result<(HostCommand, Cancel, String)> {
        let nodes = self.nodes();
        let (Some(Now::Up(running)), Some(mark)) = (nodes.get(slot).map(|node| &node.now), self.mark(slot)) else {
            return Err(Error::new(ErrorKind::NotRunning, RUN));
        };
        let mark = format!("{mark}{}:", self.commands.fetch_add(1, Ordering::Relaxed));
        Ok((command.with_env(MARK, &mark), running.ended.clone(), mark))
    }

    /// Runs a command beside a slot's main program: [`HostCommand::of`] makes one. If the call is dropped or cancelled, or the command runs
    /// past its time, all that it has started is killed; otherwise what it has left running stays until the slot stops.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRunning`], with an unknown effect if the slot was stopped meanwhile; as [`stop`](Self::stop) if what ran past its time
    /// does not go; else as [`HostRunner::run`].
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
            self.kill(&slot);
        }
    }
}

/// What all marks begin with, as the file in `dir` has it. Blocks.
fn secret_of(dir: &Path, make: bool) -> Result<Option<String>> {
    let absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let io = |cause| Error::new(ErrorKind::Io, "look at the supervisor's directory").with_path(dir).because(cause);
    if make {
        std::fs::create_dir_all(dir).map_err(io)?;
    } else if dir.metadata().is_err_and(|error| absent(&error)) {
        return Ok(None);
    }
    let (fs, file) = (NodeFs::open(dir)?, NodePath::root().join(Supervisor::MARK)?);
    let kept = match fs.metadata(&file)? {
        Some(_) => String::from_utf8(fs.read(&file, 64)?).ok().filter(|text| is_nonce(text)),
        None => None,
    };
    if kept.is_some() || !make {
        return Ok(kept);
    }
    let secret = nonce();
    fs.write_atomic(&file, 0o600, secret.as_bytes())?;
    Ok(Some(secret))
}

/// Kills what a command that was cut short has started.
struct Cleanup(Option<String>);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(mark) = &self.0 {
            let _ = marked::end_now(mark);
        }
    }
}
