//! Which Pods are a session's, and which are not.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use libtest_mimic::Trial;
use sandbox::{ErrorKind, OwnedState, Provider, SessionId, Spec};
use serde_json::json;

use crate::bed::{Bed, IMAGE, equal, fails, holds, reap, says};
use crate::{Outcome, bed_trial, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("found::foreign_pod", foreign_pod),
        trial("found::other_deployment", other_deployment),
        trial("found::by_label_not_by_name", by_label_not_by_name),
        trial("found::starting", starting),
        trial("found::ending", ending),
        bed_trial("found::mismatch_deletes_nothing", mismatch_deletes_nothing),
        trial("found::owned_tells_states", owned_tells_states),
    ]
}

fn pod(name: &str, labels: serde_json::Value) -> Pod {
    let container = json!({
        "name": "sandbox", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"],
        "workingDir": "/workspace"
    });
    let spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec})).expect("it is a Pod")
}

async fn foreign_pod(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let name = spec.session.object_name("sbx");
    for labels in [json!({}), json!({"sandbox-k8s/session": spec.session.as_str()})] {
        let made = bed.pods.create(&PostParams::default(), &pod(&name, labels)).await?;
        for (what, kind) in [
            ("provision", fails("provision", provider.provision(&spec).await)?.kind()),
            ("attach", fails("attach", provider.attach(&spec.session).await)?.kind()),
        ] {
            equal(what, kind, ErrorKind::NotOurs)?;
        }
        provider.reap(&spec.session).await?;
        equal("the other's Pod", bed.uid(&spec.session).await?, made.metadata.uid)?;
        bed.pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
        while bed.pods.get_opt(&name).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

async fn other_deployment(bed: Bed) -> Outcome {
    let mine = bed.provider()?;
    let other = bed.provider_with(|config| config.deployment = format!("{}x", config.deployment))?;
    let spec = bed.spec();
    let sandbox = mine.provision(&spec).await?;
    equal("the other's provision", fails("it", other.provision(&spec).await)?.kind(), ErrorKind::NotOurs)?;
    other.reap(&spec.session).await?;
    let mut owned = other.owned().await?;
    while let Some(entry) = owned.next().await {
        holds("the other does not own it", entry.as_ref().is_ok_and(|e| e.session != spec.session), &entry)?;
    }
    equal("it lives", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
    reap(&mine, &spec.session).await
}

async fn by_label_not_by_name(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let session = SessionId::generate();
    let labels = json!({"sandbox-k8s/session": session.as_str(), "sandbox-k8s/deployment": bed.config.deployment});
    let odd = format!("odd-{}", session.object_name("x"));
    bed.pods.create(&PostParams::default(), &pod(&odd, labels)).await?;
    provider.reap(&session).await?;
    holds("an oddly named Pod of the session goes", bed.pods.get_opt(&odd).await?.is_none(), &odd)
}

/// A provider whose Pods find no node for a while.
async fn starting(bed: Bed) -> Outcome {
    let provider = bed.provider_with(|config| {
        config.node_selector.insert("sandbox-k8s/no-such-node".to_owned(), "yes".to_owned());
        config.unschedulable_grace = Duration::from_secs(6);
    })?;
    let spec = bed.spec();
    let (session, waiting) = (spec.session.clone(), provider.clone());
    let begun = Instant::now();
    let provision = tokio::spawn(async move { waiting.provision(&spec).await.map(drop) });
    while bed.uid(&session).await?.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let uid = bed.uid(&session).await?;
    equal("attach beside it", fails("attach", provider.attach(&session).await)?.kind(), ErrorKind::NotFound)?;
    equal("the Pod that starts", bed.uid(&session).await?, uid)?;
    let error = fails("a provision without a node", provision.await?)?;
    equal("its kind", error.kind(), ErrorKind::Unschedulable)?;
    holds("its reason", error.reason().is_some_and(|r| r.contains("node")), &error)?;
    holds("in time", begun.elapsed() < Duration::from_secs(20), begun.elapsed())?;
    equal("what is left", bed.uid(&session).await?, None)
}

async fn ending(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let name = spec.session.object_name("sbx");
    let sandbox = provider.provision(&spec).await?;
    let first = bed.uid(&spec.session).await?;
    // It stays in its last state until the finalizer is taken away.
    let hold = |list: serde_json::Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    bed.pods.patch(&name, &PatchParams::default(), &hold(json!(["sandbox-k8s/test"]))).await?;
    bed.pods.delete(&name, &DeleteParams::default().grace_period(1)).await?;
    equal("attach", fails("attach", provider.attach(&spec.session).await)?.kind(), ErrorKind::NotFound)?;
    let (other, again) = (bed.provider()?, spec.clone());
    let provision = tokio::spawn(async move { other.provision(&again).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    holds("a provision waits until it is gone", !provision.is_finished(), ())?;
    bed.pods.patch(&name, &PatchParams::default(), &hold(json!([]))).await?;
    let second = provision.await??;
    let uid = bed.uid(&spec.session).await?;
    holds("another Pod", uid.is_some() && uid != first, &uid)?;
    equal("it lives", says(&second, "echo alive").await?, "alive".to_owned())?;
    equal("the old handle", fails("exec", says(&sandbox, "true").await)?.kind(), ErrorKind::NotFound)?;
    sandbox.destroy().await?;
    equal("the successor", bed.uid(&spec.session).await?, uid)?;
    reap(&provider, &spec.session).await
}

async fn mismatch_deletes_nothing(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let spec = bed.spec();
    let sandbox = provider.provision(&spec).await?;
    let uid = bed.uid(&spec.session).await?;
    let other = Spec::new(spec.session.clone(), "busybox");
    equal("another image", fails("it", provider.provision(&other).await)?.kind(), ErrorKind::SpecMismatch)?;
    let gvisor = bed.provider_with(|config| config.runtime_class = Some("testbed-second".to_owned()))?;
    equal("another runtime", fails("it", gvisor.provision(&spec).await)?.kind(), ErrorKind::SpecMismatch)?;
    equal("the Pod", bed.uid(&spec.session).await?, uid)?;
    equal("it lives", says(&sandbox, "echo alive").await?, "alive".to_owned())?;
    reap(&provider, &spec.session).await
}

async fn owned_tells_states(bed: Bed) -> Outcome {
    let provider = bed.provider()?;
    let (lives, dies) = (bed.spec(), bed.spec());
    let _lives = provider.provision(&lives).await?;
    let dead = provider.provision(&dies).await?;
    let _ = says(&dead, "kill -TERM 1; sleep 5").await;
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut states = Vec::new();
        let mut owned = provider.owned().await?;
        while let Some(entry) = owned.next().await {
            let entry = entry?;
            holds("when it was made", entry.created.is_some(), &entry)?;
            equal("which it is", Some(entry.incarnation.clone()), bed.uid(&entry.session).await?)?;
            states.push((entry.session.clone(), entry.state));
        }
        let mut wanted = vec![(lives.session.clone(), OwnedState::Running), (dies.session.clone(), OwnedState::Ended)];
        wanted.sort_by(|a, b| a.0.cmp(&b.0));
        states.sort_by(|a, b| a.0.cmp(&b.0));
        if states == wanted {
            break;
        }
        holds("the states come true", Instant::now() < until, &states)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    reap(&provider, &lives.session).await?;
    reap(&provider, &dies.session).await
}
