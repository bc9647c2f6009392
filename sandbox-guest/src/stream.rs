//! One open stream to a shell that serves requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use sandbox::{Effect, Env, Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::command::is_special;
use crate::config::GuestConfig;
use crate::files::answer::readable;
use crate::quote::{frame, push_word};
use crate::record::{Nonce, Record, Scanner};
use crate::{Carrier, CarrierStream, Closed, FarEnds, scripts};

/// The most that may come out of a shell before it says READY, or before a request begins: a start-up file's chatter.
pub(crate) const MAX_NOISE: usize = 1 << 20;

/// How long what a shell has printed may take to arrive once the shell is gone, and a second end record after the first.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// How much of a shell's last words is passed on, in bytes.
const LAST_WORDS: usize = 400;

/// The shell at the far end, told from a later process of the same pid by its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shell {
    pub(crate) pid: u32,
    pub(crate) start: u64,
}

/// One direction out of the sandbox.
pub(crate) struct Source {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    pub(crate) scanner: Scanner,
    pub(crate) ended: bool,
}

impl Source {
    pub(crate) fn new(reader: Pin<Box<dyn AsyncRead + Send>>, nonce: Nonce) -> Self {
        Self { reader, scanner: Scanner::new(nonce), ended: false }
    }

    /// Reads once into the scanner; 0 at the end. Cancel-safe.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        let n = self.reader.read_buf(self.scanner.room()).await;
        self.ended |= !matches!(n, Ok(n) if n > 0);
        n
    }

    /// Whether nothing has arrived and the other side is, as far as one can see, still there.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0u8; 1];
        let mut buf = tokio::io::ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        self.scanner.held() == 0 && self.reader.as_mut().poll_read(&mut cx, &mut buf).is_pending()
    }
}

/// Why bytes may not have arrived.
pub(crate) enum SendError {
    /// The carrier has not taken all of them.
    Write(io::Error),
    /// It has, and failed then: they may have arrived.
    Flush(io::Error),
}

impl SendError {
    pub(crate) fn into_inner(self) -> io::Error {
        let (Self::Write(error) | Self::Flush(error)) = self;
        error
    }
}

/// An open stream.
pub(crate) struct Stream {
    pub(crate) stdin: Pin<Box<dyn AsyncWrite + Send>>,
    pub(crate) out: Source,
    pub(crate) err: Source,
    pub(crate) closed: Option<BoxFuture<'static, Closed>>,
    pub(crate) shell: Shell,
    pub(crate) reopen: bool,
    pub(crate) idle_since: Instant,
    /// What the shell was given beyond the agent.
    pub(crate) parts: Vec<scripts::Part>,
}

impl Stream {
    /// Opens a stream and waits for its READY, until `deadline`.
    pub(crate) async fn open(
        carrier: &Arc<dyn Carrier>,
        config: &GuestConfig,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let opening = async {
            let CarrierStream { stdin, stdout, stderr, closed } = carrier.open().await?;
            let nonce = Nonce::new();
            let mut stream = Self {
                stdin,
                out: Source::new(stdout, nonce),
                err: Source::new(stderr, nonce),
                closed: Some(closed),
                shell: Shell { pid: 0, start: 0 },
                reopen: carrier.far_ends() == FarEnds::Pipes,
                idle_since: Instant::now(),
                parts: Vec::new(),
            };
            if let Err(e) = stream.send(&bootstrap(nonce, &config.env)).await {
                // A program that is no shell may be gone before it was told a word: how it went says more than the pipe.
                return Err(stream.gone("its shell took no script").await.caused_by(e.into_inner()));
            }
            let ready = stream.await_record(b'R').await?;
            stream.shell = parse_ready(&ready.payload)?;
            stream.err.scanner.next(|_| ())?;
            Ok(stream)
        };
        timeout_at(deadline, opening).await.unwrap_or_else(|_| Err(late("no shell was ready", config.begin_timeout)))
    }

    /// Writes bytes whole.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.stdin.write_all(bytes).await.map_err(SendError::Write)?;
        self.stdin.flush().await.map_err(SendError::Flush)
    }

    /// Waits for the next record on standard output; what comes before it is noise. The caller sets the deadline.
    pub(crate) async fn await_record(&mut self, kind: u8) -> Result<Record, Error> {
        let mut noise = 0;
        loop {
            if let Some(record) = self.out.scanner.next(|bytes| noise += bytes.len())? {
                if record.kind == kind {
                    return Ok(record);
                }
                return Err(Error::new(ErrorKind::Protocol).because("a record of an unexpected kind"));
            }
            if noise > MAX_NOISE {
                return Err(Error::new(ErrorKind::Protocol).because("endless output before the first record"));
            }
            tokio::select! {
                n = self.out.fill() => if n.map_err(|e| lost("its output broke").caused_by(e))? == 0 {
                    return Err(self.gone("its output ended").await);
                },
                n = self.err.fill(), if !self.err.ended => {
                    // Only kept: what it is, its own reader says.
                    n.map_err(|e| lost("its standard error broke").caused_by(e))?;
                    if self.err.scanner.held() > MAX_NOISE {
                        return Err(Error::new(ErrorKind::Protocol).because("endless output before the first record"));
                    }
                }
            }
        }
    }

    /// The error of a shell that is gone: how it went, or `otherwise` where nobody says, and its last words.
    async fn gone(&mut self, otherwise: &str) -> Error {
        let closed = timeout(Duration::from_secs(1), wait_closed(&mut self.closed)).await;
        let detail = closed.map_or_else(|_| String::from(otherwise), |c| c.detail);
        lost(detail + &self.last_words().await)
    }

    /// What stands on standard error of a shell that is gone, to be put behind how it went.
    async fn last_words(&mut self) -> String {
        let mut said = Vec::new();
        while said.len() < LAST_WORDS && self.err.scanner.next(|bytes| said.extend_from_slice(bytes)).is_ok() {
            match timeout(Duration::from_millis(100), self.err.fill()).await {
                Ok(Ok(n)) if n > 0 => {}
                _ => break,
            }
        }
        said.extend_from_slice(&self.err.scanner.rest());
        said.truncate(LAST_WORDS);
        let said = readable(&said);
        if said.is_empty() { said } else { format!(": {said}") }
    }

    /// Whether it can serve another request, as far as one can see without asking.
    pub(crate) fn is_healthy(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let open = match &mut self.closed {
            Some(closed) => matches!(closed.as_mut().poll(&mut cx), Poll::Pending),
            None => false,
        };
        open && self.out.is_quiet() && self.err.is_quiet()
    }
}

/// Resolves when the shell is gone; then never again. Cancel-safe.
pub(crate) async fn wait_closed(closed: &mut Option<BoxFuture<'static, Closed>>) -> Closed {
    match closed {
        Some(future) => {
            let report = future.await;
            *closed = None;
            report
        }
        None => std::future::pending().await,
    }
}

/// The error of what had not begun by the deadline of its call.
pub(crate) fn late(what: &str, patience: Duration) -> Error {
    Error::new(ErrorKind::DeadlineExceeded).because(format!("{what} within {patience:?}"))
}

pub(crate) fn lost(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Lost).with_effect(Effect::Unknown).because(reason)
}

/// How many streams may still turn out dead under one request before it was sent whole: every idle one can, and one more is fresh.
pub(crate) struct Tries(usize);

impl Tries {
    pub(crate) fn new(config: &GuestConfig) -> Self {
        Self(config.max_streams + 1)
    }

    /// One turned out dead, by `cause`; fails if there have been enough of them.
    pub(crate) fn another(&mut self, cause: io::Error) -> Result<(), Error> {
        self.0 -= 1;
        if self.0 > 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lost).because("every stream broke before the request was sent").caused_by(cause))
    }
}

/// The first bytes of a stream: the script, length first, then the sandbox's variables.
fn bootstrap(nonce: Nonce, env: &Env) -> Vec<u8> {
    let mut script = scripts::agent().as_bytes().to_vec();
    script.extend_from_slice(format!("__sbx_main {}\n", nonce.as_str()).as_bytes());
    let mut text = format!("IFS= LC_ALL=C read -r -N {} __sbx_n && eval \"$__sbx_n\"\n", script.len()).into_bytes();
    text.append(&mut script);
    if !env.is_empty() {
        text.extend(frame(&setup(env)));
    }
    text
}

/// The request that gives a shell the sandbox's variables.
fn setup(env: &Env) -> Vec<u8> {
    let mut text = Vec::new();
    let (special, plain): (Vec<_>, Vec<_>) = env.iter().partition(|(name, _)| is_special(name));
    let mut words = |head: &[u8], vars: &[(&str, &bytes::Bytes)], tail: &[u8]| {
        text.extend_from_slice(head);
        for (name, value) in vars {
            push_word(&mut text, &[name.as_bytes(), b"=", value].concat());
        }
        text.extend_from_slice(tail);
    };
    if !plain.is_empty() {
        words(b"export", &plain, b"\n");
    }
    words(b"__sbx_slow+=(", &special, b")");
    text
}

fn parse_ready(payload: &[u8]) -> Result<Shell, Error> {
    let text = std::str::from_utf8(payload).unwrap_or_default();
    let mut fields = text.split(' ');
    let pid = fields.next().and_then(|f| f.parse().ok()).filter(|pid| *pid > 0);
    let start = fields.next().and_then(|f| f.parse().ok());
    match (pid, start, fields.next()) {
        (Some(pid), Some(start), None) => Ok(Shell { pid, start }),
        _ => Err(Error::new(ErrorKind::Protocol).because("a READY that names no shell; is /proc mounted?")),
    }
}
