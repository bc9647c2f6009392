//! The provider.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use sandbox::{
    Capabilities, Checked, Death, Error, ErrorKind, ExportStream, GateMinter, GateRevoker, OwnedStream, Provider,
    Sandbox, SandboxPath, SessionId, Spec,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::api::{Backoff, Pods};
use crate::config::{K8sConfig, check_namespace};
use crate::error::uncertain;
use crate::handle::Live;
use crate::listing;
use crate::make::Look;
use crate::names::{Keys, PodId, pod_name};
use crate::sessions::{Sessions, lock};
use crate::stamp;
use crate::state::{State, death, state};
use crate::wait;

/// How many Pods are removed at once.
const REMOVALS: usize = 8;
/// How many removals that failed are told of.
const TOLD: usize = 4;

/// Sandboxes on a Kubernetes cluster: one Pod per session, all in one namespace.
///
/// It needs a tokio runtime with input, output and time enabled. Its sandboxes survive it, and the process: any other provider of
/// the same cluster, namespace, deployment and domain finds them. A session id is unique within a namespace: another deployment's use of
/// it is `NotOurs`.
///
/// Cloning it is cheap. Calls that change one session, a `destroy` too, follow each other within one provider and its clones. Between
/// processes nothing does that: a reap that meets another process's provision removes what that is making, which then begins again, three
/// times, and fails as `Busy` after that; or it comes a moment too early, and a sandbox is there that nobody uses. So whoever cleans up
/// through [`owned`](Provider::owned) needs two rules: record a session before you provision it; and reap only what your records call over, or
/// do not know, and what is older ([`Owned::created`](sandbox::Owned::created)) than your longest provision.
///
/// A provision that is dropped leaves the Pod that it has made, which goes on starting: `owned` shows it, the next provision of the session
/// takes it up, a reap removes it. Where neither is to come, call reap. One with a gate whose token is not recorded by then is of no use to
/// anybody, and is removed at once; if that cannot be done either, or the process dies, the provision that finds it removes it.
///
/// # Errors
///
/// Beside what the traits say, all that the section "Errors" of the crate's docs tells of the API server; a `preflight` and a
/// `probe_image`, too.
#[derive(Debug, Clone)]
pub struct K8sProvider {
    pub(crate) checked: Checked<K8s>,
}

impl K8sProvider {
    /// Sandboxes through `client`, whose timeouts, retries and credentials stay its own; deadlines of the provider hold all the same.
    /// Contacts nothing.
    ///
    /// # Errors
    ///
    /// `InvalidSpec` for a field of `config` that breaks its rule, naming it and quoting the value.
    pub fn new(client: Client, config: K8sConfig) -> Result<Self, Error> {
        config.validate()?;
        let namespace = config.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        check_namespace(&namespace)?;
        let pods = Pods::new(client, namespace, config.request_timeout);
        let opening = Arc::new(Semaphore::new(config.max_opening));
        let sessions = Arc::default();
        Ok(Self { checked: Checked::new(K8s::at(Place { pods, config, opening, sessions, gates: None })) })
    }

    /// Lets sandboxes have a gate: `minter` makes their tokens valid, `revoker` takes them back before a sandbox is reaped, is
    /// replaced by one without a gate, or is removed because its provision failed. Where that fails, the sandbox stays, so that it is
    /// tried again. A `destroy` takes nothing back; the reap of the session does. Without this a spec with a gate is refused.
    ///
    /// Give every process that reaps or provisions in this deployment the same two: one that has no revoker removes sandboxes that
    /// have a gate as well, and their tokens stay valid.
    ///
    /// A gate's token stands in the Pod's specification: whoever may read Pods in the namespace reads it.
    #[must_use]
    pub fn with_gates(self, minter: Arc<dyn GateMinter>, revoker: Arc<dyn GateRevoker>) -> Self {
        let Place { pods, config, opening, sessions, gates: _ } = &**self.place();
        let place = Place {
            pods: pods.clone(),
            config: config.clone(),
            opening: Arc::clone(opening),
            sessions: Arc::clone(sessions),
            gates: Some(Gates { minter, revoker }),
        };
        Self { checked: Checked::new(K8s::at(place)) }
    }

    /// The namespace that its Pods are in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.place().pods.namespace
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.checked.inner().place
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for K8sProvider {
    fn capabilities(&self) -> Capabilities {
        self.checked.capabilities()
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        self.checked.provision(spec).await
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        self.checked.attach(session).await
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        self.checked.owned().await
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.checked.reap(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.checked.export(session, root).await
    }
}

/// Where the Pods are, and how they are made.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) pods: Pods,
    pub(crate) config: K8sConfig,
    pub(crate) opening: Arc<Semaphore>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) gates: Option<Gates>,
}

impl Place {
    /// Takes the tokens of a session's gates back, where there can be any.
    pub(crate) async fn revoke(&self, session: &SessionId, deadline: Instant) -> Result<(), Error> {
        let Some(gates) = &self.gates else { return Ok(()) };
        let late = |_| {
            let error = Error::new(ErrorKind::DeadlineExceeded).because("the gate's token was not revoked in time");
            Err(uncertain(error))
        };
        timeout_at(deadline, gates.revoker.revoke(session)).await.unwrap_or_else(late)
    }
}

/// Who knows the tokens of gates.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) minter: Arc<dyn GateMinter>,
    pub(crate) revoker: Arc<dyn GateRevoker>,
}

/// The provider itself, behind the checks.
pub(crate) struct K8s {
    pub(crate) place: Arc<Place>,
    /// One for each sandbox that somebody has a handle of, so that they share its streams.
    live: Mutex<HashMap<SessionId, Weak<Live>>>,
    /// Images that were looked at.
    pub(crate) images: Mutex<HashSet<String>>,
    /// Whether it was said that the number of processes is not bounded.
    warned: AtomicBool,
}

impl fmt::Debug for K8s {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8s")
            .field("namespace", &self.place.pods.namespace)
            .field("deployment", &self.place.config.deployment)
            .finish_non_exhaustive()
    }
}

impl K8s {
    fn at(place: Place) -> Self {
        let (live, images) = (Mutex::default(), Mutex::default());
        Self { place: Arc::new(place), live, images, warned: AtomicBool::new(false) }
    }

    /// The handle of a Pod.
    pub(crate) fn handle(&self, session: &SessionId, pod: &Pod) -> Result<Arc<Live>, Error> {
        let stamp = stamp::read(pod, &self.place.config)?;
        let mut live = lock(&self.live);
        live.retain(|_, l| l.strong_count() > 0);
        if let Some(known) = live.get(session).and_then(Weak::upgrade)
            && known.id.uid == stamp.uid
        {
            return Ok(known);
        }
        let made = Arc::new(Live::new(Arc::clone(&self.place), session.clone(), stamp));
        live.insert(session.clone(), Arc::downgrade(&made));
        Ok(made)
    }

    /// The sandbox of a session, if it runs.
    async fn find(&self, session: &SessionId) -> Result<Arc<Live>, Error> {
        let absent = || Error::new(ErrorKind::NotFound);
        let Some(pod) = self.place.pods.get_soon(&pod_name(session)).await? else { return Err(absent()) };
        stamp::check_ours(&pod.metadata, &self.place.config, session)?;
        stamp::sandbox(&pod)?;
        match state(&pod) {
            State::Ready => self.handle(session, &pod),
            State::Starting(text) | State::Stuck(_, text) => {
                let error = death(&pod).map_or_else(absent, |(why, _)| absent().with_death(why));
                Err(error.because(format!("it is not ready: {text}")))
            }
            State::Dying => Err(absent().with_death(Death::Ended)),
            State::Dead(dead) => Err(absent().with_death(dead.why.reason).because(dead.why.detail)),
            State::Ending => {
                let why = death(&pod).map_or(Death::Deleted, |(why, _)| why);
                Err(absent().with_death(why).because("it is being removed"))
            }
        }
    }

    /// Removes the session's sandbox, and all else that carries its labels.
    async fn remove_all(&self, session: &SessionId) -> Result<(), Error> {
        let place = &self.place;
        let deadline = Instant::now() + place.config.stop_timeout;
        let _turn = place.sessions.turn(session, deadline).await?;
        // From here on whatever fails may have happened.
        self.remove_labelled(session, deadline).await.map_err(uncertain)?;
        place.sessions.told(session);
        // Only now: what could not be removed may be at work.
        if let Some(live) = lock(&self.live).remove(session).and_then(|live| live.upgrade()) {
            live.close(Death::Deleted);
        }
        Ok(())
    }

    /// The session's own Pod, by its name.
    async fn own(&self, session: &SessionId, deadline: Instant) -> Option<PodId> {
        let place = &self.place;
        let name = pod_name(session);
        let metadata = timeout_at(deadline, place.pods.look(&name)).await.ok()?.ok()??.metadata;
        stamp::check_ours(&metadata, &place.config, session).ok()?;
        Some(PodId { name: metadata.name?, uid: metadata.uid? })
    }

    async fn remove_labelled(&self, session: &SessionId, deadline: Instant) -> Result<(), Error> {
        let place = &self.place;
        // First, also where nothing is owned: it can be repeated, and a failed removal is, with this before it.
        place.revoke(session, deadline).await?;
        let selector = Keys::of(&place.config).selector(&place.config.deployment, Some(session));
        let mut from: Option<String> = None;
        let mut first = true;
        let mut backoff = Backoff::new();
        let mut failed = Vec::new();
        loop {
            let page = place.pods.page(&selector, None, None, from.as_deref(), deadline).await?;
            // What is gone by then is not on the next first page.
            let Some(page) = page else {
                from = None;
                failed.clear();
                if timeout_at(deadline, backoff.pause(Duration::ZERO)).await.is_err() {
                    return Err(Error::new(ErrorKind::Unavailable)
                        .because("the API server forgets the state of the cluster faster than it can be listed"));
                }
                continue;
            };
            from = page.metadata.continue_.filter(|token| !token.is_empty());
            let found = page.items.into_iter();
            let mut found: Vec<_> = found
                .filter_map(|entry| Some(PodId { name: entry.metadata.name?, uid: entry.metadata.uid? }))
                .collect();
            // How long the others take, and how many they are, is up to whoever put the labels on them.
            let own = pod_name(session);
            found.sort_by_key(|id| id.name != own);
            if first && from.is_some() && !found.iter().any(|id| id.name == own) {
                found.splice(0..0, self.own(session, deadline).await);
            }
            first = false;
            let removals: Vec<_> = found
                .into_iter()
                .map(|id| {
                    let place = Arc::clone(place);
                    async move { wait::remove(&place.pods, &place.config, &id, true, deadline).await }
                })
                .collect();
            let ended: Vec<_> = stream::iter(removals).buffer_unordered(REMOVALS).collect().await;
            failed.extend(ended.into_iter().filter_map(Result::err));
            if from.is_none() {
                return joined(failed).map_or(Ok(()), Err);
            }
        }
    }
}

/// The first of several errors, which tells of the others.
fn joined(errors: Vec<Error>) -> Option<Error> {
    let count = errors.len();
    let reasons: Vec<_> = errors.iter().filter_map(Error::reason).take(TOLD).map(str::to_owned).collect();
    let first = errors.into_iter().next()?;
    if count == 1 {
        return Some(first);
    }
    Some(first.because(format!("{count} Pods could not be removed: {}", reasons.join("; "))))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Provider for K8s {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.files = true;
        capabilities.export = true;
        capabilities.spawn = true;
        capabilities.networking_unrestricted = true;
        capabilities.networking_limited = true;
        capabilities.networking_none = true;
        capabilities.gate = self.place.gates.is_some();
        // A Pod cannot say so: it is the kubelet's `podPidsLimit`.
        capabilities.pids_limit = false;
        capabilities.cpu_limit = true;
        capabilities.memory_limit = true;
        capabilities.disk_limit = true;
        capabilities.cap_drop = true;
        capabilities.read_only_root = true;
        capabilities.run_as_user = true;
        // That is up to the image.
        capabilities.root_by_default = false;
        capabilities
    }

    async fn provision(&self, spec: &Spec) -> Result<Arc<dyn Sandbox>, Error> {
        if let Some(pids) = spec.hardening.pids.value()
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(pids, "a Pod cannot bound its processes: set the kubelet's podPidsLimit");
        }
        Ok(self.find_or_make(spec, Look::Yes).await?)
    }

    async fn attach(&self, session: &SessionId) -> Result<Arc<dyn Sandbox>, Error> {
        Ok(self.find(session).await?)
    }

    async fn owned(&self) -> Result<OwnedStream, Error> {
        Ok(listing::owned(&self.place))
    }

    async fn reap(&self, session: &SessionId) -> Result<(), Error> {
        self.remove_all(session).await
    }

    async fn export(&self, session: &SessionId, root: &SandboxPath) -> Result<ExportStream, Error> {
        self.find(session).await?.guest.export(root).await
    }
}
