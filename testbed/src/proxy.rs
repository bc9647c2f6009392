//! A TCP proxy that misbehaves on cue: delay, throttle, cut after so many bytes, black hole, idle cut.
//!
//! Stands between a client and the API server, or anything else that speaks TCP. What it does to bytes it does to both
//! directions. [`Proxy::set`] changes the misbehaviour while connections are open.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How the proxy misbehaves. The default is a faithful proxy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Misbehaviour {
    /// Every chunk (at most 16 KiB) is held this long before the next is taken.
    pub delay: Duration,
    /// At most so many bytes per second and direction.
    pub bytes_per_second: Option<u64>,
    /// A connection is cut after so many bytes, both directions together.
    pub cut_after: Option<u64>,
    /// Bytes are taken and never delivered; connections stay open.
    pub black_hole: bool,
    /// A connection on which nothing moved for so long is cut.
    pub idle_cut: Option<Duration>,
}

/// A running proxy. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    misbehaviour: Mutex<Misbehaviour>,
    closed: AtomicBool,
    accepted: AtomicU64,
}

/// How often a quiet connection looks whether something changed.
const LOOK: Duration = Duration::from_millis(50);
const CHUNK: usize = 16 * 1024;

impl Proxy {
    /// Listens on a free port of loopback and forwards to `target`.
    ///
    /// # Errors
    ///
    /// Fails when `target` does not resolve or no port is free.
    pub fn start(target: impl ToSocketAddrs, misbehaviour: Misbehaviour) -> io::Result<Self> {
        let target = target.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            misbehaviour: Mutex::new(misbehaviour),
            closed: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.closed() {
                    return;
                }
                accepting.accepted.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    // A client whose server is away sees its connection close: what else could a proxy do.
                    if let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(10)) {
                        connect(&client, &server, &shared);
                    }
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections came so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Misbehaves differently from now on, also on connections that are open.
    pub fn set(&self, misbehaviour: Misbehaviour) {
        *self.shared.misbehaviour.lock().unwrap_or_else(PoisonError::into_inner) = misbehaviour;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then closes the listener.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl Shared {
    fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn misbehaviour(&self) -> Misbehaviour {
        *self.misbehaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What both directions of a connection know of each other.
struct Connection<'a> {
    shared: &'a Shared,
    moved: AtomicU64,
    last: Mutex<Instant>,
    cut: AtomicBool,
}

fn connect(client: &TcpStream, server: &TcpStream, shared: &Shared) {
    let connection =
        Connection { shared, moved: AtomicU64::new(0), last: Mutex::new(Instant::now()), cut: AtomicBool::new(false) };
    for stream in [client, server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(LOOK));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| connection.carry(client, server));
        scope.spawn(|| connection.carry(server, client));
    });
}

impl Connection<'_> {
    /// Carries one direction until it ends or the connection is cut.
    fn carry(&self, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = [0; CHUNK];
        let end = loop {
            if self.cut.load(Ordering::SeqCst) || self.shared.closed() {
                break Shutdown::Both;
            }
            let now = self.shared.misbehaviour();
            if now.idle_cut.is_some_and(|limit| self.idle() >= limit) {
                break Shutdown::Both;
            }
            let want =
                now.bytes_per_second.map_or(CHUNK, |rate| usize::try_from(rate / 20).unwrap_or(CHUNK).clamp(1, CHUNK));
            let count = match from.read(&mut buffer[..want]) {
                Ok(0) => break Shutdown::Write,
                Ok(count) => count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => continue,
                Err(_) => break Shutdown::Both,
            };
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            let now = self.shared.misbehaviour();
            let size = u64::try_from(count).unwrap_or(u64::MAX);
            if now.black_hole {
                continue;
            }
            let before = self.moved.fetch_add(size, Ordering::SeqCst);
            let left = now.cut_after.map_or(size, |limit| limit.saturating_sub(before).min(size));
            let pause = now.delay + now.bytes_per_second.map_or(Duration::ZERO, |rate| seconds(size, rate));
            std::thread::sleep(pause);
            if to.write_all(&buffer[..usize::try_from(left).unwrap_or(count)]).is_err() || left < size {
                break Shutdown::Both;
            }
        };
        if end == Shutdown::Both {
            self.cut.store(true, Ordering::SeqCst);
            let _ = from.shutdown(Shutdown::Both);
        }
        let _ = to.shutdown(end);
    }

    fn idle(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

fn seconds(bytes: u64, rate: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / rate.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (&stream, &stream);
                    let _ = io::copy(&mut from, &mut to);
                });
            }
        });
        address
    }

    fn client(misbehaviour: Misbehaviour) -> (Proxy, TcpStream) {
        let proxy = Proxy::start(echo(), misbehaviour).unwrap();
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (proxy, stream)
    }

    fn ask(mut stream: &TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(text)?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn a_faithful_proxy_carries_everything_and_passes_the_end_on() {
        let (proxy, mut stream) = client(Misbehaviour::default());
        let text = vec![7; 300_000];
        let mut writer = stream.try_clone().unwrap();
        let sent = text.clone();
        std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == text);
        assert_eq!(proxy.accepted(), 1);
    }

    #[test]
    fn a_delay_delays_both_ways() {
        let (_proxy, stream) = client(Misbehaviour { delay: Duration::from_millis(100), ..Misbehaviour::default() });
        let started = Instant::now();
        assert_eq!(ask(&stream, b"hello").unwrap(), b"hello");
        assert!(started.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn a_throttle_holds_the_rate() {
        let (_proxy, stream) = client(Misbehaviour { bytes_per_second: Some(20_000), ..Misbehaviour::default() });
        let started = Instant::now();
        ask(&stream, &[0; 10_000]).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(450), "{:?}", started.elapsed());
    }

    #[test]
    fn a_cut_comes_after_so_many_bytes() {
        let (_proxy, mut stream) = client(Misbehaviour { cut_after: Some(8), ..Misbehaviour::default() });
        assert_eq!(ask(&stream, b"1234").unwrap(), b"1234");
        stream.write_all(b"5678").unwrap();
        let mut rest = Vec::new();
        // A reset is a cut as good as an end.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }

    #[test]
    fn a_black_hole_swallows_until_it_is_mended() {
        let (proxy, mut stream) = client(Misbehaviour { black_hole: true, ..Misbehaviour::default() });
        stream.write_all(b"lost").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(stream.read(&mut [0; 4]).is_err());
        proxy.set(Misbehaviour::default());
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(ask(&stream, b"found").unwrap(), b"found");
    }

    #[test]
    fn an_idle_connection_is_cut() {
        let (_proxy, mut stream) =
            client(Misbehaviour { idle_cut: Some(Duration::from_millis(200)), ..Misbehaviour::default() });
        assert_eq!(ask(&stream, b"hello").unwrap(), b"hello");
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }

    #[test]
    fn dropping_the_proxy_closes_connections() {
        let (proxy, mut stream) = client(Misbehaviour::default());
        assert_eq!(ask(&stream, b"hello").unwrap(), b"hello");
        drop(proxy);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
}
