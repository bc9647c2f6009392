//! What only this machine can show: what a tenant sees of it, what is left after the end, and what a killed creator leaves.
//!
//! Each trial runs in a process of its own, so that it can be killed, given odd descriptors and signals, or put into a namespace. As root
//! each trial runs twice: as root, and as a user without any privilege. As a user, those that need root are shown as ignored.
#![allow(clippy::unwrap_used, reason = "a failure in a test is the point")]

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod bed;
#[cfg(target_os = "linux")]
mod ends;
#[cfg(target_os = "linux")]
mod forbidden;
#[cfg(target_os = "linux")]
mod hardening;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod keys;
#[cfg(target_os = "linux")]
mod outside;
#[cfg(target_os = "linux")]
mod records;
#[cfg(target_os = "linux")]
mod refused;
#[cfg(target_os = "linux")]
mod trash;
#[cfg(target_os = "linux")]
mod umask;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    bed::main(
        &[
            inside::TRIALS,
            hardening::TRIALS,
            keys::TRIALS,
            ends::TRIALS,
            outside::TRIALS,
            records::TRIALS,
            forbidden::TRIALS,
            refused::TRIALS,
            trash::TRIALS,
            umask::TRIALS,
        ],
        &[inside::PARTS, ends::PARTS, outside::PARTS, forbidden::PARTS, umask::PARTS],
    )
}
