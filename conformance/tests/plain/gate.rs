//! A gate for the tests of its case: a proxy in the test's own process, whose origin is itself. Its control plane is what the test says.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use conformance::sandbox::GateFixture;
use sandbox::{GateSpec, Networking};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PLACEHOLDER: &str = "PLACEHOLDER-OF-A-KEY";
pub(crate) const SECRET: &str = "the-key-that-nobody-inside-may-see";
/// Resolved by the gate alone, so that there is no way past it.
const ORIGIN: &str = "origin.invalid";

/// What a gate does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "not every test has a gate that errs")]
pub(crate) enum Flaw {
    None,
    /// The placeholder goes out as it is.
    KeepsThePlaceholder,
    /// The secret goes out also in the body alone.
    ForgetsTheHeader,
    /// It changes what it cannot read.
    ChangesTunnels,
    LetsOthersThrough,
    TunnelsToOthers,
    /// The origin can be reached without it.
    CanBePassed,
}

#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    host: String,
}

/// Tests end, and with them their runtimes; a gate outlives them all.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

impl Gate {
    pub(crate) fn start(flaw: Flaw) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let host = if flaw == Flaw::CanBePassed { "127.0.0.1".to_owned() } else { ORIGIN.to_owned() };
        let (allowed, policy) = (host.clone(), Arc::new(AtomicBool::new(false)));
        RUNTIME.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, flaw, allowed.clone(), Arc::clone(&policy)));
            }
        });
        Self { address, host }
    }

    pub(crate) fn fixture(&self) -> GateFixture {
        let spec = GateSpec::new("gate", format!("http://{}", self.address));
        GateFixture::new(spec, Networking::limited([]), &self.host, self.address.port())
            .with_credential(PLACEHOLDER, SECRET)
    }
}

async fn serve(mut stream: TcpStream, flaw: Flaw, allowed: String, policy: Arc<AtomicBool>) {
    let mut seen = Vec::new();
    let Some(head) = request(&mut stream, &mut seen).await else { return };
    let first = head.lines().next().unwrap_or_default().to_owned();
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let tunnel = method == "CONNECT";
    let host = target.strip_prefix("http://").unwrap_or(target).split([':', '/']).next().unwrap_or_default();
    let excused = if tunnel { flaw == Flaw::TunnelsToOthers } else { flaw == Flaw::LetsOthersThrough };
    // Until its policy has come, after the first request, it lets nothing through.
    let may = policy.swap(true, Ordering::Relaxed) && (host == allowed || excused);
    if !may {
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        return;
    }
    let mut text = head;
    if tunnel {
        let _ = stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await;
        if host != allowed {
            return;
        }
        let Some(inner) = request(&mut stream, &mut seen).await else { return };
        text = inner;
    }
    let changed = if tunnel { flaw == Flaw::ChangesTunnels } else { flaw != Flaw::KeepsThePlaceholder };
    let header = text.lines().find_map(|line| line.strip_prefix("Authorization: ")).unwrap_or_default();
    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
    let put = |text: &str| if changed { text.replace(PLACEHOLDER, SECRET) } else { text.to_owned() };
    let header = if flaw == Flaw::ForgetsTheHeader { String::new() } else { put(header) };
    let echo = format!("{header}\n{}\n", put(body));
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{echo}", echo.len());
    let _ = stream.write_all(answer.as_bytes()).await;
}

/// The next request with its body, taken from the beginning of `seen`, which is filled from `stream`.
async fn request(stream: &mut TcpStream, seen: &mut Vec<u8>) -> Option<String> {
    loop {
        let text = String::from_utf8_lossy(seen).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text[..end].lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
            let whole = end + 4 + length.unwrap_or(0);
            if seen.len() >= whole {
                let rest = seen.split_off(whole);
                return String::from_utf8(std::mem::replace(seen, rest)).ok();
            }
        }
        let mut piece = [0; 4096];
        let got = stream.read(&mut piece).await.ok().filter(|got| *got > 0)?;
        seen.extend_from_slice(&piece[..got]);
    }
}
