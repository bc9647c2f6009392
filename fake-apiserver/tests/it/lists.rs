//! Collections.

use fake_apiserver::FakeApi;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::support::{labelled, pods, refusal};

async fn filled(count: usize) -> (FakeApi, Api<Pod>) {
    let api = FakeApi::start().await;
    for at in 0..count {
        let parity = if at % 2 == 0 { "even" } else { "odd" };
        let pod = labelled(&format!("pod-{at:02}"), &[("parity", parity), ("x.dev/all", "")]);
        api.add_pod("ns", &serde_json::to_value(pod).unwrap()).unwrap();
    }
    let pods = pods(&api);
    (api, pods)
}

fn names(list: &[Pod]) -> Vec<String> {
    list.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
}

#[tokio::test]
async fn selectors_narrow() {
    let (_api, pods) = filled(6).await;
    let table = [
        ("parity=even", 3),
        ("parity in (even, odd)", 6),
        ("parity in (even),x.dev/all", 3),
        ("parity notin (even)", 3),
        ("!parity", 0),
        ("x.dev/all", 6),
        ("parity=none", 0),
    ];
    for (selector, count) in table {
        let list = pods.list(&ListParams::default().labels(selector)).await.unwrap();
        assert_eq!(list.items.len(), count, "{selector}");
    }
    let one = pods.list(&ListParams::default().fields("metadata.name=pod-03")).await.unwrap();
    assert_eq!(names(&one.items), ["pod-03"]);
    assert_eq!(refusal(pods.list(&ListParams::default().labels("a in b")).await).0, 400);
}

#[tokio::test]
async fn a_list_has_the_version_of_its_moment() {
    let (api, pods) = filled(1).await;
    api.until_ready("ns", "pod-00").await;
    let list = pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.metadata.resource_version, list.items[0].metadata.resource_version);
    let all: Api<Pod> = Api::all(api.client());
    assert_eq!(all.list(&ListParams::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn pages_come_from_one_moment() {
    let (api, pods) = filled(7).await;
    let mut params = ListParams::default().limit(3);
    let first = pods.list(&params).await.unwrap();
    assert_eq!(names(&first.items), ["pod-00", "pod-01", "pod-02"]);
    assert_eq!(first.metadata.remaining_item_count, Some(4));
    pods.delete("pod-04", &DeleteParams::default().grace_period(0)).await.unwrap();
    pods.create(&PostParams::default(), &labelled("pod-03b", &[])).await.unwrap();

    params = params.continue_token(first.metadata.continue_.as_deref().unwrap());
    let second = pods.list(&params).await.unwrap();
    assert_eq!(names(&second.items), ["pod-03", "pod-04", "pod-05"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    params = params.continue_token(second.metadata.continue_.as_deref().unwrap());
    let third = pods.list(&params).await.unwrap();
    assert_eq!(names(&third.items), ["pod-06"]);
    assert_eq!(third.metadata.continue_, None);

    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 7);
    drop(api);
}

#[tokio::test]
async fn a_page_that_is_too_old_is_410() {
    let (api, pods) = filled(4).await;
    let first = pods.list(&ListParams::default().limit(2)).await.unwrap();
    api.compact();
    let params = ListParams::default().limit(2).continue_token(first.metadata.continue_.as_deref().unwrap());
    assert_eq!(refusal(pods.list(&params).await), (410, "Expired".to_owned()));
    let garbage = ListParams::default().continue_token("nonsense");
    assert_eq!(refusal(pods.list(&garbage).await).0, 400);
}

#[tokio::test]
async fn exactly_a_version_is_what_was_there_then() {
    let (api, pods) = filled(4).await;
    let then = pods.list(&ListParams::default()).await.unwrap();
    let version = then.metadata.resource_version.clone().unwrap();
    pods.delete("pod-01", &DeleteParams::default().grace_period(0)).await.unwrap();
    pods.create(&PostParams::default(), &labelled("pod-00b", &[])).await.unwrap();
    let params = ListParams::default().at(&version).matching(kube::api::VersionMatch::Exact);
    let first = pods.list(&params.clone().limit(2)).await.unwrap();
    assert_eq!(names(&first.items), ["pod-00", "pod-01"]);
    assert_eq!(first.metadata.resource_version.as_ref(), Some(&version));
    let next = ListParams::default().continue_token(first.metadata.continue_.as_deref().unwrap());
    assert_eq!(names(&pods.list(&next).await.unwrap().items), ["pod-02", "pod-03"]);
    api.compact();
    assert_eq!(refusal(pods.list(&params).await), (410, "Expired".to_owned()));
}

#[tokio::test]
async fn a_version_from_the_future_is_refused() {
    let (_api, pods) = filled(1).await;
    let params = ListParams::default().at("999999").matching(kube::api::VersionMatch::NotOlderThan);
    assert_eq!(refusal(pods.list(&params).await).0, 504);
}

#[tokio::test]
async fn metadata_only_when_that_is_asked_for() {
    let (api, pods) = filled(5).await;
    let list = pods.list_metadata(&ListParams::default().labels("parity=odd").limit(1)).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].metadata.name.as_deref(), Some("pod-01"));
    assert!(list.metadata.continue_.is_some());
    let request = http::Request::get("/api/v1/namespaces/ns/pods")
        .header("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
        .body(Vec::new())
        .unwrap();
    let raw: serde_json::Value = api.client().request(request).await.unwrap();
    assert_eq!(raw["kind"], "PartialObjectMetadataList");
    assert!(raw["items"].as_array().unwrap().iter().all(|item| item["spec"].is_null() && item["status"].is_null()));
    let one = pods.get_metadata("pod-00").await.unwrap();
    assert_eq!(one.metadata.labels.unwrap()["parity"], "even");
}
