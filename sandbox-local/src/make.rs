//! The beginning of a sandbox: found, or made, or unmade again.

use std::fs::File;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use sandbox::{Death, Effect, Error, ErrorKind, Hardening, Recreated, SessionId, Spec};
use tokio::process::Child;
use tokio::runtime::Handle;

use crate::argv::{self, Enter, Kernel, Prelude, Start};
use crate::cgroup::{self, Bounds};
use crate::error::io_error;
use crate::fstab::Plan;
use crate::host::Host;
use crate::life::{State, groups_of};
use crate::record::{Phase, Record};
use crate::share::Share;
use crate::spec::{inner_ids, processes};
use crate::start::{self, Place, Program, Rest, Started};
use crate::store::{self, Guard};
use crate::wanted::{Wanted, no_shell};
use crate::{ident, inherited};

/// What a provision found or made.
pub(crate) struct Provisioned {
    pub(crate) record: Record,
    pub(crate) made: Option<Made>,
}

/// What comes with a sandbox that is being made.
pub(crate) struct Made {
    /// Its process here, to be waited for.
    pub(crate) parent: Child,
    /// What is still to be done.
    pub(crate) unfinished: Unfinished,
    /// Nobody else changes the session while this is held.
    pub(crate) guard: Guard,
}

/// A sandbox whose root is in place, with the old one perhaps still below it.
pub(crate) struct Unfinished {
    plan: Plan,
    kernel: Kernel,
    /// What lets go of the old root, if that does not happen by itself: then the root is foreign, and nothing of it may run before.
    detach: Option<Program>,
    /// The bound on processes has room for shells beside those that make it.
    roomy: bool,
    rest: Rest,
}

/// With fewer processes than this, those that make a sandbox and its first shells could be too many at once.
const ROOMY: u64 = 16;

impl Unfinished {
    /// Whether a shell may start meanwhile: one that is the machine's own.
    pub(crate) fn may_warm_up(&self) -> bool {
        !self.is_foreign() && self.roomy
    }

    /// Whether its root is somebody else's.
    pub(crate) fn is_foreign(&self) -> bool {
        self.detach.is_some()
    }
}

impl Host {
    /// Finds a sandbox or makes it. Begins nothing once `given_up` says so: a reap that comes after that finds either nothing, or the
    /// lock taken, which it waits for.
    pub(crate) fn provision(
        &self,
        runtime: &Handle,
        spec: &Spec,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Provisioned, Error> {
        let stop = || Error::new(ErrorKind::DeadlineExceeded).because("whoever asked for it gave up");
        inner_ids(&spec.hardening)?;
        processes(&spec.hardening)?;
        if let Some(record) = self.adopt(spec)? {
            return Ok(Provisioned { record, made: None });
        }
        // Before anything is made, and before anything dead is removed.
        let wanted = self.wanted(spec)?;
        if given_up() {
            return Err(stop());
        }
        let guard = self.store.lock(&spec.session, true, self.config.lock_timeout)?.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable).because("the state directory was removed at the same time")
        })?;
        // Somebody may have made it while this one waited.
        if let Some(record) = self.adopt(spec)? {
            return Ok(Provisioned { record, made: None });
        }
        if given_up() {
            if self.store.is_bare(&spec.session, Duration::MAX)? {
                guard.remove()?;
            }
            return Err(stop());
        }
        let recreated = self.clear(&guard, &spec.session)?;
        match self.make(runtime, &guard, spec, wanted, recreated.clone()) {
            Ok((record, parent, unfinished)) => {
                Ok(Provisioned { record, made: Some(Made { parent, unfinished, guard }) })
            }
            Err(error) => Err(self.unmake(guard, &spec.session, recreated.is_some(), error)),
        }
    }

    /// The sandbox that is there and lives, if it is the one that is asked for.
    fn adopt(&self, spec: &Spec) -> Result<Option<Record>, Error> {
        let Some(record) = self.store.read(&spec.session)? else { return Ok(None) };
        if record.phase != Phase::Running || self.state(&record)? != State::Alive {
            return Ok(None);
        }
        if record.fingerprint != spec.fingerprint() {
            let why = match record.spec.differences(spec) {
                none if none.is_empty() => "the program that made it compares other fields".to_owned(),
                differences => differences,
            };
            return Err(Error::new(ErrorKind::SpecMismatch).because(why));
        }
        Ok(Some(record))
    }

    /// Removes what is left of an earlier sandbox; says so if somebody may have used it.
    fn clear(&self, guard: &Guard, session: &SessionId) -> Result<Option<Recreated>, Error> {
        let old = self.store.read(session)?;
        let boxes = guard.boxes()?;
        let recreated = match &old {
            // Nobody has seen one that never ran, but it can have stood for another.
            Some(record) if record.phase == Phase::Starting => record.recreated.clone(),
            Some(record) if record.phase == Phase::Running => match self.state(record)? {
                State::Dead(why) => Some(why),
                State::Alive => None,
            },
            Some(_) => None,
            None if boxes.is_empty() => None,
            None => Some(Recreated::new(Death::NodeLost, "what was known of it is not legible")),
        };
        self.put_away_boxes(guard, session, old.as_ref(), Instant::now() + self.config.stop_timeout)?;
        Ok(recreated)
    }

    fn make(
        &self,
        runtime: &Handle,
        guard: &Guard,
        spec: &Spec,
        wanted: Wanted,
        recreated: Option<Recreated>,
    ) -> Result<(Record, Child, Unfinished), Error> {
        let nonce = store::nonce()?;
        let (kernel, claim) = self.new_kernel(&nonce)?;
        let Wanted { plan, uid, gid, foreign, own_network } = wanted;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut record = Record {
            version: Record::VERSION,
            nonce,
            created: u64::try_from(now.as_millis()).unwrap_or(0),
            phase: Phase::Starting,
            fingerprint: spec.fingerprint(),
            spec: spec.clone(),
            uid: kernel.uid,
            gid: kernel.gid,
            recreated,
            boot: ident::boot_id(),
            cgroups: Vec::new(),
            identity: None,
        };
        let (name, bounds) = (groups_of(&record.nonce), self.bounds(&spec.hardening));
        if let Some(groups) = &self.groups {
            record.cgroups = groups.paths(&name, bounds);
        }
        guard.write(&record)?;
        if let Some(groups) = &self.groups {
            groups.make(&name, bounds).map_err(|e| io_error("cannot make its control groups", e))?;
        }
        let path = self.store.box_of(&spec.session, &record.nonce);
        start::make_box(&path, kernel)?;
        let join = cgroup::join_files(&record.cgroups);
        let prelude = Prelude { inherited: inherited::look(), join: &join };
        let leaves = prelude.inherited.terminal;
        let processes = processes(&spec.hardening)?;
        let share = &if kernel.switch { Share::default() } else { Share::of_caller() };
        let start = Start { kernel, uid, gid, own_network, processes, foreign, share, prelude };
        let argv = argv::start(&self.tools, &start);
        let deadline = Instant::now() + self.config.start_timeout;
        let program = Program { argv, leaves };
        let place = Place { path: &path, plan: &plan, kernel };
        let Started { identity, parent, rest } = start::start(&self.spawner, runtime, &place, &program, deadline)?;
        // From here on its processes tell whose that user is.
        drop(claim);
        let enter = Enter { kernel, parent: identity.parent.pid, init: identity.init.pid, own_network, prelude };
        let detach = foreign.then(|| Program { argv: argv::detach(&self.tools, &enter), leaves });
        let roomy = processes.is_none_or(|n| n >= ROOMY);
        record.identity = Some(identity);
        guard.write(&record)?;
        Ok((record, parent, Unfinished { plan, kernel, detach, roomy, rest }))
    }

    /// Sees a sandbox that is being made through to its end.
    pub(crate) fn finish(
        &self,
        runtime: &Handle,
        guard: &Guard,
        mut record: Record,
        unfinished: Unfinished,
    ) -> Result<(), Error> {
        let Unfinished { plan, kernel, detach, roomy: _, rest } = unfinished;
        let path = self.store.box_of(&record.spec.session, &record.nonce);
        let identity =
            record.identity.as_ref().ok_or_else(|| Error::new(ErrorKind::Other).because("it has no identity"))?;
        let place = Place { path: &path, plan: &plan, kernel };
        start::finish(&self.spawner, runtime, &place, identity, detach.as_ref(), rest)?;
        if !has_shell(identity.init.pid)? {
            return Err(no_shell(&record.spec.image));
        }
        record.phase = Phase::Running;
        guard.write(&record)
    }

    /// Removes what a failed attempt left, and says in its error whether that is all gone. What cannot be removed stays listed, and the
    /// next provision or reap tries again.
    pub(crate) fn unmake(&self, guard: Guard, session: &SessionId, keep_record: bool, why: Error) -> Error {
        let deadline = Instant::now() + self.config.stop_timeout;
        let read = self.store.read(session);
        let ended = read.and_then(|record| self.put_away_boxes(&guard, session, record.as_ref(), deadline));
        let result = match ended {
            // The record says that an earlier sandbox died: the next one to be made has to tell.
            Ok(()) if keep_record => Ok(()),
            Ok(()) => guard.remove(),
            Err(e) => Err(e),
        };
        let result = result.and_then(|()| self.store.empty(session, deadline));
        if let Err(error) = result {
            tracing::warn!(%session, %error, "what a failed provision began is still there");
            return why.with_effect(Effect::Unknown);
        }
        why.with_effect(Effect::None)
    }

    /// What can be bounded of what is wanted. What must be and cannot has been refused before.
    fn bounds(&self, hardening: &Hardening) -> Bounds {
        let Some(groups) = &self.groups else { return Bounds::default() };
        Bounds {
            memory: hardening.memory_bytes.value().filter(|_| groups.bounds_memory()),
            cpu_millis: hardening
                .cpu_millis
                .value()
                .filter(|millis| groups.bounds_cpu() && !cgroup::machine_bounds_cpu(*millis)),
        }
    }
}

/// Whether a sandbox has the shell that everything inside goes through, links resolved as they are inside.
fn has_shell(init: i32) -> Result<bool, Error> {
    let failed = |e| io_error("cannot look into the sandbox", e);
    let root = File::open(format!("/proc/{init}/root")).map_err(failed)?;
    match openat2(&root, "bin/bash", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(false),
        Err(e) => Err(failed(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::LocalConfig;

    #[test]
    fn nothing_is_begun_for_somebody_who_gave_up() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let host = Host::new(LocalConfig::default().with_state_dir(&state)).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let spec = Spec::new(SessionId::new("a").unwrap(), "host");
        // At once, and after the session was locked.
        for patience in [0, 1] {
            let asked = std::cell::Cell::new(0);
            let given_up = || asked.replace(asked.get() + 1) >= patience;
            let error = host.provision(runtime.handle(), &spec, &given_up).map(|_| ()).unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::None), "{error}");
            assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
        }
    }
}
