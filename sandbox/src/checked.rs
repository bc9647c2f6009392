//! The wrapper that holds every backend to its own claims.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use tracing::{Instrument, Span, field};

use crate::{
    ByteStream, Capabilities, Error, ErrorKind, ExecRequest, ExecResult, Exit, ExportStream, FileBatch, FileWrite,
    Hardening, Limit, Networking, OwnedStream, Process, ProcessControl, Provider, ReadStream, Recreated, Sandbox,
    SandboxPath, SessionId, Signal, SpawnRequest, Spec,
};

/// A provider behind the checks that are the same for every backend.
///
/// In one place: specs and requests are validated, and what the backend does not claim is refused, before the backend is asked;
/// every error carries its operation and session, also those of a process and of what a stream ends with; every operation is a `tracing` span with session, operation, outcome and
/// duration, never a command, a value or a path. The family's backends are built on it; yours can be too.
pub struct Checked<P> {
    inner: Arc<P>,
    capabilities: Capabilities,
}

impl<P: Provider> Checked<P> {
    /// Wraps `inner`.
    pub fn new(inner: P) -> Self {
        let capabilities = inner.capabilities();
        Self { inner: Arc::new(inner), capabilities }
    }

    /// The wrapped provider.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// What a [`provision`](Provider::provision) of `spec` checks before the backend is asked.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` for a spec that breaks a rule, `Unsupported` for one that needs what the backend does not claim.
    pub fn check(&self, spec: &Spec) -> Result<(), Error> {
        check_spec(spec, &self.capabilities)
    }

    fn wrap(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        Arc::new(CheckedSandbox { inner: sandbox, capabilities: self.capabilities })
    }
}

impl<P> Clone for Checked<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), capabilities: self.capabilities }
    }
}

impl<P: fmt::Debug> fmt::Debug for Checked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checked").field(&self.inner).finish()
    }
}

/// Runs one operation in its span and completes its error.
async fn operation<T>(
    name: &'static str,
    session: Option<&SessionId>,
    work: impl Future<Output = Result<T, Error>> + Send,
) -> Result<T, Error> {
    let span = tracing::info_span!(
        "sandbox",
        operation = name,
        session = session.map(SessionId::as_str),
        outcome = field::Empty,
        duration_us = field::Empty
    );
    let outcome = Outcome { span: span.clone(), begun: std::time::Instant::now(), done: false };
    let result = work.instrument(span).await;
    outcome.record(result.as_ref().err().map(Error::kind));
    result.map_err(|e| complete(e, name, session))
}

/// `error` with its operation and session.
fn complete(error: Error, name: &'static str, session: Option<&SessionId>) -> Error {
    let error = error.during(name);
    match session {
        Some(session) => error.in_session(session),
        None => error,
    }
}

/// `stream`, whose error is completed.
fn completed(stream: ByteStream, name: &'static str, session: &SessionId) -> ByteStream {
    let session = session.clone();
    ByteStream::new(stream.map(move |item| item.map_err(|e| complete(e, name, Some(&session)))))
}

/// The far end of a process, whose errors are completed.
#[derive(Debug)]
struct CheckedProcess {
    inner: Box<dyn ProcessControl>,
    session: SessionId,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ProcessControl for CheckedProcess {
    async fn signal(&self, signal: Signal) -> Result<(), Error> {
        self.inner.signal(signal).await.map_err(|e| complete(e, "signal", Some(&self.session)))
    }

    async fn wait(&mut self) -> Result<Exit, Error> {
        self.inner.wait().await.map_err(|e| complete(e, "wait", Some(&self.session)))
    }
}

/// Records how an operation ended, also when its future was dropped.
struct Outcome {
    span: Span,
    begun: std::time::Instant,
    done: bool,
}

impl Outcome {
    fn record(mut self, failure: Option<ErrorKind>) {
        self.done = true;
        match failure {
            None => self.span.record("outcome", "ok"),
            Some(kind) => self.span.record("outcome", field::debug(kind)),
        };
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if !self.done {
            self.span.record("outcome", "dropped");
        }
        let micros = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.span.record("duration_us", micros);
    }
}

fn claimed(claim: bool, what: impl FnOnce() -> String) -> Result<(), Error> {
    if claim { Ok(()) } else { Err(Error::new(ErrorKind::Unsupported).because(what())) }
}

/// Refuses what `capabilities` do not claim.
fn check_spec(spec: &Spec, capabilities: &Capabilities) -> Result<(), Error> {
    spec.validate()?;
    let c = capabilities;
    let network = match spec.networking {
        Networking::Unrestricted => c.networking_unrestricted,
        Networking::Limited(_) => c.networking_limited,
        Networking::None => c.networking_none,
    };
    claimed(network, || format!("networking {}", spec.networking.name()))?;
    claimed(spec.gate.is_none() || c.gate, || "gate: this provider runs none".to_owned())?;
    let h: &Hardening = &spec.hardening;
    for (name, limit, claim) in [
        ("pids", h.pids, c.pids_limit),
        ("cpu_millis", h.cpu_millis, c.cpu_limit),
        ("memory_bytes", h.memory_bytes, c.memory_limit),
        ("disk_bytes", h.disk_bytes, c.disk_limit),
    ] {
        if let Limit::Required(n) = limit {
            claimed(claim, || {
                format!("hardening {name} {n}: a required bound; preferred takes it where it can be had")
            })?;
        }
    }
    claimed(h.cap_drop.is_empty() || c.cap_drop, || {
        format!("hardening cap_drop {}: Hardening::none() asks for none", h.cap_drop.names().join(","))
    })?;
    claimed(!h.read_only_root || c.read_only_root, || "hardening read_only_root true".to_owned())?;
    for (name, id) in [("run_as_user", h.run_as_user), ("run_as_group", h.run_as_group), ("fs_group", h.fs_group)] {
        if let Some(id) = id {
            claimed(c.run_as_user, || format!("hardening {name} {id}"))?;
        }
    }
    claimed(!h.run_as_non_root || c.run_as_user, || "hardening run_as_non_root true".to_owned())?;
    Ok(())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: Provider> Provider for Checked<P> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let work = async {
            check_spec(spec, &self.capabilities)?;
            self.inner.provision(spec).await
        };
        operation("provision", Some(&spec.session), work).await.map(|s| self.wrap(s))
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        operation("attach", Some(session), self.inner.attach(session)).await.map(|s| self.wrap(s))
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        const NAME: &str = "list the sandboxes";
        let stream = operation(NAME, None, self.inner.owned()).await?;
        Ok(OwnedStream::new(stream.map(|item| item.map_err(|e| complete(e, NAME, None)))))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        operation("reap", Some(session), self.inner.reap(session)).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        let work = async {
            claimed(self.capabilities.export, || "export".to_owned())?;
            self.inner.export(session, root).await
        };
        operation("export", Some(session), work).await.map(|stream| completed(stream, "export", session))
    }
}

/// A sandbox behind the same checks.
#[derive(Debug)]
struct CheckedSandbox {
    inner: Arc<dyn Sandbox>,
    capabilities: Capabilities,
}

impl CheckedSandbox {
    async fn operation<T>(
        &self,
        name: &'static str,
        claim: bool,
        valid: Result<(), Error>,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let checked = async {
            valid?;
            claimed(claim, || name.to_owned())?;
            work.await
        };
        operation(name, Some(self.inner.id()), checked).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Sandbox for CheckedSandbox {
    fn id(&self) -> &SessionId {
        self.inner.id()
    }

    fn recreated(&self) -> Option<&Recreated> {
        self.inner.recreated()
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        self.operation("exec", true, request.validate(), self.inner.exec(request)).await
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        let valid = request.validate();
        let process = self.operation("spawn", self.capabilities.spawn, valid, self.inner.spawn(request)).await?;
        let session = self.inner.id();
        Ok(process.checked(
            |stream| completed(stream, "spawn", session),
            |inner| Box::new(CheckedProcess { inner, session: session.clone() }),
        ))
    }

    async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        let stream = self.operation("read", self.capabilities.files, Ok(()), self.inner.read(path, limit)).await?;
        Ok(completed(stream, "read", self.inner.id()))
    }

    async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        self.operation("write", self.capabilities.files, file.validate(), self.inner.write(file)).await
    }

    async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        self.operation("write_many", self.capabilities.files, Ok(()), self.inner.write_many(files)).await
    }

    async fn destroy(&self) -> Result<(), Error> {
        self.operation("destroy", true, Ok(()), self.inner.destroy()).await
    }
}
