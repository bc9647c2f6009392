//! Files, through the root directory of a sandbox's first process.

use std::io::Read;

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sandbox::{ByteStream, Error, ErrorKind, FileWrite, ReadStream, SandboxPath};
use tokio::io::AsyncReadExt;

const INSIDE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

pub(super) fn root(init: i32) -> Result<OwnedFd, Error> {
    let at = format!("/proc/{init}/root");
    rustix::fs::open(at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(|_| Error::new(ErrorKind::NotFound))
}

fn class(kind: ErrorKind, path: &SandboxPath) -> Error {
    Error::new(kind).at(path.clone())
}

fn unwritable(errno: Errno, path: &SandboxPath) -> Error {
    match errno {
        Errno::NOTDIR => class(ErrorKind::NotDirectory, path),
        other => class(ErrorKind::NotWritable, path).because(std::io::Error::from(other).to_string()),
    }
}

/// Whether some component of `path` is there and is no directory.
pub(super) fn blocked(root: &OwnedFd, path: &SandboxPath) -> bool {
    let mut at = path.parent();
    while let Some(dir) = at {
        match openat2(root, dir.as_bytes(), OFlags::PATH, Mode::empty(), INSIDE) {
            Ok(fd) => return !FileType::from_raw_mode(rustix::fs::fstat(&fd).unwrap().st_mode).is_dir(),
            Err(Errno::NOENT) => {
                let link = OFlags::PATH | OFlags::NOFOLLOW;
                if openat2(root, dir.as_bytes(), link, Mode::empty(), INSIDE).is_ok() {
                    return true;
                }
            }
            Err(_) => {}
        }
        at = dir.parent();
    }
    false
}

pub(super) fn read(root: &OwnedFd, path: &SandboxPath, limit: u64) -> Result<ReadStream, Error> {
    let open = |flags: OFlags| openat2(root, path.as_bytes(), flags | OFlags::NOFOLLOW, Mode::empty(), INSIDE);
    let found = open(OFlags::PATH).map_err(|errno| match errno {
        Errno::NOTDIR => class(ErrorKind::NotDirectory, path),
        Errno::NOENT if blocked(root, path) => class(ErrorKind::NotDirectory, path),
        Errno::NOENT => class(ErrorKind::FileNotFound, path),
        other => class(ErrorKind::Other, path).caused_by(std::io::Error::from(other)),
    })?;
    let stat = rustix::fs::fstat(&found).map_err(|e| super::fault(e.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(class(ErrorKind::IsDirectory, path)),
        _ => return Err(class(ErrorKind::NotRegularFile, path)),
    }
    if stat.st_size as u64 > limit {
        return Err(class(ErrorKind::FileTooLarge, path));
    }
    let file = open(OFlags::RDONLY | OFlags::NONBLOCK).map_err(|e| super::fault(e.into()))?;
    let (mut file, path) = (std::fs::File::from(file), path.clone());
    let mut left = limit;
    Ok(ByteStream::new(futures::stream::iter(std::iter::from_fn(move || {
        let mut buffer = vec![0; 1 << 16];
        match file.read(&mut buffer) {
            Ok(0) => None,
            Ok(n) if n as u64 > left => Some(Err(class(ErrorKind::FileTooLarge, &path))),
            Ok(n) => {
                left -= n as u64;
                Some(Ok(Bytes::copy_from_slice(&buffer[..n])))
            }
            Err(e) => Some(Err(super::fault(e))),
        }
    }))))
}

/// The directories that a write made, outside in: removed again unless it succeeds.
#[derive(Default)]
struct Made(Vec<(OwnedFd, Vec<u8>)>);

impl Drop for Made {
    fn drop(&mut self) {
        for (at, name) in self.0.drain(..).rev() {
            let _ = rustix::fs::unlinkat(&at, &*name, AtFlags::REMOVEDIR);
        }
    }
}

/// The directory of `path`, made if need be.
fn parent(root: &OwnedFd, path: &SandboxPath, made: &mut Made) -> Result<OwnedFd, Error> {
    let mut at = rustix::io::dup(root).map_err(|e| super::fault(e.into()))?;
    let mut prefix = Vec::new();
    let components: Vec<_> = path.as_bytes()[1..].split(|b| *b == b'/').collect();
    for name in &components[..components.len() - 1] {
        prefix.push(b'/');
        prefix.extend_from_slice(name);
        let open = || openat2(root, &*prefix, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), INSIDE);
        at = match open() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, *name, Mode::from_raw_mode(0o755)) {
                    Ok(()) => made.0.push((at, name.to_vec())),
                    Err(Errno::EXIST) => {}
                    Err(errno) => return Err(unwritable(errno, path)),
                }
                open().map_err(|_| class(ErrorKind::NotDirectory, path))?
            }
            other => other.map_err(|errno| unwritable(errno, path))?,
        };
    }
    Ok(at)
}

/// Removes a temporary file unless it was renamed.
struct Temporary<'a>(&'a OwnedFd, Option<String>);

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.1 {
            let _ = rustix::fs::unlinkat(self.0, name.as_str(), AtFlags::empty());
        }
    }
}

fn mount_of(dir: &OwnedFd, name: &[u8]) -> u64 {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, rustix::fs::StatxFlags::MNT_ID).map_or(0, |found| found.stx_mnt_id)
}

pub(super) async fn write(root: &OwnedFd, file: FileWrite<'_>) -> Result<(), Error> {
    let FileWrite { path, size, mut body, mode, create_new, .. } = file;
    let mut made = Made::default();
    let dir = parent(root, &path, &mut made)?;
    let name = path.file_name();
    let mut keep = None;
    if let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Err(class(ErrorKind::IsDirectory, &path)),
            FileType::CharacterDevice | FileType::BlockDevice => return Err(class(ErrorKind::NotReplaceable, &path)),
            FileType::Symlink => {
                let directory = OFlags::PATH | OFlags::DIRECTORY;
                if openat2(root, path.as_bytes(), directory, Mode::empty(), INSIDE).is_ok() {
                    return Err(class(ErrorKind::IsDirectory, &path));
                }
            }
            FileType::RegularFile => keep = Some(stat.st_mode & 0o7777),
            _ => {}
        }
        if create_new {
            return Err(class(ErrorKind::AlreadyExists, &path));
        }
        if mount_of(&dir, name) != mount_of(&dir, b"") {
            return Err(class(ErrorKind::NotReplaceable, &path));
        }
    }
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let temporary = format!(".plain-{}", COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    // Not for what another case starts meanwhile: a script that somebody can write to cannot be run.
    let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = openat2(&dir, temporary.as_str(), create, Mode::from_raw_mode(0o600), ResolveFlags::BENEATH);
    let opened = opened.map_err(|errno| unwritable(errno, &path))?;
    let mut guard = Temporary(&dir, Some(temporary.clone()));
    let mode = Mode::from_raw_mode(mode.or(keep).unwrap_or(0o644));
    let mut buffer = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        let n = body.read(&mut buffer).await.map_err(super::fault)?;
        if n == 0 {
            break;
        }
        total += n as u64;
        if total > size {
            return Err(class(ErrorKind::ShortTransfer, &path));
        }
        let mut done = 0;
        while done < n {
            done += rustix::io::write(&opened, &buffer[done..n]).map_err(|e| super::fault(e.into()))?;
        }
    }
    if total != size {
        return Err(class(ErrorKind::ShortTransfer, &path));
    }
    rustix::fs::fchmod(&opened, mode).map_err(|e| super::fault(e.into()))?;
    let flags = if create_new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
    rustix::fs::renameat_with(&dir, temporary.as_str(), &dir, name, flags).map_err(|errno| match errno {
        Errno::EXIST => class(ErrorKind::AlreadyExists, &path),
        Errno::ISDIR => class(ErrorKind::IsDirectory, &path),
        other => unwritable(other, &path),
    })?;
    guard.1 = None;
    made.0.clear();
    Ok(())
}
