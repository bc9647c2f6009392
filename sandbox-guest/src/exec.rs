//! A command from request to verdict.

use std::time::Duration;

use bytes::BytesMut;
use sandbox::{Effect, Error, ErrorKind, ExecRequest, ExecResult, Output};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::command::{self, Run};
use crate::control::{Control, Who};
use crate::guest::Inner;
use crate::pool::{Lease, Pool};
use crate::record::{Nonce, Record};
use crate::stream::{Shell, Source, Stream, wait_closed};

/// The exit code of `SIGKILL`: evidence of a kill, never proof.
const KILLED: i32 = 137;
/// How long past its limit a command may be without being reported so: what network and scheduler may take.
const SLOP: Duration = Duration::from_millis(500);
/// How long the second end record may come after the first, and the streams' end after the shell's.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs a command.
pub(crate) async fn run(guest: &Inner, request: &ExecRequest) -> Result<ExecResult, Error> {
    command::check_size(&request.command, &request.env, &guest.config.env)?;
    let marker = guest.marker(request.limit);
    let workdir = request.workdir.as_ref().unwrap_or(&guest.config.workdir);
    let (mut running, end) = start(guest, request, &marker, workdir).await?;
    let deadline = Instant::now() + guest.config.open_timeout;
    let begun = async {
        running.lease().stream.await_record(b'B').await?;
        Ok::<_, Error>(Instant::now())
    };
    let begun = match timeout_at(deadline, begun).await {
        Ok(begun) => begun?,
        Err(_) => {
            return Err(Error::new(ErrorKind::DeadlineExceeded)
                .with_effect(Effect::Unknown)
                .because(format!("the command did not begin within {:?}", guest.config.open_timeout)));
        }
    };
    let mut watch = Watch::new(request, begun, end);
    let verdict = watch.follow(&mut running).await?;
    running.settle(&guest.pool, &verdict);
    verdict.into_result(workdir, begun, watch)
}

/// Sends the request down a stream. A stream that was found dead before anything was sent costs another one, silently.
async fn start<'a>(
    guest: &'a Inner,
    request: &ExecRequest,
    marker: &str,
    workdir: &sandbox::SandboxPath,
) -> Result<(Running<'a>, Nonce), Error> {
    const TRIES: usize = 70;
    let mut broken = None;
    for _ in 0..TRIES {
        let mut lease = guest.pool.acquire().await?;
        let (begin, end) = (Nonce::new(), Nonce::new());
        let run = Run { command: &request.command, env: &request.env, workdir, marker, reopen: lease.stream.reopen };
        lease.stream.out.scanner.expect(begin);
        lease.stream.err.scanner.expect(begin);
        let bytes = command::request(begin, end, &run);
        // From here on the command may run: whoever drops this kills it.
        let mut running = Running {
            control: &guest.control,
            shell: lease.stream.shell.clone(),
            marker: marker.to_owned(),
            lease: Some(lease),
        };
        match timeout_at(Instant::now() + guest.config.open_timeout, running.lease().stream.send(&bytes)).await {
            Ok(Ok(())) => return Ok((running, end)),
            Ok(Err(e)) => {
                // The shell needs the whole request before it runs anything, and this one was not taken whole.
                running.lease = None;
                broken = Some(e);
            }
            Err(_) => {
                return Err(Error::new(ErrorKind::DeadlineExceeded)
                    .with_effect(Effect::Unknown)
                    .because("the sandbox did not take the request"));
            }
        }
    }
    let error = Error::new(ErrorKind::Lost).because("every stream broke before the request was sent");
    Err(match broken {
        Some(e) => error.caused_by(e),
        None => error,
    })
}

/// A command that may be running. Dropping it kills the command and gives up its stream.
struct Running<'a> {
    control: &'a Control,
    shell: Shell,
    marker: String,
    lease: Option<Lease>,
}

impl Running<'_> {
    fn lease(&mut self) -> &mut Lease {
        self.lease.as_mut().expect("the lease is there until the command is settled")
    }

    fn signal(&self, signal: &'static str, who: Who) -> oneshot::Receiver<bool> {
        self.control.signal(signal, &self.shell, &self.marker, who)
    }

    /// The command ended by itself and needs no kill: its stream goes back, if it can.
    fn settle(&mut self, pool: &Pool, verdict: &Verdict) {
        if verdict.end.is_none() {
            return;
        }
        if let Some(lease) = self.lease.take()
            && verdict.reusable
        {
            pool.release(lease);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.lease.take().is_some() {
            drop(self.signal("KILL", Who::Shell));
        }
    }
}

/// What the end record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The command ended with this code; the stream is retired or not.
    Exit { code: i32, retired: bool },
    /// The working directory is not there.
    NoWorkdir,
    /// The working directory is no directory.
    BadWorkdir,
}

fn parse_end(record: &Record) -> Result<End, Error> {
    let text = String::from_utf8_lossy(&record.payload).into_owned();
    let parts: Vec<&str> = text.split(' ').collect();
    let end = match (record.kind, parts.as_slice()) {
        (b'E', ["w", "n"]) => Some(End::NoWorkdir),
        (b'E', ["w", "d"]) => Some(End::BadWorkdir),
        (b'E', ["x", code, retired @ ("0" | "1")]) => {
            let code = code.parse().ok().filter(|code| (0..=255).contains(code));
            code.map(|code| End::Exit { code, retired: *retired == "1" })
        }
        _ => None,
    };
    end.ok_or_else(|| {
        Error::new(ErrorKind::Protocol).with_effect(Effect::Unknown).because("an end record that says nothing")
    })
}

/// How it came out.
struct Verdict {
    end: Option<End>,
    timed_out: bool,
    reusable: bool,
    ended: Instant,
}

/// The kept head of one stream.
struct Capture {
    cap: usize,
    head: BytesMut,
    total: u64,
    end: Option<End>,
}

impl Capture {
    fn new(cap: usize) -> Self {
        Self { cap, head: BytesMut::new(), total: 0, end: None }
    }

    /// Takes what has arrived.
    fn take(&mut self, source: &mut Source) -> Result<(), Error> {
        if self.end.is_some() {
            source.scanner.next(|_| ())?;
            return Ok(());
        }
        let Self { cap, head, total, .. } = self;
        let record = source.scanner.next(|bytes| {
            head.extend_from_slice(&bytes[..bytes.len().min(*cap - head.len())]);
            *total += bytes.len() as u64;
        })?;
        if let Some(record) = record {
            self.end = Some(parse_end(&record)?);
        }
        Ok(())
    }

    fn into_output(self) -> Output {
        Output::new(self.head.freeze(), self.total)
    }
}

/// Follows a running command: its output, its end, its limit.
struct Watch {
    out: Capture,
    err: Capture,
    end: Nonce,
    err_begun: bool,
    timers: Timers,
    /// Heard from the control stream, once it was asked to signal the command.
    answer: Option<oneshot::Receiver<bool>>,
    alive_at_limit: bool,
    kill_sent: bool,
}

/// What happens next on the clock.
struct Timers {
    terminate: Option<Instant>,
    kill: Option<Instant>,
    give_up: Option<Instant>,
    drained: Option<Instant>,
}

impl Timers {
    fn next(&self) -> Option<Instant> {
        [self.terminate, self.kill, self.give_up, self.drained].into_iter().flatten().min()
    }
}

impl Watch {
    fn new(request: &ExecRequest, begun: Instant, end: Nonce) -> Self {
        let limit = request.limit.map(|limit| begun + limit);
        let kill = limit.map(|at| at + request.grace);
        let slop = request.limit.map_or(SLOP, |limit| SLOP.min(limit / 2));
        Self {
            out: Capture::new(request.stdout_cap),
            err: Capture::new(request.stderr_cap),
            end,
            err_begun: false,
            timers: Timers {
                terminate: limit.filter(|_| !request.grace.is_zero()),
                kill,
                give_up: kill.map(|at| at + slop),
                drained: None,
            },
            answer: None,
            alive_at_limit: false,
            kill_sent: false,
        }
    }

    async fn follow(&mut self, running: &mut Running<'_>) -> Result<Verdict, Error> {
        running.lease().stream.out.scanner.expect(self.end);
        let mut gone = None;
        loop {
            self.take(running)?;
            let now = Instant::now();
            if let Some(verdict) = self.verdict(running, now) {
                return Ok(verdict);
            }
            if self.timers.give_up.is_some_and(|at| now >= at) {
                return Ok(Verdict { end: None, timed_out: true, reusable: false, ended: now });
            }
            if self.timers.drained.is_some_and(|at| now >= at) && !self.has_ended() {
                let detail: String = gone.unwrap_or_else(|| "only one of its streams ended".to_owned());
                return Err(Error::new(ErrorKind::Lost).with_effect(Effect::Unknown).because(detail));
            }
            if self.timers.terminate.is_some_and(|at| now >= at) {
                self.timers.terminate = None;
                self.answer = Some(running.signal("TERM", Who::Group));
                self.kill_sent = true;
            }
            if self.timers.kill.is_some_and(|at| now >= at) {
                self.timers.kill = None;
                self.answer = Some(running.signal("KILL", Who::All));
                self.kill_sent = true;
            }
            let next = self.timers.next();
            let answer = &mut self.answer;
            let Stream { out, err, closed, .. } = &mut running.lease().stream;
            tokio::select! {
                n = out.fill(), if !out.ended => note_end(n, &mut self.timers, now),
                n = err.fill(), if !err.ended => note_end(n, &mut self.timers, now),
                report = wait_closed(closed) => {
                    gone = Some(format!("the shell that ran the command is gone: {}", report.detail));
                    self.timers.drained.get_or_insert(now + DRAIN);
                }
                hit = async { answer.as_mut().expect("guarded").await }, if answer.is_some() => {
                    self.alive_at_limit |= hit.unwrap_or(false);
                    self.answer = None;
                }
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }

    /// Takes what has arrived on both streams.
    fn take(&mut self, running: &mut Running<'_>) -> Result<(), Error> {
        let stream = &mut running.lease().stream;
        if !self.err_begun && stream.err.scanner.next(|_| ())?.is_some() {
            self.err_begun = true;
            stream.err.scanner.expect(self.end);
        }
        self.out.take(&mut stream.out)?;
        if self.err_begun {
            self.err.take(&mut stream.err)?;
        }
        if self.out.end.is_some() != self.err.end.is_some() {
            self.timers.drained.get_or_insert(Instant::now() + DRAIN);
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.out.end.is_some() && self.err.end.is_some()
    }

    /// The verdict, once there is one. Evidence from inside can only add a timeout: a kill that found the command alive at its
    /// limit, or an end that says killed after the kill was sent.
    fn verdict(&self, running: &mut Running<'_>, now: Instant) -> Option<Verdict> {
        let (Some(end), true) = (self.out.end, self.has_ended()) else { return None };
        let code = match end {
            End::Exit { code, .. } => code,
            End::NoWorkdir | End::BadWorkdir => {
                return Some(Verdict { end: Some(end), timed_out: false, reusable: true, ended: now });
            }
        };
        let killed = self.kill_sent && code == KILLED;
        // The answer says whether the command was still there at its limit: wait for it, but not beyond the slop.
        let waiting = self.answer.is_some() && !killed && self.timers.give_up.is_some_and(|at| now < at);
        if waiting {
            return None;
        }
        let stream = &running.lease().stream;
        let retired = end != End::Exit { code, retired: false };
        let clean = stream.out.scanner.held() == 0 && stream.err.scanner.held() == 0;
        Some(Verdict {
            end: Some(end),
            timed_out: killed || (self.kill_sent && self.alive_at_limit),
            reusable: clean && !retired && !self.kill_sent,
            ended: now,
        })
    }
}

/// An output that ended or broke before the end record: the shell is gone, or the way to it.
fn note_end(n: std::io::Result<usize>, timers: &mut Timers, now: Instant) {
    if !matches!(n, Ok(n) if n > 0) {
        timers.drained.get_or_insert(now + DRAIN);
    }
}

impl Verdict {
    fn into_result(self, workdir: &sandbox::SandboxPath, begun: Instant, watch: Watch) -> Result<ExecResult, Error> {
        let code = match self.end {
            Some(End::Exit { code, .. }) if !self.timed_out => code,
            Some(End::NoWorkdir) => {
                return Err(Error::new(ErrorKind::FileNotFound).at(workdir.clone()).because("the working directory"));
            }
            Some(End::BadWorkdir) => {
                return Err(Error::new(ErrorKind::NotDirectory).at(workdir.clone()).because("the working directory"));
            }
            _ => KILLED,
        };
        let elapsed = self.ended.saturating_duration_since(begun);
        Ok(ExecResult::new(code, self.timed_out, watch.out.into_output(), watch.err.into_output(), elapsed))
    }
}
