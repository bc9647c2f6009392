//! The far side of a stream, played by a test: what a shell reads and says.

use std::io::{ErrorKind, Result};

use sandbox_guest::{CarrierStream, Closed};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

pub struct Shell {
    pub requests: DuplexStream,
    pub out: DuplexStream,
    pub err: DuplexStream,
    seen: Vec<u8>,
    /// What it says of the directories of a batch.
    pub ways: &'static str,
}

impl Shell {
    /// A stream, and the shell at its end. Nobody ever says that it is gone.
    pub fn open() -> (CarrierStream, Self) {
        let ((stdin, requests), (stdout, out), (stderr, err)) = (duplex(4096), duplex(4096), duplex(4096));
        let stream = CarrierStream::new(stdin, stdout, stderr, std::future::pending::<Closed>());
        (stream, Self { requests, out, err, seen: Vec::new(), ways: "+ ok 1" })
    }

    /// Waits for the script, and says READY.
    pub async fn ready(&mut self) -> Result<()> {
        let nonce = loop {
            let text = String::from_utf8_lossy(&self.seen).into_owned();
            let last = text.rmatch_indices("__sbx_main ").map(|(at, _)| text[at + 11..].to_owned()).next();
            if let Some(nonce) = last.filter(|n| n.len() > 32 && n.as_bytes()[32] == b'\n') {
                break nonce[..32].to_owned();
            }
            self.more().await?;
        };
        self.seen.clear();
        self.out.write_all(format!("{nonce}R00031 1").as_bytes()).await
    }

    pub async fn more(&mut self) -> Result<()> {
        if self.requests.read_buf(&mut self.seen).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The words after one of `heads`, and nothing of what was before them.
    pub async fn words(&mut self, heads: &[&str]) -> Result<(usize, Vec<String>)> {
        loop {
            let text = String::from_utf8_lossy(&self.seen).into_owned();
            let nonce =
                text.match_indices("__sbx_ways ").filter_map(|(at, head)| text.get(at + head.len()..)?.get(..32));
            if let Some(nonce) = nonce.into_iter().find(|nonce| nonce.bytes().all(|b| b.is_ascii_hexdigit())) {
                let answer = format!("{nonce}E{:04x}{}", self.ways.len(), self.ways);
                self.seen.clear();
                self.out.write_all(answer.as_bytes()).await?;
            }
            for (which, head) in heads.iter().enumerate() {
                // Where it is called, not where it is defined.
                let head = format!("{head} ");
                for call in text.match_indices(&head).map(|(at, _)| &text[at + head.len()..]) {
                    let words: Vec<String> = call.split(' ').take(3).map(str::to_owned).collect();
                    if words.len() == 3
                        && words[0].len() >= 32
                        && words[0].bytes().take(32).all(|b| b.is_ascii_hexdigit())
                    {
                        self.seen.clear();
                        return Ok((which, words));
                    }
                }
            }
            self.more().await?;
        }
    }
}
