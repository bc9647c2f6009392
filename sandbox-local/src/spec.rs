//! What a spec means on this machine.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sandbox::{Error, ErrorKind, Hardening};

/// The image that is this machine's own programs.
const HOST_IMAGE: &str = "host";
/// The user and group inside, unless the spec says otherwise. Not 0: as user 0, tar wants to give files away and fails.
const DEFAULT_ID: u32 = 1000;

/// The user and group inside. One of each exists there, and neither is 0.
pub(crate) fn inner_ids(hardening: &Hardening) -> Result<(u32, u32), Error> {
    let refuse = |what: String| Err(Error::new(ErrorKind::Unsupported).because(what));
    let uid = hardening.run_as_user.unwrap_or(DEFAULT_ID);
    let gid = hardening.run_as_group.or(hardening.fs_group).unwrap_or(match hardening.run_as_user {
        Some(uid) => uid,
        None => DEFAULT_ID,
    });
    for (field, id) in [("run_as_user", uid), ("run_as_group", gid)] {
        if id == 0 {
            return refuse(format!("hardening {field} 0: a local sandbox has no user or group 0"));
        }
    }
    match hardening.fs_group {
        Some(group) if group != gid => refuse(format!(
            "hardening fs_group {group}: a local sandbox has one group, and run_as_group makes it {gid}"
        )),
        _ => Ok((uid, gid)),
    }
}

/// The directory of an image; `None` for this machine's own programs.
pub(crate) fn image(image: &str) -> Result<Option<PathBuf>, Error> {
    if image == HOST_IMAGE {
        return Ok(None);
    }
    if !image.starts_with('/') {
        return Err(Error::new(ErrorKind::InvalidSpec).because(format!(
            "image {image}: a local sandbox has the image {HOST_IMAGE}, or the absolute path of a directory with a root file system"
        )));
    }
    let unreadable = |e: std::io::Error| {
        let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
        let kind = if denied { ErrorKind::Forbidden } else { ErrorKind::ImagePull };
        Error::new(kind).because(format!("image {image}: {e}"))
    };
    let real = fs::canonicalize(image).map_err(unreadable)?;
    if real == Path::new("/") || !fs::metadata(&real).map_err(unreadable)?.is_dir() {
        return Err(Error::new(ErrorKind::InvalidSpec)
            .because(format!("image {image}: it must be a directory other than this machine's own root")));
    }
    Ok(Some(real))
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    OsStr::from_bytes(bytes).as_ref()
}
