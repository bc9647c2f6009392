//! The control stream: signals, and the watchdog that costs no command anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::GuestConfig;
use crate::pool::lock;
use crate::quote::frame;
use crate::record::Nonce;
use crate::stream::{SendError, Shell, Stream, late, wait_closed};
use crate::{Carrier, scripts};

/// How long orders may go without an answer to any of them, reopening the stream included.
const ORDER_BUDGET: Duration = Duration::from_secs(10);
/// How long one answer may take before the stream counts as dead.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long to wait before the stream is opened again.
const AGAIN: Duration = Duration::from_millis(100);
/// Orders that one operation can have waiting: two at its limit, one of the caller's, and the one that its drop gives. Each holds the
/// operation's place until it is done, so that there are never more than this for each place.
const ORDERS: usize = 4;
/// Orders that are carried out together. Inside, each may need two descriptors.
const BATCH: usize = 16;

/// Whom a signal is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who {
    /// The command's process group.
    Group,
    /// Also what left the group.
    All,
    /// Also the shell that runs it.
    Shell,
    /// The copy into a file that nobody waits for any more: its shell removes what it made.
    Write,
}

/// One order.
struct Order {
    signal: &'static str,
    shell: Shell,
    marker: String,
    who: Who,
    answer: oneshot::Sender<bool>,
    made: Instant,
    /// What is free again once the order is done.
    _held: Box<dyn Send + Sync>,
}

/// Somebody waits for the stream to be open, until then.
type Opening = (oneshot::Sender<Result<(), Error>>, Instant);

/// The ways to the task that has the stream.
#[derive(Clone)]
struct Senders {
    openings: mpsc::Sender<Opening>,
    orders: mpsc::Sender<Order>,
}

/// The client's end. Cloning it is cheap; when the last one is gone, the stream closes once all orders are carried out.
#[derive(Clone)]
pub(crate) struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    carrier: Arc<dyn Carrier>,
    config: Arc<GuestConfig>,
    client: String,
    senders: Mutex<Option<Senders>>,
    /// Whether the stream is open, as far as its task knows.
    open: Arc<AtomicBool>,
}

impl Control {
    pub(crate) fn new(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>, client: String) -> Self {
        let open = Arc::default();
        Self { shared: Arc::new(Shared { carrier, config, client, senders: Mutex::new(None), open }) }
    }

    /// Waits until the stream is open, until `deadline` at most: before that no command may run, since nothing could end it. A
    /// sandbox that is full up afterwards has it already.
    pub(crate) async fn ready(&self, deadline: Instant) -> Result<(), Error> {
        let senders = self.senders();
        if self.shared.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        let opened = async {
            if let Some(senders) = senders {
                let _ = senders.openings.send((sender, deadline)).await;
            }
            let ended =
                |_| Err(Error::new(ErrorKind::Unavailable).because("there is no runtime for the control stream"));
            receiver.await.unwrap_or_else(ended)
        };
        timeout_at(deadline, opened).await.unwrap_or_else(|_| Err(unopened(&self.shared.config)))
    }

    /// The ways to the task that has the stream; starts it unless it runs. Needs a runtime; without one there is none.
    fn senders(&self) -> Option<Senders> {
        let shared = &self.shared;
        let mut senders = lock(&shared.senders);
        if let Some(senders) = senders.as_ref().filter(|s| !s.orders.is_closed()) {
            return Some(senders.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let places = shared.config.max_streams.max(1);
        let (openings, to_open) = mpsc::channel(places);
        let (orders, to_carry_out) = mpsc::channel(ORDERS * places);
        // Ends by itself: when the last sender is gone and its orders, each with a deadline, are carried out. It must outlive the
        // handle, whose drop is what asks for the last kill.
        let server = Server {
            carrier: Arc::clone(&shared.carrier),
            config: Arc::clone(&shared.config),
            client: shared.client.clone(),
            open: Arc::clone(&shared.open),
            stream: None,
            serial: 0,
        };
        shared.open.store(false, Ordering::Release);
        runtime.spawn(server.serve(to_open, to_carry_out));
        *senders = Some(Senders { openings, orders });
        senders.clone()
    }

    /// Orders a signal; the receiver hears whether the command itself was there to get it. Never waits. `held` is dropped once the order
    /// is carried out, or cannot be.
    pub(crate) fn signal(
        &self,
        signal: &'static str,
        shell: &Shell,
        marker: &str,
        who: Who,
        held: impl Send + Sync + 'static,
    ) -> oneshot::Receiver<bool> {
        let (answer, heard) = oneshot::channel();
        let (shell, marker) = (shell.clone(), marker.to_owned());
        let order = Order { signal, shell, marker, who, answer, made: Instant::now(), _held: Box::new(held) };
        if let Some(senders) = self.senders()
            && senders.orders.try_send(order).is_err()
        {
            // Not for want of room: the order's operation has a place.
            tracing::error!(signal, "nobody carries out a signal");
        }
        heard
    }
}

/// The task that has the stream.
struct Server {
    carrier: Arc<dyn Carrier>,
    config: Arc<GuestConfig>,
    client: String,
    open: Arc<AtomicBool>,
    stream: Option<Stream>,
    serial: u64,
}

impl Server {
    async fn serve(mut self, mut openings: mpsc::Receiver<Opening>, mut orders: mpsc::Receiver<Order>) {
        let mut backlog: Option<(Instant, Instant)> = None;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let closed = async {
                match self.stream.as_mut() {
                    Some(stream) => drop(wait_closed(&mut stream.closed).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                n = orders.recv_many(&mut batch, BATCH) => {
                    if n == 0 {
                        // Both ways are gone at once, and nobody is left to open for.
                        return;
                    }
                    // Orders that piled up behind one that could not be carried out have one budget together.
                    let made = batch.iter().map(|order| order.made).max();
                    let shared = backlog.filter(|(before, _)| made.is_some_and(|made| made <= *before));
                    let deadline = shared.map_or_else(|| Instant::now() + ORDER_BUDGET, |(_, deadline)| deadline);
                    if !self.carry_out(&mut batch, deadline).await && shared.is_none() {
                        backlog = Some((Instant::now(), Instant::now() + ORDER_BUDGET));
                    }
                }
                Some((answer, deadline)) = openings.recv() => {
                    // Whoever asked may be gone.
                    if !answer.is_closed() {
                        let _ = answer.send(self.have(deadline).await);
                    }
                }
                // Whoever needs it next opens it again.
                () = closed => self.set(None),
            }
        }
    }

    fn set(&mut self, stream: Option<Stream>) {
        self.open.store(stream.is_some(), Ordering::Release);
        self.stream = stream;
    }

    /// Has the stream open, and tries again until `deadline`: a sandbox can be full up for a while.
    async fn have(&mut self, deadline: Instant) -> Result<(), Error> {
        while self.stream.is_none() {
            match timeout_at(deadline, open(&self.carrier, &self.config, &self.client, deadline)).await {
                Ok(Ok(stream)) => self.set(Some(stream)),
                // A sandbox that is gone stays gone.
                Ok(Err(e)) if e.kind() == ErrorKind::NotFound || Instant::now() + AGAIN >= deadline => return Err(e),
                Ok(Err(_)) => sleep(AGAIN).await,
                Err(_) => return Err(unopened(&self.config)),
            }
        }
        Ok(())
    }

    /// Carries out orders: what a stream that breaks has not answered is asked of a new one. Gives up once none was answered until
    /// `deadline`, or for as long as one may take after the last answer; says whether all were carried out.
    async fn carry_out(&mut self, batch: &mut Vec<Order>, mut deadline: Instant) -> bool {
        let mut waiting: Vec<(u64, Order)> = Vec::with_capacity(batch.len());
        for order in batch.drain(..) {
            self.serial += 1;
            waiting.push((self.serial, order));
        }
        while !waiting.is_empty() && Instant::now() < deadline {
            if let Err(e) = self.have(deadline).await {
                tracing::warn!(kind = ?e.kind(), orders = waiting.len(), "signals could not be delivered");
                return false;
            }
            let Some(stream) = self.stream.as_mut() else { return false };
            let before = waiting.len();
            let carried_out = ask(stream, &mut waiting).await;
            if waiting.len() < before {
                deadline = deadline.max(Instant::now() + ORDER_BUDGET);
            }
            if carried_out.is_err() {
                self.set(None);
            }
        }
        if !waiting.is_empty() {
            tracing::warn!(orders = waiting.len(), "nobody inside carried out the signals");
        }
        waiting.is_empty()
    }
}

fn unopened(config: &GuestConfig) -> Error {
    late("the control stream did not open", config.begin_timeout)
}

async fn open(
    carrier: &Arc<dyn Carrier>,
    config: &GuestConfig,
    client: &str,
    deadline: Instant,
) -> Result<Stream, Error> {
    let bare = GuestConfig { env: sandbox::Env::new(), ..config.clone() };
    let mut stream = Stream::open(carrier, &bare, deadline).await?;
    let nonce = Nonce::new();
    stream.out.scanner.expect(nonce);
    stream.err.scanner.expect(nonce);
    let request = format!("{}__sbx_control {} {client}", scripts::control(), nonce.as_str());
    let broke = |e: SendError| Error::new(ErrorKind::Lost).caused_by(e.into_inner());
    timeout_at(deadline, stream.send(&frame(request.as_bytes())))
        .await
        .map_err(|_| unopened(config))?
        .map_err(broke)?;
    Ok(stream)
}

/// Sends orders and takes the answers, each in its time. What was answered is done.
async fn ask(stream: &mut Stream, waiting: &mut Vec<(u64, Order)>) -> Result<(), Error> {
    let mut lines = format!("{}\n", waiting.len());
    for (serial, order) in &*waiting {
        let who = match order.who {
            Who::Group => "group",
            Who::All => "all",
            Who::Shell => "shell",
            Who::Write => "write",
        };
        let Shell { pid, start } = &order.shell;
        lines.push_str(&format!("{serial} {} {pid} {start} {} {who}\n", order.signal, order.marker));
    }
    let late = |_| late("an order was not answered", ANSWER_TIME);
    let broke = |e: SendError| Error::new(ErrorKind::Lost).caused_by(e.into_inner());
    timeout(ANSWER_TIME, stream.send(lines.as_bytes())).await.map_err(late)?.map_err(broke)?;
    while !waiting.is_empty() {
        let record = timeout(ANSWER_TIME, stream.await_record(b'A')).await.map_err(late)??;
        let text = String::from_utf8_lossy(&record.payload).into_owned();
        let answered = text.split_once(' ').and_then(|(serial, hit)| Some((serial.parse::<u64>().ok()?, hit == "1")));
        let at = answered.and_then(|(serial, hit)| Some((waiting.iter().position(|(s, _)| *s == serial)?, hit)));
        let Some((at, hit)) = at else {
            return Err(Error::new(ErrorKind::Protocol).because("an answer to another order"));
        };
        let _ = waiting.swap_remove(at).1.answer.send(hit);
    }
    Ok(())
}
