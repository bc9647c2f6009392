//! The token of a gate does not outlive its sandbox: it is taken back first, and what cannot be taken back keeps its Pod.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake_apiserver::{Fate, Step};
use sandbox::{Effect, Error, ErrorKind, GateMinter, GateRevoker, GateToken, Provider, SessionId, Spec};
use sandbox_k8s::{K8sConfig, K8sProvider};
use tokio::sync::{Semaphore, watch};

use crate::bed::{Bed, NAMESPACE, fails, gated, name, wedged, within, works};

/// A control plane that fails on cue.
#[derive(Debug)]
struct Plane {
    log: Mutex<Vec<&'static str>>,
    persist_fails: AtomicBool,
    revoke_fails: AtomicBool,
    /// Counts those who want to revoke; they go on once this is true.
    revoking: Semaphore,
    open: watch::Sender<bool>,
}

impl Plane {
    fn new() -> Arc<Self> {
        let (log, revoking, open) = (Mutex::default(), Semaphore::new(0), watch::Sender::new(true));
        Arc::new(Self { log, persist_fails: false.into(), revoke_fails: false.into(), revoking, open })
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    fn answer(fails: &AtomicBool) -> Result<(), Error> {
        match fails.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable).because("the plane is down")),
            false => Ok(()),
        }
    }

    fn gates(self: &Arc<Self>, provider: K8sProvider) -> K8sProvider {
        provider.with_gates(Arc::<Self>::clone(self), Arc::<Self>::clone(self))
    }
}

#[async_trait::async_trait]
impl GateMinter for Plane {
    fn generate(&self) -> Result<GateToken, Error> {
        self.log.lock().unwrap().push("generate");
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, _: &GateToken) -> Result<(), Error> {
        self.log.lock().unwrap().push("persist");
        Self::answer(&self.persist_fails)
    }
}

#[async_trait::async_trait]
impl GateRevoker for Plane {
    async fn revoke(&self, _: &SessionId) -> Result<(), Error> {
        self.log.lock().unwrap().push("revoke");
        self.revoking.add_permits(1);
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        Self::answer(&self.revoke_fails)
    }
}

/// A provider with a plane, and a sandbox of it that has a gate and works.
async fn gated_sandbox(bed: &Bed) -> (Arc<Plane>, K8sProvider, Spec, Arc<dyn sandbox::Sandbox>) {
    let plane = Plane::new();
    let provider = plane.gates(bed.provider());
    let spec = bed.gated_spec();
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    assert_eq!(plane.asked(), ["generate", "persist"]);
    (plane, provider, spec, sandbox)
}

fn without_gate(spec: &Spec) -> Spec {
    let mut plain = spec.clone();
    plain.gate = None;
    plain
}

#[tokio::test]
async fn of_a_dead_one_that_is_replaced_without_a_gate() {
    let bed = Bed::new().await;
    let (plane, provider, spec, _sandbox) = gated_sandbox(&bed).await;
    bed.set_fate(&spec.session, Fate::evicted()).await;
    let (plain, uid) = (without_gate(&spec), bed.uid(&spec.session));
    plane.revoke_fails.store(true, Ordering::SeqCst);
    let error = fails(within("provision", provider.provision(&plain)).await, ErrorKind::Unavailable);
    assert_eq!(error.reason(), Some("the plane is down"));
    assert_eq!((bed.uid(&spec.session), bed.deletes()), (uid, 0), "it is first of all");
    plane.revoke_fails.store(false, Ordering::SeqCst);
    works(&within("provision", provider.provision(&plain)).await.unwrap()).await;
    assert_eq!(plane.asked(), ["revoke", "revoke"]);
}

#[tokio::test]
async fn of_one_that_is_being_removed_and_is_replaced_without_a_gate() {
    let bed = Bed::new().await;
    let (plane, provider, spec, _sandbox) = gated_sandbox(&bed).await;
    bed.api.hold(Step::Terminate);
    // Somebody removes it by hand.
    bed.set_fate(&spec.session, Fate::NodeLost).await;
    let plain = without_gate(&spec);
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&plain)), async {
        drop(within("revoke", plane.revoking.acquire()).await.unwrap());
        bed.api.remove_pod(NAMESPACE, &name(&spec.session)).await;
    });
    works(&outcome.unwrap()).await;
    assert_eq!(plane.asked(), ["revoke"]);
}

#[tokio::test]
async fn of_a_dead_one_whose_successor_has_a_gate_goes_when_the_next_is_recorded() {
    let bed = Bed::new().await;
    let (plane, provider, spec, _sandbox) = gated_sandbox(&bed).await;
    bed.set_fate(&spec.session, Fate::evicted()).await;
    works(&within("provision", provider.provision(&spec)).await.unwrap()).await;
    // Another process can have made the successor: to revoke now would shut its gate.
    assert_eq!(plane.asked(), ["generate", "persist"]);
}

#[tokio::test]
async fn of_one_that_is_destroyed_goes_with_a_reap() {
    let bed = Bed::new().await;
    let (plane, provider, spec, sandbox) = gated_sandbox(&bed).await;
    within("destroy", sandbox.destroy()).await.unwrap();
    assert_eq!((plane.asked(), bed.uid(&spec.session)), (vec![], None));
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert_eq!(plane.asked(), ["revoke"]);
}

#[tokio::test]
async fn of_one_that_never_starts() {
    let bed = Bed::new().await;
    let plane = Plane::new();
    let (provider, spec) = (plane.gates(bed.provider()), bed.gated_spec());
    bed.api.hold(Step::Start);
    let fails_to_start = async || {
        let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
            bed.until_other(&spec.session, None).await;
            bed.set_fate(&spec.session, Fate::image_pull_back_off("gate")).await;
        });
        fails(outcome, ErrorKind::ImagePull)
    };
    assert_eq!(fails_to_start().await.effect(), Effect::None);
    assert_eq!((plane.asked(), bed.uid(&spec.session)), (vec!["generate", "persist", "revoke"], None));

    plane.revoke_fails.store(true, Ordering::SeqCst);
    assert_eq!(fails_to_start().await.effect(), Effect::Unknown);
    assert!(bed.uid(&spec.session).is_some(), "who removes it later takes the token back");
    plane.revoke_fails.store(false, Ordering::SeqCst);
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert_eq!(plane.asked(), ["generate", "persist", "revoke", "revoke"]);
}

#[tokio::test]
async fn of_one_that_gets_ready_while_its_token_is_taken_back() {
    let bed = Bed::new().await;
    let plane = Plane::new();
    plane.open.send_replace(false);
    bed.api.hold(Step::Ready);
    let provider =
        plane.gates(bed.provider_with(|config: &mut K8sConfig| config.ready_timeout = Duration::from_secs(2)));
    let spec = bed.gated_spec();
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        drop(within("revoke", plane.revoking.acquire()).await.unwrap());
        bed.api.release(Step::Ready);
        bed.api.until_ready(NAMESPACE, &name(&spec.session)).await;
        plane.open.send_replace(true);
    });
    assert_eq!(fails(outcome, ErrorKind::DeadlineExceeded).effect(), Effect::None);
    assert_eq!(bed.uid(&spec.session), None, "its gate lets nobody through any more");
}

#[tokio::test]
async fn that_could_not_be_recorded_keeps_no_pod() {
    for revoke_fails in [false, true] {
        let bed = Bed::new().await;
        let plane = Plane::new();
        plane.persist_fails.store(true, Ordering::SeqCst);
        plane.revoke_fails.store(revoke_fails, Ordering::SeqCst);
        let (provider, spec) = (plane.gates(bed.provider()), bed.gated_spec());
        let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
        // It may be recorded all the same.
        assert_eq!(error.effect(), if revoke_fails { Effect::Unknown } else { Effect::None });
        assert_eq!((plane.asked(), bed.uid(&spec.session)), (vec!["generate", "persist", "revoke"], None));
    }
}

#[tokio::test]
async fn of_a_gate_that_ends_again_and_again() {
    let bed = Bed::new().await;
    let (plane, provider, spec, _sandbox) = gated_sandbox(&bed).await;
    bed.set_fate(&spec.session, wedged()).await;
    fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
    assert_eq!((plane.asked(), bed.uid(&spec.session)), (vec!["revoke"], None));
}

#[tokio::test]
async fn without_a_gate_nobody_is_asked() {
    let bed = Bed::new().await;
    let plane = Plane::new();
    let (provider, spec) = (plane.gates(bed.provider()), bed.spec());
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    within("destroy", sandbox.destroy()).await.unwrap();
    works(&within("provision", provider.provision(&spec)).await.unwrap()).await;
    works(&within("provision", provider.provision(&gated(spec.clone()))).await.unwrap()).await;
    assert_eq!(plane.asked(), ["generate", "persist"]);
}
