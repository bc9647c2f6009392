//! The public suite that holds a backend to the contract.

mod case;
mod factory;
mod failure;
#[cfg(target_os = "linux")]
pub mod isolation;
mod options;
mod report;
mod runner;
pub mod sandbox;

use std::process::ExitCode;

pub use case::{Case, Need};
pub use factory::{Factory, Probe};
pub use failure::{Failure, Outcome, ensure, equal, same, short};
pub use options::Options;
pub use report::{CaseReport, Counts, Report, Verdict};
pub use runner::within;

/// The whole `main` of a test file: reads the arguments of a test binary and the variables of [`Options::from_vars`], runs
/// what they ask for, and answers the exit code.
pub fn main<F: Factory>(factory: F) -> ExitCode {
    let args = libtest_mimic::Arguments::from_args();
    let options = Options::from_vars(|name| std::env::var(name).ok());
    runner::run_as_test_binary(factory, options, &args).exit_code()
}

/// Runs the suite from a program and answers what it found. Prints nothing.
pub async fn run<F: Factory>(factory: F, options: Options) -> Report {
    runner::Suite::new(factory, options).await.run().await
}
