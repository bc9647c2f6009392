//! Paths as written by someone who thinks they are inside the node.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::WireBytes;
use crate::{Error, ErrorKind, Reason, Result};

/// The longest path a kernel takes, without its NUL.
const MAX_LEN: usize = 4095;

/// An absolute path inside a node, in normal form.
///
/// A node path is absolute, has no NUL, and is stored with single slashes, without `.` components and
/// without a trailing slash.
/// A `..` component is rejected, never folded: folding is how a join of a root and `/../../etc/x` ends
/// on the host.
///
/// ```
/// use isolation::{NodePath, Reason, node_path};
///
/// assert_eq!(NodePath::new("//etc/./kubernetes/")?, node_path!("/etc/kubernetes"));
/// assert_eq!(NodePath::new("/etc/../x").unwrap_err().reason(), Some(Reason::Traversal));
/// # Ok::<(), isolation::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodePath(Arc<[u8]>);

impl NodePath {
    /// Checks and normalises `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidPath`], with the broken rule in [`Error::reason`].
    pub fn new(path: impl AsRef<OsStr>) -> Result<Self> {
        let given = path.as_ref().as_bytes();
        let reject = |reason| Err(Error::rejected(ErrorKind::InvalidPath, "node path", given, reason));
        if given.is_empty() {
            return reject(Reason::Empty);
        }
        if given.contains(&0) {
            return reject(Reason::Nul);
        }
        if given[0] != b'/' {
            return reject(Reason::NotAbsolute);
        }
        let mut normal = Vec::with_capacity(given.len());
        for component in given.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return reject(Reason::Traversal),
                name if name.len() > 255 => return reject(Reason::TooLong),
                name => {
                    normal.push(b'/');
                    normal.extend_from_slice(name);
                }
            }
        }
        if normal.len() > MAX_LEN {
            return reject(Reason::TooLong);
        }
        if normal.is_empty() {
            normal.push(b'/');
        }
        Ok(Self(normal.into()))
    }

    /// For [`node_path!`](crate::node_path), which has checked `path` while compiling.
    #[doc(hidden)]
    pub fn checked_literal(path: &'static str) -> Self {
        Self(path.as_bytes().into())
    }

    /// The root of the node.
    pub fn root() -> Self {
        Self::checked_literal("/")
    }

    /// Whether this is `/`.
    pub fn is_root(&self) -> bool {
        &*self.0 == b"/"
    }

    /// The bytes of the path.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as the processes of the node write it; opening it as it is opens a file of the *host*.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The path without its leading slash: empty for the root.
    pub fn relative(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0[1..]))
    }

    /// The path one level up; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(if slash == 0 { Self::root() } else { Self(self.0[..slash].into()) })
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&OsStr> {
        self.relative().file_name()
    }

    /// The components from the top.
    pub fn components(&self) -> impl Iterator<Item = &OsStr> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(OsStr::from_bytes)
    }

    /// This path with the relative path `below` added.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); an absolute `below` is rejected too.
    pub fn join(&self, below: impl AsRef<OsStr>) -> Result<Self> {
        let below = below.as_ref().as_bytes();
        if below.first() == Some(&b'/') {
            return Err(Error::rejected(ErrorKind::InvalidPath, "relative path", below, Reason::NotNormal));
        }
        let mut joined = self.0.to_vec();
        joined.push(b'/');
        joined.extend_from_slice(below);
        Self::new(OsStr::from_bytes(&joined))
    }

    /// What remains of this path below `prefix`, as a node path; component-wise, so `/a1` is not below `/a`.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<Self> {
        if prefix.is_root() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(&*prefix.0)? {
            [] => Some(Self::root()),
            rest @ [b'/', ..] => Some(Self(rest.into())),
            _ => None,
        }
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_path(), f)
    }
}

/// Escaped, so that a newline in a path stays inside its line.
impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

impl FromStr for NodePath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl Serialize for NodePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::wire::serialize_bytes(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for NodePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = WireBytes::deserialize(deserializer)?;
        Self::new(OsStr::from_bytes(&bytes.0)).map_err(serde::de::Error::custom)
    }
}

/// Whether a literal is in normal form already.
#[doc(hidden)]
pub const fn is_normal_literal(path: &str) -> bool {
    let bytes = path.as_bytes();
    if bytes.is_empty() || bytes[0] != b'/' || bytes.len() > MAX_LEN {
        return false;
    }
    if bytes.len() == 1 {
        return true;
    }
    let mut start = 1;
    let mut at = 1;
    while at <= bytes.len() {
        if at == bytes.len() || bytes[at] == b'/' {
            let len = at - start;
            let dots = len > 0 && bytes[start] == b'.' && (len == 1 || (len == 2 && bytes[start + 1] == b'.'));
            if len == 0 || len > 255 || dots {
                return false;
            }
            start = at + 1;
        } else if bytes[at] == 0 {
            return false;
        }
        at += 1;
    }
    true
}

/// A [`NodePath`] from a literal, checked while compiling.
///
/// ```
/// let config = isolation::node_path!("/etc/kubernetes");
/// ```
/// ```compile_fail
/// let config = isolation::node_path!("/etc/../kubernetes");
/// ```
#[macro_export]
macro_rules! node_path {
    ($path:literal) => {{
        const _: () = assert!($crate::__private::is_normal_literal($path), "not an absolute path in normal form");
        $crate::NodePath::checked_literal($path)
    }};
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn normal_forms() {
        let table = [
            ("/", "/"),
            ("//", "/"),
            ("/.", "/"),
            ("/./", "/"),
            ("/a", "/a"),
            ("//a", "/a"),
            ("/a/./b", "/a/b"),
            ("/a//b///", "/a/b"),
            ("/...", "/..."),
            ("/.x/..y", "/.x/..y"),
            ("/a b/%n$HOME", "/a b/%n$HOME"),
        ];
        for (given, normal) in table {
            assert_eq!(NodePath::new(given).unwrap().as_bytes(), normal.as_bytes(), "{given}");
            assert!(is_normal_literal(normal));
            assert_eq!(is_normal_literal(given), given == normal, "{given}");
        }
    }

    #[test]
    fn rejected_paths() {
        let long = format!("/{}", "x".repeat(256));
        let longer = "/x".repeat(2048);
        let table: &[(&[u8], Reason)] = &[
            (b"", Reason::Empty),
            (b"a", Reason::NotAbsolute),
            (b"./a", Reason::NotAbsolute),
            (b"..", Reason::NotAbsolute),
            (b"/..", Reason::Traversal),
            (b"/../x", Reason::Traversal),
            (b"/a/../../x", Reason::Traversal),
            (b"/a/..", Reason::Traversal),
            (b"/a\0b", Reason::Nul),
            (long.as_bytes(), Reason::TooLong),
            (longer.as_bytes(), Reason::TooLong),
        ];
        for (given, reason) in table {
            let error = NodePath::new(OsStr::from_bytes(given)).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidPath, Some(*reason)), "{given:?}");
        }
    }

    #[test]
    fn navigation() {
        let path = node_path!("/a/b/c");
        assert_eq!(path.parent().unwrap(), node_path!("/a/b"));
        assert_eq!(node_path!("/a").parent().unwrap(), NodePath::root());
        assert_eq!(NodePath::root().parent(), None);
        assert_eq!(path.file_name().unwrap(), "c");
        assert_eq!(NodePath::root().file_name(), None);
        assert_eq!(path.join("d/e").unwrap(), node_path!("/a/b/c/d/e"));
        assert_eq!(NodePath::root().join("x").unwrap(), node_path!("/x"));
        assert!(path.join("../x").is_err());
        assert!(path.join("/x").is_err());
        assert_eq!(path.strip_prefix(&node_path!("/a")).unwrap(), node_path!("/b/c"));
        assert_eq!(path.strip_prefix(&path).unwrap(), NodePath::root());
        assert_eq!(node_path!("/a1/b").strip_prefix(&node_path!("/a")), None);
    }

    #[test]
    fn the_wire_form_validates() {
        let odd = NodePath::new(OsStr::from_bytes(b"/a\xff")).unwrap();
        let json = serde_json::to_string(&odd).unwrap();
        assert_eq!(json, "[47,97,255]");
        assert_eq!(serde_json::from_str::<NodePath>(&json).unwrap(), odd);
        assert_eq!(serde_json::from_str::<NodePath>(r#""//a""#).unwrap(), node_path!("/a"));
        assert!(serde_json::from_str::<NodePath>(r#""/../a""#).is_err());
    }

    proptest! {
        #[test]
        fn normalising_is_idempotent(bytes in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), any::<u8>()], 0..60)) {
            let mut given = vec![b'/'];
            given.extend(bytes);
            if let Ok(path) = NodePath::new(OsStr::from_bytes(&given)) {
                prop_assert_eq!(NodePath::new(path.as_path()).unwrap(), path.clone());
                prop_assert!(path.components().all(|c| c != ".." && c != "."));
                prop_assert_eq!(path.as_path().is_absolute(), true);
            }
        }
    }
}
