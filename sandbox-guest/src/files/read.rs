//! Content that comes out: a file's, or an archive.

use std::sync::Arc;

use bytes::Bytes;
use sandbox::{ByteStream, Effect, Error, ErrorKind, ExportStream, ReadStream, SandboxPath};
use tokio::time::timeout_at;

use super::answer::Answer;
use super::tar;
use super::transfer::{GiveUp, Transfer};
use crate::guest::Inner;
use crate::pool::Turn;
use crate::quote::push_word;
use crate::record::{Nonce, Piece, Record};
use crate::scripts::Part;
use crate::stream::late;

/// Opens a file and answers its content as a stream.
pub(crate) async fn read(inner: &Arc<Inner>, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
    // The shell counts in 63 bits, and asks for one byte more.
    let limit = limit.min(1 << 62);
    let request = |nonce: Nonce| request(&format!("__sbx_read {} {limit}", nonce.as_str()), path);
    open(inner, path, Part::Files, Whole::Counted { limit }, request).await
}

/// Packs what is at `path`.
pub(crate) async fn export(inner: &Arc<Inner>, path: &SandboxPath) -> Result<ExportStream, Error> {
    let request = |nonce: Nonce| request(&format!("__sbx_export {}", nonce.as_str()), path);
    open(inner, path, Part::Export, Whole::Marked(Tail::default()), request).await
}

fn request(head: &str, path: &SandboxPath) -> Vec<u8> {
    let mut text = head.as_bytes().to_vec();
    push_word(&mut text, path.as_bytes());
    text
}

/// Sends the request and waits for the beginning of the content. A stream that breaks before it costs another one: nothing came
/// yet, and reading changes nothing.
async fn open(
    inner: &Arc<Inner>,
    path: &SandboxPath,
    part: Part,
    whole: Whole,
    request: impl Fn(Nonce) -> Vec<u8>,
) -> Result<ByteStream, Error> {
    const TRIES: usize = 2;
    let mut tried = 0;
    let mut turn = inner.pool.turn().await?;
    let deadline = turn.deadline;
    loop {
        tried += 1;
        match begin(inner, turn, part, &request).await.map_err(|e| too_large(e, &whole)) {
            Ok(transfer) => {
                let incoming = Incoming { transfer: Some(transfer), path: path.clone(), whole, received: 0 };
                return Ok(ByteStream::new(incoming.into_stream()));
            }
            Err(e) if e.kind() == ErrorKind::Lost && tried < TRIES => {
                let again = timeout_at(deadline, inner.pool.turn()).await;
                turn = again.map_err(|_| late("it did not begin", inner.config.begin_timeout))??;
                turn.deadline = deadline;
            }
            Err(e) => return Err(e.with_effect(Effect::None)),
        }
    }
}

async fn begin(
    inner: &Arc<Inner>,
    turn: Turn,
    part: Part,
    request: impl Fn(Nonce) -> Vec<u8>,
) -> Result<Transfer, Error> {
    let mut transfer = Transfer::begin(inner, turn, part, GiveUp::Kill, &[], request).await?;
    let record = transfer.begun().await?;
    if record.kind == b'B' {
        return Ok(transfer);
    }
    let answer = Answer::parse(&record)?;
    transfer.settle(answer.in_step);
    answer.outcome.into_result()?;
    Err(Error::new(ErrorKind::Protocol).because("an end where content begins"))
}

/// What is too large says how large: the number comes from inside, and is shown only if it is one.
fn too_large(error: Error, whole: &Whole) -> Error {
    let Whole::Counted { limit } = whole else { return error };
    if error.kind() != ErrorKind::FileTooLarge {
        return error;
    }
    let size = error.reason().and_then(|size| size.parse::<u64>().ok()).filter(|size| size > limit);
    let reason = match size {
        Some(size) => format!("it has {size} bytes, and the limit of the call is {limit}"),
        // Found out while it was read.
        None => format!("it has more than {limit} bytes, the limit of the call"),
    };
    Error::new(ErrorKind::FileTooLarge).because(reason)
}

/// How one knows that content is whole, besides that the last record says so.
enum Whole {
    /// The record says how much was sent; it is at most this much.
    Counted { limit: u64 },
    /// It ends as an archive does.
    Marked(Tail),
}

/// The last bytes of an archive.
#[derive(Default)]
struct Tail {
    kept: Vec<u8>,
}

impl Tail {
    fn take(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(tar::END.len())..];
        let surplus = (self.kept.len() + bytes.len()).saturating_sub(tar::END.len());
        self.kept.drain(..surplus);
        self.kept.extend_from_slice(bytes);
    }

    fn is_end(&self) -> bool {
        self.kept == tar::END
    }
}

/// Content under way.
struct Incoming {
    /// Until the verdict.
    transfer: Option<Transfer>,
    path: SandboxPath,
    whole: Whole,
    received: u64,
}

impl Incoming {
    fn into_stream(self) -> impl futures::Stream<Item = Result<Bytes, Error>> + Send + 'static {
        futures::stream::unfold(self, |mut incoming| async move {
            let item = incoming.next().await.transpose()?;
            Some((item, incoming))
        })
    }

    /// The next bytes, `None` at the verified end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(transfer) = self.transfer.as_mut() else { return Ok(None) };
        let inner = Arc::clone(transfer.inner());
        let result = match transfer.receive().await {
            Ok(Piece::Outside(bytes)) => match self.take(&bytes) {
                Ok(()) => return Ok(Some(bytes)),
                Err(e) => Err(e),
            },
            Ok(Piece::Record(record)) => self.end(&record),
            Err(e) => inner.explain(Err(e)).await,
        };
        self.transfer = None;
        result.map_err(|e| e.with_effect(Effect::None).at(self.path.clone())).map(|()| None)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.received += bytes.len() as u64;
        match &mut self.whole {
            Whole::Counted { limit } if self.received > *limit => {
                Err(too_large(Error::new(ErrorKind::FileTooLarge), &self.whole))
            }
            Whole::Counted { .. } => Ok(()),
            Whole::Marked(tail) => {
                tail.take(bytes);
                Ok(())
            }
        }
    }

    /// The verdict.
    fn end(&mut self, record: &Record) -> Result<(), Error> {
        let answer = Answer::parse(record)?;
        if let Some(transfer) = self.transfer.take() {
            transfer.settle(answer.in_step);
        }
        let sent = answer.outcome.into_result().map_err(|e| too_large(e, &self.whole))?;
        let received = self.received;
        let missing = match &self.whole {
            Whole::Counted { .. } if sent != received => format!("{received} bytes arrived of {sent} that were sent"),
            Whole::Marked(tail) if !tail.is_end() || !received.is_multiple_of(tar::BLOCK as u64) => {
                format!("{received} bytes that do not end as an archive does")
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::ShortTransfer).because(missing))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_end_of_an_archive_is_seen_however_it_is_cut(
            before in proptest::collection::vec(any::<u8>(), 0..3000),
            zeros in 0usize..2000,
            sizes in proptest::collection::vec(1usize..1500, 1..6),
        ) {
            let whole = [before, vec![0; zeros]].concat();
            let (mut tail, mut rest, mut turn) = (Tail::default(), whole.as_slice(), 0);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(sizes[turn % sizes.len()].min(rest.len()));
                tail.take(piece);
                (rest, turn) = (after, turn + 1);
                prop_assert!(tail.kept.len() <= tar::END.len());
            }
            prop_assert_eq!(tail.is_end(), whole.ends_with(&tar::END));
        }
    }
}
