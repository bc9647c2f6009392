//! Programs of the host, injected so that unit tests need neither root nor systemd.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::process::Command;

use crate::{
    Error, ErrorKind, ExecOutput, ExecSpec, ExecStream, LogStream, NodePath, NodeRoot, OpCtx, Redact, Result,
    start_log_stream,
};

/// A helper program and its arguments. There is no shell in between.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCommand {
    /// The program's name; it is looked up in the runner's fixed search path, never in the caller's `PATH`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to a clean environment with `LC_ALL=C`.
    pub env: Vec<(OsString, OsString)>,
    /// Its input.
    pub stdin: Bytes,
    /// Its working directory; `/` if absent.
    pub cwd: Option<PathBuf>,
    /// How long it may run; else the call's deadline applies alone.
    pub timeout: Option<Duration>,
    /// How many bytes of each output are kept.
    pub max_output: usize,
    /// The arguments are somebody else's, a tenant's command for example, and no error may show them.
    pub private: bool,
    /// The user and the group it runs as; the caller's own if absent.
    pub ids: Option<(u32, u32)>,
}

impl HostCommand {
    /// A program with arguments.
    pub fn new<I>(program: impl Into<String>, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            stdin: Bytes::new(),
            cwd: None,
            timeout: None,
            max_output: 1024 * 1024,
            private: false,
            ids: None,
        }
    }

    /// A command of somebody else, as a program of this host for a node with this root: its arguments stay out of every error, its
    /// environment is the clean one of a node and its own variables, and its directory is that of the root.
    ///
    /// The user is left to the caller: set [`ids`](Self::ids), or refuse what is not root.
    ///
    /// # Errors
    ///
    /// As [`ExecSpec::validate`]; [`ErrorKind::Unsupported`] for a program whose name is not UTF-8.
    pub fn of(spec: &ExecSpec, root: &dyn NodeRoot) -> Result<Self> {
        spec.validate()?;
        let Some(program) = spec.argv[0].to_str() else {
            // Its name as text would be that of another program.
            let unsupported = Error::new(ErrorKind::Unsupported, "run a command in the node");
            return Err(unsupported.with_field("argv").with_index(0).with_detail("the program's name is no text"));
        };
        let mut command = Self::new(program, &spec.argv[1..]).with_private_args().with_max_output(spec.max_output);
        command = command.with_env("HOME", "/root").with_env("LANG", "C.UTF-8").with_stdin(spec.stdin.clone());
        command.env.extend(spec.env.iter().cloned());
        command.cwd = Some(root.inside(&spec.cwd.clone().unwrap_or_else(NodePath::root)));
        command.timeout = spec.timeout;
        Ok(command)
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Sets the input.
    #[must_use]
    pub fn with_stdin(mut self, stdin: impl Into<Bytes>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets how long it may run.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Keeps the arguments out of every error.
    #[must_use]
    pub fn with_private_args(mut self) -> Self {
        self.private = true;
        self
    }

    /// Sets user and group, without supplementary groups; only root may.
    #[must_use]
    pub fn with_ids(mut self, uid: u32, gid: u32) -> Self {
        self.ids = Some((uid, gid));
        self
    }

    /// Sets how many bytes of each output are kept.
    #[must_use]
    pub fn with_max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }
}

/// Shows the program, and only the number of its arguments: they may be secret.
impl fmt::Debug for HostCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCommand")
            .field("program", &self.program)
            .field("arguments", &self.args.len())
            .finish_non_exhaustive()
    }
}

/// Runs programs of the host. A backend takes one, and never starts a program by itself.
///
/// For files of the host a backend takes a [`NodeFs`](crate::NodeFs) opened at `/`, or at a directory of a
/// test.
#[async_trait]
pub trait HostRunner: fmt::Debug + Send + Sync + 'static {
    /// Where `program` is, if it is in the search path and executable.
    fn resolve(&self, program: &str) -> Option<PathBuf>;

    /// Runs a program to its end; dropping the future kills it and everything in its process group.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CommandNotFound`], [`ErrorKind::Timeout`], [`ErrorKind::Cancelled`],
    /// [`ErrorKind::Transport`]. A non-zero exit is a value.
    async fn run(&self, ctx: &OpCtx, command: HostCommand) -> Result<ExecOutput>;

    /// Starts a program and exposes its output as a log. How much of it is kept is the reader's affair: the command's
    /// [`max_output`](HostCommand::max_output) does not count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CommandNotFound`], [`ErrorKind::Transport`]; [`ErrorKind::Unsupported`], with the field, for a command with
    /// [`stdin`](HostCommand::stdin) or [`timeout`](HostCommand::timeout).
    fn log(&self, command: HostCommand) -> Result<LogStream>;

    /// Starts a program to talk to. Its input and output go through the handle, which ends it.
    ///
    /// # Errors
    ///
    /// As [`log`](Self::log).
    fn stream(&self, command: HostCommand) -> Result<ExecStream>;
}

/// The programs of this machine.
#[derive(Debug, Clone)]
pub struct SystemRunner {
    search: Vec<PathBuf>,
    redact: Redact,
}

impl Default for SystemRunner {
    fn default() -> Self {
        let search = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        Self { search: search.map(PathBuf::from).to_vec(), redact: Redact::default() }
    }
}

impl SystemRunner {
    /// Searches these directories instead, first to last.
    #[must_use]
    pub fn with_search(mut self, search: Vec<PathBuf>) -> Self {
        self.search = search;
        self
    }

    /// Sets what errors may not show.
    #[must_use]
    pub fn with_redact(mut self, redact: Redact) -> Self {
        self.redact = redact;
        self
    }

    fn redact(&self, command: &HostCommand) -> Redact {
        if command.private { Redact::everything() } else { self.redact.clone() }
    }

    /// As [`command`](Self::command), for a program whose end nobody here waits for.
    fn open(&self, command: &HostCommand) -> Result<Command> {
        let field = match command {
            HostCommand { stdin, .. } if !stdin.is_empty() => "stdin",
            HostCommand { timeout: Some(_), .. } => "timeout",
            _ => return self.command(command),
        };
        Err(Error::new(ErrorKind::Unsupported, "start a program").with_field(field))
    }

    fn command(&self, command: &HostCommand) -> Result<Command> {
        let Some(program) = self.resolve(&command.program) else {
            return Err(Error::new(ErrorKind::CommandNotFound, "start a program")
                .with_program(&command.program, self.redact(command).argv(&command.args)));
        };
        let mut path = OsString::new();
        for (n, dir) in self.search.iter().enumerate() {
            if n > 0 {
                path.push(":");
            }
            path.push(dir);
        }
        let mut ready = Command::new(program);
        ready
            .args(&command.args)
            .env_clear()
            .env("PATH", path)
            .env("LC_ALL", "C")
            .envs(command.env.iter().map(|(key, value)| (key, value)))
            .current_dir(command.cwd.as_deref().unwrap_or(Path::new("/")));
        if let Some((uid, gid)) = command.ids {
            // The standard library drops the supplementary groups before it changes the user.
            ready.uid(uid).gid(gid);
        }
        Ok(ready)
    }
}

#[async_trait]
impl HostRunner for SystemRunner {
    fn resolve(&self, program: &str) -> Option<PathBuf> {
        let executable = |path: &PathBuf| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        if program.starts_with('/') {
            return Some(PathBuf::from(program)).filter(executable);
        }
        if program.is_empty() || program.contains('/') {
            return None;
        }
        self.search.iter().map(|dir| dir.join(program)).find(executable)
    }

    async fn run(&self, ctx: &OpCtx, command: HostCommand) -> Result<ExecOutput> {
        let ready = self.command(&command)?;
        let redact = self.redact(&command);
        let work = crate::process::run(ready, command.stdin, command.timeout, command.max_output, &redact);
        ctx.bound(&format!("run {}", command.program), work).await
    }

    fn log(&self, command: HostCommand) -> Result<LogStream> {
        start_log_stream(self.open(&command)?, &self.redact(&command))
    }

    fn stream(&self, command: HostCommand) -> Result<ExecStream> {
        ExecStream::spawn(self.open(&command)?, &self.redact(&command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExecStatus;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn programs_get_a_clean_environment_and_no_shell() {
        let ctx = OpCtx::new(Duration::from_secs(10));
        let runner = SystemRunner::default();
        let output = runner.run(&ctx, HostCommand::new("env", ["-0"]).with_env("A", "$HOME b")).await.unwrap();
        let text = output.stdout_text();
        let mut names: Vec<_> = text.split('\0').filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.sort_unstable();
        assert_eq!(names, ["A", "LC_ALL", "PATH"]);
        assert!(text.contains("A=$HOME b"));
        let error = runner.run(&ctx, HostCommand::new("../env", [""; 0])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CommandNotFound);
        let short = OpCtx::new(Duration::from_millis(100));
        let error = runner.run(&short, HostCommand::new("sleep", ["60"])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }

    #[test]
    fn a_command_of_somebody_else() {
        let root = crate::HostRoot::new(crate::SlotName::new("kube1").unwrap(), "/m").unwrap();
        let spec = ExecSpec::new(["sh", "-c", "x"]).with_env("A", "1").with_stdin("in").with_max_output(7);
        let spec = spec.with_timeout(Duration::from_secs(1));
        let command = HostCommand::of(&spec, &root).unwrap();
        let env = [("HOME", "/root"), ("LANG", "C.UTF-8"), ("A", "1")];
        let want = HostCommand::new("sh", ["-c", "x"]).with_private_args().with_stdin("in").with_max_output(7);
        let want = env.into_iter().fold(want, |want, (key, value)| want.with_env(key, value));
        assert!(command == want.clone().with_cwd("/m").with_timeout(Duration::from_secs(1)));
        let elsewhere = HostCommand::of(&spec.with_cwd(crate::node_path!("/etc")), &root).unwrap();
        assert_eq!(elsewhere.cwd.as_deref(), Some(Path::new("/m/etc")));
        assert!(HostCommand::of(&ExecSpec::new(["a\0b"]), &root).is_err());
        let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"/bin/\xff");
        let error = HostCommand::of(&ExecSpec::new([<&std::ffi::OsStr>::clone(&odd)]), &root).unwrap_err();
        assert_eq!((error.kind(), error.field(), error.index()), (ErrorKind::Unsupported, Some("argv"), Some(0)));
    }

    #[tokio::test]
    async fn a_stream_is_talked_to() {
        let mut stream = SystemRunner::default().stream(HostCommand::new("cat", [""; 0])).unwrap();
        stream.stdin.as_mut().unwrap().write_all(b"hello").await.unwrap();
        stream.stdin = None;
        let mut text = String::new();
        stream.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), stream.wait().await.unwrap()), ("hello", ExecStatus::Exited(0)));
        assert!(stream.wait().await.is_err());
    }

    #[test]
    fn what_a_stream_does_not_have_is_refused() {
        let (runner, cat) = (SystemRunner::default(), HostCommand::new("cat", [""; 0]));
        let late = cat.clone().with_timeout(Duration::from_secs(1));
        for (command, field) in [(cat.with_stdin("x"), "stdin"), (late, "timeout")] {
            let errors = [runner.stream(command.clone()).unwrap_err(), runner.log(command).unwrap_err()];
            for error in errors {
                assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some(field)));
            }
        }
    }
}
