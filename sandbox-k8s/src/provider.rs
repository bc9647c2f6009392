//! The provider.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use sandbox::{
    Capabilities, Checked, Death, Error, ErrorKind, ExportStream, GateMinter, GateRevoker, OwnedStream, Provider,
    Sandbox, SandboxPath, SessionId, Spec,
};
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::Instant;

use crate::api::Pods;
use crate::config::{K8sConfig, check_namespace};
use crate::error::uncertain;
use crate::handle::Live;
use crate::listing;
use crate::names::{Keys, pod_name};
use crate::stamp;
use crate::state::{State, death, state};
use crate::wait;

/// How many Pods are removed at once.
const REMOVALS: usize = 8;

/// Sandboxes on a Kubernetes cluster: one Pod per session, all in one namespace.
///
/// It needs a tokio runtime with input, output and time enabled. Its sandboxes survive it, and the process: any other provider of
/// the same cluster, namespace and deployment finds them.
///
/// Cloning it is cheap. Calls that change one session follow each other within one provider; between processes the caller sees to
/// it that no provision meets a reap.
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
        Ok(Self { checked: Checked::new(K8s::at(Place { pods, config, opening, gates: None })) })
    }

    /// Lets sandboxes have a gate: `minter` makes their tokens valid, `revoker` takes them back before a sandbox is reaped, or is
    /// replaced by one without a gate. Without this a spec with a gate is refused.
    ///
    /// A gate's token stands in the Pod's specification: whoever may read Pods in the namespace reads it.
    #[must_use]
    pub fn with_gates(self, minter: Arc<dyn GateMinter>, revoker: Arc<dyn GateRevoker>) -> Self {
        let Place { pods, config, opening, .. } = &**self.place();
        let place = Place {
            pods: pods.clone(),
            config: config.clone(),
            opening: Arc::clone(opening),
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
    pub(crate) gates: Option<Gates>,
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
    /// Sessions that somebody is changing.
    busy: Mutex<HashMap<SessionId, Weak<tokio::sync::Mutex<()>>>>,
    /// Images that were looked at.
    pub(crate) images: Mutex<HashSet<String>>,
}

impl fmt::Debug for K8s {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("K8s")
            .field("namespace", &self.place.pods.namespace)
            .field("deployment", &self.place.config.deployment)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl K8s {
    fn at(place: Place) -> Self {
        Self { place: Arc::new(place), live: Mutex::default(), busy: Mutex::default(), images: Mutex::default() }
    }

    /// Takes the tokens of a session's gates back, where there can be any.
    pub(crate) async fn revoke(&self, session: &SessionId, deadline: Instant) -> Result<(), Error> {
        let Some(gates) = &self.place.gates else { return Ok(()) };
        let late = |_| Err(Error::new(ErrorKind::DeadlineExceeded).because("the gate's token was not revoked in time"));
        tokio::time::timeout_at(deadline, gates.revoker.revoke(session)).await.unwrap_or_else(late)
    }

    /// Waits for this session's turn.
    pub(crate) async fn turn(&self, session: &SessionId, deadline: Instant) -> Result<OwnedMutexGuard<()>, Error> {
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
        tokio::time::timeout_at(deadline, mutex.lock_owned()).await.map_err(|_| Error::new(ErrorKind::Busy))
    }

    /// The handle of a Pod.
    pub(crate) fn handle(&self, session: &SessionId, pod: &Pod) -> Result<Arc<Live>, Error> {
        let stamp = stamp::read(pod, &self.place.config)?;
        let mut live = lock(&self.live);
        live.retain(|_, l| l.strong_count() > 0);
        if let Some(known) = live.get(session).and_then(Weak::upgrade)
            && known.uid == stamp.uid
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
        stamp::check_ours(&pod, &self.place.config, session)?;
        match state(&pod) {
            State::Ready => self.handle(session, &pod),
            State::Starting(text) | State::Stuck(_, text) => Err(absent().because(format!("it is not ready: {text}"))),
            State::Dying => Err(absent().with_death(Death::Ended)),
            State::Dead(why, _) => Err(absent().with_death(why.reason).because(why.detail)),
            State::Ending => {
                let why = death(&pod).map_or(Death::Deleted, |(why, _)| why);
                Err(absent().with_death(why).because("it is being removed"))
            }
        }
    }

    /// Removes what carries the labels of the session.
    async fn remove_all(&self, session: &SessionId) -> Result<(), Error> {
        let place = &self.place;
        let deadline = Instant::now() + place.config.stop_timeout;
        let busy = |_| Error::new(ErrorKind::DeadlineExceeded).because("another call is changing this session");
        let _turn = self.turn(session, deadline).await.map_err(busy)?;
        // First, also where nothing is owned: it can be repeated, and a failed removal is, with this before it.
        self.revoke(session, deadline).await?;
        let selector = Keys::of(&place.config).selector(&place.config.deployment, Some(session));
        let mut from: Option<String> = None;
        let mut failed = None;
        loop {
            let page = place.pods.page(&selector, None, None, from.as_deref(), deadline).await.map_err(uncertain)?;
            // What is gone by then is not on the next first page.
            let Some(page) = page else {
                from = None;
                continue;
            };
            let found = page.items.into_iter().filter_map(|entry| Some((entry.metadata.name?, entry.metadata.uid?)));
            let removals: Vec<_> = found
                .map(|(name, uid)| {
                    let place = Arc::clone(place);
                    async move { wait::remove(&place.pods, &place.config, &name, &uid, true, deadline).await }
                })
                .collect();
            let ended: Vec<_> = stream::iter(removals).buffer_unordered(REMOVALS).collect().await;
            failed = failed.or(ended.into_iter().find_map(Result::err));
            from = page.metadata.continue_.filter(|token| !token.is_empty());
            if from.is_none() {
                break;
            }
        }
        if let Some(live) = lock(&self.live).remove(session).and_then(|live| live.upgrade()) {
            live.close(Death::Deleted);
        }
        failed.map_or(Ok(()), Err)
    }
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
        Ok(self.find_or_make(spec).await?)
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
