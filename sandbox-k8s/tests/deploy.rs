//! What the manifests say fits together, and fits the code.
#![allow(clippy::unwrap_used, reason = "a failure here is the point")]

use sandbox_k8s::K8sConfig;

const RBAC: &str = include_str!("../deploy/rbac.yaml");
const POLICY: &str = include_str!("../deploy/networkpolicy.yaml");

/// The objects of a manifest, without its comments.
fn objects(text: &str) -> Vec<String> {
    let code =
        |text: &str| text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    text.split("\n---\n").map(code).collect()
}

fn kind<'a>(objects: &'a [String], kind: &str) -> &'a str {
    let line = format!("kind: {kind}");
    let found = objects.iter().find(|text| text.lines().any(|l| l == line));
    found.unwrap_or_else(|| panic!("there is no {kind}"))
}

/// What follows `key: ` on the last line that has it.
fn last<'a>(text: &'a str, key: &str) -> &'a str {
    let value = |line: &'a str| line.trim_start().strip_prefix(key)?.strip_prefix(": ");
    text.lines().filter_map(value).next_back().unwrap_or_else(|| panic!("no {key}: {text}"))
}

#[test]
fn the_services_account_is_not_among_the_sandboxes() {
    let objects = objects(RBAC);
    let sandboxes = last(kind(&objects, "Role"), "namespace");
    let account = kind(&objects, "ServiceAccount");
    assert_ne!(last(account, "namespace"), sandboxes);
    let binding = kind(&objects, "RoleBinding");
    // The last one is the subject's.
    assert_eq!(last(binding, "namespace"), last(account, "namespace"));
    assert_eq!(last(binding, "name"), last(account, "name"));
    assert!(binding.contains(&format!("metadata:\n  name: sandbox-manager\n  namespace: {sandboxes}")), "{binding}");
    let made: Vec<_> =
        objects.iter().filter(|text| text.contains("kind: Namespace\n")).map(|n| last(n, "name")).collect();
    assert_eq!(made.len(), 2, "each is made: {made:?}");
}

#[test]
fn the_policies_select_by_the_default_domain() {
    let domain = K8sConfig::default().domain;
    let keys: Vec<_> = POLICY.lines().filter_map(|line| line.trim_start().strip_prefix("- key: ")).collect();
    assert_eq!(keys, [format!("{domain}/networking"), format!("{domain}/session")]);
    for policy in objects(POLICY) {
        assert_eq!(last(&policy, "namespace"), last(kind(&objects(RBAC), "Role"), "namespace"));
    }
}
