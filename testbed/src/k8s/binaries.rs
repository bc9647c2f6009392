//! The Kubernetes programs: built from the Go module, once per version.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Context as _, Error, Result};
use crate::place::{Place, digest, lock, make_dir, write};
use crate::process::{Task, in_path};

/// The version that is built when none is named.
pub(crate) const DEFAULT_VERSION: &str = "1.36.3";

const BUILD: &str = include_str!("../../scripts/build-kubernetes.sh");
const WSEXEC: &str = include_str!("../../scripts/wsexec.go");

/// Builds the programs unless they are in the cache, and says where they are.
pub(crate) fn ensure(place: &Place, version: &str) -> Result<PathBuf> {
    let parts: Vec<_> = version.split('.').collect();
    if parts.len() != 3 || parts[0] != "1" || parts.iter().any(|part| part.parse::<u32>().is_err()) {
        return Err(Error::new(format!("{version:?} is not a Kubernetes version: want 1.MINOR.PATCH")));
    }
    let recipe = digest([BUILD, WSEXEC].concat().as_bytes());
    let dir = place.cache().join(format!("k8s-{version}-{}", &recipe[..8]));
    make_dir(place.cache())?;
    let _lock = lock(&place.cache().join(format!("k8s-{version}.lock")))?;
    if dir.exists() {
        return Ok(dir);
    }
    if !in_path("go") {
        return Err(Error::new("go is missing: the Kubernetes programs are built from source, by Go 1.26 or newer"));
    }
    println!("building Kubernetes {version}; this takes minutes the first time");
    let scripts = tempfile::tempdir().doing(|| "make a temporary folder".to_owned())?;
    let script = scripts.path().join("build-kubernetes.sh");
    write(&script, BUILD)?;
    write(scripts.path().join("wsexec.go"), WSEXEC)?;
    let task = Task::new("bash", Duration::from_secs(45 * 60)).args([&script]).args([version]).args([&dir]);
    task.named("build-kubernetes.sh").stdout()?;
    Ok(dir)
}

/// The minor version, as in 1.MINOR.PATCH.
pub(crate) fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}
