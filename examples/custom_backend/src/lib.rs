//! A backend of one's own: any other one, with a line in the log for whatever changes a slot, and no start while the operator
//! has said "not now". `tests/conformance.rs` shows that it still keeps every rule of the contract.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use isolation::{
    Backend, Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, LogOptions, LogStream, Mode, NodeRoot, NodeSpec,
    OpCtx, PrepareReport, Requirements, Result, SlotRef, Status, async_trait,
};

/// A backend that watches over another one.
#[derive(Debug)]
pub struct Watched {
    inner: Arc<dyn Backend>,
    not_now: PathBuf,
}

impl Watched {
    /// Watches over `inner`; while the file `not_now` is there, nothing starts.
    pub fn new(inner: Arc<dyn Backend>, not_now: impl Into<PathBuf>) -> Self {
        Self { inner, not_now: not_now.into() }
    }

    fn may_start(&self) -> Result<()> {
        if !self.not_now.exists() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "start the slot")
            .with_path(&self.not_now)
            .with_detail("the operator said no"))
    }

    /// Says how a call ended. No arguments: they may be secret.
    fn note<T>(&self, verb: &str, slot: &dyn SlotRef, begun: Instant, done: &Result<T>) {
        let (slot, took) = (slot.slot(), begun.elapsed());
        match done {
            Ok(_) => tracing::info!(%slot, ?took, "{verb}"),
            Err(error) => tracing::warn!(%slot, ?took, kind = %error.kind(), effect = ?error.effect(), "{verb}"),
        }
    }
}

// There are no default methods: a method that is forgotten does not compile, so no call slips past the wrapper.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Watched {
    fn mode(&self) -> Mode {
        self.inner.mode()
    }

    fn requirements(&self) -> Requirements {
        self.inner.requirements()
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Arc<dyn NodeRoot>, PrepareReport)> {
        let begun = Instant::now();
        let done = self.inner.prepare(ctx, spec).await;
        self.note("prepare", spec, begun, &done);
        done
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.may_start()?;
        let begun = Instant::now();
        let done = self.inner.start(ctx, slot).await;
        self.note("start", slot, begun, &done);
        done
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let begun = Instant::now();
        let done = self.inner.stop(ctx, slot).await;
        self.note("stop", slot, begun, &done);
        done
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        self.may_start()?;
        let begun = Instant::now();
        let done = self.inner.restart(ctx, slot).await;
        self.note("restart", slot, begun, &done);
        done
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        let begun = Instant::now();
        let done = self.inner.destroy(ctx, slot).await;
        self.note("destroy", slot, begun, &done);
        done
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        self.inner.status(ctx, slot).await
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        self.inner.exec(ctx, slot, spec).await
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        self.inner.exec_stream(ctx, slot, spec).await
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        self.inner.logs(ctx, slot, options).await
    }
}
