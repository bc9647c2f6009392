//! Other programs: always with a deadline, a closed stdin and a process group of their own.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use crate::error::{Context as _, Error, Result};
use crate::stop;

/// How long a stopped child may take to go by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long output may trickle in after the child itself is gone (a grandchild may hold the pipe for ever).
const TRICKLE: Duration = Duration::from_secs(2);

/// A program about to run.
#[derive(Debug)]
pub(crate) struct Task {
    command: Command,
    name: String,
    limit: Duration,
    tear_down: bool,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    name: String,
    status: Option<ExitStatus>,
    limit: Duration,
}

/// Everything a program printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) ended: Ended,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

enum Event {
    Line(Stream, String),
    Closed,
    Ended(std::io::Result<ExitStatus>),
}

impl Task {
    pub(crate) fn new(program: impl AsRef<OsStr>, limit: Duration) -> Self {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        // An ordinary user's PATH need not have the system's tools.
        let system = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).join(program)).into_iter().find(|at| at.is_file());
        let found = system.filter(|_| !program.as_encoded_bytes().contains(&b'/') && !in_search_path(program));
        let mut command = Command::new(found.as_deref().map_or(program, Path::as_os_str));
        // What `cargo run` says about this crate must not reach the programs that we start.
        for (key, _) in std::env::vars_os() {
            let key_text = key.to_string_lossy();
            if key_text.starts_with("CARGO_PKG_") || key_text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&key);
            }
        }
        Self { command, name, limit, tear_down: false }
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Starts from an empty environment.
    pub(crate) fn env_clear(mut self) -> Self {
        self.command.env_clear();
        self
    }

    pub(crate) fn current_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// What to call it in messages, instead of the program's file name.
    pub(crate) fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Runs even after the user asked to stop.
    #[allow(dead_code)]
    pub(crate) fn tear_down(mut self) -> Self {
        self.tear_down = true;
        self
    }

    /// Runs it and hands each line to `each` as it comes.
    pub(crate) fn lines(mut self, mut each: impl FnMut(Stream, &str)) -> Result<Ended> {
        if stop::requested() && !self.tear_down {
            return Err(Error::new("stopped"));
        }
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .doing(|| format!("run {}", self.name))?;
        let group = stop::Group::of(child.id());
        let (events, inbox) = mpsc::sync_channel(256);
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        read_lines(Stream::Out, stdout, events.clone());
        read_lines(Stream::Err, stderr, events.clone());
        std::thread::spawn(move || events.send(Event::Ended(child.wait())));

        let mut deadline = Instant::now() + self.limit;
        let (mut status, mut open, mut stopping, mut late) = (None, 2, false, false);
        while status.is_none() || open > 0 {
            if stop::requested() && !self.tear_down && !stopping {
                stopping = true;
                deadline = deadline.min(Instant::now() + GRACE);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match inbox.recv_timeout(left.min(Duration::from_millis(500))) {
                Ok(Event::Line(stream, line)) => each(stream, &line),
                Ok(Event::Closed) => open -= 1,
                Ok(Event::Ended(ended)) => {
                    status = Some(ended.doing(|| format!("wait for {}", self.name))?);
                    deadline = Instant::now() + TRICKLE;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) if status.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {
                    late = true;
                    group.kill();
                    deadline = Instant::now() + TRICKLE;
                }
            }
        }
        if stopping || late {
            group.kill();
        }
        if stopping {
            return Err(Error::new("stopped"));
        }
        Ok(Ended { name: self.name, status: status.filter(|_| !late), limit: self.limit })
    }

    /// Runs it and passes its output on.
    pub(crate) fn show(self) -> Result<Ended> {
        self.lines(|stream, line| match stream {
            Stream::Out => println!("{line}"),
            Stream::Err => eprintln!("{line}"),
        })
    }

    /// Runs it quietly and keeps its output; every line ends with a newline, also a last one that had none.
    pub(crate) fn capture(self) -> Result<Captured> {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let ended = self.lines(|stream, line| {
            let text = if stream == Stream::Out { &mut stdout } else { &mut stderr };
            text.push_str(line);
            text.push('\n');
        })?;
        Ok(Captured { ended, stdout, stderr })
    }

    /// Runs it quietly; its stdout if it succeeded, else an error with the end of its stderr.
    pub(crate) fn stdout(self) -> Result<String> {
        let captured = self.capture()?;
        if captured.ended.success() {
            return Ok(captured.stdout);
        }
        Err(Error::new(format!("{}\n{}", captured.ended, tail(&captured.stderr, 20))))
    }
}

impl Ended {
    /// The exit code; `None` if it was killed or ran out of time.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// An error unless it succeeded.
    pub(crate) fn ok(self) -> Result<()> {
        if self.success() { Ok(()) } else { Err(Error::new(self.to_string())) }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => write!(f, "{}: {status}", self.name),
            None => write!(f, "{}: killed after {} s", self.name, self.limit.as_secs()),
        }
    }
}

/// The last `count` lines of a text.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Whether a program of that name is in PATH or where system tools live.
pub(crate) fn in_path(program: &str) -> bool {
    in_search_path(program) || ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).is_file())
}

fn in_search_path(program: impl AsRef<OsStr>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program.as_ref()).is_file())
}

fn read_lines(stream: Stream, from: impl Read + Send + 'static, to: SyncSender<Event>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            if to.send(Event::Line(stream, text)).is_err() {
                return;
            }
            line.clear();
        }
        let _ = to.send(Event::Closed);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Task {
        Task::new("/bin/sh", limit).args(["-c", script])
    }

    #[test]
    fn output_and_status_are_kept_apart() {
        let got = sh("echo out; echo err >&2; exit 3", Duration::from_secs(10)).capture().unwrap();
        assert_eq!((got.stdout.as_str(), got.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(got.ended.to_string(), "sh: exit status: 3");
    }

    #[test]
    fn a_program_over_its_limit_is_killed_with_its_children() {
        let started = Instant::now();
        let got = sh("sleep 60 & sleep 60", Duration::from_millis(200)).capture().unwrap();
        assert!(!got.ended.success());
        assert!(got.ended.to_string().contains("killed after"), "{}", got.ended);
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_grandchild_that_holds_the_pipe_does_not_hold_us() {
        let started = Instant::now();
        let got = sh("sleep 6 & echo gone", Duration::from_secs(30)).capture().unwrap();
        assert!(got.ended.success());
        assert_eq!(got.stdout, "gone\n");
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn stdin_is_closed() {
        assert_eq!(sh("cat; echo end", Duration::from_secs(10)).stdout().unwrap(), "end\n");
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
