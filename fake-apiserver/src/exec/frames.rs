//! WebSocket frames, as a server reads and writes them. Written out here because the point is to write wrong ones.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest frame that is taken.
const LONGEST: u64 = 16 * 1024 * 1024;

pub(super) const CONTINUE: u8 = 0;
pub(super) const BINARY: u8 = 2;
pub(super) const CLOSE: u8 = 8;
pub(super) const PING: u8 = 9;
pub(super) const PONG: u8 = 10;

/// The beginning of a whole message of this length. Servers do not mask.
pub(super) fn header(opcode: u8, length: usize) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    match length {
        0..126 => out.push(length as u8),
        126..65_536 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out
}

/// A whole frame.
pub(super) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = header(opcode, payload.len());
    out.extend_from_slice(payload);
    out
}

/// A whole message on a channel.
pub(super) fn message(channel: u8, data: &[u8]) -> Vec<u8> {
    let mut out = header(BINARY, data.len() + 1);
    out.push(channel);
    out.extend_from_slice(data);
    out
}

pub(super) fn close(code: u16) -> Vec<u8> {
    frame(CLOSE, &code.to_be_bytes())
}

/// A frame of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) opcode: u8,
    pub(super) payload: Bytes,
}

/// Takes a stream of bytes apart into frames.
#[derive(Debug)]
pub(super) struct Frames<R> {
    from: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// `read_already` comes before anything else.
    pub(super) fn new(from: R, read_already: &[u8]) -> Self {
        Self { from, buffer: BytesMut::from(read_already) }
    }

    /// The next frame; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = take(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(64 * 1024);
            if self.from.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

fn take(buffer: &mut BytesMut) -> io::Result<Option<Frame>> {
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let [first, second, rest @ ..] = &buffer[..] else { return Ok(None) };
    if second & 0x80 == 0 {
        return Err(bad("a client's frame has to be masked"));
    }
    let opcode = first & 0x0f;
    let (length, head) = match (second & 0x7f, rest) {
        (126, [a, b, ..]) => (u64::from(u16::from_be_bytes([*a, *b])), 4),
        (127, [a, b, c, d, e, f, g, h, ..]) => (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), 10),
        (126 | 127, _) => return Ok(None),
        (length, _) => (u64::from(length), 2),
    };
    if length > LONGEST {
        return Err(bad("the frame is too long"));
    }
    let length = length as usize;
    if buffer.len() < head + 4 + length {
        return Ok(None);
    }
    buffer.advance(head);
    let mask = buffer.split_to(4);
    let mut payload = buffer.split_to(length);
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte ^= mask[at % 4];
    }
    Ok(Some(Frame { opcode, payload: payload.freeze() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = header(opcode, payload.len());
        out[1] |= 0x80;
        let mask = [1, 2, 3, 4];
        out.extend_from_slice(&mask);
        out.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        out
    }

    #[tokio::test]
    async fn frames_of_every_length_however_they_arrive() {
        for length in [0, 1, 125, 126, 65_535, 65_536, 200_000] {
            let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let bytes = masked(BINARY, &payload);
            for first in [0, 1, 2, 3, 9, bytes.len()] {
                let first = first.min(bytes.len());
                let mut frames = Frames::new(&bytes[first..], &bytes[..first]);
                let frame = frames.next().await.unwrap().unwrap();
                assert_eq!((frame.opcode, frame.payload.len()), (BINARY, length));
                assert_eq!(frame.payload, payload);
                assert_eq!(frames.next().await.unwrap(), None);
            }
        }
    }

    #[tokio::test]
    async fn a_frame_without_mask_or_without_bound_is_an_error() {
        let plain = frame(BINARY, b"x");
        assert!(Frames::new(&plain[..], &[]).next().await.is_err());
        let mut huge = vec![0x82, 0xff];
        huge.extend_from_slice(&u64::MAX.to_be_bytes());
        assert!(Frames::new(&huge[..], &[]).next().await.is_err());
    }
}
