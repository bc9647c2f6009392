//! What a real cluster does not show on cue: an API server that loses answers, lies, and breaks streams.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failure here is the point")]

mod asks;
mod bed;
mod create;
mod cuts;
mod deaths;
mod dropped;
mod ends;
mod listing;
mod lost;
mod races;
mod reclaim;
mod shells;
mod strangers;
mod stream;
mod table;
mod tokens;
mod uid;
mod urls;
mod watches;
