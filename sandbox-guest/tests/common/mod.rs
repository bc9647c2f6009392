//! A carrier without a sandbox around it: a plain bash on this machine, for testing what the guest does.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::clone_on_ref_ptr,
    reason = "shared by tests"
)]

pub mod exec;
pub mod files;
pub mod shell;
pub mod userland;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use sandbox::{Death, Error, ErrorKind, SandboxPath};
use sandbox_guest::{Carrier, CarrierStream, Closed, FarEnds, Guest, GuestConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

#[derive(Debug, Default)]
pub struct Bare {
    pub opened: AtomicUsize,
    /// The shells that were started.
    pub pids: std::sync::Mutex<Vec<u32>>,
    /// Variables that the shells have by themselves.
    pub env: Vec<(&'static str, &'static str)>,
    /// Text that the shell finds before the script, as of a start-up file.
    pub noise: &'static str,
    /// Sockets instead of pipes, as some servers have.
    pub sockets: bool,
    /// Why there is no sandbox any more, once somebody says so.
    pub death: std::sync::OnceLock<Death>,
    /// What starts the shell, as in `setpriv --reuid=65534`.
    pub through: Vec<String>,
    /// The place of a byte of each shell's standard output that gets lost, counted from 1.
    pub lose: Option<usize>,
    /// Whether a shell never hears that its input was closed, as where a connection is cut on the way.
    pub deaf: bool,
    /// What keeps its input open then.
    pub held: std::sync::Mutex<Vec<std::io::PipeWriter>>,
}

/// Loses a byte.
struct Lossy {
    inner: Reader,
    /// How far away that byte is; 0 once it is lost.
    left: usize,
}

impl AsyncRead for Lossy {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let came = buf.filled().len() - before;
        if (1..=came).contains(&self.left) {
            buf.filled_mut()[before + self.left - 1..].rotate_left(1);
            buf.set_filled(before + came - 1);
            assert!(came > 1, "nothing is an end");
        }
        self.left = self.left.saturating_sub(came);
        Poll::Ready(Ok(()))
    }
}

/// Starts a shell that is not root, on a machine where tests are.
pub fn as_nobody() -> Vec<String> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    if root { words.map(str::to_owned).to_vec() } else { Vec::new() }
}

/// Passes `found` on; where everything is installed that the tests need, it must be there.
pub fn must_have<T>(what: &str, found: Option<T>) -> Option<T> {
    let all = std::env::var("CONFORMANCE_REQUIRE").is_ok_and(|required| !required.is_empty());
    assert!(found.is_some() || !all, "{what} is missing, and a test stands on it");
    found
}

/// Gives `dir` a default ACL; whether it could be done.
pub fn default_acl(dir: &std::path::Path, acl: &str) -> bool {
    let set = std::process::Command::new("setfacl").args(["-d", "-m", acl]).arg(dir).status();
    must_have("setfacl, on a file system with ACLs", set.ok().filter(|set| set.success())).is_some()
}

/// A directory with nothing but BusyBox's tools, or `None` where there is no BusyBox.
pub fn busybox(dir: &std::path::Path) -> Option<String> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| std::path::Path::new(p).exists());
    let busybox = must_have("busybox", busybox)?;
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for tool in ["cat", "chmod", "dd", "ln", "mkdir", "mv", "rm", "rmdir", "stat", "tar"] {
        std::os::unix::fs::symlink(busybox, bin.join(tool)).unwrap();
    }
    Some(bin.to_str().unwrap().to_owned())
}

impl Bare {
    pub fn guest(self, dir: &std::path::Path) -> (Guest, Arc<Self>) {
        self.guest_with(dir, |c| c)
    }

    pub fn guest_with(self, dir: &std::path::Path, f: impl FnOnce(GuestConfig) -> GuestConfig) -> (Guest, Arc<Self>) {
        let carrier = Arc::new(self);
        let config = GuestConfig::new(SandboxPath::new(dir.to_str().unwrap()).unwrap());
        (Guest::new(carrier.clone(), f(config)), carrier)
    }
}

type Writer = Box<dyn AsyncWrite + Send + Unpin>;
type Reader = Box<dyn AsyncRead + Send + Unpin>;

impl Bare {
    fn input(&self) -> std::io::Result<(Stdio, Writer)> {
        if self.sockets {
            let (near, far) = UnixStream::pair()?;
            let far = far.into_std()?;
            far.set_nonblocking(false)?;
            return Ok((Stdio::from(OwnedFd::from(far)), Box::new(near)));
        }
        let (far, near) = std::io::pipe()?;
        if self.deaf {
            self.held.lock().unwrap().push(near.try_clone()?);
        }
        Ok((Stdio::from(far), Box::new(pipe::Sender::from_owned_fd(OwnedFd::from(near))?)))
    }

    fn output(&self) -> std::io::Result<(Stdio, Reader)> {
        if self.sockets {
            let (near, far) = UnixStream::pair()?;
            let far = far.into_std()?;
            far.set_nonblocking(false)?;
            return Ok((Stdio::from(OwnedFd::from(far)), Box::new(near)));
        }
        let (near, far) = std::io::pipe()?;
        Ok((Stdio::from(far), Box::new(pipe::Receiver::from_owned_fd(OwnedFd::from(near))?)))
    }
}

#[sandbox::async_trait]
impl Carrier for Bare {
    async fn open(&self) -> Result<CarrierStream, Error> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let fail = |e: std::io::Error| Error::new(ErrorKind::Unavailable).caused_by(e);
        let (stdin, mut sender) = self.input().map_err(fail)?;
        let (stdout, out) = self.output().map_err(fail)?;
        let (stderr, err) = self.output().map_err(fail)?;
        let shell = ["/bin/bash", "--norc", "--noprofile", "-p"].map(str::to_owned);
        let words: Vec<String> = self.through.iter().cloned().chain(shell).collect();
        let mut command = tokio::process::Command::new(&words[0]);
        command.args(&words[1..]).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.envs(self.env.iter().copied());
        command.stdin(stdin).stdout(stdout).stderr(stderr).process_group(0);
        let mut child = command.spawn().map_err(fail)?;
        drop(command);
        self.pids.lock().unwrap().extend(child.id());
        if !self.noise.is_empty() {
            tokio::io::AsyncWriteExt::write_all(&mut sender, self.noise.as_bytes()).await.map_err(fail)?;
        }
        let out = Lossy { inner: out, left: self.lose.unwrap_or(0) };
        Ok(CarrierStream::new(sender, out, err, async move {
            Closed::new(child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string()))
        }))
    }

    fn far_ends(&self) -> FarEnds {
        if self.sockets { FarEnds::Other } else { FarEnds::Pipes }
    }

    async fn cause_of_death(&self) -> Option<Death> {
        self.death.get().copied()
    }
}
