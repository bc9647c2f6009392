//! Several channels over one WebSocket: a message is the byte of its channel, and a piece of data or, at the channel's end, none.
//!
//! Each side holds a piece or two and no more. Messages stay in order, so a reader that stalls holds up the others.

use std::io::{Error, ErrorKind, Result};
use std::{pin::Pin, time::Duration};

use futures::stream::{BoxStream, select_all, unfold};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::{net::UnixStream, select, time::timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as WsError, protocol::Message, protocol::WebSocketConfig};

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

/// Carries `from` to the far side and what comes from there `to`, until then, or until the far side ends it. Fails if the connection is
/// lost, or if the far side sends what it may not.
pub async fn carry(
    socket: WebSocketStream<UnixStream>,
    from: Vec<From>,
    mut to: Vec<To>,
    until: impl Future,
) -> Result<()> {
    let (mut sink, mut stream) = socket.split();
    let mut outgoing = select_all(from.into_iter().map(messages));
    let incoming = async {
        while let Some(message) = stream.next().await {
            let message = match message.map_err(Error::other)? {
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return Ok(()),
                message => message.into_data(),
            };
            let open = to.iter().position(|(channel, _)| message.first() == Some(channel));
            let open = open.ok_or_else(|| Error::new(ErrorKind::InvalidData, "a message of no open channel"))?;
            // What nobody takes any more is dropped, and the others go on.
            let _ = match &message[1..] {
                [] => to.swap_remove(open).1.shutdown().await,
                piece => to[open].1.write_all(piece).await,
            };
        }
        Err(ErrorKind::UnexpectedEof.into())
    };
    select! {
        end = incoming => end,
        Err(e) = sink.send_all(&mut outgoing) => Err(Error::other(e)),
        _ = until => timeout(Duration::from_secs(1), sink.close()).await?.map_err(Error::other),
    }
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
