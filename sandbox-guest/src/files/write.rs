//! Writing one file.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use sandbox::{Body, Effect, Error, ErrorKind, FileWrite};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::answer::{Answer, Outcome};
use super::transfer::{GiveUp, Transfer};
use crate::guest::Inner;
use crate::quote::push_word;
use crate::record::{Nonce, Record};
use crate::scripts::Part;

/// Up to this size the content is read first and goes with the request: one round trip.
pub(crate) const WHOLE: u64 = 64 << 10;
/// Up to this size, and without NULs, it stands in the request itself: the shell needs no tool to copy it.
const WORD: usize = 4 << 10;
/// What is announced at once of a larger one. If its source fails, this is what has to be filled up at most.
const CHUNK: u64 = 16 << 20;
/// What is held of it at a time.
const BUFFER: usize = 256 << 10;

/// Writes a file.
pub(crate) async fn write(inner: &Arc<Inner>, file: FileWrite<'_>) -> Result<(), Error> {
    let target = Target::new(&file);
    write_to(inner, &target, file).await
}

/// Writes a file of a batch.
pub(crate) async fn write_member(inner: &Arc<Inner>, file: FileWrite<'_>) -> Result<(), Error> {
    let target = Target::of_member(&file);
    write_to(inner, &target, file).await
}

async fn write_to(inner: &Arc<Inner>, target: &Target, file: FileWrite<'_>) -> Result<(), Error> {
    if file.size <= WHOLE {
        let content = content(file.body, file.size, inner.config.inactivity).await?;
        return write_whole(inner, target, &content).await;
    }
    write_chunks(inner, target, file.body, file.size).await
}

/// Where content goes, and how.
pub(crate) struct Target {
    path: Vec<u8>,
    mode: String,
    new: &'static str,
    /// The umask for directories, if it is not the image's.
    umask: &'static str,
}

impl Target {
    /// Where `file` goes.
    pub(crate) fn new(file: &FileWrite<'_>) -> Self {
        Self {
            path: file.path.as_bytes().to_vec(),
            mode: file.mode.map_or_else(|| "''".to_owned(), |mode| format!("{mode:o}")),
            new: if file.create_new { "1" } else { "''" },
            umask: "''",
        }
    }

    /// Where `file` goes as one of many: the directories that it needs are made with mode 0755.
    pub(crate) fn of_member(file: &FileWrite<'_>) -> Self {
        Self { umask: "022", ..Self::new(file) }
    }

    /// The request; `content` goes with it as a word.
    fn request(&self, nonce: Nonce, size: u64, whole: &str, content: Option<&[u8]>) -> Vec<u8> {
        // A name that nobody inside can know before it is there.
        let token = &Nonce::new();
        let (nonce, token, Self { mode, new, umask, .. }) = (nonce.as_str(), &token.as_str()[..16], self);
        let mut text = format!("__sbx_write {nonce} {token} {size} {whole} {mode} {new} {umask}").into_bytes();
        push_word(&mut text, &self.path);
        if let Some(content) = content {
            push_word(&mut text, content);
        }
        text
    }
}

/// All of a body that is declared to have `size` bytes.
pub(crate) async fn content(mut body: Body<'_>, size: u64, quiet: Duration) -> Result<BytesMut, Error> {
    let size = usize::try_from(size).expect("only bodies that fit into memory are read whole");
    let mut content = BytesMut::with_capacity(size + 1);
    while content.len() <= size {
        let room = size + 1 - content.len();
        if pull(&mut body, &mut content, room, quiet).await? == 0 {
            break;
        }
    }
    check_length(content.len() as u64, size as u64).map(|()| content)
}

/// Reads at most `room` bytes of the source; 0 at its end.
async fn pull(body: &mut Body<'_>, into: &mut BytesMut, room: usize, quiet: Duration) -> Result<usize, Error> {
    let mut source = body.take(room as u64);
    match timeout(quiet, source.read_buf(into)).await {
        Ok(Ok(n)) => Ok(n),
        Ok(Err(e)) => Err(Error::new(ErrorKind::ShortTransfer).because("its source failed").caused_by(e)),
        Err(_) => {
            Err(Error::new(ErrorKind::DeadlineExceeded).because(format!("its source gave nothing within {quiet:?}")))
        }
    }
}

/// Whether a source gave what was declared; it is read no further than one byte beyond.
fn check_length(got: u64, size: u64) -> Result<(), Error> {
    let error = Error::new(ErrorKind::ShortTransfer);
    match got.cmp(&size) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(error.because(format!("its source ended after {got} bytes of {size}"))),
        std::cmp::Ordering::Greater => Err(error.because(format!("its source has more than {size} bytes"))),
    }
}

/// Writes content that is here and of the right length.
pub(crate) async fn write_whole(inner: &Arc<Inner>, target: &Target, content: &[u8]) -> Result<(), Error> {
    let size = content.len() as u64;
    let word = (content.len() <= WORD && !content.contains(&0)).then_some(content);
    let after = if word.is_some() { &[] } else { content };
    let request = |nonce| target.request(nonce, size, "1", word);
    let turn = inner.pool.turn().await?;
    let mut transfer = Transfer::begin(inner, turn, Part::Write, GiveUp::CleanUp, after, request).await?;
    let record = transfer.next_record().await.map_err(|e| e.with_effect(Effect::Unknown))?;
    finish(transfer, &record)
}

/// Takes the shell's verdict.
fn finish(transfer: Transfer, record: &Record) -> Result<(), Error> {
    let answer = Answer::parse(record)?;
    transfer.settle(answer.in_step);
    answer.outcome.into_result().map(drop)
}

/// Writes content that comes from its source piece by piece.
async fn write_chunks(inner: &Arc<Inner>, target: &Target, body: Body<'_>, size: u64) -> Result<(), Error> {
    let request = |nonce| target.request(nonce, size, "''", None);
    // Nothing shows inside before the commit is sent.
    let untouched = |e: Error| e.with_effect(Effect::None);
    let turn = inner.pool.turn().await?;
    let begun = Transfer::begin(inner, turn, Part::Write, GiveUp::CleanUp, &[], request).await;
    let mut transfer = begun.map_err(untouched)?;
    let record = transfer.begun().await.map_err(untouched)?;
    if record.kind != b'G' {
        return finish(transfer, &record);
    }
    let mut sending = Sending { transfer, body, buffer: BytesMut::new(), size, sent: 0 };
    match sending.send().await.map_err(untouched)? {
        Sent::All => {}
        Sent::Answered(record) => {
            // It failed in the middle, and what is under way is swallowed by nobody who counts.
            let answer = Answer::parse(&record).map_err(untouched)?;
            return match answer.outcome.into_result() {
                Ok(_) => Err(Error::new(ErrorKind::Protocol).because("it was done before all was sent")),
                Err(e) => Err(e),
            };
        }
        Sent::Failed(error) => return Err(sending.abort(error).await),
    }
    let mut transfer = sending.transfer;
    let record = match transfer.send_or_answer(b".\n").await {
        Ok(Some(record)) => record,
        Ok(None) => transfer.next_record().await.map_err(|e| e.with_effect(Effect::Unknown))?,
        Err(e) => return Err(e.with_effect(Effect::Unknown)),
    };
    finish(transfer, &record)
}

/// How far the content came.
enum Sent {
    All,
    /// The shell has answered already.
    Answered(Record),
    /// The source failed, or did not give what was declared. The stream is in step again.
    Failed(Error),
}

struct Sending<'a> {
    transfer: Transfer,
    body: Body<'a>,
    buffer: BytesMut,
    size: u64,
    sent: u64,
}

impl Sending<'_> {
    async fn send(&mut self) -> Result<Sent, Error> {
        while self.sent < self.size {
            let chunk = CHUNK.min(self.size - self.sent);
            if let Some(record) = self.transfer.send_or_answer(format!("{chunk}\n").as_bytes()).await? {
                return Ok(Sent::Answered(record));
            }
            let mut left = chunk;
            while left > 0 {
                let failed = match self.pull(left).await {
                    Ok(0) => check_length(self.sent, self.size).err(),
                    Ok(_) => None,
                    Err(e) => Some(e),
                };
                if let Some(error) = failed {
                    return Ok(self.fill_up(left).await?.map_or(Sent::Failed(error), Sent::Answered));
                }
                left -= self.buffer.len() as u64;
                self.sent += self.buffer.len() as u64;
                if let Some(record) = self.transfer.send_or_answer(&self.buffer).await? {
                    return Ok(Sent::Answered(record));
                }
            }
        }
        let more = match self.pull(1).await {
            Ok(0) => return Ok(Sent::All),
            Ok(n) => self.sent + n as u64,
            Err(e) => return Ok(Sent::Failed(e)),
        };
        Ok(check_length(more, self.size).map_or_else(Sent::Failed, |()| Sent::All))
    }

    /// The next piece of the source, at most `left` bytes, into the buffer.
    async fn pull(&mut self, left: u64) -> Result<usize, Error> {
        let room = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        self.buffer.clear();
        self.buffer.reserve(room);
        let quiet = self.transfer.inner().config.inactivity;
        pull(&mut self.body, &mut self.buffer, room, quiet).await
    }

    /// Sends zeros for what was announced and is not there.
    async fn fill_up(&mut self, mut left: u64) -> Result<Option<Record>, Error> {
        let zeros = [0u8; 32 << 10];
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(zeros.len()).min(zeros.len());
            if let Some(record) = self.transfer.send_or_answer(&zeros[..n]).await? {
                return Ok(Some(record));
            }
            left -= n as u64;
        }
        Ok(None)
    }

    /// Tells the shell to forget what it has; answers the error that the caller gets.
    async fn abort(mut self, error: Error) -> Error {
        let record = match self.transfer.send_or_answer(b"!\n").await {
            Ok(Some(record)) => Ok(record),
            Ok(None) => self.transfer.next_record().await,
            Err(e) => Err(e),
        };
        if let Ok(Answer { in_step, outcome: Outcome::Aborted }) = record.and_then(|r| Answer::parse(&r)) {
            self.transfer.settle(in_step);
        }
        error
    }
}
