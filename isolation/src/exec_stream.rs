//! A command that is talked to while it runs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::Command;

use crate::process::Group;
use crate::{Error, ErrorKind, ExecStatus, Redact, Result};

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
    wait: Pin<Box<dyn Future<Output = Result<ExecStatus>> + Send>>,
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
            wait: Box::pin(wait),
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
            wait: Box::pin(async move {
                let status = group.wait().await;
                status.map_err(|cause| Error::new(ErrorKind::Transport, "wait for a program").because(cause))
            }),
        })
    }

    /// The process on this host, if it is one.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Has its end cancelled by `cancel` too: the command is killed, and waiting fails as
    /// [`ErrorKind::Cancelled`].
    pub fn with_cancel(mut self, cancel: &crate::Cancel) -> Self {
        let (cancel, wait) = (cancel.clone(), self.wait);
        self.wait = Box::pin(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(Error::new(ErrorKind::Cancelled, "run a command in the node")),
                status = wait => status,
            }
        });
        self
    }

    /// Ends the input, waits for the command and gives its status. Read the outputs before, or beside it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Transport`] if the command's end could not be learnt.
    pub async fn wait(&mut self) -> Result<ExecStatus> {
        self.stdin = None;
        let done = std::future::ready(Err(Error::new(ErrorKind::InvalidInput, "wait for a command twice")));
        let status = self.wait.as_mut().await;
        self.wait = Box::pin(done);
        status
    }
}

impl fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStream").finish_non_exhaustive()
    }
}
