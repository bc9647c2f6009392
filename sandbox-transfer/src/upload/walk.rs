//! The folder, read without ever following a link in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use sandbox::{Error, ErrorKind, SandboxPath};
use tokio::sync::mpsc::Sender;

use super::{Candidate, CandidateKind, Filter};
use crate::{Bound, Limits, Refused, Report, Rule, dir, names};

/// A file of up to so many bytes is read at once; of a larger one the descriptor is handed over.
const SMALL: u64 = 64 << 10;

/// What to send where.
pub(super) struct Plan {
    pub(super) from: PathBuf,
    pub(super) into: SandboxPath,
    pub(super) limits: Limits,
    pub(super) filter: Option<Filter>,
}

/// Something to make in the sandbox.
pub(super) enum Item {
    File { path: SandboxPath, mode: u32, size: u64, content: Content },
    Directory(SandboxPath),
    Link { path: SandboxPath, target: Vec<u8> },
}

/// A file's bytes.
pub(super) enum Content {
    Here(Bytes),
    Open(File),
}

/// Nobody takes what is found any more: the failure is on the other side.
struct Unwanted;

enum Stop {
    Unwanted,
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Unwanted> for Stop {
    fn from(_: Unwanted) -> Self {
        Self::Unwanted
    }
}

/// Walks the folder and hands over what it finds. Blocks.
pub(super) fn run(plan: Plan, items: &Sender<Item>) -> Result<Report, Error> {
    let top = dir::open(&plan.from).map_err(|e| host_error(&plan.from, e))?;
    let mut walk = Walk { plan, items, report: Report::default(), seen: 0, relative: Vec::new(), levels: Vec::new() };
    match walk.all(top) {
        Ok(()) => Ok(walk.report),
        Err(Stop::Unwanted) => Err(Error::new(ErrorKind::Other).because("the upload has ended")),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn host_error(path: &Path, e: impl Into<std::io::Error>) -> Error {
    let e = e.into();
    Error::new(ErrorKind::HostFile).because(format!("{path:?}: {e}")).caused_by(e)
}

/// An open directory on the way down.
struct Level {
    fd: OwnedFd,
    entries: Dir,
    /// How long the relative path is without this directory.
    cut: usize,
    /// Whether something was handed over already that makes this directory in the sandbox.
    made: bool,
}

struct Walk<'a> {
    plan: Plan,
    items: &'a Sender<Item>,
    report: Report,
    seen: u64,
    /// Where the walk is, relative to the folder.
    relative: Vec<u8>,
    levels: Vec<Level>,
}

impl Walk<'_> {
    fn all(&mut self, top: OwnedFd) -> Result<(), Stop> {
        self.descend(top, 0)?;
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next() {
                Some(Ok(entry)) => {
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        self.one(name)?;
                    }
                }
                Some(Err(e)) => return Err(self.failure(e).into()),
                None => self.ascend()?,
            }
        }
        Ok(())
    }

    fn descend(&mut self, fd: OwnedFd, cut: usize) -> Result<(), Stop> {
        let entries = Dir::read_from(&fd).map_err(|e| self.failure(e))?;
        self.levels.push(Level { fd, entries, cut, made: false });
        self.report.directories += 1;
        Ok(())
    }

    fn ascend(&mut self) -> Result<(), Stop> {
        self.ensure_directory(self.relative.len())?;
        if let Some(level) = self.levels.pop() {
            self.relative.truncate(level.cut);
        }
        Ok(())
    }

    /// Hands over the directory that the walk is in, whose relative path has `len` bytes, unless something did that already.
    fn ensure_directory(&mut self, len: usize) -> Result<(), Stop> {
        if self.levels.last().is_some_and(|level| !level.made) {
            let into = &self.plan.into;
            let path = if len == 0 { into.clone() } else { into.join(&self.relative[..len])? };
            self.hand(Item::Directory(path))?;
            self.levels.iter_mut().for_each(|level| level.made = true);
        }
        Ok(())
    }

    fn hand(&self, item: Item) -> Result<(), Unwanted> {
        self.items.blocking_send(item).map_err(|_| Unwanted)
    }

    /// Where the walk is, in the sandbox.
    fn path(&self) -> Result<SandboxPath, Error> {
        self.plan.into.join(&self.relative)
    }

    fn failure(&self, e: impl Into<std::io::Error>) -> Error {
        host_error(&self.plan.from.join(OsStr::from_bytes(&self.relative)), e)
    }

    /// One entry of the innermost directory.
    fn one(&mut self, name: &[u8]) -> Result<(), Stop> {
        self.seen += 1;
        self.plan.limits.check(Bound::Entries, self.seen)?;
        let cut = self.relative.len();
        if cut > 0 {
            self.relative.push(b'/');
        }
        self.relative.extend_from_slice(name);
        self.plan.limits.check(Bound::NameBytes, self.relative.len() as u64)?;
        let levels = self.levels.len();
        match self.take(name, cut) {
            Ok(()) => {}
            Err(Err(stop)) => return Err(stop),
            Err(Ok(rule)) => self.report.leave_out(Refused::new(&self.relative, rule)),
        }
        if self.levels.len() == levels {
            self.relative.truncate(cut);
        }
        Ok(())
    }

    /// Hands over what `name` is, or answers the rule by which it is left out.
    fn take(&mut self, name: &[u8], cut: usize) -> Result<(), Result<Rule, Stop>> {
        let stop = |e: Error| Err(Stop::from(e));
        let Some(level) = self.levels.last() else { return Ok(()) };
        let stat = match rustix::fs::statat(&level.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(e) => return Err(self.changed(e)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let size = if kind == FileType::RegularFile { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
        if !self.wanted(kind, size) {
            self.report.filtered += 1;
            return Ok(());
        }
        let Some(level) = self.levels.last() else { return Ok(()) };
        match kind {
            FileType::Directory => {
                self.plan.limits.check(Bound::Depth, self.levels.len() as u64).map_err(stop)?;
                self.path().map_err(|_| Ok(Rule::LongName))?;
                let fd = dir::enter(level.fd.as_fd(), name).map_err(|e| self.changed(e))?;
                self.descend(fd, cut).map_err(Err)
            }
            FileType::RegularFile => self.file(name),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&level.fd, name, Vec::new()).map_err(|e| self.changed(e))?;
                names::link_stays(target.to_bytes(), self.levels.len() - 1).map_err(Ok)?;
                let path = self.path().map_err(|_| Ok(Rule::LongName))?;
                self.ensure_directory(cut).map_err(Err)?;
                self.hand(Item::Link { path, target: target.into_bytes() }).map_err(|e| Err(e.into()))?;
                self.report.links += 1;
                Ok(())
            }
            FileType::Fifo => Err(Ok(Rule::Fifo)),
            FileType::Socket => Err(Ok(Rule::Socket)),
            FileType::BlockDevice | FileType::CharacterDevice => Err(Ok(Rule::Device)),
            _ => Err(Ok(Rule::UnknownKind)),
        }
    }

    fn wanted(&mut self, kind: FileType, size: u64) -> bool {
        let Some(filter) = &mut self.plan.filter else { return true };
        let kind = match kind {
            FileType::RegularFile => CandidateKind::File,
            FileType::Directory => CandidateKind::Directory,
            FileType::Symlink => CandidateKind::Link,
            _ => CandidateKind::Other,
        };
        filter(&Candidate { path: Path::new(OsStr::from_bytes(&self.relative)), kind, size })
    }

    fn file(&mut self, name: &[u8]) -> Result<(), Result<Rule, Stop>> {
        let stop = |e: Error| Err(Stop::from(e));
        let path = self.path().map_err(|_| Ok(Rule::LongName))?;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        // Not blocking, and no terminal of ours: something else may lie there by now.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match rustix::io::retry_on_intr(|| rustix::fs::openat(&level.fd, name, flags, Mode::empty())) {
            Ok(fd) => fd,
            Err(e) => return Err(self.changed(e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| stop(self.failure(e)))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Ok(Rule::Changed));
        }
        let mut size = u64::try_from(stat.st_size).unwrap_or(0);
        self.plan.limits.check(Bound::FileBytes, size).map_err(stop)?;
        self.plan.limits.check(Bound::Bytes, self.report.bytes.saturating_add(size)).map_err(stop)?;
        let mut file = File::from(fd);
        let content = if size <= SMALL {
            let mut bytes = Vec::new();
            (&mut file).take(size).read_to_end(&mut bytes).map_err(|e| stop(self.failure(e)))?;
            size = bytes.len() as u64;
            Content::Here(bytes.into())
        } else {
            Content::Open(file)
        };
        // The type is narrower elsewhere.
        #[allow(clippy::useless_conversion)]
        let mode = u32::from(stat.st_mode) & 0o777;
        self.hand(Item::File { path, mode, size, content }).map_err(|e| Err(e.into()))?;
        self.levels.iter_mut().for_each(|level| level.made = true);
        self.report.files += 1;
        self.report.bytes += size;
        Ok(())
    }

    /// What could not be opened: gone or replaced meanwhile, or a failure.
    fn changed(&self, e: Errno) -> Result<Rule, Stop> {
        match e {
            Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::INVAL => Ok(Rule::Changed),
            e => Err(self.failure(e).into()),
        }
    }
}
