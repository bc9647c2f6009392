//! Real Kubernetes and real systemd hosts for the tests, and the commands that run every test and every gate.
//!
//! Run as `cargo testbed …`; `README.md` beside this crate shows how to play with it by hand.

// A command-line tool talks on stdout and stderr.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod beds;
mod cgroup;
mod check;
mod cli;
mod diagnosis;
mod error;
mod host;
mod images;
mod k8s;
mod leak;
mod metadata;
mod packages;
mod place;
mod process;
mod process_id;
mod smoke;
mod stop;
mod suite;
mod tally;
mod user;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    if let Err(error) = stop::install() {
        eprintln!("testbed: {error}");
        return ExitCode::FAILURE;
    }
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("testbed: {error}");
            ExitCode::FAILURE
        }
    }
}
