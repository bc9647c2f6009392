//! The host as the checks see it: files below a root, programs through a runner.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{HostCommand, HostRunner, OpCtx, SystemRunner};

/// No file is read further.
const MOST: u64 = 16 * 1024 * 1024;

/// No directory is listed further.
const MOST_NAMES: usize = 100_000;

/// A host to look at. It offers nothing that could change one.
#[derive(Debug, Clone)]
pub struct HostView {
    root: PathBuf,
    runner: Arc<dyn HostRunner>,
    privileged: bool,
}

impl HostView {
    /// This machine.
    pub fn this() -> Self {
        Self {
            root: PathBuf::from("/"),
            runner: Arc::new(SystemRunner::default()),
            privileged: rustix::process::geteuid().is_root(),
        }
    }

    /// A made-up machine whose files are below `root`. Its links are followed as those of this machine: it is for tests.
    pub fn at(root: impl Into<PathBuf>, runner: Arc<dyn HostRunner>, privileged: bool) -> Self {
        Self { root: root.into(), runner, privileged }
    }

    /// Whether the checks run with effective uid 0.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Where a path of the host is for us.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether something is there, a dangling link included.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// The text of a file, at most 16 MiB; `None` if it can't be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let file = std::fs::File::open(self.path(path)).ok()?;
        let mut content = Vec::new();
        file.take(MOST).read_to_end(&mut content).ok()?;
        Some(String::from_utf8_lossy(&content).into_owned())
    }

    /// The names in a directory, sorted; none if it can't be read.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<_> = names.take(MOST_NAMES).collect();
        names.sort();
        names
    }

    /// The nearest of a path and those above it that exists.
    pub fn nearest(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.path(path);
        path.ancestors().find(|above| above.exists()).unwrap_or(&self.root).to_path_buf()
    }

    /// Whether a program is there.
    pub fn has_program(&self, name: &str) -> bool {
        self.runner.resolve(name).is_some()
    }

    /// What a program that only looks prints, if it succeeds.
    pub async fn ask<const N: usize>(&self, ctx: &OpCtx, program: &str, args: [&str; N]) -> Option<String> {
        let output = self.runner.run(ctx, HostCommand::new(program, args)).await.ok()?;
        output.status.success().then(|| output.stdout_text())
    }
}
