//! Linux capabilities by name, and which of them are dropped.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::quoted;
use crate::{Error, ErrorKind};

/// A Linux capability, by its name without `CAP_`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Capability(u8);

/// Position = number of the capability in the kernel.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

impl Capability {
    /// Changing the owner of any file.
    pub const CHOWN: Self = Self(0);
    /// Changing the group of a process.
    pub const SETGID: Self = Self(6);
    /// Changing the user of a process.
    pub const SETUID: Self = Self(7);
    /// Raw sockets.
    pub const NET_RAW: Self = Self(13);

    /// Reads a name in any case, with or without `CAP_` before it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`] if the kernel knows no such capability.
    pub fn new(name: &str) -> Result<Self, Error> {
        let upper = name.trim().to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let number = NAMES.iter().position(|known| *known == bare).and_then(|n| u8::try_from(n).ok());
        number.map(Self).ok_or_else(|| {
            Error::new(ErrorKind::InvalidSpec)
                .because(format!("capability {}: the kernel has none of that name", quoted(name.as_bytes())))
        })
    }

    /// The name in capitals, without `CAP_`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// All of them.
    pub fn every() -> impl Iterator<Item = Self> {
        (0..NAMES.len()).filter_map(|n| u8::try_from(n).ok()).map(Self)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<String> for Capability {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(&name)
    }
}

impl From<Capability> for String {
    fn from(capability: Capability) -> Self {
        capability.name().to_owned()
    }
}

/// The capabilities to take away: some, none, or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct CapDrop {
    all: bool,
    some: Vec<Capability>,
}

impl CapDrop {
    /// Nothing is taken away.
    #[must_use]
    pub const fn none() -> Self {
        Self { all: false, some: Vec::new() }
    }

    /// Every capability is taken away.
    #[must_use]
    pub const fn all() -> Self {
        Self { all: true, some: Vec::new() }
    }

    /// These are taken away, in this order, each once.
    pub fn only(capabilities: impl IntoIterator<Item = Capability>) -> Self {
        let mut set = Self::none();
        for capability in capabilities {
            if !set.some.contains(&capability) {
                set.some.push(capability);
            }
        }
        set
    }

    /// Reads a comma-separated list: names as in [`Capability::new`], or `none` alone, or `ALL` anywhere.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the entry that is none.
    pub fn parse(list: &str) -> Result<Self, Error> {
        if list.trim().is_empty() || list.trim().eq_ignore_ascii_case("none") {
            return Ok(Self::none());
        }
        Self::try_from(list.split(',').map(|entry| entry.trim().to_owned()).collect::<Vec<_>>())
    }

    /// Whether nothing is taken away.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.all && self.some.is_empty()
    }

    /// Whether everything is taken away.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.all
    }

    /// The capabilities that are taken away.
    pub fn iter(&self) -> impl Iterator<Item = Capability> + '_ {
        Capability::every().filter(|_| self.all).chain(self.some.iter().copied())
    }

    /// The names as an engine's API takes them: `ALL` alone, or one each.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        if self.all { vec!["ALL".to_owned()] } else { self.some.iter().map(|c| c.name().to_owned()).collect() }
    }
}

impl TryFrom<Vec<String>> for CapDrop {
    type Error = Error;

    fn try_from(names: Vec<String>) -> Result<Self, Error> {
        let mut all = false;
        let mut some = Vec::new();
        for name in &names {
            if name.eq_ignore_ascii_case("all") {
                all = true;
            } else {
                some.push(Capability::new(name)?);
            }
        }
        Ok(if all { Self::all() } else { Self::only(some) })
    }
}

impl From<CapDrop> for Vec<String> {
    fn from(set: CapDrop) -> Self {
        set.names()
    }
}
