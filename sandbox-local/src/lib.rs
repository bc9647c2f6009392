//! Sandboxes on this machine: Linux namespaces, nothing to install
#![cfg(target_os = "linux")]

mod argv;
mod carrier;
mod cgroup;
mod config;
mod error;
mod fstab;
mod host;
mod ident;
mod inherited;
mod parse;
mod plan;
mod probe;
mod provider;
mod remove;
mod spawn;
mod spec;
mod start;
mod store;
mod teardown;
mod tools;
mod verify;

pub use config::{Cgroup, LocalConfig};
pub use probe::Forbidden;
pub use provider::LocalProvider;
