//! From what the walk finds to batches for the sandbox.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use sandbox::{Body, Error, FileWrite, SandboxPath};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::mpsc::Receiver;

use super::walk::{Content, Item};
use crate::options::Meter;

/// The most files of one call to the sandbox: their paths are kept, so that an error can name one.
const BATCH_FILES: usize = 2048;
/// The bytes after which a batch ends.
const BATCH_BYTES: u64 = 256 << 20;
/// The most bytes of directory names, or of links, of one command: far below what the kernel takes as arguments.
const BATCH_ARGS: usize = 64 << 10;

/// What the walk found and the sandbox does not have yet.
pub(super) struct Feed {
    source: Receiver<Item>,
    meter: Arc<Mutex<Meter>>,
    first: Option<FileWrite<'static>>,
    paths: Vec<SandboxPath>,
    bytes: u64,
    args: usize,
    pub(super) directories: Vec<SandboxPath>,
    pub(super) links: Vec<(Vec<u8>, SandboxPath)>,
    /// Whether anything can have arrived in the sandbox.
    pub(super) begun: bool,
}

impl Feed {
    pub(super) fn new(source: Receiver<Item>, meter: Arc<Mutex<Meter>>) -> Self {
        Self {
            source,
            meter,
            first: None,
            paths: Vec::new(),
            bytes: 0,
            args: 0,
            directories: Vec::new(),
            links: Vec::new(),
            begun: false,
        }
    }

    /// Waits for the next thing to send; false at the end. Begins a new batch.
    pub(super) async fn more(&mut self) -> bool {
        self.paths.clear();
        (self.bytes, self.args) = (0, 0);
        if self.first.is_none() {
            self.first = self.next_file().await;
        }
        self.first.is_some() || !self.directories.is_empty() || !self.links.is_empty()
    }

    pub(super) fn has_file(&self) -> bool {
        self.first.is_some()
    }

    /// The files of this batch; directories and links that come up among them are set aside.
    pub(super) fn files<'f>(&'f mut self) -> impl Stream<Item = FileWrite<'f>> + Send + 'f {
        futures::stream::unfold(self, |feed| async move {
            let file: FileWrite<'f> = match feed.first.take() {
                Some(file) => file,
                None if feed.paths.len() >= BATCH_FILES || feed.bytes >= BATCH_BYTES => return None,
                None => feed.next_file().await?,
            };
            feed.paths.push(file.path.clone());
            feed.bytes = feed.bytes.saturating_add(file.size);
            Some((file, feed))
        })
    }

    /// The path of the member that `error` is about.
    pub(super) fn name(&mut self, error: Error) -> Error {
        let member = error.member();
        // The members before it are there.
        self.begun |= member != Some(0) && !self.paths.is_empty();
        match member.and_then(|index| self.paths.get(index)) {
            Some(path) if error.path().is_none() => error.at(path.clone()),
            _ => error,
        }
    }

    /// The next file, unless it has to wait for the directories or links before it.
    async fn next_file(&mut self) -> Option<FileWrite<'static>> {
        while self.args < BATCH_ARGS {
            match self.source.recv().await? {
                Item::File { path, mode, size, content } => return Some(self.file(path, mode, size, content)),
                Item::Directory(path) => {
                    self.args += path.as_bytes().len() + 16;
                    self.directories.push(path);
                }
                Item::Link { path, target } => {
                    self.args += path.as_bytes().len() + target.len() + 32;
                    self.links.push((target, path));
                }
            }
        }
        None
    }

    fn file(&self, path: SandboxPath, mode: u32, size: u64, content: Content) -> FileWrite<'static> {
        let meter = Arc::clone(&self.meter);
        let body = match content {
            Content::Here(bytes) => {
                Body::reader(Counted { inner: io::Cursor::new(bytes), left: size, meter, told: false })
            }
            Content::Open(file) => {
                let inner = tokio::fs::File::from_std(file).take(size);
                Body::reader(Counted { inner, left: size, meter, told: false })
            }
        };
        FileWrite::new(path, size, body).with_mode(mode)
    }
}

/// Tells the meter what is read of a file.
struct Counted<R> {
    inner: R,
    left: u64,
    meter: Arc<Mutex<Meter>>,
    told: bool,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let n = (buf.filled().len() - before) as u64;
        self.left = self.left.saturating_sub(n);
        let whole = self.left == 0 && !self.told;
        self.told |= whole;
        if n > 0 || whole {
            // A panic in the caller's own function poisons nothing that matters.
            let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
            if n > 0 {
                meter.bytes(n);
            }
            if whole {
                meter.file();
            }
        }
        Poll::Ready(Ok(()))
    }
}
