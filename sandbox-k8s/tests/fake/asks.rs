//! What is asked before it matters, and how the cluster is found.

use fake_apiserver::{On, Verb};
use sandbox::{ErrorKind, Limit, Provider};
use sandbox_k8s::{FindingKind, K8sConfig};
use serde_json::json;

use crate::bed::{Bed, NAMESPACE, fails, name, with_gates, within};

#[tokio::test]
async fn a_spec_that_a_provision_refuses_is_not_found_ready() {
    let bed = Bed::new().await;
    let provider = bed.provider();
    let mut strict = bed.spec();
    strict.hardening.pids = Limit::Required(100);
    for spec in [strict, bed.gated_spec()] {
        fails(within("provision", provider.provision(&spec)).await, ErrorKind::Unsupported);
        fails(within("preflight", provider.preflight(&spec)).await, ErrorKind::Unsupported);
    }
    let found = within("preflight", with_gates(provider).preflight(&bed.gated_spec())).await.unwrap();
    assert!(found.is_ready() && found.findings.is_empty(), "{found:?}");
    // A dry run is a create.
    assert!(bed.api.count(&On::pods(Verb::Create)) <= 1 && bed.api.pod_names(NAMESPACE).is_empty());
}

#[tokio::test]
async fn what_is_missing_is_told_by_kind() {
    let bed = Bed::new().await;
    bed.api.forbid("watch", "pods");
    let kinds = |found: &sandbox_k8s::Preflight| found.findings.iter().map(|f| f.kind).collect::<Vec<_>>();
    let found = within("preflight", bed.provider().preflight(&bed.spec())).await.unwrap();
    assert_eq!((kinds(&found), found.is_ready()), (vec![FindingKind::MayNotWatchPods], true));
    bed.api.forbid("create", "pods/exec");
    let found = within("preflight", bed.provider().preflight(&bed.spec())).await.unwrap();
    let wanted = vec![FindingKind::MayNotWatchPods, FindingKind::MayNotCreateExec];
    assert_eq!((kinds(&found), found.is_ready()), (wanted, false));
}

#[tokio::test]
async fn a_pod_that_is_no_sandbox_is_not_attached_to() {
    let bed = Bed::new().await;
    let session = sandbox::SessionId::generate();
    let labels = json!({"sandbox-k8s/session": session.as_str(), "sandbox-k8s/deployment": "default"});
    let spec = json!({"containers": [{"name": "other", "image": "any"}]});
    let pod = json!({"metadata": {"name": name(&session), "labels": labels}, "spec": spec});
    bed.api.add_pod(NAMESPACE, &pod).unwrap();
    fails(within("attach", bed.provider().attach(&session)).await, ErrorKind::SpecMismatch);
}

/// A kubeconfig with two contexts, of which the current one names a namespace.
fn kubeconfig() -> tempfile::NamedTempFile {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "of-the-context"}},
            {"name": "two", "context": {"cluster": "c", "user": "u"}}
        ]
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text.to_string()).unwrap();
    file
}

#[tokio::test]
async fn the_namespace_is_the_configurations_then_the_contexts_then_default() {
    let file = kubeconfig();
    let config = || K8sConfig::default().with_kubeconfig(file.path());
    let table = [
        (config().with_namespace("asked-for"), "asked-for"),
        (config(), "of-the-context"),
        (config().with_context("two"), "default"),
    ];
    for (config, wanted) in table {
        assert_eq!(config.connect().await.unwrap().namespace(), wanted);
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_says_so() {
    let file = kubeconfig();
    let absent = K8sConfig::default().with_kubeconfig("/no/such/file");
    let error = fails(absent.clone().connect().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    let context = K8sConfig::default().with_kubeconfig(file.path()).with_context("three");
    assert!(fails(context.connect().await, ErrorKind::Unavailable).to_string().contains("\"three\""));
    // What breaks a rule is said before any file is read.
    fails(absent.with_namespace("kube-system").connect().await, ErrorKind::InvalidSpec);
}
