//! Paths inside a sandbox.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::quoted;
use crate::{Error, ErrorKind};

/// A path inside a sandbox: absolute, clean, never `/`.
///
/// It is bytes, not text, because a file name in Linux is; it is not [`std::path::Path`], because it says nothing about
/// the machine that this program runs on. Clean means: single slashes, no `.` and no `..` component, no slash at the end.
/// At most 4,095 bytes, no NUL.
///
/// ```
/// use sandbox::SandboxPath;
///
/// let path = SandboxPath::new("/workspace/out.txt")?;
/// assert_eq!(path.file_name(), b"out.txt");
/// assert!(SandboxPath::new("/workspace/../etc").is_err());
/// # Ok::<(), sandbox::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct SandboxPath(Vec<u8>);

/// Text where the path is text, else the list of its bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    Text(String),
    Bytes(Vec<u8>),
}

impl SandboxPath {
    /// The longest path, in bytes.
    pub const MAX_LEN: usize = 4095;

    /// Checks `path` against the rule above. Nothing is folded: `/a/../b` is refused, not read as `/b`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`], naming the value and what is wrong with it.
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, Error> {
        let path = path.into();
        let refuse =
            |rule: &str| Err(Error::new(ErrorKind::InvalidRequest).because(format!("path {}: {rule}", quoted(&path))));
        if path.is_empty() {
            return refuse("it must not be empty");
        }
        if path.contains(&0) {
            return refuse("it must not contain NUL");
        }
        if path.first() != Some(&b'/') {
            return refuse("it must be absolute");
        }
        if path.len() == 1 {
            return refuse("it must name something below /");
        }
        if path.len() > Self::MAX_LEN {
            return refuse("it must have at most 4095 bytes");
        }
        for component in path[1..].split(|b| *b == b'/') {
            match component {
                b"" => return refuse("it must be clean: no // and no / at the end"),
                b"." | b".." => return refuse("it must be clean: no . and no .. component"),
                _ => {}
            }
        }
        Ok(Self(path))
    }

    /// The path as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as text, with bytes that are not UTF-8 replaced: for messages only.
    #[must_use]
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The last component.
    #[must_use]
    pub fn file_name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// The path without its last component; `None` where that leaves only `/`.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let cut = self.0.iter().rposition(|b| *b == b'/')?;
        (cut > 0).then(|| Self(self.0[..cut].to_vec()))
    }

    /// This path and `relative` below it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if the result breaks the rule of [`SandboxPath`], as with `..` or an absolute `relative`.
    pub fn join(&self, relative: impl AsRef<[u8]>) -> Result<Self, Error> {
        let mut joined = self.0.clone();
        joined.push(b'/');
        joined.extend_from_slice(relative.as_ref());
        Self::new(joined)
    }

    /// Whether this path is `other` or lies below it, by components.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.strip_prefix(other.0.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl FromStr for SandboxPath {
    type Err = Error;

    fn from_str(path: &str) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<Wire> for SandboxPath {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self, Error> {
        match wire {
            Wire::Text(text) => Self::new(text),
            Wire::Bytes(bytes) => Self::new(bytes),
        }
    }
}

impl From<SandboxPath> for Wire {
    fn from(path: SandboxPath) -> Self {
        match String::from_utf8(path.0) {
            Ok(text) => Self::Text(text),
            Err(e) => Self::Bytes(e.into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted() {
        let long_name = [b"/".as_slice(), &[b'a'; 255]].concat();
        let names: [&[u8]; 22] = [
            b"/a",
            b"/workspace",
            b"/ a",
            b"/a ",
            b"/-rf",
            b"/--",
            b"/a b",
            b"/a\nb",
            b"/a\tb",
            b"/*",
            b"/[0]",
            b"/a:b",
            b"/\\x20",
            b"/$(id)",
            b"/`id`",
            b"/'\"",
            b"/%2e%2e",
            "/\u{e9}".as_bytes(),
            "/e\u{301}".as_bytes(),
            b"/\xff\xfe",
            b"/...",
            &long_name,
        ];
        for name in names {
            let path = SandboxPath::new(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(path.as_bytes(), name);
            assert_eq!(path.parent(), None);
            assert_eq!(path.file_name(), &name[1..]);
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<SandboxPath>(&json).unwrap(), path, "{json}");
        }
        assert_eq!(SandboxPath::new([b"/".as_slice(), &[b'a'; 4094]].concat()).unwrap().as_bytes().len(), 4095);
    }

    #[test]
    fn rejected() {
        let long = [b"/".as_slice(), &[b'a'; 4095]].concat();
        let names: [&[u8]; 13] = [
            b"",
            b".",
            b"..",
            b"relative/path",
            b"/",
            b"/a/../b",
            b"/a/b/",
            b"/a//b",
            b"//",
            b"/a/.",
            b"/..",
            b"/a\0b",
            &long,
        ];
        for name in names {
            let error = SandboxPath::new(name).expect_err(&quoted(name));
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().contains("path \""), "{error}");
        }
    }

    #[test]
    fn parts() {
        let path = SandboxPath::new("/a/b/c").unwrap();
        let parent = path.parent().unwrap();
        assert_eq!(parent.as_bytes(), b"/a/b");
        assert!(path.starts_with(&parent) && path.starts_with(&path));
        assert!(!SandboxPath::new("/a/bc").unwrap().starts_with(&parent));
        assert_eq!(parent.join("c").unwrap(), path);
        for bad in ["", "..", "/c", "c/", "a/../b"] {
            assert!(parent.join(bad).is_err(), "{bad}");
        }
    }
}
