//! Running a command to its end.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::{Env, Error, ErrorKind, SandboxPath};

/// A command: a text for the shell, or a program and its arguments.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Run as `bash -c TEXT`; at most [`ExecRequest::MAX_SHELL`] bytes.
    Shell(Bytes),
    /// Run as it is: no shell reads it. The first is the program, looked up in the sandbox's `PATH`.
    Args(Vec<Bytes>),
}

/// Only its shape: the text of a command can hold a secret.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(text) => write!(f, "Shell({} bytes)", text.len()),
            Self::Args(args) => write!(f, "Args({})", args.len()),
        }
    }
}

/// What to run, where, for how long, and how much of its output to keep.
///
/// ```
/// use std::time::Duration;
/// use sandbox::ExecRequest;
///
/// let build = ExecRequest::shell("make -j2 2>&1").with_limit(Duration::from_secs(600));
/// let list = ExecRequest::args(["ls", "-l", "--", "a file"]);
/// # let _ = (build, list);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecRequest {
    /// The command.
    pub command: Command,
    /// Variables for this command alone, on top of the sandbox's own.
    pub env: Env,
    /// Where it starts; `None` is the sandbox's working directory.
    pub workdir: Option<SandboxPath>,
    /// How long it may run, counted from its start; `None` is without end.
    pub limit: Option<Duration>,
    /// How long it has between `SIGTERM` and `SIGKILL` at its limit; zero is `SIGKILL` at once.
    pub grace: Duration,
    /// How many bytes of standard output to keep, from the first.
    pub stdout_cap: usize,
    /// How many bytes of standard error to keep, from the first.
    pub stderr_cap: usize,
}

impl ExecRequest {
    /// How much of each stream is kept unless said otherwise: 1 MiB.
    pub const DEFAULT_CAP: usize = 1 << 20;
    /// The most that can be kept of a stream: 64 MiB.
    pub const MAX_CAP: usize = 64 << 20;
    /// The longest command, all arguments together: 4 MiB for a shell text, 1 MiB for arguments.
    pub const MAX_SHELL: usize = 4 << 20;
    /// The longest list of arguments, in bytes.
    pub const MAX_ARGS: usize = 1 << 20;
    /// The longest single argument, in bytes (Linux's `MAX_ARG_STRLEN`, less the final NUL).
    pub const MAX_ARG: usize = 131_071;
    /// The longest limit: 365 days.
    pub const MAX_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
    /// The longest grace: 60 seconds.
    pub const MAX_GRACE: Duration = Duration::from_secs(60);

    /// Runs `command`.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self {
            command,
            env: Env::new(),
            workdir: None,
            limit: None,
            grace: Duration::ZERO,
            stdout_cap: Self::DEFAULT_CAP,
            stderr_cap: Self::DEFAULT_CAP,
        }
    }

    /// Runs `text` as `bash -c` would: a literal, a `String` or bytes.
    #[must_use]
    pub fn shell(text: impl Into<Bytes>) -> Self {
        Self::new(Command::Shell(text.into()))
    }

    /// Runs a program with its arguments, which no shell reads.
    #[must_use]
    pub fn args<A: Into<Vec<u8>>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new(Command::Args(args.into_iter().map(|a| Bytes::from(a.into())).collect()))
    }

    /// Adds variables for this command alone. With the sandbox's own variables that it does not set anew, and with its arguments, it must
    /// have at most some 1.9 MB, which is what the kernel lets a program start with: more is refused as
    /// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest) by the call.
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

    /// Gives it `grace` between `SIGTERM` and `SIGKILL`.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Keeps up to `bytes` of each stream.
    #[must_use]
    pub fn with_caps(mut self, bytes: usize) -> Self {
        self.stdout_cap = bytes;
        self.stderr_cap = bytes;
        self
    }

    /// Checks the request. Every `exec` does this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`], naming the rule (never the command).
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidRequest).because(what));
        validate_command(&self.command)?;
        if let Some(limit) = self.limit {
            if limit.is_zero() {
                return refuse("limit 0: it must be above 0; leave it out for no limit".to_owned());
            }
            if limit > Self::MAX_LIMIT {
                return refuse(format!("limit {limit:?}: it must be at most {:?}", Self::MAX_LIMIT));
            }
        }
        if self.grace > Self::MAX_GRACE {
            return refuse(format!("grace {:?}: it must be at most {:?}", self.grace, Self::MAX_GRACE));
        }
        for (name, cap) in [("stdout_cap", self.stdout_cap), ("stderr_cap", self.stderr_cap)] {
            if cap > Self::MAX_CAP {
                return refuse(format!("{name} {cap}: it must be at most {}", Self::MAX_CAP));
            }
        }
        Ok(())
    }
}

pub(crate) fn validate_command(command: &Command) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidRequest).because(what));
    match command {
        Command::Shell(text) => {
            if text.contains(&0) {
                return refuse("command: it must not contain NUL".to_owned());
            }
            if text.len() > ExecRequest::MAX_SHELL {
                return refuse(format!(
                    "command of {} bytes: it must have at most {}",
                    text.len(),
                    ExecRequest::MAX_SHELL
                ));
            }
        }
        Command::Args(args) => {
            if args.first().is_none_or(|program| program.is_empty()) {
                return refuse("arguments: the first, the program, must be there and not empty".to_owned());
            }
            for (index, arg) in args.iter().enumerate() {
                if arg.contains(&0) {
                    return refuse(format!("argument {index}: it must not contain NUL"));
                }
                if arg.len() > ExecRequest::MAX_ARG {
                    return refuse(format!(
                        "argument {index} of {} bytes: it must have at most {}",
                        arg.len(),
                        ExecRequest::MAX_ARG
                    ));
                }
            }
            let total: usize = args.iter().map(|a| a.len() + 1).sum();
            if total > ExecRequest::MAX_ARGS {
                return refuse(format!("arguments of {total} bytes: at most {}", ExecRequest::MAX_ARGS));
            }
        }
    }
    Ok(())
}

/// How a command ended and what it printed. A command that fails is a result, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecResult {
    /// The exit code: 0 to 255, or 128 and the signal's number if a signal ended it. The exit code is 137 if it timed out.
    pub exit_code: i32,
    /// Whether it ran into its limit. This alone says so: an exit code can be anything.
    pub timed_out: bool,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// How long it ran: a command is timed from its start to its end, on the caller's clock.
    pub elapsed: Duration,
}

impl ExecResult {
    /// A result, for implementers.
    #[must_use]
    pub fn new(exit_code: i32, timed_out: bool, stdout: Output, stderr: Output, elapsed: Duration) -> Self {
        Self { exit_code, timed_out, stdout, stderr, elapsed }
    }

    /// Whether it ended by itself with exit code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.exit_code == 0 && !self.timed_out
    }

    /// Whether some of its output was not kept.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.stdout.truncated() || self.stderr.truncated()
    }
}

/// The kept head of one output stream.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// The first bytes, up to the request's cap.
    pub bytes: Bytes,
    /// How many there were in all.
    pub total: u64,
}

impl Output {
    /// An output, for implementers: `bytes` are the first of `total`.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>, total: u64) -> Self {
        Self { bytes: bytes.into(), total }
    }

    /// Whether there was more than was kept.
    #[must_use]
    pub fn truncated(&self) -> bool {
        self.total > self.bytes.len() as u64
    }

    /// The kept bytes as text, with what is not UTF-8 replaced.
    #[must_use]
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.bytes[..self.bytes.len().min(200)];
        write!(f, "\"{}\" ({} of {} bytes)", head.escape_ascii(), self.bytes.len(), self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_requests_name_the_rule_and_never_the_command() {
        let ok = ExecRequest::shell("true");
        ok.validate().unwrap();
        ExecRequest::shell("").validate().unwrap();
        ExecRequest::args(["a", ""]).validate().unwrap();
        let mut caps = ok.clone();
        caps.stderr_cap = ExecRequest::MAX_CAP + 1;
        let many = ExecRequest::args(vec![vec![b'x'; 131_000]; 9]);
        for (request, word) in [
            (ExecRequest::shell(&b"secret\0"[..]), "NUL"),
            (ExecRequest::shell(vec![b'x'; ExecRequest::MAX_SHELL + 1]), "at most"),
            (ExecRequest::args(Vec::<Vec<u8>>::new()), "program"),
            (ExecRequest::args([""]), "program"),
            (ExecRequest::args(["a", "secret\0"]), "argument 1"),
            (ExecRequest::args([vec![b'a'], vec![b'x'; 131_072]]), "argument 1"),
            (many, "arguments"),
            (ok.clone().with_limit(Duration::ZERO), "limit"),
            (ok.clone().with_limit(ExecRequest::MAX_LIMIT * 2), "limit"),
            (ok.clone().with_grace(Duration::from_secs(61)), "grace"),
            (caps, "stderr_cap"),
        ] {
            let error = request.validate().expect_err(word);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().contains(word) && !error.to_string().contains("secret"), "{error}");
            assert!(!format!("{request:?}").contains("secret"));
        }
    }
}
