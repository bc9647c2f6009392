//! The part of the test bed that tests use as a library: a TCP proxy that misbehaves on cue.
//!
//! Everything else is the command `cargo testbed`.

mod proxy;

pub use proxy::{Misbehaviour, Proxy};
