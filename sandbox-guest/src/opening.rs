//! How many streams are opened at once: as many as may be while commands are long, few while they are short. A stream that frees up
//! after some milliseconds serves the next command sooner than a new one opens, and opening costs the node more than a short command.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

/// How many open in any case.
const FEW: usize = 2;
/// More do once no stream has been freed for this long.
const LULL: Duration = Duration::from_millis(25);

/// Who may open a stream now.
pub(crate) struct Opening {
    few: Semaphore,
    most: Semaphore,
    /// When a stream was last freed.
    freed: Mutex<Instant>,
}

/// The right to open one stream, as long as it is held.
pub(crate) struct Place<'a> {
    _few: Option<SemaphorePermit<'a>>,
    _most: Option<SemaphorePermit<'a>>,
}

impl Opening {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        let few = Semaphore::new(FEW.min(most));
        Self { few, most: Semaphore::new(most), freed: Mutex::new(Instant::now()) }
    }

    /// A stream was freed.
    pub(crate) fn freed(&self) {
        *self.freed.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits for a place.
    pub(crate) async fn place(&self) -> Place<'_> {
        let few = tokio::select! {
            biased;
            // Neither semaphore is ever closed.
            permit = self.few.acquire() => permit.ok(),
            () = self.lull() => None,
        };
        Place { _few: few, _most: self.most.acquire().await.ok() }
    }

    /// Waits until no stream has been freed for a while, counted from now.
    async fn lull(&self) {
        let begun = Instant::now();
        loop {
            let since = begun.max(*self.freed.lock().unwrap_or_else(PoisonError::into_inner));
            let Some(left) = LULL.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else { return };
            sleep(left).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::stream::{FuturesUnordered, StreamExt as _};

    use super::*;

    /// How many of `waiting` have a place without any wait.
    fn admitted<'a, F: Future<Output = Place<'a>>>(
        waiting: &mut FuturesUnordered<F>,
        held: &mut Vec<Place<'a>>,
    ) -> usize {
        while let Some(Some(place)) = waiting.next().now_or_never() {
            held.push(place);
        }
        held.len()
    }

    #[tokio::test(start_paused = true)]
    async fn few_open_while_streams_come_free_and_most_once_none_does() {
        let opening = Opening::new(8);
        let mut waiting: FuturesUnordered<_> = (0..20).map(|_| opening.place()).collect();
        let mut held = Vec::new();
        assert_eq!(admitted(&mut waiting, &mut held), FEW);
        for _ in 0..10 {
            tokio::time::advance(LULL / 2).await;
            opening.freed();
            assert_eq!(admitted(&mut waiting, &mut held), FEW, "a stream was just freed");
        }
        tokio::time::advance(LULL).await;
        assert_eq!(admitted(&mut waiting, &mut held), 8);
        held.pop();
        assert_eq!(admitted(&mut waiting, &mut held), 8, "a place that is given back is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_may_open_at_once_are_never_more_than_most() {
        let opening = Opening::new(1);
        let mut waiting: FuturesUnordered<_> = (0..3).map(|_| opening.place()).collect();
        let mut held = Vec::new();
        assert_eq!(admitted(&mut waiting, &mut held), 1);
        tokio::time::advance(LULL * 2).await;
        assert_eq!(admitted(&mut waiting, &mut held), 1);
    }
}
