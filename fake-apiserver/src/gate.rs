//! A gate at which requests wait until a test opens it.

use std::time::Duration;

use tokio::sync::watch;

/// A gate at which requests wait until a test opens it: the way to hold a race still.
///
/// Clones are the same gate. A rule sends requests to it with [`Rule::hold`](crate::Rule::hold) or
/// [`Rule::hold_answer`](crate::Rule::hold_answer); a stream waits at one to be cut or frozen
/// ([`ExecFault::cut_at`](crate::ExecFault::cut_at)).
#[derive(Debug, Clone)]
pub struct Gate {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self { open: watch::Sender::new(false), arrived: watch::Sender::new(0) }
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// How many requests, or streams, have come to the gate so far.
    #[must_use]
    pub fn arrived(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Waits until `count` requests have come to the gate.
    ///
    /// # Panics
    ///
    /// After ten seconds.
    pub async fn reached(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        let wait = arrived.wait_for(|arrived| *arrived >= count);
        let outcome = tokio::time::timeout(Duration::from_secs(10), wait).await;
        assert!(outcome.is_ok(), "{count} requests at the gate: only {} came in ten seconds", self.arrived());
    }

    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        // The sender is `self.open`, so this ends only by opening.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}
