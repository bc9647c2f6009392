//! Whether a directory can hold the state of a deployment.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};
use sandbox::{Error, ErrorKind};

use crate::ident::user;
use crate::modes;

/// Opens a state directory, and makes it if need be. Answers its real path.
pub(crate) fn open(wanted: &Path, uid: u32) -> Result<PathBuf, Error> {
    let refuse = |rule: String| {
        let what = format!("state_dir {}: {rule}; set it to a directory of the caller's own", wanted.display());
        Err(Error::new(ErrorKind::InvalidSpec).because(what))
    };
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::PermissionDenied => out_of_reach(wanted, &e),
        _ => format!("{e}"),
    };
    if !wanted.is_absolute() {
        return refuse("it must be an absolute path".to_owned());
    }
    // Where everybody may make entries, one that leads elsewhere can be somebody's trap.
    let strange = |m: &Metadata| m.is_symlink() && m.uid() != uid && m.uid() != 0;
    if let Ok(link) = fs::symlink_metadata(wanted)
        && strange(&link)
    {
        return refuse(format!("it is a link that belongs to somebody else, {}", user(link.uid())));
    }
    if let Some(file) = wanted.ancestors().find(|p| fs::metadata(p).is_ok_and(|m| !m.is_dir())) {
        let what = if file == wanted { "it".to_owned() } else { file.display().to_string() };
        return refuse(format!("{what} is a file where a directory must be"));
    }
    let nowhere = |p: &&Path| fs::metadata(p).is_err() && fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink());
    if let Some(link) = wanted.ancestors().find(nowhere) {
        let what = if link == wanted { "it".to_owned() } else { link.display().to_string() };
        let target = fs::read_link(link).unwrap_or_default();
        let why = fs::metadata(link).err().map(|e| format!(" ({e})")).unwrap_or_default();
        return refuse(format!("{what} is a link to {}, where no directory is to be found{why}", target.display()));
    }
    if let Err(e) = modes::make_dirs(wanted) {
        return refuse(failed(e));
    }
    let root = match fs::canonicalize(wanted) {
        Ok(root) => root,
        Err(e) => return refuse(failed(e)),
    };
    let look = || fs::symlink_metadata(&root);
    let closed = |m: &Metadata| m.uid() == uid && m.mode() & 0o077 == 0 && m.mode() & 0o700 != 0o700;
    let seen = match look() {
        Ok(meta) if closed(&meta) && modes::open_if_empty(&root) => look(),
        seen => seen,
    };
    let meta = match seen {
        Ok(meta) => meta,
        Err(e) => return refuse(failed(e)),
    };
    if meta.uid() != uid || meta.mode() & 0o077 != 0 {
        return refuse(format!(
            "it must belong to user {uid} with mode 0700, and belongs to {} with mode {:04o}",
            user(meta.uid()),
            meta.mode() & 0o7777
        ));
    }
    let mounted = match statvfs(&root) {
        Ok(mounted) => mounted.f_flag,
        Err(e) => return refuse(failed(e.into())),
    };
    for (flag, name) in [(StatVfsMountFlags::RDONLY, "read-only"), (StatVfsMountFlags::NOEXEC, "noexec")] {
        if mounted.contains(flag) {
            return refuse(format!("it must not be on a file system that is mounted {name}"));
        }
    }
    if let Err(e) = access(&root, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        let mode = meta.mode() & 0o7777;
        return refuse(format!(
            "the caller must be able to read, write and search it, and its mode is {mode:04o} ({e})"
        ));
    }
    Ok(root)
}

/// Why nothing can be made at `path`: whose the nearest directory is that is there.
fn out_of_reach(path: &Path, error: &io::Error) -> String {
    for parent in path.ancestors().skip(1) {
        if let Ok(meta) = fs::metadata(parent) {
            let (owner, mode) = (user(meta.uid()), meta.mode() & 0o7777);
            return format!("{} belongs to {owner} with mode {mode:04o}: {error}", parent.display());
        }
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_state_directory_is_private_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let root = open(&directory.path().join("made/on/the/way"), uid).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, 0o700);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&root, &link).unwrap();
        assert_eq!(open(&link, uid).unwrap(), root);

        // Somebody was killed between making it and giving it its mode.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(open(&root, uid).unwrap(), root);
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, 0o700);

        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink("absent/x", &dangling).unwrap();
        let (loose, others) = (directory.path().join("loose"), directory.path().join("others"));
        for (at, mode) in [(&loose, 0o710), (&others, 0o700)] {
            fs::create_dir(at).unwrap();
            fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut table = vec![
            (PathBuf::from("relative"), uid, "it must be an absolute path".to_owned()),
            (file.clone(), uid, "it is a file where a directory must be".to_owned()),
            (file.join("below"), uid, format!("{} is a file where a directory must be", file.display())),
            (
                loose,
                uid,
                format!("it must belong to user {uid} with mode 0700, and belongs to user {uid} with mode 0710"),
            ),
            (
                others.clone(),
                uid + 1,
                format!("it must belong to user {} with mode 0700, and belongs to user {uid}", uid + 1),
            ),
            (
                dangling.clone(),
                uid,
                "it is a link to absent/x, where no directory is to be found (No such file".to_owned(),
            ),
            (
                dangling.join("below"),
                uid,
                format!("{} is a link to absent/x, where no directory is to be found", dangling.display()),
            ),
            (PathBuf::from("/proc/none"), uid, "No such file or directory".to_owned()),
        ];
        let closed = directory.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("of_somebody"), "").unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
        if uid == 0 {
            std::os::unix::fs::lchown(&link, Some(54_321), None).unwrap();
            table.push((link, uid, "it is a link that belongs to somebody else, user 54321".to_owned()));
        } else {
            let denied = format!("{} belongs to user {uid} with mode 0500: Permission denied", closed.display());
            table.push((closed.join("below"), uid, denied));
            table.push((closed, uid, "able to read, write and search it, and its mode is 0500".to_owned()));
        }
        for (path, uid, rule) in table {
            let error = open(&path, uid).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
            assert!(text.contains(&format!("state_dir {}: ", path.display())) && text.contains(&rule), "{text}");
            assert!(text.ends_with("set it to a directory of the caller's own") && !text.contains('\n'), "{text}");
        }
    }
}
