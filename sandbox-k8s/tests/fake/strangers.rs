//! Answers that are not the API server's, or not what was asked for.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake_apiserver::{On, Rule, Step, Verb};
use sandbox::{Effect, Env, ErrorKind, Provider};
use sandbox_k8s::K8sConfig;
use serde_json::json;
use tracing::Level;

use crate::bed::{Bed, NAMESPACE, exec, fails, name, within, works};

fn hasty(config: &mut K8sConfig) {
    config.request_timeout = Duration::from_secs(2);
    config.stop_grace = Duration::ZERO;
    config.stop_timeout = Duration::from_secs(5);
}

#[tokio::test]
async fn a_404_of_somebody_on_the_way_is_no_absence() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    let provider = bed.provider_with(hasty);
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();

    // As long as it lasts nothing is known, and nobody is told that anything is gone.
    let way: Vec<_> = [Verb::Get, Verb::Delete, Verb::List]
        .map(|verb| bed.api.rule(Rule::when(On::pods(verb)).answer_plain(404)))
        .into();
    fails(within("destroy", sandbox.destroy()).await, ErrorKind::Unavailable);
    fails(within("reap", provider.reap(&spec.session)).await, ErrorKind::Unavailable);
    let other = bed.provider_with(hasty);
    fails(within("attach", other.attach(&spec.session)).await.map(drop), ErrorKind::Unavailable);
    assert!(bed.uid(&spec.session).is_some());
    way.iter().for_each(fake_apiserver::RuleHandle::remove);
    works(&sandbox).await;

    // Where it passes, it is as if it had not been.
    let other = other.attach(&spec.session).await.unwrap();
    bed.api.rule(Rule::when(On::pods(Verb::Get)).times(2).answer_plain(404));
    works(&other).await;
    bed.api.rule(Rule::when(On::pods(Verb::Delete)).times(2).answer_plain(404));
    within("reap", provider.reap(&spec.session)).await.unwrap();
    assert!(bed.uid(&spec.session).is_none());
}

#[tokio::test]
async fn a_server_without_user_namespaces_gets_none_of_ours() {
    let bed = Bed::new().await;
    let provider = bed.provider_with(|config| config.user_namespaces = Some(true));
    let spec = bed.spec();
    let drops = bed.api.rule(Rule::when(On::pods(Verb::Create)).lie(|pod| {
        pod["spec"].as_object_mut().unwrap().remove("hostUsers");
    }));
    let report = within("preflight", provider.preflight(&spec)).await.unwrap();
    assert!(!report.is_ready() && report.findings[0].why.contains("hostUsers"), "{report:?}");
    let error = fails(within("provision", provider.provision(&spec)).await.map(drop), ErrorKind::Unsupported);
    assert!(error.reason().unwrap().contains("user_namespaces"), "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert!(bed.uid(&spec.session).is_none());
    drops.remove();
    assert!(within("preflight", provider.preflight(&spec)).await.unwrap().is_ready());
    works(&within("provision", provider.provision(&spec)).await.unwrap()).await;
    // One that another configuration has made is none of these.
    let old = bed.spec();
    within("provision", bed.provider().provision(&old)).await.unwrap();
    let error = fails(within("provision", provider.provision(&old)).await.map(drop), ErrorKind::SpecMismatch);
    assert!(error.reason().unwrap().contains("user_namespaces"), "{error}");
}

#[tokio::test]
async fn a_removal_that_may_take_for_ever_is_waited_for_until_the_deadline() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    bed.api.hold(Step::Terminate);
    bed.api.edit_pod(NAMESPACE, &name(&spec.session), |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(i64::MAX);
    });
    let provider = bed.provider_with(|config| config.ready_timeout = Duration::from_secs(2));
    fails(within("provision", provider.provision(&spec)).await.map(drop), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn a_sandbox_is_removed_before_all_else_that_carries_its_labels() {
    for others in [20, 300] {
        let bed = Bed::new().await;
        let spec = bed.spec();
        drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
        let session = spec.session.as_str();
        for at in 0..others {
            let labels = json!({"sandbox-k8s/session": session, "sandbox-k8s/deployment": "default"});
            let pod = json!({"name": "sandbox", "image": "any"});
            let pod =
                json!({"metadata": {"name": format!("a-{at:03}"), "labels": labels}, "spec": {"containers": [pod]}});
            bed.api.add_pod(NAMESPACE, &pod).unwrap();
        }
        let own = name(&spec.session);
        within("reap", bed.provider().reap(&spec.session)).await.unwrap();
        let deletes = bed.api.requests().into_iter().filter(|request| request.is(&On::pods(Verb::Delete)));
        let names: Vec<_> = deletes.filter_map(|request| request.name).collect();
        assert!(names.len() > others && names[0] == own, "{others}: {names:?}");
    }
}

#[tokio::test]
async fn a_pod_of_this_call_that_was_made_into_something_else_is_removed() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    for verb in [Verb::Create, Verb::Get, Verb::Watch] {
        bed.api.rule(Rule::when(On::pods(verb)).lie(|object| {
            let pod = if object["object"].is_object() { &mut object["object"] } else { object };
            if let Some(env) = pod.pointer_mut("/spec/containers/0") {
                env["env"] = json!([{"name": "not.ours", "value": ""}]);
            }
        }));
    }
    let error = fails(within("provision", bed.provider().provision(&spec)).await.map(drop), ErrorKind::SpecMismatch);
    assert_eq!(error.effect(), Effect::None, "{error:?}");
    assert!(bed.uid(&spec.session).is_none());
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_stands_in_a_pod_is_never_logged() {
    const SECRET: &str = "hunter2-and-more";
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let bed = Bed::new().await;
    let spec = bed.spec().with_env(Env::new().with("TOKEN", SECRET).unwrap());
    // Whole answers that are no Pods, with all that is in one.
    for verb in [Verb::Create, Verb::Get, Verb::Delete, Verb::Patch] {
        bed.api.rule(Rule::when(On::pods(verb)).times(2).lie(|pod| pod["metadata"]["name"] = json!(["no", "name"])));
    }
    let provider = bed.provider();
    let sandbox = within("provision", provider.provision(&spec)).await.unwrap();
    exec(&sandbox, "echo $TOKEN").await.unwrap();
    within("reap", provider.reap(&spec.session)).await.unwrap();
    let heard = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(heard.contains(spec.session.as_str()), "something is logged");
    assert!(!heard.contains(SECRET), "{heard}");
}
