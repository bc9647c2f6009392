//! A request that has a stream for itself, and who cleans up when it is dropped.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::control::Who;
use crate::guest::Inner;
use crate::patience::{Patience, after};
use crate::pool::{Lease, Turn};
use crate::quote::{frame, push_word};
use crate::record::{Nonce, Piece, Record};
use crate::scripts::{self, Part};
use crate::stream::{DRAIN, MAX_NOISE, Stream, Tries, late, lost, wait_closed};

/// What must happen to the shell when nobody waits for its answer any more.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GiveUp {
    /// It only reads: it is killed, and what it started.
    Kill,
    /// It writes: it removes what it made.
    CleanUp,
}

/// A request under way. Dropping it gives up its stream.
pub(crate) struct Transfer {
    inner: Arc<Inner>,
    lease: Option<Lease>,
    give_up: GiveUp,
    /// By when the request must have begun.
    deadline: Instant,
    /// What is left of the time for content, in the direction in which it moves.
    patience: Patience,
}

impl Transfer {
    /// Sends a request, and `content` that follows it at once, down a stream, by the deadline of its turn. A stream that breaks
    /// before it has taken everything costs another one, silently: the shell does nothing that lasts before it has everything.
    pub(crate) async fn begin(
        inner: &Arc<Inner>,
        mut turn: Turn,
        part: Part,
        give_up: GiveUp,
        content: &[u8],
        request: impl Fn(Nonce) -> Vec<u8>,
    ) -> Result<Self, Error> {
        let mut tries = Tries::new(&inner.config);
        let deadline = turn.deadline;
        loop {
            let mut lease = Lease::new(inner.stream(&turn).await?, turn);
            let nonce = Nonce::new();
            lease.stream.out.scanner.expect(nonce);
            lease.stream.err.scanner.expect(nonce);
            let mut text = Vec::new();
            for &part in part.with_needs() {
                if !lease.stream.parts.contains(&part) {
                    text.extend_from_slice(scripts::part(part).as_bytes());
                    lease.stream.parts.push(part);
                    if part == Part::Files {
                        text.extend_from_slice(b"__sbx_find");
                        push_word(&mut text, inner.config.tools.as_bytes());
                        text.push(b'\n');
                    }
                }
            }
            text.extend(request(nonce));
            let mut bytes = frame(&text);
            bytes.extend_from_slice(content);
            let patience = Patience::new(inner.config.inactivity);
            let mut transfer = Self { inner: Arc::clone(inner), lease: Some(lease), give_up, deadline, patience };
            match transfer.send_all(&bytes).await {
                Ok(()) => return Ok(transfer),
                Err(Unsent::Broken(e)) => {
                    turn = transfer.give_back();
                    tries.another(e)?;
                }
                Err(Unsent::Other(e)) => return Err(e),
            }
        }
    }

    /// Nothing was begun, so that nothing has to be cleaned up.
    fn give_back(mut self) -> Turn {
        self.lease.take().expect("the lease is there until the transfer is settled").into_turn()
    }

    fn stream(&mut self) -> &mut Stream {
        &mut self.lease.as_mut().expect("the lease is there until the transfer is settled").stream
    }

    /// Sends the request and what goes with it, by the deadline.
    async fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), Unsent> {
        let since = Instant::now();
        let late = late("the sandbox did not take the request", self.inner.config.begin_timeout);
        let (deadline, pool) = (self.deadline, Arc::clone(&self.inner.pool));
        let stdin = &mut self.stream().stdin;
        while !bytes.is_empty() {
            match timeout_at(deadline, stdin.write(bytes)).await {
                Ok(Ok(0)) => return Err(Unsent::Broken(io::ErrorKind::WriteZero.into())),
                Ok(Ok(n)) => bytes = &bytes[n..],
                Ok(Err(e)) => return Err(Unsent::Broken(e)),
                Err(_) => return Err(Unsent::Other(pool.failed(since, late))),
            }
        }
        match timeout_at(deadline, stdin.flush()).await {
            Ok(Ok(())) => Ok(()),
            // It may have all of it.
            Ok(Err(e)) => Err(Unsent::Other(lost("the stream broke behind the request").caused_by(e))),
            Err(_) => Err(Unsent::Other(pool.failed(since, late.with_effect(Effect::Unknown)))),
        }
    }

    /// The first record, by the deadline: the sandbox has taken the request up.
    pub(crate) async fn begun(&mut self) -> Result<Record, Error> {
        let (since, deadline) = (Instant::now(), self.deadline);
        let patience = self.inner.config.begin_timeout;
        let late = || late("the sandbox did not take up the request", patience).with_effect(Effect::Unknown);
        let record = self.record_by(deadline, &late).await.map_err(|e| self.inner.pool.failed(since, e))?;
        self.inner.pool.heard();
        Ok(record)
    }

    /// Sends content, unless the shell answers in the middle of it. What comes out meanwhile is no progress.
    pub(crate) async fn send_or_answer(&mut self, bytes: &[u8]) -> Result<Option<Record>, Error> {
        let quiet = self.inner.config.inactivity;
        let mut sent = 0;
        let mut noise = 0;
        let mut since = Instant::now();
        loop {
            let deadline = after(since, self.patience.left());
            let Stream { stdin, out, .. } = self.stream();
            if let Some(record) = out.scanner.next(|outside| noise += outside.len())? {
                return Ok(Some(record));
            }
            check_noise(noise)?;
            // Once all is written it is flushed.
            let write = async {
                match &bytes[sent..] {
                    [] => stdin.flush().await.map(|()| None),
                    rest => stdin.write(rest).await.map(Some),
                }
            };
            tokio::select! {
                biased;
                n = out.fill(), if !out.ended => drop(n),
                n = write => match n {
                    Ok(None) => {
                        self.patience.charge(since.elapsed(), 0);
                        return Ok(None);
                    }
                    Ok(Some(n)) if n > 0 => {
                        self.patience.charge(since.elapsed(), n as u64);
                        since = Instant::now();
                        sent += n;
                    }
                    // It can have answered before it went.
                    Ok(_) => return self.next_record().await.map(Some),
                    Err(e) => return self.next_record().await.map(Some).map_err(|lost| lost.caused_by(e)),
                },
                () = sleep_until(deadline) => return Err(untaken(quiet)),
            }
        }
    }

    /// What comes next. The wait is charged to this transfer's time: what is allowed without progress, and more as content comes.
    pub(crate) async fn receive(&mut self) -> Result<Piece, Error> {
        let begun = Instant::now();
        let deadline = after(begun, self.patience.left());
        let quiet = self.inner.config.inactivity;
        let result = receive(self.stream(), deadline, &|| standstill(quiet)).await;
        let came = if let Ok(Piece::Outside(bytes)) = &result { bytes.len() } else { 0 };
        self.patience.charge(begun.elapsed(), came as u64);
        result
    }

    /// The next record; what stands before it is noise.
    pub(crate) async fn next_record(&mut self) -> Result<Record, Error> {
        let quiet = self.inner.config.inactivity;
        self.record_by(after(Instant::now(), quiet), &|| standstill(quiet)).await
    }

    async fn record_by(&mut self, deadline: Instant, late: Late<'_>) -> Result<Record, Error> {
        let mut noise = 0;
        loop {
            match receive(self.stream(), deadline, late).await? {
                Piece::Record(record) => return Ok(record),
                Piece::Outside(bytes) => noise += bytes.len(),
            }
            check_noise(noise)?;
        }
    }

    /// The request is answered. A stream that is in step serves the next one, any other is closed.
    pub(crate) fn settle(mut self, in_step: bool) {
        if let Some(mut lease) = self.lease.take()
            && in_step
            && lease.stream.out.scanner.held() == 0
            && matches!(lease.stream.err.scanner.next(|_| ()), Ok(None))
        {
            self.inner.pool.release(lease);
        }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let (shell, place) = (lease.stream.shell.clone(), lease.place());
        drop(lease);
        let (signal, who) = match self.give_up {
            GiveUp::Kill => ("KILL", Who::Shell),
            GiveUp::CleanUp => ("TERM", Who::Write),
        };
        drop(self.inner.control.signal(signal, &shell, &self.inner.marker(None), who, place));
    }
}

/// The error of a wait that was too long.
type Late<'a> = &'a (dyn Fn() -> Error + Sync);

/// The next piece on standard output, or why there is none.
async fn receive(stream: &mut Stream, mut deadline: Instant, late: Late<'_>) -> Result<Piece, Error> {
    let mut gone: Option<String> = None;
    loop {
        let Stream { out, err, closed, .. } = &mut *stream;
        if let Some(piece) = out.scanner.piece()? {
            return Ok(piece);
        }
        err.scanner.next(|_| ())?;
        if out.ended {
            // The shell says so a moment later, if it is the shell that ended.
            deadline = deadline.min(Instant::now() + DRAIN);
            if let Some(detail) = gone {
                return Err(lost(detail));
            }
        }
        tokio::select! {
            n = out.fill(), if !out.ended => {
                n.map_err(|e| lost("its output broke").caused_by(e))?;
            }
            n = err.fill(), if !err.ended => {
                err.ended |= n.is_err();
            }
            report = wait_closed(closed), if gone.is_none() => {
                gone = Some(format!("the shell is gone: {}", report.detail));
                deadline = deadline.min(Instant::now() + DRAIN);
            }
            () = sleep_until(deadline) => {
                return Err(match gone {
                    Some(detail) => lost(detail),
                    None if out.ended => lost("its output ended"),
                    None => late(),
                });
            }
        }
    }
}

fn check_noise(noise: usize) -> Result<(), Error> {
    if noise <= MAX_NOISE {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Protocol).with_effect(Effect::Unknown).because("endless output before a record"))
}

/// Why a request was not sent.
enum Unsent {
    /// The stream broke before it had all of it.
    Broken(io::Error),
    Other(Error),
}

fn untaken(quiet: Duration) -> Error {
    Error::new(ErrorKind::DeadlineExceeded)
        .because(format!("the sandbox took nothing for {quiet:?}, or next to nothing for longer"))
}

fn standstill(quiet: Duration) -> Error {
    Error::new(ErrorKind::DeadlineExceeded)
        .with_effect(Effect::Unknown)
        .because(format!("nothing came for {quiet:?}, or next to nothing for longer"))
}
