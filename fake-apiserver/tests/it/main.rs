//! The server, seen by the client that applications use.

#![cfg(target_os = "linux")]

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
