//! What is Kubernetes' own about this backend, on a real cluster: the one of the context that `CONFORMANCE_K8S` names, in the namespace
//! `CONFORMANCE_K8S_NAMESPACE`, or the context's. What every backend must do is the suite's (`conformance/tests/k8s.rs`).
#![allow(clippy::print_stderr, reason = "it says what it will make before it does")]

mod bed;
mod death;
mod found;
mod gated;
mod harness;
mod inside;
mod past;
#[cfg(target_os = "linux")]
mod proxied;
mod refused;
mod rights;
#[cfg(target_os = "linux")]
mod way;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use bed::Bed;
use harness::{Any, Outcome};

/// How long one test may take.
const LIMIT: Duration = Duration::from_secs(180);

fn trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    harness::trial_within(name, LIMIT, body)
}

/// A test that needs images which only the test bed has.
fn bed_trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    harness::on_the_bed(trial(name, body), "the images")
}

fn main() -> ExitCode {
    let mut trials = inside::trials();
    let parts =
        [found::trials(), refused::trials(), death::trials(), rights::trials(), gated::trials(), past::trials()];
    for part in parts {
        trials.extend(part);
    }
    trials.extend(wire::trials());
    #[cfg(target_os = "linux")]
    trials.extend(way::trials());
    harness::run(&Arguments::from_args(), trials, "makes and removes Pods, ServiceAccounts, Roles and RoleBindings")
}
