//! A request that has a stream for itself, and who cleans up when it is dropped.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep_until, timeout};

use crate::control::Who;
use crate::guest::Inner;
use crate::pool::Lease;
use crate::quote::{frame, push_word};
use crate::record::{Nonce, Piece, Record};
use crate::scripts::{self, Part};
use crate::stream::{MAX_NOISE, Stream, lost, wait_closed};

/// How long output may still come once the shell is gone.
const DRAIN: Duration = Duration::from_secs(2);
/// The slowest that content may come, in bytes a second, on top of the time that is allowed without any: somebody inside who lets
/// out a byte now and then does not hold a caller for ever.
const SLOWEST: u64 = 16 << 10;

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
    /// How long this has waited for the sandbox so far, and how much content came.
    waited: Duration,
    received: u64,
}

impl Transfer {
    /// Sends a request, and `content` that follows it at once, down a stream. One that breaks before it has taken everything costs
    /// another one, silently: the shell does nothing that lasts before it has everything.
    pub(crate) async fn begin(
        inner: &Arc<Inner>,
        part: Part,
        give_up: GiveUp,
        content: &[u8],
        request: impl Fn(Nonce) -> Vec<u8>,
    ) -> Result<Self, Error> {
        // Every stream that is idle can turn out dead; one more is fresh.
        let mut tries = inner.config.max_streams + 1;
        loop {
            let mut lease = inner.pool.acquire().await?;
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
            let mut transfer =
                Self { inner: Arc::clone(inner), lease: Some(lease), give_up, waited: Duration::ZERO, received: 0 };
            match transfer.send_all(&bytes).await {
                Ok(()) => return Ok(transfer),
                Err(Unsent::Broken(e)) => {
                    transfer.lease = None;
                    tries -= 1;
                    if tries == 0 {
                        let error =
                            Error::new(ErrorKind::Lost).because("every stream broke before the request was sent");
                        return Err(error.caused_by(e));
                    }
                }
                Err(Unsent::Other(e)) => return Err(e),
            }
        }
    }

    fn stream(&mut self) -> &mut Stream {
        &mut self.lease.as_mut().expect("the lease is there until the transfer is settled").stream
    }

    /// Sends all, however long it takes while there is progress.
    async fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), Unsent> {
        let quiet = self.inner.config.inactivity;
        let stdin = &mut self.stream().stdin;
        while !bytes.is_empty() {
            match timeout(quiet, stdin.write(bytes)).await {
                Ok(Ok(0)) => return Err(Unsent::Broken(io::ErrorKind::WriteZero.into())),
                Ok(Ok(n)) => bytes = &bytes[n..],
                Ok(Err(e)) => return Err(Unsent::Broken(e)),
                Err(_) => return Err(Unsent::Other(untaken(quiet))),
            }
        }
        match timeout(quiet, stdin.flush()).await {
            Ok(Ok(())) => Ok(()),
            // It may have all of it.
            Ok(Err(e)) => Err(Unsent::Other(lost("the stream broke behind the request").caused_by(e))),
            Err(_) => Err(Unsent::Other(untaken(quiet).with_effect(Effect::Unknown))),
        }
    }

    /// Sends content, unless the shell answers in the middle of it.
    pub(crate) async fn send_or_answer(&mut self, bytes: &[u8]) -> Result<Option<Record>, Error> {
        let quiet = self.inner.config.inactivity;
        let mut sent = 0;
        let mut noise = 0;
        while sent < bytes.len() {
            let Stream { stdin, out, .. } = self.stream();
            if let Some(record) = out.scanner.next(|outside| noise += outside.len())? {
                return Ok(Some(record));
            }
            check_noise(noise)?;
            tokio::select! {
                biased;
                n = out.fill(), if !out.ended => drop(n),
                n = stdin.write(&bytes[sent..]) => match n {
                    Ok(n) if n > 0 => sent += n,
                    // It can have answered before it went.
                    Ok(_) => return self.next_record().await.map(Some),
                    Err(e) => return self.next_record().await.map(Some).map_err(|lost| lost.caused_by(e)),
                },
                () = tokio::time::sleep(quiet) => return Err(untaken(quiet)),
            }
        }
        let stdin = &mut self.stream().stdin;
        match timeout(quiet, stdin.flush()).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(e)) => self.next_record().await.map(Some).map_err(|lost| lost.caused_by(e)),
            Err(_) => Err(untaken(quiet)),
        }
    }

    /// What comes next. The wait is charged to this transfer's time: what is allowed without progress, and more as content comes.
    pub(crate) async fn receive(&mut self) -> Result<Piece, Error> {
        let begun = Instant::now();
        let quiet = self.inner.config.inactivity;
        let earned = Duration::from_secs(self.received / SLOWEST);
        let left = (quiet + earned).saturating_sub(self.waited).min(quiet);
        let result = receive(self.stream(), begun + left, quiet).await;
        self.waited += begun.elapsed();
        if let Ok(Piece::Outside(bytes)) = &result {
            self.received += bytes.len() as u64;
        }
        result
    }

    /// The next record; what stands before it is noise.
    pub(crate) async fn next_record(&mut self) -> Result<Record, Error> {
        let deadline = Instant::now() + self.inner.config.inactivity;
        let quiet = self.inner.config.inactivity;
        let mut noise = 0;
        loop {
            match receive(self.stream(), deadline, quiet).await? {
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
        let shell = lease.stream.shell.clone();
        drop(lease);
        let (signal, who) = match self.give_up {
            GiveUp::Kill => ("KILL", Who::Shell),
            GiveUp::CleanUp => ("TERM", Who::Write),
        };
        drop(self.inner.control.signal(signal, &shell, &self.inner.marker(None), who));
    }
}

/// The next piece on standard output, or why there is none.
async fn receive(stream: &mut Stream, mut deadline: Instant, quiet: Duration) -> Result<Piece, Error> {
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
                    None => Error::new(ErrorKind::DeadlineExceeded)
                        .with_effect(Effect::Unknown)
                        .because(format!("no progress within {quiet:?}")),
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
    Error::new(ErrorKind::DeadlineExceeded).because(format!("the sandbox took nothing within {quiet:?}"))
}
