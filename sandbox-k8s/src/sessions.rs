//! What a provider and its clones remember of sessions: whose turn it is, and losses that no Pod tells of yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandbox::{Error, ErrorKind, Recreated, SessionId};
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

/// How many losses are remembered; beyond that an older one is forgotten.
const REMEMBERED: usize = 10_000;

/// The right to change one session's sandbox. Whoever goes on after the call has a clone.
pub(crate) type Turn = Arc<OwnedMutexGuard<()>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    busy: Mutex<HashMap<SessionId, Weak<tokio::sync::Mutex<()>>>>,
    lost: Mutex<HashMap<SessionId, Recreated>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// Waits for this session's turn.
    pub(crate) async fn turn(&self, session: &SessionId, deadline: Instant) -> Result<Turn, Error> {
        let mutex = {
            let mut busy = lock(&self.busy);
            busy.retain(|_, mutex| mutex.strong_count() > 0);
            match busy.get(session).and_then(Weak::upgrade) {
                Some(mutex) => mutex,
                None => {
                    let mutex = Arc::default();
                    busy.insert(session.clone(), Arc::downgrade(&mutex));
                    mutex
                }
            }
        };
        let late = |_| Error::new(ErrorKind::Busy).because("another call is changing this session's sandbox");
        timeout_at(deadline, mutex.lock_owned()).await.map(Arc::new).map_err(late)
    }

    /// A sandbox of the session is no more, or is about to be, and no Pod says so: the next one has to.
    pub(crate) fn lose(&self, session: &SessionId, why: Recreated) {
        let mut lost = lock(&self.lost);
        if lost.len() >= REMEMBERED
            && !lost.contains_key(session)
            && let Some(other) = lost.keys().next().cloned()
        {
            tracing::warn!(session = other.as_str(), "that its sandbox died is forgotten: there are too many");
            lost.remove(&other);
        }
        lost.insert(session.clone(), why);
    }

    /// What the session's next sandbox has to tell of an earlier one.
    pub(crate) fn lost(&self, session: &SessionId) -> Option<Recreated> {
        lock(&self.lost).get(session).cloned()
    }

    /// It is told, or the session is over.
    pub(crate) fn told(&self, session: &SessionId) {
        lock(&self.lost).remove(session);
    }
}

#[cfg(test)]
mod tests {
    use sandbox::Death;

    use super::*;

    #[test]
    fn losses_are_bounded() {
        let sessions = Sessions::default();
        let id = |at: usize| SessionId::new(format!("s{at}")).unwrap();
        for at in 0..REMEMBERED + 5 {
            sessions.lose(&id(at), Recreated::new(Death::Evicted, at.to_string()));
        }
        assert_eq!(lock(&sessions.lost).len(), REMEMBERED);
        let last = id(REMEMBERED + 4);
        assert_eq!(sessions.lost(&last).unwrap().detail, (REMEMBERED + 4).to_string());
        sessions.told(&last);
        assert_eq!(sessions.lost(&last), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_until_the_deadline() {
        let sessions = Sessions::default();
        let (one, other) = (SessionId::generate(), SessionId::generate());
        let soon = || Instant::now() + std::time::Duration::from_secs(1);
        let held = sessions.turn(&one, soon()).await.unwrap();
        let goes_on = Arc::clone(&held);
        sessions.turn(&other, soon()).await.unwrap();
        drop(held);
        let error = sessions.turn(&one, soon()).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Busy, sandbox::Effect::None));
        assert!(error.reason().is_some());
        drop(goes_on);
        sessions.turn(&one, soon()).await.unwrap();
    }
}
