use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
}

fn status_of(name: &str, state: Value, ready: bool) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": state})
}

fn waiting(reason: &str) -> Value {
    json!({
        "phase": "Pending",
        "containerStatuses": [status_of(SANDBOX, json!({"waiting": {"reason": reason, "message": "why"}}), false)]
    })
}

fn ended(phase: &str, end: Value) -> Value {
    json!({"phase": phase, "containerStatuses": [status_of(SANDBOX, json!({"terminated": end}), false)]})
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!([{"type": kind, "status": status, "reason": reason, "message": "words"}])
}

#[test]
fn on_the_way() {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let table = [
        (json!({}), State::Starting("no phase yet".to_owned())),
        (json!({"phase": "Pending"}), State::Starting("Pending".to_owned())),
        (waiting("ContainerCreating"), State::Starting("ContainerCreating: why".to_owned())),
        (waiting("PodInitializing"), State::Starting("PodInitializing: why".to_owned())),
        (waiting("ErrImagePull"), State::Stuck(Stuck::Pull, "ErrImagePull: why".to_owned())),
        (waiting("ImagePullBackOff"), State::Stuck(Stuck::Pull, "ImagePullBackOff: why".to_owned())),
        (waiting("InvalidImageName"), State::Stuck(Stuck::Image, "InvalidImageName: why".to_owned())),
        (waiting("ErrImageNeverPull"), State::Stuck(Stuck::Image, "ErrImageNeverPull: why".to_owned())),
        (waiting("CreateContainerError"), State::Stuck(Stuck::Container, "CreateContainerError: why".to_owned())),
        (
            waiting("CreateContainerConfigError"),
            State::Stuck(Stuck::Container, "CreateContainerConfigError: why".to_owned()),
        ),
        (waiting("RunContainerError"), State::Stuck(Stuck::Container, "RunContainerError: why".to_owned())),
        (
            json!({"phase": "Pending", "conditions": condition("PodScheduled", "False", "Unschedulable")}),
            State::Stuck(Stuck::Unschedulable, "Unschedulable: words".to_owned()),
        ),
        (
            json!({"phase": "Pending", "conditions": condition("PodScheduled", "False", "SchedulingGated")}),
            State::Stuck(Stuck::Gated, "SchedulingGated: words".to_owned()),
        ),
        (
            json!({"phase": "Running", "containerStatuses": [status_of(SANDBOX, running.clone(), false)]}),
            State::Starting("Running".to_owned()),
        ),
        (json!({"phase": "Running", "containerStatuses": [status_of(SANDBOX, running.clone(), true)]}), State::Ready),
        // Another container's readiness is nobody's.
        (
            json!({"phase": "Running", "containerStatuses": [status_of("mesh", running.clone(), true)]}),
            State::Starting("Running".to_owned()),
        ),
    ];
    for (status, wanted) in table {
        let pod = pod(status.clone());
        assert_eq!(state(&pod), wanted, "{status}");
        assert_eq!(death(&pod), None, "{status}");
    }
    // The image of the init container counts as well.
    let init = json!({"phase": "Pending", "initContainerStatuses":
        [status_of(NETSETUP, json!({"waiting": {"reason": "ErrImagePull"}}), false)]});
    assert_eq!(state(&pod(init)), State::Stuck(Stuck::Pull, "ErrImagePull".to_owned()));
}

#[test]
fn a_gate_counts_where_there_is_one() {
    let running = || json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let with = |gate: Value, gated: bool| {
        let init = if gated { json!([{"name": GATE, "restartPolicy": "Always"}]) } else { json!(null) };
        let status = json!({
            "phase": "Running",
            "initContainerStatuses": [gate],
            "containerStatuses": [status_of(SANDBOX, running(), true)]
        });
        let spec = json!({"containers": [{"name": SANDBOX}], "initContainers": init});
        serde_json::from_value::<Pod>(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
    };
    assert_eq!(state(&with(status_of(GATE, running(), true), true)), State::Ready);
    assert_eq!(state(&with(status_of(GATE, running(), false), true)), State::Starting("Running".to_owned()));
    assert_eq!(state(&with(status_of(NETSETUP, json!({"terminated": {"exitCode": 0}}), false), false)), State::Ready);
    let mut crashing = status_of(GATE, json!({"waiting": {"reason": "CrashLoopBackOff"}}), false);
    crashing["lastState"] = json!({"terminated": {"exitCode": 1, "message": "401"}});
    let wanted = "the gate ends again and again: 401: exit code 1".to_owned();
    assert_eq!(state(&with(crashing, true)), State::Stuck(Stuck::Gate, wanted));
    // How a gate ends with its Pod says nothing of why the sandbox did.
    let mut over = with(status_of(GATE, json!({"terminated": {"exitCode": 143}}), false), true);
    let end = status_of(SANDBOX, json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), false);
    over.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    over.status.as_mut().unwrap().container_statuses = Some(vec![serde_json::from_value(end).unwrap()]);
    assert!(matches!(state(&over), State::Dead(dead) if dead.ran && dead.why.reason == Death::OomKilled));
}

#[test]
fn dead_for_good() {
    let end = |reason: &str| json!({"exitCode": 137, "reason": reason});
    let table = [
        (ended("Failed", end("OOMKilled")), Death::OomKilled, true),
        (ended("Failed", end("Error")), Death::Ended, true),
        (ended("Succeeded", json!({"exitCode": 0, "reason": "Completed"})), Death::Ended, true),
        (ended("Failed", end("ContainerStatusUnknown")), Death::NodeLost, true),
        (ended("Failed", end("StartError")), Death::Ended, false),
        (json!({"phase": "Failed", "reason": "Evicted", "message": "no room"}), Death::Evicted, true),
        (json!({"phase": "Failed", "reason": "NodeLost"}), Death::NodeLost, true),
        (json!({"phase": "Failed", "reason": "OutOfcpu"}), Death::Ended, false),
        (json!({"phase": "Failed", "reason": "DeadlineExceeded"}), Death::Ended, false),
        (
            json!({"phase": "Failed", "conditions": condition("DisruptionTarget", "True", "DeletionByTaintManager")}),
            Death::NodeLost,
            false,
        ),
        (
            json!({"phase": "Failed", "conditions": condition("DisruptionTarget", "True", "PreemptionByScheduler")}),
            Death::Evicted,
            false,
        ),
        (
            json!({"phase": "Failed", "initContainerStatuses":
                [status_of(NETSETUP, json!({"terminated": {"exitCode": 1, "message": "eth0 is up"}}), false)]}),
            Death::Ended,
            false,
        ),
    ];
    for (status, reason, ran) in table {
        let pod = pod(status.clone());
        match state(&pod) {
            State::Dead(dead) => assert_eq!((dead.why.reason, dead.ran), (reason, ran), "{status}"),
            other => panic!("{status}: {other:?}"),
        }
        assert_eq!(death(&pod), Some((reason, true)), "{status}");
    }
    // The container's end can be seen before the phase, and the reason, follow.
    let dying = pod(ended("Running", end("Error")));
    assert_eq!((state(&dying), death(&dying)), (State::Dying, Some((Death::Ended, false))));
}

#[test]
fn a_node_that_nobody_hears_from() {
    let running = || status_of(SANDBOX, json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}), true);
    let conditions = |ready: Value, containers: &str| {
        let mut ready = ready;
        ready["type"] = "Ready".into();
        json!([ready, {"type": "ContainersReady", "status": containers}])
    };
    let with = |phase: &str, conditions: Value| {
        pod(json!({"phase": phase, "containerStatuses": [running()], "conditions": conditions}))
    };
    let lost = State::Starting("nobody hears from its node".to_owned());
    let table = [
        ("Unknown", json!([]), true),
        // The control plane has taken it away, without a word of the node.
        ("Running", conditions(json!({"status": "False"}), "True"), true),
        ("Running", conditions(json!({"status": "Unknown", "reason": "NodeStatusUnknown"}), "True"), true),
        ("Running", conditions(json!({"status": "True"}), "True"), false),
        ("Running", conditions(json!({"status": "False", "reason": "ReadinessGatesNotReady"}), "True"), false),
        // Another container's: of a mesh that was put in.
        ("Running", conditions(json!({"status": "False", "reason": "ContainersNotReady"}), "False"), false),
    ];
    for (phase, conditions, unheard) in table {
        let mut pod = with(phase, conditions.clone());
        let (wanted, why) = if unheard { (lost.clone(), Some((Death::NodeLost, false))) } else { (State::Ready, None) };
        assert_eq!((state(&pod), death(&pod), is_unheard_of(&pod)), (wanted, why, unheard), "{phase} {conditions}");
        // Once it is being removed, that is the last word.
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!((state(&pod), death(&pod)), (State::Ending, Some((Death::Deleted, true))), "{phase} {conditions}");
    }
}

#[test]
fn a_gate_that_never_listens() {
    let with = |gate: Value, sandbox: Value| {
        let spec =
            json!({"containers": [{"name": SANDBOX}], "initContainers": [{"name": GATE, "restartPolicy": "Always"}]});
        let status = json!({"phase": "Pending", "initContainerStatuses": [gate], "containerStatuses": [sandbox]});
        serde_json::from_value::<Pod>(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
    };
    let gate = |started: bool, ran: Option<u64>| {
        let mut gate = status_of(GATE, json!({"running": {"startedAt": "2026-01-01T00:10:00Z"}}), false);
        gate["started"] = started.into();
        if let Some(seconds) = ran {
            let (began, ended) =
                ("2026-01-01T00:00:00Z", format!("2026-01-01T00:{:02}:{:02}Z", seconds / 60, seconds % 60));
            let end = json!({"exitCode": 137, "startedAt": began, "finishedAt": ended});
            (gate["lastState"], gate["restartCount"]) = (json!({"terminated": end}), 1.into());
        }
        gate
    };
    let waits = || status_of(SANDBOX, json!({"waiting": {"reason": "PodInitializing"}}), false);
    let runs = || status_of(SANDBOX, json!({"running": {"startedAt": "2026-01-01T00:00:30Z"}}), false);
    let deaf = |pod: &Pod| matches!(state(pod), State::Stuck(Stuck::Gate, text) if text.contains("did not listen"));
    for (what, gate, sandbox, wanted) in [
        ("its first try", gate(false, None), waits(), false),
        ("a try that ended soon", gate(false, Some(3)), waits(), false),
        ("a try that had its time", gate(false, Some(60)), waits(), true),
        ("as a kubelet counts", gate(false, Some(57)), waits(), true),
        ("it has listened since", gate(true, Some(60)), waits(), false),
        ("it has listened before", gate(false, Some(60)), runs(), false),
    ] {
        assert_eq!(deaf(&with(gate, sandbox)), wanted, "{what}");
    }
}

/// A Pod on a node, which has taken it up.
fn placed(status: Value) -> Pod {
    let mut pod = pod(status);
    pod.spec = serde_json::from_value(json!({"containers": [{"name": SANDBOX}], "nodeName": "n"})).unwrap();
    pod.status.as_mut().unwrap().start_time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    pod
}

#[test]
fn what_may_have_run_has() {
    let running = || json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let waits = |reason: &str| status_of(SANDBOX, json!({"waiting": {"reason": reason}}), false);
    let with = |container: Value| json!({"phase": "Failed", "containerStatuses": [container]});
    let mut again = waits("CrashLoopBackOff");
    again["lastState"] = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    let mut began = waits("ContainerCreating");
    began["started"] = true.into();
    let table = [
        // A node that shut down, or was lost, before it could say how the container ended.
        (json!({"phase": "Failed", "reason": "NodeShutdown"}), true),
        (json!({"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated"}), true),
        (
            json!({"phase": "Failed", "conditions": condition("DisruptionTarget", "True", "DeletionByTaintManager")}),
            true,
        ),
        (json!({"phase": "Failed", "reason": "DeadlineExceeded"}), true),
        (with(status_of(SANDBOX, running(), false)), true),
        (with(again), true),
        (with(began), true),
        (ended("Failed", json!({"exitCode": 137, "reason": "ContainerStatusUnknown"})), true),
        // It tells that it did not.
        (
            json!({"phase": "Failed", "initContainerStatuses":
                [status_of(NETSETUP, json!({"terminated": {"exitCode": 1}}), false)]}),
            false,
        ),
        (with(waits("ContainerCreating")), false),
        (with(waits("ImagePullBackOff")), false),
        (ended("Failed", json!({"exitCode": 128, "reason": "StartError"})), false),
    ];
    for (status, ran) in table {
        let pod = placed(status.clone());
        assert_eq!(has_run(&pod), ran, "{status}");
        assert!(matches!(state(&pod), State::Dead(dead) if dead.ran == ran), "{status}");
    }
    let ready = json!({"phase": "Running", "containerStatuses": [status_of(SANDBOX, running(), true)]});
    assert!(has_run(&placed(ready)));
    assert!(!has_run(&pod(json!({"phase": "Pending"}))), "no node has taken it");
}

#[test]
fn why_the_cluster_removes_it() {
    let table = [
        (json!({"phase": "Running"}), None),
        // That somebody asked for it ends its first process.
        (ended("Succeeded", json!({"exitCode": 0})), None),
        (
            json!({"phase": "Running", "conditions": condition("DisruptionTarget", "False", "EvictionByEvictionAPI")}),
            None,
        ),
        (
            json!({"phase": "Running", "conditions": condition("DisruptionTarget", "True", "EvictionByEvictionAPI")}),
            Some((Death::Evicted, "EvictionByEvictionAPI: words")),
        ),
        (
            json!({"phase": "Running", "conditions": condition("DisruptionTarget", "True", "DeletionByTaintManager")}),
            Some((Death::NodeLost, "DeletionByTaintManager: words")),
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted", "message": "no room"}),
            Some((Death::Evicted, "Evicted: no room")),
        ),
    ];
    for (status, wanted) in table {
        let told = removal(&pod(status.clone()));
        assert_eq!(told.as_ref().map(|why| (why.reason, &*why.detail)), wanted, "{status}");
    }
}

#[test]
fn a_pod_that_is_being_removed_is_ending_whatever_else_it_says() {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let ready = json!({"phase": "Running", "containerStatuses": [status_of(SANDBOX, running, true)]});
    let table = [
        (ready, Death::Deleted),
        (ended("Succeeded", json!({"exitCode": 0})), Death::Deleted),
        (json!({"phase": "Failed", "reason": "Evicted"}), Death::Evicted),
        (
            json!({"phase": "Running", "conditions": condition("DisruptionTarget", "True", "EvictionByEvictionAPI")}),
            Death::Evicted,
        ),
        (
            json!({"phase": "Running", "conditions": condition("DisruptionTarget", "True", "DeletionByTaintManager")}),
            Death::NodeLost,
        ),
    ];
    for (status, wanted) in table {
        let mut pod = pod(status.clone());
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(state(&pod), State::Ending, "{status}");
        assert_eq!(death(&pod), Some((wanted, true)), "{status}");
    }
}

#[test]
fn words_are_bounded_and_of_one_line() {
    assert_eq!(words(&[None, Some(" a\nb "), Some(""), Some("c")]), "a b: c");
    assert_eq!(words(&[Some(&"x".repeat(5000))]).len(), MAX_TEXT);
}
