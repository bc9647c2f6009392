//! Watches, the healthy and the other ones.

use std::time::Duration;

use fake_apiserver::{FakeApi, On, Rule, Step, Verb, WatchFault};
use futures::{StreamExt, TryStream, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::support::{add, labelled, pod, pods, version, with_pod, within};

fn tell(event: &WatchEvent<Pod>) -> String {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap();
    match event {
        WatchEvent::Added(pod) => format!("+{}", name(pod)),
        WatchEvent::Modified(pod) => format!("~{}", name(pod)),
        WatchEvent::Deleted(pod) => format!("-{}", name(pod)),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}

async fn next<S>(events: &mut S) -> Option<String>
where
    S: TryStream<Ok = WatchEvent<Pod>, Error = kube::Error> + Unpin,
{
    match within("an event", events.try_next()).await {
        Ok(event) => event.as_ref().map(tell),
        Err(kube::Error::Api(status)) => Some(format!("error {}", status.code)),
        Err(_) => Some("broken".to_owned()),
    }
}

async fn here(pods: &Api<Pod>) -> String {
    pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap()
}

/// Nothing moves but by the test's hand.
async fn still() -> (FakeApi, Api<Pod>) {
    let api = FakeApi::start().await;
    api.hold(Step::Schedule);
    let pods = pods(&api);
    (api, pods)
}

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let (_api, pods) = still().await;
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let from = here(&pods).await;
    pods.create(&PostParams::default(), &pod("b")).await.unwrap();
    let patch = json!({"metadata": {"labels": {"x": "1"}}});
    pods.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let mut events = pods.watch(&WatchParams::default(), &from).await.unwrap().boxed();
    assert_eq!(next(&mut events).await.unwrap(), "+b");
    assert_eq!(next(&mut events).await.unwrap(), "~a");
    pods.delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut events).await.unwrap(), "-b");
}

#[tokio::test]
async fn watches_that_follow_each_other_miss_nothing_and_repeat_nothing() {
    let (api, pods) = still().await;
    let mut from = here(&pods).await;
    let feeder = pods.clone();
    let feed = tokio::spawn(async move {
        for at in 0..200 {
            feeder.create(&PostParams::default(), &pod(&format!("pod-{at:03}"))).await.unwrap();
        }
    });
    let mut seen = Vec::new();
    let mut watches = 0;
    while seen.len() < 200 {
        watches += 1;
        let mut events = pods.watch(&WatchParams::default(), &from).await.unwrap().boxed();
        // A few events from each, then the connection goes.
        for _ in 0..7.min(200 - seen.len()) {
            let event = within("an event", events.try_next()).await.unwrap().unwrap();
            let WatchEvent::Added(pod) = event else { panic!("{}", tell(&event)) };
            from = version(&pod).to_string();
            seen.push(pod.metadata.name.unwrap());
        }
    }
    feed.await.unwrap();
    let want: Vec<String> = (0..200).map(|at| format!("pod-{at:03}")).collect();
    assert_eq!(seen, want);
    assert_eq!(api.count(&On::pods(Verb::Watch)), watches);
}

#[tokio::test]
async fn without_a_version_a_watch_begins_with_what_is_there() {
    let (_api, pods) = still().await;
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    for version in ["", "0"] {
        let mut events = pods.watch(&WatchParams::default(), version).await.unwrap().boxed();
        assert_eq!(next(&mut events).await.unwrap(), "+a");
    }
}

#[tokio::test]
async fn entering_a_selector_is_added_and_leaving_it_deleted() {
    let (_api, pods) = still().await;
    let from = here(&pods).await;
    let mut events = pods.watch(&WatchParams::default().labels("app=x"), &from).await.unwrap().boxed();
    pods.create(&PostParams::default(), &labelled("a", &[("app", "y")])).await.unwrap();
    for value in ["x", "y"] {
        let patch = json!({"metadata": {"labels": {"app": value}}});
        pods.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    pods.create(&PostParams::default(), &labelled("b", &[("app", "x")])).await.unwrap();
    assert_eq!(next(&mut events).await.unwrap(), "+a");
    assert_eq!(next(&mut events).await.unwrap(), "-a");
    assert_eq!(next(&mut events).await.unwrap(), "+b");
}

#[tokio::test]
async fn a_version_that_is_forgotten_is_gone() {
    let (api, pods) = with_pod().await;
    api.compact();
    let mut events = pods.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    assert_eq!(next(&mut events).await.unwrap(), "error 410");
    assert_eq!(next(&mut events).await, None);
}

#[tokio::test]
async fn time_and_bookmarks() {
    let (api, pods) = still().await;
    let from = here(&pods).await;
    let mut events = pods.watch(&WatchParams::default().timeout(1), &from).await.unwrap().boxed();
    // Not selected, so that only a bookmark can tell of it.
    let other: Api<Pod> = Api::namespaced(api.client(), "other");
    other.create(&PostParams::default(), &pod("a")).await.unwrap();
    api.send_bookmarks();
    let bookmark = within("a bookmark", events.try_next()).await.unwrap().unwrap();
    let WatchEvent::Bookmark(bookmark) = bookmark else { panic!("{}", tell(&bookmark)) };
    assert!(bookmark.metadata.resource_version.parse::<u64>().unwrap() > from.parse().unwrap());
    assert_eq!(next(&mut events).await.unwrap(), "bookmark", "the last word when the time is up");
    assert_eq!(next(&mut events).await, None);
}

#[tokio::test]
async fn bookmarks_come_only_to_who_wants_them() {
    let (api, pods) = still().await;
    let mut params = WatchParams::default().timeout(1);
    params.bookmarks = false;
    let mut events = pods.watch(&params, &here(&pods).await).await.unwrap().boxed();
    api.send_bookmarks();
    assert_eq!(next(&mut events).await, None);
}

#[tokio::test]
async fn metadata_can_be_watched() {
    let (_api, pods) = still().await;
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    let mut events = pods.watch_metadata(&WatchParams::default(), "0").await.unwrap().boxed();
    match within("an event", events.try_next()).await.unwrap().unwrap() {
        WatchEvent::Added(meta) => assert_eq!(meta.metadata.name.as_deref(), Some("a")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_sees_each_step_of_a_pod() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    let mut events = pods.watch(&WatchParams::default(), &here(&pods).await).await.unwrap().boxed();
    add(&api, &pods, "a").await;
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "-a") {
        seen.push(next(&mut events).await.unwrap());
    }
    assert_eq!(seen, ["+a", "~a", "~a", "~a", "~a", "-a"]);
}

async fn faulty(fault: WatchFault) -> (FakeApi, Api<Pod>) {
    let (api, pods) = still().await;
    api.rule(Rule::when(On::pods(Verb::Watch)).nth(1).watch(fault));
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    (api, pods)
}

#[tokio::test]
async fn faulty_watches() {
    let table = [
        (WatchFault::EndAtOnce, None),
        (WatchFault::Gone, Some("error 410")),
        (WatchFault::Garbage, Some("broken")),
        (WatchFault::HalfEvent, None),
    ];
    for (fault, want) in table {
        let (_api, pods) = faulty(fault).await;
        let mut events = pods.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        assert_eq!(next(&mut events).await.as_deref(), want, "{fault:?}");
        assert_eq!(next(&mut events).await, None, "{fault:?}");
        let mut second = pods.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        assert_eq!(next(&mut second).await.as_deref(), Some("+a"), "only the first is at fault");
    }
}

#[tokio::test]
async fn a_silent_watch_outlives_its_time() {
    let (_api, pods) = faulty(WatchFault::Silent).await;
    let mut events = pods.watch(&WatchParams::default().timeout(1), "0").await.unwrap().boxed();
    let outcome = tokio::time::timeout(Duration::from_millis(1500), events.try_next()).await;
    assert!(outcome.is_err(), "{outcome:?}");
}
