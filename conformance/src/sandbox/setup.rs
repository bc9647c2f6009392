//! What a provider hands to the suite.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use sandbox::{Capabilities, Error, Provider, SessionId};
use tokio::sync::OnceCell;

use super::up::Up;
use super::{Bed, GateFixture};
use crate::{Case, Factory, Need, Outcome, Probe};

type Connect = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Provider>, NoBackend>> + Send + Sync>;
type Leaks = Arc<dyn Fn(SessionId) -> BoxFuture<'static, Vec<String>> + Send + Sync>;
type Facts = Arc<dyn Fn() -> BoxFuture<'static, BTreeMap<String, String>> + Send + Sync>;
type Killer = Arc<dyn Fn(SessionId) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;
type Wrap = Arc<dyn Fn(Arc<dyn Provider>) -> Arc<dyn Provider> + Send + Sync>;

/// What the cases of dead sandboxes need.
pub(super) const KILLER: &str = "way to kill a sandbox";

/// Your provider, as the suite takes it.
///
/// ```no_run
/// # use sandbox::{Error, Provider};
/// # struct MyProvider;
/// # impl MyProvider { async fn connect() -> Result<std::sync::Arc<dyn Provider>, Error> { todo!() } }
/// use conformance::sandbox::Setup;
///
/// fn main() -> std::process::ExitCode {
///     let setup = Setup::new("mine", || async { Ok(MyProvider::connect().await?) });
///     conformance::main(setup.with_image("debian:stable-slim"))
/// }
/// ```
#[derive(Clone)]
pub struct Setup {
    name: String,
    pub(super) image: String,
    pub(super) connect: Connect,
    pub(super) leaks: Option<Leaks>,
    pub(super) wrap: Option<Wrap>,
    pub(super) gate: Option<GateFixture>,
    pub(super) killer: Option<Killer>,
    mounted_files: bool,
    facts: BTreeMap<String, String>,
    probe: Option<Facts>,
    cases: Option<Vec<Case<Self>>>,
    /// Whether commands were seen to run beside this very test.
    pub(super) uncontained: Arc<OnceCell<bool>>,
    /// Whether sandboxes come up at all.
    pub(super) up: Arc<Up>,
}

/// Why there is no provider to try.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoBackend {
    /// What it needs is not here: shown as such, and a failure only where `CONFORMANCE_REQUIRE` names the backend.
    Absent {
        /// What is missing.
        reason: String,
        /// What to do about it, such as the variable to set.
        remedy: String,
    },
    /// It is here and does not work: always a failure.
    Broken(String),
}

impl NoBackend {
    /// What it needs is not here.
    pub fn absent(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Absent { reason: reason.into(), remedy: remedy.into() }
    }
}

impl From<Error> for NoBackend {
    fn from(error: Error) -> Self {
        Self::Broken(format!("{error:?}"))
    }
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { reason, remedy } => write!(f, "{reason}; {remedy}"),
            Self::Broken(reason) => f.write_str(reason),
        }
    }
}

impl Setup {
    /// A backend that reports and `CONFORMANCE_REQUIRE` call `name`. `connect` makes a provider, as a process of its own would:
    /// the suite calls it again for each case, and twice where it wants to see what another process sees.
    pub fn new<F, Fut>(name: impl Into<String>, connect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn Provider>, NoBackend>> + Send + 'static,
    {
        Self {
            name: name.into(),
            image: "host".to_owned(),
            connect: Arc::new(move || Box::pin(connect())),
            leaks: None,
            wrap: None,
            gate: None,
            killer: None,
            mounted_files: true,
            facts: BTreeMap::new(),
            probe: None,
            cases: None,
            uncontained: Arc::default(),
            up: Arc::default(),
        }
    }

    /// What sandboxes are made from, `host` unless said otherwise. It needs bash and an ordinary userland.
    #[must_use]
    pub fn with_image(mut self, image: impl Into<String>) -> Self {
        self.image = image.into();
        self
    }

    /// Looks for what a session left in the place itself: objects, processes, files. Called after the session was reaped, and where
    /// nothing may have been made of it; what it names fails the case.
    #[must_use]
    pub fn with_leak_check<F, Fut>(mut self, leaks: F) -> Self
    where
        F: Fn(SessionId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<String>> + Send + 'static,
    {
        self.leaks = Some(Arc::new(move |session| Box::pin(leaks(session))));
        self
    }

    /// Tries `gate` too, where the claim `gate` is made. Without one the case of a gate is not applicable.
    #[must_use]
    pub fn with_gate(mut self, gate: GateFixture) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Kills a session's sandbox as an accident would, past the provider, which finds it dead: its first process, its machine. Without it the cases
    /// of what becomes of a dead sandbox are not applicable. What it fails with fails the case.
    #[must_use]
    pub fn with_killer<F, Fut>(mut self, killer: F) -> Self
    where
        F: Fn(SessionId) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.killer = Some(Arc::new(move |session| Box::pin(killer(session))));
        self
    }

    /// Says that in sandboxes of this backend no regular file is a mount point, as `/etc/hosts` is in many: the case of writing onto one is
    /// not applicable then.
    #[must_use]
    pub fn without_mounted_files(mut self) -> Self {
        self.mounted_files = false;
        self
    }

    /// Adds a line to the report about the place it ran in, such as a server's version.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.insert(name.into(), value.into());
        self
    }

    /// Adds lines to the report that must be looked up. `probe` is asked once, after a provider was made and before anything is listed; what
    /// it cannot find out it leaves out, or says so.
    #[must_use]
    pub fn with_facts<F, Fut>(mut self, probe: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = BTreeMap<String, String>> + Send + 'static,
    {
        self.probe = Some(Arc::new(move || Box::pin(probe())));
        self
    }

    /// Runs `cases` and not the whole suite.
    #[must_use]
    pub fn with_cases(mut self, cases: Vec<Case<Self>>) -> Self {
        self.cases = Some(cases);
        self
    }

    /// Puts a wrapper around every provider. Cleaning up goes past it.
    #[must_use]
    pub fn with_wrapper<F>(mut self, wrap: F) -> Self
    where
        F: Fn(Arc<dyn Provider>) -> Arc<dyn Provider> + Send + Sync + 'static,
    {
        self.wrap = Some(Arc::new(wrap));
        self.up = Arc::default();
        self
    }

    /// Goes on however many provisions fail.
    pub(super) fn patient(mut self) -> Self {
        self.up = Arc::new(Up::patient());
        self
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("name", &self.name).field("image", &self.image).finish_non_exhaustive()
    }
}

#[async_trait]
impl Factory for Setup {
    type Context = Bed;
    type Claims = Capabilities;

    fn name(&self) -> &str {
        &self.name
    }

    fn cases(&self) -> Vec<Case<Self>> {
        let mut cases = self.cases.clone().unwrap_or_else(super::cases);
        if self.gate.is_none() {
            let gated = cases.iter_mut().filter_map(|case| case.needs.as_mut()).filter(|need| need.claim == "gate");
            gated.for_each(|need| *need = Need { claim: "gate to try it with", holds: |_| false });
        }
        if self.killer.is_none() {
            let of_the_dead =
                cases.iter_mut().filter_map(|case| case.needs.as_mut()).filter(|need| need.claim == KILLER);
            of_the_dead.for_each(|need| need.holds = |_| false);
        }
        if !self.mounted_files {
            let of_mounts = cases.iter_mut().filter(|case| case.id == "write::onto_a_mount_point");
            of_mounts.for_each(|case| case.needs = Some(Need { claim: "mounted files", holds: |_| false }));
        }
        cases
    }

    async fn probe(&self) -> Probe<Capabilities> {
        self.up.begin();
        match (self.connect)().await {
            Ok(provider) => {
                let provider = self.wrap.as_ref().map_or(Arc::clone(&provider), |wrap| wrap(Arc::clone(&provider)));
                let claims = provider.capabilities();
                if !(claims.networking_unrestricted || claims.networking_limited || claims.networking_none) {
                    return Probe::Broken(
                        "it claims no kind of networking: claim the one that its sandboxes have".to_owned(),
                    );
                }
                let claimed = serde_json::to_value(claims).and_then(serde_json::from_value).unwrap_or_default();
                let mut facts = self.facts.clone();
                if let Some(probe) = &self.probe {
                    facts.extend(probe().await);
                }
                facts.insert("image".to_owned(), self.image.clone());
                facts.insert("provider".to_owned(), crate::short(&provider));
                Probe::Ready { claims, claimed, facts }
            }
            Err(NoBackend::Absent { reason, remedy }) => Probe::Absent { reason, remedy },
            Err(NoBackend::Broken(reason)) => Probe::Broken(reason),
        }
    }

    async fn open(&self, id: &'static str) -> Outcome<Bed> {
        Bed::open(self, id).await
    }

    fn trail(&self, bed: &Bed) -> String {
        bed.trail()
    }

    async fn close(&self, bed: &Bed) -> Outcome {
        bed.close().await
    }
}
