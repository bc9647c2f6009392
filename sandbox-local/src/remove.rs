//! Removes a tree that a tenant has filled: any depth, any mode, any name.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

/// How many names of one directory are held at a time.
const BATCH: usize = 256;

/// A directory on the way down.
struct Level {
    /// Its name in its parent.
    name: CString,
    /// What tells it from every other directory.
    id: Id,
    /// Directories in it that would not go at once.
    children: Vec<CString>,
}

/// Device and inode.
type Id = (u64, u64);

fn id_of(directory: &OwnedFd) -> io::Result<Id> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes `path` and everything below it; what is not there is removed.
///
/// The dead tenant's friends may still hold descriptors of its directories and move them about meanwhile: nothing that was not
/// entered from its parent is ever emptied. Links are never followed and no other file system is entered. It holds two
/// descriptors, however deep the tree is.
pub(crate) fn tree(path: &Path, deadline: Instant) -> io::Result<()> {
    tree_unless(path, &|| Instant::now() >= deadline)
}

/// As [`tree`], until `stop` says that it is enough; then it fails as timed out.
pub(crate) fn tree_unless(path: &Path, stop: &dyn Fn() -> bool) -> io::Result<()> {
    loop {
        match walk(path, stop) {
            // Somebody moves things about: from the top once more.
            Err(e) if e.kind() == io::ErrorKind::StaleNetworkFileHandle && !stop() => {}
            // Somebody else removes it too.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !stop() => {
                if !path.is_symlink() && !fs::exists(path)? {
                    return Ok(());
                }
            }
            result => return result,
        }
    }
}

/// A directory is not where it was.
fn moved() -> io::Error {
    io::Error::new(io::ErrorKind::StaleNetworkFileHandle, "a directory was moved while it was being removed")
}

fn walk(path: &Path, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let name = CString::new(std::os::unix::ffi::OsStrExt::as_bytes(name))?;
    let parent = openat(CWD, path.parent().unwrap_or(Path::new(".")), DIRECTORY, Mode::empty())?;
    let device = match statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e.into()),
        Ok(stat) => stat.st_dev,
    };
    if remove_at_once(&parent, &name)? {
        return Ok(());
    }
    let mut at = enter(&parent, &name, device)?;
    let mut levels = vec![Level { name, id: id_of(&at)?, children: Vec::new() }];
    while let Some(level) = levels.last_mut() {
        if stop() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if level.children.is_empty() {
            level.children = sweep(&at, stop)?;
        }
        if let Some(child) = level.children.pop() {
            at = enter(&at, &child, device)?;
            levels.push(Level { name: child, id: id_of(&at)?, children: Vec::new() });
            continue;
        }
        // Nothing is left in it. Its parent is where `..` leads, unless somebody has moved it.
        let Some(done) = levels.pop() else { break };
        let up = match levels.last() {
            None => openat(CWD, path.parent().unwrap_or(Path::new(".")), DIRECTORY, Mode::empty())?,
            Some(parent) => {
                let up = openat(&at, c"..", DIRECTORY, Mode::empty())?;
                if id_of(&up)? != parent.id {
                    return Err(moved());
                }
                up
            }
        };
        match unlinkat(&up, &done.name, AtFlags::REMOVEDIR) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => return Err(moved()),
            Err(e) => return Err(e.into()),
        }
        at = up;
    }
    Ok(())
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a file or an empty directory; `false` for a directory that is not empty.
fn remove_at_once(parent: impl AsFd, name: &CStr) -> io::Result<bool> {
    match unlinkat(&parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Opens a directory to empty it, whatever its mode.
fn enter(parent: &OwnedFd, name: &CStr, device: u64) -> io::Result<OwnedFd> {
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Err(moved()),
        other => other?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(moved());
    }
    if stat.st_dev != device {
        return Err(io::Error::other("something is mounted in the tree that is to be removed"));
    }
    if stat.st_mode & 0o700 != 0o700 {
        // By way of a descriptor: a name can become a link between the look and the change.
        let place = openat(parent, name, OFlags::PATH | DIRECTORY, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?;
    }
    let directory = match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(moved()),
        other => other?,
    };
    if id_of(&directory)? != (stat.st_dev, stat.st_ino) {
        return Err(moved());
    }
    Ok(directory)
}

/// Removes what goes at once; answers some of the directories that did not, and nothing once there are none.
fn sweep(directory: &OwnedFd, stop: &dyn Fn() -> bool) -> io::Result<Vec<CString>> {
    let mut left = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        // How many there are is the tenant's choice.
        if stop() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let name = entry.file_name();
        if name == c"." || name == c".." || remove_at_once(directory, name)? {
            continue;
        }
        left.push(name.to_owned());
        if left.len() == BATCH {
            break;
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// One directory of many names does not hold it up.
    #[test]
    fn it_stops_between_two_names() {
        let base = tempfile::tempdir().unwrap();
        let flat = base.path().join("flat");
        std::fs::create_dir(&flat).unwrap();
        for i in 0..1000 {
            std::fs::write(flat.join(i.to_string()), "").unwrap();
        }
        let asked = std::cell::Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > 100
        };
        assert_eq!(tree_unless(&flat, &stop).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(std::fs::read_dir(&flat).unwrap().count() > 890);
        tree(&flat, soon()).unwrap();
        assert!(!flat.exists());
    }

    /// Somebody with a descriptor of a deep directory moves it up while it is being emptied, over and over.
    #[test]
    fn what_is_moved_while_it_goes_takes_nothing_along() {
        let base = tempfile::tempdir().unwrap();
        let canary = base.path().join("canary");
        std::fs::write(&canary, "x").unwrap();
        std::fs::create_dir_all(base.path().join("innocent/deep")).unwrap();
        let box_dir = base.path().join("box");
        let top = box_dir.join("top");
        for round in 0..8 {
            let deep = top.join("d1/d2/d3/d4/c");
            std::fs::create_dir_all(&deep).unwrap();
            for i in 0..300 {
                std::fs::create_dir_all(deep.join(format!("{i}/x"))).unwrap();
            }
            let target = box_dir.join(format!("stolen{round}"));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let end = Instant::now() + Duration::from_millis(50);
                    while Instant::now() < end {
                        if std::fs::rename(&deep, &target).is_ok() {
                            break;
                        }
                    }
                });
                tree(&top, soon()).unwrap();
            });
            assert!(!top.exists());
            assert!(canary.exists() && base.path().join("innocent/deep").exists(), "round {round}");
        }
    }

    #[test]
    fn hostile_trees() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "x").unwrap();
        let top = base.path().join("top");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::write(top.join("a/b/c/f"), "x").unwrap();
        std::fs::write(top.join("a/\n \\ é"), "x").unwrap();
        symlink(&outside, top.join("a/link")).unwrap();
        symlink("/nowhere", top.join("dangling")).unwrap();
        for i in 0..600 {
            std::fs::create_dir_all(top.join(format!("many/{i}/x"))).unwrap();
        }
        for path in ["a/b/c", "a/b", "a", "many/7", "."] {
            std::fs::set_permissions(top.join(path), std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        tree(&top, soon()).unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(outside.join("keep")).unwrap(), "x");
        tree(&top, soon()).unwrap();
        symlink(&outside, &top).unwrap();
        tree(&top, soon()).unwrap();
        assert!(outside.exists() && std::fs::symlink_metadata(&top).is_err());
    }

    #[test]
    fn a_tree_deeper_than_any_path() {
        let base = tempfile::tempdir().unwrap();
        let top = base.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let mut at = openat(CWD, &top, DIRECTORY, Mode::empty()).unwrap();
        let name = "d".repeat(250);
        for _ in 0..600 {
            rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = openat(&at, name.as_str(), DIRECTORY, Mode::empty()).unwrap();
        }
        drop(at);
        tree(&top, soon()).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn several_at_once() {
        let base = tempfile::tempdir().unwrap();
        for round in 0..5 {
            let top = base.path().join(format!("{round}/top"));
            for i in 0..200 {
                std::fs::create_dir_all(top.join(format!("{i}/x/y"))).unwrap();
            }
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| tree(&top, soon()).unwrap());
                }
            });
            assert!(!top.exists());
        }
    }

    #[test]
    fn a_deadline_ends_it() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(base.path().join("top/x")).unwrap();
        let error = tree(&base.path().join("top"), Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        tree(&base.path().join("top"), soon()).unwrap();
    }
}
