//! A command that one can talk to while it runs.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::unfold;
use sandbox::{ByteStream, Effect, Error, ErrorKind, Exit, Process, ProcessControl, SandboxPath, Signal, SpawnRequest};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::watch::{self, Receiver};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::Carrier;
use crate::clock::{KILLED, LimitClock};
use crate::control::Who;
use crate::exec::{LONGEST_DRAIN, NOT_STARTED};
use crate::guest::{Inner, explain};
use crate::pool::lock;
use crate::record::Nonce;
use crate::running::{End, Running, Start};
use crate::stream::{DRAIN, Source, Stream, lost, wait_closed};

/// What may wait for the command to read it, and how much goes into one frame.
const INPUT: usize = 64 * 1024;
/// Pieces of output that may wait for their reader, each of at most a read.
const PIECES: usize = 4;
/// How much of a command's output may still arrive after its verdict: more than any way into a sandbox holds.
const LARGEST_REST: usize = 16 << 20;
/// How long a signal may take.
const SIGNAL_TIME: Duration = Duration::from_secs(15);

/// Starts a command and everything that looks after it.
pub(crate) async fn spawn(guest: &Inner, request: &SpawnRequest) -> Result<Process, Error> {
    let marker = guest.marker(request.limit);
    let workdir = request.workdir.clone().unwrap_or_else(|| guest.config.workdir.clone());
    let start = Start {
        command: &request.command,
        env: &request.env,
        workdir: &workdir,
        marker: &marker,
        input: request.stdin,
    };
    let mut running = Running::start(guest, &start).await?;
    let end = running.end;
    let (stdin, out, err, closed) = {
        let Stream { stdin, out, err, closed, .. } = &mut running.lease().stream;
        let nothing = || Source::new(Box::pin(tokio::io::empty()), end);
        let idle: Pin<Box<dyn AsyncWrite + Send>> = Box::pin(tokio::io::sink());
        (
            std::mem::replace(stdin, idle),
            std::mem::replace(out, nothing()),
            std::mem::replace(err, nothing()),
            closed.take(),
        )
    };
    let mut tasks = JoinSet::new();
    let (near, far) = request.stdin.then(|| tokio::io::duplex(INPUT)).unzip();
    let exit = watch::channel(None);
    tasks.spawn(feed(far, stdin, exit.1.clone()));
    let (out_end, err_end) = (watch::channel(None), watch::channel(None));
    // Standard output has begun; on standard error the begin record is still to come.
    let carrier = &guest.carrier;
    let pump = |source, before, ended| {
        let (sender, receiver) = mpsc::channel(PIECES);
        let pump = Pump { carrier: Arc::clone(carrier), source, end, before, sender, verdict: exit.1.clone() };
        (pump.run(ended), output(receiver))
    };
    let (out, stdout) = pump(out, false, out_end.0);
    let (err, stderr) = pump(err, true, err_end.0);
    tasks.spawn(out);
    tasks.spawn(err);
    let running = Arc::new(Mutex::new(Some(running)));
    let clock = {
        let guard = lock(&running);
        let begun = guard.as_ref().map_or_else(Instant::now, |r| r.begun);
        LimitClock::new(begun, request.limit, Duration::ZERO)
    };
    let supervisor =
        Supervisor { clock, running: Arc::clone(&running), workdir, closed, out: out_end.1, err: err_end.1 };
    let carrier = Arc::clone(carrier);
    tasks.spawn(async move {
        let result = match supervisor.run().await {
            Err(error) => Err(explain(&*carrier, error).await),
            ended => ended,
        };
        let _ = exit.0.send(Some(result));
    });
    let control = GuestProcess { running, signals: Arc::new(Semaphore::new(1)), exit: exit.1, _tasks: tasks };
    Ok(Process::new(
        near.map(|near| Box::pin(near) as Pin<Box<dyn AsyncWrite + Send>>),
        stdout,
        stderr,
        Box::new(control),
    ))
}

/// The verdict on the command, once there is one.
type Verdict = Option<Result<Exit, Error>>;

/// Passes on what is written for the command, in frames, and the end of it, until the verdict. Also without input the way in stays open
/// for as long: a shell that reads its end stops.
async fn feed(source: Option<DuplexStream>, stdin: Pin<Box<dyn AsyncWrite + Send>>, mut verdict: Receiver<Verdict>) {
    // At the end `source` is dropped, which tells the writer.
    tokio::select! {
        _ = verdict.wait_for(Option::is_some) => {}
        never = pass_on(source, stdin) => match never {},
    }
}

async fn pass_on(source: Option<DuplexStream>, mut stdin: Pin<Box<dyn AsyncWrite + Send>>) -> Infallible {
    if let Some(mut source) = source {
        let mut piece = vec![0; INPUT];
        loop {
            let n = source.read(&mut piece).await.unwrap_or(0);
            let mut frame = format!("{n}\n").into_bytes();
            frame.extend_from_slice(&piece[..n]);
            if stdin.write_all(&frame).await.is_err() || stdin.flush().await.is_err() {
                // Dropping `source` tells the writer.
                break;
            }
            if n == 0 {
                break;
            }
        }
    }
    std::future::pending().await
}

/// How a stream of output ended, once it has.
type Ended = Option<Result<End, Error>>;

/// A piece of output, `None` at its proven end, or what kept it from being whole.
type Item = Result<Option<Bytes>, Error>;

/// The reader's side of a stream of output.
fn output(receiver: mpsc::Receiver<Item>) -> ByteStream {
    ByteStream::new(unfold(receiver, |mut receiver| async {
        let item = match receiver.recv().await {
            Some(Ok(None)) => return None,
            Some(Ok(Some(piece))) => Ok(piece),
            Some(Err(error)) => Err(error),
            None => Err(lost("its process was dropped before the output ended")),
        };
        Some((item, receiver))
    }))
}

/// Passes on what the command prints until its end record. A reader that went away is no reason to stop; a verdict is, a moment later.
struct Pump {
    carrier: Arc<dyn Carrier>,
    source: Source,
    end: Nonce,
    /// The begin record is still to come.
    before: bool,
    sender: mpsc::Sender<Item>,
    verdict: Receiver<Verdict>,
}

impl Pump {
    async fn run(mut self, ended: watch::Sender<Ended>) {
        let end = self.follow().await;
        // First of all, since an item waits for its reader.
        let _ = ended.send(Some(end.clone()));
        let last = match end {
            Ok(_) => Ok(None),
            Err(error) => Err(explain(&*self.carrier, error).await),
        };
        let _ = self.sender.send(last).await;
    }

    async fn follow(&mut self) -> Result<End, Error> {
        if !self.before {
            self.source.scanner.expect(self.end);
        }
        let mut rest = Rest::default();
        loop {
            let mut pieces = Vec::new();
            let next = self.source.scanner.next(|bytes| pieces.push(Bytes::copy_from_slice(bytes)));
            let record = next.map_err(|e| e.with_effect(Effect::Unknown))?;
            if self.before {
                if record.is_some() {
                    self.before = false;
                    self.source.scanner.expect(self.end);
                    continue;
                }
            } else {
                for piece in pieces {
                    let _ = self.sender.send(Ok(Some(piece))).await;
                }
                if let Some(record) = record {
                    return End::parse(&record);
                }
            }
            match rest.fill(&mut self.source, &mut self.verdict).await {
                Some(Ok(n)) if n > 0 => {}
                Some(_) => return Err(lost("its output ended before the command did")),
                None => return Err(self.cut_off()),
            }
        }
    }

    /// The error of output whose end never came, though the command has its verdict.
    fn cut_off(&self) -> Error {
        match &*self.verdict.borrow() {
            Some(Err(error)) => error.clone(),
            Some(Ok(exit)) if exit.timed_out => lost("the command timed out, and some of its output may be missing"),
            _ => lost("the command ended, and some of its output may be missing"),
        }
    }
}

/// What may still come of a stream once the command has its verdict: whoever holds it open must not hold its reader up. The time for which
/// the reader keeps it waiting is the reader's own.
struct Rest {
    time: Duration,
    bytes: usize,
}

impl Default for Rest {
    fn default() -> Self {
        Self { time: LONGEST_DRAIN, bytes: LARGEST_REST }
    }
}

impl Rest {
    /// Reads once; `None` if that is enough.
    async fn fill(&mut self, source: &mut Source, verdict: &mut Receiver<Verdict>) -> Option<io::Result<usize>> {
        tokio::select! {
            biased;
            _ = verdict.wait_for(Option::is_some) => {}
            n = source.fill() => return Some(n),
        }
        let begun = Instant::now();
        let n = timeout(self.time.min(DRAIN), source.fill()).await.ok()?;
        self.time = self.time.saturating_sub(begun.elapsed());
        self.bytes = self.bytes.saturating_sub(*n.as_ref().unwrap_or(&0));
        (!self.time.is_zero() && self.bytes > 0).then_some(n)
    }
}

/// Waits for the end, and sees to the limit.
struct Supervisor {
    clock: LimitClock,
    running: Arc<Mutex<Option<Running>>>,
    workdir: SandboxPath,
    closed: Option<futures::future::BoxFuture<'static, crate::Closed>>,
    out: watch::Receiver<Ended>,
    err: watch::Receiver<Ended>,
}

impl Supervisor {
    async fn run(mut self) -> Result<Exit, Error> {
        let mut drained = None;
        loop {
            let (out, err) = (self.out.borrow().clone(), self.err.borrow().clone());
            // Only now: an end that was seen after this moment is not judged by an earlier one.
            let now = Instant::now();
            if let (Some(out), Some(_)) = (&out, &err) {
                let code = out.clone()?.code(&self.workdir);
                if let Some(timed_out) = self.clock.verdict(*code.as_ref().unwrap_or(&NOT_STARTED), now) {
                    // It ended by itself: nothing to kill. The stream is not used again.
                    let running = lock(&self.running).take();
                    if let Some(running) = running {
                        running.forget();
                    }
                    return match code {
                        _ if timed_out => Ok(Exit::new(KILLED, true)),
                        Ok(code) => Ok(Exit::new(code, false)),
                        Err(e) if self.clock.has_signalled() => Err(e.with_effect(Effect::Unknown)),
                        Err(e) => Err(e),
                    };
                }
            }
            if self.clock.is_over(now) {
                drop(lock(&self.running).take());
                return Ok(Exit::new(KILLED, true));
            }
            if drained.is_some_and(|at| now >= at) {
                drop(lock(&self.running).take());
                return Err(Error::new(ErrorKind::Lost)
                    .with_effect(Effect::Unknown)
                    .because("the shell that ran the command is gone, or one of its streams"));
            }
            // A stream that broke says nothing of the other.
            if matches!((&out, &err), (Some(Err(_)), None) | (None, Some(Err(_)))) {
                drained.get_or_insert(now + DRAIN);
            }
            if let Some(running) = &*lock(&self.running) {
                self.clock.tick(now, |signal, who| running.signal(signal, who));
            }
            let next = self.clock.next().into_iter().chain(drained).min();
            tokio::select! {
                _ = self.out.changed(), if out.is_none() => {}
                _ = self.err.changed(), if err.is_none() => {}
                _ = wait_closed(&mut self.closed) => { drained.get_or_insert(now + DRAIN); }
                () = self.clock.hear() => {}
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }
}

/// The far end of a [`Process`]. Dropping it ends its tasks, and kills the command unless it ended.
struct GuestProcess {
    running: Arc<Mutex<Option<Running>>>,
    /// The turn of a signal.
    signals: Arc<Semaphore>,
    exit: Receiver<Verdict>,
    _tasks: JoinSet<()>,
}

impl fmt::Debug for GuestProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestProcess").finish_non_exhaustive()
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        drop(lock(&self.running).take());
    }
}

#[async_trait]
impl ProcessControl for GuestProcess {
    async fn signal(&self, signal: Signal) -> Result<(), Error> {
        let answered = async {
            // One after the other, so that no more than one of them waits to be carried out.
            let turn = Arc::clone(&self.signals).acquire_owned().await.ok()?;
            let answer = {
                let running = lock(&self.running);
                let Some(running) = running.as_ref() else { return Some(()) };
                let who = if signal == Signal::Kill { Who::All } else { Who::Group };
                running.signal_in_turn(signal.name(), who, turn)
            };
            answer.await.ok().map(drop)
        };
        match timeout(SIGNAL_TIME, answered).await {
            Ok(Some(())) => Ok(()),
            _ => Err(Error::new(ErrorKind::Lost).with_effect(Effect::Unknown).because("the signal was not confirmed")),
        }
    }

    async fn wait(&mut self) -> Result<Exit, Error> {
        let ended = self.exit.wait_for(Option::is_some).await;
        let ended = ended.map_err(|_| Error::new(ErrorKind::Lost).because("the runtime that looked after it ended"))?;
        ended.clone().unwrap_or_else(|| Err(Error::new(ErrorKind::Other).because("an end that is none")))
    }
}
