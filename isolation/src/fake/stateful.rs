//! A tiny real backend.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::node;
use crate::blocking::on_thread;
use crate::slot_store::is_there;
use crate::{
    Effect, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, HostCommand, HostRoot, HostRunner, LogOptions,
    LogStream, NodeFs, NodePath, NodeSpec, OpCtx, PrepareReport, Reason, Requirements, Result, SlotGuard, SlotName,
    SlotPair, SlotStore, Status, Stop, Supervisor, SystemRunner, UnitName,
};

/// How long a reboot may take.
const BOOT: Duration = Duration::from_secs(60);

/// Below the directory: `<slot>/` is the root, `<slot>.conf` the configuration, `<slot>.json` the spec and
/// the mark of a finished root, `<slot>.changing` what it is being brought to, `<slot>.pid` the registration of one that was started, by
/// which it comes up again with the host, `slot-<slot>.lock` its lock.
pub(super) struct Stateful {
    slots: SlotStore,
    pair: SlotPair,
    runner: Arc<dyn HostRunner>,
    nodes: Supervisor,
    away: AtomicBool,
    broken_log: Mutex<Option<String>>,
}

impl Stateful {
    pub(super) fn new(dir: PathBuf, pair: SlotPair) -> Self {
        Self::with(dir, pair, Arc::new(SystemRunner::default()))
    }

    fn with(dir: PathBuf, pair: SlotPair, runner: Arc<dyn HostRunner>) -> Self {
        Self {
            nodes: Supervisor::new(dir.display().to_string(), pair.clone(), Arc::clone(&runner)),
            slots: SlotStore::new(dir),
            pair,
            runner,
            away: AtomicBool::new(false),
            broken_log: Mutex::default(),
        }
    }

    pub(super) fn with_runner(&self, runner: Arc<dyn HostRunner>) -> Self {
        Self::with(self.slots.dir().to_owned(), self.pair.clone(), runner)
    }

    pub(super) fn emit(&self, slot: &SlotName, unit: &str, line: &str) {
        self.nodes.journal().write(slot, unit, line);
    }

    pub(super) fn emit_host(&self, unit: &str, line: &str) {
        self.nodes.journal().write_host(unit, line);
    }

    pub(super) fn break_next_log(&self, stderr: &str) {
        *self.broken_log.lock().unwrap_or_else(PoisonError::into_inner) = Some(stderr.to_owned());
    }

    pub(super) fn set_manager_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    pub(super) fn requirements(&self) -> Requirements {
        let after = UnitName::new("network-online.target").expect("a literal that is a unit's name");
        Requirements::default().with_command("sleep").with_writable_path(self.slots.dir()).with_after(after)
    }

    fn file(&self, slot: &SlotName, suffix: &str) -> PathBuf {
        self.slots.dir().join(format!("{slot}.{suffix}"))
    }

    fn root(&self, slot: &SlotName) -> Result<HostRoot> {
        HostRoot::new(slot.clone(), self.slots.root_dir(slot))
    }

    fn manager(&self) -> Result<()> {
        if self.away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Transport, "ask the service manager"));
        }
        Ok(())
    }

    pub(super) async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<HostRoot>, PrepareReport)> {
        spec.validate()?;
        let (needs, runner) = (self.requirements(), Arc::clone(&self.runner));
        on_thread("look for programs", move || needs.check_commands(&*runner)).await?;
        let root = Arc::new(self.root(&spec.slot)?);
        let held = self.slots.lock(ctx, &spec.slot).await?;
        self.manager()?;
        let changed = self.write(ctx, held, spec).await?;
        let (applied, ignored) = node::sort_grants(&spec.grants);
        Ok((root, PrepareReport::new(changed).with_applied(applied).with_ignored(ignored)))
    }

    /// Brings the disk to what `spec` says; whether that changed anything.
    async fn write(&self, ctx: &OpCtx, held: SlotGuard, spec: &NodeSpec) -> Result<bool> {
        let (dir, asked, conf) =
            (self.slots.dir().to_owned(), spec.clone(), node::render(spec, &self.requirements().after));
        let write = move |root: &NodeFs, before: Option<&NodeSpec>, _: &Stop| {
            match before {
                None => node::fill(root)?,
                Some(before) => node::unlink(root, &before.grants)?,
            }
            node::link(root, &asked.grants)?;
            let file = NodePath::root().join(format!("{}.conf", asked.slot))?;
            NodeFs::open(dir)?.write_atomic(&file, 0o644, conf.as_bytes())
        };
        self.slots.prepare(ctx, held, spec, write).await
    }

    pub(super) async fn start(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        self.slots.startable(slot, "start the slot").await?;
        let _guard = self.slots.lock(ctx, slot).await?;
        self.manager()?;
        self.up(slot).await
    }

    pub(super) async fn restart(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        self.slots.startable(slot, "restart the slot").await?;
        let _guard = self.slots.lock(ctx, slot).await?;
        self.slots.startable(slot, "restart the slot").await?;
        self.manager()?;
        // What does not run is only started, so that a conflict with the pair leaves it as it is.
        if self.nodes.status(slot).running() {
            self.down(slot).await?;
        }
        self.up(slot).await
    }

    async fn up(&self, slot: &SlotName) -> Result<()> {
        // Whoever held the slot may have destroyed it.
        self.slots.startable(slot, "start the slot").await?;
        if !self.nodes.start(slot, HostCommand::new("sleep", ["infinity"])).await? {
            return Ok(());
        }
        let pid = self.nodes.status(slot).main_pid.map(|pid| pid.to_string()).unwrap_or_default();
        // A registration that is there already is a dead one's: nobody of ours runs.
        let (dir, file) = (self.slots.dir().to_owned(), NodePath::root().join(format!("{slot}.pid"))?);
        let register = move || NodeFs::open(dir)?.write_atomic(&file, 0o644, pid.as_bytes());
        if let Err(error) = on_thread("register the node", register).await {
            self.nodes.stop(slot).await?;
            return Err(error.with_effect(Effect::Partial));
        }
        self.emit(slot, "init.scope", "started");
        Ok(())
    }

    async fn down(&self, slot: &SlotName) -> Result<()> {
        self.nodes.stop(slot).await?;
        let registered = self.file(slot, "pid");
        let forget = move || {
            let _ = std::fs::remove_file(registered);
            Ok(())
        };
        on_thread("forget the node", forget).await
    }

    /// Whether one of the files is there.
    async fn any(&self, files: Vec<PathBuf>) -> Result<bool> {
        let look = move || files.iter().try_fold(false, |there, file| Ok(there || is_there(file)?));
        on_thread("look at the slot", look).await
    }

    pub(super) async fn reboot(&self) -> Result<()> {
        let ctx = OpCtx::new(BOOT);
        let mut held = Vec::new();
        for slot in self.pair.both() {
            held.push(self.slots.lock(&ctx, slot).await?);
            self.nodes.stop(slot).await?;
        }
        for slot in self.pair.both() {
            if self.any(vec![self.file(slot, "pid")]).await? {
                // One that can't start keeps the host from nothing else.
                let _ = self.up(slot).await;
            }
        }
        Ok(())
    }

    pub(super) async fn stop(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        if !self.slots.is_prepared(slot).await? {
            return Ok(());
        }
        let _guard = self.slots.lock(ctx, slot).await?;
        self.manager()?;
        self.down(slot).await
    }

    pub(super) async fn destroy(&self, ctx: &OpCtx, slot: &SlotName) -> Result<()> {
        let mut files = vec![self.slots.root_dir(slot)];
        files.extend(["json", "conf", "pid"].map(|suffix| self.file(slot, suffix)));
        if !self.any(files).await? {
            return Ok(());
        }
        let held = self.slots.lock(ctx, slot).await?;
        self.manager()?;
        self.down(slot).await?;
        // First, since whoever repeats a removal that was cut short may find no slot any more.
        self.nodes.forget(slot).await;
        self.slots.remove(ctx, held.clone()).await?;
        let (dir, file) = (self.slots.dir().to_owned(), NodePath::root().join(format!("{slot}.conf"))?);
        on_thread("remove the configuration", move || NodeFs::open(dir)?.remove(&file)).await
    }

    pub(super) async fn status(&self, slot: &SlotName) -> Result<Status> {
        self.manager()?;
        if !self.slots.is_prepared(slot).await? {
            return Ok(Status::default());
        }
        Ok(self.nodes.status(slot))
    }

    /// The command as a program of this host.
    async fn inside(&self, slot: &SlotName, spec: &ExecSpec) -> Result<HostCommand> {
        const RUN: &str = "run a command in the node";
        self.slots.known(slot, RUN).await?;
        let user = spec.user.clone();
        let look = move || user.map(|user| node::user_ids(&user).ok_or_else(|| no_user(RUN))).transpose();
        let ids = on_thread(RUN, look).await?;
        let ids = ids.filter(|(uid, _)| *uid != 0);
        if ids.is_some() && !rustix::process::geteuid().is_root() {
            return Err(Error::new(ErrorKind::Unsupported, RUN).with_field("user"));
        }
        let mut command = HostCommand::of(spec, &self.root(slot)?)?;
        command.ids = ids;
        Ok(command)
    }

    pub(super) async fn exec(&self, ctx: &OpCtx, slot: &SlotName, spec: &ExecSpec) -> Result<ExecOutput> {
        self.nodes.exec(ctx, slot, self.inside(slot, spec).await?).await
    }

    pub(super) async fn exec_stream(&self, slot: &SlotName, spec: &ExecSpec) -> Result<ExecStream> {
        self.nodes.exec_stream(slot, self.inside(slot, spec).await?)
    }

    pub(super) async fn logs(&self, slot: &SlotName, options: &LogOptions) -> Result<LogStream> {
        self.slots.known(slot, "open a log").await?;
        if let Some(stderr) = self.broken_log.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let script = "printf '%s' \"$0\" >&2; exit 1";
            return SystemRunner::default().log(HostCommand::new("sh", ["-c", script, &stderr]));
        }
        Ok(self.nodes.journal().open(slot, options))
    }
}

fn no_user(operation: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation).with_field("user").with_reason(Reason::Unknown)
}
