//! The gates: everything that has to hold besides the tests. Each counts as one passed or one failed.

mod deny;
mod license;
mod tree;

use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::error::{Context as _, Error, Result};
use crate::metadata::{Metadata, cargo};
use crate::place::checkout;
use crate::process::Task;
use crate::tally::{Counts, Tally};
use crate::{packages, stop, suite};

const LIMIT: Duration = Duration::from_secs(30 * 60);

/// One gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gate {
    /// The lock file is complete.
    Lock,
    /// `cargo fmt --check`.
    Fmt,
    /// `cargo clippy -D warnings` on all targets.
    Clippy,
    /// `cargo doc -D warnings`.
    Doc,
    /// `shellcheck` of the scripts that run inside sandboxes, and of the bed's own.
    Shell,
    /// Licences, bans and sources of dependencies, by deny.toml.
    Deny,
    /// The trait crates pull no Kubernetes client and no network stack.
    Tree,
    /// Each crate builds alone, and without its default features.
    Alone,
    /// `cargo run --example quickstart` works, as root and as an ordinary user.
    Quickstart,
}

enum Outcome {
    Passed,
    /// There is nothing to check yet: shown, never counted as passed.
    Absent(&'static str),
}

/// Runs the gates (all when none is named) and adds each to `tally`.
pub(crate) fn run(gates: &[Gate], tally: &mut Tally) -> Result<()> {
    let gates = if gates.is_empty() { Gate::value_variants() } else { gates };
    for gate in gates {
        let name = gate.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        println!("\n==> gate {name}");
        let started = Instant::now();
        let outcome = gate.check();
        if stop::requested() {
            return Err(Error::new("stopped"));
        }
        match outcome {
            Ok(Outcome::Passed) => {
                tally.push(format!("gate {name}"), Counts { passed: 1, ..Counts::default() }, started)
            }
            Ok(Outcome::Absent(why)) => {
                println!("not checked: {why}");
                tally.push(format!("gate {name}: not checked, {why}"), Counts::default(), started);
            }
            Err(error) => {
                println!("gate {name} failed: {error}");
                tally.push(format!("gate {name}"), Counts { failed: 1, ..Counts::default() }, started);
            }
        }
    }
    Ok(())
}

impl Gate {
    fn check(self) -> Result<Outcome> {
        match self {
            Self::Lock => Metadata::load(true).map(drop)?,
            Self::Fmt => run_cargo(&["fmt", "--all", "--check"])?,
            Self::Clippy => run_cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?,
            Self::Doc => {
                let task = Task::new(cargo(), LIMIT).args(["doc", "--workspace", "--no-deps", "--quiet"]);
                task.env("RUSTDOCFLAGS", "-D warnings").named("cargo doc").show()?.ok()?;
            }
            Self::Shell => shell()?,
            Self::Deny => deny::check(&Metadata::load(false)?)?,
            Self::Tree => tree::check(&Metadata::load(false)?)?,
            Self::Alone => alone(&Metadata::load(false)?)?,
            Self::Quickstart => {
                if suite::quickstart()?.is_none() {
                    return Ok(Outcome::Absent("there is no example of that name"));
                }
            }
        }
        Ok(Outcome::Passed)
    }
}

fn shell() -> Result<()> {
    packages::ensure(&[packages::SHELLCHECK])?;
    // What is sent or built in has no first line that says which shell it is for.
    for (folder, ending, flags) in [
        ("sandbox-guest/src/scripts", "bash", &["--shell", "bash"][..]),
        ("sandbox-local/src/scripts", "bash", &["--shell", "bash"]),
        ("sandbox-k8s/src/scripts", "bash", &["--shell", "bash"]),
        ("sandbox-k8s/src/scripts", "sh", &["--shell", "sh"]),
        ("testbed/scripts", "sh", &[]),
    ] {
        let folder = checkout().join(folder);
        let entries = std::fs::read_dir(&folder).doing(|| format!("list {}", folder.display()))?;
        let scripts: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        let scripts = scripts.iter().filter(|path| path.extension().is_some_and(|found| found == ending));
        Task::new("shellcheck", LIMIT).args(flags).args(scripts).show()?.ok()?;
    }
    Task::new("shellcheck", LIMIT).args([checkout().join(".ci/run")]).show()?.ok()
}

fn alone(metadata: &Metadata) -> Result<()> {
    let mut failed = Vec::new();
    for package in metadata.members() {
        let name = package.name.as_str();
        run_cargo(&["check", "--quiet", "--package", name]).unwrap_or_else(|_| failed.push(name.to_owned()));
        // Without features of its own, the second build would be the first one again.
        if package.features.contains_key("default") {
            let without = ["check", "--quiet", "--no-default-features", "--package", name];
            run_cargo(&without).unwrap_or_else(|_| failed.push(format!("{name} without default features")));
        }
        if stop::requested() {
            break;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::new(format!("does not build alone: {}", failed.join(", ")))) }
}

fn run_cargo(args: &[&str]) -> Result<()> {
    Task::new(cargo(), LIMIT).args(args).named(format!("cargo {}", args.join(" "))).show()?.ok()
}
