//! The server, seen by the client that applications use.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure here is the point")]

mod access;
mod exec;
mod exec_faults;
mod fates;
mod kubelet;
mod life;
mod lists;
mod objects;
mod rules;
mod stream;
mod support;
mod watches;
