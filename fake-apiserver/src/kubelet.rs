//! A little kubelet and scheduler: takes pods from created to ready, and away.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::time::Instant;

use crate::fate;
use crate::shared::Shared;
use crate::store::Key;

/// The one node.
pub(crate) const NODE: &str = "fake-node";

/// A step in the life of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// The scheduler gives it a node.
    Schedule = 0,
    /// Its init containers end, its containers start: phase Running.
    Start = 1,
    /// Its containers are ready.
    Ready = 2,
    /// Asked to go, its processes are killed and it goes.
    Terminate = 3,
}

#[derive(Debug, Default)]
struct State {
    /// Steps that are held, for all pods or for one.
    held: HashSet<(Step, Option<(String, String)>)>,
    /// Pods that a test leads by hand, by uid. Asked to go, they go all the same.
    by_hand: HashSet<String>,
    /// Pods whose node is not heard from, by uid. They don't go.
    lost: HashSet<String>,
    /// Since when a pod, by uid, is before a step.
    since: HashMap<String, (Step, Instant)>,
}

#[derive(Debug, Default)]
pub(crate) struct Kubelet(Mutex<State>);

impl Kubelet {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold(&self, step: Step, pod: Option<(String, String)>) {
        self.state().held.insert((step, pod));
    }

    pub(crate) fn release(&self, step: Step, pod: Option<(String, String)>) {
        match pod {
            Some(pod) => {
                self.state().held.remove(&(step, Some(pod)));
            }
            None => self.state().held.retain(|(held, _)| *held != step),
        }
    }

    pub(crate) fn leave(&self, uid: &str) {
        self.state().by_hand.insert(uid.to_owned());
    }

    /// Whether the node of a pod can be heard from.
    pub(crate) fn lose(&self, uid: &str, lost: bool) {
        let mut state = self.state();
        match lost {
            true => state.lost.insert(uid.to_owned()),
            false => state.lost.remove(uid),
        };
    }

    pub(crate) fn take_back(&self, uid: &str) {
        let mut state = self.state();
        state.by_hand.remove(uid);
        state.lost.remove(uid);
    }

    fn forget(&self, uid: &str) {
        self.take_back(uid);
        self.state().since.remove(uid);
    }

    /// The step that is due for a pod, or when one will be.
    fn due(&self, key: &Key, pod: &Value, steps: &[std::time::Duration; 4], now: Instant) -> Due {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or("");
        let mut state = self.state();
        let Some(step) = next_step(pod) else { return Due::Never };
        let left_alone = match step {
            Step::Terminate => state.lost.contains(uid),
            _ => state.by_hand.contains(uid),
        };
        if left_alone {
            return Due::Never;
        }
        let this = Some((key.namespace.clone(), key.name.clone()));
        if state.held.contains(&(step, None)) || state.held.contains(&(step, this)) {
            return Due::Never;
        }
        let since = match state.since.get(uid) {
            Some((before, since)) if *before == step => *since,
            _ => {
                state.since.insert(uid.to_owned(), (step, now));
                now
            }
        };
        let at = since + steps[step as usize];
        if at <= now { Due::Now(step) } else { Due::At(at) }
    }
}

enum Due {
    Now(Step),
    At(Instant),
    Never,
}

fn next_step(pod: &Value) -> Option<Step> {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Some(Step::Terminate);
    }
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    match pod["status"]["phase"].as_str() {
        Some("Failed" | "Succeeded" | "Unknown") => None,
        Some("Running") => {
            let conditions = pod["status"]["conditions"].as_array();
            (!conditions.is_some_and(|list| list.iter().any(ready))).then_some(Step::Ready)
        }
        _ if pod["spec"]["nodeName"].is_string() => Some(Step::Start),
        _ => Some(Step::Schedule),
    }
}

/// Leads all pods until the task is aborted.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut changed = shared.changed.subscribe();
    let mut watched = Watched::default();
    loop {
        changed.mark_unchanged();
        watched.look(&shared);
        let (busy, next) = tick(&shared, &watched.pods).await;
        if busy {
            // One step at a time, so that watches can see each.
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            changed = changed.changed() => if changed.is_err() { return },
            () = sleep_until(next) => {}
        }
    }
}

async fn sleep_until(next: Option<Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// The pods that have a step before them. Of ten thousand that are settled, none is looked at twice.
#[derive(Debug, Default)]
struct Watched {
    seen: u64,
    pods: BTreeSet<Key>,
}

impl Watched {
    fn look(&mut self, shared: &Arc<Shared>) {
        let (revision, changed, missed) = shared.store(|store| {
            let changes = store.changes_after(self.seen, usize::MAX);
            let missed = changes.is_none();
            let keys: Vec<Key> = match changes {
                Some(changes) => changes.into_iter().map(|change| change.key).collect(),
                None => store.keys("pods"),
            };
            (store.revision(), keys, missed)
        });
        self.seen = revision;
        if missed {
            self.pods.clear();
        }
        for key in changed.into_iter().filter(|key| key.resource == "pods") {
            match shared.store(|store| store.get(&key).is_some_and(|pod| next_step(pod).is_some())) {
                true => self.pods.insert(key),
                false => self.pods.remove(&key),
            };
        }
    }
}

async fn tick(shared: &Arc<Shared>, pods: &BTreeSet<Key>) -> (bool, Option<Instant>) {
    let now = Instant::now();
    let (mut busy, mut next) = (false, None::<Instant>);
    for key in pods {
        let Some(pod) = shared.store(|store| store.get(key).cloned()) else { continue };
        match shared.kubelet.due(key, &pod, &shared.options.steps, now) {
            Due::Never => {}
            Due::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
            Due::Now(Step::Terminate) => {
                let uid = pod["metadata"]["uid"].as_str().unwrap_or("").to_owned();
                end(shared, &uid).await;
                shared.store(|store| {
                    let same = |pod: &&Arc<Value>| pod["metadata"]["uid"] == uid.as_str();
                    if store.get(key).filter(same).is_some() {
                        store.remove(key);
                    }
                });
                busy = true;
            }
            Due::Now(step) => {
                shared.store(|store| store.edit(key, |pod| advance(pod, step)));
                busy = true;
            }
        }
    }
    (busy, next)
}

fn advance(pod: &mut Value, step: Step) {
    match step {
        Step::Schedule => {
            fate::scheduled(pod);
            pod["status"]["phase"] = "Pending".into();
            fate::containers(pod, &fate::waiting("ContainerCreating", ""), false);
        }
        Step::Start => {
            fate::running(pod);
            fate::containers(pod, &fate::started(), false);
        }
        Step::Ready => {
            fate::containers(pod, &fate::started(), true);
            fate::ready(pod);
        }
        Step::Terminate => {}
    }
}

/// Kills what runs in a pod and forgets it.
pub(crate) async fn end(shared: &Arc<Shared>, uid: &str) {
    shared.kubelet.forget(uid);
    end_processes(shared, uid).await;
}

/// Kills what runs in a pod.
pub(crate) async fn end_processes(shared: &Arc<Shared>, uid: &str) {
    if let Some(place) = shared.places.take(uid) {
        // Looking through /proc blocks for a moment.
        let _ = tokio::task::spawn_blocking(move || drop(place)).await;
    }
}
