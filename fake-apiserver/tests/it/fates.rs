//! What can become of a pod.

use fake_apiserver::{Fate, Step};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::stream::{Asking, run};
use crate::support::{pods, refusal, with_pod};

async fn status_after(fate: Fate) -> Value {
    let (api, pods) = with_pod().await;
    api.set_fate("ns", "a", fate.clone()).await;
    let seen = pods.get("a").await.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
    serde_json::to_value(seen).unwrap()["status"].clone()
}

fn ready(status: &Value) -> &str {
    let conditions = status["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].as_str().unwrap()
}

#[tokio::test]
async fn each_fate_shows_in_the_status() {
    let container = "/containerStatuses/0/state";
    let main = || "main".to_owned();
    let table = [
        (Fate::image_pull_back_off("main"), "Pending", "/waiting/reason", json!("ImagePullBackOff")),
        (Fate::CrashLoop { container: main(), exit_code: 3 }, "Running", "/waiting/reason", json!("CrashLoopBackOff")),
        (Fate::evicted(), "Failed", "/terminated/exitCode", json!(137)),
        (Fate::Succeeded, "Succeeded", "/terminated/reason", json!("Completed")),
        (Fate::OomKilled, "Failed", "/terminated/reason", json!("OOMKilled")),
    ];
    for (fate, phase, pointer, want) in table {
        let status = status_after(fate.clone()).await;
        assert_eq!(status["phase"], phase, "{fate:?}");
        assert_eq!(status.pointer(&format!("{container}{pointer}")), Some(&want), "{fate:?}");
        assert_eq!(ready(&status), "False", "{fate:?}");
    }
    assert_eq!(status_after(Fate::evicted()).await["reason"], "Evicted");
    let crash = status_after(Fate::CrashLoop { container: main(), exit_code: 3 }).await;
    assert_eq!(crash["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 3);
    let unknown = status_after(Fate::Unknown).await;
    assert_eq!((&unknown["phase"], ready(&unknown)), (&json!("Unknown"), "False"));
    let not_ready = status_after(Fate::NotReady).await;
    assert_eq!((&not_ready["phase"], ready(&not_ready)), (&json!("Running"), "False"));
    // Only the one condition says so.
    let unheard = status_after(Fate::Unheard).await;
    assert_eq!((&unheard["phase"], ready(&unheard)), (&json!("Running"), "False"));
    assert_eq!(unheard["containerStatuses"][0]["ready"], true);
    let of = |kind: &str| unheard["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).unwrap().clone();
    assert_eq!((of("ContainersReady")["status"].as_str(), of("Ready").get("reason")), (Some("True"), None));
    let deaf = status_after(Fate::Deaf { container: main(), seconds: 60 }).await;
    let container = &deaf["containerStatuses"][0];
    assert_eq!((&container["started"], &container["restartCount"]), (&json!(false), &json!(1)));
    assert!(
        container["state"]["running"].is_object() && container["lastState"]["terminated"].is_object(),
        "{container}"
    );
    let nowhere = status_after(Fate::Unschedulable("0/1 nodes are available".to_owned())).await;
    assert_eq!(nowhere["conditions"][0]["reason"], "Unschedulable");
    assert_eq!(nowhere["conditions"][0]["message"], "0/1 nodes are available");
}

#[tokio::test]
async fn a_fate_can_strike_before_the_pod_starts() {
    let api = fake_apiserver::FakeApi::start().await;
    api.hold(Step::Start);
    let mut pod = serde_json::to_value(crate::support::pod("a")).unwrap();
    pod["spec"]["initContainers"] = json!([{"name": "setup", "image": "x"}]);
    api.add_pod("ns", &pod).unwrap();
    api.set_fate("ns", "a", Fate::InitFailed { container: "setup".to_owned(), exit_code: 1 }).await;
    api.release(Step::Start);
    let seen = pods(&api).get("a").await.unwrap().status.unwrap();
    assert_eq!(seen.phase.as_deref(), Some("Failed"));
    let init = &seen.init_container_statuses.unwrap()[0];
    assert_eq!(init.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
}

#[tokio::test]
async fn a_lost_node_keeps_a_deleted_pod_until_it_is_forced() {
    let (api, pods) = with_pod().await;
    api.set_fate("ns", "a", Fate::NodeLost).await;
    assert!(pods.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    crate::support::add(&api, &pods, "b").await;
    assert!(api.pod("ns", "a").is_some(), "the kubelet has been at work since, and left it");
    pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(refusal(pods.get("a").await).0, 404);
}

#[tokio::test]
async fn events_tell_about_a_pod() {
    let (api, _pods) = with_pod().await;
    crate::support::add(&api, &pods(&api), "b").await;
    api.add_event("ns", "a", "FailedScheduling", "0/1 nodes are available");
    api.add_event("ns", "b", "Pulled", "there");
    let events: kube::Api<k8s_openapi::api::core::v1::Event> = kube::Api::namespaced(api.client(), "ns");
    let about = kube::api::ListParams::default().fields("involvedObject.name=a");
    let list = events.list(&about).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].reason.as_deref(), Some("FailedScheduling"));
}

#[tokio::test]
async fn a_pod_led_by_hand_still_goes_when_asked() {
    let (api, pods) = with_pod().await;
    api.set_fate("ns", "a", Fate::image_pull_back_off("main")).await;
    pods.delete("a", &DeleteParams::default().grace_period(30)).await.unwrap();
    api.until_pod("ns", "a", |pod| pod.is_none()).await;
}

#[tokio::test]
async fn a_pod_that_nobody_hears_from_stays_when_asked_to_go() {
    for fate in [Fate::Unknown, Fate::Unheard] {
        let (api, pods) = with_pod().await;
        api.set_fate("ns", "a", fate).await;
        pods.delete("a", &DeleteParams::default()).await.unwrap();
        crate::support::add(&api, &pods, "b").await;
        assert_eq!(api.pod_names("ns"), ["a", "b"]);
        api.give_back("ns", "a");
        api.until_pod("ns", "a", |pod| pod.is_none()).await;
    }
}

#[tokio::test]
async fn a_finished_pod_goes_at_once() {
    for fate in [Fate::Succeeded, Fate::evicted()] {
        let (api, pods) = with_pod().await;
        api.hold(Step::Terminate);
        api.set_fate("ns", "a", fate).await;
        pods.delete("a", &DeleteParams::default().grace_period(30)).await.unwrap();
        assert!(api.pod_names("ns").is_empty());
    }
}

#[tokio::test]
async fn a_pod_can_be_given_back() {
    let (api, _pods) = with_pod().await;
    api.set_fate("ns", "a", Fate::NotReady).await;
    api.give_back("ns", "a");
    api.until_ready("ns", "a").await;
}

#[tokio::test]
async fn what_ran_in_a_failed_pod_ends_and_exec_is_refused() {
    let (api, _pods) = with_pod().await;
    let mut running = Asking::new(&["sleep", "600"]).open(&api, "a").await.unwrap();
    api.set_fate("ns", "a", Fate::evicted()).await;
    assert_eq!(running.rest().await.code(), Some(137));
    let refused = run(&api, "a", &["true"]).await;
    assert!(refused.unwrap_err().to_string().contains("container not found"));
}
