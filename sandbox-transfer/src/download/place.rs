//! Where a download lands: beside its target first, and there at the end.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sandbox::{Effect, Error, ErrorKind, SandboxPath};

use super::DownloadOptions;
use super::unpack::Unpacking;
use crate::{Report, dir};

/// The directory that holds the target, and the target's name in it.
fn split(target: &Path) -> Result<(&Path, &OsStr), Error> {
    let refuse = || {
        Error::new(ErrorKind::InvalidRequest)
            .because(format!("target {target:?}: it must end in a name that can be made"))
    };
    let name = target.file_name().ok_or_else(refuse)?;
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent, name))
}

pub(super) fn host_error(path: &Path, e: Errno) -> Error {
    Error::new(ErrorKind::HostFile).because(format!("{path:?}: {e}")).caused_by(std::io::Error::from(e))
}

fn exists(target: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists).because(format!("target {target:?}"))
}

/// Refuses what could not work, before anything is asked of a sandbox.
pub(super) fn check(target: &Path, options: &DownloadOptions) -> Result<(), Error> {
    options.limits.validate()?;
    let (parent, name) = split(target)?;
    let fd = dir::open(parent).map_err(|e| host_error(parent, e))?;
    match dir::look(fd.as_fd(), name.as_bytes()).map_err(|e| host_error(target, e))? {
        Some(_) if !options.in_place => Err(exists(target)),
        _ => Ok(()),
    }
}

/// Unpacks `archive` as `target`. Blocks.
pub(super) fn run(
    archive: impl Read,
    root: &SandboxPath,
    target: &Path,
    options: DownloadOptions,
) -> Result<Report, Error> {
    let (parent, name) = split(target)?;
    let fd = dir::open(parent).map_err(|e| host_error(parent, e))?;
    if options.in_place {
        return in_place(archive, fd, root, target, name, options);
    }
    let mut staging = Staging::new(fd, parent)?;
    let unpack = || {
        let inside = dir::enter(staging.parent.as_fd(), &staging.name).map_err(|e| host_error(&staging.path, e))?;
        let copy = rustix::io::fcntl_dupfd_cloexec(&inside, 0).map_err(|e| host_error(&staging.path, e))?;
        let mut work = Unpacking::new(copy, root, name.as_bytes(), options);
        work.run(archive)?;
        dir::rename_new(inside.as_fd(), name.as_bytes(), staging.parent.as_fd(), name.as_bytes())
            .map_err(|e| if e == Errno::EXIST { exists(target) } else { host_error(target, e) })?;
        Ok(work.report)
    };
    let done = unpack();
    // Whatever failed: what is left is told.
    let removed = staging.remove();
    match (done, removed) {
        (Ok(report), Ok(())) => Ok(report),
        (Err(failure), Ok(())) => Err(failure),
        (Ok(_), Err(e)) => Err(host_error(&staging.path, e).with_effect(Effect::Partial)),
        (Err(failure), Err(_)) => {
            let left = format!("what was unpacked is left in {:?}", staging.path);
            Err(partial(failure, &left))
        }
    }
}

fn in_place(
    archive: impl Read,
    parent: OwnedFd,
    root: &SandboxPath,
    target: &Path,
    name: &OsStr,
    options: DownloadOptions,
) -> Result<Report, Error> {
    let mut work = Unpacking::new(parent, root, name.as_bytes(), options);
    let done = work.run(archive);
    let Report { files, directories, links, .. } = work.report;
    match done {
        Ok(()) => Ok(work.report),
        Err(failure) if files + directories + links == 0 => Err(failure),
        Err(failure) => {
            let left = format!("{target:?} holds part of it: {files} files, {directories} directories, {links} links");
            Err(partial(failure, &left))
        }
    }
}

/// Says in `failure` what is left.
fn partial(failure: Error, left: &str) -> Error {
    let reason = match failure.reason() {
        Some(reason) => format!("{reason}; {left}"),
        None => left.to_owned(),
    };
    failure.with_effect(Effect::Partial).because(reason)
}

/// A fresh directory beside the target, for its maker alone; removed when it is dropped.
struct Staging {
    parent: OwnedFd,
    name: Vec<u8>,
    path: PathBuf,
    there: bool,
}

impl Staging {
    fn new(parent: OwnedFd, at: &Path) -> Result<Self, Error> {
        for _ in 0..16 {
            let random = getrandom::u64()
                .map_err(|e| Error::new(ErrorKind::Other).because(format!("no randomness for a name: {e}")))?;
            let name = format!(".sandbox-download-{random:016x}");
            let path = at.join(&name);
            match dir::make(parent.as_fd(), name.as_bytes(), 0o700) {
                Ok(()) => return Ok(Self { parent, name: name.into_bytes(), path, there: true }),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(host_error(&path, e)),
            }
        }
        Err(host_error(at, Errno::EXIST))
    }

    fn remove(&mut self) -> rustix::io::Result<()> {
        self.there = false;
        dir::remove(self.parent.as_fd(), &self.name)
    }
}

/// For a panic in the caller's progress function.
impl Drop for Staging {
    fn drop(&mut self) {
        if self.there {
            let _ = self.remove();
        }
    }
}
