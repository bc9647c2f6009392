//! The limit of a command, on the caller's monotonic clock.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::control::Who;
use crate::patience::after;

/// The exit code of `SIGKILL`: evidence of a kill, never proof.
pub(crate) const KILLED: i32 = 137;
/// How long past its limit a command may be without being reported so: what network and scheduler may take.
const SLOP: Duration = Duration::from_millis(500);

/// When to signal a command and when to give it up, and what became of that.
///
/// Evidence from inside can only add a timeout, never remove one: a signal that found the command alive at its limit, or an end
/// that says killed after the kill was sent.
pub(crate) struct LimitClock {
    terminate: Option<Instant>,
    kill: Option<Instant>,
    give_up: Option<Instant>,
    answer: Option<oneshot::Receiver<bool>>,
    signalled: bool,
    alive_at_limit: bool,
    /// After this moment no end is punctual, whatever grace is left.
    late: Option<Instant>,
    /// When the end was first looked at.
    ended: Option<Instant>,
}

impl LimitClock {
    pub(crate) fn new(begun: Instant, limit: Option<Duration>, grace: Duration) -> Self {
        let at = limit.map(|limit| after(begun, limit));
        let kill = at.map(|at| after(at, grace));
        let slop = limit.map_or(SLOP, |limit| SLOP.min(limit / 2));
        Self {
            terminate: at.filter(|_| !grace.is_zero()),
            kill,
            give_up: kill.map(|at| after(at, slop)),
            answer: None,
            signalled: false,
            alive_at_limit: false,
            late: at.map(|at| after(at, slop)),
            ended: None,
        }
    }

    /// The next moment at which something is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        [self.terminate, self.kill, self.give_up].into_iter().flatten().min()
    }

    /// Sends what is due at `now`.
    pub(crate) fn tick(&mut self, now: Instant, signal: impl Fn(&'static str, Who) -> oneshot::Receiver<bool>) {
        if self.terminate.is_some_and(|at| now >= at) {
            self.terminate = None;
            self.signalled = true;
            self.answer = Some(signal("TERM", Who::Group));
        }
        if self.kill.is_some_and(|at| now >= at) {
            self.kill = None;
            self.signalled = true;
            self.answer = Some(signal("KILL", Who::All));
        }
    }

    /// Whether the command is out of time at `now`, whatever comes of it later.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.give_up.is_some_and(|at| now >= at)
    }

    /// Hears whether a signal found the command; pending while none is under way. Cancel-safe.
    pub(crate) async fn hear(&mut self) {
        match self.answer.as_mut() {
            Some(answer) => {
                // A signal of which nobody tells what it found counts as one that found the command: it may have.
                self.alive_at_limit |= answer.await.unwrap_or(true);
                self.answer = None;
            }
            None => std::future::pending().await,
        }
    }

    /// Whether a command that ended with `code` timed out; `None` while that is still being asked.
    pub(crate) fn verdict(&mut self, code: i32, now: Instant) -> Option<bool> {
        let ended = *self.ended.get_or_insert(now);
        let killed = self.signalled && code == KILLED || self.late.is_some_and(|late| ended >= late);
        let unheard = self.answer.is_some();
        if !killed && unheard && self.late.is_none_or(|late| now < late) {
            return None;
        }
        Some(killed || self.alive_at_limit || unheard)
    }

    /// Whether a signal was sent, so that one more may still arrive.
    pub(crate) fn has_signalled(&self) -> bool {
        self.signalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row {
        limited: bool,
        code: i32,
        /// What the signal at the limit found; `None` is no answer.
        found: Option<bool>,
        /// How long after its begin it ended, in milliseconds.
        ended: u64,
        timed_out: bool,
    }

    /// Limit 1 s, slop 500 ms.
    #[tokio::test(start_paused = true)]
    async fn truth_table() {
        let row = |limited, code, found, ended, timed_out| Row { limited, code, found, ended, timed_out };
        for r in [
            row(false, 137, None, 5000, false),
            row(false, 0, None, 5000, false),
            row(true, 0, None, 900, false),
            row(true, 137, None, 900, false),
            row(true, 124, None, 900, false),
            row(true, 137, Some(true), 1010, true),
            row(true, 137, None, 1010, true),
            row(true, 0, Some(true), 1010, true),
            row(true, 0, Some(false), 1010, false),
            row(true, 7, Some(false), 1010, false),
            row(true, 0, None, 1010, true),
            row(true, 0, Some(false), 1500, true),
            row(true, 0, Some(false), 9000, true),
        ] {
            let begun = Instant::now();
            // With a grace that would allow all of them.
            let mut clock =
                LimitClock::new(begun, r.limited.then_some(Duration::from_secs(1)), Duration::from_secs(20));
            let now = begun + Duration::from_millis(r.ended);
            clock.tick(now, |_, _| {
                let (sender, receiver) = oneshot::channel();
                match r.found {
                    Some(found) => drop(sender.send(found)),
                    None => drop(sender),
                }
                receiver
            });
            if clock.answer.is_some() {
                clock.hear().await;
            }
            assert_eq!(clock.verdict(r.code, now), Some(r.timed_out), "{} {} {:?}", r.code, r.ended, r.found);
        }
        let begun = Instant::now();
        let clock = LimitClock::new(begun, Some(Duration::from_secs(1)), Duration::ZERO);
        assert!(
            !clock.is_over(begun + Duration::from_millis(1499)) && clock.is_over(begun + Duration::from_millis(1500))
        );
        let short = LimitClock::new(begun, Some(Duration::from_millis(100)), Duration::ZERO);
        assert!(short.is_over(begun + Duration::from_millis(150)));
    }
}
