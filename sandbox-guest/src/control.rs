//! The control stream: signals, and the watchdog that costs no command anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::GuestConfig;
use crate::quote::frame;
use crate::record::Nonce;
use crate::stream::{Shell, Stream, late, wait_closed};
use crate::{Carrier, scripts};

/// How long one order may take, reopening the stream included.
const ORDER_BUDGET: Duration = Duration::from_secs(10);
/// How long one answer may take before the stream counts as dead.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long to wait before the stream is opened again.
const AGAIN: Duration = Duration::from_millis(100);
/// Orders that may wait; an operation has at most two.
const QUEUE: usize = 256;

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
#[derive(Debug)]
struct Order {
    signal: &'static str,
    shell: Shell,
    marker: String,
    who: Who,
    answer: oneshot::Sender<bool>,
    made: Instant,
}

/// What the task is asked to do.
enum Request {
    /// Have the stream open by then.
    Open(oneshot::Sender<Result<(), Error>>, Instant),
    Signal(Order),
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
    requests: Mutex<Option<mpsc::Sender<Request>>>,
    /// Whether the stream is open, as far as its task knows.
    open: Arc<AtomicBool>,
}

impl Control {
    pub(crate) fn new(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>, client: String) -> Self {
        let open = Arc::default();
        Self { shared: Arc::new(Shared { carrier, config, client, requests: Mutex::new(None), open }) }
    }

    /// Waits until the stream is open, until `deadline` at most: before that no command may run, since nothing could end it. A
    /// sandbox that is full up afterwards has it already.
    pub(crate) async fn ready(&self, deadline: Instant) -> Result<(), Error> {
        let requests = self.sender();
        if self.shared.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        let opened = async {
            if let Some(requests) = requests {
                let _ = requests.send(Request::Open(sender, deadline)).await;
            }
            let ended =
                |_| Err(Error::new(ErrorKind::Unavailable).because("there is no runtime for the control stream"));
            receiver.await.unwrap_or_else(ended)
        };
        timeout_at(deadline, opened).await.unwrap_or_else(|_| Err(unopened(&self.shared.config)))
    }

    /// The way to the task that has the stream; starts it unless it runs. Needs a runtime; without one there is none.
    fn sender(&self) -> Option<mpsc::Sender<Request>> {
        let shared = &self.shared;
        let mut requests = shared.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(sender) = requests.as_ref().filter(|s| !s.is_closed()) {
            return Some(sender.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        // Ends by itself: when the last sender is gone and its orders, each with a deadline, are carried out. It must outlive the
        // handle, whose drop is what asks for the last kill.
        let server = Server {
            carrier: Arc::clone(&shared.carrier),
            config: Arc::clone(&shared.config),
            client: shared.client.clone(),
            open: Arc::clone(&shared.open),
            stream: None,
        };
        shared.open.store(false, Ordering::Release);
        runtime.spawn(server.serve(receiver));
        *requests = Some(sender.clone());
        Some(sender)
    }

    /// Orders a signal; the receiver hears whether the command itself was there to get it. Never waits.
    pub(crate) fn signal(
        &self,
        signal: &'static str,
        shell: &Shell,
        marker: &str,
        who: Who,
    ) -> oneshot::Receiver<bool> {
        let (answer, heard) = oneshot::channel();
        let order =
            Order { signal, shell: shell.clone(), marker: marker.to_owned(), who, answer, made: Instant::now() };
        if let Some(sender) = self.sender()
            && sender.try_send(Request::Signal(order)).is_err()
        {
            tracing::warn!("too many signals are waiting; one is lost");
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
}

impl Server {
    async fn serve(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut serial = 0u64;
        let mut backlog: Option<(Instant, Instant)> = None;
        loop {
            let request = match self.stream.as_mut() {
                Some(stream) => tokio::select! {
                    request = requests.recv() => request,
                    _ = wait_closed(&mut stream.closed) => {
                        // Whoever needs it next opens it again.
                        self.set(None);
                        continue;
                    }
                },
                None => requests.recv().await,
            };
            match request {
                // Whoever asked may be gone.
                Some(Request::Open(answer, _)) if answer.is_closed() => {}
                Some(Request::Open(answer, deadline)) => {
                    let _ = answer.send(self.have(deadline).await);
                }
                Some(Request::Signal(order)) => {
                    serial += 1;
                    // Orders that piled up behind one that could not be carried out have one budget together.
                    let shared = backlog.filter(|(before, _)| order.made <= *before);
                    let deadline = shared.map_or_else(|| Instant::now() + ORDER_BUDGET, |(_, deadline)| deadline);
                    if !self.signal(serial, order, deadline).await && shared.is_none() {
                        backlog = Some((Instant::now(), Instant::now() + ORDER_BUDGET));
                    }
                }
                None => return,
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

    /// Carries out an order by `deadline`; says whether it did.
    async fn signal(&mut self, serial: u64, order: Order, deadline: Instant) -> bool {
        while Instant::now() < deadline {
            if let Err(e) = self.have(deadline).await {
                tracing::debug!(kind = ?e.kind(), signal = order.signal, "a signal could not be delivered");
                return false;
            }
            let Some(stream) = self.stream.as_mut() else { return false };
            match timeout(ANSWER_TIME, carry_out(stream, serial, &order)).await {
                Ok(Ok(hit)) => {
                    let _ = order.answer.send(hit);
                    return true;
                }
                _ => self.set(None),
            }
        }
        false
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
    let broke = |e: std::io::Error| Error::new(ErrorKind::Lost).caused_by(e);
    timeout_at(deadline, stream.send(&frame(request.as_bytes())))
        .await
        .map_err(|_| unopened(config))?
        .map_err(broke)?;
    Ok(stream)
}

async fn carry_out(stream: &mut Stream, serial: u64, order: &Order) -> Result<bool, Error> {
    let who = match order.who {
        Who::Group => "group",
        Who::All => "all",
        Who::Shell => "shell",
        Who::Write => "write",
    };
    let Shell { pid, start } = &order.shell;
    let line = format!("{serial} {} {pid} {start} {} {who}\n", order.signal, order.marker);
    stream.send(line.as_bytes()).await.map_err(|e| Error::new(ErrorKind::Lost).caused_by(e))?;
    let record = stream.await_record(b'A').await?;
    let text = String::from_utf8_lossy(&record.payload).into_owned();
    match text.split_once(' ') {
        Some((answered, hit)) if answered == serial.to_string() => Ok(hit == "1"),
        _ => Err(Error::new(ErrorKind::Protocol).because("an answer to another order")),
    }
}
