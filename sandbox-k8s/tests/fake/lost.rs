//! What is lost with a sandbox is told: by the error of the call that removed it, and by the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fake_apiserver::{Fate, On, Rule, Step, Verb};
use kube::api::{Api, DeleteParams};
use sandbox::{Death, Effect, Error, ErrorKind, GateMinter, GateToken, Provider, SessionId, Spec};
use sandbox_k8s::K8sProvider;
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, Tokens, fails, gated, name, wedged, with_gates, within, works};

/// Provisions a sandbox that works, and leaves it.
async fn ready(bed: &Bed, provider: &K8sProvider, spec: &Spec) -> String {
    works(&within("provision", provider.provision(spec)).await.unwrap()).await;
    bed.uid(&spec.session).unwrap()
}

/// A provision fails, and says that what was there is lost.
fn tells(outcome: Result<Arc<dyn sandbox::Sandbox>, Error>, kind: ErrorKind, death: Death) {
    let error = fails(outcome, kind);
    assert_eq!((error.death(), error.effect()), (Some(death), Effect::Partial), "{error:?}");
    assert!(error.reason().unwrap().contains("earlier sandbox"), "{error:?}");
}

/// The next provision answers a sandbox that says why, from everywhere; after a reap that is over.
async fn next_says(bed: &Bed, provider: &K8sProvider, spec: &Spec, death: Death) {
    let sandbox = within("provision", provider.provision(spec)).await.unwrap();
    works(&sandbox).await;
    let later = with_gates(bed.provider()).attach(&spec.session).await.unwrap();
    for handle in [&sandbox, &later] {
        assert_eq!(handle.recreated().map(|why| why.reason), Some(death));
    }
    within("reap", provider.reap(&spec.session)).await.unwrap();
    let fresh = within("provision", provider.provision(spec)).await.unwrap();
    assert_eq!(fresh.recreated(), None);
}

/// While `provision` runs, the Pod that comes after `uid` meets that fate before it starts.
async fn successor_meets(bed: &Bed, session: &SessionId, uid: &str, fate: Fate) {
    bed.until_other(session, Some(uid)).await;
    bed.set_fate(session, fate).await;
}

#[tokio::test]
async fn a_dead_sandbox_whose_successor_does_not_start() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.spec(), bed.provider());
    let uid = ready(&bed, &provider, &spec).await;
    bed.set_fate(&spec.session, Fate::evicted()).await;
    bed.api.hold(Step::Start);
    let pull = Fate::image_pull_back_off("sandbox");
    let (outcome, ()) =
        tokio::join!(within("provision", provider.provision(&spec)), successor_meets(&bed, &spec.session, &uid, pull),);
    tells(outcome, ErrorKind::ImagePull, Death::Evicted);
    assert_eq!(bed.uid(&spec.session), None);
    bed.api.release(Step::Start);
    next_says(&bed, &provider, &spec, Death::Evicted).await;
}

#[tokio::test]
async fn a_dead_sandbox_whose_successor_is_refused() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.spec(), bed.provider());
    ready(&bed, &provider, &spec).await;
    bed.set_fate(&spec.session, Fate::OomKilled).await;
    let rule = bed.api.rule(Rule::when(On::pods(Verb::Create)).answer(403));
    for first in [true, false] {
        let outcome = within("provision", provider.provision(&spec)).await;
        match first {
            true => tells(outcome, ErrorKind::Forbidden, Death::OomKilled),
            // This one has removed nothing.
            false => assert_eq!(fails(outcome, ErrorKind::Forbidden).effect(), Effect::None),
        }
    }
    rule.remove();
    // A clone that learns of gates later remembers it as well.
    next_says(&bed, &with_gates(provider), &spec, Death::OomKilled).await;
}

/// Can be told to record nothing.
#[derive(Debug, Default)]
struct Moody(AtomicBool);

#[async_trait::async_trait]
impl GateMinter for Moody {
    fn generate(&self) -> Result<GateToken, Error> {
        GateToken::generate()
    }

    async fn persist(&self, _: &SessionId, _: &GateToken) -> Result<(), Error> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable).because("not now")),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn a_sandbox_that_goes_for_a_gate_which_cannot_be_had() {
    let bed = Bed::new().await;
    let minter = Arc::new(Moody::default());
    let provider = bed.provider().with_gates(Arc::<Moody>::clone(&minter), Arc::new(Tokens));

    let plain = bed.spec();
    let uid = ready(&bed, &provider, &plain).await;
    bed.api.hold(Step::Start);
    let spec = gated(plain);
    let (outcome, ()) = tokio::join!(
        within("provision", provider.provision(&spec)),
        successor_meets(&bed, &spec.session, &uid, Fate::image_pull_back_off("gate")),
    );
    tells(outcome, ErrorKind::ImagePull, Death::Replaced);
    bed.api.release(Step::Start);
    next_says(&bed, &provider, &spec, Death::Replaced).await;

    let plain = bed.spec();
    ready(&bed, &provider, &plain).await;
    let spec = gated(plain);
    minter.0.store(true, Ordering::SeqCst);
    tells(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable, Death::Replaced);
    // Also though it was ready: its token is recorded nowhere.
    assert_eq!(bed.uid(&spec.session), None);
    minter.0.store(false, Ordering::SeqCst);
    next_says(&bed, &provider, &spec, Death::Replaced).await;
}

#[tokio::test]
async fn a_sandbox_whose_gate_is_wedged_after_it_ran() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.gated_spec(), with_gates(bed.provider()));
    ready(&bed, &provider, &spec).await;
    bed.set_fate(&spec.session, wedged()).await;
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
    assert_eq!((error.death(), error.effect()), (Some(Death::Deleted), Effect::Partial), "{error:?}");
    assert_eq!(bed.uid(&spec.session), None);
    next_says(&bed, &provider, &spec, Death::Deleted).await;
}

#[tokio::test]
async fn a_gate_that_was_wedged_from_the_beginning_costs_nothing() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.gated_spec(), with_gates(bed.provider()));
    bed.api.hold(Step::Start);
    let (maker, of) = (with_gates(bed.provider()), spec.clone());
    let mut making = Box::pin(async move { maker.provision(&of).await });
    tokio::select! {
        outcome = &mut making => panic!("it does not start: {outcome:?}"),
        () = bed.until_other(&spec.session, None) => {}
    }
    // As of a process that is killed: nobody cleans up.
    std::mem::forget(making);
    bed.set_fate(&spec.session, wedged()).await;
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
    assert_eq!((error.death(), error.effect()), (None, Effect::None), "{error:?}");
    bed.api.release(Step::Start);
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    assert_eq!(sandbox.recreated(), None);
}

#[tokio::test]
async fn a_sandbox_that_never_ran_hands_on_what_it_was_to_tell() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let uid = ready(&bed, &bed.provider(), &spec).await;
    bed.set_fate(&spec.session, Fate::evicted()).await;
    bed.api.hold(Step::Start);
    // Whoever replaces it goes away.
    let maker = bed.provider();
    tokio::select! {
        outcome = maker.provision(&spec) => panic!("it does not start: {outcome:?}"),
        () = bed.until_other(&spec.session, Some(&uid)) => {}
    }
    bed.api.edit_pod(NAMESPACE, &name(&spec.session), |pod| {
        pod["status"]["phase"] = "Failed".into();
        let state = json!({"waiting": {"reason": "ContainerCreating"}});
        pod["status"]["containerStatuses"] = json!([{
            "name": "sandbox", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state
        }]);
    });
    bed.api.release(Step::Start);
    next_says(&bed, &bed.provider(), &spec, Death::Evicted).await;
}

/// A provision finds a sandbox that is being removed; what the next one says of it.
async fn found_ending(disrupted: bool) -> Option<Death> {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let pod = name(&spec.session);
    ready(&bed, &bed.provider(), &spec).await;
    bed.api.hold(Step::Terminate);
    if disrupted {
        bed.api.edit_pod(NAMESPACE, &pod, |pod| {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"});
            pod["status"]["conditions"].as_array_mut().unwrap().push(condition);
        });
    }
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(bed.api.client(), NAMESPACE);
    pods.delete(&pod, &DeleteParams::default().grace_period(10)).await.unwrap();
    let provider = bed.provider();
    let gets = bed.api.count(&On::pods(Verb::Get));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_requests(&On::pods(Verb::Get), gets + 2).await;
        bed.api.release(Step::Terminate);
    });
    outcome.unwrap().recreated().map(|why| why.reason)
}

#[tokio::test]
async fn a_sandbox_that_is_drained_while_somebody_provisions_is_told() {
    assert_eq!(found_ending(true).await, Some(Death::Evicted));
    assert_eq!(found_ending(false).await, None, "somebody wanted it gone");
}
