//! Removing: one entry, or a tree.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::write::temporary_name;
use super::{NodeFs, Target, resolve};
use crate::{Effect, Error, ErrorKind, NodePath, Reason, Result};

/// So many directories are open at once; a deeper tree is folded up while it is removed.
const MAX_DEPTH: usize = 64;

/// So often a directory may be found refilled by somebody else before the removal gives up.
const MAX_REFILLS: usize = 1000;

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
    /// behind is never emptied through.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] for a mount, else [`ErrorKind::Io`]; the effect is [`Effect::Partial`].
    pub fn remove_tree(&self, path: &NodePath) -> Result<()> {
        const REMOVE: &str = "remove a tree";
        let target = self.locate(path);
        let removed = match target.parent() {
            Ok(Some((dir, name))) => remove_entry(&dir, name),
            Ok(None) => empty_root(&target),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno),
        };
        match removed {
            Ok(()) => Ok(()),
            Err(Errno::XDEV | Errno::BUSY) => Err(Error::new(ErrorKind::Conflict, REMOVE)
                .with_path(target.agent_path())
                .with_effect(Effect::Partial)
                .with_detail("something is mounted below it")),
            Err(errno) => Err(target.failed(REMOVE, errno).with_effect(Effect::Partial)),
        }
    }
}

fn empty_root(target: &Target<'_>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = resolve(target.area.fd.as_fd(), Path::new(""), flags, ResolveFlags::NO_XDEV)?;
    empty(&dir)
}

/// Removes `name` in `dir`, whatever it is.
fn remove_entry(dir: &impl AsFd, name: &OsStr) -> Result<(), Errno> {
    // Somebody may put a new entry into a directory while it is emptied, or swap a file for a directory.
    for _ in 0..16 {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        match open_child(dir, name) {
            Ok(child) => empty(&child)?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(errno) => return Err(errno),
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOTEMPTY)
}

fn open_child(dir: &impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, name, flags, FileMode::empty(), how)
}

/// Removes everything in `top`, with a bounded number of open directories.
fn empty(top: &OwnedFd) -> Result<(), Errno> {
    // Pairs of an open directory and the name it has in the one before it.
    let mut stack: Vec<(OwnedFd, Option<CString>)> = vec![(top.try_clone().map_err(|_| Errno::MFILE)?, None)];
    let mut refills = 0;
    while let Some((dir, _)) = stack.last() {
        let depth = stack.len();
        let mut deeper = None;
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if entry.file_type() != FileType::Directory {
                match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            if depth >= MAX_DEPTH {
                // Fold: the directory moves up to the top, where it is met again.
                rustix::fs::renameat(dir, name, top, temporary_name())?;
                continue;
            }
            match open_child(dir, OsStr::from_bytes(name.to_bytes())) {
                Ok(child) => deeper = Some((child, name.to_owned())),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(errno),
            }
            break;
        }
        if let Some((child, name)) = deeper {
            stack.push((child, Some(name)));
            continue;
        }
        let (_, name) = stack.pop().expect("the loop saw it");
        if let (Some((parent, _)), Some(name)) = (stack.last(), name) {
            match rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                // A new entry came in meanwhile: the parent is read again and finds it.
                Err(Errno::NOTEMPTY | Errno::EXIST) if refills < MAX_REFILLS => refills += 1,
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
