//! A provider that fails, for testing what stands in front of one.
#![allow(clippy::unwrap_used, unreachable_pub, dead_code, reason = "shared by tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandbox::*;

/// Claims nothing unless told, counts what reaches it, and fails.
#[derive(Debug, Default, Clone)]
pub struct Bare {
    pub claims: Capabilities,
    pub asked: Arc<AtomicUsize>,
    pub id: Option<SessionId>,
    /// Whether what answers a stream or a process does, and these fail.
    pub late: bool,
}

/// A process that cannot be waited for.
#[derive(Debug)]
struct Unreachable;

#[async_trait]
impl ProcessControl for Unreachable {
    async fn signal(&self, _: Signal) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Lost))
    }
    async fn wait(&mut self) -> Result<Exit, Error> {
        Err(Error::new(ErrorKind::Lost).with_effect(Effect::Unknown))
    }
}

/// A piece, then an error.
fn broken() -> ByteStream {
    ByteStream::new(futures::stream::iter([
        Ok(bytes::Bytes::from_static(b"x")),
        Err(Error::new(ErrorKind::ShortTransfer).at(path())),
    ]))
}

impl Bare {
    fn reached<T>(&self) -> Result<T, Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Unavailable).because("a fake"))
    }
}

#[async_trait]
impl Provider for Bare {
    fn capabilities(&self) -> Capabilities {
        self.claims
    }
    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self { id: Some(spec.session.clone()), ..self.clone() }))
    }
    async fn attach(&self, _: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        self.reached()
    }
    async fn owned(&self) -> Result<OwnedStream, Error> {
        if self.late {
            return Ok(OwnedStream::new(futures::stream::iter([Err(Error::new(ErrorKind::Forbidden))])));
        }
        self.reached()
    }
    async fn reap(&self, _: &SessionId) -> Result<(), Error> {
        self.reached()
    }
    async fn export(&self, _: &SessionId, _: &SandboxPath) -> Result<ExportStream, Error> {
        if self.late {
            return Ok(broken());
        }
        self.reached()
    }
}

#[async_trait]
impl Sandbox for Bare {
    fn id(&self) -> &SessionId {
        self.id.as_ref().unwrap()
    }
    fn recreated(&self) -> Option<&Recreated> {
        None
    }
    /// A request with a limit never ends.
    async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        if request.limit.is_some() {
            std::future::pending::<()>().await;
        }
        self.reached()
    }
    async fn spawn(&self, _: SpawnRequest) -> Result<Process, Error> {
        if self.late {
            return Ok(Process::new(None, broken(), broken(), Box::new(Unreachable)));
        }
        self.reached()
    }
    async fn read(&self, path: &SandboxPath, _: u64) -> Result<ReadStream, Error> {
        let held: Option<&[u8]> = match path.as_bytes() {
            b"/text" => Some("t\u{e9}xt".as_bytes()),
            b"/binary" => Some(b"\xff\xfe"),
            _ => None,
        };
        if let Some(held) = held {
            return Ok(ByteStream::new(futures::stream::iter([Ok(held.into())])));
        }
        if self.late {
            return Ok(broken());
        }
        self.reached()
    }
    async fn write(&self, _: FileWrite<'_>) -> Result<(), Error> {
        self.reached()
    }
    async fn write_many(&self, _: FileBatch<'_>) -> Result<(), Error> {
        self.reached()
    }
    async fn destroy(&self) -> Result<(), Error> {
        self.reached()
    }
}

pub fn everything() -> Capabilities {
    let mut c = Capabilities::default();
    (c.files, c.export, c.spawn) = (true, true, true);
    (c.networking_unrestricted, c.networking_limited, c.networking_none) = (true, true, true);
    (c.pids_limit, c.cpu_limit, c.memory_limit, c.disk_limit) = (true, true, true, true);
    (c.cap_drop, c.read_only_root, c.run_as_user, c.gate) = (true, true, true, true);
    c
}

pub fn spec(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = Spec::new(SessionId::new("s1").unwrap(), "img").with_hardening(Hardening::none());
    change(&mut spec);
    spec
}

pub fn path() -> SandboxPath {
    SandboxPath::new("/f").unwrap()
}
