//! The streams of one sandbox, shared by all its handles in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Carrier;
use crate::config::GuestConfig;
use crate::opening::Opening;
use crate::patience::after;
use crate::stream::{Stream, late};

/// What opening a stream needs.
struct Opener {
    carrier: Arc<dyn Carrier>,
    config: Arc<GuestConfig>,
    opening: Opening,
    health: Health,
}

/// Whether the sandbox answers at all: what one call learns the hard way, those that wait behind it need not learn again.
struct Health {
    /// When a shell last answered something.
    answered: Mutex<Option<Instant>>,
    /// Wakes those who wait for their turn: there is no point in it.
    unresponsive: Notify,
}

/// Idle streams, and the right to have more.
pub(crate) struct Pool {
    opener: Arc<Opener>,
    /// One permit for each operation that is under way, or whose orders are.
    operations: Arc<Semaphore>,
    /// One permit for each idle stream, so that waiting for one is fair.
    available: Semaphore,
    idle: Mutex<Vec<Stream>>,
    /// Streams being opened, and the sweeper: they end with the pool.
    tasks: Mutex<JoinSet<()>>,
}

/// The place of one operation among those under way. It is free again once the operation and all the orders that it gave are done.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// The turn of one operation, and by when it must have begun.
pub(crate) struct Turn {
    place: Place,
    pub(crate) deadline: Instant,
}

/// A stream for one operation.
pub(crate) struct Lease {
    pub(crate) stream: Stream,
    turn: Turn,
}

impl Lease {
    pub(crate) fn new(stream: Stream, turn: Turn) -> Self {
        Self { stream, turn }
    }

    /// Closes the stream; the turn is good for another one.
    pub(crate) fn into_turn(self) -> Turn {
        self.turn
    }

    /// The operation's place, for an order to hold.
    pub(crate) fn place(&self) -> Place {
        Arc::clone(&self.turn.place)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>) -> Arc<Self> {
        let opening = Opening::new(config.max_opening);
        let operations = Arc::new(Semaphore::new(config.max_streams.max(1)));
        Arc::new(Self {
            opener: Arc::new(Opener {
                carrier,
                config,
                opening,
                health: Health { answered: Mutex::new(None), unresponsive: Notify::new() },
            }),
            operations,
            available: Semaphore::new(0),
            idle: Mutex::new(Vec::new()),
            tasks: Mutex::new(JoinSet::new()),
        })
    }

    /// Waits until fewer operations than the maximum are under way: in order, for as long as those take, but not behind a sandbox that
    /// proves unresponsive meanwhile.
    pub(crate) async fn turn(&self) -> Result<Turn, Error> {
        let patience = self.opener.config.begin_timeout;
        let permit = tokio::select! {
            // First: who fails says so before the turn is given up.
            biased;
            () = self.opener.health.unresponsive.notified() => return Err(behind(patience)),
            permit = Arc::clone(&self.operations).acquire_owned() => permit,
        };
        let permit = permit.map_err(|_| Error::new(ErrorKind::Other).because("the pool is closed"))?;
        Ok(Turn { place: Arc::new(permit), deadline: after(Instant::now(), patience) })
    }

    /// A healthy stream: an idle one, or the first that gets free or opens, by `deadline`.
    pub(crate) async fn stream(self: &Arc<Self>, deadline: Instant) -> Result<Stream, Error> {
        while let Ok(token) = self.available.try_acquire() {
            token.forget();
            if let Some(stream) = self.pop() {
                return Ok(stream);
            }
        }
        let mut opened = self.open_one(deadline);
        loop {
            tokio::select! {
                token = self.available.acquire() => {
                    if let Ok(token) = token {
                        token.forget();
                        if let Some(stream) = self.pop() {
                            return Ok(stream);
                        }
                    }
                }
                result = &mut opened => {
                    return result.unwrap_or_else(|_| {
                        Err(Error::new(ErrorKind::Unavailable).because("the runtime that opened the stream ended"))
                    });
                }
            }
        }
    }

    /// A shell has answered.
    pub(crate) fn heard(&self) {
        self.opener.heard();
    }

    /// What was asked of a shell at `since` failed. Whoever has the turn says so before giving it up.
    pub(crate) fn failed(&self, since: Instant, error: Error) -> Error {
        if error.kind() == ErrorKind::DeadlineExceeded {
            self.opener.unheard(since);
        }
        error
    }

    /// Gives a stream back that can serve another request.
    pub(crate) fn release(&self, lease: Lease) {
        let Lease { mut stream, turn } = lease;
        self.heard();
        self.opener.opening.freed();
        if self.opener.config.reuse {
            stream.idle_since = Instant::now();
            self.push(stream);
        }
        drop(turn);
    }

    /// Closes every idle stream.
    pub(crate) fn clear(&self) {
        self.prune(Duration::ZERO);
    }

    fn push(&self, stream: Stream) {
        lock(&self.idle).push(stream);
        self.available.add_permits(1);
    }

    /// The stream that was used last, unless it died meanwhile. The caller has taken a token.
    fn pop(&self) -> Option<Stream> {
        let mut stream = lock(&self.idle).pop()?;
        stream.is_healthy().then_some(stream)
    }

    /// Opens a stream for one waiter; if that one has got another by then, it becomes idle.
    fn open_one(self: &Arc<Self>, deadline: Instant) -> oneshot::Receiver<Result<Stream, Error>> {
        let (mut sender, receiver) = oneshot::channel();
        let (opener, pool) = (Arc::clone(&self.opener), Arc::downgrade(self));
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        if tasks.is_empty() {
            tasks.spawn(sweep(Weak::clone(&pool), self.opener.config.idle_close));
        }
        tasks.spawn(async move {
            let patience = opener.config.begin_timeout;
            let waited = tokio::select! {
                biased;
                // Whoever asked has got another stream meanwhile, or is gone.
                () = sender.closed() => return,
                () = opener.health.unresponsive.notified() => Err(behind(patience)),
                place = timeout_at(deadline, opener.opening.place()) => {
                    place.map_err(|_| late("no shell was ready", patience))
                }
            };
            let result = match waited {
                Ok(_place) => opener.open(deadline).await,
                Err(e) => Err(e),
            };
            if let Err(Ok(stream)) = sender.send(result)
                && let Some(pool) = pool.upgrade()
            {
                pool.push(stream);
            }
        });
        receiver
    }

    /// Closes what has been idle for longer than `most`.
    fn prune(&self, most: Duration) {
        let mut idle = lock(&self.idle);
        let mut kept = Vec::with_capacity(idle.len());
        for stream in idle.drain(..) {
            // Without a token somebody is just about to take one: leave it.
            if stream.idle_since.elapsed() >= most
                && let Ok(token) = self.available.try_acquire()
            {
                token.forget();
            } else {
                kept.push(stream);
            }
        }
        *idle = kept;
    }
}

impl Opener {
    async fn open(&self, deadline: Instant) -> Result<Stream, Error> {
        let since = Instant::now();
        let result = Stream::open(&self.carrier, &self.config, deadline).await;
        match &result {
            Ok(_) => self.heard(),
            Err(e) if e.kind() == ErrorKind::DeadlineExceeded => self.unheard(since),
            Err(_) => {}
        }
        result
    }

    fn heard(&self) {
        *lock(&self.health.answered) = Some(Instant::now());
    }

    fn unheard(&self, since: Instant) {
        // Who had little time left when it asked has proved nothing, nor has one shell where others answer.
        let long = since.elapsed() >= self.config.begin_timeout / 2;
        if long && lock(&self.health.answered).is_none_or(|at| at <= since) {
            self.health.unresponsive.notify_waiters();
        }
    }
}

/// The error of a call that waited behind another one.
fn behind(patience: Duration) -> Error {
    Error::new(ErrorKind::DeadlineExceeded)
        .because(format!("it waited behind calls to which the sandbox gave no answer within {patience:?}"))
}

/// Closes idle streams now and then, as long as there is a pool.
async fn sweep(pool: Weak<Pool>, most: Duration) {
    loop {
        sleep(most.max(Duration::from_millis(100)) / 2).await;
        match pool.upgrade() {
            Some(pool) => pool.prune(most),
            None => return,
        }
    }
}
