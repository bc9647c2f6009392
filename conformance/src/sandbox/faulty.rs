//! A provider that fails now and then, for those who want to see how their own code takes it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use sandbox::{ByteStream, Effect, Error, ErrorKind, OwnedStream, Process, Provider};
use tokio::time::{sleep, timeout};

use super::mutants::{Hooks, wrap};

/// How often a [`faulty`] provider fails, and how.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// Where its dice begin: one seed, one sequence of faults, for one sequence of calls.
    pub seed: u64,
    /// The share of calls that fail, from 0 to 1.
    pub rate: f64,
    /// How long a call takes that times out.
    pub wait: Duration,
}

impl Faults {
    /// Every fourth call fails.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, rate: 0.25, wait: Duration::from_millis(50) }
    }

    /// Sets the share of calls that fail.
    #[must_use]
    pub fn with_rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// What the provider makes of it.
    Fine,
    /// It did not happen, and the caller is told so.
    Refused,
    /// It happened, and the caller is told that nobody knows.
    Lost,
    /// It did not happen, and the caller waits in vain.
    TimedOut,
    /// It happened, and the caller waits in vain.
    TimedOutDone,
    /// It was dropped somewhere on its way.
    Dropped(u64),
    /// What it answers ends too soon; a call that answers no stream is lost.
    Cut(usize),
}

struct Dice {
    state: AtomicU64,
    faults: Faults,
}

impl Dice {
    /// SplitMix64: small, and good enough for dice.
    fn next(&self) -> u64 {
        let mut z = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[allow(clippy::cast_precision_loss)]
    fn roll(&self) -> Fate {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        if share >= self.faults.rate {
            return Fate::Fine;
        }
        match self.next() % 6 {
            0 => Fate::Refused,
            1 => Fate::Lost,
            2 => Fate::TimedOut,
            3 => Fate::TimedOutDone,
            4 => Fate::Dropped(self.next() % 40),
            _ => Fate::Cut(usize::try_from(self.next() % 3).unwrap_or(0)),
        }
    }

    /// Runs `call` as fate has it. A call that is cut comes back whole, with the number of pieces to leave.
    async fn meet<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<(T, Option<usize>), Error> {
        let unknown = |kind| Error::new(kind).because("a fault that was asked for").with_effect(Effect::Unknown);
        match self.roll() {
            Fate::Fine => call.await.map(|answer| (answer, None)),
            Fate::Refused => Err(Error::new(ErrorKind::Unavailable).because("a fault that was asked for")),
            Fate::Lost => {
                call.await?;
                Err(unknown(ErrorKind::Lost))
            }
            Fate::TimedOut => {
                sleep(self.faults.wait).await;
                Err(unknown(ErrorKind::DeadlineExceeded))
            }
            Fate::TimedOutDone => {
                call.await?;
                sleep(self.faults.wait).await;
                Err(unknown(ErrorKind::DeadlineExceeded))
            }
            Fate::Dropped(after) => match timeout(Duration::from_millis(after), call).await {
                Ok(answer) => answer.map(|answer| (answer, None)),
                Err(_) => Err(unknown(ErrorKind::Lost)),
            },
            Fate::Cut(pieces) => call.await.map(|answer| (answer, Some(pieces))),
        }
    }

    /// As [`meet`](Self::meet), for a call that answers no stream.
    async fn whole<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match self.meet(call).await? {
            (answer, None) => Ok(answer),
            _ => Err(Error::new(ErrorKind::Lost).because("a fault that was asked for").with_effect(Effect::Unknown)),
        }
    }
}

fn cut<T: Send + 'static>(
    stream: impl futures::Stream<Item = Result<T, Error>> + Send + 'static,
    pieces: usize,
) -> impl futures::Stream<Item = Result<T, Error>> + Send + 'static {
    let end = Error::new(ErrorKind::Lost).because("a fault that was asked for");
    stream.take(pieces).chain(futures::stream::once(async move { Err(end) }))
}

/// `provider`, whose calls now and then fail: they happened or did not, and the caller is told or waits in vain; their future is
/// dropped half-way; their stream is cut, which the output of a spawned command is too.
///
/// What fails is told with an [`Effect`] that is true, so that code which decides by it must come through: with repeating
/// what did not happen or may be repeated, and reaping at the end, nothing is lost and nothing stays behind.
pub fn faulty(provider: Arc<dyn Provider>, faults: Faults) -> Arc<dyn Provider> {
    let dice = Arc::new(Dice { state: AtomicU64::new(faults.seed), faults });
    let with = || Arc::clone(&dice);
    let (provision, attach, owned, reap, export) = (with(), with(), with(), with(), with());
    let (exec, spawn, read, write, write_many, destroy) = (with(), with(), with(), with(), with(), with());
    let hooks = Hooks::default()
        .provision(move |p, spec| {
            let dice = Arc::clone(&provision);
            async move { dice.whole(p.provision(&spec)).await }
        })
        .attach(move |p, session| {
            let dice = Arc::clone(&attach);
            async move { dice.whole(p.attach(&session)).await }
        })
        .owned(move |p, ()| {
            let dice = Arc::clone(&owned);
            async move {
                match dice.meet(p.owned()).await? {
                    (stream, Some(pieces)) => Ok(OwnedStream::new(cut(stream, pieces))),
                    (stream, None) => Ok(stream),
                }
            }
        })
        .reap(move |p, session| {
            let dice = Arc::clone(&reap);
            async move { dice.whole(p.reap(&session)).await }
        })
        .export(move |p, (session, root)| {
            let dice = Arc::clone(&export);
            async move { dice.meet(p.export(&session, &root)).await.map(bytes) }
        })
        .exec(move |inner, request| {
            let dice = Arc::clone(&exec);
            async move { dice.whole(inner.exec(request)).await }
        })
        .spawn(move |inner, request| {
            let dice = Arc::clone(&spawn);
            async move { dice.meet(inner.spawn(request)).await.map(process) }
        })
        .read(move |inner, (path, limit)| {
            let dice = Arc::clone(&read);
            async move { dice.meet(inner.read(&path, limit)).await.map(bytes) }
        })
        .write(move |inner, file| {
            let dice = Arc::clone(&write);
            Box::pin(async move { dice.whole(inner.write(file)).await })
        })
        .write_many(move |inner, files| {
            let dice = Arc::clone(&write_many);
            Box::pin(async move { dice.whole(inner.write_many(files)).await })
        })
        .destroy(move |inner, ()| {
            let dice = Arc::clone(&destroy);
            async move { dice.whole(inner.destroy()).await }
        });
    assert!(hooks.stand_everywhere(), "every call can fail");
    wrap(provider, Arc::new(hooks))
}

/// A process whose output is cut where fate says so. How it ended stays true, and its input is whole.
fn process((mut process, pieces): (Process, Option<usize>)) -> Process {
    if pieces.is_some() {
        for stream in [&mut process.stdout, &mut process.stderr] {
            let whole = std::mem::replace(stream, ByteStream::new(futures::stream::empty()));
            *stream = bytes((whole, pieces));
        }
    }
    process
}

/// The stream of an answer, cut where fate says so.
fn bytes((stream, pieces): (ByteStream, Option<usize>)) -> ByteStream {
    match pieces {
        Some(pieces) => ByteStream::new(cut(stream, pieces)),
        None => stream,
    }
}
