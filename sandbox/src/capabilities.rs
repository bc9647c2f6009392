//! What a backend promises.

use serde::{Deserialize, Serialize};

/// What a backend promises. A call that needs what is not claimed fails as [`Unsupported`](crate::ErrorKind::Unsupported) before
/// anything was changed.
///
/// A provider's answer is constant: what must be looked up is looked up by its constructor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`Sandbox::read`](crate::Sandbox::read), [`write`](crate::Sandbox::write) and [`write_many`](crate::Sandbox::write_many).
    pub files: bool,
    /// [`Provider::export`](crate::Provider::export).
    pub export: bool,
    /// [`Sandbox::spawn`](crate::Sandbox::spawn).
    pub spawn: bool,
    /// [`Networking::Unrestricted`](crate::Networking::Unrestricted).
    pub networking_unrestricted: bool,
    /// [`Networking::Limited`](crate::Networking::Limited).
    pub networking_limited: bool,
    /// [`Networking::None`](crate::Networking::None).
    pub networking_none: bool,
    /// [`Spec::gate`](crate::Spec::gate).
    pub gate: bool,
    /// [`Hardening::pids`](crate::Hardening::pids).
    pub pids_limit: bool,
    /// [`Hardening::cpu_millis`](crate::Hardening::cpu_millis).
    pub cpu_limit: bool,
    /// [`Hardening::memory_bytes`](crate::Hardening::memory_bytes).
    pub memory_limit: bool,
    /// [`Hardening::disk_bytes`](crate::Hardening::disk_bytes).
    pub disk_limit: bool,
    /// [`Hardening::cap_drop`](crate::Hardening::cap_drop).
    pub cap_drop: bool,
    /// [`Hardening::read_only_root`](crate::Hardening::read_only_root).
    pub read_only_root: bool,
    /// [`Hardening::run_as_user`](crate::Hardening::run_as_user) its group fields and `run_as_non_root`, for any number but 0. User or group
    /// 0, and an `fs_group` other than the group, may fail as [`Unsupported`](crate::ErrorKind::Unsupported) where there are none.
    pub run_as_user: bool,
    /// Commands run as user 0 unless told otherwise, with the capabilities that are not dropped.
    pub root_by_default: bool,
}
