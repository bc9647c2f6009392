//! The control stream: signals, and the watchdog that costs no command anything.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox::{Error, ErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::GuestConfig;
use crate::quote::frame;
use crate::record::Nonce;
use crate::stream::{Shell, Stream};
use crate::{Carrier, scripts};

/// How long one order may take, reopening the stream included.
const ORDER_BUDGET: Duration = Duration::from_secs(10);
/// How long one answer may take before the stream counts as dead.
const ANSWER_TIME: Duration = Duration::from_secs(5);
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
    orders: Mutex<Option<mpsc::Sender<Order>>>,
}

impl Control {
    pub(crate) fn new(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>, client: String) -> Self {
        Self { shared: Arc::new(Shared { carrier, config, client, orders: Mutex::new(None) }) }
    }

    /// Opens the stream ahead of its first order, in the background.
    pub(crate) fn start(&self) {
        let _ = self.sender();
    }

    /// The way to the task that has the stream; starts it unless it runs. Needs a runtime; without one there is none.
    fn sender(&self) -> Option<mpsc::Sender<Order>> {
        let shared = &self.shared;
        let mut orders = shared.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(sender) = orders.as_ref().filter(|s| !s.is_closed()) {
            return Some(sender.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        // Ends by itself: when the last sender is gone and its orders, each with a deadline, are carried out. It must outlive the
        // handle, whose drop is what asks for the last kill.
        runtime.spawn(serve(Arc::clone(&shared.carrier), Arc::clone(&shared.config), shared.client.clone(), receiver));
        *orders = Some(sender.clone());
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
        let order = Order { signal, shell: shell.clone(), marker: marker.to_owned(), who, answer };
        if let Some(sender) = self.sender()
            && sender.try_send(order).is_err()
        {
            tracing::warn!("too many signals are waiting; one is lost");
        }
        heard
    }
}

async fn serve(carrier: Arc<dyn Carrier>, config: Arc<GuestConfig>, client: String, mut orders: mpsc::Receiver<Order>) {
    let mut stream = open(&carrier, &config, &client).await.ok();
    let mut serial = 0u64;
    while let Some(order) = orders.recv().await {
        let deadline = Instant::now() + ORDER_BUDGET;
        loop {
            if stream.is_none() {
                match timeout_at(deadline, open(&carrier, &config, &client)).await {
                    Ok(Ok(fresh)) => stream = Some(fresh),
                    // A sandbox that is gone has nothing left to signal.
                    Ok(Err(e)) if e.kind() == ErrorKind::NotFound => break,
                    Ok(Err(e)) => {
                        tracing::debug!(kind = ?e.kind(), "could not open the control stream");
                        break;
                    }
                    Err(_) => break,
                }
            }
            let Some(open) = stream.as_mut() else { break };
            serial += 1;
            match timeout(ANSWER_TIME, carry_out(open, serial, &order)).await {
                Ok(Ok(hit)) => {
                    let _ = order.answer.send(hit);
                    break;
                }
                _ => stream = None,
            }
            if Instant::now() >= deadline {
                tracing::warn!(signal = order.signal, "a signal could not be delivered in time");
                break;
            }
        }
    }
}

async fn open(carrier: &Arc<dyn Carrier>, config: &GuestConfig, client: &str) -> Result<Stream, Error> {
    let bare = GuestConfig { env: sandbox::Env::new(), ..config.clone() };
    let mut stream = Stream::open(carrier, &bare).await?;
    let nonce = Nonce::new();
    stream.out.scanner.expect(nonce);
    stream.err.scanner.expect(nonce);
    let request = format!("{}__sbx_control {} {client}", scripts::control(), nonce.as_str());
    let broke = |e: std::io::Error| Error::new(ErrorKind::Lost).caused_by(e);
    timeout(config.open_timeout, stream.send(&frame(request.as_bytes())))
        .await
        .map_err(|_| Error::new(ErrorKind::DeadlineExceeded))?
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
