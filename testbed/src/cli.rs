//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::beds::{Bed, Kind};
use crate::check::Gate;
use crate::error::{Context as _, Result};
use crate::host::vm::Vm;
use crate::host::{Debian, Host};
use crate::k8s::Cluster;
use crate::k8s::binaries::DEFAULT_VERSION;
use crate::k8s::fault::Fault;
use crate::k8s::proxied;
use crate::place::Place;
use crate::tally::{Counts, Tally};
use crate::{check, smoke, suite};

/// Real Kubernetes and real systemd hosts for the tests, and every test and gate of the workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo testbed", bin_name = "cargo testbed")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every test there is; as root, also as an ordinary user: those that depend on it again, those with uncontained tenants only so.
    ///
    /// As an ordinary user: about 15 minutes on two cores and 4 GB for the build; nothing is installed, no network is used beyond
    /// cargo's. As root also a Kubernetes cluster and systemd hosts: the Debian packages that they need are installed with apt,
    /// Kubernetes is built from its Go module, and root file systems from Debian's packages. About 45 minutes with all of that in
    /// the cache, an hour without; some 12 GB in all. What was made is removed again, but for packages and the cache
    /// (`${XDG_CACHE_HOME:-~/.cache}/testbed`). Every step says what it does.
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
    /// Make a bed.
    #[command(subcommand)]
    Up(Up),
    /// Remove beds and everything they made; all beds of this checkout when none is named.
    Down { names: Vec<String> },
    /// List the beds and what runs in them.
    Status,
    /// Print the shell variables that a bed's clients need: `eval "$(cargo testbed env k8s)"`.
    Env {
        #[arg(default_value = "k8s")]
        name: String,
    },
    /// Run a command on a bed: with its kubeconfig and kubectl, or inside the systemd host.
    Exec {
        name: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Copy a program into a virtual machine.
    Put { name: String, source: PathBuf, target: String },
    /// Try every piece of a bed: make one, test it, remove it, see that nothing is left.
    Smoke {
        #[arg(required = true)]
        subjects: Vec<smoke::Subject>,
        /// Also what takes long: evictions.
        #[arg(long)]
        slow: bool,
    },
    /// Measure what kubectl and a raw exec take, on a fresh cluster or on one that is up.
    Bench { name: Option<String> },
    /// Put a proxy that misbehaves in front of a cluster's API server, until Ctrl-C.
    Proxy {
        name: String,
        #[command(flatten)]
        options: proxied::Options,
    },
    /// Break something in a cluster, or mend it.
    Fault {
        name: String,
        #[command(subcommand)]
        fault: Fault,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Up {
    /// A one-node Kubernetes.
    K8s {
        /// What to call it; several live side by side.
        #[arg(long, default_value = "k8s")]
        name: String,
        /// The Kubernetes version.
        #[arg(long, default_value = DEFAULT_VERSION)]
        k8s: String,
    },
    /// A systemd host in namespaces.
    Host {
        /// What to call it; several live side by side.
        #[arg(long, default_value = "host")]
        name: String,
        /// The release of Debian.
        #[arg(long, default_value = "12")]
        debian: Debian,
        /// SOURCE:TARGET: show a folder of this machine inside, read-only (may be given several times).
        #[arg(long)]
        bind: Vec<String>,
    },
    /// A systemd host as a virtual machine: slow, with a kernel of its own.
    Vm {
        /// What to call it; several live side by side.
        #[arg(long, default_value = "vm")]
        name: String,
        /// The release of Debian.
        #[arg(long, default_value = "12")]
        debian: Debian,
    },
}

impl Command {
    /// Does what was asked.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let place = Place::here()?;
        let mut tally = Tally::new();
        let outcome = match self {
            Self::Test(options) => suite::run(&options, &mut tally),
            Self::Check { gates } => check::run(&gates, &mut tally),
            Self::Deny => check::run(&[Gate::Deny], &mut tally),
            Self::Ci(options) => check::run(&[], &mut tally).and_then(|()| suite::run(&options, &mut tally)),
            Self::Up(Up::K8s { name, k8s }) => {
                let cluster = Cluster::up(&place, &name, &k8s)?;
                print_env(&cluster);
                return Ok(ExitCode::SUCCESS);
            }
            Self::Up(Up::Host { name, debian, bind }) => {
                Host::up(&place, &name, debian, &bind)?;
                println!("cargo testbed exec {name} systemctl status");
                return Ok(ExitCode::SUCCESS);
            }
            Self::Up(Up::Vm { name, debian }) => {
                Vm::up(&place, &name, debian)?;
                println!("cargo testbed exec {name} systemctl status");
                return Ok(ExitCode::SUCCESS);
            }
            Self::Put { name, source, target } => {
                Vm::open(&place, &name)?.put(&source, &target)?;
                return Ok(ExitCode::SUCCESS);
            }
            Self::Down { names } => return down(&place, &names),
            Self::Status => return status(&place),
            Self::Env { name } => {
                print_env(&Cluster::open(&place, &name)?);
                return Ok(ExitCode::SUCCESS);
            }
            Self::Exec { name, command } => return exec(&place, &name, &command),
            Self::Smoke { subjects, slow } => {
                subjects.into_iter().try_for_each(|subject| smoke::run(subject, slow, &mut tally))
            }
            Self::Bench { name } => {
                smoke::bench(&place, name.as_deref())?;
                return Ok(ExitCode::SUCCESS);
            }
            Self::Proxy { name, options } => {
                proxied::serve(&Cluster::open(&place, &name)?, options)?;
                return Ok(ExitCode::SUCCESS);
            }
            Self::Fault { name, fault } => {
                fault.cause(&place, &Cluster::open(&place, &name)?)?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        // Whatever broke off half-way, the last line says how far it came, and that it failed.
        if let Err(error) = outcome {
            eprintln!("testbed: {error}");
            tally.push("broke off", Counts { failed: 1, ..Counts::default() }, Instant::now());
        }
        Ok(if tally.print() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn print_env(cluster: &Cluster) {
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("export PATH={}:$PATH", cluster.bin().display());
}

fn down(place: &Place, names: &[String]) -> Result<ExitCode> {
    let names = if names.is_empty() { place.beds()? } else { names.to_vec() };
    let mut failed = false;
    for name in names {
        match Bed::open_any(place, &name).and_then(|bed| bed.remove()) {
            Ok(()) => println!("{name} is gone"),
            Err(error) => {
                eprintln!("{name}: {error}");
                failed = true;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn status(place: &Place) -> Result<ExitCode> {
    for name in place.beds()? {
        let bed = Bed::open_any(place, &name)?;
        println!("{name}: {:?} {}", bed.state.kind, bed.state.version);
        for daemon in bed.daemons() {
            match bed.process(&daemon) {
                Some(id) => println!("  {daemon} runs as {}", id.pid),
                None => println!("  {daemon} is down, its log: {}", bed.log(&daemon).display()),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn exec(place: &Place, name: &str, command: &[OsString]) -> Result<ExitCode> {
    let bed = Bed::open(place, name)?;
    let mut child = match bed.state.kind {
        Kind::K8s => {
            let cluster = Cluster::open(place, name)?;
            let path = std::env::var_os("PATH").unwrap_or_default();
            let path = std::iter::once(cluster.bin().to_owned()).chain(std::env::split_paths(&path));
            let path = std::env::join_paths(path).doing(|| "build a PATH".to_owned())?;
            let mut child = std::process::Command::new(&command[0]);
            child.args(&command[1..]).env("KUBECONFIG", cluster.kubeconfig()).env("PATH", path);
            child
        }
        Kind::Host => Host::open(place, name)?.command(command)?,
        Kind::Vm => Vm::open(place, name)?.command(command),
    };
    let status = child.status().doing(|| format!("run {}", command[0].display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
