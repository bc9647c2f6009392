//! A command that one can talk to while it runs.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncWrite;

use crate::exec::validate_command;
use crate::{ByteStream, Command, Env, Error, ErrorKind, ExecRequest, SandboxPath};

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpawnRequest {
    /// The command.
    pub command: Command,
    /// Variables for this command alone, on top of the sandbox's own.
    pub env: Env,
    /// Where it starts; `None` is the sandbox's working directory.
    pub workdir: Option<SandboxPath>,
    /// How long it may run; `None` is without end.
    pub limit: Option<Duration>,
    /// Whether it can be written to. A command that nobody can write to has an empty standard input.
    pub stdin: bool,
}

impl SpawnRequest {
    /// Starts `command`.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self { command, env: Env::new(), workdir: None, limit: None, stdin: false }
    }

    /// Starts `text` as `bash -c` would.
    #[must_use]
    pub fn shell(text: impl Into<bytes::Bytes>) -> Self {
        Self::new(Command::Shell(text.into()))
    }

    /// Starts a program with its arguments, which no shell reads.
    #[must_use]
    pub fn args<A: Into<Vec<u8>>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new(ExecRequest::args(args).command)
    }

    /// Adds variables for this command alone.
    #[must_use]
    pub fn with_env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Starts it in `workdir`.
    #[must_use]
    pub fn with_workdir(mut self, workdir: SandboxPath) -> Self {
        self.workdir = Some(workdir);
        self
    }

    /// Ends it after `limit`.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Lets it be written to.
    #[must_use]
    pub fn with_stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// Checks the request. Every `spawn` does this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`], naming the rule (never the command).
    pub fn validate(&self) -> Result<(), Error> {
        validate_command(&self.command)?;
        match self.limit {
            Some(limit) if limit.is_zero() || limit > ExecRequest::MAX_LIMIT => {
                Err(Error::new(ErrorKind::InvalidRequest)
                    .because(format!("limit {limit:?}: it must be above 0 and at most {:?}", ExecRequest::MAX_LIMIT)))
            }
            _ => Ok(()),
        }
    }
}

/// A signal that can be sent to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// `SIGHUP`.
    Hangup,
    /// `SIGINT`.
    Interrupt,
    /// `SIGQUIT`.
    Quit,
    /// `SIGKILL`.
    Kill,
    /// `SIGUSR1`.
    User1,
    /// `SIGUSR2`.
    User2,
    /// `SIGTERM`.
    Terminate,
    /// `SIGCONT`.
    Continue,
    /// `SIGSTOP`.
    Stop,
}

impl Signal {
    /// Its name without `SIG`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hangup => "HUP",
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
            Self::User1 => "USR1",
            Self::User2 => "USR2",
            Self::Terminate => "TERM",
            Self::Continue => "CONT",
            Self::Stop => "STOP",
        }
    }
}

/// How a spawned command ended. A spawned command ends with its own exit code, or 128 and the number of the signal that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// As [`ExecResult::exit_code`](crate::ExecResult::exit_code).
    pub code: i32,
    /// Whether it ran into its limit. A spawned command that ran into its limit was killed and says so.
    pub timed_out: bool,
}

impl Exit {
    /// An end, for implementers.
    #[must_use]
    pub fn new(code: i32, timed_out: bool) -> Self {
        Self { code, timed_out }
    }

    /// Whether it ended by itself with exit code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self.code == 0 && !self.timed_out
    }
}

/// The far end of a [`Process`], written by implementers.
#[async_trait]
pub trait ProcessControl: fmt::Debug + Send + Sync {
    /// Sends `signal` to the command's process group.
    async fn signal(&self, signal: Signal) -> Result<(), Error>;
    /// Waits for the end; may be called again and then answers the same.
    async fn wait(&mut self) -> Result<Exit, Error>;
}

/// A running command.
///
/// Its output waits for the reader: what nobody reads stalls it, so read or drop both streams (a dropped one is drained). What was not read
/// when it is dropped is lost, and its streams say so.
/// Dropping the process kills the command and what it started, best effort.
#[must_use = "dropping it kills the command"]
pub struct Process {
    /// Writes to its standard input; closing or dropping it is the end of input. `None` if the request asked for none.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Its standard output.
    pub stdout: ByteStream,
    /// Its standard error.
    pub stderr: ByteStream,
    control: Box<dyn ProcessControl>,
}

impl Process {
    /// A process from its parts, for implementers.
    pub fn new(
        stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
        stdout: ByteStream,
        stderr: ByteStream,
        control: Box<dyn ProcessControl>,
    ) -> Self {
        Self { stdin, stdout, stderr, control }
    }

    /// This process with its output and its far end behind something.
    pub(crate) fn checked(
        self,
        output: impl Fn(ByteStream) -> ByteStream,
        control: impl FnOnce(Box<dyn ProcessControl>) -> Box<dyn ProcessControl>,
    ) -> Self {
        let Self { stdin, stdout, stderr, control: inner } = self;
        Self { stdin, stdout: output(stdout), stderr: output(stderr), control: control(inner) }
    }

    /// Sends `signal` to the command and its process group. A command that ended already is no error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] with [`Effect::Unknown`](crate::Effect::Unknown) or [`ErrorKind::NotFound`] if the sandbox cannot be reached.
    // Not an `async fn`: its future would hold the whole process, which is not `Sync`, and could not be sent to another thread.
    pub fn signal(&self, signal: Signal) -> impl Future<Output = Result<(), Error>> + Send + '_ {
        self.control.signal(signal)
    }

    /// Kills the command and what it started, also what left its process group.
    ///
    /// # Errors
    ///
    /// As [`signal`](Self::signal).
    pub fn kill(&self) -> impl Future<Output = Result<(), Error>> + Send + '_ {
        self.control.signal(Signal::Kill)
    }

    /// Waits for its end. Closes nothing and reads nothing: output that nobody reads can keep it from ending.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileNotFound`] or [`ErrorKind::NotDirectory`] with the path and [`Effect::None`](crate::Effect::None) if it could not
    /// start in its working directory and `spawn` has not said so already; [`ErrorKind::NotFound`] if the sandbox is gone, with
    /// [`Error::death`], [`ErrorKind::Lost`] if the way to it broke, and [`ErrorKind::Protocol`] if somebody inside interferes, each with
    /// [`Effect::Unknown`](crate::Effect::Unknown). The same each time it is asked.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        self.control.wait().await
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("control", &self.control).finish_non_exhaustive()
    }
}
