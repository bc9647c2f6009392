//! What is made has the mode that it is to have, whatever this process's umask.
//!
//! The umask belongs to the whole process and to the caller, so it is never changed: modes are set after the fact. Whoever is killed
//! between the two leaves something that is the caller's own and closed to it, and whoever comes by next opens it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Makes a directory. One that somebody removes at just that moment was made.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    match fs::set_permissions(path, Permissions::from_mode(mode)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a directory for the caller alone, and those that it lies in; one that is there will do.
pub(crate) fn make_dirs(path: &Path) -> io::Result<()> {
    let is_there = || fs::metadata(path).is_ok_and(|m| m.is_dir());
    let make = || match make_dir(path, 0o700) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_there() => Ok(()),
        other => other,
    };
    if is_there() {
        return Ok(());
    }
    match (make(), path.parent()) {
        (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound => {
            make_dirs(parent)?;
            make()
        }
        (made, _) => made,
    }
}

/// Gives an open file its mode.
pub(crate) fn set(file: &File, mode: u32) -> io::Result<()> {
    match file.metadata()?.mode() & 0o777 == mode {
        true => Ok(()),
        false => file.set_permissions(Permissions::from_mode(mode)),
    }
}

/// Adds what is missing of `needed` to the mode of something that is the caller's own; whether anything was.
pub(crate) fn open_up(path: &Path, needed: u32) -> bool {
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    let own = !meta.is_symlink() && meta.uid() == rustix::process::geteuid().as_raw();
    own && meta.mode() & needed != needed
        && fs::set_permissions(path, Permissions::from_mode(meta.mode() & 0o7777 | needed)).is_ok()
}

/// Does `work`, and again once what was closed of `place`, the outer first, has been opened.
pub(crate) fn opened<T>(place: &[(&Path, u32)], work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            // Each of them: the inner one is only seen once the outer one is open.
            let closed = place.iter().filter(|(path, needed)| open_up(path, *needed)).count();
            if closed > 0 { work() } else { Err(e) }
        }
        other => other,
    }
}

/// Opens a directory of the caller's own in which nothing is: whoever made it was killed at that. One that holds something was closed by
/// somebody who meant it, and stays as it is.
pub(crate) fn open_if_empty(path: &Path) -> bool {
    let Ok(before) = fs::symlink_metadata(path) else { return false };
    if !open_up(path, 0o700) {
        return false;
    }
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if !empty {
        let _ = fs::set_permissions(path, Permissions::from_mode(before.mode() & 0o7777));
    }
    empty
}
