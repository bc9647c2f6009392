//! A command from request to verdict.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use sandbox::{Effect, Error, ErrorKind, ExecRequest, ExecResult, Output};
use tokio::time::Instant;

use crate::clock::{KILLED, LimitClock};
use crate::guest::Inner;
use crate::running::{End, Running, Start};
use crate::stream::{DRAIN, Source, Stream, wait_closed};

/// How long the rest of a command's output may take to arrive although some of it does.
pub(crate) const LONGEST_DRAIN: Duration = Duration::from_secs(30);

/// The code by which the clock judges a command that is said not to have been started.
pub(crate) const NOT_STARTED: i32 = 126;

/// Runs a command.
pub(crate) async fn run(guest: &Inner, request: &ExecRequest) -> Result<ExecResult, Error> {
    let marker = guest.marker(request.limit);
    let workdir = request.workdir.as_ref().unwrap_or(&guest.config.workdir);
    let start = Start { command: &request.command, env: &request.env, workdir, marker: &marker, input: false };
    let mut running = Running::start(guest, &start).await?;
    let begun = running.begun;
    let mut watch = Watch::new(request, &mut running);
    let verdict = watch.follow(&mut running).await?;
    let code = match verdict.end {
        Some(end) => {
            running.settle(&guest.pool, verdict.reusable);
            match end.code(workdir) {
                Err(_) if verdict.timed_out => KILLED,
                // A shell that starts nothing says so at once: whoever says so after its limit may have started something.
                Err(e) if watch.clock.has_signalled() => return Err(e.with_effect(Effect::Unknown)),
                code => code?,
            }
        }
        // Not settled: dropping it kills what is left.
        None => KILLED,
    };
    let code = if verdict.timed_out { KILLED } else { code };
    let elapsed = verdict.at.saturating_duration_since(begun);
    Ok(ExecResult::new(code, verdict.timed_out, watch.out.into_output(), watch.err.into_output(), elapsed))
}

/// How it came out.
struct Verdict {
    end: Option<End>,
    timed_out: bool,
    reusable: bool,
    at: Instant,
}

/// The kept head of one stream.
struct Capture {
    cap: usize,
    head: BytesMut,
    total: u64,
    end: Option<End>,
    /// Whether something came after the end.
    excess: bool,
}

impl Capture {
    fn new(cap: usize) -> Self {
        Self { cap, head: BytesMut::new(), total: 0, end: None, excess: false }
    }

    /// Takes what has arrived.
    fn take(&mut self, source: &mut Source) -> Result<(), Error> {
        if self.end.is_some() {
            // Whoever still prints is none of the command's; nothing of it is kept, and the stream is not used again.
            self.excess |= source.scanner.held() > 0;
            source.scanner.discard();
            return Ok(());
        }
        let Self { cap, head, total, .. } = self;
        let record = source.scanner.next(|bytes| {
            head.extend_from_slice(&bytes[..bytes.len().min(*cap - head.len())]);
            *total += bytes.len() as u64;
        })?;
        if let Some(record) = record {
            self.end = Some(End::parse(&record)?);
        }
        Ok(())
    }

    fn into_output(self) -> Output {
        Output::new(self.head.freeze(), self.total)
    }
}

/// What a wait for a command's output has brought.
enum Heard {
    Bytes,
    /// Of one of the streams, or of the shell.
    End,
    Nothing,
}

/// Follows a running command: its output, its end, its limit.
struct Watch {
    out: Capture,
    err: Capture,
    err_begun: bool,
    clock: LimitClock,
    /// When to stop waiting for the rest of the output, once there is a reason to.
    drained: Option<Instant>,
    /// When to stop even though more of it comes: who goes on printing must not hold the call.
    drain_end: Instant,
    /// What the carrier said of the shell's end.
    gone: Option<String>,
}

impl Watch {
    fn new(request: &ExecRequest, running: &mut Running) -> Self {
        let end = running.end;
        running.lease().stream.out.scanner.expect(end);
        Self {
            out: Capture::new(request.stdout_cap),
            err: Capture::new(request.stderr_cap),
            err_begun: false,
            clock: LimitClock::new(running.begun, request.limit, request.grace),
            drained: None,
            drain_end: running.begun,
            gone: None,
        }
    }

    async fn follow(&mut self, running: &mut Running) -> Result<Verdict, Error> {
        loop {
            self.take(running)?;
            let now = Instant::now();
            if let Some(verdict) = self.verdict(running, now) {
                return Ok(verdict);
            }
            if self.clock.is_over(now) {
                return Ok(Verdict { end: None, timed_out: true, reusable: false, at: now });
            }
            if self.drained.is_some_and(|at| now >= at) {
                let detail =
                    self.gone.take().unwrap_or_else(|| "one of its streams ended, the other did not".to_owned());
                return Err(Error::new(ErrorKind::Lost).with_effect(Effect::Unknown).because(detail));
            }
            self.clock.tick(now, |signal, who| running.signal(signal, who));
            let next = self.clock.next().into_iter().chain(self.drained).min();
            let Stream { out, err, closed, .. } = &mut running.lease().stream;
            let bytes = |n: io::Result<usize>| if matches!(n, Ok(n) if n > 0) { Heard::Bytes } else { Heard::End };
            let heard = tokio::select! {
                n = out.fill(), if !out.ended => bytes(n),
                n = err.fill(), if !err.ended => bytes(n),
                report = wait_closed(closed) => {
                    self.gone = Some(format!("the shell that ran the command is gone: {}", report.detail));
                    Heard::End
                }
                () = self.clock.hear() => Heard::Nothing,
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => Heard::Nothing,
            };
            match heard {
                Heard::End if !self.has_ended() => self.drain(),
                // A slow way is no broken one.
                Heard::Bytes => self.drained = self.drained.map(|_| self.drain_end.min(Instant::now() + DRAIN)),
                _ => {}
            }
        }
    }

    /// Takes what has arrived on both streams.
    fn take(&mut self, running: &mut Running) -> Result<(), Error> {
        let end = running.end;
        let stream = &mut running.lease().stream;
        if !self.err_begun && stream.err.scanner.next(|_| ())?.is_some() {
            self.err_begun = true;
            stream.err.scanner.expect(end);
        }
        self.out.take(&mut stream.out)?;
        if self.err_begun {
            self.err.take(&mut stream.err)?;
        }
        if self.out.end.is_some() != self.err.end.is_some() {
            self.drain();
        }
        if self.has_ended() {
            self.drained = None;
        }
        Ok(())
    }

    /// From here on the rest of the output has a time, unless it has one already.
    fn drain(&mut self) {
        if self.drained.is_none() {
            let now = Instant::now();
            (self.drained, self.drain_end) = (Some(now + DRAIN), now + LONGEST_DRAIN);
        }
    }

    fn has_ended(&self) -> bool {
        self.out.end.is_some() && self.err.end.is_some()
    }

    fn verdict(&mut self, running: &mut Running, now: Instant) -> Option<Verdict> {
        let end = self.out.end.filter(|_| self.has_ended())?;
        let (timed_out, retired) = match end {
            End::Exit { code, retired } => (self.clock.verdict(code, now)?, retired),
            End::NoWorkdir | End::BadWorkdir => (self.clock.verdict(NOT_STARTED, now)?, false),
        };
        let stream = &running.lease().stream;
        let clean = stream.out.scanner.held() == 0 && stream.err.scanner.held() == 0;
        let clean = clean && !self.out.excess && !self.err.excess;
        let reusable = clean && !retired && !self.clock.has_signalled();
        Some(Verdict { end: Some(end), timed_out, reusable, at: now })
    }
}
