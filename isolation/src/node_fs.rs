//! File operations that never leave a root.

mod remove;
mod write;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::{Error, ErrorKind, NodePath, Reason, Result};

/// File operations inside a node root, safe against what an image has planted there.
///
/// An image is somebody else's: an absolute link in it (`/var/run → /run`) makes an agent that opens the
/// mapped path write on the *host*. Every operation here resolves its path with the kernel's own in-root
/// resolution (`openat2`, Linux 5.6 and later), so that absolute links and `..` mean what they mean inside
/// the node.
///
/// - No operation reads, writes, creates or removes anything outside the root, even while somebody swaps
///   directories for links during the walk.
/// - `write_atomic` leaves the old content or the new, never a part, and replaces a link rather than its
///   target.
/// - `remove_tree` refuses to cross into another mount.
/// - Devices, FIFOs and sockets are never opened.
///
/// All methods block: [`run_blocking`](crate::run_blocking) keeps long ones off the runtime. On a kernel without `openat2` they fail with
/// [`ErrorKind::Unsupported`]; there is no weaker way round.
#[derive(Debug, Clone)]
pub struct NodeFs {
    /// Longest prefix first; the last one is `/`.
    areas: Arc<[Area]>,
}

#[derive(Debug, Clone)]
struct Area {
    prefix: NodePath,
    dir: Arc<Path>,
    fd: Arc<OwnedFd>,
}

/// What is known about a file of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMetadata {
    /// What the entry is.
    pub kind: NodeFileKind,
    /// Size in bytes.
    pub len: u64,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// When the content last changed.
    pub modified: SystemTime,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeFileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, a FIFO or a socket.
    Special,
}

impl NodeFs {
    /// Opens the directory `dir` as a root.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if it can't be opened.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let area = Area::open(NodePath::root(), dir.as_ref(), OFlags::empty())?;
        Ok(Self { areas: Arc::from([area]) })
    }

    /// As [`open`](Self::open), but a link in place of `dir` itself is refused.
    pub(crate) fn open_itself(dir: &Path) -> Result<Self> {
        let area = Area::open(NodePath::root(), dir, OFlags::NOFOLLOW)?;
        Ok(Self { areas: Arc::from([area]) })
    }

    /// Adds a directory that stands at `prefix` in place of the root's own; the longest prefix wins.
    ///
    /// For a backend whose node root is a table of directories. A link inside an area is resolved inside
    /// that area.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if `dir` can't be opened.
    pub fn with_area(self, prefix: NodePath, dir: impl AsRef<Path>) -> Result<Self> {
        let mut areas = self.areas.to_vec();
        areas.push(Area::open(prefix, dir.as_ref(), OFlags::empty())?);
        areas.sort_by_key(|area| std::cmp::Reverse(area.prefix.as_bytes().len()));
        Ok(Self { areas: areas.into() })
    }

    /// The content of the regular file at `path`, following links inside the root.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]; [`ErrorKind::InvalidInput`] if it is not a regular file
    /// ([`Reason::WrongType`]) or holds more than `limit` bytes ([`Reason::TooLong`]).
    pub fn read(&self, path: &NodePath, limit: u64) -> Result<Vec<u8>> {
        let target = self.locate(path);
        let file = target.open_file("read a file")?;
        let mut content = Vec::new();
        let read = (&file).take(limit.saturating_add(1)).read_to_end(&mut content);
        read.map_err(|cause| target.io("read a file", cause))?;
        if content.len() as u64 > limit {
            let more = format!("it holds more than {limit} bytes");
            return Err(target.rejected("file", Reason::TooLong).with_detail(more));
        }
        Ok(content)
    }

    /// Opens the regular file at `path` for reading, following links inside the root.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn open_file(&self, path: &NodePath) -> Result<File> {
        self.locate(path).open_file("open a file")
    }

    /// What stands at `path`; links on the way are followed inside the root, the last component is not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]; absence is `Ok(None)`.
    pub fn metadata(&self, path: &NodePath) -> Result<Option<NodeMetadata>> {
        let target = self.locate(path);
        match target.resolve(OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::empty()) {
            Ok(fd) => Ok(Some(stat(&fd).map_err(|e| target.failed("look at a file", e))?)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(target.failed("look at a file", errno)),
        }
    }

    /// As [`metadata`](Self::metadata), but the last component is followed, too, and absence is an error.
    pub(crate) fn followed(&self, path: &NodePath) -> Result<NodeMetadata> {
        let target = self.locate(path);
        let found = target.resolve(OFlags::PATH, ResolveFlags::empty()).and_then(|fd| stat(&fd));
        found.map_err(|errno| target.failed("look at a file", errno))
    }

    /// Where the link at `path` points, as it is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if it is no link.
    pub fn read_link(&self, path: &NodePath) -> Result<PathBuf> {
        let target = self.locate(path);
        let fd = target
            .resolve(OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::empty())
            .map_err(|errno| target.failed("read a link", errno))?;
        let text = rustix::fs::readlinkat(&fd, "", Vec::new()).map_err(|errno| target.failed("read a link", errno))?;
        Ok(PathBuf::from(OsStr::from_bytes(text.as_bytes())))
    }

    /// The names in the directory at `path`, sorted, at most `limit`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]; [`ErrorKind::InvalidInput`] with [`Reason::TooLong`] if there are more.
    pub fn read_dir(&self, path: &NodePath, limit: usize) -> Result<Vec<std::ffi::OsString>> {
        let target = self.locate(path);
        let fd = target
            .resolve(OFlags::RDONLY | OFlags::DIRECTORY, ResolveFlags::empty())
            .map_err(|errno| target.failed("list a directory", errno))?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(|errno| target.failed("list a directory", errno))? {
            let entry = entry.map_err(|errno| target.failed("list a directory", errno))?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == limit {
                let more = format!("it holds more than {limit} names");
                return Err(target.rejected("directory", Reason::TooLong).with_detail(more));
            }
            names.push(OsStr::from_bytes(name).to_owned());
        }
        names.sort();
        Ok(names)
    }

    /// The area a path belongs to, and the path inside that area.
    fn locate<'a>(&'a self, path: &'a NodePath) -> Target<'a> {
        let found = self.areas.iter().find_map(|area| Some((area, path.strip_prefix(&area.prefix)?)));
        let (area, rest) = found.expect("the last area is `/`, a prefix of every path");
        Target { area, rest }
    }
}

impl Area {
    fn open(prefix: NodePath, dir: &Path, more: OFlags) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        let fd = rustix::fs::open(dir, flags, FileMode::empty())
            .map_err(|errno| Error::io("open the root directory", dir, errno.into()))?;
        Ok(Self { prefix, dir: dir.into(), fd: Arc::new(fd) })
    }
}

/// One path inside one area.
struct Target<'a> {
    area: &'a Area,
    rest: NodePath,
}

impl Target<'_> {
    /// Opens the target with in-root resolution.
    fn resolve(&self, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd, Errno> {
        resolve(self.area.fd.as_fd(), self.rest.relative(), flags, more)
    }

    /// The directory the target stands in, and the target's name there; `None` for the root of the area.
    fn parent(&self) -> Result<Option<(OwnedFd, &OsStr)>, Errno> {
        let Some(name) = self.rest.file_name() else { return Ok(None) };
        let parent = self.rest.parent().unwrap_or_else(NodePath::root);
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = resolve(self.area.fd.as_fd(), parent.relative(), flags, ResolveFlags::empty())?;
        Ok(Some((fd, name)))
    }

    /// Opens a regular file for reading. Looks before it opens: opening a device can have effects, and a
    /// FIFO would block.
    fn open_file(&self, operation: &'static str) -> Result<File> {
        let fd = self.resolve(OFlags::PATH, ResolveFlags::empty()).map_err(|errno| self.failed(operation, errno))?;
        let found = stat(&fd).map_err(|errno| self.failed(operation, errno))?;
        if found.kind != NodeFileKind::File {
            return Err(self.rejected("file", Reason::WrongType));
        }
        // The very inode that was looked at, whatever its name points to by now.
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open(again, flags, FileMode::empty());
        Ok(File::from(opened.map_err(|errno| self.failed(operation, errno))?))
    }

    fn agent_path(&self) -> PathBuf {
        self.area.dir.join(self.rest.relative())
    }

    fn io(&self, operation: &'static str, cause: std::io::Error) -> Error {
        Error::io(operation, self.agent_path(), cause)
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> Error {
        match errno {
            Errno::NOSYS => {
                Error::new(ErrorKind::Unsupported, operation).with_detail("this kernel has no in-root path resolution")
            }
            errno => self.io(operation, errno.into()),
        }
    }

    fn rejected(&self, what: &'static str, reason: Reason) -> Error {
        Error::rejected(ErrorKind::InvalidInput, what, self.rest.as_bytes(), reason).with_path(self.agent_path())
    }
}

/// `openat2` below `root`, where absolute links and `..` end at `root`.
fn resolve(
    root: std::os::fd::BorrowedFd<'_>,
    relative: &Path,
    flags: OFlags,
    more: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more;
    // EAGAIN means that a rename happened during the walk and the kernel could not prove the result safe.
    for attempt in 0..64u32 {
        match rustix::fs::openat2(root, relative, flags | OFlags::CLOEXEC, FileMode::empty(), how) {
            Err(Errno::AGAIN) if attempt > 8 => std::thread::sleep(Duration::from_micros(50)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

fn stat(fd: &impl AsFd) -> Result<NodeMetadata, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => NodeFileKind::File,
        rustix::fs::FileType::Directory => NodeFileKind::Dir,
        rustix::fs::FileType::Symlink => NodeFileKind::Symlink,
        _ => NodeFileKind::Special,
    };
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Ok(NodeMetadata {
        kind,
        len: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified: SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos.min(999_999_999)),
    })
}
