use serde_json::json;

use super::*;
use crate::{parse_image_pull_secrets, parse_node_selector, parse_tolerations};

#[test]
fn the_default_is_valid_and_survives_json() {
    K8sConfig::default().validate().unwrap();
    let text = serde_json::to_string(&K8sConfig::default()).unwrap();
    assert_eq!(serde_json::from_str::<K8sConfig>(&text).unwrap(), K8sConfig::default());
    assert_eq!(serde_json::from_str::<K8sConfig>("{}").unwrap(), K8sConfig::default());
    assert!(serde_json::from_str::<K8sConfig>(r#"{"namespce": "x"}"#).is_err());
}

/// Each: the field as JSON, and how its value stands in the message; `None` where it is accepted.
#[tokio::test]
async fn every_field_has_its_rule() {
    // Nobody listens there, and nobody is asked.
    let client = kube::Client::try_from(kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"))).unwrap();
    let secs = |secs: u64, nanos: u32| json!({"secs": secs, "nanos": nanos});
    let table = [
        ("kubeconfig", json!(""), Some("\"\"")),
        ("kubeconfig", json!("/x"), None),
        ("context", json!(""), Some("\"\"")),
        ("context", json!("any name: at all"), None),
        ("namespace", json!("Sandboxes"), Some("\"Sandboxes\"")),
        ("namespace", json!("a.b"), Some("\"a.b\"")),
        ("namespace", json!("kube-system"), Some("\"kube-system\"")),
        ("namespace", json!("kube-public"), Some("\"kube-public\"")),
        ("namespace", json!("kube-node-lease"), Some("\"kube-node-lease\"")),
        ("namespace", json!("sandboxes"), None),
        ("deployment", json!(""), Some("\"\"")),
        ("deployment", json!("a,b"), Some("\"a,b\"")),
        ("deployment", json!("a=b"), Some("\"a=b\"")),
        ("deployment", json!("x".repeat(64)), Some("xxx")),
        ("deployment", json!("Team_A.1"), None),
        ("domain", json!(""), Some("\"\"")),
        ("domain", json!("a/b"), Some("\"a/b\"")),
        ("domain", json!("Example.org"), Some("\"Example.org\"")),
        ("domain", json!("example.org"), None),
        ("net_setup_image", json!(""), Some("\"\"")),
        ("net_setup_image", json!("busy box"), Some("\"busy box\"")),
        ("net_setup_image", json!("busybox"), None),
        ("image_pull_secrets", json!(["RegCred"]), Some("\"RegCred\"")),
        ("image_pull_secrets", json!(["a", "a"]), Some("\"a\"")),
        ("image_pull_secrets", json!(["a", "a.b"]), None),
        ("runtime_class", json!("gVisor"), Some("\"gVisor\"")),
        ("runtime_class", json!(""), Some("\"\"")),
        ("runtime_class", json!("gvisor"), None),
        ("service_account", json!("a b"), Some("\"a b\"")),
        ("service_account", json!(""), Some("\"\"")),
        ("service_account", json!("Sandboxes"), Some("\"Sandboxes\"")),
        ("service_account", json!("sandboxes.none"), None),
        ("priority_class", json!("a_b"), Some("\"a_b\"")),
        ("priority_class", json!(""), Some("\"\"")),
        ("priority_class", json!("system-node-critical"), None),
        ("image_pull_policy", json!("Always"), None),
        ("user_namespaces", json!(true), None),
        ("node_selector", json!({"not a key": "x"}), Some("\"not a key=x\"")),
        ("node_selector", json!({"role": "not a value"}), Some("\"role=not a value\"")),
        ("node_selector", json!({"cloud.google.com/gke-nodepool": "sandbox", "drained": ""}), None),
        ("tolerations", json!([{"key": "my pool"}]), Some("my pool")),
        ("tolerations", json!([{"operator": "Exists"}]), None),
        ("volume_bytes", json!(0), Some("\"0\"")),
        ("volume_bytes", json!(1), None),
        ("volume_bytes", json!(i64::MAX), None),
        ("volume_bytes", json!(i64::MAX as u64 + 1), Some("\"9223372036854775808\"")),
        ("max_lifetime", secs(0, 0), Some("\"0ns\"")),
        ("max_lifetime", secs(1, 5), Some("\"1.000000005s\"")),
        ("max_lifetime", secs(1 << 31, 0), Some("\"2147483648s\"")),
        ("max_lifetime", secs(3600, 0), None),
        ("max_lifetime", secs(1, 0), None),
        ("max_lifetime", secs((1 << 31) - 1, 0), None),
        ("ready_timeout", secs(0, 0), Some("\"0ns\"")),
        ("ready_timeout", secs(0, 1), None),
        ("ready_timeout", secs(86_400, 0), None),
        ("ready_timeout", secs(86_400, 1), Some("\"86400.000000001s\"")),
        ("request_timeout", secs(0, 0), Some("\"0ns\"")),
        ("request_timeout", secs(100_000, 0), Some("\"100000s\"")),
        ("request_timeout", secs(86_400, 0), None),
        ("stop_timeout", secs(0, 0), Some("\"0ns\"")),
        ("stop_timeout", secs(3, 0), Some("\"3s\"")),
        ("stop_timeout", secs(6, 999_999_999), Some("\"6.999999999s\"")),
        ("stop_timeout", secs(7, 0), None),
        ("stop_timeout", secs(86_401, 0), Some("\"86401s\"")),
        ("stop_grace", secs(61, 0), Some("\"61s\"")),
        ("stop_grace", secs(1, 500_000_000), Some("\"1.5s\"")),
        ("stop_grace", secs(0, 0), None),
        ("stop_grace", secs(25, 0), None),
        ("image_pull_grace", secs(0, 0), None),
        ("image_pull_grace", secs(86_401, 0), Some("\"86401s\"")),
        ("unschedulable_grace", secs(86_400, 0), None),
        ("unschedulable_grace", secs(100_000, 0), Some("\"100000s\"")),
        ("max_opening", json!(0), Some("\"0\"")),
        ("max_opening", json!(1), None),
        ("max_opening", json!(1024), None),
        ("max_opening", json!(1025), Some("\"1025\"")),
    ];
    for (field, value, refused) in table {
        let config: K8sConfig = serde_json::from_value(json!({field: value})).unwrap();
        match (config.validate(), refused) {
            (Ok(()), None) => {}
            (Err(error), Some(shown)) => {
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
                assert!(text.contains(field) && text.contains(shown), "{field} {value}: {text}");
            }
            (outcome, _) => panic!("{field} {value}: {outcome:?}"),
        }
        // Either way to a provider says the same, before anything else: also where the way to the cluster is unusable.
        let made = crate::K8sProvider::new(client.clone(), config.clone());
        let mut nowhere = config;
        if field != "kubeconfig" {
            nowhere.kubeconfig = Some("/nowhere/at/all".into());
        }
        let connected = nowhere.connect().await;
        match (made, connected.unwrap_err(), refused) {
            (Ok(_), error, None) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{field} {value}: {error}"),
            (Err(made), error, Some(shown)) => {
                for error in [made, error] {
                    let text = error.to_string();
                    assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
                    assert!(text.contains(field) && text.contains(shown), "{field} {value}: {text}");
                }
            }
            (made, _, _) => panic!("{field} {value}: {made:?}"),
        }
    }
    // What is no value of its field at all is refused by name, too; so is a namespace of Kubernetes that only the client names.
    for (field, value) in
        [("image_pull_policy", json!("Sometimes")), ("max_opening", json!(-1)), ("tolerations", json!({}))]
    {
        let error = serde_json::from_value::<K8sConfig>(json!({field: value})).unwrap_err().to_string();
        assert!(error.contains(value.as_str().unwrap_or("")), "{field}: {error}");
    }
    let mut config = kube::Config::new(http::Uri::from_static("http://127.0.0.1:9"));
    config.default_namespace = "kube-system".to_owned();
    let client = kube::Client::try_from(config).unwrap();
    let error = crate::K8sProvider::new(client, K8sConfig::default()).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidSpec && error.to_string().contains("\"kube-system\""), "{error}");
    // Long values are not repeated whole.
    let long = K8sConfig::default().with_deployment("x".repeat(100_000)).validate().unwrap_err();
    assert!(long.to_string().len() < 1000);
}

fn rejected<T: std::fmt::Debug>(field: &str, line: &str, outcome: Result<T, Error>) {
    let error = outcome.expect_err(line);
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{text}");
    assert!(text.contains(field) && text.contains(&format!("{line:?}")), "{text}");
}

#[test]
fn node_selectors_of_one_line() {
    let pairs = |line: &str| parse_node_selector(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    assert_eq!(pairs(""), BTreeMap::new());
    assert_eq!(pairs("  "), BTreeMap::new());
    for (line, wanted) in [
        ("role=sandbox", vec![("role", "sandbox")]),
        ("role=sandbox,pool=isolated", vec![("pool", "isolated"), ("role", "sandbox")]),
        (" role = sandbox , pool = isolated ", vec![("pool", "isolated"), ("role", "sandbox")]),
        ("cloud.google.com/gke-nodepool=sandbox", vec![("cloud.google.com/gke-nodepool", "sandbox")]),
        ("drained=", vec![("drained", "")]),
    ] {
        let found = pairs(line);
        assert_eq!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), wanted, "{line}");
    }
    for line in [
        "role",
        "=sandbox",
        "role=sandbox,,pool=isolated",
        "role=sandbox,",
        "role=sandbox,role=other",
        "not a key=sandbox",
        "role=not a value",
        "role=sand=box",
    ] {
        rejected("node_selector", line, parse_node_selector(line));
    }
}

#[test]
fn pull_secrets_of_one_line() {
    assert!(parse_image_pull_secrets(" ").unwrap().is_empty());
    assert_eq!(parse_image_pull_secrets("regcred").unwrap(), ["regcred"]);
    assert_eq!(parse_image_pull_secrets(" regcred , ghcr-pull ").unwrap(), ["regcred", "ghcr-pull"]);
    for line in ["RegCred", "reg_cred", "regcred,,ghcr-pull", "regcred,", "regcred,regcred"] {
        rejected("image_pull_secrets", line, parse_image_pull_secrets(line));
    }
}

#[test]
fn tolerations_of_one_line() {
    for line in ["", "  ", "[]"] {
        assert!(parse_tolerations(line).unwrap().is_empty(), "{line}");
    }
    for line in [
        r#"[{"key":"sandbox","operator":"Equal","value":"true","effect":"NoSchedule"}]"#,
        r#"[{"key":"sandbox","operator":"Exists"}]"#,
        r#"[{"operator":"Exists"}]"#,
        r#"[{"key":"sandbox","value":"true"}]"#,
        r#"[{"key":"sandbox"}]"#,
        r#"[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":30}]"#,
        r#"[{"key":"a","operator":"Lt","value":"5"}]"#,
        r#"[{"key":"a","operator":"Gt","value":"0"}]"#,
        r#"[{"key":"a","operator":"Lt","value":"-5"}]"#,
    ] {
        let read = parse_tolerations(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(serde_json::to_string(&read).unwrap(), line);
    }
    for line in [
        "sandbox=true:NoSchedule",
        r#"{"key":"sandbox"}"#,
        r#"[{"key":"sandbox""#,
        "[]]",
        "[]}",
        "null",
        r#"[{"key":"a","efect":"NoSchedule"}]"#,
        r#"[{"key":"a","effect":"NoScheduling"}]"#,
        r#"[{"key":"a","operator":"Equals"}]"#,
        r#"[{"operator":"Equal","value":"x"}]"#,
        r#"[{"key":"a","operator":"Exists","value":"x"}]"#,
        r#"[{"key":"my pool","operator":"Exists"}]"#,
        r#"[{"key":"a","value":"pool 1"}]"#,
        r#"[{"key":"a","effect":"NoSchedule","tolerationSeconds":30}]"#,
        r#"[{"key":"a","tolerationSeconds":30}]"#,
        r#"[{"key":"a","operator":"Lt","value":"abc"}]"#,
        r#"[{"key":"a","operator":"Lt","value":"0100"}]"#,
        r#"[{"key":"a","operator":"Lt","value":"99999999999999999999"}]"#,
        r#"[{"key":"a","operator":"Gt","value":"+5"}]"#,
        r#"[{"key":"a","operator":"Gt","value":"-01"}]"#,
        r#"[{"key":"a","operator":"Gt","value":""}]"#,
        r#"[{"key":"a","operator":"Lt","value":"-0"}]"#,
    ] {
        rejected("tolerations", line, parse_tolerations(line));
    }
}
