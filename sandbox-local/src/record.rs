//! What is known of a session's sandbox.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox::{Recreated, Spec};
use serde::{Deserialize, Serialize};

use crate::ident::Identity;

/// What is known of a session's sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// Tells this sandbox from earlier and later ones of the session.
    pub(crate) nonce: String,
    /// Milliseconds since 1970.
    pub(crate) created: u64,
    pub(crate) phase: Phase,
    /// As it was when the sandbox was made.
    pub(crate) spec: Spec,
    pub(crate) fingerprint: String,
    /// The kernel's user and group of everything inside.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) recreated: Option<Recreated>,
    /// The run of the machine that it belongs to.
    pub(crate) boot: String,
    /// Its control groups.
    pub(crate) cgroups: Vec<PathBuf>,
    /// Known once it runs.
    pub(crate) identity: Option<Identity>,
}

/// How far a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Starting,
    Running,
    Ending,
}

impl Record {
    pub(crate) const VERSION: u32 = 1;

    pub(crate) fn created(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.created)
    }
}
