//! A real cluster under fire: components that stop, connections that break anywhere, clients that are killed, many at once. Whatever
//! happens, an operation ends in its time, and what it says is true: a success is one, an error says what it can have changed, nothing
//! is lost, done twice or left behind.
//!
//! `RULES.md` beside the crate says which fault of the past each of these stands for. How much is tried is set by variables, see
//! [`numbers`]; `CONFORMANCE_SLOW=1` tries the whole.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "it says what it makes, breaks and draws")]

#[allow(dead_code, reason = "the other tests on a cluster need more of it")]
#[path = "../cluster/bed.rs"]
mod bed;
#[cfg(target_os = "linux")]
mod cuts;
mod faults;
#[path = "../cluster/harness.rs"]
mod harness;
mod killed;
mod levers;
mod look;
mod many;
mod numbers;
#[cfg(target_os = "linux")]
#[path = "../cluster/proxied.rs"]
mod proxied;
mod scene;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use bed::Bed;
use harness::{Any, Outcome};

fn trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    harness::trial_within(name, numbers::limit(), body)
}

/// A test that breaks the cluster, and mends it.
fn lever_trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    harness::on_the_bed(trial(name, body), "the levers")
}

fn main() -> ExitCode {
    if let Some(deployment) = killed::deployment() {
        return killed::cycles(deployment);
    }
    let mut args = Arguments::from_args();
    // A fault is everybody's.
    args.test_threads = Some(1);
    let mut trials = faults::trials();
    #[cfg(target_os = "linux")]
    trials.extend(cuts::trials());
    trials.extend(killed::trials());
    trials.extend(many::trials());
    harness::run(
        &args,
        trials,
        "makes and removes Pods, and, if it is the test bed's, breaks and mends its components,",
    )
}
