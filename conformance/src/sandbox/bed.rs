//! What the body of a case gets: a provider, a fresh session, and calls that fail by name when they take too long.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox::{Capabilities, Error, ErrorKind, Provider, SandboxPath, SessionId, Spec};

use super::{GateFixture, Setup, Subject, containment};
use crate::{Failure, Outcome, ensure, short, within};

/// How long a call may take that has no limit of its own.
pub(super) const CALL: Duration = Duration::from_secs(60);

/// What the body of a case gets.
#[derive(Debug)]
pub struct Bed {
    setup: Setup,
    /// The session of the case: fresh, and reaped after it.
    pub session: SessionId,
    /// The provider under test.
    pub provider: Arc<dyn Provider>,
    honest: Arc<dyn Provider>,
    sessions: Mutex<BTreeSet<SessionId>>,
    trail: Arc<Trail>,
    /// Whether a provision of this case made a sandbox.
    came_up: AtomicBool,
}

/// The last things a case did.
#[derive(Debug, Default)]
pub(super) struct Trail(Mutex<Vec<String>>);

impl Trail {
    pub(super) fn note(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == 12 {
            lines.remove(0);
        }
        lines.push(line);
    }
}

impl Bed {
    pub(super) async fn open(setup: &Setup, _: &str) -> Outcome<Self> {
        if let Some(failure) = setup.up.gives_up() {
            return Err(failure);
        }
        let honest = Self::connect(setup).await?;
        let provider = setup.wrap.as_ref().map_or(Arc::clone(&honest), |wrap| wrap(Arc::clone(&honest)));
        let session = SessionId::generate();
        let sessions = Mutex::new(BTreeSet::from([session.clone()]));
        let (setup, trail, came_up) = (setup.clone(), Arc::default(), AtomicBool::new(false));
        Ok(Self { setup, session, provider, honest, sessions, trail, came_up })
    }

    async fn connect(setup: &Setup) -> Outcome<Arc<dyn Provider>> {
        within("a provider", CALL, (setup.connect)())
            .await?
            .map_err(|e| Failure::new("making a provider", "one", e.to_string()))
    }

    /// A provider as another process would make it.
    pub async fn other_provider(&self) -> Outcome<Arc<dyn Provider>> {
        let honest = Self::connect(&self.setup).await?;
        Ok(self.setup.wrap.as_ref().map_or(Arc::clone(&honest), |wrap| wrap(Arc::clone(&honest))))
    }

    /// What the provider claims.
    #[must_use]
    pub fn claims(&self) -> Capabilities {
        self.provider.capabilities()
    }

    /// The gate to try, if there is one.
    pub(super) fn gate(&self) -> Option<&GateFixture> {
        self.setup.gate.as_ref()
    }

    /// Another fresh session, which is reaped after the case too.
    pub fn fresh_session(&self) -> SessionId {
        let session = SessionId::generate();
        self.adopt(&session);
        session
    }

    /// Reaps `session` too after the case.
    pub fn adopt(&self, session: &SessionId) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(session.clone());
    }

    /// The plain spec of `session`: the suite's image, everything else at its default, what is not claimed left out.
    pub fn spec_of(&self, session: &SessionId) -> Spec {
        use sandbox::{Hardening, Networking};
        let claims = self.claims();
        let mut spec = Spec::new(session.clone(), self.setup.image.clone());
        if !claims.cap_drop {
            spec.hardening = Hardening::none();
        }
        if !claims.networking_unrestricted {
            spec.networking = if claims.networking_none { Networking::None } else { Networking::limited([]) };
        }
        spec
    }

    /// The plain spec of the case's session.
    pub fn spec(&self) -> Spec {
        self.spec_of(&self.session)
    }

    /// The case's sandbox, from the plain spec.
    pub async fn sandbox(&self) -> Outcome<Subject> {
        self.provision(&self.spec()).await
    }

    /// A sandbox from `spec`.
    pub async fn provision(&self, spec: &Spec) -> Outcome<Subject> {
        let made = self.try_provision(spec).await;
        made.and_then(|made| made.map_err(|e| unexpected("provision", "a sandbox", &e))).map_err(|failure| {
            // What the rule says comes later, unless it is about a second one.
            if self.came_up.load(Ordering::Relaxed) {
                return failure;
            }
            self.setup.up.failed(&failure);
            failure.before_the_rule()
        })
    }

    /// What comes of provisioning `spec`.
    pub async fn try_provision(&self, spec: &Spec) -> Outcome<Result<Subject, Error>> {
        self.provision_through(&self.provider, spec).await
    }

    /// What comes of provisioning `spec` through `provider`.
    pub async fn provision_through(
        &self,
        provider: &Arc<dyn Provider>,
        spec: &Spec,
    ) -> Outcome<Result<Subject, Error>> {
        let begun = Instant::now();
        let made = within("provision", CALL * 2, provider.provision(spec)).await?;
        self.note(begun, &format!("provision {}", spec.session), &made);
        if made.is_ok() {
            self.setup.up.came();
            self.must_be_contained(&spec.session).await?;
            self.came_up.store(true, Ordering::Relaxed);
        }
        Ok(made.map(|inner| self.subject(inner)))
    }

    /// Fails where commands run beside this very test. Asked of the first sandbox, before anything of a case runs in it.
    async fn must_be_contained(&self, session: &SessionId) -> Outcome {
        let asked = self.setup.uncontained.get_or_init(|| containment::is_missing(&self.honest, session));
        ensure(
            !*asked.await,
            "where commands run",
            "another pid namespace than that of this test, since cases kill all that they can reach",
            || "the pid namespace of this test: nothing was run".to_owned(),
        )
    }

    /// The sandbox that is there.
    pub async fn attach(&self, session: &SessionId) -> Outcome<Subject> {
        self.try_attach(session).await?.map_err(|e| unexpected("attach", "the sandbox that is there", &e))
    }

    /// What comes of attaching.
    pub async fn try_attach(&self, session: &SessionId) -> Outcome<Result<Subject, Error>> {
        let begun = Instant::now();
        let found = within("attach", CALL, self.provider.attach(session)).await?;
        self.note(begun, &format!("attach {session}"), &found);
        Ok(found.map(|inner| self.subject(inner)))
    }

    /// Kills the sandbox of `session` past the provider.
    pub(super) async fn kill(&self, session: &SessionId) -> Outcome {
        let failed = |why: String| Failure::new("killing the sandbox", "that it dies", why);
        let killer = self.setup.killer.as_ref().ok_or_else(|| failed("there is no way to".to_owned()))?;
        let begun = Instant::now();
        let killed = within("killing the sandbox", CALL, killer(session.clone())).await?.map_err(failed);
        self.trail.note(format!("killed {session} past the provider ({:?})", begun.elapsed()));
        killed
    }

    /// Reaps, which must succeed.
    pub async fn reap(&self, session: &SessionId) -> Outcome {
        let begun = Instant::now();
        let reaped = within("reap", CALL, self.provider.reap(session)).await?;
        self.note(begun, &format!("reap {session}"), &reaped);
        reaped.map_err(|e| unexpected("reap", "success", &e))
    }

    /// How often `session` is listed.
    pub async fn times_owned(&self, session: &SessionId) -> Outcome<usize> {
        Self::listed(&self.provider, session).await
    }

    async fn listed(provider: &Arc<dyn Provider>, session: &SessionId) -> Outcome<usize> {
        let list = async {
            let mut owned = provider.owned().await?;
            let mut times = 0;
            while let Some(entry) = owned.next().await {
                times += usize::from(entry?.session == *session);
            }
            Ok::<_, Error>(times)
        };
        within("owned", CALL, list).await?.map_err(|e| unexpected("owned", "a list", &e))
    }

    /// Fails unless there is nothing of `session` in the place itself now, before anybody cleans up.
    pub async fn nothing_of(&self, session: &SessionId, after: &str) -> Outcome {
        let Some(leaks) = &self.setup.leaks else { return Ok(()) };
        let found = within("the leak check", CALL, leaks(session.clone())).await?;
        ensure(found.is_empty(), after, "nothing made", || found.join(", "))
    }

    /// The archive of `root`, whole.
    pub async fn export(&self, session: &SessionId, root: &str) -> Outcome<Bytes> {
        let stream = self.try_export(session, root).await?.map_err(|e| unexpected("export", "an archive", &e))?;
        let bytes = within("the end of the export", CALL, stream.collect(256 << 20)).await?;
        bytes.map_err(|e| unexpected("reading the export", "an archive, whole", &e))
    }

    /// What comes of exporting.
    pub async fn try_export(&self, session: &SessionId, root: &str) -> Outcome<Result<sandbox::ExportStream, Error>> {
        let begun = Instant::now();
        let stream = within("export", CALL, self.provider.export(session, &path(root)?)).await?;
        self.note(begun, &format!("export {root}"), &stream);
        Ok(stream)
    }

    /// A handle with the same deadlines and the same trail.
    pub fn subject(&self, inner: Arc<dyn sandbox::Sandbox>) -> Subject {
        Subject { inner, trail: Arc::clone(&self.trail) }
    }

    fn note<T>(&self, begun: Instant, what: &str, result: &Result<T, Error>) {
        let end = result.as_ref().map_or_else(short, |_| "ok".to_owned());
        self.trail.note(format!("{what}: {end} ({:?})", begun.elapsed()));
    }

    pub(super) fn trail(&self) -> String {
        self.trail.0.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// Reaps every session of the case and looks for what is left of them.
    pub(super) async fn close(&self) -> Outcome {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut first = Ok(());
        for session in sessions {
            let cleaned = self.close_session(&session).await;
            first = first.and(cleaned);
        }
        first
    }

    async fn close_session(&self, session: &SessionId) -> Outcome {
        let reaped = within("reap", CALL, self.honest.reap(session)).await?;
        reaped.map_err(|e| unexpected("reap", "success", &e))?;
        let listed = Self::listed(&self.honest, session).await?;
        ensure(listed == 0, "owned", "the reaped session is not owned", || format!("{session} is still listed"))?;
        let Some(leaks) = &self.setup.leaks else { return Ok(()) };
        let begun = Instant::now();
        loop {
            let left = within("the leak check", CALL, leaks(session.clone())).await?;
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > Duration::from_secs(5) {
                return Err(Failure::new("the leak check", "nothing left of the session", left.join(", ")));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A path that the suite itself wrote down.
pub(super) fn path(text: impl Into<Vec<u8>>) -> Outcome<SandboxPath> {
    SandboxPath::new(text).map_err(|e| Failure::new("a path of the suite", "a legal one", e.to_string()))
}

/// `error` where there should have been `want`.
pub(super) fn unexpected(step: &str, want: &str, error: &Error) -> Failure {
    Failure::new(step, want, short(error))
}

/// Fails `step` unless it was refused as `kind`.
pub(super) fn refused<T>(step: &str, result: Result<T, Error>, kind: ErrorKind) -> Outcome<Error> {
    match result {
        Err(error) if error.kind() == kind => Ok(error),
        Err(error) => Err(Failure::new(step, format!("{kind:?}"), short(&error))),
        Ok(_) => Err(Failure::new(step, format!("{kind:?}"), "success")),
    }
}
