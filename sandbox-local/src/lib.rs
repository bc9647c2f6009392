//! Sandboxes on this machine: Linux namespaces, nothing to install
#![cfg(target_os = "linux")]
#![allow(dead_code)]

mod argv;
mod config;
mod error;
mod fstab;
mod ident;
mod parse;
mod plan;
mod probe;
mod remove;
mod spawn;
mod start;
mod store;
mod teardown;
mod tools;
mod verify;

pub use config::{Cgroup, LocalConfig};
