//! A handle is for one very Pod, and so is a removal.

use std::time::{Duration, Instant};

use fake_apiserver::{Cut, On, Rule, Verb};
use futures::future::join_all;
use sandbox::{Death, Effect, ErrorKind, Provider};

use crate::bed::{Bed, NAMESPACE, exec, fails, name, text, within, works};

/// Short times, and still as long as a busy machine needs.
fn hasty(config: &mut sandbox_k8s::K8sConfig) {
    config.request_timeout = Duration::from_secs(2);
    config.stop_grace = Duration::ZERO;
    config.stop_timeout = Duration::from_secs(6);
}

#[tokio::test]
async fn a_pod_that_answers_with_another_uid_is_never_entered_or_removed() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider();
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    let other = bed.provider();
    let sandbox = other.attach(&spec.session).await.unwrap();
    bed.api.rule(Rule::when(On::pods(Verb::Get)).lie_uid("another"));
    let error = fails(exec(&sandbox, &format!("touch {}", bed.file("entered").display())).await, ErrorKind::NotFound);
    assert_eq!((error.death(), error.effect()), (Some(Death::Replaced), Effect::None));
    assert!(!bed.file("entered").exists());
    within("destroy", sandbox.destroy()).await.unwrap();
    let uids = bed.every_delete_names_its_pod();
    assert!(!uids.contains("another"), "{uids:?}");
}

#[tokio::test]
async fn a_list_that_lies_about_the_uid_removes_nothing() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider();
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    bed.api.rule(Rule::when(On::pods(Verb::List)).lie_uid("another"));
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert!(bed.uid(&spec.session).is_some());
    assert_eq!(bed.every_delete_names_its_pod().into_iter().collect::<Vec<_>>(), ["another"]);
    drop(sandbox);
}

#[tokio::test]
async fn an_old_handle_leaves_the_successor_alone() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let old = within("provision", bed.provider().provision(&spec)).await.unwrap();
    let was = bed.uid(&spec.session).unwrap();
    bed.api.remove_pod(NAMESPACE, &name(&spec.session)).await;
    let new = within("provision", bed.provider().provision(&spec)).await.unwrap();
    let is = bed.uid(&spec.session).unwrap();
    assert_ne!(was, is);

    let error = fails(exec(&old, &format!("touch {}", bed.file("entered").display())).await, ErrorKind::NotFound);
    assert_eq!(error.death(), Some(Death::Replaced));
    within("destroy", old.destroy()).await.unwrap();
    assert!(!bed.file("entered").exists());
    assert_eq!(bed.uid(&spec.session), Some(is));
    assert_eq!(bed.every_delete_names_its_pod().into_iter().collect::<Vec<_>>(), [was]);
    works(&new).await;
}

#[tokio::test]
async fn a_removal_whose_answer_is_lost_is_a_removal() {
    let lost = Rule::when(On::pods(Verb::Delete)).nth(1).applied();
    for rule in [
        lost.clone().cut(Cut::Rst),
        lost.clone().cut(Cut::Fin),
        lost.clone().answer(504),
        lost.hang(),
        Rule::when(On::pods(Verb::Delete)).nth(1).cut_answer(20, Cut::Close),
    ] {
        let (bed, what) = (Bed::new().await, format!("{rule:?}"));
        let rule = bed.api.rule(rule);
        let spec = bed.spec();
        let provider = bed.provider_with(|config| {
            hasty(config);
            config.stop_timeout = Duration::from_secs(30);
        });
        drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
        let uid = bed.uid(&spec.session).unwrap();
        within(&what, provider.reap(&spec.session)).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
        assert_eq!((rule.acted(), bed.uid(&spec.session)), (1, None), "{what}");
        assert_eq!(bed.every_delete_names_its_pod().into_iter().collect::<Vec<_>>(), [uid], "{what}");
    }
}

#[tokio::test]
async fn a_reap_without_an_api_server_fails_in_its_time() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider_with(|config| {
        hasty(config);
        // One request may take longer than all of them together.
        config.request_timeout = Duration::from_secs(60);
    });
    drop(within("provision", provider.provision(&spec)).await.unwrap());
    bed.api.set_down(true);
    let begun = Instant::now();
    let error = within("reap", provider.reap(&spec.session)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{error:?}");
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    bed.api.set_down(false);
    within("reap", bed.provider().reap(&spec.session)).await.unwrap();
    assert_eq!(bed.uid(&spec.session), None);
}

#[tokio::test]
async fn a_removal_that_is_never_carried_out_is_not_told_as_one() {
    let never = || Rule::when(On::pods(Verb::Delete));
    let each = [never().cut(Cut::Fin), never().answer(503), never().hang()].map(|rule| async move {
        let (bed, what) = (Bed::new().await, format!("{rule:?}"));
        let spec = bed.spec();
        let provider = bed.provider_with(hasty);
        drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
        let rule = bed.api.rule(rule);
        let begun = Instant::now();
        let error = within(&what, provider.reap(&spec.session)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{what}: {error:?}");
        assert_eq!(error.effect(), Effect::Unknown, "{what}");
        assert!(begun.elapsed() < Duration::from_secs(12), "{what}: {:?}", begun.elapsed());
        rule.remove();
        within(&what, bed.provider().reap(&spec.session)).await.unwrap();
        assert_eq!(bed.uid(&spec.session), None, "{what}");
    });
    join_all(each).await;
}

#[tokio::test]
async fn what_runs_when_the_pod_is_removed_says_so() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let sandbox = within("provision", bed.provider().provision(&spec)).await.unwrap();
    let begun = bed.file("begun");
    let run = tokio::spawn(async move { sandbox.exec(text(&format!("touch {}; sleep 20", begun.display()))).await });
    while !bed.file("begun").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.api.remove_pod(NAMESPACE, &name(&spec.session)).await;
    let error = within("exec", run).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Lost), "{error:?}");
    assert_eq!((error.effect(), error.death()), (Effect::Unknown, Some(Death::Deleted)));
}
