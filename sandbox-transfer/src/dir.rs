//! Directories of this machine, entered without ever following a link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode};
use rustix::io::Errno;

/// How deep a tree may be that [`remove`] takes away: more than anything that is made here.
const REMOVE_DEPTH: usize = 260;

/// What a directory is opened with, unless it is only a step on the way.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NOCTTY);

/// The permission bits of `bits`, without set-user-id, set-group-id and the sticky bit.
pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode((bits & 0o777) as RawMode)
}

/// Opens the directory that the caller named. Links in a caller's own path are the caller's business.
pub(crate) fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the directory `name` right in `parent`, unless it is a link.
pub(crate) fn enter(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// A directory below which everything is resolved, and outside of which nothing is.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// Whether to resolve component by component where the kernel could do it at once.
    #[cfg(target_os = "linux")]
    stepwise: bool,
}

impl Root {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            #[cfg(target_os = "linux")]
            stepwise: false,
        }
    }

    /// The directory of `components`, each of which is one plain name. Fails as `LOOP` or `NOTDIR` where one is a link.
    pub(crate) fn directory(&mut self, components: &[&[u8]]) -> rustix::io::Result<OwnedFd> {
        if components.is_empty() {
            return rustix::io::fcntl_dupfd_cloexec(&self.fd, 0);
        }
        #[cfg(target_os = "linux")]
        if !self.stepwise {
            match self.resolve(&components.join(&b'/')) {
                // Kernels before 5.6, and filters that do not know the call. Should it have been a real EPERM, it comes again.
                Err(Errno::NOSYS | Errno::PERM) => self.stepwise = true,
                other => return other,
            }
        }
        let mut at = enter(self.fd.as_fd(), components[0])?;
        for component in &components[1..] {
            at = enter(at.as_fd(), component)?;
        }
        Ok(at)
    }

    #[cfg(target_os = "linux")]
    fn resolve(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        use rustix::fs::ResolveFlags;
        let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // The kernel answers AGAIN when it cannot tell because of a rename elsewhere; INTR when a signal comes.
        for _ in 0..64 {
            match rustix::fs::openat2(&self.fd, path, DIRECTORY, Mode::empty(), confined) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// What lies at `name` in `parent`, links not followed; `None` if nothing does.
pub(crate) fn look(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Option<FileType>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Makes a directory that its owner can read, write and search, whatever this process's umask; it takes its part of the other bits.
pub(crate) fn make(parent: BorrowedFd<'_>, name: &[u8], bits: u32) -> rustix::io::Result<()> {
    rustix::fs::mkdirat(parent, name, mode(bits | 0o700))?;
    open_to_owner(parent, name).inspect_err(|_| {
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
    })
}

/// Gives the owner of a directory what a umask has taken.
fn open_to_owner(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || stat.st_mode & 0o700 == 0o700 {
        return Ok(());
    }
    let wanted = Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700);
    // By way of a descriptor: older kernels cannot change a mode by name without following a link.
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd as _;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), wanted)
    }
    #[cfg(not(target_os = "linux"))]
    rustix::fs::chmodat(parent, name, wanted, AtFlags::SYMLINK_NOFOLLOW)
}

/// Makes a new file that nothing was at the name of.
pub(crate) fn create(parent: BorrowedFd<'_>, name: &[u8], bits: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::io::retry_on_intr(|| rustix::fs::openat(parent, name, flags, mode(bits)))
}

/// Renames `from` in `old` to `to` in `new`, where nothing may be.
pub(crate) fn rename_new(old: BorrowedFd<'_>, from: &[u8], new: BorrowedFd<'_>, to: &[u8]) -> rustix::io::Result<()> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    match rustix::fs::renameat_with(old, from, new, to, rustix::fs::RenameFlags::NOREPLACE) {
        // File systems that cannot; then the look below has to do.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        other => return other,
    }
    match look(new, to)? {
        Some(_) => Err(Errno::EXIST),
        None => rustix::fs::renameat(old, from, new, to),
    }
}

/// Takes away `name` in `parent` and everything below it, following no link.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    remove_below(parent, name, REMOVE_DEPTH)
}

fn remove_below(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> rustix::io::Result<()> {
    match look(parent, name)? {
        None => return Ok(()),
        Some(FileType::Directory) => {}
        Some(_) => return gone(rustix::fs::unlinkat(parent, name, AtFlags::empty())),
    }
    if depth == 0 {
        return Err(Errno::NAMETOOLONG);
    }
    let fd = match enter(parent, name) {
        Err(Errno::LOOP | Errno::NOTDIR) => return gone(rustix::fs::unlinkat(parent, name, AtFlags::empty())),
        other => other?,
    };
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            remove_below(fd.as_fd(), name, depth - 1)?;
        }
    }
    gone(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn both_ways_of_resolving_enter_directories_and_no_links() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("root");
        std::fs::create_dir_all(at.join("a/b/c")).unwrap();
        std::fs::create_dir(place.path().join("outside")).unwrap();
        std::fs::write(at.join("file"), "").unwrap();
        symlink("../outside", at.join("out")).unwrap();
        symlink(place.path().join("outside"), at.join("a/abs")).unwrap();
        symlink("b", at.join("a/inside")).unwrap();
        symlink("/proc/self/cwd", at.join("a/magic")).unwrap();
        for stepwise in [false, true] {
            let mut root = Root::new(open(&at).unwrap());
            #[cfg(target_os = "linux")]
            {
                root.stepwise = stepwise;
            }
            let good: [&[&[u8]]; 3] = [&[], &[b"a"], &[b"a", b"b", b"c"]];
            for good in good {
                root.directory(good).unwrap();
            }
            let bad: [&[&[u8]]; 6] =
                [&[b"out"], &[b"a", b"abs"], &[b"a", b"inside", b"c"], &[b"a", b"magic"], &[b"file"], &[b"file", b"x"]];
            for bad in bad {
                let error = root.directory(bad).unwrap_err();
                assert!([Errno::LOOP, Errno::NOTDIR].contains(&error), "{error}");
            }
            assert_eq!(root.directory(&[b"missing", b"x"]).unwrap_err(), Errno::NOENT, "{stepwise}");
        }
    }

    #[test]
    fn removing_follows_no_link() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("tree/a/b")).unwrap();
        std::fs::create_dir(place.path().join("kept")).unwrap();
        std::fs::write(place.path().join("kept/file"), "x").unwrap();
        symlink("../kept", place.path().join("tree/link")).unwrap();
        symlink("../../../kept", place.path().join("tree/a/b/link")).unwrap();
        let fd = open(place.path()).unwrap();
        remove(fd.as_fd(), b"tree").unwrap();
        remove(fd.as_fd(), b"tree").unwrap();
        assert!(!place.path().join("tree").exists());
        assert!(place.path().join("kept/file").exists());
    }
}
