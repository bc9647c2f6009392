//! One connection, which can be broken on purpose.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// How a connection ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Politely: a `Close` frame on a WebSocket; a body that ends as if it were whole. A connection without either is
    /// ended as by `Fin`.
    Close,
    /// The connection is closed, and nothing was said: the client reads an end of file.
    Fin,
    /// The connection is reset: the client reads an error, and may lose what it had not read yet.
    Rst,
}

#[derive(Debug)]
pub(crate) struct Control {
    reset: AtomicBool,
    flushes: watch::Sender<u64>,
}

impl Control {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { reset: AtomicBool::new(false), flushes: watch::Sender::new(0) })
    }

    /// The connection ends as `cut` says as soon as its owner lets go of it.
    pub(crate) fn cut(&self, cut: Cut) {
        self.reset.store(cut == Cut::Rst, Ordering::SeqCst);
    }

    /// Waits until everything written so far is with the kernel.
    pub(crate) async fn flushed(&self) {
        let mut flushes = self.flushes.subscribe();
        flushes.mark_unchanged();
        let _ = flushes.changed().await;
    }
}

/// The connection as the HTTP server sees it.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Option<TcpStream>,
    control: Arc<Control>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, control: Arc<Control>) -> Self {
        Self { stream: Some(stream), control }
    }

    /// The connection itself, for whoever takes it over after an upgrade.
    pub(crate) fn into_stream(mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().filter(|_| self.control.reset.load(Ordering::SeqCst)) {
            // With no time to linger, closing resets. A connection that is gone already needs no reset.
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream()?.poll_flush(cx);
        if flushed.is_ready() {
            self.control.flushes.send_modify(|count| *count += 1);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.control.reset.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_shutdown(cx)
    }
}
