//! The cases that apply to nothing but a cluster: each mutant that names one dies by it there. And what is listed as unproved is what applies
//! to no backend.
//!
//! Which cluster, and what is made there: as in the test `k8s`.

mod cluster;
mod proof;

use conformance::sandbox::{Setup, cases};
use conformance::{Case, Factory, Failure, Outcome, Probe, equal};
use proof::Proof;
use sandbox::Capabilities;

fn main() -> std::process::ExitCode {
    let setup = cluster::setup();
    let here = setup.clone();
    let unproved = Case::new(
        "unproved::what_applies_to_no_backend",
        "A case that applies to no backend of the family so far is listed as unproved.",
        move |_| what_applies_to_no_backend(here.clone()),
    );
    conformance::main(Proof { setup, only: proof::ON_K8S, more: vec![unproved] })
}

async fn what_applies_to_no_backend(here: Setup) -> Outcome {
    let Probe::Ready { claims, .. } = here.probe().await else {
        return Err(Failure::new("the cluster", "that it answers twice", "another answer"));
    };
    let family = [claims, embedded()?];
    let nowhere = |case: &conformance::sandbox::Case| family.iter().all(|claims| case.not_applicable(claims).is_some());
    let ids = |of: &dyn Fn(&conformance::sandbox::Case) -> bool| {
        cases().iter().filter(|case| of(case)).map(|case| case.id).collect::<Vec<_>>()
    };
    equal("the cases that are marked unproved", ids(&|case| case.unproved), ids(&nowhere))
}

/// What the embedded backend claims here; nothing where it cannot be.
fn embedded() -> Outcome<Capabilities> {
    #[cfg(target_os = "linux")]
    {
        use sandbox::Provider;
        let broken = |text: String| Failure::new("the embedded backend", "its claims", text);
        let state = tempfile::tempdir().map_err(|e| broken(e.to_string()))?;
        let config = sandbox_local::LocalConfig::default().with_state_dir(state.path().join("state"));
        let provider = sandbox_local::LocalProvider::new(config).map_err(|e| broken(format!("{e:?}")))?;
        Ok(provider.capabilities())
    }
    #[cfg(not(target_os = "linux"))]
    Ok(Capabilities::default())
}
