//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::check::Gate;
use crate::error::Result;
use crate::tally::Tally;
use crate::{check, suite};

/// Real Kubernetes and real systemd hosts for the tests, and every test and gate of the workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed", bin_name = "cargo testbed")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every test there is; as root, run them as root and once more as an ordinary user.
    Test(suite::Options),
    /// Run the gates that are not tests: format, lints, docs, dependencies, lone builds, the quickstart.
    Check {
        /// Only these gates.
        gates: Vec<Gate>,
    },
    /// Check dependencies against deny.toml (licences, bans, sources).
    Deny,
    /// Everything: the gates, then the tests. What `.ci/run` runs.
    Ci(suite::Options),
}

impl Command {
    /// Does what was asked.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut tally = Tally::new();
        match self {
            Self::Test(options) => suite::run(&options, &mut tally)?,
            Self::Check { gates } => check::run(&gates, &mut tally)?,
            Self::Deny => check::run(&[Gate::Deny], &mut tally)?,
            Self::Ci(options) => {
                check::run(&[], &mut tally)?;
                suite::run(&options, &mut tally)?;
            }
        }
        Ok(if tally.print() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
