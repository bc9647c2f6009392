//! What is Kubernetes' own about this backend, on a real cluster: the one of the context that `CONFORMANCE_K8S` names, in the namespace
//! `CONFORMANCE_K8S_NAMESPACE`, or the context's. What every backend must do is the suite's (`conformance/tests/k8s.rs`).
#![allow(clippy::print_stderr, reason = "it says what it will make before it does")]

mod bed;
mod death;
mod found;
mod gated;
mod inside;
mod refused;
mod rights;
#[cfg(target_os = "linux")]
mod way;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use bed::Bed;

/// What a test says when it fails, and how it ends.
type Any = Box<dyn std::error::Error + Send + Sync>;
type Outcome = Result<(), Any>;

/// How long one test may take.
const LIMIT: Duration = Duration::from_secs(180);

fn trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async {
            let bed = Bed::open().await?;
            let outcome = tokio::time::timeout(LIMIT, body(bed.clone())).await;
            let left = bed.close().await?;
            outcome.map_err(|_| format!("it took longer than {LIMIT:?}"))??;
            if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", ")).into()) }
        });
        outcome.map_err(|e: Box<dyn std::error::Error + Send + Sync>| Failed::from(chain(&*e)))
    })
}

/// A test that needs images which only the test bed has.
fn bed_trial<F, Fut>(name: &'static str, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    let trial = trial(name, body);
    match std::env::var_os("TESTBED_CLUSTER") {
        Some(_) => trial,
        None => trial.with_kind("n/a: needs the images of the test bed").with_ignored_flag(true),
    }
}

/// An error with what caused it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(reason) = cause {
        text = format!("{text}\n  because {reason}");
        cause = reason.source();
    }
    text
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let mut trials = inside::trials();
    for part in [found::trials(), refused::trials(), death::trials(), rights::trials(), gated::trials()] {
        trials.extend(part);
    }
    #[cfg(target_os = "linux")]
    trials.extend(way::trials());
    if bed::context().is_some() {
        if !args.list {
            let place = bed::place();
            eprintln!(
                "This makes and removes Pods, ServiceAccounts, Roles and RoleBindings on the cluster of {place}."
            );
        }
        return libtest_mimic::run(&args, trials).exit_code();
    }
    let required = std::env::var("CONFORMANCE_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|name| name.trim() == "k8s");
    let text = format!("absent: set {} to a context of your kubeconfig ({} tests)", bed::CONTEXT, trials.len());
    let failed = Failed::from(text.clone());
    let entry = Trial::test("cluster", move || Err(failed));
    let entry = if required { entry } else { entry.with_kind(text).with_ignored_flag(true) };
    libtest_mimic::run(&args, vec![entry]).exit_code()
}
