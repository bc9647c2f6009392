//! A command that one can talk to while it runs.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::unfold;
use sandbox::{ByteStream, Effect, Error, ErrorKind, Exit, Process, ProcessControl, SandboxPath, Signal, SpawnRequest};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::Carrier;
use crate::clock::{KILLED, LimitClock};
use crate::control::Who;
use crate::exec::NOT_STARTED;
use crate::guest::{Inner, explain};
use crate::pool::lock;
use crate::record::Nonce;
use crate::running::{End, Running, Start};
use crate::stream::{DRAIN, Source, Stream, wait_closed};

/// What may wait for the command to read it, and how much goes into one frame.
const INPUT: usize = 64 * 1024;
/// Pieces of output that may wait for their reader, each of at most a read.
const PIECES: usize = 4;
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
    // Also without input the way in stays open until the end: a shell that reads its end stops.
    tasks.spawn(feed(far, stdin));
    let (out_end, err_end) = (watch::channel(None), watch::channel(None));
    // Standard output has begun; on standard error the begin record is still to come.
    let carrier = &guest.carrier;
    let stdout = pump(&mut tasks, carrier, out, end, false, out_end.0);
    let stderr = pump(&mut tasks, carrier, err, end, true, err_end.0);
    let exit = watch::channel(None);
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

/// Passes on what is written for the command, in frames, and the end of it. Keeps the way in open after that.
async fn feed(source: Option<DuplexStream>, mut stdin: Pin<Box<dyn AsyncWrite + Send>>) {
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
    std::future::pending::<()>().await;
}

/// How a stream of output ended, once it has.
type Ended = Option<Result<End, Error>>;

/// Passes on what the command prints until its end record. A reader that went away is no reason to stop.
fn pump(
    tasks: &mut JoinSet<()>,
    carrier: &Arc<dyn Carrier>,
    mut source: Source,
    end: Nonce,
    mut before: bool,
    ended: watch::Sender<Ended>,
) -> ByteStream {
    let carrier = Arc::clone(carrier);
    let broken = |kind, reason: &str| Error::new(kind).with_effect(Effect::Unknown).because(reason);
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Error>>(PIECES);
    tasks.spawn(async move {
        if !before {
            source.scanner.expect(end);
        }
        let verdict = loop {
            let mut pieces = Vec::new();
            let record = match source.scanner.next(|bytes| pieces.push(Bytes::copy_from_slice(bytes))) {
                Ok(record) => record,
                Err(e) => break Err(e.with_effect(Effect::Unknown)),
            };
            if before {
                if record.is_some() {
                    before = false;
                    source.scanner.expect(end);
                    continue;
                }
            } else {
                for piece in pieces {
                    let _ = sender.send(Ok(piece)).await;
                }
                if let Some(record) = record {
                    break End::parse(&record);
                }
            }
            if !matches!(source.fill().await, Ok(n) if n > 0) {
                break Err(broken(ErrorKind::Lost, "its output ended before the command did"));
            }
        };
        // First of all, since an item waits for its reader.
        let _ = ended.send(Some(verdict.clone()));
        if let Err(error) = verdict {
            let _ = sender.send(Err(explain(&*carrier, error).await)).await;
        }
    });
    ByteStream::new(unfold(receiver, |mut receiver| async { receiver.recv().await.map(|item| (item, receiver)) }))
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
                    .because("the shell that ran the command is gone"));
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
    exit: watch::Receiver<Option<Result<Exit, Error>>>,
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
