//! `deny.toml`, read as cargo-deny reads it, checked over `cargo metadata`.
//!
//! Installing cargo-deny takes minutes, this takes a second. Only the keys that our file uses are known; any other key
//! is an error, so that the file never says something that nobody checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;

use super::license;
use crate::error::{Context as _, Error, Result};
use crate::metadata::Metadata;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
    /// Needs a database from the network: for cargo-deny itself, in a public pipeline.
    #[serde(rename = "advisories")]
    _advisories: Option<toml::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
}

#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Level {
    Allow,
    Warn,
    Deny,
}

/// What the policy has to say about a set of packages.
#[derive(Debug, Default)]
struct Findings {
    denied: Vec<String>,
    warned: Vec<String>,
}

impl Findings {
    fn add(&mut self, level: Level, text: String) {
        match level {
            Level::Allow => {}
            Level::Warn => self.warned.push(text),
            Level::Deny => self.denied.push(text),
        }
    }
}

/// Holds every package in the graph to deny.toml.
pub(super) fn check(metadata: &Metadata) -> Result<()> {
    let path = metadata.workspace_root.join("deny.toml");
    let text = fs::read_to_string(&path).doing(|| format!("read {}", path.display()))?;
    let findings = judge(&text, metadata)?;
    for text in &findings.warned {
        println!("warning: {text}");
    }
    if findings.denied.is_empty() {
        println!("{} packages are within deny.toml", metadata.packages.len());
        return Ok(());
    }
    Err(Error::new(findings.denied.join("\n")))
}

fn judge(policy: &str, metadata: &Metadata) -> Result<Findings> {
    let policy: Policy = toml::from_str(policy).doing(|| "read deny.toml".to_owned())?;
    let mut findings = Findings::default();
    let registry = default_registry(metadata);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &metadata.packages {
        let (name, version) = (package.name.as_str(), package.version.as_str());
        versions.entry(name).or_default().insert(version);
        match package
            .license
            .as_deref()
            .map(|expression| (expression, license::satisfied(expression, &policy.licenses.allow)))
        {
            Some((_, Some(true))) => {}
            Some((expression, Some(false))) => {
                findings.denied.push(format!("{name} {version}: the licence {expression} is not allowed"))
            }
            Some((expression, None)) => {
                findings.denied.push(format!("{name} {version}: cannot read the licence {expression:?}"))
            }
            None => findings.denied.push(format!("{name} {version}: no licence")),
        }
        if let Some(ban) = policy.bans.deny.iter().find(|ban| ban.name == name) {
            findings.denied.push(format!("{name} {version} is banned: {}", ban.reason));
        }
        match package.source.as_deref() {
            None => {}
            Some(source) if registry == Some(source) => {}
            Some(source) if source.starts_with("git+") => {
                findings.add(policy.sources.unknown_git, format!("{name} {version} comes from {source}"));
            }
            Some(source) => {
                findings.add(policy.sources.unknown_registry, format!("{name} {version} comes from {source}"))
            }
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let list: Vec<_> = versions.iter().copied().collect();
        findings
            .add(policy.bans.multiple_versions, format!("{name} is there in several versions: {}", list.join(", ")));
    }
    Ok(findings)
}

/// The source that cargo uses where a manifest names no registry.
fn default_registry(metadata: &Metadata) -> Option<&str> {
    let dependencies = metadata.members().flat_map(|package| &package.dependencies);
    dependencies
        .filter(|dependency| dependency.registry.is_none())
        .filter_map(|dependency| dependency.source.as_deref())
        .find(|source| source.starts_with("registry+"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT"]
        [bans]
        multiple-versions = "warn"
        deny = [{ crate = "evil", reason = "it is" }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
    "#;

    /// A workspace of one member that depends on what is given as (name, version, licence, source).
    fn graph(packages: &[(&str, &str, &str, &str)]) -> Metadata {
        let mut all = vec![serde_json::json!({
            "name": "us", "version": "0.1.0", "id": "us", "license": "MIT", "source": null, "manifest_path": "/w/us/Cargo.toml",
            "dependencies": [{ "source": "registry+default", "registry": null }], "targets": [],
        })];
        all.extend(packages.iter().map(|(name, version, license, source)| {
            serde_json::json!({
                "name": name, "version": version, "id": format!("{name}@{version}"), "license": license, "source": source,
                "manifest_path": "/r/Cargo.toml", "dependencies": [], "targets": [],
            })
        }));
        let metadata = serde_json::json!({ "packages": all, "workspace_members": ["us"], "workspace_root": "/w" });
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn what_is_fine_is_fine() {
        let findings = judge(POLICY, &graph(&[("good", "1.0.0", "MIT OR GPL-3.0", "registry+default")])).unwrap();
        assert!(findings.denied.is_empty() && findings.warned.is_empty(), "{findings:?}");
    }

    #[test]
    fn each_fault_is_found_once() {
        for (package, want) in [
            (("a", "1.0.0", "GPL-3.0", "registry+default"), "a 1.0.0: the licence GPL-3.0 is not allowed"),
            (("a", "1.0.0", "MIT AND", "registry+default"), "a 1.0.0: cannot read the licence \"MIT AND\""),
            (("evil", "1.0.0", "MIT", "registry+default"), "evil 1.0.0 is banned: it is"),
            (("a", "1.0.0", "MIT", "registry+other"), "a 1.0.0 comes from registry+other"),
            (("a", "1.0.0", "MIT", "git+somewhere"), "a 1.0.0 comes from git+somewhere"),
        ] {
            assert_eq!(judge(POLICY, &graph(&[package])).unwrap().denied, [want]);
        }
    }

    #[test]
    fn two_versions_are_a_warning() {
        let twice = [("a", "1.0.0", "MIT", "registry+default"), ("a", "2.0.0", "MIT", "registry+default")];
        let findings = judge(POLICY, &graph(&twice)).unwrap();
        assert_eq!(findings.warned, ["a is there in several versions: 1.0.0, 2.0.0"]);
        assert!(findings.denied.is_empty());
    }

    #[test]
    fn a_key_that_nobody_checks_is_an_error() {
        let policy = format!("{POLICY}\nallow-git = []\n");
        assert!(judge(&policy, &graph(&[])).is_err());
    }

    #[test]
    fn the_real_file_is_readable() {
        let text = include_str!("../../../deny.toml");
        judge(text, &graph(&[])).unwrap();
    }
}
