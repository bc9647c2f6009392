//! The rest of a sandbox's life: whether it is there, and its end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sandbox::{Death, Effect, Error, ErrorKind, Owned, OwnedState, Recreated, SessionId};

use crate::cgroup;
use crate::error::io_error;
use crate::host::Host;
use crate::record::{Phase, Record};
use crate::start::is_held;
use crate::store::{self, Guard, Known};
use crate::{ident, teardown};

/// For how long a session of which there is nothing yet is taken for one that somebody is about to make, and not listed.
const NOT_YET: Duration = Duration::from_secs(60);

/// Whether a sandbox is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Alive,
    Dead(Recreated),
}

impl Host {
    /// Removes everything of a session, or only the sandbox of that nonce; what is not there is removed. What the record says helps, and
    /// holds nothing up.
    pub(crate) fn reap(&self, session: &SessionId, nonce: Option<&str>) -> Result<(), Error> {
        self.remove(session, nonce).map_err(|e| match e.kind() {
            // Nothing was begun.
            ErrorKind::Busy => e,
            _ => e.with_effect(Effect::Unknown),
        })
    }

    fn remove(&self, session: &SessionId, nonce: Option<&str>) -> Result<(), Error> {
        let guard = self.store.lock(session, false, self.config.lock_timeout)?;
        let deadline = Instant::now() + self.config.stop_timeout;
        // What an earlier attempt has put away and not removed.
        let Some(guard) = guard else { return self.store.empty(session, deadline) };
        let record = match self.store.look(session)? {
            Known::Record(record) => Some(*record),
            Known::Nothing | Known::Strange(_) => None,
        };
        if let Some(nonce) = nonce {
            let is_there = match &record {
                Some(record) => record.nonce == nonce,
                None => guard.boxes()?.contains(&self.store.box_of(session, nonce)),
            };
            if !is_there {
                drop(guard);
                return self.store.empty(session, deadline);
            }
        }
        if let Some(mut record) = record.clone() {
            record.phase = Phase::Ending;
            guard.write(&record)?;
        }
        self.put_away_boxes(&guard, session, record.as_ref(), deadline)?;
        guard.remove()?;
        self.store.empty(session, deadline)
    }

    /// Ends what runs in the boxes of a session, and puts them away.
    pub(crate) fn put_away_boxes(
        &self,
        guard: &Guard,
        session: &SessionId,
        record: Option<&Record>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let remove_groups = |groups: &[PathBuf]| {
            cgroup::remove(groups, deadline).map_err(|e| io_error("cannot remove its control groups", e))
        };
        for path in guard.boxes()? {
            let own = record.filter(|r| self.store.box_of(session, &r.nonce) == path);
            // A number of an earlier run of the machine says nothing about this one.
            let recent = own.filter(|r| r.boot == ident::boot_id());
            teardown::end_box(&path, recent.and_then(|r| r.identity.as_ref()), recent.is_some(), deadline)?;
            if let (None, Some(nonce), Some(groups)) = (own, store::nonce_of(&path), &self.groups) {
                // It had those that it needed, and all of its name are its own.
                remove_groups(&groups.all(&groups_of(nonce)))?;
            }
            self.store.discard(session, &path)?;
        }
        remove_groups(record.map(|r| r.cgroups.as_slice()).unwrap_or_default())
    }

    /// Whether a sandbox that ran still does.
    pub(crate) fn state(&self, record: &Record) -> Result<State, Error> {
        let unseen = |e| io_error("cannot see whether the sandbox lives", e);
        if record.boot != ident::boot_id() {
            return Ok(State::Dead(Recreated::new(Death::NodeLost, "this machine was restarted")));
        }
        let ended = match cgroup::was_out_of_memory(&record.cgroups) {
            true => Recreated::new(
                Death::OomKilled,
                "its first process ended, after processes were killed for their memory",
            ),
            false => Recreated::new(Death::Ended, "its first process ended"),
        };
        let Some(identity) = &record.identity else { return Ok(State::Dead(ended)) };
        let held = is_held(&self.store.box_of(&record.spec.session, &record.nonce)).map_err(unseen)?;
        if held && identity.lives().map_err(unseen)? { Ok(State::Alive) } else { Ok(State::Dead(ended)) }
    }

    /// What is there of a session, as far as it can be told from its record and its processes.
    pub(crate) fn describe(&self, session: SessionId) -> Result<Option<Owned>, Error> {
        let record = match self.store.look(&session)? {
            Known::Record(record) => record,
            Known::Nothing if self.store.is_bare(&session, NOT_YET)? => return Ok(None),
            Known::Nothing | Known::Strange(_) => return Ok(Some(Owned::new(session, OwnedState::Unknown, ""))),
        };
        let state = match record.phase {
            Phase::Starting => OwnedState::Starting,
            Phase::Ending => OwnedState::Ending,
            Phase::Running => match self.state(&record)? {
                State::Alive => OwnedState::Running,
                State::Dead(_) => OwnedState::Ended,
            },
        };
        Ok(Some(Owned::new(session, state, record.nonce.clone()).created_at(record.created())))
    }

    /// Why the sandbox of that nonce is no more; `None` if it lives.
    pub(crate) fn death(&self, session: &SessionId, nonce: &str) -> Result<Option<Death>, Error> {
        Ok(match self.store.read(session)? {
            None => Some(Death::Deleted),
            Some(record) if record.nonce != nonce => Some(Death::Replaced),
            Some(record) => match (record.phase, self.state(&record)?) {
                (Phase::Ending, _) => Some(Death::Deleted),
                (_, State::Dead(why)) => Some(why.reason),
                (_, State::Alive) => None,
            },
        })
    }
}

/// What the control groups of a sandbox are called.
pub(crate) fn groups_of(nonce: &str) -> String {
    format!("sandbox-{nonce}")
}
