//! Creating: files, directories, links.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{NodeFs, Target, resolve};
use crate::{NodePath, Reason, Result, UnitName, node_path};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A name nobody else uses: ours by process and counter, and created exclusively.
pub(super) fn temporary_name() -> String {
    format!(".#isolation.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl NodeFs {
    /// Writes `content` to `path` with permission bits `mode`: all of it or nothing, durable on return.
    ///
    /// The directory must exist. A link at `path` is replaced, its target is not touched.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)
    /// if `path` is the root.
    pub fn write_atomic(&self, path: &NodePath, mode: u32, content: &[u8]) -> Result<()> {
        self.write_from(path, mode, &mut &*content).map(drop)
    }

    /// As [`write_atomic`](Self::write_atomic), from a reader; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// As [`write_atomic`](Self::write_atomic); a failing reader leaves nothing behind.
    pub fn write_from(&self, path: &NodePath, mode: u32, content: &mut dyn Read) -> Result<u64> {
        self.write(path, mode, content, true)
    }

    /// As [`write_from`](Self::write_from), durable only after [`sync`](Self::sync): for many files at once.
    ///
    /// # Errors
    ///
    /// As [`write_from`](Self::write_from).
    pub fn write_unsynced(&self, path: &NodePath, mode: u32, content: &mut dyn Read) -> Result<u64> {
        self.write(path, mode, content, false)
    }

    /// Makes everything on the root's file systems durable.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn sync(&self) -> Result<()> {
        for area in self.areas.iter() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            rustix::fs::openat(&area.fd, ".", flags | OFlags::CLOEXEC, FileMode::empty())
                .and_then(|dir| rustix::fs::syncfs(&dir))
                .map_err(|errno| crate::Error::io("sync a root", &*area.dir, errno.into()))?;
        }
        Ok(())
    }

    fn write(&self, path: &NodePath, mode: u32, content: &mut dyn Read, durable: bool) -> Result<u64> {
        const WRITE: &str = "write a file";
        let target = self.locate(path);
        let Some((dir, name)) = target.parent().map_err(|errno| target.failed(WRITE, errno))? else {
            return Err(target.rejected("file", Reason::WrongType));
        };
        let temporary = Temporary::create(&dir).map_err(|errno| target.failed(WRITE, errno))?;
        let mut file = &temporary.file;
        let written = std::io::copy(content, &mut file).map_err(|cause| target.io(WRITE, cause))?;
        let finish = || -> Result<(), Errno> {
            rustix::fs::fchmod(&temporary.file, FileMode::from_raw_mode(mode & 0o7777))?;
            if durable {
                rustix::fs::fsync(&temporary.file)?;
            }
            rustix::fs::renameat(&dir, &temporary.name, &dir, name)
        };
        finish().map_err(|errno| target.failed(WRITE, errno))?;
        temporary.keep();
        if durable {
            sync_dir(&dir).map_err(|errno| target.failed(WRITE, errno))?;
        }
        Ok(written)
    }

    /// Makes the directory `path` and those above it; existing ones stay as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), also if a component is a file or a dangling link.
    pub fn create_dir_all(&self, path: &NodePath, mode: u32) -> Result<()> {
        const MAKE: &str = "make a directory";
        let target = self.locate(path);
        let root = target.area.fd.as_fd();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fail = |errno| target.failed(MAKE, errno);
        if target.resolve(flags, ResolveFlags::empty()).is_ok() {
            return Ok(());
        }
        let mut so_far = NodePath::root();
        let mut dir = resolve(root, Path::new(""), flags, ResolveFlags::empty()).map_err(fail)?;
        for name in target.rest.components() {
            so_far = so_far.join(name)?;
            // Through a link that is there already, or by its name in the directory just opened.
            dir = match resolve(root, so_far.relative(), flags, ResolveFlags::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&dir, name, FileMode::from_raw_mode(mode & 0o7777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(fail(errno)),
                    }
                    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    rustix::fs::openat(&dir, name, flags, FileMode::empty()).map_err(fail)?
                }
                Err(errno) => return Err(fail(errno)),
            };
        }
        Ok(())
    }

    /// Makes `path` a symbolic link with the text `to`, replacing a file or link that is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), also if a directory is there.
    pub fn symlink(&self, to: impl AsRef<Path>, path: &NodePath) -> Result<()> {
        const LINK: &str = "make a link";
        let target = self.locate(path);
        let Some((dir, name)) = target.parent().map_err(|errno| target.failed(LINK, errno))? else {
            return Err(target.rejected("link", Reason::WrongType));
        };
        let temporary = temporary_name();
        rustix::fs::symlinkat(to.as_ref(), &dir, &temporary).map_err(|errno| target.failed(LINK, errno))?;
        let renamed = rustix::fs::renameat(&dir, &temporary, &dir, name);
        if renamed.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty());
        }
        renamed.and_then(|()| sync_dir(&dir)).map_err(|errno| target.failed(LINK, errno))
    }

    /// Makes `path` another name of the regular file at `existing`; neither is followed if it is a link.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`Reason::WrongType`] if `existing` is not a regular file.
    pub fn hard_link(&self, existing: &NodePath, path: &NodePath) -> Result<()> {
        const LINK: &str = "make a hard link";
        let (from, to) = (self.locate(existing), self.locate(path));
        if self.metadata(existing)?.is_none_or(|found| found.kind != super::NodeFileKind::File) {
            return Err(from.rejected("hard link", Reason::WrongType));
        }
        let parents = (
            from.parent().map_err(|errno| from.failed(LINK, errno))?,
            to.parent().map_err(|errno| to.failed(LINK, errno))?,
        );
        let (Some((from_dir, from_name)), Some((to_dir, to_name))) = parents else {
            return Err(to.rejected("hard link", Reason::WrongType));
        };
        rustix::fs::linkat(&from_dir, from_name, &to_dir, to_name, AtFlags::empty())
            .map_err(|errno| to.failed(LINK, errno))
    }

    /// Sets the permission bits of a file or directory; a link is not followed and refused.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`Reason::WrongType`] for anything but a file or directory.
    pub fn set_mode(&self, path: &NodePath, mode: u32) -> Result<()> {
        let target = self.locate(path);
        let fd = target.own_entry("set a mode")?;
        // fchmod refuses an O_PATH descriptor, and its /proc name is the very same inode.
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        rustix::fs::chmod(name, FileMode::from_raw_mode(mode & 0o7777))
            .map_err(|errno| target.failed("set a mode", errno))
    }

    /// Sets numeric owner and group of an entry; a link itself, never its target.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn set_owner(&self, path: &NodePath, uid: u32, gid: u32) -> Result<()> {
        const OWN: &str = "set an owner";
        let target = self.locate(path);
        let fd = target
            .resolve(OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::empty())
            .map_err(|errno| target.failed(OWN, errno))?;
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(&fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            .map_err(|errno| target.failed(OWN, errno))
    }

    /// Sets an extended attribute of a regular file or directory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io); [`Reason::WrongType`] for anything but a file or directory.
    pub fn set_xattr(&self, path: &NodePath, name: &str, value: &[u8]) -> Result<()> {
        let target = self.locate(path);
        let fd = target.own_entry("set an attribute")?;
        let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        rustix::fs::setxattr(file, name, value, rustix::fs::XattrFlags::empty())
            .map_err(|errno| target.failed("set an attribute", errno))
    }

    /// Masks a unit of the node: whatever stands at its place in `/etc/systemd/system` becomes a link to
    /// `/dev/null`.
    ///
    /// # Errors
    ///
    /// As [`remove_tree`](Self::remove_tree) and [`symlink`](Self::symlink).
    pub fn mask_unit(&self, unit: &UnitName) -> Result<()> {
        let units = node_path!("/etc/systemd/system");
        self.create_dir_all(&units, 0o755)?;
        let path = units.join(unit.as_str())?;
        if self.metadata(&path)?.is_some_and(|found| found.kind == super::NodeFileKind::Dir) {
            self.remove_tree(&path)?;
        }
        self.symlink("/dev/null", &path)
    }
}

impl Target<'_> {
    /// The entry itself, if it is a file or a directory.
    fn own_entry(&self, operation: &'static str) -> Result<OwnedFd> {
        let fd = self
            .resolve(OFlags::PATH | OFlags::NOFOLLOW, ResolveFlags::empty())
            .map_err(|errno| self.failed(operation, errno))?;
        let found = super::stat(&fd).map_err(|errno| self.failed(operation, errno))?;
        match found.kind {
            super::NodeFileKind::File | super::NodeFileKind::Dir => Ok(fd),
            _ => Err(self.rejected("entry", Reason::WrongType)),
        }
    }
}

/// A file under a temporary name that disappears unless it is kept.
struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: String,
    file: File,
    keep: bool,
}

impl<'a> Temporary<'a> {
    fn create(dir: &'a OwnedFd) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..16 {
            let name = temporary_name();
            match rustix::fs::openat(dir, &name, flags, FileMode::from_raw_mode(0o600)) {
                Ok(fd) => return Ok(Self { dir, name, file: File::from(fd), keep: false }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.keep {
            let _ = self.file.flush();
            let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Makes a rename durable. An `O_PATH` descriptor can't be synced, so the directory is opened again.
fn sync_dir(dir: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(dir, ".", flags, FileMode::empty())?;
    rustix::fs::fsync(&readable)
}
