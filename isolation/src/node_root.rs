//! The file system of one slot, as the agent sees it.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use crate::wire::WireBytes;
use crate::{Error, ErrorKind, NodeFs, NodePath, Reason, Result, SlotName, SlotRef};

/// The file system of one slot: maps in-node paths to paths the agent can open.
///
/// Phases that fill a node use this mapping and [`Backend::exec`](crate::Backend::exec) and nothing else:
/// they never spell a machine's directory or a container's name.
///
/// There are two views of every file. The *agent* opens [`path`](Self::path); whatever is *written into a
/// configuration file of the node* is [`inside`](Self::inside). The two are equal only where the node
/// stack runs on the host itself.
///
/// # Contract
///
/// - The mapping of every node path is absolute and lies below the root directory, component by component.
/// - The mapping of `/` is the root directory itself.
/// - Two different node paths never map to the same agent path.
/// - The roots of two slots never map into each other.
/// - The file operations of a node root never leave it, whatever links the image has planted.
///
/// A root is cheap to clone behind its `Arc` and holds no open file. The mapping is lexical: open a mapped
/// path yourself only if nobody else can write below the root, else use [`fs`](Self::fs).
pub trait NodeRoot: SlotRef + 'static {
    /// The root directory on the host.
    fn dir(&self) -> &Path;

    /// The path the agent opens.
    fn path(&self, path: &NodePath) -> PathBuf;

    /// The path the processes of the node stack see.
    fn inside(&self, path: &NodePath) -> PathBuf;

    /// File operations that stay inside the root. Opens the root directory; blocks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the directory can't be opened; a [`DirRoot`] or a [`HostRoot`] refuses a link in its place.
    fn fs(&self) -> Result<NodeFs>;
}

impl<T: NodeRoot + ?Sized> NodeRoot for Arc<T> {
    fn dir(&self) -> &Path {
        (**self).dir()
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        (**self).path(path)
    }

    fn inside(&self, path: &NodePath) -> PathBuf {
        (**self).inside(path)
    }

    fn fs(&self) -> Result<NodeFs> {
        (**self).fs()
    }
}

/// A node root that is one directory of the host: an unpacked root file system.
///
/// A root directory is absolute, has no `..` component and never is the root of the host.
/// There is no other constructor and the fields are private, so mapping a path can neither fail nor panic.
///
/// ```
/// use isolation::{DirRoot, NodeRoot, SlotName, node_path};
///
/// let root = DirRoot::new(SlotName::new("kube1")?, "/var/lib/machines/kube1")?;
/// assert_eq!(root.path(&node_path!("/etc/hosts")).to_str(), Some("/var/lib/machines/kube1/etc/hosts"));
/// assert_eq!(root.inside(&node_path!("/etc/hosts")).to_str(), Some("/etc/hosts"));
/// assert!(DirRoot::new(SlotName::new("kube1")?, "/.").is_err());
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub struct DirRoot {
    slot: SlotName,
    #[serde(serialize_with = "serialize_path")]
    dir: Arc<Path>,
}

fn serialize_path<S: serde::Serializer>(path: &Arc<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    crate::wire::serialize_bytes(path.as_os_str().as_bytes(), serializer)
}

impl DirRoot {
    /// Checks `dir` and stores it in normal form.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPath`], with the broken rule in [`Error::reason`].
    pub fn new(slot: SlotName, dir: impl AsRef<Path>) -> Result<Self> {
        let given = dir.as_ref().as_os_str().as_bytes();
        // A root directory follows the rules of a node path and is no `/`.
        let reject = |reason| Error::rejected(ErrorKind::InvalidPath, "root directory", given, reason);
        let normal = NodePath::new(OsStr::from_bytes(given))
            .map_err(|error| reject(error.reason().unwrap_or(Reason::NotNormal)))?;
        if normal.is_root() {
            return Err(reject(Reason::HostRoot));
        }
        Ok(Self { slot, dir: normal.as_path().into() })
    }

    /// Looks at the disk: the directory must exist, be no link, and must not be the root of the host under another name.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPath`] with [`Reason::HostRoot`] or [`Reason::WrongType`], or
    /// [`ErrorKind::Io`].
    pub fn verify(&self) -> Result<()> {
        let look =
            |path: &Path| std::fs::metadata(path).map_err(|cause| Error::io("look at the root directory", path, cause));
        let (ours, host) = (look(&self.dir)?, look(Path::new("/"))?);
        let reject = |reason| {
            let given = self.dir.as_os_str().as_bytes();
            Err(Error::rejected(ErrorKind::InvalidPath, "root directory", given, reason))
        };
        if (ours.dev(), ours.ino()) == (host.dev(), host.ino()) {
            reject(Reason::HostRoot)
        } else if !ours.is_dir() || self.dir.is_symlink() {
            reject(Reason::WrongType)
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for DirRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirRoot").field("slot", &self.slot.as_str()).field("dir", &self.dir).finish()
    }
}

impl SlotRef for DirRoot {
    fn slot(&self) -> &SlotName {
        &self.slot
    }
}

impl NodeRoot for DirRoot {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, path: &NodePath) -> PathBuf {
        if path.is_root() { self.dir.to_path_buf() } else { self.dir.join(path.relative()) }
    }

    fn inside(&self, path: &NodePath) -> PathBuf {
        path.as_path().to_path_buf()
    }

    fn fs(&self) -> Result<NodeFs> {
        NodeFs::open_itself(&self.dir)
    }
}

/// A directory of the host for a node whose processes have no root of their own, as in mode `none`: the path inside is the agent's path.
///
/// ```
/// use isolation::{HostRoot, NodeRoot, SlotName, node_path};
///
/// let root = HostRoot::new(SlotName::new("kube1")?, "/var/lib/kube1")?;
/// assert_eq!(root.inside(&node_path!("/etc/hosts")).to_str(), Some("/var/lib/kube1/etc/hosts"));
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostRoot(DirRoot);

impl HostRoot {
    /// Checks `dir` and stores it in normal form.
    ///
    /// # Errors
    ///
    /// As [`DirRoot::new`].
    pub fn new(slot: SlotName, dir: impl AsRef<Path>) -> Result<Self> {
        DirRoot::new(slot, dir).map(Self)
    }
}

impl SlotRef for HostRoot {
    fn slot(&self) -> &SlotName {
        self.0.slot()
    }
}

impl NodeRoot for HostRoot {
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

impl<'de> Deserialize<'de> for DirRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wire {
            #[serde(alias = "Slot")]
            slot: SlotName,
            #[serde(alias = "Dir")]
            dir: WireBytes,
        }
        let wire = Wire::deserialize(deserializer)?;
        Self::new(wire.slot, OsStr::from_bytes(&wire.dir.0)).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_path;
    use proptest::prelude::*;

    fn slot() -> SlotName {
        SlotName::new("kube1").unwrap()
    }

    #[test]
    fn rejected_directories() {
        let table = [
            ("", Reason::Empty),
            ("relative", Reason::NotAbsolute),
            (".", Reason::NotAbsolute),
            ("/", Reason::HostRoot),
            ("//", Reason::HostRoot),
            ("///", Reason::HostRoot),
            ("/.", Reason::HostRoot),
            ("/./", Reason::HostRoot),
            ("/m/..", Reason::Traversal),
            ("/m/../../etc", Reason::Traversal),
            ("/m\0", Reason::Nul),
        ];
        for (dir, reason) in table {
            let error = DirRoot::new(slot(), dir).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidPath, Some(reason)), "{dir:?}");
            let json = serde_json::json!({"slot": "kube1", "dir": dir});
            assert!(serde_json::from_value::<DirRoot>(json.clone()).is_err(), "{dir:?}");
            assert!(serde_json::from_value::<HostRoot>(json).is_err(), "{dir:?}");
        }
    }

    #[test]
    fn the_mapping() {
        let root = DirRoot::new(slot(), "//m/./kube1/").unwrap();
        assert_eq!(root.path(&NodePath::root()), Path::new("/m/kube1"));
        assert_eq!(root.path(&NodePath::root()).as_os_str(), "/m/kube1");
        assert_eq!(root.path(&node_path!("/a/b")), Path::new("/m/kube1/a/b"));
        assert_eq!(root.inside(&node_path!("/a/b")), Path::new("/a/b"));
        assert!(!Path::new("/m/kube10").starts_with(root.dir()));
        let json = serde_json::to_string(&root).unwrap();
        assert_eq!(serde_json::from_str::<DirRoot>(&json).unwrap(), root);
        assert_eq!(serde_json::from_str::<HostRoot>(&json).unwrap(), HostRoot(root));
        let odd = DirRoot::new(slot(), OsStr::from_bytes(b"/m/\xff")).unwrap();
        let json = serde_json::to_string(&odd).unwrap();
        assert_eq!(serde_json::from_str::<DirRoot>(&json).unwrap(), odd);
        let go = r#"{"Slot":"kube1","Dir":"/m/kube1"}"#;
        assert_eq!(serde_json::from_str::<DirRoot>(go).unwrap(), DirRoot::new(slot(), "/m/kube1").unwrap());
    }

    #[test]
    fn the_disk_is_asked_too() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("sneaky")).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let verify = |name: &str| DirRoot::new(slot(), dir.path().join(name)).unwrap().verify();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert_eq!(verify("sneaky").unwrap_err().reason(), Some(Reason::HostRoot));
        assert_eq!(verify("link").unwrap_err().reason(), Some(Reason::WrongType));
        for name in ["sneaky", "link"] {
            let (dir, host) =
                (DirRoot::new(slot(), dir.path().join(name)), HostRoot::new(slot(), dir.path().join(name)));
            assert_eq!(dir.unwrap().fs().unwrap_err().kind(), ErrorKind::Io);
            assert_eq!(host.unwrap().fs().unwrap_err().kind(), ErrorKind::Io);
        }
        DirRoot::new(slot(), dir.path()).unwrap().fs().unwrap();
        assert_eq!(verify("file").unwrap_err().reason(), Some(Reason::WrongType));
        assert_eq!(verify("absent").unwrap_err().kind(), ErrorKind::Io);
        DirRoot::new(slot(), dir.path()).unwrap().verify().unwrap();
    }

    proptest! {
        #[test]
        fn no_node_path_leaves_the_root(parts in proptest::collection::vec("[a-z./\\PC]{0,12}", 0..8)) {
            let root = DirRoot::new(slot(), "/m/kube1").unwrap();
            if let Ok(path) = NodePath::new(format!("/{}", parts.join("/"))) {
                let mapped = root.path(&path);
                prop_assert!(mapped.is_absolute() && mapped.starts_with("/m/kube1"));
                prop_assert!(mapped.components().all(|c| c.as_os_str() != ".."));
                prop_assert_eq!(mapped.strip_prefix("/m/kube1").unwrap(), path.relative());
            }
        }
    }
}
