//! Programs of this host: started in a group of their own, bounded in time and output, never left behind.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

use crate::{Error, ErrorKind, ExecOutput, ExecStatus, Redact, Result};

/// How long output is still collected after the command ended, if somebody it started holds the pipe.
pub(crate) const LATE_OUTPUT: Duration = Duration::from_millis(500);

/// How long a killed command may take to go.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// A child that leads a process group. Dropped before it was reaped, the whole group is killed and the
/// runtime reaps the leader.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    pid: Option<Pid>,
}

impl Group {
    /// Starts `command` with piped output, and piped input if it wants any.
    pub(crate) fn spawn(mut command: Command, stdin: bool, redact: &Redact) -> Result<Self> {
        command
            .stdin(if stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(|cause| spawn_error(&command, redact, cause))?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, pid })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// Whether the leader has ended. It stays a zombie, so that its id still means it.
    pub(crate) fn has_exited(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match self.pid {
            Some(pid) => !matches!(waitid(WaitId::Pid(pid), options), Ok(None)),
            None => true,
        }
    }

    /// Signals everyone in the group. Only before the leader is reaped: afterwards the id may be a stranger's.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Waits for the leader.
    pub(crate) async fn wait(&mut self) -> std::io::Result<ExecStatus> {
        let status = self.child.wait().await?;
        self.pid = None;
        Ok(status.into())
    }

    /// Asks the group to end, and after `grace` ends it. Bounded.
    pub(crate) async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        let _ = timeout(grace, async {
            while !self.has_exited() {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        self.signal(Signal::KILL);
        let _ = timeout(KILL_WAIT, self.wait()).await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn spawn_error(command: &Command, redact: &Redact, cause: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let std = command.as_std();
    // Of a working directory that is none the system says that the program is not there.
    if let Some(cwd) = std.get_current_dir().filter(|cwd| !cwd.is_dir()) {
        return Error::new(ErrorKind::InvalidInput, "enter the working directory").with_path(cwd).because(cause);
    }
    let missing = matches!(cause.kind(), Io::NotFound | Io::PermissionDenied | Io::IsADirectory | Io::NotADirectory)
        || cause.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
    let kind = if missing { ErrorKind::CommandNotFound } else { ErrorKind::Transport };
    let argv: Vec<OsString> = std.get_args().map(ToOwned::to_owned).collect();
    Error::new(kind, "start a program")
        .with_program(std.get_program().to_string_lossy(), redact.argv(&argv))
        .because(cause)
}

/// Runs `command` to its end: at most `limit` long, at most `max_output` bytes of each output kept, the
/// rest read and dropped. Dropping the future kills the group.
pub(crate) async fn run(
    command: Command,
    stdin: Bytes,
    limit: Option<Duration>,
    max_output: usize,
    redact: &Redact,
) -> Result<ExecOutput> {
    let mut group = Group::spawn(command, !stdin.is_empty(), redact)?;
    let (pipe_in, pipe_out, pipe_err) = group.take_pipes();
    let (mut stdout, mut stderr) = (Capture::new(max_output), Capture::new(max_output));
    let status = {
        let feed = async {
            if let Some(mut pipe) = pipe_in {
                // A command that does not read its input is no failure.
                let _ = pipe.write_all(&stdin).await;
            }
            std::future::pending::<()>().await;
        };
        let collect = async {
            tokio::join!(stdout.fill(pipe_out), stderr.fill(pipe_err));
        };
        tokio::pin!(feed, collect);
        let mut collected = false;
        let end = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(end);
        let status = loop {
            tokio::select! {
                status = group.wait() => break Some(status.map_err(|e| Error::new(ErrorKind::Transport, "wait for a program").because(e))?),
                () = &mut collect, if !collected => collected = true,
                () = &mut feed => {}
                () = &mut end => break None,
            }
        };
        let status = match status {
            Some(status) => status,
            None => {
                group.stop(Duration::from_millis(500)).await;
                ExecStatus::TimedOut
            }
        };
        if !collected {
            let _ = timeout(LATE_OUTPUT, collect).await;
        }
        status
    };
    let truncated = stdout.truncated || stderr.truncated;
    Ok(ExecOutput::new(status)
        .with_stdout(stdout.kept.freeze())
        .with_stderr(stderr.kept.freeze())
        .with_truncated(truncated))
}

/// The beginning of an output; what does not fit is counted as dropped.
struct Capture {
    kept: BytesMut,
    limit: usize,
    truncated: bool,
}

impl Capture {
    fn new(limit: usize) -> Self {
        Self { kept: BytesMut::new(), limit, truncated: false }
    }

    async fn fill(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut chunk = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = pipe.read(&mut chunk).await {
            let room = self.limit.saturating_sub(self.kept.len()).min(read);
            self.kept.extend_from_slice(&chunk[..room]);
            self.truncated |= room < read;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    async fn run_sh(script: &str, limit: Option<Duration>, max: usize) -> ExecOutput {
        run(sh(script), Bytes::new(), limit, max, &Redact::default()).await.unwrap()
    }

    #[tokio::test]
    async fn status_and_output_are_data() {
        let output = run_sh("echo out; echo err >&2; exit 7", None, 100).await;
        assert_eq!(output.status, ExecStatus::Exited(7));
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(run_sh("kill -SEGV $$", None, 100).await.status, ExecStatus::Signaled(11));
    }

    #[tokio::test]
    async fn big_output_is_drained_and_cut() {
        let script = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2";
        let output = run_sh(script, None, 1000).await;
        assert_eq!((output.stdout.len(), output.stderr.len(), output.truncated), (1000, 1000, true));
        assert_eq!(output.status, ExecStatus::Exited(0));
    }

    #[tokio::test]
    async fn a_working_directory_that_is_none_is_named() {
        for cwd in ["/no/such/directory", "/etc/passwd"] {
            let mut command = sh("true");
            command.current_dir(cwd);
            let error = run(command, Bytes::new(), None, 10, &Redact::default()).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::InvalidInput, crate::Effect::None), "{error}");
            assert_eq!(error.path(), Some(std::path::Path::new(cwd)));
        }
    }

    /// Zombies do not count: whoever inherits them reaps them in his own time.
    fn living_in_group(leader: &str) -> usize {
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats
            .filter_map(|stat| {
                let mut fields = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned);
                Some((fields.next()?, fields.nth(1)?))
            })
            .filter(|(state, group)| state != "Z" && group == leader)
            .count()
    }

    #[tokio::test]
    async fn the_limit_kills_the_whole_group() {
        let begun = Instant::now();
        let script = "trap '' TERM; echo $$; sleep 60 & sleep 60";
        let output = run_sh(script, Some(Duration::from_millis(200)), 1000).await;
        assert_eq!(output.status, ExecStatus::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(3));
        let leader = output.stdout_text();
        assert_eq!(living_in_group(leader.trim()), 0, "somebody of the group is left");
    }

    #[tokio::test]
    async fn a_background_child_does_not_hold_the_result() {
        let begun = Instant::now();
        let output = run_sh("sleep 5 & echo started", None, 1000).await;
        assert_eq!(output.stdout_text(), "started");
        assert!(begun.elapsed() < Duration::from_secs(3));
    }

    #[tokio::test]
    async fn what_is_no_program_is_not_found() {
        for program in ["/no/such/program", "/etc/passwd", "/etc"] {
            let error = run(Command::new(program), Bytes::new(), None, 10, &Redact::default()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::CommandNotFound, "{program}");
            assert_eq!(error.program(), Some(program));
        }
    }
}
