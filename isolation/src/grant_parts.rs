//! The checked texts grants are made of.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::grant::reject;
use crate::{Error, NodePath, Reason, Result};

/// A path on the host, as a grant may name it.
///
/// A host path is absolute and in normal form, and has no whitespace, no control character and none of
/// `:`, `%`, `$`, `"`, `'` and `\`.
/// Those are active in unit files and in bind syntax, so a grant can never add a key or a section. The path
/// need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPath(String);

impl HostPath {
    /// Checks `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`](crate::ErrorKind::InvalidGrant), with the broken rule.
    pub fn new(path: &str) -> Result<Self> {
        let active = |c: char| c.is_whitespace() || c.is_control() || ":%$\"'\\".contains(c);
        let reason = if path.is_empty() {
            Reason::Empty
        } else if path.contains('\0') {
            Reason::Nul
        } else if !path.starts_with('/') {
            Reason::NotAbsolute
        } else if path.contains(active) {
            Reason::Character
        } else {
            match NodePath::new(path) {
                Ok(normal) if normal.as_bytes() == path.as_bytes() => return Ok(Self(path.to_owned())),
                Ok(_) => Reason::NotNormal,
                Err(error) => error.reason().unwrap_or(Reason::NotNormal),
            }
        };
        Err(reject("source", path, reason))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The same text as a path inside the node.
    pub fn to_node_path(&self) -> NodePath {
        NodePath::new(&self.0).expect("a host path obeys the rules of a node path")
    }

    /// Whether it is below `/dev`.
    pub fn is_device(&self) -> bool {
        self.0.strip_prefix("/dev/").is_some_and(|rest| !rest.is_empty())
    }
}

/// A class of devices: `char-` or `block-`, and a name as in `/proc/devices`, with globs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceClass(String);

impl DeviceClass {
    /// Checks `class`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`](crate::ErrorKind::InvalidGrant), with the broken rule.
    pub fn new(class: &str) -> Result<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_./*?+-".contains(&b);
        let name = class.strip_prefix("char-").or_else(|| class.strip_prefix("block-"));
        let reason = match name {
            _ if class.is_empty() => Reason::Empty,
            _ if class.contains('\0') => Reason::Nul,
            None => Reason::Unknown,
            Some("") => Reason::Empty,
            Some(name) if name.len() > 64 => Reason::TooLong,
            Some(name) if !name.bytes().all(allowed) => Reason::Character,
            Some(_) => return Ok(Self(class.to_owned())),
        };
        Err(reject("device_class", class, reason))
    }

    /// The class as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text_like {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::wire::parsed(deserializer)
            }
        }
    };
}

text_like!(HostPath);
text_like!(DeviceClass);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn rejected_host_paths() {
        let table = [
            ("", Reason::Empty),
            ("dev/kvm", Reason::NotAbsolute),
            ("./x", Reason::NotAbsolute),
            ("/a//b", Reason::NotNormal),
            ("/a/", Reason::NotNormal),
            ("/./a", Reason::NotNormal),
            ("/a/../b", Reason::Traversal),
            ("/a b", Reason::Character),
            ("/a\tb", Reason::Character),
            ("/a\nb", Reason::Character),
            ("/a\u{7f}", Reason::Character),
            ("/a\u{a0}b", Reason::Character),
            ("/a:b", Reason::Character),
            ("/a%b", Reason::Character),
            ("/a$b", Reason::Character),
            ("/a\"b", Reason::Character),
            ("/a'b", Reason::Character),
            ("/a\\b", Reason::Character),
            ("/a\0", Reason::Nul),
        ];
        for (path, reason) in table {
            let error = HostPath::new(path).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidGrant, Some(reason)), "{path:?}");
        }
        assert!(HostPath::new("/dev/kvm").unwrap().is_device());
        assert!(!HostPath::new("/dev").unwrap().is_device());
        assert!(!HostPath::new("/device").unwrap().is_device());
        assert_eq!(HostPath::new("/").unwrap().to_node_path(), NodePath::root());
    }

    #[test]
    fn device_classes() {
        for class in ["char-input", "block-*", "char-infiniband_verbs", "char-a.b/c?+"] {
            assert_eq!(DeviceClass::new(class).unwrap().as_str(), class);
        }
        let long = format!("char-{}", "x".repeat(65));
        let table = [
            ("", Reason::Empty),
            ("char-", Reason::Empty),
            ("input", Reason::Unknown),
            ("Char-input", Reason::Unknown),
            ("/dev/kvm", Reason::Unknown),
            ("char-a b", Reason::Character),
            ("char-a\n[Service]", Reason::Character),
            ("char-%n", Reason::Character),
            ("char-a\0", Reason::Nul),
            (&long, Reason::TooLong),
        ];
        for (class, reason) in table {
            let error = DeviceClass::new(class).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::InvalidGrant, Some(reason)), "{class:?}");
        }
    }
}
