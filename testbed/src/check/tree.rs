//! What the trait crates must not pull: a Kubernetes client, a network stack, systemd.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::metadata::{Metadata, cargo};
use crate::process::Task;

/// The crates that promise to know no backend, and what each may pull all the same: `isolation` starts the log commands that it is
/// handed, and tokio waits for child processes through mio.
const PURE: &[(&str, &[&str])] = &[("sandbox", &[]), ("isolation", &["mio", "tokio feature \"process\""])];
/// Crates that would break the promise; a trailing `*` stands for any ending.
const FORBIDDEN: &[&str] = &[
    "kube",
    "kube-*",
    "k8s-openapi",
    "hyper",
    "hyper-*",
    "reqwest",
    "h2",
    "rustls*",
    "openssl*",
    "native-tls",
    "zbus*",
    "dbus*",
    "systemd*",
    "sd-*",
    "libsystemd*",
    "socket2",
    "bollard",
    "tonic",
];
/// Features that would, by crate.
const FORBIDDEN_FEATURES: &[&str] = &["tokio feature \"net\"", "tokio feature \"full\""];

pub(super) fn check(metadata: &Metadata) -> Result<()> {
    let mut faults = Vec::new();
    for (name, allowed) in PURE {
        if !metadata.members().any(|package| package.name == *name) {
            return Err(Error::new(format!("there is no package {name}")));
        }
        let tree = Task::new(cargo(), Duration::from_secs(300))
            .args(["tree", "--package", name, "--edges", "normal,features", "--prefix", "none", "--target", "all"])
            .named("cargo tree")
            .stdout()?;
        let mut found = forbidden(&tree);
        found.retain(|line| !allowed.iter().any(|a| line == a || line.split(' ').next() == Some(a)));
        if found.is_empty() {
            println!("{name}: none of the {} forbidden crates", FORBIDDEN.len());
        }
        faults.extend(found.into_iter().map(|line| format!("{name} pulls {line}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(Error::new(faults.join("\n"))) }
}

fn forbidden(tree: &str) -> Vec<String> {
    let mut found: Vec<_> =
        tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| breaks(line)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

fn breaks(line: &str) -> bool {
    if FORBIDDEN_FEATURES.contains(&line) {
        return true;
    }
    let name = line.split(' ').next().unwrap_or_default();
    FORBIDDEN.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_crates_and_features_are_found() {
        let tree = "sandbox v0.1.0 (/x)\nbytes v1.10.0\nkube-client v5.0.0\nbytes v1.10.0 (*)\ntokio feature \"net\"\ntokio v1.44.0\ntokio feature \"net\" (*)\n";
        assert_eq!(forbidden(tree), ["kube-client v5.0.0", "tokio feature \"net\""]);
    }

    #[test]
    fn likely_names_are_not() {
        assert_eq!(forbidden("kubelike v1.0.0\nhyperloop v1.0.0\ntokio feature \"sync\"\n"), [""; 0]);
    }
}
