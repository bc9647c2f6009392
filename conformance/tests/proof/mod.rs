//! Where cases are seen to fail that apply to nothing the mutants run on by default.

/// On the embedded backend, by the test `mutants_local`, where its claims are there.
pub(crate) const ON_LOCAL: &[&str] = &[
    "hardening::cpu",
    "hardening::memory",
    "hardening::pids",
    "hardening::user_and_files",
    "hardening::user_and_group",
    "hardening::user_and_read_only_root",
];

/// Nowhere: no backend of this workspace bounds the disk, or runs commands as user 0 with capabilities. Nobody has seen them fail.
#[allow(dead_code, reason = "only one of the tests asks for it")]
pub(crate) const UNPROVED: &[&str] = &["hardening::disk", "hardening::dropped_chown"];
