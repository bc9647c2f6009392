//! The suite for a [`Backend`](isolation::Backend).
//!
//! Implement [`Harness`] for your backend, and this is your whole test file, which `Cargo.toml` names with `harness = false` (without
//! that line `cargo test` runs nothing, and is content):
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use conformance::isolation::{Harness, Setup};
//! # async fn harness() -> Arc<dyn Harness> { todo!() }
//! fn main() -> std::process::ExitCode {
//!     conformance::main(Setup::new("mine", || async { Ok(harness().await) }))
//! }
//! ```
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! The node's root file system has to hold a POSIX shell, the usual small tools (`cat`, `env`, `sleep`, `head`,
//! `pwd`, `printf`, `kill`) and a directory `/etc`.

mod bed;
mod cases;
mod footprint;
mod harness;
pub mod mutants;
mod setup;

pub use bed::Bed;
pub use cases::{Unseen, cases, unseen};
pub use footprint::Footprint;
pub use harness::{Caps, Fault, Harness};
pub use setup::{NoBackend, Setup};

/// A case of this half of the suite.
pub type Case = crate::Case<Setup>;
