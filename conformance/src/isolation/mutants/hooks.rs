//! A backend and a harness that go their own way where a hook says so, and the inner one's everywhere else.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use isolation::{
    Backend, ExecOutput, ExecSpec, ExecStream, LogOptions, LogStream, Mode, NodeFs, NodePath, NodeRoot, NodeSpec,
    OpCtx, PrepareReport, Requirements, Result, SlotName, SlotPair, SlotRef, Status, async_trait,
};

use super::super::{Caps, Fault, Footprint, Harness};

type Hook<A, R> = Arc<dyn Fn(Inner, OpCtx, A) -> BoxFuture<'static, Result<R>> + Send + Sync>;
type Ask<R> = Arc<dyn Fn(&Inner) -> R + Send + Sync>;
type Change = Arc<dyn Fn(&mut Caps) + Send + Sync>;
type Root = Arc<dyn NodeRoot>;

/// What a hook works with: the honest backend, and a place for what it remembers.
#[derive(Clone)]
pub struct Inner(Arc<Parts>);

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inner").field(self.backend()).finish()
    }
}

struct Parts {
    harness: Arc<dyn Harness>,
    backend: Arc<dyn Backend>,
    roots: Mutex<HashMap<SlotName, Root>>,
    count: Mutex<u64>,
    memory: Mutex<HashMap<String, Box<dyn Any + Send>>>,
}

const HOST_LINES: &str = "lines of the host";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    pub fn pair(&self) -> SlotPair {
        self.0.harness.pair()
    }

    pub fn spec(&self, slot: &SlotName) -> NodeSpec {
        self.0.harness.spec(slot)
    }

    /// The root that was prepared last for a slot.
    pub fn root(&self, slot: &SlotName) -> Option<Root> {
        lock(&self.0.roots).get(slot).cloned()
    }

    /// What units of the host have written, as far as the harness was told to have them write.
    pub fn host_lines(&self) -> Vec<String> {
        self.recall(HOST_LINES).unwrap_or_default()
    }

    /// How often this was asked before.
    pub fn count(&self) -> u64 {
        let mut count = lock(&self.0.count);
        *count += 1;
        *count - 1
    }

    /// Keeps `value` under `name`, and gives what was there.
    pub fn remember<T: Any + Send>(&self, name: &str, value: T) -> Option<T> {
        let before = lock(&self.0.memory).insert(name.to_owned(), Box::new(value));
        before.and_then(|before| before.downcast().ok()).map(|before| *before)
    }

    /// A copy of what is under `name`.
    pub fn recall<T: Any + Send + Clone>(&self, name: &str) -> Option<T> {
        lock(&self.0.memory).get(name).and_then(|value| value.downcast_ref()).cloned()
    }

    pub fn forget(&self, name: &str) {
        lock(&self.0.memory).remove(name);
    }
}

/// Where a mutant goes its own way.
#[derive(Default, Clone)]
pub struct Hooks {
    mode: Option<Ask<Mode>>,
    requirements: Option<Ask<Requirements>>,
    prepare: Option<Hook<NodeSpec, (Root, PrepareReport)>>,
    root: Option<Arc<dyn Fn(Root) -> LyingRoot + Send + Sync>>,
    start: Option<Hook<SlotName, ()>>,
    stop: Option<Hook<SlotName, ()>>,
    restart: Option<Hook<SlotName, ()>>,
    destroy: Option<Hook<SlotName, ()>>,
    status: Option<Hook<SlotName, Status>>,
    exec: Option<Hook<(SlotName, ExecSpec), ExecOutput>>,
    exec_stream: Option<Hook<(SlotName, ExecSpec), ExecStream>>,
    logs: Option<Hook<(SlotName, LogOptions), LogStream>>,
    caps: Option<Change>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

macro_rules! on {
    ($name:ident, $arg:ty, $out:ty) => {
        pub fn $name<F>(mut self, hook: impl Fn(Inner, OpCtx, $arg) -> F + Send + Sync + 'static) -> Self
        where
            F: Future<Output = Result<$out>> + Send + 'static,
        {
            self.$name = Some(Arc::new(move |inner, ctx, arg| Box::pin(hook(inner, ctx, arg))));
            self
        }
    };
}

impl Hooks {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn mode(mut self, hook: impl Fn(&Inner) -> Mode + Send + Sync + 'static) -> Self {
        self.mode = Some(Arc::new(hook));
        self
    }

    pub fn requirements(mut self, hook: impl Fn(&Inner) -> Requirements + Send + Sync + 'static) -> Self {
        self.requirements = Some(Arc::new(hook));
        self
    }

    pub fn root(mut self, hook: impl Fn(Root) -> LyingRoot + Send + Sync + 'static) -> Self {
        self.root = Some(Arc::new(hook));
        self
    }

    pub fn caps(mut self, hook: impl Fn(&mut Caps) + Send + Sync + 'static) -> Self {
        self.caps = Some(Arc::new(hook));
        self
    }

    on!(prepare, NodeSpec, (Root, PrepareReport));
    on!(start, SlotName, ());
    on!(stop, SlotName, ());
    on!(restart, SlotName, ());
    on!(destroy, SlotName, ());
    on!(status, SlotName, Status);
    on!(exec, (SlotName, ExecSpec), ExecOutput);
    on!(exec_stream, (SlotName, ExecSpec), ExecStream);
    on!(logs, (SlotName, LogOptions), LogStream);
}

/// A node root that lies where it is told to.
pub struct LyingRoot {
    pub inner: Root,
    pub slot: Option<SlotName>,
    pub path: fn(&Root, &NodePath) -> PathBuf,
    pub inside: fn(&Root, &NodePath) -> PathBuf,
    pub fs: fn(&Root) -> Result<NodeFs>,
}

impl LyingRoot {
    /// One that does not lie yet.
    pub fn honest(inner: Root) -> Self {
        Self { inner, slot: None, path: |r, p| r.path(p), inside: |r, p| r.inside(p), fs: |r| r.fs() }
    }
}

impl fmt::Debug for LyingRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LyingRoot").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl SlotRef for LyingRoot {
    fn slot(&self) -> &SlotName {
        self.slot.as_ref().unwrap_or_else(|| self.inner.slot())
    }
}

impl NodeRoot for LyingRoot {
    fn dir(&self) -> &Path {
        self.inner.dir()
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        (self.path)(&self.inner, path)
    }

    fn inside(&self, path: &NodePath) -> PathBuf {
        (self.inside)(&self.inner, path)
    }

    fn fs(&self) -> Result<NodeFs> {
        (self.fs)(&self.inner)
    }
}

/// `harness`, with a backend that goes its own way.
pub fn wrap(harness: Arc<dyn Harness>, hooks: Arc<Hooks>) -> Arc<dyn Harness> {
    let backend = harness.backend();
    let inner = Inner(Arc::new(Parts {
        harness: Arc::clone(&harness),
        backend,
        roots: Mutex::default(),
        count: Mutex::default(),
        memory: Mutex::default(),
    }));
    Arc::new(Wrapped { harness, backend: Arc::new(Mutated { inner, hooks }) })
}

struct Wrapped {
    harness: Arc<dyn Harness>,
    backend: Arc<Mutated>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Harness for Wrapped {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Mutated>::clone(&self.backend)
    }

    fn mode(&self) -> Mode {
        self.harness.mode()
    }

    fn caps(&self) -> Caps {
        let mut caps = self.harness.caps();
        if let Some(hook) = &self.backend.hooks.caps {
            hook(&mut caps);
        }
        caps
    }

    fn pair(&self) -> SlotPair {
        self.harness.pair()
    }

    fn spec(&self, slot: &SlotName) -> NodeSpec {
        self.harness.spec(slot)
    }

    async fn footprint(&self) -> Footprint {
        self.harness.footprint().await
    }

    async fn rendered(&self, slot: &SlotName) -> String {
        self.harness.rendered(slot).await
    }

    async fn emit_log(&self, slot: &SlotName, unit: &str, line: &str) {
        self.harness.emit_log(slot, unit, line).await;
    }

    fn executed(&self) -> Vec<String> {
        self.harness.executed()
    }

    async fn inject(&self, fault: Fault<'_>) -> Option<Box<dyn Any + Send>> {
        if let Fault::HostLine { line, .. } = fault {
            let inner = &self.backend.inner;
            inner.remember(HOST_LINES, [inner.host_lines(), vec![line.to_owned()]].concat());
        }
        self.harness.inject(fault).await
    }
}

struct Mutated {
    inner: Inner,
    hooks: Arc<Hooks>,
}

impl fmt::Debug for Mutated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutated").field("inner", self.inner.backend()).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Mutated {
    fn mode(&self) -> Mode {
        self.hooks.mode.as_ref().map_or_else(|| self.inner.backend().mode(), |hook| hook(&self.inner))
    }

    fn requirements(&self) -> Requirements {
        let honest = || self.inner.backend().requirements();
        self.hooks.requirements.as_ref().map_or_else(honest, |hook| hook(&self.inner))
    }

    async fn prepare(&self, ctx: &OpCtx, spec: &NodeSpec) -> Result<(Root, PrepareReport)> {
        let (root, report) = match &self.hooks.prepare {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), spec.clone()).await?,
            None => self.inner.backend().prepare(ctx, spec).await?,
        };
        lock(&self.inner.0.roots).insert(spec.slot.clone(), Arc::clone(&root));
        match &self.hooks.root {
            Some(hook) => Ok((Arc::new(hook(root)), report)),
            None => Ok((root, report)),
        }
    }

    async fn start(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        match &self.hooks.start {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), slot.slot().clone()).await,
            None => self.inner.backend().start(ctx, slot).await,
        }
    }

    async fn stop(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        match &self.hooks.stop {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), slot.slot().clone()).await,
            None => self.inner.backend().stop(ctx, slot).await,
        }
    }

    async fn restart(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        match &self.hooks.restart {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), slot.slot().clone()).await,
            None => self.inner.backend().restart(ctx, slot).await,
        }
    }

    async fn destroy(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<()> {
        match &self.hooks.destroy {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), slot.slot().clone()).await,
            None => self.inner.backend().destroy(ctx, slot).await,
        }
    }

    async fn status(&self, ctx: &OpCtx, slot: &dyn SlotRef) -> Result<Status> {
        match &self.hooks.status {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), slot.slot().clone()).await,
            None => self.inner.backend().status(ctx, slot).await,
        }
    }

    async fn exec(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecOutput> {
        match &self.hooks.exec {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), (slot.slot().clone(), spec.clone())).await,
            None => self.inner.backend().exec(ctx, slot, spec).await,
        }
    }

    async fn exec_stream(&self, ctx: &OpCtx, slot: &dyn SlotRef, spec: &ExecSpec) -> Result<ExecStream> {
        match &self.hooks.exec_stream {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), (slot.slot().clone(), spec.clone())).await,
            None => self.inner.backend().exec_stream(ctx, slot, spec).await,
        }
    }

    async fn logs(&self, ctx: &OpCtx, slot: &dyn SlotRef, options: &LogOptions) -> Result<LogStream> {
        match &self.hooks.logs {
            Some(hook) => hook(self.inner.clone(), ctx.clone(), (slot.slot().clone(), options.clone())).await,
            None => self.inner.backend().logs(ctx, slot, options).await,
        }
    }
}
