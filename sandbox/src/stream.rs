//! Bytes in and out, whose verdict comes at the end.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use tokio::io::AsyncRead;

use crate::{Error, ErrorKind, SandboxPath};

/// Bytes that arrive piece by piece, and the verdict on them at the end.
///
/// The bytes are whole only once [`next`](Self::next) has answered `None`, or [`finish`](Self::finish) or
/// [`collect`](Self::collect) `Ok`. A failure is the last item. Dropping it ends the transfer.
#[must_use = "the bytes are whole only once `finish` or `collect` said so"]
pub struct ByteStream {
    inner: BoxStream<'static, Result<Bytes, Error>>,
    delivered: u64,
    ended: bool,
}

impl ByteStream {
    /// Wraps a stream that ends with `None` only where the bytes are known to be whole, for implementers.
    pub fn new(inner: impl Stream<Item = Result<Bytes, Error>> + Send + 'static) -> Self {
        Self { inner: inner.boxed(), delivered: 0, ended: false }
    }

    /// The next piece, `None` at the verified end. After `None` or an error it stays `None`.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        StreamExt::next(self).await
    }

    /// Reads on to the end, throws away what comes, and answers how many bytes there were in all.
    ///
    /// # Errors
    ///
    /// Whatever kept the bytes from being whole.
    pub async fn finish(mut self) -> Result<u64, Error> {
        while let Some(piece) = self.next().await {
            piece?;
        }
        Ok(self.delivered)
    }

    /// Reads on to the end and keeps what comes, at most `most` bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileTooLarge`] if there are more; otherwise whatever kept the bytes from being whole.
    pub async fn collect(mut self, most: usize) -> Result<Bytes, Error> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if all.len() + piece.len() > most {
                return Err(Error::new(ErrorKind::FileTooLarge).because(format!("more than {most} bytes")));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// How many bytes were delivered so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

impl Stream for ByteStream {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let item = std::task::ready!(self.inner.as_mut().poll_next(cx));
        match &item {
            Some(Ok(piece)) => self.delivered += piece.len() as u64,
            Some(Err(_)) | None => self.ended = true,
        }
        Poll::Ready(item)
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream")
            .field("delivered", &self.delivered)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// A file's content.
pub type ReadStream = ByteStream;
/// A plain tar archive with one entry at its top.
pub type ExportStream = ByteStream;

/// Where the bytes of a file to write come from.
pub struct Body<'a>(Pin<Box<dyn AsyncRead + Send + 'a>>);

impl<'a> Body<'a> {
    /// Reads them from `source`.
    pub fn reader(source: impl AsyncRead + Send + 'a) -> Self {
        Self(Box::pin(source))
    }

    /// Has them already.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self(Box::pin(Held(bytes.into())))
    }
}

/// `AsyncRead` over bytes that are here.
struct Held(Bytes);

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let n = buf.remaining().min(self.0.len());
        buf.put_slice(&self.0.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Body<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.0.as_mut().poll_read(cx, buf)
    }
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}

/// A file to write.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileWrite<'a> {
    /// Where it goes.
    pub path: SandboxPath,
    /// How many bytes `body` yields, no more and no fewer.
    pub size: u64,
    /// The bytes.
    pub body: Body<'a>,
    /// The permission bits. A file gets the bits of its request; `None` keeps those of the file that is there, else is 0644.
    pub mode: Option<u32>,
    /// Fail if something is there already.
    pub create_new: bool,
}

impl<'a> FileWrite<'a> {
    /// The largest file, in bytes.
    pub const MAX_SIZE: u64 = 1 << 40;

    /// Writes `size` bytes of `body` to `path`.
    #[must_use]
    pub fn new(path: SandboxPath, size: u64, body: Body<'a>) -> Self {
        Self { path, size, body, mode: None, create_new: false }
    }

    /// Writes `bytes` to `path`.
    #[must_use]
    pub fn bytes(path: SandboxPath, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(path, bytes.len() as u64, Body::bytes(bytes))
    }

    /// Sets the permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Fails if something is there already.
    #[must_use]
    pub fn create_new(mut self) -> Self {
        self.create_new = true;
        self
    }

    /// Checks it. A size or mode out of range is refused before the body is read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`], naming the value and the rule.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidRequest).at(self.path.clone()).because(what));
        if let Some(mode) = self.mode.filter(|mode| *mode > 0o7777) {
            return refuse(format!("mode {mode:o}: it must be at most 7777, in octal"));
        }
        if self.size > Self::MAX_SIZE {
            return refuse(format!("size {}: it must be at most {}", self.size, Self::MAX_SIZE));
        }
        Ok(())
    }
}

/// Files to write, taken one after the other.
pub struct FileBatch<'a>(BoxStream<'a, FileWrite<'a>>);

impl<'a> FileBatch<'a> {
    /// The files of `files`, in order.
    pub fn new(files: impl IntoIterator<Item = FileWrite<'a>, IntoIter: Send + 'a>) -> Self {
        Self(futures::stream::iter(files).boxed())
    }

    /// The files of a stream, in order.
    pub fn stream(files: impl Stream<Item = FileWrite<'a>> + Send + 'a) -> Self {
        Self(files.boxed())
    }
}

impl<'a> Stream for FileBatch<'a> {
    type Item = FileWrite<'a>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for FileBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileBatch")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_is_the_last_item_and_finish_reports_it() {
        let pieces = || {
            futures::stream::iter([
                Ok(Bytes::from_static(b"ab")),
                Err(Error::new(ErrorKind::ShortTransfer)),
                Ok(Bytes::from_static(b"late")),
            ])
        };
        let mut stream = ByteStream::new(pieces());
        assert_eq!(stream.next().await.unwrap().unwrap(), "ab");
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
        assert_eq!(ByteStream::new(pieces()).finish().await.unwrap_err().kind(), ErrorKind::ShortTransfer);
        let whole =
            || ByteStream::new(futures::stream::iter([Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"cd"))]));
        assert_eq!(whole().finish().await.unwrap(), 4);
        assert_eq!(whole().collect(4).await.unwrap(), "abcd");
        assert_eq!(whole().collect(3).await.unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn files_out_of_range() {
        let file = || FileWrite::bytes(SandboxPath::new("/a").unwrap(), "x");
        file().with_mode(0o7777).validate().unwrap();
        assert!(file().with_mode(0o10000).validate().is_err());
        let huge = FileWrite::new(SandboxPath::new("/a").unwrap(), u64::MAX, Body::bytes(""));
        assert_eq!(huge.validate().unwrap_err().kind(), ErrorKind::InvalidRequest);
    }
}
