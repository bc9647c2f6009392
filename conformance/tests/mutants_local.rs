//! The cases that apply to no provider of these tests but the embedded backend: each mutant that names one dies by it there.
//!
//! A case that needs a claim which the backend does not make here, such as bounds without control groups, is listed and ignored, and
//! says so.
//!
//! `cfg`: the backend exists on Linux alone.
#![cfg_attr(not(target_os = "linux"), allow(unused))]

mod proof;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use std::sync::Arc;

    use conformance::sandbox::{NoBackend, Setup};
    use sandbox::Provider;
    use sandbox_local::{LocalConfig, LocalProvider};

    let directory = tempfile::tempdir().expect("a directory for the sandboxes");
    let config = LocalConfig::default().with_state_dir(directory.path().join("state"));
    let setup = Setup::new("local", move || {
        let provider = LocalProvider::new(config.clone());
        async move { Ok::<_, NoBackend>(Arc::new(provider?) as Arc<dyn Provider>) }
    });
    conformance::main(proof::Proof { setup, only: proof::ON_LOCAL, more: Vec::new() })
}
