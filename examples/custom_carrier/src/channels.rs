//! Several channels over one WebSocket: a message is the byte of its channel, and a piece of data or, at the channel's end, none.
//!
//! Each side holds some pieces and no more. Messages stay in order, so a reader that stalls holds up the others: read them concurrently.

use std::io::{Error, ErrorKind, Result};
use std::{pin::Pin, time::Duration};

use futures::stream::{BoxStream, select_all, unfold};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::{net::UnixStream, select, time::timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, WebSocketConfig, frame::coding::CloseCode};

/// A channel by its byte, and what it carries.
pub type From = (u8, Pin<Box<dyn AsyncRead + Send>>);
/// A channel by its byte, and where it ends.
pub type To = (u8, Pin<Box<dyn AsyncWrite + Send>>);

/// The most data of a message.
pub const PIECE: usize = 16 * 1024;

/// The bounds of a connection.
pub fn bounds() -> Option<WebSocketConfig> {
    let config = WebSocketConfig::default().read_buffer_size(PIECE).write_buffer_size(0);
    Some(config.max_frame_size(Some(2 * PIECE)).max_message_size(Some(2 * PIECE)))
}

/// Carries `from` to the far side and what comes from there `to`, until there is a reason to end; answers that, or the far side's.
///
/// # Errors
///
/// The connection is lost, or the far side sent what it may not.
pub async fn carry(
    socket: WebSocketStream<UnixStream>,
    from: Vec<From>,
    mut to: Vec<To>,
    until: impl Future<Output = String>,
) -> Result<String> {
    let (mut sink, mut stream) = socket.split();
    let mut outgoing = select_all(from.into_iter().map(messages));
    let incoming = async {
        while let Some(message) = stream.next().await {
            match message.map_err(Error::other)? {
                Message::Binary(message) => {
                    let open = to.iter().position(|(channel, _)| message.first() == Some(channel));
                    let open = open.ok_or_else(|| Error::new(ErrorKind::InvalidData, "a message of no channel"))?;
                    match &message[1..] {
                        [] => drop(to.swap_remove(open)),
                        // What nobody takes any more is dropped, and the others go on.
                        piece => drop(to[open].1.write_all(piece).await),
                    }
                }
                Message::Close(frame) => return Ok(frame.map_or_else(String::new, |frame| frame.reason.to_string())),
                Message::Ping(_) | Message::Pong(_) => {}
                _ => return Err(Error::new(ErrorKind::InvalidData, "a message that is not binary")),
            }
        }
        Err(ErrorKind::UnexpectedEof.into())
    };
    let reason = select! {
        end = incoming => return end,
        Err(e) = sink.send_all(&mut outgoing) => return Err(Error::other(e)),
        reason = until => reason,
    };
    let farewell = CloseFrame { code: CloseCode::Normal, reason: reason.as_str().into() };
    let _ = timeout(Duration::from_secs(1), sink.send(Message::Close(Some(farewell)))).await;
    Ok(reason)
}

/// What a channel carries, as messages.
fn messages(from: From) -> BoxStream<'static, std::result::Result<Message, WsError>> {
    let next = async |from: Option<From>| {
        let ((channel, mut from), mut message) = (from?, Vec::with_capacity(PIECE + 1));
        message.push(channel);
        let more = matches!(from.read_buf(&mut message).await, Ok(n) if n > 0);
        Some((Ok(Message::Binary(message.into())), more.then_some((channel, from))))
    };
    unfold(Some(from), next).boxed()
}
