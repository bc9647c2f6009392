//! A command that is talked to while it runs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::process::Group;
use crate::{Effect, Error, ErrorKind, ExecStatus, Redact, Result};

/// A command that is talked to while it runs.
///
/// Output that nobody reads stalls the command. Dropping the standard input ends it; dropping the handle
/// kills the command.
#[must_use = "dropping the handle kills the command"]
pub struct ExecStream {
    /// What the command reads; take it out and drop it to end the input.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// What the command writes to its standard output.
    pub stdout: Option<Pin<Box<dyn AsyncRead + Send>>>,
    /// What the command writes to its standard error.
    pub stderr: Option<Pin<Box<dyn AsyncRead + Send>>>,
    pid: Option<u32>,
    end: Arc<End>,
    /// Each ends the command when it is cancelled.
    watchers: JoinSet<()>,
}

type Wait = Pin<Box<dyn Future<Output = Result<ExecStatus>> + Send>>;

/// The command's end: whoever drops the future in it kills the command.
struct End(Mutex<Wait>);

impl End {
    fn new(wait: impl Future<Output = Result<ExecStatus>> + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Box::pin(wait))))
    }

    fn lock(&self) -> MutexGuard<'_, Wait> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `status` in its place.
    fn replace(&self, status: Result<ExecStatus>) -> Wait {
        std::mem::replace(&mut *self.lock(), Box::pin(std::future::ready(status)))
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "run a command in the node").with_effect(Effect::Unknown)
}

impl ExecStream {
    /// A command that is no process of ours. Dropping `wait` must end it.
    pub fn new(
        stdin: impl AsyncWrite + Send + 'static,
        stdout: impl AsyncRead + Send + 'static,
        stderr: impl AsyncRead + Send + 'static,
        wait: impl Future<Output = Result<ExecStatus>> + Send + 'static,
    ) -> Self {
        Self {
            stdin: Some(Box::pin(stdin)),
            stdout: Some(Box::pin(stdout)),
            stderr: Some(Box::pin(stderr)),
            pid: None,
            end: End::new(wait),
            watchers: JoinSet::new(),
        }
    }

    /// Starts a program of this host in a process group of its own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CommandNotFound`] or [`ErrorKind::Transport`].
    pub fn spawn(command: Command, redact: &Redact) -> Result<Self> {
        let mut group = Group::spawn(command, true, redact)?;
        let pid = group.pid();
        let (stdin, stdout, stderr) = group.take_pipes();
        Ok(Self {
            stdin: stdin.map(|pipe| Box::pin(pipe) as _),
            stdout: stdout.map(|pipe| Box::pin(pipe) as _),
            stderr: stderr.map(|pipe| Box::pin(pipe) as _),
            pid,
            end: End::new(async move {
                let status = group.wait().await;
                status.map_err(|cause| Error::new(ErrorKind::Transport, "wait for a program").because(cause))
            }),
            watchers: JoinSet::new(),
        })
    }

    /// The process on this host, if it is one.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Ends it when `cancel` fires: the command is killed, whoever reads or waits meanwhile or does not, and waiting fails as
    /// [`ErrorKind::Cancelled`]. A command whose end is known by then is not cancelled any more. Needs a runtime.
    pub fn with_cancel(mut self, cancel: &crate::Cancel) -> Self {
        {
            let mut end = self.end.lock();
            let wait = std::mem::replace(&mut *end, Box::pin(std::future::pending()));
            let cancel = cancel.clone();
            *end = Box::pin(async move {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => Err(cancelled()),
                    status = wait => status,
                }
            });
        }
        // Weak: dropping the handle must drop the future at once, and not when the task is gone.
        let (cancel, end) = (cancel.clone(), Arc::downgrade(&self.end));
        self.watchers.spawn(async move {
            cancel.cancelled().await;
            if let Some(end) = end.upgrade() {
                drop(end.replace(Err(cancelled())));
            }
        });
        self
    }

    /// Ends the input, waits for the command and gives its status. Read the outputs before, or beside it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Transport`] if the command's end could not be learnt, [`ErrorKind::Cancelled`] as of [`with_cancel`](Self::with_cancel).
    pub async fn wait(&mut self) -> Result<ExecStatus> {
        self.stdin = None;
        let status = std::future::poll_fn(|cx| self.end.lock().as_mut().poll(cx)).await;
        self.watchers.abort_all();
        drop(self.end.replace(Err(Error::new(ErrorKind::InvalidInput, "wait for a command twice"))));
        status
    }
}

impl fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStream").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancel;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;

    fn talker() -> ExecStream {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg("echo x; sleep 60 & sleep 60; exit 3");
        ExecStream::spawn(command, &Redact::default()).unwrap()
    }

    #[tokio::test]
    async fn a_cancel_ends_it_whoever_waits() {
        let (cancel, other) = (Cancel::new(), Cancel::new());
        let mut stream = talker().with_cancel(&cancel).with_cancel(&other);
        let mut output = stream.stdout.take().unwrap();
        assert_eq!(output.read_u8().await.unwrap(), b'x');
        cancel.cancel();
        // Nobody waits: the reader sees the end of the whole group.
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), output.read_to_end(&mut rest));
        read.await.expect("the group ends").unwrap();
        let error = stream.wait().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Cancelled, Effect::Unknown));
        assert_eq!(stream.wait().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        // It was cancelled before.
        let mut stream = talker().with_cancel(&cancel);
        assert_eq!(stream.wait().await.unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[tokio::test]
    async fn dropping_a_cancellable_one_ends_it_at_once() {
        let (alive, cancel) = (Arc::new(()), Cancel::new());
        let held = Arc::clone(&alive);
        let wait = async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(ExecStatus::Exited(0))
        };
        let stream = ExecStream::new(tokio::io::sink(), tokio::io::empty(), tokio::io::empty(), wait);
        let stream = stream.with_cancel(&cancel);
        tokio::task::yield_now().await;
        drop(stream);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
