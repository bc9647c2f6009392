//! The cases, by area.

mod exec;
mod faults;
mod grants;
mod lifecycle;
mod logs;
mod order;
mod roots;

use std::sync::Arc;
use std::time::Duration;

pub use crate::sandbox::Unseen;

use super::{Bed, Case};

/// What every body gets.
type B = Arc<Bed>;

/// Every case of the suite.
pub fn cases() -> Vec<Case> {
    [lifecycle::cases(), order::cases(), faults::cases(), exec::cases(), logs::cases(), roots::cases(), grants::cases()]
        .concat()
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
