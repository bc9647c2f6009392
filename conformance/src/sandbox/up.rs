//! Whether sandboxes come up at all: where none does, each case would wait for its own in vain.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Failure;

/// How many provisions may fail before the first that succeeds.
const ENOUGH: usize = 3;

/// What came of the provisions of a run that must succeed.
#[derive(Debug)]
pub(super) struct Up {
    enough: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    came: bool,
    failed: usize,
    first: String,
}

impl Default for Up {
    fn default() -> Self {
        Self { enough: ENOUGH, seen: Mutex::default() }
    }
}

impl Up {
    /// One that never gives up.
    pub(super) fn patient() -> Self {
        Self { enough: usize::MAX, ..Self::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another run begins.
    pub(super) fn begin(&self) {
        *self.seen() = Seen::default();
    }

    /// A sandbox came up.
    pub(super) fn came(&self) {
        self.seen().came = true;
    }

    /// A provision failed that had to succeed.
    pub(super) fn failed(&self, failure: &Failure) {
        let mut seen = self.seen();
        if seen.failed == 0 {
            seen.first.clone_from(&failure.got);
        }
        seen.failed += 1;
    }

    /// Why nothing more is run, if so.
    pub(super) fn gives_up(&self) -> Option<Failure> {
        let seen = self.seen();
        let (failed, first) = (seen.failed, &seen.first);
        (!seen.came && failed >= self.enough).then(|| {
            Failure::not_run(format!("no sandbox has come up yet ({failed} provisions failed; first error: {first})"))
        })
    }
}
