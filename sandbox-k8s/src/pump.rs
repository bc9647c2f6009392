//! Moves bytes between one WebSocket of the exec protocol (`v5.channel.k8s.io` or `v4.channel.k8s.io`) and the ends of a stream.
//!
//! A frame is a byte that names a channel, and data. Reading never waits for writing: a peer that must be read before it goes on
//! reading would otherwise wait for ever. What is not read by its consumer is not read from the socket, beyond a bounded buffer. The
//! status of the connection is a message for people and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use sandbox_guest::{CarrierStream, Closed};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// Channels of the protocol.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Version 5 only: the next byte names the channel that has ended.
const CLOSE: u8 = 255;

/// What a consumer may leave unread before the socket waits for it, per output. Grows only when used.
const OUTPUT_BUFFER: usize = 256 * 1024;
const INPUT_BUFFER: usize = 128 * 1024;
/// The most data of one frame to the sandbox.
const FRAME: usize = 64 * 1024;
/// How often something is said on a silent connection: proxies cut silent ones, some after 20 seconds.
const PING: Duration = Duration::from_secs(10);
/// How soon after input the peer is asked whether it has read it.
const PING_AFTER_INPUT: Duration = Duration::from_secs(1);
/// For how long a peer that owes nothing but answers to pings may be silent.
const SILENCE: Duration = Duration::from_secs(45);
/// How long the peer may take to end the connection, once it has sent the status or we want it closed.
const FAREWELL: Duration = Duration::from_secs(3);
/// The longest status that is read.
const MAX_STATUS: usize = 64 * 1024;

/// How much was sent, and how much of it the peer has certainly read.
#[derive(Default)]
struct Flow {
    sent: AtomicU64,
    read: AtomicU64,
}

/// Starts the pump of one connection. It ends by itself once all parts of the stream are dropped, within seconds, having closed
/// the connection: a process left inside may then go on with its output.
///
/// `cut` changes when the sandbox is known to be gone, or not to answer, although the connection does not say so.
pub(crate) fn start<S>(socket: S, half_close: bool, cut: watch::Receiver<u64>) -> CarrierStream
where
    S: Stream<Item = Result<Message, WsError>> + Sink<Message, Error = WsError> + Send + 'static,
{
    let (sink, stream) = socket.split();
    let (stdin, input) = duplex(INPUT_BUFFER);
    let (stdout, out) = duplex(OUTPUT_BUFFER);
    let (stderr, err) = duplex(OUTPUT_BUFFER);
    let (held, dropped) = mpsc::channel::<()>(1);
    let (over, closed) = oneshot::channel();
    let flow = Arc::new(Flow::default());
    let reader = Reader { stream, out: Some(out), err: Some(err), status: None, flow: Arc::clone(&flow) };
    let writer = Writer { sink, input, half_close, flow };
    // Ends by itself, as said above; it must outlive the stream to say farewell.
    tokio::spawn(pump(reader, writer, dropped, cut, over));
    CarrierStream::new(Part(stdin, held.clone()), Part(stdout, held.clone()), Part(stderr, held.clone()), async move {
        let _held = held;
        Closed::new(closed.await.unwrap_or_else(|_| "the connection is no more".to_owned()))
    })
}

async fn pump<S>(
    mut reader: Reader<S>,
    mut writer: Writer<S>,
    mut dropped: mpsc::Receiver<()>,
    mut cut: watch::Receiver<u64>,
    over: oneshot::Sender<String>,
) where
    S: Stream<Item = Result<Message, WsError>> + Sink<Message, Error = WsError> + Send + 'static,
{
    let detail = {
        let reading = reader.run();
        let writing = writer.run();
        let mut writing = std::pin::pin!(async {
            writing.await;
            // What cannot be written any more can still be read.
            std::future::pending::<()>().await;
        });
        tokio::select! {
            detail = reading => Some(detail),
            () = &mut writing => None,
            _ = dropped.recv() => None,
            Ok(()) = cut.changed() => Some("the sandbox is gone, or nothing answers for it".to_owned()),
        }
    };
    let wanted = detail.is_none();
    reader.end().await;
    let _ = over.send(detail.unwrap_or_else(|| "closed".to_owned()));
    // Cleanly, and reading on to the end, so that nothing inside blocks on a pipe that nobody empties.
    let farewell = async {
        let _ = writer.sink.close().await;
        while wanted && matches!(reader.stream.next().await, Some(Ok(_))) {}
    };
    let _ = timeout(FAREWELL, farewell).await;
}

/// From the sandbox.
struct Reader<S> {
    stream: futures::stream::SplitStream<S>,
    out: Option<DuplexStream>,
    err: Option<DuplexStream>,
    status: Option<String>,
    flow: Arc<Flow>,
}

impl<S> Reader<S>
where
    S: Stream<Item = Result<Message, WsError>>,
{
    /// Reads to the end of the connection, and says how it ended.
    async fn run(&mut self) -> String {
        loop {
            let patience = if self.status.is_some() { FAREWELL } else { SILENCE };
            let message = match timeout(patience, self.stream.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return self.how(&error.to_string()),
                Ok(None) => return self.how("the connection ended without a status"),
                Err(_) if self.status.is_some() => return self.how(""),
                // Input that nobody inside reads can keep the peer from reading our pings.
                Err(_) if self.flow.read.load(Ordering::Acquire) < self.flow.sent.load(Ordering::Acquire) => continue,
                Err(_) => return self.how(&format!("no answer within {SILENCE:?}")),
            };
            match message {
                Message::Binary(frame) => self.frame(frame).await,
                Message::Pong(payload) => {
                    if let Ok(count) = <[u8; 8]>::try_from(payload.as_ref()) {
                        self.flow.read.fetch_max(u64::from_be_bytes(count), Ordering::AcqRel);
                    }
                }
                Message::Close(_) => return self.how("the connection was closed without a status"),
                // Pings are answered by the library.
                Message::Text(_) | Message::Ping(_) | Message::Frame(_) => {}
            }
        }
    }

    fn how(&self, otherwise: &str) -> String {
        self.status.clone().unwrap_or_else(|| otherwise.to_owned())
    }

    async fn frame(&mut self, frame: Bytes) {
        let Some((channel, data)) = frame.split_first() else { return };
        match *channel {
            STDOUT => pass(&mut self.out, data).await,
            STDERR => pass(&mut self.err, data).await,
            STATUS => self.status = Some(status(data)),
            CLOSE => match data.first() {
                Some(&STDOUT) => finish(&mut self.out).await,
                Some(&STDERR) => finish(&mut self.err).await,
                _ => {}
            },
            _ => {}
        }
    }

    /// Tells the consumers that nothing more comes.
    async fn end(&mut self) {
        finish(&mut self.out).await;
        finish(&mut self.err).await;
    }
}

/// Hands data on; what nobody wants any more is dropped, so that the rest goes on.
async fn pass(output: &mut Option<DuplexStream>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    if let Some(to) = output
        && to.write_all(data).await.is_err()
    {
        *output = None;
    }
}

async fn finish(output: &mut Option<DuplexStream>) {
    if let Some(mut to) = output.take() {
        let _ = to.shutdown().await;
    }
}

/// A status as a line for people.
fn status(data: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Status {
        #[serde(default)]
        status: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice::<Status>(&data[..data.len().min(MAX_STATUS)]) {
        Ok(status) => crate::state::words(&[Some(&status.status), Some(&status.reason), Some(&status.message)]),
        Err(_) => "the connection ended with a status that is none".to_owned(),
    }
}

/// To the sandbox.
struct Writer<S> {
    sink: futures::stream::SplitSink<S, Message>,
    input: DuplexStream,
    half_close: bool,
    flow: Arc<Flow>,
}

impl<S> Writer<S>
where
    S: Sink<Message, Error = WsError>,
{
    /// Writes until the connection takes no more.
    async fn run(&mut self) {
        let mut pings = interval(PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset_at(Instant::now() + PING);
        let mut ended = false;
        let mut frame = vec![STDIN];
        loop {
            frame.truncate(1);
            frame.reserve(FRAME);
            let mut room = (&mut self.input).take(FRAME as u64);
            let message = tokio::select! {
                read = room.read_buf(&mut frame), if !ended => match read {
                    Ok(n) if n > 0 => {
                        if self.flow.sent.fetch_add(1, Ordering::AcqRel) == self.flow.read.load(Ordering::Acquire) {
                            pings.reset_at(Instant::now() + PING_AFTER_INPUT);
                        }
                        Message::Binary(Bytes::from(std::mem::replace(&mut frame, vec![STDIN])))
                    }
                    // Without a way to say so the input just stays open: nothing inside depends on its end.
                    _ => {
                        ended = true;
                        if !self.half_close {
                            continue;
                        }
                        Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))
                    }
                },
                _ = pings.tick() => {
                    let sent = self.flow.sent.load(Ordering::Acquire);
                    Message::Ping(Bytes::copy_from_slice(&sent.to_be_bytes()))
                }
            };
            if self.sink.send(message).await.is_err() {
                return;
            }
        }
    }
}

/// One end of a stream; the last of them that is dropped ends the pump.
struct Part(DuplexStream, #[expect(dead_code, reason = "held for its drop")] mpsc::Sender<()>);

impl tokio::io::AsyncRead for Part {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Part {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        data: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "pump_tests.rs"]
mod tests;
