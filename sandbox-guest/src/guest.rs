//! The public handle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbox::{
    Error, ErrorKind, ExecRequest, ExecResult, ExportStream, FileBatch, FileWrite, Process, ReadStream, SandboxPath,
    SpawnRequest,
};
use tokio::time::Instant;

use crate::config::GuestConfig;
use crate::control::Control;
use crate::pool::{Lease, Pool, Turn};
use crate::record::Nonce;
use crate::stream::Stream;
use crate::{Carrier, exec, files, spawn};

/// How long looking for a cause of death may take, after an operation failed.
const DEATH_TIME: Duration = Duration::from_secs(5);

/// Everything that can be done inside one sandbox, over a [`Carrier`].
///
/// Cloning it is cheap; all clones share the same streams. Dropping the last one closes them. A command whose future is dropped is
/// killed; that needs the runtime to go on for a moment, and without one the streams close and nothing is killed.
#[derive(Clone)]
pub struct Guest {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) carrier: Arc<dyn Carrier>,
    pub(crate) config: Arc<GuestConfig>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) control: Control,
    client: String,
    serial: AtomicU64,
}

impl Guest {
    /// A guest over `carrier`. Opens nothing yet.
    #[must_use]
    pub fn new(carrier: Arc<dyn Carrier>, config: GuestConfig) -> Self {
        let config = Arc::new(config);
        let client = Nonce::new().as_str()[..16].to_owned();
        let pool = Pool::new(Arc::clone(&carrier), Arc::clone(&config));
        let control = Control::new(Arc::clone(&carrier), Arc::clone(&config), client.clone());
        Self { inner: Arc::new(Inner { carrier, config, pool, control, client, serial: AtomicU64::new(0) }) }
    }

    /// Opens the first stream, so that what keeps a shell from starting shows now, by [`GuestConfig::begin_timeout`].
    ///
    /// # Errors
    ///
    /// Whatever kept it from opening.
    pub async fn warm_up(&self) -> Result<(), Error> {
        let turn = self.inner.pool.turn().await?;
        let stream = self.inner.stream_and_control(&turn).await?;
        self.inner.pool.release(Lease::new(stream, turn));
        Ok(())
    }

    /// Closes the idle streams, as once the sandbox is gone.
    pub fn close_idle(&self) {
        self.inner.pool.clear();
    }

    /// As [`Sandbox::exec`](sandbox::Sandbox::exec). It waits in order while [`GuestConfig::max_streams`] operations are under way;
    /// then the command begins within [`GuestConfig::begin_timeout`] or the call fails. So with a limit, a call takes at most its
    /// turn, that timeout, the limit, its grace, and 2 seconds more, and 5 more if it fails.
    ///
    /// # Errors
    ///
    /// As there; `DeadlineExceeded` if it did not begin in time, with `Effect::Unknown` once the request was sent: a command that has
    /// not begun by then is killed. Calls that wait for their turn fail with the first that finds the sandbox unresponsive.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecResult, Error> {
        // A guest is an entry of its own: nobody has to put `sandbox::Checked` before it, and what a request is allowed to be is what
        // keeps the frames in step.
        request.validate()?;
        self.inner.explain(exec::run(&self.inner, &request).await).await
    }

    /// As [`Sandbox::spawn`](sandbox::Sandbox::spawn); it waits for its turn and begins as [`exec`](Self::exec) does, by the same deadline. A
    /// process has its place until it ends or is dropped.
    ///
    /// # Errors
    ///
    /// As there, and as for [`exec`](Self::exec).
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Process, Error> {
        // As for `exec`.
        request.validate()?;
        self.inner.explain(spawn::spawn(&self.inner, &request).await).await
    }

    /// As [`Sandbox::read`](sandbox::Sandbox::read). It waits for its turn and begins by the same deadline as [`exec`](Self::exec). Then its
    /// content may stand still for [`GuestConfig::inactivity`]; the waits for it are taken from that time, and a second is given back for every
    /// 16 KiB that came. The time that the caller takes between two pieces does not count. Dropping the stream half-way ends the reading inside.
    ///
    /// # Errors
    ///
    /// As there; `DeadlineExceeded` here or as the last item of the stream, with `Effect::None`; also [`ErrorKind::Forbidden`] for a
    /// file that the sandbox's user may not read.
    pub async fn read(&self, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
        let result = self.inner.explain(files::read(&self.inner, path, limit).await).await;
        result.map_err(|e| e.at(path.clone()))
    }

    /// As [`Sandbox::write`](sandbox::Sandbox::write). A content of at most 64 KiB is read before anything is sent. It waits for its turn
    /// and begins by the same deadline as [`exec`](Self::exec). Then for [`GuestConfig::inactivity`] the sandbox may take nothing, the source
    /// may give nothing, and at the end the answer may take that long; the waits for the sandbox are taken from that time, and a second is
    /// given back for every 16 KiB that it took. Dropping the future leaves the target as it was or with all of the content.
    ///
    /// # Errors
    ///
    /// As there; `DeadlineExceeded`, with `Effect::Unknown` once everything was sent and `Effect::None` before.
    pub async fn write(&self, file: FileWrite<'_>) -> Result<(), Error> {
        // As for `exec`.
        file.validate()?;
        let path = file.path.clone();
        let result = self.inner.explain(files::write(&self.inner, file).await).await;
        result.map_err(|e| e.at(path))
    }

    /// As [`Sandbox::write_many`](sandbox::Sandbox::write_many). Small members are delivered together, at most 1,024 and 4 MiB at a time,
    /// which is also what is held in memory; there is no bound on the whole. Without `tar` inside they go one by one. Each delivery
    /// has the time that a [`write`](Self::write) has.
    ///
    /// # Errors
    ///
    /// As there; `DeadlineExceeded` for the first member that has not landed.
    pub async fn write_many(&self, files: FileBatch<'_>) -> Result<(), Error> {
        self.inner.explain(files::write_many(&self.inner, files).await).await
    }
}

impl Guest {
    /// As [`Provider::export`](sandbox::Provider::export), from this sandbox, in the time that a [`read`](Self::read) has. A file
    /// that changes or vanishes while it is packed makes the stream end with an error.
    ///
    /// # Errors
    ///
    /// As there; also [`ErrorKind::Unsupported`] without `tar` inside, and [`ErrorKind::Forbidden`] where nobody may look whether
    /// `root` exists.
    pub async fn export(&self, root: &SandboxPath) -> Result<ExportStream, Error> {
        let result = self.inner.explain(files::export(&self.inner, root).await).await;
        result.map_err(|e| e.at(root.clone()))
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("carrier", &self.inner.carrier).finish_non_exhaustive()
    }
}

impl Inner {
    /// What a command carries in its environment: who started it, which one it is, and its limit in milliseconds, 0 for none.
    pub(crate) fn marker(&self, limit: Option<Duration>) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let millis = limit.map_or(0, |limit| limit.as_millis().max(1));
        format!("{}.{serial}.{millis}", self.client)
    }

    /// A stream, and the control stream beside it: nothing runs that nobody could end.
    pub(crate) async fn stream_and_control(&self, turn: &Turn) -> Result<Stream, Error> {
        let since = Instant::now();
        let both = async { tokio::try_join!(self.pool.stream(turn.deadline), self.control.ready(turn.deadline)) };
        both.await.map(|(stream, ())| stream).map_err(|e| self.pool.failed(since, e))
    }

    /// A stream alone.
    pub(crate) async fn stream(&self, turn: &Turn) -> Result<Stream, Error> {
        let since = Instant::now();
        self.pool.stream(turn.deadline).await.map_err(|e| self.pool.failed(since, e))
    }

    /// As the function of that name.
    pub(crate) async fn explain<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(error) => Err(explain(&*self.carrier, error).await),
            done => done,
        }
    }
}

/// A broken way into a sandbox that is gone is `NotFound`, with the cause of death.
pub(crate) async fn explain(carrier: &dyn Carrier, error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::DeadlineExceeded | ErrorKind::Protocol) {
        return error;
    }
    let Ok(Some(death)) = tokio::time::timeout(DEATH_TIME, carrier.cause_of_death()).await else { return error };
    let mut gone = Error::new(ErrorKind::NotFound).with_death(death).with_effect(error.effect());
    if let Some(path) = error.path() {
        gone = gone.at(path.clone());
    }
    if let Some(index) = error.member() {
        gone = gone.of_member(index);
    }
    gone.caused_by(error)
}
