//! The table of mounts that makes a root. Pure.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::parse::Flags;

/// The directory of the box that becomes the root.
pub(crate) const ROOT: &str = "fs";

/// Directories, links, files and mounts, by their paths below the root; `..` leads to the box. Parents come before children.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// With their modes.
    pub(crate) dirs: BTreeMap<PathBuf, u32>,
    /// With their targets.
    pub(crate) links: BTreeMap<PathBuf, PathBuf>,
    /// With their contents.
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    /// In the order they are made.
    pub(crate) mounts: Vec<Mount>,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) source: Source,
    /// Below the root; empty for the root itself.
    pub(crate) point: PathBuf,
    pub(crate) flags: Flags,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file or tree of the host, with all that is mounted below it.
    Host(PathBuf),
    /// A path of the box itself.
    Box(PathBuf),
    /// What is there already, with these flags from now on.
    Again,
    /// A new file system with these options.
    New(&'static str, &'static str),
}

impl Plan {
    /// The table that `mount -a -T` reads. Paths are relative to the box: its parents need not be searchable for who mounts.
    pub(crate) fn fstab(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for mount in &self.mounts {
            let (source, kind, first): (&Path, &str, &str) = match &mount.source {
                Source::Host(path) | Source::Box(path) => (path, "none", "rbind"),
                Source::Again => (Path::new("none"), "none", "remount,bind"),
                Source::New(kind, options) => (Path::new(kind), kind, options),
            };
            let mut options = vec![first];
            for (flag, name) in [
                (mount.flags.read_only, "ro"),
                (mount.flags.no_suid, "nosuid"),
                (mount.flags.no_dev, "nodev"),
                (mount.flags.no_exec, "noexec"),
            ] {
                if flag {
                    options.push(name);
                }
            }
            options.retain(|o| !o.is_empty());
            escape(source, &mut out);
            out.push(b' ');
            escape(&Path::new(ROOT).join(&mount.point), &mut out);
            out.extend_from_slice(format!(" {kind} {} 0 0\n", options.join(",")).as_bytes());
        }
        out
    }
}

/// Writes a path as a field of an fstab.
fn escape(path: &Path, out: &mut Vec<u8>) {
    let bytes = path.as_os_str().as_bytes();
    // A trailing slash is what joining with nothing leaves.
    for byte in bytes.strip_suffix(b"/").unwrap_or(bytes) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' | b'"' | b'\'' | 0..=31 | 127 => {
                out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
            }
            _ => out.push(*byte),
        }
    }
}
