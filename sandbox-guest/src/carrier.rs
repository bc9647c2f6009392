//! How bytes reach a sandbox: the part that differs from backend to backend.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use futures::future::BoxFuture;
use sandbox::{Death, Error};
use tokio::io::{AsyncRead, AsyncWrite};

/// Opens streams of bytes to a shell inside one sandbox.
///
/// A carrier is small: it starts `bash --norc --noprofile -p` inside the sandbox, with that sandbox's working directory readable or not,
/// hands over the three ends, and says when the shell is gone. It knows no frame, no script, no deadline of a command.
///
/// # Contract
///
/// - Every [`open`](Self::open) starts a shell of its own, inside the sandbox this carrier was made for and never in a later one.
/// - The shell ignores no signal at its start: what it ignores then, so does every command in it, whoever sends the signal.
/// - Bytes arrive in order and unchanged; what was read before the end of a stream was really sent.
/// - Dropping all parts of a [`CarrierStream`] closes the connection. The shell need not die of it.
/// - `open` fails as `NotFound` once the sandbox is gone, with the cause of death where it is known.
#[async_trait]
pub trait Carrier: fmt::Debug + Send + Sync + 'static {
    /// Starts a shell. The caller sets the deadline; a dropped future leaves nothing running.
    async fn open(&self) -> Result<CarrierStream, Error>;

    /// What the shell's standard output and standard error are.
    fn far_ends(&self) -> FarEnds;

    /// Why the sandbox is no more, or `None` if it lives or nobody knows. Asked after a stream broke.
    async fn cause_of_death(&self) -> Option<Death>;
}

/// What the ends of a stream are inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FarEnds {
    /// Pipes that the shell's user may reopen through `/proc/self/fd`: each command gets open file descriptions of its own.
    Pipes,
    /// Anything else, such as sockets.
    Other,
}

/// One open stream to a shell.
#[non_exhaustive]
pub struct CarrierStream {
    /// To its standard input.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// From its standard output.
    pub stdout: Pin<Box<dyn AsyncRead + Send>>,
    /// From its standard error.
    pub stderr: Pin<Box<dyn AsyncRead + Send>>,
    /// Resolves when the shell is gone, though others may still hold its output. May be dropped.
    pub closed: BoxFuture<'static, Closed>,
}

impl CarrierStream {
    /// A stream from its parts.
    pub fn new(
        stdin: impl AsyncWrite + Send + 'static,
        stdout: impl AsyncRead + Send + 'static,
        stderr: impl AsyncRead + Send + 'static,
        closed: impl Future<Output = Closed> + Send + 'static,
    ) -> Self {
        Self { stdin: Box::pin(stdin), stdout: Box::pin(stdout), stderr: Box::pin(stderr), closed: Box::pin(closed) }
    }
}

impl fmt::Debug for CarrierStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CarrierStream")
    }
}

/// How a shell went, in the carrier's words: for messages only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Such as `exit status: 137`.
    pub detail: String,
}

impl Closed {
    /// A report.
    #[must_use]
    pub fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into() }
    }
}
