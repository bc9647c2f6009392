//! A directory, copied.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{LOOK, RootfsSource, on_thread};
use crate::blocking::on_thread as look;
use crate::{Error, ErrorKind, NodeFs, NodePath, OpCtx, Result, Stop};

/// How deep a tree may be.
const MAX_DEPTH: usize = 256;

/// A root file system that is a directory of this host; it is copied, links as links, hard links kept.
#[derive(Debug, Clone)]
pub struct DirSource {
    dir: PathBuf,
}

impl DirSource {
    /// The directory `dir`. It is trusted, and must not change while it is copied.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }
}

#[async_trait]
impl RootfsSource for DirSource {
    async fn identity(&self) -> Result<String> {
        let dir = self.dir.clone();
        look(LOOK, move || {
            let found = std::fs::metadata(&dir).ok().filter(std::fs::Metadata::is_dir);
            let found = found.ok_or_else(|| Error::new(ErrorKind::Artifact, LOOK).with_path(&dir))?;
            Ok(format!("dir {} {}.{:09}", dir.display(), found.mtime(), found.mtime_nsec()))
        })
        .await
    }

    fn in_place(&self) -> bool {
        false
    }

    async fn unpack(&self, ctx: &OpCtx, into: &NodeFs) -> Result<()> {
        let (dir, into) = (self.dir.clone(), into.clone());
        on_thread(ctx, "copy the root file system", move |stop| {
            let mut copy = Copy { into: &into, stop, links: HashMap::new() };
            copy.dir(&dir, &NodePath::root(), 0)?;
            into.sync()
        })
        .await
    }
}

struct Copy<'a> {
    into: &'a NodeFs,
    stop: &'a Stop,
    /// Files with more than one name, by device and inode.
    links: HashMap<(u64, u64), NodePath>,
}

impl Copy<'_> {
    fn dir(&mut self, from: &Path, to: &NodePath, depth: usize) -> Result<()> {
        let io = |cause| Error::io("copy a directory", from, cause);
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::Artifact, "copy a directory").with_path(from).with_detail("too deep"));
        }
        for entry in std::fs::read_dir(from).map_err(io)? {
            self.stop.check()?;
            let entry = entry.map_err(io)?;
            self.entry(&entry.path(), &to.join(entry.file_name())?, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, from: &Path, to: &NodePath, depth: usize) -> Result<()> {
        let io = |cause| Error::io("copy a file", from, cause);
        let found = std::fs::symlink_metadata(from).map_err(io)?;
        let (kind, mode) = (found.file_type(), found.mode() & 0o7777);
        if kind.is_dir() {
            self.into.create_dir_all(to, 0o700)?;
            self.dir(from, to, depth + 1)?;
        } else if kind.is_symlink() {
            self.into.symlink(std::fs::read_link(from).map_err(io)?, to)?;
        } else if kind.is_file() {
            let key = (found.dev(), found.ino());
            if let Some(first) = self.links.get(&key) {
                return self.into.hard_link(first, to);
            }
            let mut content = std::fs::File::open(from).map_err(io)?;
            self.into.write_unsynced(to, 0o600, &mut content)?;
            if found.nlink() > 1 {
                self.links.insert(key, to.clone());
            }
        } else if kind.is_socket() || kind.is_fifo() {
            return Ok(());
        } else {
            let error = Error::new(ErrorKind::Artifact, "copy a file").with_path(from);
            return Err(error.with_detail("devices are never copied"));
        }
        own(self.into, to, found.uid(), found.gid())?;
        if kind.is_symlink() { Ok(()) } else { self.into.set_mode(to, mode) }
    }
}

/// Sets the owner where that is possible: only root can, and only root needs to.
pub(super) fn own(into: &NodeFs, path: &NodePath, uid: u32, gid: u32) -> Result<()> {
    if rustix::process::geteuid().is_root() { into.set_owner(path, uid, gid) } else { Ok(()) }
}
