//! A tar archive, or several layers of them, unpacked with distrust.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tar::{Archive, Entry, EntryType};

use super::dir::own;
use super::{LOOK, RootfsSource, on_thread};
use crate::blocking::on_thread as look;
use crate::{Error, ErrorKind, NodeFileKind, NodeFs, NodePath, OpCtx, Result, Stop};

/// How much may be read for one entry besides the content of its file: headers, long names, extended attributes.
const HEADERS: u64 = 1 << 20;

/// How deep a tree may be.
const MAX_DEPTH: usize = 256;

/// How much an archive may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnpackLimits {
    /// Entries, and directories that no entry names but that one lies in, over all layers.
    pub entries: u64,
    /// Bytes of file content, over all layers, holes of sparse files included.
    pub bytes: u64,
}

/// Two million entries, 64 GiB.
impl Default for UnpackLimits {
    fn default() -> Self {
        Self { entries: 2_000_000, bytes: 64 << 30 }
    }
}

impl UnpackLimits {
    /// Sets both.
    pub fn new(entries: u64, bytes: u64) -> Self {
        Self { entries, bytes }
    }
}

/// A root file system in one uncompressed tar archive, or in layers from the lowest up.
///
/// Owners are numeric, and modes, hard links and extended attributes are kept; a layer's whiteouts remove
/// what lies below. An archive is somebody else's: absolute names, `..`, links that climb out, devices,
/// names below a link, and more than the limits allow are refused as `Artifact`. So are a tree deeper than 256 and an entry with more than
/// 1 MiB of headers, names and attributes: what unpacking holds in memory is bounded whatever the archive says.
#[derive(Debug, Clone)]
pub struct TarSource {
    layers: Vec<PathBuf>,
    limits: UnpackLimits,
}

impl TarSource {
    /// One archive.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self::layers(vec![path.into()])
    }

    /// Several, from the lowest up.
    pub fn layers(layers: Vec<PathBuf>) -> Self {
        Self { layers, limits: UnpackLimits::default() }
    }

    /// Sets how much the archives may hold.
    #[must_use]
    pub fn with_limits(mut self, limits: UnpackLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Unpacks one archive from a reader. Blocks.
    ///
    /// # Errors
    ///
    /// As [`RootfsSource::unpack`].
    pub fn unpack_reader(reader: impl Read, limits: UnpackLimits, into: &NodeFs) -> Result<()> {
        Unpack::new(into, &Stop::default(), limits).layer(reader)
    }
}

#[async_trait]
impl RootfsSource for TarSource {
    async fn identity(&self) -> Result<String> {
        let layers = self.layers.clone();
        look(LOOK, move || {
            let mut text = String::from("tar");
            for path in &layers {
                let absent = |cause| Error::new(ErrorKind::Artifact, LOOK).with_path(path).because(cause);
                let found = std::fs::metadata(path).map_err(absent)?;
                let (seconds, nanos) = (found.mtime(), found.mtime_nsec());
                text.push_str(&format!(" {} {} {seconds}.{nanos:09}", path.display(), found.len()));
            }
            Ok(text)
        })
        .await
    }

    fn in_place(&self) -> bool {
        false
    }

    async fn unpack(&self, ctx: &OpCtx, into: &NodeFs) -> Result<()> {
        let (source, into) = (self.clone(), into.clone());
        on_thread(ctx, "unpack the root file system", move |stop| {
            let mut unpack = Unpack::new(&into, stop, source.limits);
            for path in &source.layers {
                let file = std::fs::File::open(path).map_err(|cause| {
                    Error::new(ErrorKind::Artifact, "open the root file system").with_path(path).because(cause)
                })?;
                unpack.layer(std::io::BufReader::with_capacity(256 * 1024, file))?;
            }
            into.sync()
        })
        .await
    }
}

struct Unpack<'a> {
    into: &'a NodeFs,
    stop: &'a Stop,
    left: UnpackLimits,
    /// Directories known to be directories, and not links to one.
    dirs: HashSet<NodePath>,
    /// Final modes of directories, set at the end so that a read-only one can be filled.
    modes: HashMap<NodePath, u32>,
}

fn refuse(path: &[u8], why: &'static str) -> Error {
    let shown = String::from_utf8_lossy(&path[..path.len().min(256)]).into_owned();
    Error::new(ErrorKind::Artifact, "unpack the root file system").with_path(shown).with_detail(why)
}

impl<'a> Unpack<'a> {
    fn new(into: &'a NodeFs, stop: &'a Stop, limits: UnpackLimits) -> Self {
        Self { into, stop, left: limits, dirs: HashSet::from([NodePath::root()]), modes: HashMap::new() }
    }

    fn layer(&mut self, reader: impl Read) -> Result<()> {
        // The archive's reader takes names and attributes whole into memory, before there is an entry to look at.
        let allowed = Cell::new(HEADERS);
        let broken = |cause: std::io::Error| {
            let why = if allowed.get() == 0 { "an entry's headers are too long" } else { "the archive is damaged" };
            refuse(b"", why).because(cause)
        };
        let mut archive = Archive::new(Metered { inner: reader, stop: self.stop.clone(), allowed: &allowed });
        let mut fresh = HashSet::new();
        for entry in archive.entries().map_err(broken)? {
            self.charge(1)?;
            self.entry(entry.map_err(broken)?, &allowed, &mut fresh)?;
            allowed.set(HEADERS);
        }
        for (path, mode) in self.modes.drain() {
            if self.dirs.contains(&path) {
                self.into.set_mode(&path, mode)?;
            }
        }
        Ok(())
    }

    /// Takes so many entries from what is left.
    fn charge(&mut self, entries: u64) -> Result<()> {
        self.stop.check()?;
        let left = self.left.entries.checked_sub(entries);
        self.left.entries = left.ok_or_else(|| refuse(b"", "the archive has too many entries"))?;
        Ok(())
    }

    fn entry<R: Read>(
        &mut self,
        mut entry: Entry<'_, R>,
        allowed: &Cell<u64>,
        fresh: &mut HashSet<NodePath>,
    ) -> Result<()> {
        let raw = entry.path_bytes().into_owned();
        let path = name(&raw)?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            return Ok(());
        }
        let header = |value: std::io::Result<u64>| value.map_err(|e| refuse(&raw, "its header is damaged").because(e));
        let mode = entry.header().mode().map_err(|e| refuse(&raw, "its header is damaged").because(e))? & 0o7777;
        let id = |value: u64| u32::try_from(value).map_err(|_| refuse(&raw, "its owner is out of range"));
        let (uid, gid) = (id(header(entry.header().uid())?)?, id(header(entry.header().gid())?)?);
        if path.is_root() {
            return if kind.is_dir() { Ok(()) } else { Err(refuse(&raw, "the root is no directory")) };
        }
        self.parents(&path, &raw)?;
        if self.whiteout(&path, &entry, fresh)? {
            return Ok(());
        }
        let attributes = attributes(&mut entry)?;
        match kind {
            EntryType::Directory => {
                self.clear(&path, true)?;
                self.into.create_dir_all(&path, 0o700)?;
                self.dirs.insert(path.clone());
                self.modes.insert(path.clone(), mode);
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.left.bytes = self
                    .left
                    .bytes
                    .checked_sub(entry.size())
                    .ok_or_else(|| refuse(&raw, "the archive holds too many bytes"))?;
                self.clear(&path, false)?;
                let (size, stop) = (entry.size(), self.stop.clone());
                // Its content was charged, and goes to disk.
                allowed.set(u64::MAX);
                let mut content = Stoppable { inner: (&mut entry).take(size), stop };
                let written = self.into.write_unsynced(&path, 0o600, &mut content)?;
                allowed.set(HEADERS);
                if written != size {
                    return Err(refuse(&raw, "it is shorter than its header says"));
                }
            }
            EntryType::Symlink => {
                let to = entry.link_name_bytes().ok_or_else(|| refuse(&raw, "the link has no target"))?;
                check_link(&path, &to, &raw)?;
                self.clear(&path, false)?;
                self.into.symlink(Path::new(OsStr::from_bytes(&to)), &path)?;
            }
            EntryType::Link => {
                let to = entry.link_name_bytes().ok_or_else(|| refuse(&raw, "the link has no target"))?;
                let to = name(&to)?;
                self.parents(&to, &raw)?;
                if self.into.metadata(&to)?.is_none_or(|found| found.kind != NodeFileKind::File) {
                    return Err(refuse(&raw, "the hard link's target is no file of the archive"));
                }
                if to != path {
                    self.clear(&path, false)?;
                    self.into.hard_link(&to, &path)?;
                }
                fresh.insert(path);
                return Ok(());
            }
            _ => return Err(refuse(&raw, "devices and the like are refused")),
        }
        own(self.into, &path, uid, gid)?;
        if kind != EntryType::Symlink {
            if !kind.is_dir() {
                self.into.set_mode(&path, mode)?;
            }
            for (key, value) in attributes {
                self.into.set_xattr(&path, &key, &value)?;
            }
        }
        fresh.insert(path);
        Ok(())
    }

    /// Makes the directories above `path`; none of them may be a link.
    fn parents(&mut self, path: &NodePath, raw: &[u8]) -> Result<()> {
        if path.components().count() > MAX_DEPTH {
            return Err(refuse(raw, "it lies too deep"));
        }
        let mut unknown = Vec::new();
        let mut above = path.parent();
        while let Some(dir) = above {
            if self.dirs.contains(&dir) {
                break;
            }
            above = dir.parent();
            unknown.push(dir);
        }
        let deepest = unknown.first().cloned();
        // From the top: where one is missing, so is everything below it.
        let mut missing = false;
        for dir in unknown.into_iter().rev() {
            if !missing {
                match self.into.metadata(&dir)?.map(|found| found.kind) {
                    Some(NodeFileKind::Dir) => {}
                    Some(_) => return Err(refuse(raw, "it lies below a link or a file")),
                    None => missing = true,
                }
            }
            if missing {
                self.charge(1)?;
            }
            self.dirs.insert(dir);
        }
        match deepest {
            Some(dir) if missing => self.into.create_dir_all(&dir, 0o755),
            _ => Ok(()),
        }
    }

    /// Makes room for a new entry; a directory may stay for a directory.
    fn clear(&mut self, path: &NodePath, for_dir: bool) -> Result<()> {
        match self.into.metadata(path)?.map(|found| found.kind) {
            None => Ok(()),
            Some(NodeFileKind::Dir) if for_dir => Ok(()),
            Some(NodeFileKind::Dir) => self.remove(path),
            Some(_) => self.into.remove(path),
        }
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        self.dirs.retain(|dir| dir.strip_prefix(path).is_none());
        self.into.remove_tree(path)
    }

    /// Whether the entry is a whiteout of one of the two kinds; if so, it was obeyed.
    fn whiteout<R: Read>(&mut self, path: &NodePath, entry: &Entry<'_, R>, fresh: &HashSet<NodePath>) -> Result<bool> {
        let (Some(dir), Some(file)) = (path.parent(), path.file_name()) else { return Ok(false) };
        let header = entry.header();
        if header.entry_type() == EntryType::Char {
            let number = (header.device_major().ok().flatten(), header.device_minor().ok().flatten());
            if number == (Some(0), Some(0)) {
                self.remove(path)?;
                return Ok(true);
            }
        }
        let Some(hidden) = file.as_bytes().strip_prefix(b".wh.") else { return Ok(false) };
        if hidden == b".wh..opq" {
            for name in self.into.read_dir(&dir, 1_000_000)? {
                let child = dir.join(&name)?;
                if !fresh.contains(&child) {
                    self.remove(&child)?;
                }
            }
        } else if hidden.starts_with(b".wh.") || hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(refuse(path.as_bytes(), "the whiteout makes no sense"));
        } else {
            self.remove(&dir.join(OsStr::from_bytes(hidden))?)?;
        }
        Ok(true)
    }
}

/// Reads no more than is allowed at the moment, and until it is told to stop.
struct Metered<'a, R> {
    inner: R,
    stop: Stop,
    allowed: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stop.check().map_err(std::io::Error::other)?;
        let allowed = self.allowed.get();
        if allowed == 0 {
            return Err(std::io::Error::other("more than is allowed for one entry"));
        }
        let most = buf.len().min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buf[..most])?;
        self.allowed.set(allowed - read as u64);
        Ok(read)
    }
}

/// Reads until it is told to stop; a hole asks no reader below.
struct Stoppable<R> {
    inner: R,
    stop: Stop,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stop.check().map_err(std::io::Error::other)?;
        self.inner.read(buf)
    }
}

/// An entry's name as a path of the node: relative, with or without `./`.
fn name(raw: &[u8]) -> Result<NodePath> {
    if raw.first() == Some(&b'/') {
        return Err(refuse(raw, "its name is absolute"));
    }
    NodePath::root()
        .join(OsStr::from_bytes(if raw.is_empty() { b"." } else { raw }))
        .map_err(|cause| refuse(raw, "its name is not allowed").because(cause))
}

/// A link may be absolute, which inside the node means its root; a relative one may not climb above it.
fn check_link(path: &NodePath, to: &[u8], raw: &[u8]) -> Result<()> {
    if to.is_empty() || to.contains(&0) || to.len() > 4095 {
        return Err(refuse(raw, "the link's target is not allowed"));
    }
    let absolute = to[0] == b'/';
    let mut depth = if absolute { 0 } else { path.components().count() as i64 - 1 };
    for component in to.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return Err(refuse(raw, "the link climbs out of the root"));
        }
    }
    Ok(())
}

fn attributes<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<(String, Vec<u8>)>> {
    let raw = entry.path_bytes().into_owned();
    let damaged = |cause: std::io::Error| refuse(&raw, "its extended header is damaged").because(cause);
    let mut found = Vec::new();
    let Some(extensions) = entry.pax_extensions().map_err(damaged)? else { return Ok(found) };
    for extension in extensions {
        let extension = extension.map_err(damaged)?;
        if let Some(key) = extension.key().ok().and_then(|key| key.strip_prefix("SCHILY.xattr.")) {
            found.push((key.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(found)
}
