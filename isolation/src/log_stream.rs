//! A log as it is read: bytes, and a verdict at the end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

use crate::process::Group;
use crate::{Cancel, Error, ErrorKind, ExecStatus, Redact, Result};

/// How much of a command's standard error an error tells.
const TAIL: usize = 4096;

/// How long a command may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(2);

/// How long `close` waits for a command that has closed its output and does not end.
const CLOSE: Duration = Duration::from_secs(10);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Finish = Box<dyn FnOnce(bool) -> BoxFuture<Result<()>> + Send>;

/// A log as it is read.
///
/// - Closing a log stream waits for its process, so a stream cut short never leaves a zombie.
/// - If the log ended by itself and its command failed, `close` fails, with the tail of what the command
///   wrote to its standard error.
/// - Stopping early, by closing or by cancelling, is not an error, whatever the exit status.
/// - Dropping a stream kills its process group; the runtime reaps.
///
/// `close` is bounded: a command gets two seconds after SIGTERM, then SIGKILL.
#[must_use = "a log stream has its verdict in `close`"]
pub struct LogStream {
    source: Source,
    cancelled: Option<BoxFuture<()>>,
    /// We ended it, before it did.
    stopped: bool,
    /// It ended.
    eof: bool,
}

enum Source {
    Process(Box<ProcessLog>),
    Reader(Pin<Box<dyn AsyncRead + Send>>, Option<Finish>),
}

struct ProcessLog {
    group: Group,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    tail: Tail,
    program: String,
    argv: Vec<String>,
}

/// Starts `command` and exposes its standard output.
///
/// The command leads a process group of its own, reads nothing, and its standard error is drained while
/// the log is read, so that a chatty one can't block.
///
/// # Errors
///
/// [`ErrorKind::CommandNotFound`] or [`ErrorKind::Transport`] if it can't be started.
pub fn start_log_stream(command: Command, redact: &Redact) -> Result<LogStream> {
    let std = command.as_std();
    let program = std.get_program().to_string_lossy().into_owned();
    let argv: Vec<_> = std.get_args().map(ToOwned::to_owned).collect();
    let argv = redact.argv(&argv);
    let mut group = Group::spawn(command, false, redact)?;
    let (_, stdout, stderr) = group.take_pipes();
    let log = ProcessLog { group, stdout, stderr, tail: Tail::default(), program, argv };
    Ok(LogStream { source: Source::Process(Box::new(log)), cancelled: None, stopped: false, eof: false })
}

impl LogStream {
    /// A log that is no process of ours. `finish` is told whether the log ended by itself and gives the
    /// verdict; it must not wait long.
    pub fn from_reader<F>(
        reader: impl AsyncRead + Send + 'static,
        finish: impl FnOnce(bool) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let finish: Finish = Box::new(move |ended| Box::pin(finish(ended)));
        Self { source: Source::Reader(Box::pin(reader), Some(finish)), cancelled: None, stopped: false, eof: false }
    }

    /// Ends the log early once `cancel` fires.
    pub fn with_cancel(mut self, cancel: &Cancel) -> Self {
        let cancel = cancel.clone();
        self.cancelled = Some(Box::pin(async move { cancel.cancelled().await }));
        self
    }

    /// Ends the log and gives the verdict.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Command`] if the log had ended by itself and its command failed; [`ErrorKind::Timeout`] if it had, and its verdict
    /// does not come within ten seconds.
    pub async fn close(mut self) -> Result<()> {
        match self.source {
            Source::Process(log) => log.close(self.eof, self.stopped).await,
            Source::Reader(reader, ref mut finish) => {
                drop(reader);
                let finish = finish.take().expect("only close takes it, and close takes the stream");
                let by_itself = self.eof && !self.stopped;
                match timeout(CLOSE, finish(by_itself)).await {
                    Ok(verdict) => verdict,
                    Err(_) if by_itself => Err(Error::timeout("close a log", CLOSE)),
                    // Stopping early is no error, whatever the other side does.
                    Err(_) => Ok(()),
                }
            }
        }
    }

    /// Reads to the end, at most `limit` bytes, and closes.
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close); [`ErrorKind::Io`] if reading fails.
    pub async fn read_all(mut self, limit: usize) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let bounded = (&mut self).take(limit as u64).read_to_end(&mut content).await;
        bounded.map_err(|cause| Error::new(ErrorKind::Io, "read a log").because(cause))?;
        self.close().await?;
        Ok(content)
    }
}

impl ProcessLog {
    async fn close(mut self: Box<Self>, eof: bool, stopped: bool) -> Result<()> {
        let by_itself = !stopped && (eof || self.group.has_exited());
        if !by_itself {
            drop(self.stdout.take());
            drop(self.stderr.take());
            self.group.stop(GRACE).await;
            return Ok(());
        }
        let Self { group, stderr, tail, .. } = &mut *self;
        let drained = async {
            if let Some(stderr) = stderr {
                let mut chunk = [0; TAIL];
                while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
                    tail.push(&chunk[..read]);
                }
            }
        };
        tokio::pin!(drained);
        let mut dry = false;
        let ended = timeout(CLOSE, async {
            loop {
                tokio::select! {
                    status = group.wait() => break status,
                    () = &mut drained, if !dry => dry = true,
                }
            }
        })
        .await;
        let Ok(status) = ended else {
            // It closed its output and lives on: we end it, so this is an early stop.
            self.group.stop(GRACE).await;
            return Ok(());
        };
        if !dry {
            // Somebody it started may hold the pipe.
            let _ = timeout(Duration::from_millis(500), drained).await;
        }
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(status)),
            Err(cause) => Err(Error::new(ErrorKind::Transport, "wait for a log's command").because(cause)),
        }
    }

    fn failed(&self, status: ExecStatus) -> Error {
        Error::new(ErrorKind::Command, "read a log")
            .with_program(&self.program, self.argv.clone())
            .with_status(status)
            .with_stderr_tail(&self.tail.0)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        // First what waits on standard error, a bounded number of pieces for one poll.
        let mut pieces = 0;
        while let Some(stderr) = &mut self.stderr {
            let mut chunk = [0; TAIL];
            let mut piece = ReadBuf::new(&mut chunk);
            match Pin::new(stderr).poll_read(cx, &mut piece) {
                Poll::Ready(Ok(())) if !piece.filled().is_empty() => self.tail.push(piece.filled()),
                Poll::Ready(_) => self.stderr = None,
                Poll::Pending => break,
            }
            pieces += 1;
            if pieces == 64 {
                cx.waker().wake_by_ref();
                break;
            }
        }
        match &mut self.stdout {
            Some(stdout) => Pin::new(stdout).poll_read(cx, buf),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for LogStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        if this.eof || this.stopped {
            return Poll::Ready(Ok(()));
        }
        if let Some(cancelled) = &mut this.cancelled
            && cancelled.as_mut().poll(cx).is_ready()
        {
            this.stopped = true;
            this.cancelled = None;
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = match &mut this.source {
            Source::Process(log) => log.poll_read(cx, buf),
            Source::Reader(reader, _) => reader.as_mut().poll_read(cx, buf),
        };
        if matches!(polled, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0 {
            this.eof = true;
        }
        polled
    }
}

impl fmt::Debug for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = match &self.source {
            Source::Process(log) => log.group.pid(),
            Source::Reader(..) => None,
        };
        f.debug_struct("LogStream").field("pid", &pid).field("ended", &self.eof).finish_non_exhaustive()
    }
}

/// The last bytes of what was pushed.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, more: &[u8]) {
        self.0.extend_from_slice(more);
        let over = self.0.len().saturating_sub(TAIL);
        self.0.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn sh(script: &str) -> LogStream {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        start_log_stream(command, &Redact::default()).unwrap()
    }

    fn children() -> usize {
        let me = std::process::id();
        let list = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap_or_default();
        list.split_whitespace().count()
    }

    #[tokio::test]
    async fn a_natural_end_has_a_verdict() {
        assert_eq!(sh("echo hello").read_all(100).await.unwrap(), b"hello\n");
        let error = sh("echo partial; echo 'no such machine' >&2; exit 1").read_all(100).await.unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Command, Some(ExecStatus::Exited(1))));
        assert!(error.stderr_tail().unwrap().contains("no such machine"));
    }

    #[tokio::test]
    async fn stopping_early_is_no_error() {
        let mut log = sh("while echo line; do :; done; exit 3");
        let mut some = [0; 100];
        assert!(log.read(&mut some).await.unwrap() > 0);
        let begun = Instant::now();
        log.close().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(4));

        let cancel = Cancel::new();
        let mut log = sh("trap 'exit 9' TERM; echo x; sleep 60 & wait").with_cancel(&cancel);
        assert!(log.read(&mut some).await.unwrap() > 0);
        cancel.cancel();
        assert_eq!(log.read(&mut some).await.unwrap(), 0);
        log.close().await.unwrap();
    }

    #[tokio::test]
    async fn who_ended_it_first_decides() {
        // It ended before anybody stopped it, though nobody has read so far.
        let log = sh("echo gone >&2; exit 4");
        let Source::Process(process) = &log.source else { panic!("a command's log") };
        timeout(Duration::from_secs(10), async {
            while !process.group.has_exited() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        let error = log.close().await.unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Command, Some(ExecStatus::Exited(4))));
        // Both: it was cancelled, and its command failed as well.
        let cancel = Cancel::new();
        let mut log = sh("echo x; exit 3").with_cancel(&cancel);
        assert_eq!(log.read_u8().await.unwrap(), b'x');
        cancel.cancel();
        assert_eq!(log.read(&mut [0; 8]).await.unwrap(), 0);
        log.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_chatty_standard_error_does_not_block() {
        let script = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo; echo end-of-stderr >&2; exit 2";
        let error = sh(script).read_all(100).await.unwrap_err();
        let tail = error.stderr_tail().unwrap();
        assert!(tail.len() <= TAIL && tail.trim_end().ends_with("end-of-stderr"));
    }

    #[tokio::test]
    async fn a_stubborn_command_is_killed_in_bounded_time() {
        let mut log = sh("trap '' TERM; echo x; while :; do sleep 1; done");
        log.read_u8().await.unwrap();
        let begun = Instant::now();
        log.close().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(6));
    }

    #[tokio::test]
    async fn dropping_leaves_nobody() {
        let before = children();
        for _ in 0..8 {
            let mut log = sh("echo x; sleep 60 & sleep 60");
            log.read_u8().await.unwrap();
            drop(log);
        }
        let begun = Instant::now();
        while children() > before && begun.elapsed() < Duration::from_secs(3) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(children() <= before + 2, "other tests may run a child or two");
    }

    #[tokio::test]
    async fn what_can_not_start_is_an_error_at_once() {
        let error = start_log_stream(Command::new("/no/such"), &Redact::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CommandNotFound);
    }

    #[tokio::test]
    async fn a_reader_gets_its_verdict_too() {
        let verdict =
            |ended: bool| async move { if ended { Err(Error::new(ErrorKind::Command, "read a log")) } else { Ok(()) } };
        assert!(LogStream::from_reader(&b"abc"[..], verdict).read_all(100).await.is_err());
        LogStream::from_reader(&b"abc"[..], verdict).close().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_that_never_comes_is_not_waited_for() {
        let never = |_| std::future::pending::<Result<()>>();
        LogStream::from_reader(&b"abc"[..], never).close().await.unwrap();
        let error = LogStream::from_reader(&b"abc"[..], never).read_all(100).await.unwrap_err();
        assert_eq!((error.kind(), error.after()), (ErrorKind::Timeout, Some(CLOSE)));
    }

    #[tokio::test]
    async fn a_log_without_an_end_is_read_as_far_as_asked_and_then_ended() {
        let endless = sh("yes; exit 3");
        assert_eq!(timeout(Duration::from_secs(20), endless.read_all(100_000)).await.unwrap().unwrap().len(), 100_000);
        let endless = LogStream::from_reader(tokio::io::repeat(b'x'), |ended| async move {
            if ended { Err(Error::new(ErrorKind::Command, "read a log")) } else { Ok(()) }
        });
        assert_eq!(endless.read_all(100_000).await.unwrap().len(), 100_000);
    }
}
