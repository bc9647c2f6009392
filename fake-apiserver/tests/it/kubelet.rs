//! The steps in a pod's life.

use std::time::{Duration, Instant};

use fake_apiserver::{FakeApi, Options, Step};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::support::{pod, pods, uid, with_pod};

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap()
}

#[tokio::test]
async fn a_pod_becomes_ready_by_itself() {
    let (api, pods) = with_pod().await;
    let seen = pods.get("a").await.unwrap();
    assert_eq!(seen.spec.unwrap().node_name.as_deref(), Some("fake-node"));
    let status = seen.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.state.as_ref().unwrap().running.is_some());
    drop(api);
}

#[tokio::test]
async fn each_step_can_be_held() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    for step in [Step::Schedule, Step::Start, Step::Ready] {
        api.hold(step);
    }
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    assert!(api.pod("ns", "a").unwrap()["spec"]["nodeName"].is_null());
    api.release(Step::Schedule);
    api.until_pod("ns", "a", |pod| pod.is_some_and(|pod| pod["spec"]["nodeName"].is_string())).await;
    assert_eq!(phase(&api.pod("ns", "a").unwrap()), "Pending");
    let waiting = api.pod("ns", "a").unwrap()["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    assert_eq!(waiting["reason"], "ContainerCreating");
    api.release(Step::Start);
    api.until_pod("ns", "a", |pod| pod.is_some_and(|pod| phase(pod) == "Running")).await;
    assert_eq!(api.pod("ns", "a").unwrap()["status"]["containerStatuses"][0]["ready"], false);
    api.release(Step::Ready);
    api.until_ready("ns", "a").await;
}

#[tokio::test]
async fn one_pod_can_be_held_while_others_go_on() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    api.hold_pod("ns", "slow", Step::Start);
    for name in ["slow", "fast"] {
        pods.create(&PostParams::default(), &pod(name)).await.unwrap();
    }
    api.until_ready("ns", "fast").await;
    assert_eq!(phase(&api.pod("ns", "slow").unwrap()), "Pending");
    api.release_pod("ns", "slow", Step::Start);
    api.until_ready("ns", "slow").await;
}

#[tokio::test]
async fn a_step_takes_its_time() {
    let time = Duration::from_millis(150);
    let api = FakeApi::start_with(Options::new().step(Step::Start, time)).await;
    let pods = pods(&api);
    let begun = Instant::now();
    pods.create(&PostParams::default(), &pod("a")).await.unwrap();
    api.until_ready("ns", "a").await;
    assert!(begun.elapsed() >= time, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn init_containers_end_and_sidecars_stay() {
    let api = FakeApi::start().await;
    let pods = pods(&api);
    let mut pod = serde_json::to_value(pod("a")).unwrap();
    pod["spec"]["initContainers"] = json!([
        {"name": "setup", "image": "x"},
        {"name": "gate", "image": "x", "restartPolicy": "Always"},
    ]);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    api.until_ready("ns", "a").await;
    let statuses = api.pod("ns", "a").unwrap()["status"]["initContainerStatuses"].clone();
    assert_eq!(statuses[0]["state"]["terminated"]["exitCode"], 0);
    assert_eq!((&statuses[1]["ready"], &statuses[1]["started"]), (&json!(true), &json!(true)));
    assert!(statuses[1]["state"]["running"].is_object());
}

#[tokio::test]
async fn thousands_of_pods_become_ready() {
    let api = FakeApi::start().await;
    let of = |at: usize| format!("pod-{at}");
    for at in 0..3000 {
        api.add_pod("ns", &serde_json::to_value(pod(&of(at))).unwrap()).unwrap();
        if at % 10 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for at in 0..3000 {
        api.until_ready("ns", &of(at)).await;
    }
}

#[tokio::test]
async fn a_name_can_be_used_again_and_is_another_pod() {
    let (api, pods) = with_pod().await;
    let first = uid(&pods.get("a").await.unwrap());
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    api.until_pod("ns", "a", |pod| pod.is_none()).await;
    let second = crate::support::add(&api, &pods, "a").await;
    assert_ne!(first, uid(&second));
}
