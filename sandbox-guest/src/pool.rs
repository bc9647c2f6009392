//! The streams of one sandbox, shared by all its handles in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Carrier;
use crate::config::GuestConfig;
use crate::stream::Stream;

/// What opening a stream needs.
struct Opener {
    carrier: Arc<dyn Carrier>,
    config: Arc<GuestConfig>,
    opening: Semaphore,
}

/// Idle streams, and the right to have more.
pub(crate) struct Pool {
    opener: Arc<Opener>,
    /// One permit for each operation under way.
    operations: Arc<Semaphore>,
    /// One permit for each idle stream, so that waiting for one is fair.
    available: Semaphore,
    idle: Mutex<Vec<Stream>>,
    /// Streams being opened, and the sweeper: they end with the pool.
    tasks: Mutex<JoinSet<()>>,
}

/// A stream for one operation, and the permit to have it.
pub(crate) struct Lease {
    pub(crate) stream: Stream,
    permit: OwnedSemaphorePermit,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>) -> Arc<Self> {
        let opening = Semaphore::new(config.max_opening.max(1));
        let operations = Arc::new(Semaphore::new(config.max_streams.max(1)));
        Arc::new(Self {
            opener: Arc::new(Opener { carrier, config, opening }),
            operations,
            available: Semaphore::new(0),
            idle: Mutex::new(Vec::new()),
            tasks: Mutex::new(JoinSet::new()),
        })
    }

    /// A healthy stream: an idle one, or the first that gets free or opens. Operations beyond the maximum wait in order.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<Lease, Error> {
        let permit = Arc::clone(&self.operations).acquire_owned().await;
        let permit = permit.map_err(|_| Error::new(ErrorKind::Other).because("the pool is closed"))?;
        while let Ok(token) = self.available.try_acquire() {
            token.forget();
            if let Some(stream) = self.pop() {
                return Ok(Lease { stream, permit });
            }
        }
        let mut opened = self.open_one();
        loop {
            tokio::select! {
                token = self.available.acquire() => {
                    if let Ok(token) = token {
                        token.forget();
                        if let Some(stream) = self.pop() {
                            return Ok(Lease { stream, permit });
                        }
                    }
                }
                result = &mut opened => {
                    let stream = result.unwrap_or_else(|_| {
                        Err(Error::new(ErrorKind::Unavailable).because("the runtime that opened the stream ended"))
                    })?;
                    return Ok(Lease { stream, permit });
                }
            }
        }
    }

    /// Gives a stream back that can serve another request.
    pub(crate) fn release(&self, lease: Lease) {
        let Lease { mut stream, permit } = lease;
        if self.opener.config.reuse {
            stream.idle_since = Instant::now();
            self.push(stream);
        }
        drop(permit);
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
    fn open_one(self: &Arc<Self>) -> oneshot::Receiver<Result<Stream, Error>> {
        let (sender, receiver) = oneshot::channel();
        let (opener, pool) = (Arc::clone(&self.opener), Arc::downgrade(self));
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        if tasks.is_empty() {
            tasks.spawn(sweep(Weak::clone(&pool), self.opener.config.idle_close));
        }
        tasks.spawn(async move {
            let result = match opener.opening.acquire().await {
                // Whoever asked may have got another stream, or gone, while this one waited for its turn.
                Ok(_) if sender.is_closed() => return,
                Ok(_turn) => Stream::open(&opener.carrier, &opener.config).await,
                Err(_) => return,
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
