//! The provider behind the checks: what blocks runs where it may, and whoever has a sandbox shares its streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use async_trait::async_trait;
use futures::stream;
use sandbox::{
    Capabilities, Death, Error, ErrorKind, ExportStream, OwnedStream, Provider, Sandbox, SandboxPath, SessionId, Spec,
};
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::cgroup::Groups;
use crate::host::Host;
use crate::life::State;
use crate::live::Live;
use crate::make::{Made, Provisioned};
use crate::probe;
use crate::record::{Phase, Record};
use crate::wanted::not_a_shell;

/// How many sessions are read at a time.
const PAGE: usize = 64;

/// The provider itself, behind the checks.
pub(crate) struct Local {
    host: Arc<Host>,
    /// One for each sandbox that somebody has a handle of, so that they share its streams.
    live: Mutex<HashMap<SessionId, Weak<Live>>>,
    /// Waits for the processes of this process's sandboxes when they end; removes what others put away.
    tasks: Mutex<JoinSet<()>>,
    /// While this is there, what others put away is removed.
    alive: Arc<()>,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("state_dir", &self.host.config.state_dir).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| Error::new(ErrorKind::Unavailable).because("there is no tokio runtime here"))
}

/// Runs what blocks where it may. When the future is dropped it goes on to its end, in the background.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    runtime()?
        .spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Error::new(ErrorKind::Other).because("a background task ended early").caused_by(e)))
}

impl Local {
    pub(crate) fn new(host: Host) -> Self {
        Self { host: Arc::new(host), live: Mutex::default(), tasks: Mutex::default(), alive: Arc::default() }
    }

    pub(crate) async fn probe(&self) -> Result<(), Error> {
        let kernel = self.host.trial_kernel();
        probe::probe(&self.host.spawner, &runtime()?, &self.host.tools, kernel).await
    }

    /// The handle of the sandbox of a record.
    fn handle(&self, record: Record) -> Result<Arc<Live>, Error> {
        let mut live = lock(&self.live);
        live.retain(|_, l| l.strong_count() > 0);
        if let Some(known) = live.get(&record.spec.session).and_then(Weak::upgrade)
            && known.nonce == record.nonce
        {
            return Ok(known);
        }
        let made = Arc::new(Live::new(Arc::clone(&self.host), record)?);
        live.insert(made.session.clone(), Arc::downgrade(&made));
        Ok(made)
    }

    fn wait_for(&self, mut child: Child) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let _ = child.wait().await;
        });
    }

    /// Removes in the background what others put away and did not remove, for a while.
    fn sweep(&self) {
        if !self.host.store.has_trash() {
            return;
        }
        let (host, alive) = (Arc::clone(&self.host), Arc::downgrade(&self.alive));
        let deadline = Instant::now() + host.config.stop_timeout;
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_blocking(move || host.store.sweep(&|| alive.strong_count() == 0 || Instant::now() >= deadline));
    }

    async fn find_or_make(&self, spec: &Spec) -> Result<Arc<Live>, Error> {
        let (host, handle, wanted) = (Arc::clone(&self.host), runtime()?, spec.clone());
        let asker = Arc::new(());
        let asked = Arc::downgrade(&asker);
        let work = move || host.provision(&handle, &wanted, &|| asked.strong_count() == 0);
        let Provisioned { record, made } = blocking(work).await?;
        let Some(Made { parent, unfinished, guard }) = made else { return self.handle(record) };
        self.wait_for(parent);
        let live = self.handle(record.clone())?;
        let (host, handle) = (Arc::clone(&self.host), runtime()?);
        let (at_once, foreign) = (unfinished.may_warm_up(), unfinished.is_foreign());
        // The session stays locked to the end.
        let finish = blocking(move || {
            let outcome = host.finish(&handle, &guard, record, unfinished);
            Ok((guard, outcome))
        });
        let (guard, outcome) = if at_once {
            let (finished, warm) = tokio::join!(finish, live.warm_up());
            let (guard, outcome) = finished?;
            (guard, outcome.and(warm))
        } else {
            let (guard, outcome) = finish.await?;
            match outcome {
                Ok(()) => {
                    let warm = live.warm_up().await;
                    (guard, if foreign { warm.map_err(|e| not_a_shell(&spec.image, e)) } else { warm })
                }
                failed => (guard, failed),
            }
        };
        if let Err(error) = outcome {
            let (host, session, keep) = (Arc::clone(&self.host), spec.session.clone(), live.recreated.is_some());
            return Err(blocking(move || Ok(host.unmake(guard, &session, keep, error))).await?);
        }
        Ok(live)
    }

    /// The sandbox of a session, if it runs.
    async fn find(&self, session: &SessionId) -> Result<Arc<Live>, Error> {
        let (host, id) = (Arc::clone(&self.host), session.clone());
        let record = blocking(move || {
            let absent = || Error::new(ErrorKind::NotFound);
            let Some(record) = host.store.read(&id)? else { return Err(absent()) };
            match record.phase {
                Phase::Starting => Err(absent().because("it is being made")),
                Phase::Ending => Err(absent().because("it is being removed").with_death(Death::Deleted)),
                Phase::Running => match host.state(&record)? {
                    State::Alive => Ok(record),
                    State::Dead(why) => Err(absent().because(why.detail).with_death(why.reason)),
                },
            }
        })
        .await?;
        self.handle(record)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for Local {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.files = true;
        capabilities.export = true;
        capabilities.spawn = true;
        capabilities.networking_unrestricted = true;
        capabilities.networking_limited = true;
        capabilities.networking_none = true;
        capabilities.pids_limit = true;
        capabilities.memory_limit = self.host.groups.as_ref().is_some_and(Groups::bounds_memory);
        capabilities.cpu_limit = self.host.groups.as_ref().is_some_and(Groups::bounds_cpu);
        capabilities.cap_drop = true;
        capabilities.read_only_root = true;
        capabilities.run_as_user = true;
        capabilities
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        let found = self.find_or_make(spec).await;
        // Also what this one has replaced.
        self.sweep();
        match found {
            Ok(live) => Ok(live),
            // Perhaps the machine forbids it altogether: then say what.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.probe().await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.find(session).await?)
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        let host = Arc::clone(&self.host);
        let sessions = blocking(move || host.store.sessions()).await?;
        let host = Arc::clone(&self.host);
        let pages = stream::try_unfold(Some((sessions, None)), move |sessions| {
            let host = Arc::clone(&host);
            async move {
                let Some((mut sessions, mut failure)) = sessions else { return Ok::<_, Error>(None) };
                let page = move || {
                    let (mut page, mut read) = (Vec::new(), 0);
                    for name in sessions.by_ref().take(PAGE) {
                        read += 1;
                        match name.and_then(|session| host.describe(session)) {
                            Ok(owned) => page.extend(owned.map(Ok)),
                            // One that cannot be looked at hides no other: it is told at the end.
                            Err(e) => failure = failure.or(Some(e)),
                        }
                    }
                    if read == PAGE {
                        return Ok((stream::iter(page), Some((sessions, failure))));
                    }
                    page.extend(failure.map(Err));
                    Ok((stream::iter(page), None))
                };
                blocking(page).await.map(Some)
            }
        });
        Ok(OwnedStream::new(futures::TryStreamExt::try_flatten(pages)))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        let (host, id) = (Arc::clone(&self.host), session.clone());
        let reaped = blocking(move || host.reap(&id, None)).await;
        self.sweep();
        reaped?;
        let live = lock(&self.live).get(session).and_then(Weak::upgrade);
        if let Some(live) = live {
            live.guest.close_idle();
        }
        Ok(())
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.find(session).await?.guest.export(root).await
    }
}
