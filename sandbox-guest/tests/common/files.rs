//! Helpers for testing file operations.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sandbox::{Error, FileWrite, SandboxPath};
use sandbox_guest::Guest;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Bare, as_nobody};

pub const BIG: u64 = 1 << 40;

pub fn at(path: &Path) -> SandboxPath {
    SandboxPath::new(path.as_os_str().as_bytes()).unwrap()
}

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("it answers in time")
}

pub async fn read(guest: &Guest, path: &Path) -> Result<Vec<u8>, Error> {
    read_limited(guest, path, BIG).await
}

pub async fn read_limited(guest: &Guest, path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    within(async { Ok(guest.read(&at(path), limit).await?.collect(1 << 30).await?.to_vec()) }).await
}

pub async fn write(guest: &Guest, path: &Path, content: &[u8]) -> Result<(), Error> {
    within(guest.write(FileWrite::bytes(at(path), content.to_vec()))).await
}

pub fn filler(n: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
    .take(n)
    .collect()
}

pub fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// What a failed or finished write must not leave anywhere below `dir`.
pub fn residue(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        // What is being removed at this moment is as good as gone.
        let Ok(entry) = entry else { continue };
        if entry.file_name().as_bytes().starts_with(b".sbx-write-") {
            found.push(entry.path());
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(residue(&entry.path()));
        }
    }
    found
}

/// A directory that nobody can write to, and a guest that is nobody.
pub fn as_user() -> (tempfile::TempDir, Guest) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let (guest, _) = Bare { through: as_nobody(), ..Bare::default() }.guest(dir.path());
    (dir, guest)
}

/// Gives `give` bytes, then ends, fails or hangs.
pub struct Source {
    pub give: usize,
    pub then: Then,
    pub touched: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Then {
    End,
    Fail,
    Hang,
    Forbidden,
}

impl Source {
    pub fn new(give: usize, then: Then) -> Self {
        Self { give, then, touched: false }
    }
}

impl AsyncRead for Source {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.touched = true;
        let n = self.give.min(buf.remaining()).min(10_000);
        if n > 0 {
            buf.put_slice(&vec![b'x'; n]);
            self.give -= n;
            return Poll::Ready(Ok(()));
        }
        match self.then {
            Then::End => Poll::Ready(Ok(())),
            Then::Fail => Poll::Ready(Err(io::Error::other("source broke"))),
            Then::Hang => Poll::Pending,
            Then::Forbidden => panic!("the source must not be read"),
        }
    }
}

/// Where tools are.
pub const USUAL: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Puts `script` in the place of one tool; answers where tools are then.
pub fn plant(dir: &Path, tool: &str, script: &str) -> String {
    let bin = dir.join("planted");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(bin.join(tool), format!("#!/bin/bash\nPATH={USUAL}\n{script}\n")).unwrap();
    std::fs::set_permissions(bin.join(tool), PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{USUAL}", bin.to_str().unwrap())
}

/// How many descriptors other processes have of `path`.
pub fn holders(path: &Path) -> usize {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|p| *p.file_name() != *own);
    let descriptors = processes.filter_map(|p| std::fs::read_dir(p.path().join("fd")).ok()).flatten().flatten();
    descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path)).count()
}
