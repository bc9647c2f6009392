//! A mode of one's own, small and real: a slot is a directory, its node stack one supervised program of this host.
//!
//! It needs no root and nothing but that program. What a node writes is its journal; what runs for a slot carries a mark in its
//! environment, so that a stop finds it; a slot runs as long as the [`Bays`] it was started by. Commands see the host's files,
//! so every grant is there already and is reported as ignored. `tests/conformance.rs` holds it to the contract, and its `caps`
//! say what it does not claim.

mod journal;
mod marked;
mod node;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isolation::{
    Backend, Effect, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, HostCommand, HostRunner, IgnoredGrant,
    LogOptions, LogStream, Mode, NodeFs, NodePath, NodeRoot, NodeSpec, OpCtx, Operation, PrepareReport, Requirements,
    Result, SlotLocks, SlotName, SlotPair, SlotRef, SlotState, Status, SystemRunner, async_trait, mounts_below,
};

use crate::journal::Journal;
use crate::node::{Bay, BayRoot, Node, render};

/// Slots as directories. Below the directory: `<slot>/` is the root, `<slot>.conf` its configuration and the mark of a
/// finished root, `slot-<slot>.lock` its lock.
#[derive(Debug)]
pub struct Bays {
    dir: PathBuf,
    pair: SlotPair,
    main: HostCommand,
    runner: Arc<dyn HostRunner>,
    locks: SlotLocks,
    bays: Mutex<HashMap<SlotName, Bay>>,
    journal: Arc<Journal>,
}

const RUN: &str = "run a command in the node";

impl Bays {
    /// Slots below `dir`, whose node stack is the program `main`.
    pub fn new(dir: impl Into<PathBuf>, pair: SlotPair, main: HostCommand) -> Self {
        let (dir, runner) = (dir.into(), Arc::new(SystemRunner::default()));
        let locks = SlotLocks::new(&dir);
        Self { dir, pair, main, runner, locks, bays: Mutex::default(), journal: Arc::default() }
    }

    /// Writes a line to a slot's journal, as `unit` of its node stack would.
    pub fn write_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.journal.write(slot, unit, line);
    }

    fn bays(&self) -> MutexGuard<'_, HashMap<SlotName, Bay>> {
        let mut bays = self.bays.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that ended by itself has failed; what it started goes too.
        for (slot, bay) in bays.iter_mut() {
            if bay.has_ended() {
                *bay = Bay::Down(SlotState::Failed);
                marked::kill(&self.mark(slot));
            }
        }
        bays
    }

    fn mark(&self, slot: &SlotName) -> String {
        format!("{}:{slot}:", self.dir.display())
    }

    fn root(&self, slot: &SlotName) -> Result<BayRoot> {
        BayRoot::new(slot, &self.dir)
    }

    fn known(&self, slot: &SlotName, operation: &str) -> Result<()> {
        let known = self.dir.join(format!("{slot}.conf")).exists();
        if known { Ok(()) } else { Err(Error::new(ErrorKind::UnknownSlot, operation)) }
    }

    /// Brings the disk to what `spec` says; whether that changed anything. The mark of a finished root comes last.
    fn write(&self, spec: &NodeSpec) -> Result<bool> {
        let (own, conf) = (NodeFs::open(&self.dir)?, NodePath::root().join(format!("{}.conf", spec.slot))?);
        let (dir, wanted) = (NodePath::root().join(spec.slot.as_str())?, render(spec, &self.main));
        let finished = own.metadata(&conf)?.map(|_| own.read(&conf, 1 << 20)).transpose()?;
        if finished.as_deref() == Some(wanted.as_bytes()) {
            return Ok(false);
        }
        if finished.is_none() {
            own.remove_tree(&dir)?;
            own.create_dir_all(&dir.join("etc")?, 0o755)?;
            own.create_dir_all(&dir.join("var/lib")?, 0o755)?;
        }
        own.write_atomic(&conf, 0o644, wanted.as_bytes())?;
        Ok(true)
    }

    fn up(&self, slot: &SlotName) -> Result<()> {
        self.known(slot, "start the slot")?;
        let mut bays = self.bays();
        if matches!(bays.get(slot), Some(Bay::Up(_))) {
            return Ok(());
        }
        if let Ok(other) = self.pair.other(slot)
            && matches!(bays.get(other), Some(Bay::Up(_)))
        {
            return Err(Error::new(ErrorKind::Conflict, "start the slot").with_detail(format!("{other} is running")));
        }
        let main = self.main.clone().with_cwd(self.root(slot)?.dir()).with_env(marked::NAME, self.mark(slot));
        let node = Node::new(self.runner.stream(main)?, slot, &self.journal);
        bays.insert(slot.clone(), Bay::Up(node));
        Ok(())
    }

    async fn down(&self, slot: &SlotName) -> Result<()> {
        // Dropping the node kills its program; whoever is talked to or awaited inside ends with it.
        self.bays().entry(slot.clone()).and_modify(|bay| *bay = Bay::Down(SlotState::Stopped));
        marked::end(&self.mark(slot)).await
    }

    /// A command as a program of the host, bound to the life of the node.
    fn inside(&self, ctx: &OpCtx, slot: &SlotName, spec: &ExecSpec) -> Result<(OpCtx, HostCommand)> {
        spec.validate()?;
        self.known(slot, RUN)?;
        let bays = self.bays();
        let Some(Bay::Up(node)) = bays.get(slot) else { return Err(Error::new(ErrorKind::NotRunning, RUN)) };
        if spec.user.as_deref().is_some_and(|user| user != "root") {
            return Err(Error::new(ErrorKind::Unsupported, RUN).with_field("user"));
        }
        let cwd = self.root(slot)?.inside(&spec.cwd.clone().unwrap_or_else(NodePath::root));
        let program = spec.argv[0].to_string_lossy();
        let mut command = HostCommand::new(program, &spec.argv[1..]).with_private_args().with_cwd(cwd);
        command = command.with_max_output(spec.max_output).with_stdin(spec.stdin.clone());
        command.timeout = spec.timeout;
        command = command.with_env("HOME", "/root").with_env("LANG", "C.UTF-8");
        command.env.extend(spec.env.iter().cloned());
        Ok((ctx.clone().with_cancel(node.ended().clone()), command.with_env(marked::NAME, self.mark(slot))))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Bays {
    fn mode(&self) -> Mode {
        Mode::None
    }

    fn requirements(&self) -> Requirements {
        Requirements::default().with_command(&self.main.program).with_writable_path(&self.dir)
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        ctx.lifecycle(Operation::Prepare, &spec.slot, async {
            spec.validate()?;
            if self.runner.resolve(&self.main.program).is_none() {
                let missing = Error::new(ErrorKind::NotPrepared, "prepare the slot");
                return Err(missing.with_program(&self.main.program, Vec::new()));
            }
            let root = Arc::new(self.root(&spec.slot)?);
            let _held = self.locks.acquire(ctx, &spec.slot).await?;
            let changed = self.write(spec).map_err(|error| error.with_effect(Effect::Partial))?;
            let why = |(n, grant): (usize, &isolation::Grant)| {
                IgnoredGrant::new(n, grant.kind(), "commands see what the host has")
            };
            let ignored = spec.grants.iter().enumerate().map(why).collect();
            Ok((root as Arc<dyn NodeRoot>, PrepareReport::new(changed).with_ignored(ignored)))
        })
        .await
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Start, slot, async {
            self.known(slot, "start the slot")?;
            let _held = self.locks.acquire(ctx, slot).await?;
            self.up(slot)
        })
        .await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Stop, slot, async {
            if self.known(slot, "stop the slot").is_err() {
                return Ok(());
            }
            let _held = self.locks.acquire(ctx, slot).await?;
            self.down(slot).await
        })
        .await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Restart, slot, async {
            self.known(slot, "restart the slot")?;
            let _held = self.locks.acquire(ctx, slot).await?;
            self.down(slot).await?;
            self.up(slot)
        })
        .await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Destroy, slot, async {
            let root = self.dir.join(slot.as_str());
            if !root.exists() && self.known(slot, "destroy the slot").is_err() {
                return Ok(());
            }
            let _held = self.locks.acquire(ctx, slot).await?;
            self.down(slot).await?;
            if let Some(mount) = mounts_below(&root)?.pop() {
                let conflict = Error::new(ErrorKind::Conflict, "destroy the slot").with_path(mount);
                return Err(conflict.with_effect(Effect::Partial));
            }
            let own = NodeFs::open(&self.dir)?;
            own.remove(&NodePath::root().join(format!("{slot}.conf"))?)?;
            own.remove_tree(&NodePath::root().join(slot.as_str())?)?;
            self.bays().remove(slot);
            self.journal.forget(slot);
            Ok(())
        })
        .await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        let slot = slot.slot();
        let look = async {
            if self.known(slot, "look at the slot").is_err() {
                return Ok(Status::default());
            }
            Ok(self.bays().get(slot).map_or(Status::new(SlotState::Prepared), Bay::status))
        };
        ctx.bound("look at the slot", look).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        let run = async {
            let (inner, command) = self.inside(ctx, slot.slot(), spec)?;
            self.runner.run(&inner, command).await
        };
        ctx.bound(RUN, run).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        let open = async {
            let (inner, command) = self.inside(ctx, slot.slot(), spec)?;
            Ok(self.runner.stream(command)?.with_cancel(inner.cancel()))
        };
        ctx.bound(RUN, open).await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        let slot = slot.slot();
        let open = async {
            self.known(slot, "open a log")?;
            Ok(self.journal.open(slot, options).with_cancel(ctx.cancel()))
        };
        ctx.bound("open a log", open).await
    }
}

impl Drop for Bays {
    fn drop(&mut self) {
        for (slot, _) in self.bays().drain() {
            marked::kill(&self.mark(&slot));
        }
    }
}
