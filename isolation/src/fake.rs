//! A backend for tests: records, fails on request, and, if asked to, behaves.
//!
//! There are two kinds.
//!
//! * [`FakeBackend::new`] does nothing but record calls and return what it was told to. It is for tests of
//!   the code *above* a backend.
//! * [`FakeBackend::stateful`] is a tiny real backend: directories below one of a test's own, a real main
//!   process per slot, commands that really run on this machine, a journal in memory. It passes the
//!   conformance suite. The example `custom_backend` is smaller to read: it brings no faults about.
//!
//! ```
//! use std::time::Duration;
//! use isolation::fake::FakeBackend;
//! use isolation::{Backend, ErrorKind, OpCtx, Operation, SlotName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> isolation::Result<()> {
//! let backend = FakeBackend::new().with_error(Operation::Stop, ErrorKind::Busy);
//! let (ctx, slot) = (OpCtx::new(Duration::from_secs(1)), SlotName::new("kube1")?);
//! backend.start(&ctx, &slot).await?;
//! assert_eq!(backend.stop(&ctx, &slot).await.unwrap_err().kind(), ErrorKind::Busy);
//! assert_eq!(backend.calls(), ["start kube1", "stop kube1"]);
//! # Ok(())
//! # }
//! ```

mod node;
mod stateful;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::stateful::Stateful;
use crate::{
    Backend, DirRoot, Error, ErrorKind, ExecOutput, ExecSpec, ExecStatus, ExecStream, HostRunner, LogOptions,
    LogStream, Mode, NodeRoot, NodeSpec, OpCtx, Operation, PrepareReport, Requirements, Result, SlotName, SlotPair,
    SlotRef, SlotState, Status,
};

type ExecFn = dyn Fn(&SlotName, &ExecSpec) -> Result<ExecOutput> + Send + Sync;

/// A backend for tests. Clones share everything.
#[derive(Clone)]
pub struct FakeBackend {
    mode: Mode,
    dir: Option<PathBuf>,
    status: Status,
    exec: Option<Arc<ExecFn>>,
    log: bytes::Bytes,
    errors: HashMap<Operation, ErrorKind>,
    delays: HashMap<Operation, Duration>,
    stateful: Option<Arc<Stateful>>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    calls: Vec<String>,
    execs: Vec<ExecSpec>,
    queued: HashMap<Operation, VecDeque<ErrorKind>>,
}

impl FakeBackend {
    /// One that only records: everything succeeds, every slot is running, commands print nothing.
    pub fn new() -> Self {
        Self {
            mode: Mode::default(),
            dir: None,
            status: Status::new(SlotState::Running),
            exec: None,
            log: bytes::Bytes::new(),
            errors: HashMap::new(),
            delays: HashMap::new(),
            stateful: None,
            shared: Arc::default(),
        }
    }

    /// One that behaves like a tiny real backend below `dir`, for the slots of `pair`.
    pub fn stateful(dir: impl Into<PathBuf>, pair: SlotPair) -> Self {
        let dir = dir.into();
        Self { stateful: Some(Arc::new(Stateful::new(dir.clone(), pair))), dir: Some(dir), ..Self::new() }
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the directory below which roots resolve, one for each slot.
    #[must_use]
    pub fn with_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets the status every slot reports; a stateful fake ignores it.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Sets what makes the results of commands; a stateful fake ignores it.
    #[must_use]
    pub fn with_exec(
        mut self,
        exec: impl Fn(&SlotName, &ExecSpec) -> Result<ExecOutput> + Send + Sync + 'static,
    ) -> Self {
        self.exec = Some(Arc::new(exec));
        self
    }

    /// Sets what every log holds; a stateful fake ignores it.
    #[must_use]
    pub fn with_log(mut self, log: impl Into<bytes::Bytes>) -> Self {
        self.log = log.into();
        self
    }

    /// Makes an operation fail, always.
    #[must_use]
    pub fn with_error(mut self, operation: Operation, kind: ErrorKind) -> Self {
        self.errors.insert(operation, kind);
        self
    }

    /// Makes an operation take longer.
    #[must_use]
    pub fn with_delay(mut self, operation: Operation, delay: Duration) -> Self {
        self.delays.insert(operation, delay);
        self
    }

    /// Sets what runs the helper programs of a stateful fake.
    #[must_use]
    pub fn with_runner(mut self, runner: Arc<dyn HostRunner>) -> Self {
        if let Some(stateful) = self.stateful.take() {
            self.stateful = Some(Arc::new(stateful.with_runner(runner)));
        }
        self
    }

    /// Makes the next call of an operation fail; more wait in line.
    pub fn fail_next(&self, operation: Operation, kind: ErrorKind) {
        self.shared().queued.entry(operation).or_default().push_back(kind);
    }

    /// Every call so far, in order, as `"<operation> <slot>"`. The mode and the requirements are not calls.
    pub fn calls(&self) -> Vec<String> {
        self.shared().calls.clone()
    }

    /// Every command so far, in order.
    pub fn execs(&self) -> Vec<ExecSpec> {
        self.shared().execs.clone()
    }

    /// Writes a line to the journal of a stateful fake's slot.
    pub fn emit(&self, slot: &SlotName, unit: &str, line: &str) {
        if let Some(stateful) = &self.stateful {
            stateful.emit(slot, unit, line);
        }
    }

    /// Writes a line to the journal of a stateful fake's host, as one of the host's own units: no slot's log shows it.
    pub fn emit_host(&self, unit: &str, line: &str) {
        if let Some(stateful) = &self.stateful {
            stateful.emit_host(unit, line);
        }
    }

    /// The next log of a stateful fake ends by itself with a failed command that said `stderr`.
    pub fn break_next_log(&self, stderr: &str) {
        if let Some(stateful) = &self.stateful {
            stateful.break_next_log(stderr);
        }
    }

    /// The service manager of a stateful fake can't be asked, or can again.
    pub fn set_manager_away(&self, away: bool) {
        if let Some(stateful) = &self.stateful {
            stateful.set_manager_away(away);
        }
    }

    /// Reboots the host of a stateful fake: all nodes are gone, and then those come up again that were started and not stopped.
    ///
    /// # Errors
    ///
    /// As [`Backend::stop`]. A node that can't come up is none: its status tells.
    pub async fn reboot(&self) -> Result<()> {
        match &self.stateful {
            Some(stateful) => stateful.reboot().await,
            None => Ok(()),
        }
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the call, waits, and fails if it is to fail.
    async fn enter(&self, operation: Operation, slot: &SlotName) -> Result<()> {
        let queued = {
            let mut shared = self.shared();
            shared.calls.push(format!("{operation} {slot}"));
            shared.queued.get_mut(&operation).and_then(VecDeque::pop_front)
        };
        if let Some(delay) = self.delays.get(&operation) {
            tokio::time::sleep(*delay).await;
        }
        match queued.or_else(|| self.errors.get(&operation).copied()) {
            Some(kind) => Err(Error::new(kind, format!("{operation} the slot")).with_detail("as the test asked for")),
            None => Ok(()),
        }
    }
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend")
            .field("mode", &self.mode)
            .field("dir", &self.dir)
            .field("stateful", &self.stateful.is_some())
            .finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for FakeBackend {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn requirements(&self) -> Requirements {
        self.stateful.as_ref().map(|stateful| stateful.requirements()).unwrap_or_default()
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        let slot = &spec.slot;
        ctx.lifecycle(Operation::Prepare, slot, async {
            self.enter(Operation::Prepare, slot).await?;
            if let Some(stateful) = &self.stateful {
                let (root, report) = stateful.prepare(ctx, spec).await?;
                return Ok((root as Arc<dyn NodeRoot>, report));
            }
            spec.validate()?;
            let dir = self.dir.clone().unwrap_or_default();
            // The directory itself must be usable as a root; below it everything is.
            DirRoot::new(slot.clone(), &dir)?;
            let root = DirRoot::new(slot.clone(), dir.join(slot.as_str()))?;
            let report = PrepareReport::new(true).with_applied((0..spec.grants.len()).collect());
            Ok((Arc::new(root) as Arc<dyn NodeRoot>, report))
        })
        .await
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Start, slot, async {
            self.enter(Operation::Start, slot).await?;
            match &self.stateful {
                Some(stateful) => stateful.start(ctx, slot).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Stop, slot, async {
            self.enter(Operation::Stop, slot).await?;
            match &self.stateful {
                Some(stateful) => stateful.stop(ctx, slot).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Restart, slot, async {
            self.enter(Operation::Restart, slot).await?;
            match &self.stateful {
                Some(stateful) => stateful.restart(ctx, slot).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let slot = slot.slot();
        ctx.lifecycle(Operation::Destroy, slot, async {
            self.enter(Operation::Destroy, slot).await?;
            match &self.stateful {
                Some(stateful) => stateful.destroy(ctx, slot).await,
                None => Ok(()),
            }
        })
        .await
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        ctx.bound("look at the slot", async {
            self.enter(Operation::Status, slot.slot()).await?;
            match &self.stateful {
                Some(stateful) => stateful.status(slot.slot()).await,
                None => Ok(self.status.clone()),
            }
        })
        .await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        let slot = slot.slot();
        ctx.bound("run a command in the node", async {
            self.shared().execs.push(spec.clone());
            self.enter(Operation::Exec, slot).await?;
            spec.validate()?;
            match (&self.stateful, &self.exec) {
                (Some(stateful), _) => stateful.exec(ctx, slot, spec).await,
                (None, Some(exec)) => exec(slot, spec),
                (None, None) => Ok(ExecOutput::new(ExecStatus::Exited(0))),
            }
        })
        .await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        let slot = slot.slot();
        ctx.bound("run a command in the node", async {
            self.shared().execs.push(spec.clone());
            self.enter(Operation::Exec, slot).await?;
            spec.validate()?;
            let stream = match &self.stateful {
                Some(stateful) => stateful.exec_stream(slot, spec).await?,
                None => ExecStream::new(tokio::io::sink(), tokio::io::empty(), tokio::io::empty(), async {
                    Ok(ExecStatus::Exited(0))
                }),
            };
            Ok(stream.with_cancel(ctx.cancel()))
        })
        .await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        let slot = slot.slot();
        ctx.bound("open a log", async {
            self.enter(Operation::Logs, slot).await?;
            let stream = match &self.stateful {
                Some(stateful) => stateful.logs(slot, options).await?,
                None => LogStream::from_reader(std::io::Cursor::new(self.log.clone()), |_| async { Ok(()) }),
            };
            Ok(stream.with_cancel(ctx.cancel()))
        })
        .await
    }
}
