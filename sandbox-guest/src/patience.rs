//! How long a transfer waits for the sandbox.

use std::time::Duration;

use tokio::time::Instant;

/// What no clock can tell is as good as never: thirty years.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment that is `wait` after `since`, however long that is: a configuration of a carrier's own is bounded by nobody.
pub(crate) fn after(since: Instant, wait: Duration) -> Instant {
    since.checked_add(wait).unwrap_or_else(|| since + NEVER)
}

/// The slowest that content may move, in bytes a second, on top of the time that is allowed without any: somebody inside who lets a
/// byte through now and then does not hold a caller for ever.
const SLOWEST: u64 = 16 << 10;

/// The time that one transfer may still spend waiting. Only waits for the sandbox are charged to it, not those for the caller. What moves
/// earns time, but no more than it had to begin with: who was fast for a while may not be slow for longer after it.
#[derive(Debug)]
pub(crate) struct Patience {
    quiet: Duration,
    left: Duration,
}

impl Patience {
    /// Nothing moved yet. `quiet` is how long nothing may move.
    pub(crate) fn new(quiet: Duration) -> Self {
        Self { quiet, left: quiet }
    }

    /// How long the next wait may take.
    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// A wait took this long, and so many bytes came of it.
    pub(crate) fn charge(&mut self, waited: Duration, bytes: u64) {
        let rest = Duration::from_nanos((bytes % SLOWEST) * 1_000_000_000 / SLOWEST);
        let earned = Duration::from_secs(bytes / SLOWEST) + rest;
        self.left = self.left.saturating_sub(waited).saturating_add(earned).min(self.quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_wait_is_too_long_for_a_moment() {
        let now = Instant::now();
        assert_eq!(after(now, SECOND), now + SECOND);
        for wait in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
            assert!(after(now, wait) > now + NEVER / 2, "{wait:?}");
            // As a second one on top of it, too.
            assert!(after(after(now, wait), wait) > now + NEVER / 2, "{wait:?}");
        }
    }

    #[test]
    fn silence_ends_it_and_so_does_a_trickle() {
        let mut silent = Patience::new(30 * SECOND);
        assert_eq!(silent.left(), 30 * SECOND);
        silent.charge(12 * SECOND, 0);
        assert_eq!(silent.left(), 18 * SECOND);
        silent.charge(20 * SECOND, 0);
        assert_eq!(silent.left(), Duration::ZERO);
        // A byte now and then earns nothing.
        let mut trickle = Patience::new(30 * SECOND);
        for _ in 0..30 {
            assert!(trickle.left() >= SECOND);
            trickle.charge(SECOND, 1);
        }
        assert!(trickle.left() < SECOND / 100);
    }

    #[test]
    fn who_moves_fast_enough_may_move_for_ever() {
        let mut steady = Patience::new(SECOND);
        for _ in 0..100_000 {
            steady.charge(SECOND, SLOWEST);
            assert_eq!(steady.left(), SECOND);
        }
        // Whatever it was, it is not saved up for one long silence.
        steady.charge(Duration::ZERO, 1 << 40);
        assert_eq!(steady.left(), SECOND);
    }

    #[test]
    fn a_fast_beginning_buys_no_trickle_after_it() {
        let mut patience = Patience::new(30 * SECOND);
        for _ in 0..1000 {
            patience.charge(SECOND / 100, 1 << 20);
        }
        let mut pages = 0;
        while patience.left() >= 10 * SECOND {
            patience.charge(10 * SECOND, 4096);
            pages += 1;
        }
        assert_eq!(pages, 3);
    }
}
