//! A tiny real backend.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;

use super::journal::Journal;
use super::marked::{self, MARK};
use super::{FakeRoot, node};
use crate::{
    Cancel, Effect, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, HostCommand, HostRunner, LogOptions, LogStream,
    NodeFs, NodePath, NodeRoot, NodeSpec, OpCtx, PrepareReport, Reason, Requirements, Result, SlotLocks, SlotName,
    SlotPair, SlotState, Status, SystemRunner, UnitName, mounts_below,
};

/// Below the directory: `<slot>/` is the root, `<slot>.conf` the configuration, `<slot>.json` the spec and
/// the mark of a finished root, `<slot>.pid` the registration of a running one, `slot-<slot>.lock` its lock.
pub(super) struct Stateful {
    dir: PathBuf,
    pair: SlotPair,
    locks: SlotLocks,
    /// Runs the main process.
    runner: Arc<dyn HostRunner>,
    journal: Arc<Journal>,
    running: Mutex<HashMap<SlotName, Running>>,
    /// Slots that were running before and are not now.
    ended: Mutex<HashMap<SlotName, SlotState>>,
    instances: AtomicU64,
    away: AtomicBool,
    broken_log: Mutex<Option<String>>,
}

struct Running {
    main: ExecStream,
    instance: u64,
    since: std::time::SystemTime,
    /// Ends the commands that run inside.
    ended: Cancel,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stateful {
    pub(super) fn new(dir: PathBuf, pair: SlotPair) -> Self {
        Self {
            locks: SlotLocks::new(&dir),
            dir,
            pair,
            runner: Arc::new(SystemRunner::default()),
            journal: Arc::default(),
            running: Mutex::default(),
            ended: Mutex::default(),
            instances: AtomicU64::new(1),
            away: AtomicBool::new(false),
            broken_log: Mutex::default(),
        }
    }

    pub(super) fn with_runner(&self, runner: Arc<dyn HostRunner>) -> Self {
        let mut other = Self::new(self.dir.clone(), self.pair.clone());
        other.runner = runner;
        other
    }

    pub(super) fn emit(&self, slot: &SlotName, unit: &str, line: &str) {
        self.journal.emit(slot, unit, line);
    }

    pub(super) fn break_next_log(&self, stderr: &str) {
        *lock(&self.broken_log) = Some(stderr.to_owned());
    }

    pub(super) fn set_manager_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    pub(super) fn requirements(&self) -> Requirements {
        let after = UnitName::new("network-online.target").expect("a literal that is a unit's name");
        Requirements::default().with_command("sleep").with_writable_path(&self.dir).with_after(after)
    }

    fn file(&self, slot: &SlotName, suffix: &str) -> PathBuf {
        self.dir.join(format!("{slot}.{suffix}"))
    }

    fn root(&self, slot: &SlotName) -> Result<FakeRoot> {
        FakeRoot::new(slot.clone(), self.dir.join(slot.as_str()))
    }

    fn is_prepared(&self, slot: &SlotName) -> bool {
        self.file(slot, "json").exists()
    }

    fn manager(&self) -> Result<()> {
        if self.away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Transport, "ask the service manager"));
        }
        Ok(())
    }

    fn known(&self, slot: &SlotName, operation: &'static str) -> Result<()> {
        if self.is_prepared(slot) { Ok(()) } else { Err(Error::new(ErrorKind::UnknownSlot, operation)) }
    }

    pub(super) async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<FakeRoot>, PrepareReport)> {
        spec.validate()?;
        for command in self.requirements().host_commands {
            if !command.names().iter().any(|name| self.runner.resolve(name).is_some()) {
                return Err(Error::new(ErrorKind::NotPrepared, "prepare the slot")
                    .with_program(command.to_string(), Vec::new()));
            }
        }
        let root = Arc::new(self.root(&spec.slot)?);
        let _guard = self.locks.acquire(ctx, &spec.slot).await?;
        self.manager()?;
        let changed = self.write(spec, &root).map_err(|error| error.with_effect(Effect::Partial))?;
        let (applied, ignored) = node::sort_grants(&spec.grants);
        Ok((root, PrepareReport::new(changed).with_applied(applied).with_ignored(ignored)))
    }

    /// Brings the disk to what `spec` says; whether that changed anything.
    fn write(&self, spec: &NodeSpec, root: &FakeRoot) -> Result<bool> {
        let slot = &spec.slot;
        let own = NodeFs::open(&self.dir)?;
        let name = |suffix: &str| NodePath::root().join(format!("{slot}{suffix}"));
        let wanted =
            serde_json::to_vec(spec).map_err(|cause| Error::new(ErrorKind::Corrupt, "write a spec").because(cause))?;
        let conf = node::render(spec, &self.requirements().after);
        let finished = node::read(&self.file(slot, "json"))?;
        if finished.as_deref() == Some(&wanted[..])
            && node::read(&self.file(slot, "conf"))? == Some(conf.clone().into())
        {
            return Ok(false);
        }
        match &finished {
            // Without its mark a root was never finished: nobody's files are in it.
            None => {
                own.remove_tree(&name("")?)?;
                own.create_dir_all(&name("")?, 0o755)?;
                node::fill(&root.fs()?)?;
            }
            Some(before) => {
                let before: NodeSpec = serde_json::from_slice(before)
                    .map_err(|cause| Error::new(ErrorKind::Corrupt, "read a spec").because(cause))?;
                node::unlink(&root.fs()?, &before.grants)?;
            }
        }
        node::link(&root.fs()?, &spec.grants)?;
        own.write_atomic(&name(".conf")?, 0o644, conf.as_bytes())?;
        own.write_atomic(&name(".json")?, 0o644, &wanted)?;
        Ok(true)
    }

    pub(super) async fn start(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        self.known(slot, "start the slot")?;
        let _guard = self.locks.acquire(ctx, slot).await?;
        self.manager()?;
        self.up(slot)
    }

    pub(super) async fn restart(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        self.known(slot, "restart the slot")?;
        let _guard = self.locks.acquire(ctx, slot).await?;
        self.manager()?;
        self.down(slot, SlotState::Stopped).await;
        self.up(slot)
    }

    fn up(&self, slot: &SlotName) -> Result<()> {
        self.known(slot, "start the slot")?;
        self.collect();
        let mut running = lock(&self.running);
        if running.contains_key(slot) {
            return Ok(());
        }
        if let Ok(other) = self.pair.other(slot)
            && running.contains_key(other)
        {
            return Err(Error::new(ErrorKind::Conflict, "start the slot").with_detail(format!("{other} is running")));
        }
        let mark = format!("{}:", self.mark(slot));
        let main = self.runner.stream(HostCommand::new("sleep", ["infinity"]).with_env(MARK, mark))?;
        let pid = main.pid().map(|pid| pid.to_string()).unwrap_or_default();
        // A registration that is there already is a dead one's: nobody of ours runs.
        let written = NodeFs::open(&self.dir)?.write_atomic(
            &NodePath::root().join(format!("{slot}.pid"))?,
            0o644,
            pid.as_bytes(),
        );
        written.map_err(|error| error.with_effect(Effect::Partial))?;
        let instance = self.instances.fetch_add(1, Ordering::Relaxed);
        let since = std::time::SystemTime::now();
        running.insert(slot.clone(), Running { main, instance, since, ended: Cancel::new() });
        lock(&self.ended).remove(slot);
        self.emit(slot, "init.scope", "started");
        Ok(())
    }

    /// Takes note of main processes that ended by themselves.
    fn collect(&self) {
        let mut running = lock(&self.running);
        let dead: Vec<_> = running
            .iter_mut()
            .filter_map(|(slot, node)| node.main.wait().now_or_never().map(|_| slot.clone()))
            .collect();
        for slot in dead {
            if let Some(node) = running.remove(&slot) {
                node.ended.cancel();
            }
            marked::end_now(&self.mark(&slot));
            lock(&self.ended).insert(slot, SlotState::Failed);
        }
    }

    async fn down(&self, slot: &SlotName, state: SlotState) {
        let node = lock(&self.running).remove(slot);
        if let Some(node) = node {
            node.ended.cancel();
            drop(node.main);
            lock(&self.ended).insert(slot.clone(), state);
        } else if let Some(ended) = lock(&self.ended).get_mut(slot) {
            *ended = state;
        }
        marked::end(&self.mark(slot)).await;
        let _ = std::fs::remove_file(self.file(slot, "pid"));
    }

    pub(super) async fn stop(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        if !self.is_prepared(slot) {
            return Ok(());
        }
        let _guard = self.locks.acquire(ctx, slot).await?;
        self.manager()?;
        self.down(slot, SlotState::Stopped).await;
        Ok(())
    }

    pub(super) async fn destroy(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        let parts = ["json", "conf", "pid"].map(|suffix| self.file(slot, suffix));
        let root = self.dir.join(slot.as_str());
        if !root.exists() && !parts.iter().any(|part| part.exists()) {
            return Ok(());
        }
        let _guard = self.locks.acquire(ctx, slot).await?;
        self.manager()?;
        self.down(slot, SlotState::Stopped).await;
        if let Some(mount) = mounts_below(&root)?.pop() {
            let conflict = Error::new(ErrorKind::Conflict, "destroy the slot").with_path(mount);
            return Err(conflict.with_effect(Effect::Partial).with_detail("something is mounted into the root"));
        }
        let own = NodeFs::open(&self.dir)?;
        // The mark goes first: what is left of a root after a crash is never taken for a finished one.
        for suffix in ["json", "conf"] {
            own.remove(&NodePath::root().join(format!("{slot}.{suffix}"))?)?;
        }
        own.remove_tree(&NodePath::root().join(slot.as_str())?)?;
        self.journal.forget(slot);
        lock(&self.ended).remove(slot);
        Ok(())
    }

    pub(super) fn status(&self, slot: &SlotName) -> Result<Status> {
        self.manager()?;
        if !self.is_prepared(slot) {
            return Ok(Status::default());
        }
        self.collect();
        Ok(match lock(&self.running).get(slot) {
            Some(node) => {
                let status = Status::new(SlotState::Running).with_instance(node.instance.to_string());
                let status = status.with_since(node.since).with_detail("the main process runs");
                node.main.pid().map_or(status.clone(), |pid| status.with_main_pid(pid))
            }
            None => Status::new(lock(&self.ended).get(slot).copied().unwrap_or(SlotState::Prepared)),
        })
    }

    /// What marks the processes of a slot.
    fn mark(&self, slot: &SlotName) -> String {
        format!("{}:{slot}", self.dir.display())
    }

    /// The command as a program of this host, and what ends it when the slot stops.
    fn inside(&self, slot: &SlotName, spec: &ExecSpec) -> Result<(HostCommand, Cancel, String)> {
        const RUN: &str = "run a command in the node";
        self.known(slot, RUN)?;
        self.collect();
        let ended = match lock(&self.running).get(slot) {
            Some(node) => node.ended.clone(),
            None => return Err(Error::new(ErrorKind::NotRunning, RUN)),
        };
        let ids = spec.user.as_deref().map(|user| node::user_ids(user).ok_or_else(|| no_user(RUN))).transpose()?;
        let ids = ids.filter(|(uid, _)| *uid != 0);
        if ids.is_some() && !rustix::process::geteuid().is_root() {
            return Err(Error::new(ErrorKind::Unsupported, RUN).with_field("user"));
        }
        let mark = format!("{}:{}", self.mark(slot), self.instances.fetch_add(1, Ordering::Relaxed));
        let program = spec.argv[0].to_string_lossy().into_owned();
        let mut command =
            HostCommand::new(program, &spec.argv[1..]).with_max_output(spec.max_output).with_private_args();
        command = command.with_env("HOME", "/root").with_env("LANG", "C.UTF-8").with_env(MARK, &mark);
        command.env.extend(spec.env.iter().cloned());
        let root = self.root(slot)?;
        let cwd = spec.cwd.clone().unwrap_or_else(NodePath::root);
        command = command.with_cwd(root.inside(&cwd)).with_stdin(spec.stdin.clone());
        command.timeout = spec.timeout;
        command.ids = ids;
        Ok((command, ended, mark))
    }

    pub(super) async fn exec(&self, ctx: &OpCtx, slot: &SlotName, spec: &ExecSpec) -> Result<ExecOutput> {
        let (command, ended, mark) = self.inside(slot, spec)?;
        let mut cleanup = Cleanup(Some(mark.clone()));
        let runner = SystemRunner::default();
        let timed = command.timeout.is_some();
        let output = tokio::select! {
            biased;
            () = ended.cancelled() => {
                let stopped = Error::new(ErrorKind::NotRunning, "run a command in the node");
                return Err(stopped.with_effect(Effect::Unknown).with_detail("the slot was stopped meanwhile"));
            }
            output = runner.run(ctx, command) => output?,
        };
        if timed && output.status == crate::ExecStatus::TimedOut {
            marked::end(&mark).await;
        }
        // What the command left running on purpose stays until the slot stops.
        cleanup.0 = None;
        Ok(output)
    }

    pub(super) fn exec_stream(&self, slot: &SlotName, spec: &ExecSpec) -> Result<ExecStream> {
        let (command, ended, _) = self.inside(slot, spec)?;
        SystemRunner::default().stream(command).map(|stream| stream.with_cancel(&ended))
    }

    pub(super) fn logs(&self, slot: &SlotName, options: &LogOptions) -> Result<LogStream> {
        self.known(slot, "open a log")?;
        if let Some(stderr) = lock(&self.broken_log).take() {
            let script = "printf '%s' \"$0\" >&2; exit 1";
            return SystemRunner::default().log(HostCommand::new("sh", ["-c", script, &stderr]));
        }
        Ok(self.journal.open(slot, options))
    }
}

fn no_user(operation: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation).with_field("user").with_reason(Reason::Unknown)
}

/// Ends what a command that was cut short has started.
struct Cleanup(Option<String>);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Some(mark) = &self.0 {
            marked::end_now(mark);
        }
    }
}

impl Drop for Stateful {
    fn drop(&mut self) {
        let slots: Vec<_> = lock(&self.running).drain().map(|(slot, _)| slot).collect();
        for slot in slots {
            marked::end_now(&self.mark(&slot));
        }
    }
}
