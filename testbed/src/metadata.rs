//! What cargo knows about the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Context as _, Result};
use crate::process::Task;

/// `cargo metadata`, the parts that are used here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    pub(crate) workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) id: String,
    pub(crate) license: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) source: Option<String>,
    pub(crate) registry: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

impl Metadata {
    /// Asks cargo. With `locked`, a lock file that would have to change is an error.
    pub(crate) fn load(locked: bool) -> Result<Self> {
        let mut args = vec!["metadata", "--format-version=1"];
        if locked {
            args.push("--locked");
        }
        let json = Task::new(cargo(), Duration::from_secs(300)).args(args).named("cargo metadata").stdout()?;
        serde_json::from_str(&json).doing(|| "read cargo metadata".to_owned())
    }

    /// The packages of this workspace, in order of name.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The package that has this example, if any has.
    pub(crate) fn example(&self, name: &str) -> Option<&Package> {
        self.members().find(|package| {
            package.targets.iter().any(|target| target.name == name && target.kind.iter().any(|kind| kind == "example"))
        })
    }
}

impl Package {
    /// The folder of its Cargo.toml.
    pub(crate) fn dir(&self) -> &Path {
        self.manifest_path.parent().expect("a manifest lies in a folder")
    }
}

/// The cargo that runs us, else the one in PATH.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
