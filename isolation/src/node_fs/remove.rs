//! Removing: one entry, or a tree.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::write::temporary_name;
use super::{NodeFs, Target, resolve};
use crate::{Effect, Error, ErrorKind, NodePath, Reason, Result, Stop};

/// So many directories are open at once; a deeper tree is folded up while it is removed.
const MAX_DEPTH: usize = 64;

/// So often a directory may be found refilled by somebody else before the removal gives up.
const MAX_REFILLS: usize = 1000;

/// So many names of a directory are read before the first is removed.
const BATCH: usize = 16_384;

/// So long after the first time that this was met, the next one is one too many: whoever writes may be faster than we.
const PATIENCE: Duration = Duration::from_secs(30);

impl NodeFs {
    /// Removes a file or a link; absence is success.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if it is a directory.
    pub fn remove(&self, path: &NodePath) -> Result<()> {
        let target = self.locate(path);
        match target.parent() {
            Ok(Some((dir, name))) => match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(target.failed("remove a file", errno)),
            },
            Ok(None) => Err(target.rejected("file", Reason::WrongType)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(target.failed("remove a file", errno)),
        }
    }

    /// Removes what stands at `path`, with everything below it; absence is success, and `/` is emptied.
    ///
    /// No link is followed and no mount is entered: a mount in the way fails, so that a bind mount left
    /// behind is never emptied through. Beside somebody who goes on writing there it gives up after a while.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] for a mount, else [`ErrorKind::Io`]; the effect is [`Effect::Partial`].
    pub fn remove_tree(&self, path: &NodePath) -> Result<()> {
        self.remove_tree_until(path, &Stop::default())
    }

    /// As [`remove_tree`](Self::remove_tree), and fails as [`Stop::check`] does once that is set.
    pub(crate) fn remove_tree_until(&self, path: &NodePath, stop: &Stop) -> Result<()> {
        const REMOVE: &str = "remove a tree";
        let target = self.locate(path);
        let mut patience = Patience::new(PATIENCE, stop.clone());
        let removed = match target.parent() {
            Ok(Some((dir, name))) => remove_entry(&dir, name, &mut patience),
            Ok(None) => empty_root(&target, &mut patience),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno),
        };
        match removed {
            Ok(()) => Ok(()),
            Err(Errno::CANCELED) => stop.check(),
            Err(Errno::XDEV | Errno::BUSY) => Err(Error::new(ErrorKind::Conflict, REMOVE)
                .with_path(target.agent_path())
                .with_effect(Effect::Partial)
                .with_detail("something is mounted below it")),
            Err(errno) => Err(target.failed(REMOVE, errno).with_effect(Effect::Partial)),
        }
    }
}

fn empty_root(target: &Target<'_>, patience: &mut Patience) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = resolve(target.area.fd.as_fd(), Path::new(""), flags, ResolveFlags::NO_XDEV)?;
    empty(&dir, patience)
}

/// How much more of somebody else's writing is borne, and whether anybody waits for the end.
struct Patience {
    refills: usize,
    limit: Duration,
    ends: Option<Instant>,
    stop: Stop,
}

impl Patience {
    fn new(limit: Duration, stop: Stop) -> Self {
        Self { refills: 0, limit, ends: None, stop }
    }

    /// Another entry is about to go.
    fn goes_on(&self) -> Result<(), Errno> {
        if self.stop.is_set() { Err(Errno::CANCELED) } else { Ok(()) }
    }

    /// A directory that was emptied is not empty.
    fn refilled(&mut self) -> Result<(), Errno> {
        let ends = *self.ends.get_or_insert_with(|| Instant::now() + self.limit);
        if Instant::now() > ends { Err(Errno::NOTEMPTY) } else { self.counted() }
    }

    /// A directory holds more than a batch: it is large, or somebody keeps up with us.
    fn counted(&mut self) -> Result<(), Errno> {
        self.refills += 1;
        if self.refills > MAX_REFILLS { Err(Errno::NOTEMPTY) } else { Ok(()) }
    }
}

/// Removes `name` in `dir`, whatever it is.
fn remove_entry(dir: &impl AsFd, name: &OsStr, patience: &mut Patience) -> Result<(), Errno> {
    // Somebody may put a new entry into a directory while it is emptied, or swap a file for a directory.
    loop {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        match open_child(dir, name) {
            Ok(child) => empty(&child, patience)?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
        patience.refilled()?;
    }
}

fn open_child(dir: &impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, name, flags, FileMode::empty(), how)
}

/// A directory that is being emptied, and its name in the one above.
struct Level {
    dir: OwnedFd,
    name: Option<CString>,
    /// What is still to be read, until the end was met.
    listing: Option<Dir>,
    /// What was read and is still to be removed.
    batch: Vec<(CString, FileType)>,
}

impl Level {
    fn new(dir: OwnedFd, name: Option<CString>) -> Result<Self, Errno> {
        let mut level = Self { dir, name, listing: None, batch: Vec::new() };
        level.again()?;
        Ok(level)
    }

    /// Reads the directory from its beginning, a batch ahead of what is removed: an end that others move away is not run after.
    fn again(&mut self) -> Result<(), Errno> {
        self.listing = Some(Dir::read_from(&self.dir)?);
        self.fill()
    }

    fn fill(&mut self) -> Result<(), Errno> {
        while let Some(listing) = self.listing.as_mut().filter(|_| self.batch.len() < BATCH) {
            match listing.next().transpose()? {
                None => self.listing = None,
                Some(entry) if entry.file_name() == c"." || entry.file_name() == c".." => {}
                Some(entry) => self.batch.push((entry.file_name().to_owned(), entry.file_type())),
            }
        }
        Ok(())
    }

    fn next(&mut self, patience: &mut Patience) -> Result<Option<(CString, FileType)>, Errno> {
        patience.goes_on()?;
        if self.batch.is_empty() && self.listing.is_some() {
            patience.counted()?;
            self.fill()?;
        }
        Ok(self.batch.pop())
    }
}

/// Removes everything in `top`, with a bounded number of open directories.
///
/// Each directory is read once, and again only if it turns out not to be empty, so that somebody who goes on writing is noticed.
fn empty(top: &OwnedFd, patience: &mut Patience) -> Result<(), Errno> {
    let mut stack = vec![Level::new(top.try_clone().map_err(|_| Errno::MFILE)?, None)?];
    let mut folded = false;
    loop {
        let depth = stack.len();
        let Some(level) = stack.last_mut() else { return Ok(()) };
        if let Some((name, kind)) = level.next(patience)? {
            if kind != FileType::Directory {
                match rustix::fs::unlinkat(&level.dir, &name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            if depth >= MAX_DEPTH {
                // Fold: the directory moves up to the top, which is read again.
                rustix::fs::renameat(&level.dir, &name, top, temporary_name())?;
                folded = true;
                continue;
            }
            match open_child(&level.dir, OsStr::from_bytes(name.to_bytes())) {
                Ok(child) => stack.push(Level::new(child, Some(name))?),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            }
            continue;
        }
        let mut level = stack.pop().expect("the loop saw it");
        if let (Some(above), Some(name)) = (stack.last(), &level.name) {
            match rustix::fs::unlinkat(&above.dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                // A new entry came in meanwhile.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    patience.refilled()?;
                    level.again()?;
                    stack.push(level);
                }
                Err(errno) => return Err(errno),
            }
        } else if std::mem::take(&mut folded) {
            level.again()?;
            stack.push(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_writer_that_goes_on_does_not_keep_a_removal_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let top = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY, FileMode::empty()).unwrap();
        let (tree, done) = (dir.path().join("tree"), AtomicBool::new(false));
        std::fs::create_dir_all(tree.join("below")).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (tree, done) = (&tree, &done);
                scope.spawn(move || {
                    for n in 0.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        let _ = std::fs::create_dir_all(tree.join(format!("below/{writer}.{n}/deep")));
                    }
                });
            }
            let removed =
                remove_entry(&top, OsStr::new("tree"), &mut Patience::new(Duration::from_millis(50), Stop::default()));
            done.store(true, Ordering::Relaxed);
            // Whoever wins the race for an instant may get the tree away.
            assert!(matches!(removed, Ok(()) | Err(Errno::NOTEMPTY)), "{removed:?}");
        });
        remove_entry(&top, OsStr::new("tree"), &mut Patience::new(PATIENCE, Stop::default())).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_directory_of_more_than_a_batch_goes() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeFs::open(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("many")).unwrap();
        for n in 0..=BATCH {
            std::os::unix::fs::symlink("x", dir.path().join(format!("many/{n}"))).unwrap();
        }
        node.remove_tree(&NodePath::root()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_removal_ends_once_nobody_waits_and_can_be_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let (node, tree, stop) = (NodeFs::open(dir.path()).unwrap(), crate::node_path!("/tree"), Stop::default());
        std::fs::create_dir_all(dir.path().join("tree/below")).unwrap();
        stop.set();
        let error = node.remove_tree_until(&tree, &stop).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Cancelled, Effect::Partial));
        assert!(dir.path().join("tree/below").is_dir());
        node.remove_tree(&tree).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn patience_ends() {
        let mut short = Patience::new(Duration::ZERO, Stop::default());
        short.refilled().ok();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(short.refilled(), Err(Errno::NOTEMPTY));
        let mut long = Patience::new(Duration::from_secs(3600), Stop::default());
        assert!((0..MAX_REFILLS).all(|_| long.refilled().is_ok()));
        assert_eq!(long.refilled(), Err(Errno::NOTEMPTY));
    }
}
