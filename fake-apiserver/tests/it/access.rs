//! What the client may do, and what was asked.

use fake_apiserver::{FakeApi, On, Verb};
use futures::StreamExt;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchParams};
use serde_json::json;

use crate::stream::run;
use crate::support::{pods, refusal, with_pod};

async fn allowed(api: &FakeApi, verb: &str, resource: &str, subresource: &str) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(api.client());
    let attributes = json!({"verb": verb, "resource": resource, "subresource": subresource, "namespace": "ns"});
    let review = serde_json::from_value(json!({"spec": {"resourceAttributes": attributes}})).unwrap();
    reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

#[tokio::test]
async fn reviews_and_refusals_agree() {
    let (api, pods) = with_pod().await;
    assert!(allowed(&api, "watch", "pods", "").await);
    api.forbid("watch", "pods");
    api.forbid("create", "pods/exec");
    assert!(!allowed(&api, "watch", "pods", "").await);
    assert!(allowed(&api, "list", "pods", "").await);
    assert!(!allowed(&api, "create", "pods", "exec").await);
    assert!(allowed(&api, "create", "pods", "").await);

    let watched = pods.watch(&WatchParams::default(), "0").await.map(|events| events.boxed()).map(drop);
    assert_eq!(refusal(watched), (403, "Forbidden".to_owned()));
    pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(refusal(run(&api, "a", &["true"]).await.map(drop)).0, 403);

    api.allow("watch", "pods");
    assert!(allowed(&api, "watch", "pods", "").await);
    drop(pods.watch(&WatchParams::default(), "0").await.unwrap());
    api.forbid("*", "pods");
    assert!(!allowed(&api, "get", "pods", "").await);
    assert_eq!(refusal(pods.get("a").await).0, 403);
}

#[tokio::test]
async fn the_log_tells_what_was_asked() {
    let (api, pods) = with_pod().await;
    let _ = pods.get("absent").await;
    run(&api, "a", &["printf", "a b&c"]).await.unwrap();
    assert_eq!(api.count(&On::pods(Verb::Create)), 1);
    assert_eq!(api.count(&On::pods(Verb::Create).name("a")), 1, "the name comes from the body");
    assert_eq!(api.count(&On::exec().name("a")), 1);
    let log = api.requests();
    assert!(log.windows(2).all(|pair| pair[0].instant <= pair[1].instant));
    let create = log.iter().find(|request| request.verb == Verb::Create).unwrap();
    assert_eq!((create.method.as_str(), create.status), ("POST", Some(201)));
    assert!(create.target.starts_with("/api/v1/namespaces/ns/pods"));
    let body: serde_json::Value = serde_json::from_slice(&create.body).unwrap();
    assert_eq!(body["metadata"]["name"], "a");
    assert_eq!(log.iter().find(|request| request.name.as_deref() == Some("absent")).unwrap().status, Some(404));
    let exec = log.iter().find(|request| request.is(&On::exec())).unwrap();
    assert!(exec.target.contains("command=printf&command=a+b%26c"), "{}", exec.target);
    assert_eq!(exec.status, Some(101));
    assert!(exec.mentions("a b&c") && exec.mentions("printf") && !exec.mentions("a b&d"));
}

#[tokio::test]
async fn a_test_can_wait_for_a_request() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    let asking = tokio::spawn(async move { pods.get("a").await.map(drop) });
    api.until_requests(&On::pods(Verb::Get).name("a"), 1).await;
    assert!(asking.await.unwrap().is_err());
}
