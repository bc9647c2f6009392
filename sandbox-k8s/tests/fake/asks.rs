//! What is asked before it matters, and how the cluster is found.

use std::time::{Duration, Instant};

use fake_apiserver::{On, Rule, Verb};
use sandbox::{ErrorKind, Limit, Provider};
use sandbox_k8s::{FindingKind, K8sConfig, K8sProvider};
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

#[tokio::test]
async fn another_runtime_class_is_told_with_both_values_and_the_way_out() {
    let bed = Bed::new().await;
    let spec = bed.spec();
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
    let with = |class: &str| bed.provider_with(|config| config.runtime_class = Some(class.to_owned()));
    let error = fails(within("provision", with("gvisor").provision(&spec)).await, ErrorKind::SpecMismatch);
    let reason = error.reason().unwrap();
    assert!(reason.starts_with("runtime_class is the cluster's default, not \"gvisor\": reap the session"), "{reason}");
    within("reap", bed.provider().reap(&spec.session)).await.unwrap();
    drop(within("provision", with("gvisor").provision(&spec)).await.unwrap());
    let error = fails(within("provision", with("kata").provision(&spec)).await, ErrorKind::SpecMismatch);
    assert!(error.reason().unwrap().starts_with("runtime_class is \"gvisor\", not \"kata\": "), "{error:?}");
    // Without a class whatever the Pod has will do.
    drop(within("provision", bed.provider().provision(&spec)).await.unwrap());
}

/// A kubeconfig with two contexts, of which the current one names a namespace.
fn kubeconfig() -> tempfile::NamedTempFile {
    kubeconfig_of(&json!({}))
}

/// One whose credentials come from a shell text.
fn with_plugin(text: &str) -> tempfile::NamedTempFile {
    let version = "client.authentication.k8s.io/v1";
    kubeconfig_of(&json!({"exec": {
        "apiVersion": version, "command": "/bin/sh", "args": ["-c", text], "interactiveMode": "Never"
    }}))
}

fn kubeconfig_of(user: &serde_json::Value) -> tempfile::NamedTempFile {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "one",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user}],
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

#[tokio::test]
async fn a_credential_plugin_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}
    });
    // It ends once the rest of the program has got on, and badly if that does not.
    let text = format!(
        "for i in $(seq 200); do [ -e '{}' ] && echo '{credential}' && exit 0; sleep 0.05; done; exit 1",
        go.display()
    );
    let file = with_plugin(&text);
    let config = K8sConfig::default().with_kubeconfig(file.path());
    let (outcome, ()) = tokio::join!(within("connect", config.connect()), async {
        std::fs::write(&go, "").unwrap();
    });
    assert_eq!(outcome.unwrap().namespace(), "of-the-context");
}

#[tokio::test]
async fn a_credential_plugin_that_fails_is_told_by_file_and_stage() {
    let file = with_plugin("echo my-secret; echo my-secret >&2; exit 3");
    let config = K8sConfig::default().with_kubeconfig(file.path()).with_context("one");
    let text = fails(within("connect", config.connect()).await, ErrorKind::Unavailable).to_string();
    for part in [file.path().to_str().unwrap(), "\"one\"", "credentials"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("my-secret"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_credential_plugin_that_does_not_end_is_left_to_itself() {
    // For the time of this test, which waits for nothing real.
    let file = with_plugin("exec sleep 3");
    let config = K8sConfig::default().with_kubeconfig(file.path());
    let error = fails(config.connect().await, ErrorKind::DeadlineExceeded);
    assert!(error.to_string().contains("credential plugin"), "{error}");
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_told_as_the_network_tells_it() {
    let file = kubeconfig();
    let mut config = K8sConfig::default().with_kubeconfig(file.path());
    config.request_timeout = std::time::Duration::from_secs(1);
    let provider = config.connect().await.unwrap();
    let session = sandbox::SessionId::generate();
    let error = fails(within("attach", provider.attach(&session)).await, ErrorKind::Unavailable);
    // Nobody listens at that port.
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_client_that_repeats_by_itself_and_for_long_keeps_the_providers_deadlines() {
    let bed = Bed::new().await;
    let mut config = bed.config();
    config.ready_timeout = Duration::from_secs(2);
    config.request_timeout = Duration::from_secs(1);
    config.stop_grace = Duration::ZERO;
    config.stop_timeout = Duration::from_secs(5);
    let spec = bed.spec();
    let sandbox = within("provision", bed.provider().provision(&spec)).await.unwrap();
    drop(sandbox);
    let provider = K8sProvider::new(bed.api.retrying_client(), config).unwrap();
    for hangs in [false, true] {
        let down = || Rule::when(On::any());
        let rule = bed.api.rule(if hangs { down().hang() } else { down().retry_after(600).answer(503) });
        let calls = [
            ("provision", 2, within("provision", timed(provider.provision(&spec))).await),
            ("provision anew", 2, within("provision", timed(provider.provision(&bed.spec()))).await),
            ("attach", 1, within("attach", timed(provider.attach(&spec.session))).await),
            ("reap", 5, within("reap", timed(provider.reap(&spec.session))).await),
            ("preflight", 15, within("preflight", timed(provider.preflight(&spec))).await),
        ];
        for (what, seconds, (took, failed)) in calls {
            assert!(failed, "{what}, hangs: {hangs}");
            let most = Duration::from_secs(seconds) + Duration::from_secs(8);
            assert!(took < most, "{what}, hangs: {hangs}: {took:?}");
        }
        rule.remove();
    }
    // It was never the Pod's fault.
    assert_eq!((bed.creates(), bed.deletes()), (1, 0));
    within("provision", bed.provider().provision(&spec)).await.unwrap();
}

/// How long that takes, and whether it fails.
async fn timed<T>(call: impl Future<Output = Result<T, sandbox::Error>>) -> (Duration, bool) {
    let begun = Instant::now();
    let failed = call.await.is_err();
    (begun.elapsed(), failed)
}
