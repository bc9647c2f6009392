//! A watch that goes wrong: a Pod that gets ready is seen all the same.

use std::time::Duration;

use fake_apiserver::{On, Options, Rule, Step, Verb, WatchFault};
use futures::future::join_all;
use sandbox::Provider;

use crate::bed::{Bed, within, works};

async fn slow() -> Bed {
    // Not ready at the first look, so that somebody has to wait.
    Bed::with(Options::new().step(Step::Ready, Duration::from_millis(300))).await
}

async fn is_ready_in_spite_of(rule: Rule) {
    let (bed, what) = (slow().await, format!("{rule:?}"));
    let rule = bed.api.rule(rule);
    let provider = bed.provider_with(|config| config.request_timeout = Duration::from_secs(4));
    let sandbox = within(&what, provider.provision(&bed.spec())).await.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    works(&sandbox).await;
    assert!(rule.acted() > 0, "{what}");
    assert_eq!((bed.creates(), bed.deletes()), (1, 0), "{what}");
}

fn watches() -> Rule {
    Rule::when(On::pods(Verb::Watch))
}

#[tokio::test]
async fn it_ends_at_once() {
    is_ready_in_spite_of(watches().watch(WatchFault::EndAtOnce)).await;
}

#[tokio::test]
async fn its_version_is_gone() {
    is_ready_in_spite_of(watches().watch(WatchFault::Gone)).await;
}

#[tokio::test]
async fn it_is_garbage() {
    is_ready_in_spite_of(watches().watch(WatchFault::Garbage)).await;
}

#[tokio::test]
async fn its_event_stops_in_the_middle() {
    is_ready_in_spite_of(watches().watch(WatchFault::HalfEvent)).await;
}

#[tokio::test]
async fn it_never_sends() {
    is_ready_in_spite_of(watches().watch(WatchFault::Silent)).await;
}

#[tokio::test]
async fn it_is_never_answered() {
    is_ready_in_spite_of(watches().hang()).await;
}

#[tokio::test]
async fn it_is_refused_for_now() {
    is_ready_in_spite_of(watches().answer(503)).await;
}

#[tokio::test]
async fn it_is_forbidden_and_not_asked_for_again() {
    let bed = slow().await;
    bed.api.forbid("watch", "pods");
    let spec = bed.spec();
    let sandbox = within("provision", bed.provider().provision(&spec)).await.unwrap();
    works(&sandbox).await;
    assert_eq!(bed.api.count(&On::pods(Verb::Watch)), 1);
    // The first look, and at least one later.
    assert!(bed.api.count(&On::pods(Verb::Get)) >= 2);
}

#[tokio::test]
async fn reads_fail_while_somebody_waits_and_nothing_is_removed() {
    let each = [429, 500, 503, 504].map(|code| async move {
        let bed = slow().await;
        bed.api.forbid("watch", "pods");
        let rule = bed.api.rule(Rule::when(On::pods(Verb::Get)).times(3).answer(code));
        let sandbox = within("provision", bed.provider().provision(&bed.spec())).await.unwrap();
        works(&sandbox).await;
        assert_eq!((rule.acted(), bed.creates(), bed.deletes()), (3, 1, 0), "{code}");
    });
    join_all(each).await;
}

#[tokio::test]
async fn a_watch_that_is_never_answered_does_not_outlast_the_call() {
    let bed = Bed::with(Options::new().step(Step::Ready, Duration::from_secs(60))).await;
    bed.api.rule(watches().hang());
    let provider = bed.provider_with(|config| {
        config.ready_timeout = Duration::from_secs(2);
        config.request_timeout = Duration::from_secs(40);
    });
    let begun = std::time::Instant::now();
    let error = within("provision", provider.provision(&bed.spec())).await.unwrap_err();
    assert_eq!(error.kind(), sandbox::ErrorKind::DeadlineExceeded);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
