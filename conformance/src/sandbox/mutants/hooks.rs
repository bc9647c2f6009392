//! The wrapper: every operation goes to the honest provider, unless a hook stands in its way.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use sandbox::{
    Capabilities, Command, Error, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite, OwnedStream, Process,
    Provider, ReadStream, Recreated, Sandbox, SandboxPath, SessionId, SpawnRequest, Spec,
};

type Made<T> = BoxFuture<'static, Result<T, Error>>;
type Hook<A, B, T> = Option<Box<dyn Fn(A, B) -> Made<T> + Send + Sync>>;
type Writes = Option<Box<dyn for<'a> Fn(Inner, FileWrite<'a>) -> BoxFuture<'a, Result<(), Error>> + Send + Sync>>;
type Batches = Option<Box<dyn for<'a> Fn(Inner, FileBatch<'a>) -> BoxFuture<'a, Result<(), Error>> + Send + Sync>>;
type P = Arc<dyn Provider>;

/// What stands in the way of which operation.
#[derive(Default)]
pub(crate) struct Hooks {
    capabilities: Option<Box<dyn Fn(Capabilities) -> Capabilities + Send + Sync>>,
    provision: Hook<P, Spec, Arc<dyn Sandbox>>,
    attach: Hook<P, SessionId, Arc<dyn Sandbox>>,
    owned: Hook<P, (), OwnedStream>,
    reap: Hook<P, SessionId, ()>,
    export: Hook<P, (SessionId, SandboxPath), ExportStream>,
    exec: Hook<Inner, ExecRequest, ExecResult>,
    spawn: Hook<Inner, SpawnRequest, Process>,
    read: Hook<Inner, (SandboxPath, u64), ReadStream>,
    write: Writes,
    write_many: Batches,
    destroy: Hook<Inner, (), ()>,
    id: Option<fn(&SessionId) -> SessionId>,
    recreated: Option<Recreated>,
    silent: Option<Silent>,
    reap_on_drop: bool,
}

/// Which handles do not say that their sandbox replaced a dead one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silent {
    All,
    Attached,
}

macro_rules! hook {
    ($($name:ident($first:ty, $second:ty) -> $answer:ty;)*) => {
        $(pub(crate) fn $name<Fut: Future<Output = Result<$answer, Error>> + Send + 'static>(
            mut self,
            hook: impl Fn($first, $second) -> Fut + Send + Sync + 'static,
        ) -> Self {
            self.$name = Some(Box::new(move |first, second| Box::pin(hook(first, second))));
            self
        })*
    };
}

impl Hooks {
    hook! {
        provision(P, Spec) -> Arc<dyn Sandbox>;
        attach(P, SessionId) -> Arc<dyn Sandbox>;
        owned(P, ()) -> OwnedStream;
        reap(P, SessionId) -> ();
        export(P, (SessionId, SandboxPath)) -> ExportStream;
        exec(Inner, ExecRequest) -> ExecResult;
        spawn(Inner, SpawnRequest) -> Process;
        read(Inner, (SandboxPath, u64)) -> ReadStream;
        destroy(Inner, ()) -> ();
    }

    pub(crate) fn write(
        mut self,
        hook: impl for<'a> Fn(Inner, FileWrite<'a>) -> BoxFuture<'a, Result<(), Error>> + Send + Sync + 'static,
    ) -> Self {
        self.write = Some(Box::new(hook));
        self
    }

    pub(crate) fn write_many(
        mut self,
        hook: impl for<'a> Fn(Inner, FileBatch<'a>) -> BoxFuture<'a, Result<(), Error>> + Send + Sync + 'static,
    ) -> Self {
        self.write_many = Some(Box::new(hook));
        self
    }

    pub(super) fn capabilities(mut self, hook: impl Fn(Capabilities) -> Capabilities + Send + Sync + 'static) -> Self {
        self.capabilities = Some(Box::new(hook));
        self
    }

    pub(super) fn id(mut self, hook: fn(&SessionId) -> SessionId) -> Self {
        self.id = Some(hook);
        self
    }

    pub(super) fn recreated(mut self, recreated: Recreated) -> Self {
        self.recreated = Some(recreated);
        self
    }

    pub(super) fn silent(mut self, which: Silent) -> Self {
        self.silent = Some(which);
        self
    }

    pub(super) fn reap_on_drop(mut self) -> Self {
        self.reap_on_drop = true;
        self
    }

    /// Whether something stands in the way of every call. Names each field, so that whoever adds one says here what it is, and whoever
    /// wants to stand everywhere hears of it.
    pub(crate) fn stand_everywhere(&self) -> bool {
        let Self {
            capabilities: _,
            provision,
            attach,
            owned,
            reap,
            export,
            exec,
            spawn,
            read,
            write,
            write_many,
            destroy,
            id: _,
            recreated: _,
            silent: _,
            reap_on_drop: _,
        } = self;
        let provider = provision.is_some() && attach.is_some() && owned.is_some() && reap.is_some() && export.is_some();
        let sandbox = exec.is_some() && spawn.is_some() && read.is_some() && destroy.is_some();
        provider && sandbox && write.is_some() && write_many.is_some()
    }

    /// Changes every request.
    pub(super) fn request(self, change: impl Fn(&mut ExecRequest) + Send + Sync + 'static) -> Self {
        self.request_of(move |_, request| change(request))
    }

    /// Changes every request, knowing the sandbox.
    pub(super) fn request_of(self, change: impl Fn(&Inner, &mut ExecRequest) + Send + Sync + 'static) -> Self {
        self.exec(move |inner, mut request| {
            change(&inner, &mut request);
            async move { inner.exec(request).await }
        })
    }

    /// Changes the text of every request for the shell.
    pub(super) fn text(self, change: impl Fn(String) -> String + Send + Sync + 'static) -> Self {
        self.request(move |request| {
            if let Command::Shell(text) = &request.command {
                request.command = Command::Shell(change(String::from_utf8_lossy(text).into_owned()).into());
            }
        })
    }

    /// Changes every result.
    pub(super) fn result(self, change: impl Fn(&mut ExecResult) + Send + Sync + 'static) -> Self {
        let change = Arc::new(change);
        self.exec(move |inner, request| {
            let change = Arc::clone(&change);
            async move {
                let mut result = inner.exec(request).await?;
                change(&mut result);
                Ok(result)
            }
        })
    }

    /// Changes every spec.
    pub(super) fn spec(self, change: impl Fn(&mut Spec) + Send + Sync + 'static) -> Self {
        self.provision(move |provider, mut spec| {
            change(&mut spec);
            async move { provider.provision(&spec).await }
        })
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// The honest sandbox, and the provider it came from.
#[derive(Debug, Clone)]
pub(crate) struct Inner {
    pub(super) provider: P,
    pub(super) sandbox: Arc<dyn Sandbox>,
}

impl Deref for Inner {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}

/// `provider` behind `hooks`.
pub(crate) fn wrap(provider: P, hooks: Arc<Hooks>) -> P {
    Arc::new(Wrapped { provider, hooks })
}

#[derive(Debug)]
struct Wrapped {
    provider: P,
    hooks: Arc<Hooks>,
}

impl Wrapped {
    fn wrap(&self, sandbox: Arc<dyn Sandbox>, attached: bool) -> Arc<dyn Sandbox> {
        let id = self.hooks.id.map_or_else(|| sandbox.id().clone(), |id| id(sandbox.id()));
        let inner = Inner { provider: Arc::clone(&self.provider), sandbox };
        let silent = self.hooks.silent.is_some_and(|which| which == Silent::All || attached);
        Arc::new(WrappedSandbox { inner, id, silent, hooks: Arc::clone(&self.hooks) })
    }

    fn provider(&self) -> P {
        Arc::clone(&self.provider)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for Wrapped {
    fn capabilities(&self) -> Capabilities {
        let honest = self.provider.capabilities();
        self.hooks.capabilities.as_ref().map_or(honest, |hook| hook(honest))
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let made = match &self.hooks.provision {
            Some(hook) => hook(self.provider(), spec.clone()).await,
            None => self.provider.provision(spec).await,
        };
        made.map(|sandbox| self.wrap(sandbox, false))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        let found = match &self.hooks.attach {
            Some(hook) => hook(self.provider(), session.clone()).await,
            None => self.provider.attach(session).await,
        };
        found.map(|sandbox| self.wrap(sandbox, true))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        match &self.hooks.owned {
            Some(hook) => hook(self.provider(), ()).await,
            None => self.provider.owned().await,
        }
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        match &self.hooks.reap {
            Some(hook) => hook(self.provider(), session.clone()).await,
            None => self.provider.reap(session).await,
        }
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        match &self.hooks.export {
            Some(hook) => hook(self.provider(), (session.clone(), root.clone())).await,
            None => self.provider.export(session, root).await,
        }
    }
}

#[derive(Debug)]
struct WrappedSandbox {
    inner: Inner,
    id: SessionId,
    silent: bool,
    hooks: Arc<Hooks>,
}

impl Drop for WrappedSandbox {
    fn drop(&mut self) {
        if self.hooks.reap_on_drop {
            let inner = self.inner.clone();
            tokio::spawn(async move { inner.provider.reap(inner.id()).await });
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Sandbox for WrappedSandbox {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.hooks.recreated.as_ref().or_else(|| self.inner.recreated()).filter(|_| !self.silent)
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        match &self.hooks.exec {
            Some(hook) => hook(self.inner.clone(), request).await,
            None => self.inner.exec(request).await,
        }
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        match &self.hooks.spawn {
            Some(hook) => hook(self.inner.clone(), request).await,
            None => self.inner.spawn(request).await,
        }
    }

    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        match &self.hooks.read {
            Some(hook) => hook(self.inner.clone(), (path.clone(), limit)).await,
            None => self.inner.read(path, limit).await,
        }
    }

    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        match &self.hooks.write {
            Some(hook) => hook(self.inner.clone(), file).await,
            None => self.inner.write(file).await,
        }
    }

    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        match &self.hooks.write_many {
            Some(hook) => hook(self.inner.clone(), files).await,
            None => self.inner.write_many(files).await,
        }
    }

    async fn destroy(&self) -> Result<(), Error> {
        match &self.hooks.destroy {
            Some(hook) => hook(self.inner.clone(), ()).await,
            None => self.inner.destroy().await,
        }
    }
}
