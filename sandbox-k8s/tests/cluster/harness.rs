//! How a test on a real cluster is run.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::bed::{self, Bed};

/// What a test says when it fails, and how it ends.
pub(crate) type Any = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Outcome = Result<(), Any>;

/// A test with a deployment of its own, of which nothing may be left. It may take as long as `limit`.
pub(crate) fn trial_within<F, Fut>(name: &'static str, limit: Duration, body: F) -> Trial
where
    F: Fn(Bed) -> Fut + Send + 'static,
    Fut: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let outcome = runtime.block_on(async {
            let bed = Bed::open().await?;
            let outcome = tokio::time::timeout(limit, body(bed.clone())).await;
            let left = bed.close().await?;
            outcome.map_err(|_| format!("it took longer than {limit:?}"))??;
            if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", ")).into()) }
        });
        outcome.map_err(|e: Any| Failed::from(chain(&*e)))
    })
}

/// Of a test that needs what only the test bed has: shows it as one that does not apply elsewhere.
pub(crate) fn on_the_bed(trial: Trial, what: &str) -> Trial {
    match std::env::var_os("TESTBED_CLUSTER") {
        Some(_) => trial,
        None => trial.with_kind(format!("n/a: needs {what} of the test bed")).with_ignored_flag(true),
    }
}

/// An error with what caused it.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(reason) = cause {
        text = format!("{text}\n  because {reason}");
        cause = reason.source();
    }
    text
}

/// Runs them on the cluster that is named, or shows that none is. `makes` says what that cluster is in for.
pub(crate) fn run(args: &Arguments, trials: Vec<Trial>, makes: &str) -> ExitCode {
    if bed::context().is_some() {
        if !args.list {
            eprintln!("This {makes} on the cluster of {}.", bed::place());
        }
        return libtest_mimic::run(args, trials).exit_code();
    }
    let required = std::env::var("CONFORMANCE_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|name| name.trim() == "k8s");
    let text = format!("absent: set {} to a context of your kubeconfig ({} tests)", bed::CONTEXT, trials.len());
    let failed = Failed::from(text.clone());
    let entry = Trial::test("cluster", move || Err(failed));
    let entry = if required { entry } else { entry.with_kind(text).with_ignored_flag(true) };
    libtest_mimic::run(args, vec![entry]).exit_code()
}
