//! The loop over an archive.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use sandbox::{Error, SandboxPath};
use tar::{Archive, Entry};

use super::entry::{Kind, classify};
use super::place::host_error;
use super::source::{Watched, Watcher, malformed, watched};
use super::{DownloadOptions, OnRefusal};
use crate::dir::{self, Root};
use crate::{Bound, Limits, Refused, Report, Rule, names};

/// A block of the format.
const BLOCK: usize = 512;
/// What the headers of one entry may take: a long name, a long link, extensions, and the header itself.
const HEADERS: u64 = 32 << 10;
/// What may follow the end: archivers fill their last record with zeros.
const TAIL: u64 = 1 << 20;
/// How much is copied at once.
const COPY: usize = 64 << 10;

/// One archive on its way to the disk.
pub(super) struct Unpacking<'a> {
    root: Root,
    /// What the archive calls its top entry, and what it is called here.
    top: &'a [u8],
    name: &'a [u8],
    options: DownloadOptions,
    seen: u64,
    bytes: u64,
    buffer: Vec<u8>,
    pub(super) report: Report,
}

/// Why an entry did not land: it is not taken, or the whole transfer ends.
enum Stop {
    Rule(Rule),
    Error(Error),
}

impl From<Rule> for Stop {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<'a> Unpacking<'a> {
    /// Unpacks the export of `root` as `name` in `parent`.
    pub(super) fn new(parent: OwnedFd, root: &'a SandboxPath, name: &'a [u8], options: DownloadOptions) -> Self {
        Self {
            root: Root::new(parent),
            top: root.file_name(),
            name,
            options,
            seen: 0,
            bytes: 0,
            buffer: vec![0; COPY],
            report: Report::default(),
        }
    }

    pub(super) fn run(&mut self, archive: impl Read) -> Result<(), Error> {
        let (source, watcher) = watched(archive);
        let mut archive = Archive::new(source);
        watcher.allow(HEADERS);
        let explain = |e: io::Error| watcher.explain(&e, Bound::HeaderBytes, HEADERS);
        for entry in archive.entries().map_err(explain)? {
            let mut entry = entry.map_err(explain)?;
            let left = self.one(&mut entry, &watcher)?;
            // What the entry's end is padded with, and what of it nobody read, comes before the next header.
            watcher.allow(left.saturating_add(HEADERS));
        }
        if self.report.files + self.report.directories + self.report.links == 0 {
            // Without the entry at the top there is nothing: that one cannot be left out.
            let first = self.report.left_out.first().cloned();
            return Err(first.map_or_else(|| malformed("it is empty"), Refused::into_error));
        }
        finish(archive.into_inner(), &watcher)
    }

    /// Takes or leaves out one entry, and answers how many of its bytes were not read.
    fn one<R: Read>(&mut self, entry: &mut Entry<'_, R>, watcher: &Watcher) -> Result<u64, Error> {
        let limits = self.options.limits;
        self.seen += 1;
        limits.check(Bound::Entries, self.seen)?;
        let name = entry.path_bytes().into_owned();
        limits.check(Bound::NameBytes, name.len() as u64)?;
        let size = entry.size();
        limits.check(Bound::FileBytes, size)?;
        self.bytes = self.bytes.saturating_add(size);
        limits.check(Bound::Bytes, self.bytes)?;
        match self.place(entry, &name, watcher) {
            Ok(()) => Ok(0),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Rule(rule)) => {
                let refused = Refused::new(&name, rule);
                match self.options.refusal {
                    OnRefusal::Fail => Err(refused.into_error()),
                    OnRefusal::LeaveOut => {
                        self.report.leave_out(refused);
                        Ok(size)
                    }
                }
            }
        }
    }

    fn place<R: Read>(&mut self, entry: &mut Entry<'_, R>, name: &[u8], watcher: &Watcher) -> Result<(), Stop> {
        let below = names::below(name, entry.header().entry_type().is_dir(), self.top)?;
        let depth = below.len().checked_sub(1);
        let kind = classify(entry, self.options.links, depth)?;
        let directories = if matches!(kind, Kind::Directory { .. }) { below.len() } else { depth.unwrap_or(0) };
        self.options.limits.check(Bound::Depth, directories as u64)?;
        // In the directory that holds the target, the target comes first.
        let mut components = vec![self.name];
        components.extend(&below);
        if components.iter().map(|c| c.len() + 1).sum::<usize>() > Limits::MAX_NAME {
            return Err(Rule::LongName.into());
        }
        let leaf = components.pop().unwrap_or(self.name);
        let parent = self.root.directory(&components).map_err(|e| match e {
            Errno::NOENT => Rule::NoParent.into(),
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV => Rule::ThroughLink.into(),
            e => Stop::from(self.here(&components, leaf, e)),
        })?;
        let parent = parent.as_fd();
        let refuse = |e: Errno| match e {
            Errno::EXIST => Rule::Duplicate.into(),
            Errno::NAMETOOLONG => Rule::LongName.into(),
            Errno::ILSEQ | Errno::INVAL => Rule::NameNotPortable.into(),
            e => Stop::from(self.here(&components, leaf, e)),
        };
        match kind {
            Kind::Directory { mode } => {
                self.directory(parent, leaf, mode).map_err(refuse)?;
                self.report.directories += 1;
            }
            Kind::Link { target } => {
                rustix::fs::symlinkat(&target[..], parent, leaf).map_err(refuse)?;
                self.report.links += 1;
            }
            Kind::File { mode } => {
                let file = File::from(dir::create(parent, leaf, mode).map_err(refuse)?);
                if let Err(error) = self.content(entry, file, watcher, leaf) {
                    // Half a file is worth nothing to anybody.
                    let _ = rustix::fs::unlinkat(parent, leaf, AtFlags::empty());
                    return Err(error.into());
                }
                self.report.files += 1;
                self.options.meter.file();
            }
        }
        Ok(())
    }

    /// Makes a directory that its owner can always use. Where it is unpacked in place, one that is there will do.
    fn directory(&self, parent: BorrowedFd<'_>, name: &[u8], mode: u32) -> rustix::io::Result<()> {
        match dir::make(parent, name, mode) {
            Err(Errno::EXIST) if self.options.in_place && dir::look(parent, name)? == Some(FileType::Directory) => {
                Ok(())
            }
            other => other,
        }
    }

    fn content<R: Read>(
        &mut self,
        entry: &mut Entry<'_, R>,
        mut file: File,
        watcher: &Watcher,
        name: &[u8],
    ) -> Result<(), Error> {
        let mut left = entry.size();
        watcher.allow(left);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let n = match entry.read(&mut self.buffer[..most]) {
                Ok(0) => return Err(malformed("it ends within a file")),
                Ok(n) => n,
                Err(e) => return Err(watcher.explain(&e, Bound::FileBytes, self.options.limits.file_bytes)),
            };
            file.write_all(&self.buffer[..n]).map_err(|e| {
                let path = String::from_utf8_lossy(name).into_owned();
                Error::new(sandbox::ErrorKind::HostFile).because(format!("{path:?}: {e}")).caused_by(e)
            })?;
            left -= n as u64;
            self.report.bytes += n as u64;
            self.options.meter.bytes(n as u64);
        }
        Ok(())
    }

    fn here(&self, components: &[&[u8]], leaf: &[u8], e: Errno) -> Error {
        let mut path: Vec<&[u8]> = components.to_vec();
        path.push(leaf);
        let path = path.join(&b'/');
        let path: Cow<'_, str> = String::from_utf8_lossy(&path);
        host_error(Path::new(path.as_ref()), e)
    }
}

/// Demands the second block of zeros, zeros from there on, and the source's own end.
///
/// The archive reader stops after the first block of zeros, and takes the end of its source for an end as well: then there
/// is no second block, and this fails.
fn finish<R: Read>(mut source: Watched<R>, watcher: &Watcher) -> Result<(), Error> {
    watcher.allow(TAIL);
    let mut block = [0u8; BLOCK];
    let mut total = 0u64;
    loop {
        let n = match source.read(&mut block) {
            Ok(n) => n,
            Err(e) => return Err(watcher.explain(&e, Bound::TailBytes, TAIL)),
        };
        if n == 0 {
            break;
        }
        if block[..n].iter().any(|b| *b != 0) {
            return Err(malformed("something follows its end"));
        }
        total += n as u64;
    }
    if total < BLOCK as u64 || !total.is_multiple_of(BLOCK as u64) {
        return Err(malformed("its end is missing"));
    }
    Ok(())
}
