//! The cases, by area.

mod exec;
mod limits;
mod provider;

use std::sync::Arc;
use std::time::Duration;

use super::{Bed, Case};

/// What every body gets.
type B = Arc<Bed>;

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    [exec::cases(), limits::cases(), provider::cases()].concat()
}

/// A sentence of the contract that no case can look at, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// The sentence.
    pub rule: &'static str,
    /// Why no case can look at it.
    pub reason: &'static str,
}

/// The sentences of the contract that no case can look at.
pub fn unseen() -> &'static [Unseen] {
    &[]
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A number of seconds that no other command sleeps for: the mark by which its processes are found.
fn mark() -> String {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).expect("the operating system has a source of randomness");
    format!("{}", 100_000 + u32::from_le_bytes(bytes) % 800_000_000)
}
