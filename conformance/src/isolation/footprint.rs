//! What on a host is a backend's.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What on a host is a backend's: things by name, each with what would differ if it changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint(BTreeMap<String, String>);

impl Footprint {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a thing, such as `unit kubelet.service` in state `active`.
    pub fn add(&mut self, thing: impl Into<String>, state: impl Into<String>) {
        self.0.insert(thing.into(), state.into());
    }

    /// Adds everything below `dir`, without `dir` itself: type, mode, size, content and, for what is no directory, the time of
    /// the last change. What can't be read is there all the same.
    pub fn add_files(&mut self, dir: &Path) {
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(found) = path.symlink_metadata() else { continue };
            let kind = found.file_type();
            let mut hasher = DefaultHasher::new();
            if kind.is_file() {
                std::fs::read(&path).unwrap_or_default().hash(&mut hasher);
                (found.mtime(), found.mtime_nsec()).hash(&mut hasher);
            } else if kind.is_symlink() {
                std::fs::read_link(&path).ok().hash(&mut hasher);
            }
            let letter = match () {
                () if kind.is_dir() => 'd',
                () if kind.is_symlink() => 'l',
                () if kind.is_fifo() || kind.is_socket() => 's',
                () => '-',
            };
            self.add(format!("file {}", path.display()), format!("{letter}{:o} {:x}", found.mode(), hasher.finish()));
            if kind.is_dir() {
                self.add_files(&path);
            }
        }
    }

    /// The names of the things.
    pub fn things(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The paths of the files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.things().filter_map(|thing| thing.strip_prefix("file ")).map(Path::new)
    }

    /// Only the things whose name has one of `parts` in it.
    #[must_use]
    pub fn about(&self, parts: &[&str]) -> Self {
        let keep = |thing: &str| parts.iter().any(|part| thing.contains(part));
        Self(self.0.iter().filter(|(thing, _)| keep(thing)).map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    /// What is new, gone or different in `later`, one line each.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (thing, state) in &later.0 {
            match self.0.get(thing) {
                None => lines.push(format!("new: {thing}")),
                Some(before) if before != state => lines.push(format!("different: {thing}")),
                Some(_) => {}
            }
        }
        lines.extend(self.0.keys().filter(|thing| !later.0.contains_key(*thing)).map(|thing| format!("gone: {thing}")));
        lines
    }
}
