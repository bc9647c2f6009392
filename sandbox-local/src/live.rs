//! The handle of a running sandbox.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    Env, Error, ErrorKind, ExecRequest, ExecResult, FileBatch, FileWrite, Process, ReadStream, Recreated, Sandbox,
    SandboxPath, SessionId, SpawnRequest,
};
use sandbox_guest::{Guest, GuestConfig};

use crate::carrier::LocalCarrier;
use crate::host::Host;
use crate::local::blocking;
use crate::record::Record;
use crate::{ident, spec};

/// Where programs are found inside, unless the spec says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// One running sandbox.
pub(crate) struct Live {
    host: Arc<Host>,
    pub(crate) session: SessionId,
    pub(crate) nonce: String,
    pub(crate) recreated: Option<Recreated>,
    pub(crate) guest: Guest,
    /// The bound on its processes, and the namespace of those that count.
    bound: Option<(u64, u64)>,
}

impl Live {
    pub(crate) fn new(host: Arc<Host>, record: Record) -> Result<Self, Error> {
        let carrier = LocalCarrier::new(Arc::clone(&host), &record)?;
        let mut env = Env::new().with("PATH", PATH)?.with("HOME", record.spec.workdir.as_bytes().to_vec())?;
        for (name, value) in record.spec.env.iter() {
            env.set(name, value.clone())?;
        }
        let inner = record.identity.as_ref().and_then(|identity| identity.namespaces.get("user").copied());
        let bound = spec::processes(&record.spec.hardening).ok().flatten().zip(inner);
        let config = GuestConfig::new(record.spec.workdir)
            .with_env(env)
            .with_begin_timeout(host.config.begin_timeout)
            .with_inactivity(host.config.inactivity);
        Ok(Self {
            host,
            session: record.spec.session,
            nonce: record.nonce,
            recreated: record.recreated,
            guest: Guest::new(Arc::new(carrier), config),
            bound,
        })
    }

    /// As [`Guest::warm_up`].
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        self.explain(self.guest.warm_up().await).await
    }

    /// Says of a call that did not begin when that was for want of processes.
    async fn explain<T: Send>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let (Some((bound, inner)), Err(error)) = (self.bound, &result) else { return result };
        if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::DeadlineExceeded | ErrorKind::Unavailable) {
            return result;
        }
        let said = error.reason().unwrap_or_default().to_owned();
        let full = said.contains("fork failed: Resource temporarily unavailable")
            // Its first process has a parent outside, which counts.
            || blocking(move || Ok(spec::is_full(bound, ident::count("user", inner) + 1))).await.unwrap_or(false);
        if full { result.map_err(|e| e.because(spec::used_up(bound, &said))) } else { result }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSandbox")
            .field("session", &self.session)
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Sandbox for Live {
    fn id(&self) -> &SessionId {
        &self.session
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.recreated.as_ref()
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        self.explain(self.guest.exec(request).await).await
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        self.explain(self.guest.spawn(request).await).await
    }

    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        self.explain(self.guest.read(path, limit).await).await
    }

    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        self.explain(self.guest.write(file).await).await
    }

    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        self.explain(self.guest.write_many(files).await).await
    }

    async fn destroy(&self) -> Result<(), Error> {
        let (host, session, nonce) = (Arc::clone(&self.host), self.session.clone(), self.nonce.clone());
        blocking(move || host.reap(&session, Some(&nonce))).await?;
        self.guest.close_idle();
        Ok(())
    }
}
