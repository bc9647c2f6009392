//! The bytes of an archive, bounded and watched.

use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;

use bytes::Bytes;
use sandbox::{Error, ErrorKind};
use tokio::sync::mpsc;

use crate::{Bound, Exceeded};

/// What the two ends of a download say to each other.
pub(crate) enum Piece {
    /// Some bytes.
    Data(Bytes),
    /// That was all, and it is whole.
    End,
}

/// Reads what arrives. It ends only where [`Piece::End`] came; where the other side just went away, it fails.
pub(crate) struct ChannelReader {
    pieces: mpsc::Receiver<Piece>,
    held: Bytes,
    ended: bool,
}

impl ChannelReader {
    pub(crate) fn new(pieces: mpsc::Receiver<Piece>) -> Self {
        Self { pieces, held: Bytes::new(), ended: false }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.held.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Data(bytes)) => self.held = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the transfer broke")),
            }
        }
        let n = self.held.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.held.split_to(n));
        Ok(n)
    }
}

/// What may be read, and why reading failed: shared by the reader inside the archive and the loop outside of it.
#[derive(Debug)]
struct Watch {
    /// How many bytes may be read before the loop has its turn again.
    allowance: u64,
    failure: Option<Failure>,
}

#[derive(Debug)]
enum Failure {
    Exceeded,
    Source(io::Error),
}

/// The far side of a [`Watched`].
#[derive(Debug, Clone)]
pub(crate) struct Watcher(Rc<RefCell<Watch>>);

/// Wraps a source, and gives the archive's reader no more of it than the loop allows.
///
/// The archive reader keeps the long names and extensions that stand before an entry in memory, whatever size they claim. This
/// bound needs to know nothing of their format, so it cannot disagree with the reader about it.
pub(crate) struct Watched<R> {
    source: R,
    watch: Rc<RefCell<Watch>>,
}

pub(crate) fn watched<R: Read>(source: R) -> (Watched<R>, Watcher) {
    let watch = Rc::new(RefCell::new(Watch { allowance: 0, failure: None }));
    (Watched { source, watch: Rc::clone(&watch) }, Watcher(watch))
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut watch = self.watch.borrow_mut();
        if watch.allowance == 0 && !buffer.is_empty() {
            watch.failure = Some(Failure::Exceeded);
            return Err(io::Error::other("too long"));
        }
        let most = usize::try_from(watch.allowance).unwrap_or(usize::MAX).min(buffer.len());
        loop {
            match self.source.read(&mut buffer[..most]) {
                Ok(n) => {
                    watch.allowance -= n as u64;
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    watch.failure = Some(Failure::Source(e));
                    return Err(io::Error::other("the source failed"));
                }
            }
        }
    }
}

impl Watcher {
    /// Allows the next `bytes`.
    pub(crate) fn allow(&self, bytes: u64) {
        self.0.borrow_mut().allowance = bytes;
    }

    /// What an error of the archive reader means: the source's own failure, the bound that was `bound`, or a malformed archive.
    pub(crate) fn explain(&self, error: &io::Error, bound: Bound, most: u64) -> Error {
        match self.0.borrow_mut().failure.take() {
            Some(Failure::Exceeded) => Exceeded { bound, most }.into_error(),
            Some(Failure::Source(e)) if e.kind() == io::ErrorKind::ConnectionAborted => {
                Error::new(ErrorKind::Lost).because("the archive broke off").caused_by(e)
            }
            Some(Failure::Source(e)) => {
                Error::new(ErrorKind::HostFile).because("the archive could not be read").caused_by(e)
            }
            None => malformed(&error.to_string()),
        }
    }
}

/// The archive as a whole breaks its format. `what` can hold bytes of it.
pub(crate) fn malformed(what: &str) -> Error {
    let what: String = what.chars().take(200).flat_map(char::escape_default).collect();
    Error::new(ErrorKind::ArchiveRefused).because(format!("it is not a whole archive: {what}"))
}
