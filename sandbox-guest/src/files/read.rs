//! Reading a file.

use std::sync::Arc;

use bytes::Bytes;
use sandbox::{Effect, Error, ErrorKind, ReadStream, SandboxPath};

use super::answer::Answer;
use super::transfer::{GiveUp, Transfer};
use crate::guest::Inner;
use crate::quote::push_word;
use crate::record::Piece;
use crate::scripts::Part;

/// Opens `path` and answers its content as a stream.
pub(crate) async fn read(inner: &Arc<Inner>, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
    // The shell counts in 63 bits, and asks for one byte more.
    let limit = limit.min(1 << 62);
    const TRIES: usize = 2;
    let mut tried = 0;
    loop {
        tried += 1;
        match open(inner, path, limit).await {
            Ok(Some(reading)) => return Ok(ReadStream::new(reading.into_stream())),
            Ok(None) => return Err(Error::new(ErrorKind::Protocol).because("an end where content begins")),
            // Nothing came yet, and reading changes nothing.
            Err(e) if e.kind() == ErrorKind::Lost && tried < TRIES => {}
            Err(e) => return Err(e.with_effect(Effect::None)),
        }
    }
}

async fn open(inner: &Arc<Inner>, path: &SandboxPath, limit: u64) -> Result<Option<Reading>, Error> {
    let request = |nonce: crate::record::Nonce| {
        let mut text = format!("__sbx_read {} {limit}", nonce.as_str()).into_bytes();
        push_word(&mut text, path.as_bytes());
        text
    };
    let mut transfer = Transfer::begin(inner, Part::Files, GiveUp::Kill, &[], request).await?;
    let record = transfer.next_record().await?;
    if record.kind == b'B' {
        return Ok(Some(Reading { transfer: Some(transfer), path: path.clone(), limit, received: 0 }));
    }
    let answer = Answer::parse(&record)?;
    transfer.settle(answer.in_step);
    answer.outcome.into_result().map(|_| None)
}

/// A file being read.
struct Reading {
    /// Until the verdict.
    transfer: Option<Transfer>,
    path: SandboxPath,
    limit: u64,
    received: u64,
}

impl Reading {
    fn into_stream(self) -> impl futures::Stream<Item = Result<Bytes, Error>> + Send + 'static {
        futures::stream::unfold(self, |mut reading| async move {
            let item = reading.next().await.transpose()?;
            Some((item, reading))
        })
    }

    /// The next bytes, `None` at the verified end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(transfer) = self.transfer.as_mut() else { return Ok(None) };
        let inner = Arc::clone(transfer.inner());
        let result = match transfer.receive().await {
            Ok(Piece::Outside(bytes)) => {
                self.received += bytes.len() as u64;
                if self.received <= self.limit {
                    return Ok(Some(bytes));
                }
                Err(Error::new(ErrorKind::FileTooLarge).because("it grew while it was read"))
            }
            Ok(Piece::Record(record)) => self.end(&record),
            Err(e) => inner.explain(Err(e)).await,
        };
        self.transfer = None;
        result.map_err(|e| e.with_effect(Effect::None).at(self.path.clone())).map(|()| None)
    }

    /// The verdict.
    fn end(&mut self, record: &crate::record::Record) -> Result<(), Error> {
        let answer = Answer::parse(record)?;
        if let Some(transfer) = self.transfer.take() {
            transfer.settle(answer.in_step);
        }
        let total = answer.outcome.into_result()?;
        if total != self.received {
            return Err(Error::new(ErrorKind::ShortTransfer)
                .because(format!("{} bytes arrived of {total} that were sent", self.received)));
        }
        Ok(())
    }
}
