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

/// The processes that a sandbox has besides those of its calls: the first one and its parent, two that take orders, and one that is there
/// for a moment when those begin. Who leaves no room for that one can have the first command wait a second for it.
const OWN: u64 = 5;
/// The processes that a call has besides its own: a shell, and what brought it in.
const OF_CALL: u64 = 2;
/// The fewest with which anything runs: one command of one process.
pub(crate) const LEAST: u64 = OWN + OF_CALL + 1;

/// The bound on processes that is imposed. One that leaves no room for a single command cannot be: a preferred one becomes the lowest
/// that can.
pub(crate) fn processes(hardening: &Hardening) -> Result<Option<u64>, Error> {
    match hardening.pids.value() {
        Some(n) if n < LEAST && hardening.pids.is_required() => {
            Err(Error::new(ErrorKind::Unsupported).because(format!("hardening pids {n}: {}", needs(LEAST))))
        }
        bound => Ok(bound.map(|n| n.max(LEAST))),
    }
}

/// What processes are needed for.
fn needs(least: u64) -> String {
    format!(
        "it must be at least {least}: a local sandbox takes {OWN} itself, and {OF_CALL} for each command that runs at once besides its own"
    )
}

/// The reason of a call for which there was no process left.
pub(crate) fn used_up(bound: u64, said: &str) -> String {
    format!(
        "hardening pids {bound}: no process was left for it; a local sandbox takes {OWN} itself, and {OF_CALL} for each call besides its own \
         ({said})"
    )
}

/// Whether so few processes are left that no call may begin.
pub(crate) fn is_full(bound: u64, seen: u64) -> bool {
    seen + OF_CALL >= bound
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
