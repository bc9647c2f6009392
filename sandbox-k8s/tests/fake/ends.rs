//! Removals: one after another, by force where they must be, and never told before they are.

use std::time::{Duration, Instant};

use fake_apiserver::{Fate, Gate, On, Rule, Step, Verb};
use sandbox::{Effect, ErrorKind, Provider};
use serde_json::{Value, json};

use crate::bed::{Bed, NAMESPACE, fails, name, with_gates, within, works};

#[tokio::test]
async fn a_sandbox_that_could_not_be_removed_goes_on() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.spec(), bed.provider());
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    bed.api.forbid("delete", "pods");
    let error = within("reap", provider.reap(&spec.session)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Forbidden, Effect::Unknown));
    works(&sandbox).await;
    bed.api.allow("delete", "pods");
    within("reap", provider.reap(&spec.session)).await.unwrap();
    fails(crate::bed::exec(&sandbox, "true").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_removal_that_was_begun_may_have_happened() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    // Each request may take its time, and the removal as a whole does not have it.
    let provider = bed.provider_with(|config| {
        config.stop_grace = Duration::ZERO;
        config.stop_timeout = Duration::from_secs(5);
    });
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    // It says that it will, and does not.
    bed.api.rule(Rule::when(On::pods(Verb::Delete)).answer(200));
    for (what, outcome) in [
        ("reap", within("reap", provider.reap(&spec.session)).await),
        ("destroy", within("destroy", sandbox.destroy()).await),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::DeadlineExceeded, Effect::Unknown), "{what}");
    }
    works(&sandbox).await;
}

fn graces(bed: &Bed) -> Vec<u64> {
    let requests = bed.api.requests().into_iter().filter(|request| request.is(&On::pods(Verb::Delete)));
    let grace = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["gracePeriodSeconds"].as_u64().unwrap();
    requests.map(|request| grace(&request.body)).collect()
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_not_waited_for() {
    // Three seconds before the end, or ten after the grace: what comes first.
    let each = [(7, 4), (40, 11)].map(|(stop_timeout, forced)| async move {
        let bed = Bed::new().await;
        let spec = bed.spec();
        let provider = bed.provider_with(|config| {
            config.stop_grace = Duration::from_secs(1);
            config.stop_timeout = Duration::from_secs(stop_timeout);
        });
        drop(within("provision", provider.provision(&spec)).await.unwrap());
        bed.set_fate(&spec.session, Fate::Unknown).await;
        let begun = Instant::now();
        within("reap", provider.reap(&spec.session)).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(forced), "{:?}", begun.elapsed());
        assert_eq!((graces(&bed), bed.uid(&spec.session)), (vec![1, 0], None));
    });
    futures::future::join_all(each).await;
}

#[tokio::test]
async fn an_api_server_that_is_away_for_longer_than_a_grace_does_not_end_a_removal() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.stop_grace = Duration::from_secs(1));
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    bed.set_fate(&spec.session, Fate::Unknown).await;
    let (reap, ()) = tokio::join!(within("reap", provider.reap(&spec.session)), async {
        bed.api.until_requests(&On::pods(Verb::Delete), 1).await;
        bed.api.set_down(true);
        // Beyond the moment in which it would be removed by force, and before the end of the call.
        tokio::time::sleep(Duration::from_secs(13)).await;
        bed.api.set_down(false);
    });
    reap.unwrap();
    assert_eq!((graces(&bed), bed.uid(&spec.session)), (vec![1, 0], None));
}

#[tokio::test]
async fn calls_that_change_one_session_follow_each_other() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let (spec, provider) = (bed.spec(), bed.provider());
    // Clones are the same provider, also those that learn of gates later.
    let clone = with_gates(provider.clone());
    let (one, other) = (provider.clone(), spec.clone());
    let provision = tokio::spawn(async move { one.provision(&other).await });
    bed.until_other(&spec.session, None).await;
    let short = Duration::from_millis(300);
    assert!(tokio::time::timeout(short, clone.reap(&spec.session)).await.is_err(), "it waits");
    let mut again = Box::pin(clone.provision(&spec));
    assert!(tokio::time::timeout(short, &mut again).await.is_err(), "so does this");
    assert_eq!((bed.creates(), bed.api.count(&On::pods(Verb::List)), bed.deletes()), (1, 0, 0));
    bed.api.release(Step::Start);
    let first = within("provision", provision).await.unwrap().unwrap();
    works(&within("the second", again).await.unwrap()).await;
    within("reap", clone.reap(&spec.session)).await.unwrap();
    assert_eq!(bed.creates(), 1);
    fails(crate::bed::exec(&first, "true").await, ErrorKind::NotFound);
}

#[tokio::test]
async fn who_waits_too_long_for_its_turn_has_changed_nothing() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider_with(|config| {
        config.stop_grace = Duration::ZERO;
        config.stop_timeout = Duration::from_secs(5);
    });
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    bed.set_fate(&spec.session, Fate::NotReady).await;
    let (one, other) = (provider.clone(), spec.clone());
    let waits = tokio::spawn(async move { one.provision(&other).await.map(drop) });
    let gets = bed.api.count(&On::pods(Verb::Get));
    bed.api.until_requests(&On::pods(Verb::Get), gets + 1).await;
    let (reap, destroy) =
        tokio::join!(within("reap", provider.reap(&spec.session)), within("destroy", sandbox.destroy()));
    for error in [reap.unwrap_err(), destroy.unwrap_err()] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Busy, Effect::None), "{error:?}");
        assert!(error.reason().is_some());
    }
    assert_eq!(bed.deletes(), 0);
    waits.abort();
}

/// More of a session than one Pod.
fn add_pods(bed: &Bed, session: &sandbox::SessionId, count: usize) {
    for at in 0..count {
        let labels = json!({"sandbox-k8s/session": session.as_str(), "sandbox-k8s/deployment": "default"});
        let spec = json!({"containers": [{"name": "sandbox", "image": "any"}]});
        let pod = json!({"metadata": {"name": format!("odd-{at}"), "labels": labels}, "spec": spec});
        bed.api.add_pod(NAMESPACE, &pod).unwrap();
    }
}

#[tokio::test]
async fn a_reap_removes_all_at_once_and_tells_all_that_it_could_not() {
    let bed = Bed::new().await;
    let (spec, provider) = (bed.spec(), bed.provider());
    add_pods(&bed, &spec.session, 3);
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::pods(Verb::Delete)).times(3).hold(&gate).message("no").answer(403));
    let (outcome, ()) = tokio::join!(within("reap", provider.reap(&spec.session)), async {
        gate.reached(3).await;
        gate.open();
    });
    let error = fails(outcome, ErrorKind::Forbidden);
    assert!(error.reason().unwrap().starts_with("3 Pods could not be removed"), "{error:?}");
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert!(bed.api.pod_names(NAMESPACE).is_empty());
}

#[tokio::test]
async fn a_sandbox_that_ends_is_waited_for_fifteen_seconds_beyond_its_grace() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    bed.set_fate(&spec.session, Fate::NodeLost).await;
    // It says 30 by itself.
    bed.api.edit_pod(NAMESPACE, &name(&spec.session), |pod| pod["metadata"]["deletionGracePeriodSeconds"] = 0.into());
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(50));
    let begun = Instant::now();
    fails(within("provision", provider.provision(&spec)).await, ErrorKind::DeadlineExceeded);
    let took = begun.elapsed().as_secs();
    assert!((15..40).contains(&took), "{took}");
}
