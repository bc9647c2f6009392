//! One object at a time.

use fake_apiserver::{FakeApi, Step};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use serde_json::json;

use crate::support::{add, pod, pods, refusal, uid, version, with_pod};

#[tokio::test]
async fn a_created_pod_has_what_the_server_gives() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    let mut wanted = pod("a");
    wanted.metadata.uid = Some("mine".to_owned());
    let made = pods.create(&PostParams::default(), &wanted).await.unwrap();
    assert_ne!(uid(&made), "mine");
    assert_eq!(uid(&made).len(), 36);
    assert!(made.metadata.creation_timestamp.is_some());
    assert!(version(&made) > 0);
    assert_eq!(made.metadata.namespace.as_deref(), Some("ns"));
    let other = pods.create(&PostParams::default(), &pod("b")).await.unwrap();
    assert_ne!(uid(&made), uid(&other));
    assert!(version(&other) > version(&made));
    assert_eq!(uid(&pods.get("a").await.unwrap()), uid(&made));
}

#[tokio::test]
async fn a_taken_name_is_a_conflict_and_a_missing_one_not_found() {
    let (_api, pods) = with_pod().await;
    let again = pods.create(&PostParams::default(), &pod("a")).await;
    assert_eq!(refusal(again), (409, "AlreadyExists".to_owned()));
    assert_eq!(refusal(pods.get("b").await), (404, "NotFound".to_owned()));
    assert_eq!(refusal(pods.delete("b", &DeleteParams::default()).await), (404, "NotFound".to_owned()));
}

#[tokio::test]
async fn namespaces_keep_names_apart() {
    let (api, first) = with_pod().await;
    let second: Api<_> = Api::namespaced(api.client(), "other");
    second.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert_ne!(uid(&first.get("a").await.unwrap()), uid(&second.get("a").await.unwrap()));
}

#[tokio::test]
async fn nonsense_is_refused() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    for name in ["Upper", "-a", "a_b", "", "a/b"] {
        let made = pods.create(&PostParams::default(), &pod(name)).await;
        assert_eq!(refusal(made), (422, "Invalid".to_owned()), "{name:?}");
    }
    let mut empty = pod("a");
    empty.spec.as_mut().unwrap().containers.clear();
    assert_eq!(refusal(pods.create(&PostParams::default(), &empty).await).0, 422);
    let mut elsewhere = pod("a");
    elsewhere.metadata.namespace = Some("elsewhere".to_owned());
    assert_eq!(refusal(pods.create(&PostParams::default(), &elsewhere).await).0, 400);
}

#[tokio::test]
async fn a_dry_run_leaves_nothing() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod("a")).await.unwrap();
    assert_eq!(refusal(pods.get("a").await).0, 404);
}

#[tokio::test]
async fn a_merge_patch_sets_and_removes_metadata() {
    let (_api, pods) = with_pod().await;
    let before = pods.get("a").await.unwrap();
    let patch = json!({"metadata": {"labels": {"x": "1", "y": "2"}, "uid": null}});
    let patched = pods.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    assert_eq!(patched.metadata.labels.as_ref().unwrap()["x"], "1");
    assert_eq!(uid(&patched), uid(&before));
    assert!(version(&patched) > version(&before));
    let patch = json!({"metadata": {"labels": {"x": null}}});
    let patched = pods.patch("a", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    assert_eq!(patched.metadata.labels.unwrap().into_keys().collect::<Vec<_>>(), ["y"]);
}

#[tokio::test]
async fn a_patch_for_another_version_is_a_conflict() {
    let (_api, pods) = with_pod().await;
    let patch = json!({"metadata": {"resourceVersion": "1", "labels": {"x": "1"}}});
    let patched = pods.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await;
    assert_eq!(refusal(patched), (409, "Conflict".to_owned()));
    assert!(pods.get("a").await.unwrap().metadata.labels.is_none_or(|labels| labels.is_empty()));
}

fn only_uid(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }.grace_period(0)
}

#[tokio::test]
async fn a_deletion_with_another_uid_is_a_conflict_and_deletes_nothing() {
    let (_api, pods) = with_pod().await;
    let pod = pods.get("a").await.unwrap();
    let refused = pods.delete("a", &only_uid("someone-else")).await;
    assert_eq!(refusal(refused), (409, "Conflict".to_owned()));
    assert_eq!(uid(&pods.get("a").await.unwrap()), uid(&pod));
    pods.delete("a", &only_uid(&uid(&pod))).await.unwrap();
    assert_eq!(refusal(pods.get("a").await).0, 404);
}

#[tokio::test]
async fn a_deletion_by_uid_spares_the_successor() {
    let (api, pods) = with_pod().await;
    let first = uid(&pods.get("a").await.unwrap());
    pods.delete("a", &only_uid(&first)).await.unwrap();
    let second = add(&api, &pods, "a").await;
    assert_eq!(refusal(pods.delete("a", &only_uid(&first)).await).0, 409);
    assert_eq!(uid(&pods.get("a").await.unwrap()), uid(&second));
}

#[tokio::test]
async fn a_deletion_with_another_version_is_a_conflict() {
    let (_api, pods) = with_pod().await;
    let at = |version: u64| {
        let preconditions = Preconditions { uid: None, resource_version: Some(version.to_string()) };
        DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
    };
    let current = version(&pods.get("a").await.unwrap());
    assert_eq!(refusal(pods.delete("a", &at(current - 1)).await).0, 409);
    pods.delete("a", &at(current)).await.unwrap();
}

#[tokio::test]
async fn grace_marks_first_and_removes_later() {
    let (api, pods) = with_pod().await;
    api.hold(Step::Terminate);
    let marked = pods.delete("a", &DeleteParams::default().grace_period(7)).await.unwrap();
    let marked = marked.left().expect("the pod, not a Status");
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(7));
    assert!(pods.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    let taken = pods.create(&PostParams::default(), &pod("a")).await;
    assert_eq!(refusal(taken).0, 409, "a pod that goes still has its name");
    api.release(Step::Terminate);
    api.until_pod("ns", "a", |pod| pod.is_none()).await;
}

#[tokio::test]
async fn grace_zero_removes_at_once() {
    let (api, pods) = with_pod().await;
    api.hold(Step::Terminate);
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(api.pod("ns", "a").is_none());
}

#[tokio::test]
async fn a_pod_without_a_node_goes_at_once() {
    let api = FakeApi::start().await;
    api.hold(Step::Schedule);
    let pods = pods(&api);
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(api.pod("ns", "a").is_none());
}

#[tokio::test]
async fn namespaces_and_nodes_can_be_read() {
    let api = FakeApi::start().await;
    api.set_namespace("tight", &[("pod-security.kubernetes.io/enforce", "restricted")]);
    let namespaces: Api<Namespace> = Api::all(api.client());
    let tight = namespaces.get("tight").await.unwrap();
    assert_eq!(tight.metadata.labels.unwrap()["pod-security.kubernetes.io/enforce"], "restricted");
    assert_eq!(refusal(namespaces.get("absent").await).0, 404);

    let nodes: Api<Node> = Api::all(api.client());
    let ready = async || {
        let node = nodes.get("fake-node").await.unwrap();
        node.status.unwrap().conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap().status
    };
    assert_eq!(ready().await, "True");
    api.set_node_ready(false);
    assert_eq!(ready().await, "Unknown");
}

#[tokio::test]
async fn the_version_is_what_was_asked_for() {
    let api = FakeApi::start_with(fake_apiserver::Options::new().version(1, 29)).await;
    let version = api.client().apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "29"));
    assert_eq!(version.git_version, "v1.29.0");
}

#[tokio::test]
async fn an_unknown_path_is_not_found() {
    let api = FakeApi::start().await;
    for path in ["/apis/apps/v1/namespaces/ns/deployments", "/api/v1/namespaces/ns/secrets/a", "/nowhere", "/"] {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let answer = api.client().request::<Status>(request).await;
        assert_eq!(refusal(answer).0, 404, "{path}");
    }
}
