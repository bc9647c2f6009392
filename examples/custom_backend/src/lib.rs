//! A mode of one's own, small and real: a slot is a directory, its node stack one supervised program of this host.
//!
//! It needs no root and nothing but that program. What the program writes is the slot's journal; a slot runs as long as the [`Bays`]
//! it was started by, and comes up again with the host by [`Bays::boot`]. Commands see the host's files, so every grant is there already and
//! is reported as ignored.
//! `tests/conformance.rs` holds it to the contract, and its `caps` say what it does not claim.

use std::path::PathBuf;
use std::sync::Arc;

use isolation::{
    Backend, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, HostCommand, HostRoot, IgnoredGrant, LogOptions,
    LogStream, Mode, NodeRoot, NodeSpec, OpCtx, Operation, PrepareReport, Requirements, Result, SlotName, SlotPair,
    SlotRef, SlotStore, Status, Supervisor, SystemRunner, async_trait, node_path, run_blocking,
};

const RUN: &str = "run a command in the node";

/// Slots that are kept by a [`SlotStore`] and run by a [`Supervisor`].
#[derive(Debug)]
pub struct Bays {
    main: HostCommand,
    pair: SlotPair,
    slots: SlotStore,
    nodes: Supervisor,
}

impl Bays {
    /// Slots below `dir`, whose node stack is the program `main`.
    pub fn new(dir: impl Into<PathBuf>, pair: SlotPair, main: HostCommand) -> Self {
        let slots = SlotStore::new(dir);
        let nodes = Supervisor::new(slots.dir(), pair.clone(), Arc::new(SystemRunner::default()));
        Self { main, pair, slots, nodes }
    }

    /// Starts what was started and not stopped before the host went down. Whatever runs this backend calls it first.
    ///
    /// # Errors
    ///
    /// As [`Backend::start`].
    pub async fn boot(&self, ctx: &OpCtx) -> Result<()> {
        for slot in self.pair.both() {
            if self.slots.comes_up(slot).await? {
                self.start(ctx, slot).await?;
            }
        }
        Ok(())
    }

    /// Writes a line to a slot's journal, as `unit` of its node stack would.
    pub fn write_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.nodes.journal().write(slot, unit, line);
    }

    fn root(&self, slot: &SlotName) -> Result<HostRoot> {
        HostRoot::new(slot.clone(), self.slots.root_dir(slot))
    }

    async fn up(&self, slot: &SlotName) -> Result<()> {
        self.nodes.start(slot, self.main.clone().with_cwd(self.slots.root_dir(slot))).await.map(drop)
    }

    /// A command as a program of the host.
    async fn inside(&self, slot: &SlotName, spec: &ExecSpec) -> Result<HostCommand> {
        self.slots.known(slot, RUN).await?;
        match spec.user.as_deref() {
            None | Some("root") => HostCommand::of(spec, &self.root(slot)?),
            Some(_) => Err(Error::new(ErrorKind::Unsupported, RUN).with_field("user")),
        }
    }
}

#[async_trait]
impl Backend for Bays {
    fn mode(&self) -> Mode {
        Mode::None
    }

    fn requirements(&self) -> Requirements {
        Requirements::default().with_command(&self.main.program).with_writable_path(self.slots.dir())
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        ctx.lifecycle(Operation::Prepare, &spec.slot, async {
            spec.validate()?;
            let needs = self.requirements();
            run_blocking(ctx, "look for programs", move |_| needs.check_commands(&SystemRunner::default())).await?;
            let root: Arc<dyn NodeRoot> = Arc::new(self.root(&spec.slot)?);
            let held = self.slots.lock(ctx, &spec.slot).await?;
            let fill =
                self.slots.prepare(ctx, held, spec, |root, _, _| root.create_dir_all(&node_path!("/etc"), 0o755));
            let changed = fill.await?;
            let grants = spec.grants.iter().enumerate();
            let ignored = grants.map(|(n, grant)| IgnoredGrant::new(n, grant.kind(), "commands see the host's files"));
            Ok((root, PrepareReport::new(changed).with_ignored(ignored.collect())))
        })
        .await
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.slots.lifecycle(ctx, Operation::Start, slot.slot(), |_| self.up(slot.slot())).await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.slots.lifecycle(ctx, Operation::Stop, slot.slot(), |_| self.nodes.stop(slot.slot())).await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let restart = |_| async {
            self.nodes.stop(slot.slot()).await?;
            self.up(slot.slot()).await
        };
        self.slots.lifecycle(ctx, Operation::Restart, slot.slot(), restart).await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let destroy = |held| async {
            self.nodes.stop(slot.slot()).await?;
            // First, since whoever repeats a removal that was cut short may find no slot any more.
            self.nodes.forget(slot.slot()).await;
            self.slots.remove(ctx, held).await
        };
        self.slots.lifecycle(ctx, Operation::Destroy, slot.slot(), destroy).await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        let look = async {
            let prepared = self.slots.is_prepared(slot.slot()).await?;
            Ok(if prepared { self.nodes.status(slot.slot()) } else { Status::default() })
        };
        ctx.bound("look at the slot", look).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        let run = async { self.nodes.exec(ctx, slot.slot(), self.inside(slot.slot(), spec).await?).await };
        ctx.bound(RUN, run).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        let open = async { self.nodes.exec_stream(slot.slot(), self.inside(slot.slot(), spec).await?) };
        Ok(ctx.bound(RUN, open).await?.with_cancel(ctx.cancel()))
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        let open = async {
            self.slots.known(slot.slot(), "open a log").await?;
            Ok(self.nodes.journal().open(slot.slot(), options).with_cancel(ctx.cancel()))
        };
        ctx.bound("open a log", open).await
    }
}
