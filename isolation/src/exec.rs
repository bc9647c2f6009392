//! Running a command inside a node: what goes in, what comes out.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, NodePath, Reason, Result, wire};

/// A command to run inside a node.
///
/// Arguments reach the program verbatim: no shell, no splitting, no expansion, and an argument that starts
/// with a dash is never an option of the transport.
/// An empty argument list, an empty program name or a NUL anywhere is refused before anything is spawned.
///
/// ```
/// use isolation::ExecSpec;
///
/// let spec = ExecSpec::new(["systemctl", "is-active", "kubelet.service"]).with_env("LANG", "C");
/// spec.validate()?;
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ExecSpec {
    /// The program and its arguments.
    #[serde(with = "wire::os_list", alias = "Argv", alias = "Args", alias = "Command")]
    pub argv: Vec<OsString>,
    /// Added to the clean environment of the transport (`PATH`, `HOME=/root`, `LANG=C.UTF-8`).
    #[serde(default, with = "wire::os_pairs", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(OsString, OsString)>,
    /// The working directory; `/` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<NodePath>,
    /// The user; root if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the command reads from its standard input, which is then closed.
    #[serde(default, with = "wire::bytes", skip_serializing_if = "Bytes::is_empty")]
    pub stdin: Bytes,
    /// How long the command may run; else the deadline of the call applies alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How many bytes of each output are kept; the rest is read and dropped.
    #[serde(default = "default_max_output")]
    pub max_output: usize,
}

const fn default_max_output() -> usize {
    16 * 1024 * 1024
}

impl ExecSpec {
    /// A command with a clean environment, in `/`, as root, without input.
    pub fn new<I>(argv: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            stdin: Bytes::new(),
            timeout: None,
            max_output: default_max_output(),
        }
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn with_cwd(mut self, cwd: NodePath) -> Self {
        self.cwd = Some(cwd);
        self
    }

    /// Sets the user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the input.
    #[must_use]
    pub fn with_stdin(mut self, stdin: impl Into<Bytes>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Sets how long the command may run.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of each output are kept.
    #[must_use]
    pub fn with_max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    /// Checks the rules that hold for every backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`], with field, position and rule.
    pub fn validate(&self) -> Result<()> {
        let reject = |field, index: usize, given: &OsStr, reason| {
            let given = if reason == Reason::Nul { &[][..] } else { given.as_bytes() };
            Err(Error::rejected(ErrorKind::InvalidInput, "command", given, reason).with_field(field).with_index(index))
        };
        match self.argv.first() {
            None => return reject("argv", 0, OsStr::new(""), Reason::Empty),
            Some(program) if program.is_empty() => return reject("argv", 0, program, Reason::Empty),
            Some(_) => {}
        }
        for (index, arg) in self.argv.iter().enumerate() {
            if arg.as_bytes().contains(&0) {
                return reject("argv", index, arg, Reason::Nul);
            }
        }
        for (index, (key, value)) in self.env.iter().enumerate() {
            if key.is_empty() {
                return reject("env", index, key, Reason::Empty);
            }
            if key.as_bytes().contains(&0) || value.as_bytes().contains(&0) {
                return reject("env", index, key, Reason::Nul);
            }
            if key.as_bytes().contains(&b'=') {
                return reject("env", index, key, Reason::Character);
            }
        }
        if let Some(user) = &self.user {
            let first = user.bytes().next();
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$');
            if first.is_none() {
                return reject("user", 0, OsStr::new(user), Reason::Empty);
            }
            if user.contains('\0') {
                return reject("user", 0, OsStr::new(user), Reason::Nul);
            }
            if first == Some(b'-') {
                return reject("user", 0, OsStr::new(user), Reason::FirstCharacter);
            }
            if !user.bytes().all(allowed) {
                return reject("user", 0, OsStr::new(user), Reason::Character);
            }
        }
        Ok(())
    }
}

/// Shows the program and how much there is of the rest: arguments, values and input may be secret.
impl fmt::Debug for ExecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSpec")
            .field("program", &self.argv.first())
            .field("arguments", &self.argv.len().saturating_sub(1))
            .field("env", &self.env.iter().map(|(key, _)| key).collect::<Vec<_>>())
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .field("stdin_bytes", &self.stdin.len())
            .field("timeout", &self.timeout)
            .field("max_output", &self.max_output)
            .finish()
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ExecStatus {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// It ran past its time and was killed.
    TimedOut,
}

impl ExecStatus {
    /// Whether it exited with 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The code a shell would show: the exit code, 128 + signal, or 124 for a timeout.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut => 124,
        }
    }
}

impl fmt::Display for ExecStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with {code}"),
            Self::Signaled(signal) => write!(f, "killed by signal {signal}"),
            Self::TimedOut => f.write_str("ran past its time"),
        }
    }
}

impl From<std::process::ExitStatus> for ExecStatus {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signaled(signal.unwrap_or(0)),
        }
    }
}

/// What a command left behind: a non-zero exit is data, not an error.
///
/// The result that a Go program has written, which exists only for success, is read as well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "crate::exec_wire::Either")]
#[non_exhaustive]
pub struct ExecOutput {
    /// How it ended.
    pub status: ExecStatus,
    /// What it wrote to its standard output, untouched.
    #[serde(with = "wire::bytes")]
    pub stdout: Bytes,
    /// What it wrote to its standard error, untouched.
    #[serde(with = "wire::bytes")]
    pub stderr: Bytes,
    /// Whether one of the two was longer than [`ExecSpec::max_output`].
    pub truncated: bool,
}

impl ExecOutput {
    /// An output with this status and nothing written.
    pub fn new(status: ExecStatus) -> Self {
        Self { status, stdout: Bytes::new(), stderr: Bytes::new(), truncated: false }
    }

    /// Sets the standard output.
    #[must_use]
    pub fn with_stdout(mut self, stdout: impl Into<Bytes>) -> Self {
        self.stdout = stdout.into();
        self
    }

    /// Sets the standard error.
    #[must_use]
    pub fn with_stderr(mut self, stderr: impl Into<Bytes>) -> Self {
        self.stderr = stderr.into();
        self
    }

    /// Says that something was dropped.
    #[must_use]
    pub fn with_truncated(mut self, truncated: bool) -> Self {
        self.truncated = truncated;
        self
    }

    /// This output if the command exited with 0.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Command`] with status and the tail of the standard error.
    pub fn success(self) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        Err(Error::new(ErrorKind::Command, "run a command in the node")
            .with_status(self.status)
            .with_stderr_tail(&self.stderr))
    }

    /// The standard output as text, without the newlines at its end; nothing else is trimmed.
    ///
    /// ```
    /// # use isolation::{ExecOutput, ExecStatus};
    /// let output = ExecOutput::new(ExecStatus::Exited(0)).with_stdout("a \r\n\n");
    /// assert_eq!(output.stdout_text(), "a \r");
    /// ```
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newlines_at_the_end_are_trimmed() {
        let table = [
            ("a\n\n", "a"),
            ("\n\n", ""),
            ("a \n", "a "),
            ("a\r\n", "a\r"),
            ("\na", "\na"),
            ("a\t\n", "a\t"),
            ("", ""),
        ];
        for (given, text) in table {
            assert_eq!(ExecOutput::new(ExecStatus::Exited(0)).with_stdout(given).stdout_text(), text, "{given:?}");
        }
    }

    #[test]
    fn rejected_commands() {
        let table = [
            (ExecSpec::new(Vec::<OsString>::new()), "argv", Reason::Empty),
            (ExecSpec::new([""]), "argv", Reason::Empty),
            (ExecSpec::new(["", "x"]), "argv", Reason::Empty),
            (ExecSpec::new(["a\0b"]), "argv", Reason::Nul),
            (ExecSpec::new(["a", "b\0"]), "argv", Reason::Nul),
            (ExecSpec::new(["a"]).with_env("", "x"), "env", Reason::Empty),
            (ExecSpec::new(["a"]).with_env("K=", "x"), "env", Reason::Character),
            (ExecSpec::new(["a"]).with_env("K", "\0"), "env", Reason::Nul),
            (ExecSpec::new(["a"]).with_user(""), "user", Reason::Empty),
            (ExecSpec::new(["a"]).with_env("K\0", "x"), "env", Reason::Nul),
            (ExecSpec::new(["a"]).with_user("a\0"), "user", Reason::Nul),
            (ExecSpec::new(["a"]).with_user("a\nb"), "user", Reason::Character),
            (ExecSpec::new(["a"]).with_user("a:b"), "user", Reason::Character),
            (ExecSpec::new(["a"]).with_user("-x"), "user", Reason::FirstCharacter),
            (ExecSpec::new(["a"]).with_user("a b"), "user", Reason::Character),
        ];
        for (spec, field, reason) in table {
            let error = spec.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!((error.field(), error.reason()), (Some(field), Some(reason)));
        }
        ExecSpec::new(["a", "", "-x", "--", "$HOME", "%n"]).validate().unwrap();
    }

    #[test]
    fn go_json_and_ours() {
        let spec: ExecSpec = serde_json::from_str(r#"{"Argv":["true","-x"]}"#).unwrap();
        assert_eq!(spec, ExecSpec::new(["true", "-x"]));
        let odd = OsStr::from_bytes(b"\xff").to_owned();
        let spec = ExecSpec::new([OsString::from("cat"), odd]).with_env("A", "b").with_stdin("in");
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ExecSpec>(&json).unwrap(), spec);
        assert!(serde_json::from_str::<ExecSpec>(r#"{"argv":["true"],"shell":true}"#).is_err());
        let output = ExecOutput::new(ExecStatus::Signaled(9)).with_stdout(&b"\xfe"[..]);
        let json = serde_json::to_string(&output).unwrap();
        assert_eq!(json, r#"{"status":{"signaled":9},"stdout":[254],"stderr":"","truncated":false}"#);
        assert_eq!(serde_json::from_str::<ExecOutput>(&json).unwrap(), output);
        let go: ExecOutput = serde_json::from_str(r#"{"Stdout":"ok"}"#).unwrap();
        assert_eq!(go, ExecOutput::new(ExecStatus::Exited(0)).with_stdout("ok"));
        for bad in [r#"{"stdout":"ok"}"#, "{}", r#"{"Stdout":"ok","Status":1}"#] {
            assert!(serde_json::from_str::<ExecOutput>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let spec = ExecSpec::new(["curl", "https://u:hunter2@x"]).with_env("TOKEN", "hunter2").with_stdin("hunter2");
        assert!(!format!("{spec:?}").contains("hunter2"));
    }

    #[test]
    fn success_keeps_status_and_tail() {
        let output = ExecOutput::new(ExecStatus::Exited(3)).with_stderr(vec![b'x'; 10_000]);
        let error = output.success().unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Command, Some(ExecStatus::Exited(3))));
        assert_eq!(error.stderr_tail().unwrap().len(), 4096);
    }
}
