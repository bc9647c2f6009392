//! What a provision that fails removes, and what it leaves.

use std::time::Duration;

use fake_apiserver::{ExecFault, Fate, Gate, On, Rule, Step, Verb};
use sandbox::{Death, Effect, ErrorKind, Hardening, Provider, Spec};

use crate::bed::{Bed, NAMESPACE, fails, name, wedged, with_gates, within, works};

/// The Pod is there, untouched, and the next provision answers it.
async fn it_stays(bed: &Bed, spec: &Spec) {
    let uid = bed.uid(&spec.session);
    assert!(uid.is_some());
    let sandbox = within("provision", bed.provider().provision(spec)).await.unwrap();
    works(&sandbox).await;
    assert_eq!((bed.uid(&spec.session), bed.creates(), sandbox.recreated()), (uid, 1, None));
}

#[tokio::test]
async fn an_api_server_that_is_down_says_nothing_about_the_pod() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let spec = bed.spec();
    let provider = bed.provider_with(|config| {
        config.ready_timeout = Duration::from_secs(3);
        config.stop_timeout = Duration::from_secs(8);
    });
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.until_other(&spec.session, None).await;
        bed.api.set_down(true);
    });
    let error = outcome.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{error:?}");
    assert_eq!(error.effect(), Effect::Unknown);
    bed.api.set_down(false);
    bed.api.release(Step::Start);
    it_stays(&bed, &spec).await;
    assert_eq!(bed.deletes(), 0);
}

#[tokio::test]
async fn shells_that_are_refused_for_now_are_asked_for_until_the_deadline() {
    let bed = Bed::new().await;
    let rule = bed.api.rule(Rule::when(On::exec()).answer(503));
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
    assert_eq!((error.effect(), bed.deletes()), (Effect::Unknown, 0), "it is ready: others may be at work in it");
    assert!(rule.acted() > 5, "{}", rule.acted());
    rule.remove();
    it_stays(&bed, &spec).await;
}

#[tokio::test]
async fn shells_that_are_refused_for_longer_than_ten_seconds_start_in_the_end() {
    let bed = Bed::new().await;
    let rule = bed.api.rule(Rule::when(On::exec()).answer(503));
    let (spec, provider) = (bed.spec(), bed.provider());
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.api.until_requests(&On::exec(), 1).await;
        tokio::time::sleep(Duration::from_secs(11)).await;
        rule.remove();
    });
    works(&outcome.unwrap()).await;
    assert_eq!((bed.creates(), bed.deletes()), (1, 0));
}

#[tokio::test]
async fn shells_that_are_forbidden_are_nobodys() {
    let bed = Bed::new().await;
    bed.api.rule(Rule::when(On::exec()).answer(403));
    let spec = bed.spec();
    let error = fails(within("provision", bed.provider().provision(&spec)).await, ErrorKind::Forbidden);
    assert_eq!((error.effect(), bed.uid(&spec.session)), (Effect::None, None));
}

#[tokio::test]
async fn an_image_without_a_tool_that_commands_need() {
    let bed = Bed::new().await;
    // What it says of itself ends with this line.
    bed.api.rule(Rule::when(On::exec()).exec(ExecFault::new().replace(b"that-is-all", b"env\nthat-is-all")));
    let spec = bed.spec();
    let error = fails(within("provision", bed.provider().provision(&spec)).await, ErrorKind::Unavailable);
    assert!(error.reason().unwrap().contains("lacks env"), "{error:?}");
    assert_eq!((error.effect(), bed.uid(&spec.session)), (Effect::None, None), "it was ready, and of no use");
    let report = within("probe", bed.provider().probe_image("some/image", &Hardening::default())).await.unwrap();
    assert_eq!((report.missing.clone(), report.is_complete()), (vec!["env".to_owned()], false));
    assert!(bed.api.pod_names(NAMESPACE).is_empty());
}

#[tokio::test]
async fn an_image_that_does_not_say_all_is_asked_again() {
    let bed = Bed::new().await;
    let rule = bed.api.rule(Rule::when(On::exec()).exec(ExecFault::new().replace(b"that-is-all", b"")));
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let spec = bed.spec();
    let error = fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unavailable);
    assert_eq!((error.effect(), bed.deletes()), (Effect::Unknown, 0), "{error:?}");
    rule.remove();
    it_stays(&bed, &spec).await;
}

/// A Pod that gets ready once `when` has come: after the deadline, and before it is removed.
async fn gets_ready_late(when: Rule, gate: Gate, deletes: usize) {
    let bed = Bed::new().await;
    bed.api.hold(Step::Ready);
    bed.api.rule(when);
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        gate.reached(1).await;
        bed.api.release(Step::Ready);
        bed.api.until_ready(NAMESPACE, &name(&spec.session)).await;
        gate.open();
    });
    assert_eq!(fails(outcome, ErrorKind::DeadlineExceeded).effect(), Effect::Unknown);
    it_stays(&bed, &spec).await;
    assert_eq!(bed.deletes(), deletes);
}

#[tokio::test]
async fn a_pod_that_is_ready_at_the_second_look_stays() {
    let gate = Gate::new();
    gets_ready_late(Rule::when(On::pods(Verb::Get)).after(1).hold(&gate), gate, 0).await;
}

#[tokio::test]
async fn a_pod_that_gets_ready_after_the_second_look_stays_too() {
    let gate = Gate::new();
    gets_ready_late(Rule::when(On::pods(Verb::Delete)).nth(1).hold(&gate), gate, 1).await;
}

#[tokio::test]
async fn a_pod_that_nobody_hears_from_stays_also_if_this_call_made_it() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let spec = bed.spec();
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        bed.until_other(&spec.session, None).await;
        bed.set_fate(&spec.session, Fate::Unknown).await;
    });
    assert_eq!(fails(outcome, ErrorKind::DeadlineExceeded).effect(), Effect::Unknown);
    assert!(bed.uid(&spec.session).is_some() && bed.deletes() == 0);
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_removes_what_it_made_removes_it() {
    let bed = Bed::new().await;
    bed.api.hold(Step::Start);
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::pods(Verb::Delete)).hold(&gate));
    let (spec, provider) = (bed.spec(), bed.provider());
    let dropped = async {
        bed.until_other(&spec.session, None).await;
        bed.set_fate(&spec.session, Fate::image_pull_back_off("sandbox")).await;
        gate.reached(1).await;
    };
    tokio::select! {
        outcome = provider.provision(&spec) => panic!("it waits: {outcome:?}"),
        () = dropped => {}
    }
    gate.open();
    bed.api.until_pod(NAMESPACE, &name(&spec.session), |pod| pod.is_none()).await;
}

#[tokio::test]
async fn what_is_wedged_or_dead_goes_whatever_it_was_made_to_and_what_lives_stays() {
    let bed = Bed::new().await;
    let provider = with_gates(bed.provider());
    let other_image = |spec: &Spec| {
        let mut other = spec.clone();
        other.image = "another/image".to_owned();
        other
    };

    let spec = bed.gated_spec();
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    let uid = bed.uid(&spec.session);
    let error = fails(within("it lives", provider.provision(&other_image(&spec))).await, ErrorKind::SpecMismatch);
    let reason = error.reason().unwrap();
    assert!(reason.contains("image is \"some/image\", not \"another/image\""), "{reason}");
    assert_eq!((bed.uid(&spec.session), bed.deletes()), (uid, 0));
    bed.set_fate(&spec.session, wedged()).await;
    fails(within("it is wedged", provider.provision(&other_image(&spec))).await, ErrorKind::Unavailable);
    assert_eq!(bed.uid(&spec.session), None);

    let spec = bed.spec();
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    bed.set_fate(&spec.session, Fate::evicted()).await;
    let sandbox = within("it is dead", provider.provision(&other_image(&spec))).await.unwrap();
    works(&sandbox).await;
    assert_eq!(sandbox.recreated().map(|why| why.reason), Some(Death::Evicted));
    let image = &bed.pod(&spec.session).unwrap()["spec"]["containers"][0]["image"];
    assert_eq!(image, "another/image");
}

#[tokio::test]
async fn a_sandbox_that_dies_before_its_first_shell_is_replaced() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    let gate = Gate::new();
    bed.api.rule(Rule::when(On::exec()).nth(1).hold(&gate));
    let provider = bed.provider();
    let (outcome, ()) = tokio::join!(within("provision", provider.provision(&spec)), async {
        gate.reached(1).await;
        bed.set_fate(&spec.session, Fate::evicted()).await;
        gate.open();
    });
    let sandbox = outcome.unwrap();
    works(&sandbox).await;
    assert_eq!(sandbox.recreated().map(|why| why.reason), Some(Death::Evicted));
    assert_eq!(bed.creates(), 2);
}
