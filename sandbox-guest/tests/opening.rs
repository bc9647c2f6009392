//! Programs that were started as the shell and are none: what a caller is told, however soon they are gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use sandbox::{Death, Error, ErrorKind, ExecRequest, SandboxPath};
use sandbox_guest::{Carrier, CarrierStream, Closed, FarEnds, Guest, GuestConfig};
use tokio::io::AsyncWriteExt;

#[derive(Debug)]
struct Gone {
    /// Whether it is gone before it could be told a word.
    at_once: bool,
    /// What the carrier says of how it went, where it says anything.
    how: Option<&'static str>,
    /// What it left on its standard error.
    words: &'static str,
}

#[sandbox::async_trait]
impl Carrier for Gone {
    async fn open(&self) -> Result<CarrierStream, Error> {
        let ((stdin, requests), (stdout, _), (stderr, mut err)) =
            (tokio::io::duplex(1 << 20), tokio::io::duplex(64), tokio::io::duplex(64));
        err.write_all(self.words.as_bytes()).await.unwrap();
        let (at_once, how) = (self.at_once, self.how);
        // A program that is there a little longer lets its input be written.
        let requests = (!at_once).then_some(requests);
        Ok(CarrierStream::new(stdin, stdout, stderr, async move {
            let _held = requests;
            match how {
                Some(how) => Closed::new(how),
                None => std::future::pending().await,
            }
        }))
    }

    fn far_ends(&self) -> FarEnds {
        FarEnds::Other
    }

    async fn cause_of_death(&self) -> Option<Death> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn how_it_went_is_told_however_soon_it_was_gone() {
    let table = [
        (true, Some("exit status: 127"), "no such file", "exit status: 127: no such file"),
        (false, Some("exit status: 127"), "no such file", "exit status: 127: no such file"),
        (true, Some("signal: 11"), "", "signal: 11"),
        (true, None, "no such file", "its shell took no script: no such file"),
        (false, None, "", "its output ended"),
    ];
    // Often: the end of what was said can look like the beginning of the nonce, which is another each time.
    for (at_once, how, words, said) in table.into_iter().cycle().take(500) {
        let carrier = Arc::new(Gone { at_once, how, words });
        let guest = Guest::new(carrier, GuestConfig::new(SandboxPath::new("/tmp").unwrap()));
        let error = guest.exec(ExecRequest::shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert_eq!(error.reason(), Some(said), "gone at once: {at_once}");
    }
}
