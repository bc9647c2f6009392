//! What many tests need.

use std::future::Future;
use std::time::Duration;

use fake_apiserver::FakeApi;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

/// A test that waits longer than this has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for: {what}"),
    }
}

pub(crate) fn pod(name: &str) -> Pod {
    labelled(name, &[])
}

pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> Pod {
    let labels: serde_json::Map<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let pod = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "some/image", "env": [{"name": "GREETING", "value": "hello"}]}],
            "restartPolicy": "Never",
        },
    });
    serde_json::from_value(pod).unwrap()
}

pub(crate) fn pods(api: &FakeApi) -> Api<Pod> {
    Api::namespaced(api.client(), "ns")
}

/// A server with one pod, `a`, that is ready.
pub(crate) async fn with_pod() -> (FakeApi, Api<Pod>) {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    add(&api, &pods, "a").await;
    (api, pods)
}

pub(crate) async fn add(api: &FakeApi, pods: &Api<Pod>, name: &str) -> Pod {
    let pod = pods.create(&PostParams::default(), &pod(name)).await.unwrap();
    api.until_ready("ns", name).await;
    pod
}

pub(crate) fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap()
}

pub(crate) fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().unwrap().parse().unwrap()
}

/// The code and the reason of the `Status` with which the server answered.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("no Status: {other:?}"),
    }
}

pub(crate) fn message<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        other => panic!("no Status: {other:?}"),
    }
}
