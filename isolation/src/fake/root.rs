//! The node root of a stateful fake.

use std::path::{Path, PathBuf};

use crate::{DirRoot, NodeFs, NodePath, NodeRoot, Result, SlotName, SlotRef};

/// A directory in which the node's commands run without a root of their own: the path inside is the
/// agent's path, as in mode `none`.
#[derive(Debug, Clone)]
pub struct FakeRoot(DirRoot);

impl FakeRoot {
    pub(super) fn new(slot: SlotName, dir: impl AsRef<Path>) -> Result<Self> {
        DirRoot::new(slot, dir).map(Self)
    }
}

impl SlotRef for FakeRoot {
    fn slot(&self) -> &SlotName {
        self.0.slot()
    }
}

impl NodeRoot for FakeRoot {
    fn dir(&self) -> &Path {
        self.0.dir()
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        self.0.path(path)
    }

    fn inside(&self, path: &NodePath) -> PathBuf {
        self.0.path(path)
    }

    fn fs(&self) -> Result<NodeFs> {
        self.0.fs()
    }
}
