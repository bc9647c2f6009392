//! The bed tests itself: makes a bed, tries every piece, removes it, looks for what is left.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::beds::Bed;
use crate::error::{Context as _, Error, Result};
use crate::host::vm::Vm;
use crate::host::{self, Debian, Host};
use crate::k8s::binaries::DEFAULT_VERSION;
use crate::k8s::{self, Cluster};
use crate::leak::Snapshot;
use crate::place::{Place, write};
use crate::process::Task;
use crate::process_id::wait_for;
use crate::tally::{Checks, Counts, Tally};

/// What can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// A cluster.
    K8s,
    /// A systemd host in namespaces, Debian 12.
    Host12,
    /// A systemd host in namespaces, Debian 13.
    Host13,
    /// A systemd host as a virtual machine, Debian 12.
    Vm12,
    /// A systemd host as a virtual machine, Debian 13.
    Vm13,
    /// Nothing is left after `down`, also when the tool was killed.
    Leaks,
}

/// Removes a bed when dropped, whatever happened meanwhile.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    place: &'a Place,
    name: &'static str,
}

impl<'a> Guard<'a> {
    /// Also removes what an earlier run of that name left.
    pub(crate) fn new(place: &'a Place, name: &'static str) -> Result<Self> {
        let guard = Self { place, name };
        guard.remove()?;
        Ok(guard)
    }

    fn remove(&self) -> Result<()> {
        if !self.place.bed(self.name).exists() {
            return Ok(());
        }
        Bed::open_any(self.place, self.name)?.remove()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("testbed: could not take {} down: {error}", self.name);
        }
    }
}

/// Tries one subject and adds the checks to `tally`.
pub(crate) fn run(subject: Subject, slow: bool, tally: &mut Tally) -> Result<()> {
    let place = Place::here()?;
    match subject {
        Subject::K8s => {
            let guard = Guard::new(&place, "smoke")?;
            if let Some(cluster) = cluster(&place, guard.name, tally)? {
                k8s::smoke::run(&place, &cluster, slow, &mut Checks::of("k8s", tally))?;
            }
            drop(guard);
            Ok(())
        }
        Subject::Host12 => host(&place, Debian::Bookworm, tally),
        Subject::Host13 => host(&place, Debian::Trixie, tally),
        Subject::Vm12 => vm(&place, Debian::Bookworm, slow, tally),
        Subject::Vm13 => vm(&place, Debian::Trixie, slow, tally),
        Subject::Leaks => leaks(&place, tally),
    }
}

/// Brings a cluster up and counts that as a check; none if it failed.
pub(crate) fn cluster(place: &Place, name: &str, tally: &mut Tally) -> Result<Option<Cluster>> {
    let started = Instant::now();
    k8s::prepare(place, DEFAULT_VERSION)?;
    tally.push("Kubernetes and its images, built or cached", Counts::default(), started);
    let mut cluster = None;
    Checks::of("k8s", tally).run("a cluster comes up", || {
        cluster = Some(Cluster::up(place, name, DEFAULT_VERSION)?);
        Ok(())
    })?;
    Ok(cluster)
}

fn host(place: &Place, debian: Debian, tally: &mut Tally) -> Result<()> {
    let guard = Guard::new(place, "smokeh")?;
    let started = Instant::now();
    let rootfs = host::prepare(place, debian)?;
    tally.push(format!("root file systems of {}, made or cached", debian.suite()), Counts::default(), started);
    let mut up = None;
    let bind = host::smoke::bind()?;
    Checks::of(format!("host {}", debian.suite()), tally).run("a host comes up", || {
        up = Some(Host::up(place, guard.name, debian, &[bind])?);
        Ok(())
    })?;
    if let Some(host) = up {
        host::smoke::run(&host, &rootfs, tally)?;
    }
    drop(guard);
    Ok(())
}

fn vm(place: &Place, debian: Debian, slow: bool, tally: &mut Tally) -> Result<()> {
    let guard = Guard::new(place, "smokev")?;
    let started = Instant::now();
    host::vm::prepare(place, debian)?;
    tally.push(format!("disks of {}, made or cached", debian.suite()), Counts::default(), started);
    let mut up = None;
    Checks::of(format!("vm {}", debian.suite()), tally).run("a virtual machine comes up", || {
        up = Some(Vm::up(place, guard.name, debian)?);
        Ok(())
    })?;
    if let Some(vm) = up {
        host::smoke::run_vm(&vm, slow, tally)?;
    }
    drop(guard);
    Ok(())
}

/// Measures the peers on the named cluster, or on one that is made for it.
pub(crate) fn bench(place: &Place, name: Option<&str>) -> Result<()> {
    const OWN: &str = "bench";
    if let Some(name) = name {
        return k8s::bench::run(&Cluster::open(place, name)?);
    }
    let guard = Guard::new(place, OWN)?;
    let cluster = Cluster::up(place, guard.name, DEFAULT_VERSION)?;
    k8s::bench::run(&cluster)
}

/// The bed that is looked for after it is gone.
const NAME: &str = "leak";

/// Makes beds of its own and sees that nothing is left of them.
fn leaks(place: &Place, tally: &mut Tally) -> Result<()> {
    let guard = Guard::new(place, NAME)?;
    k8s::prepare(place, DEFAULT_VERSION)?;
    let before = Snapshot::take(place.prefix())?;
    let mut checks = Checks::of("leaks", tally);
    checks.run("nothing is left of a cluster that ran a pod", || {
        let cluster = Cluster::up(place, NAME, DEFAULT_VERSION)?;
        cluster.apply("pod", &k8s::smoke::pod("left", crate::images::BUSYBOX))?;
        cluster
            .kubectl(&["wait", "--for=condition=Ready", "pod", "left", "--timeout=60s"], Duration::from_secs(90))
            .stdout()?;
        cluster.bed.remove()?;
        before.compare(place.prefix())
    })?;
    checks.run("nothing is left when the tool was killed half-way", || {
        let mut tool =
            tool(&["up", "k8s", "--name", NAME]).stdout(Stdio::null()).spawn().doing(|| "start the tool".to_owned())?;
        let half_way = wait_for("a cluster half-way up", Duration::from_secs(120), || {
            Ok(Bed::open(place, NAME).is_ok_and(|bed| bed.process("kubelet").is_some()))
        });
        tool.kill().doing(|| "kill the tool".to_owned())?;
        tool.wait().doing(|| "collect the tool".to_owned())?;
        half_way?;
        down(NAME)?;
        before.compare(place.prefix())
    })?;
    checks.run("a component that dies is shown with its log and a likely cause", || {
        died()?;
        down(NAME)?;
        before.compare(place.prefix())
    })?;
    checks.run("a second `down` finds nothing and says so", || {
        let missing = tool(&["down", NAME]).stderr(Stdio::null()).status().doing(|| "start the tool".to_owned())?;
        if missing.success() {
            return Err(Error::new("`down` of a bed that is not there succeeded"));
        }
        before.compare(place.prefix())
    })?;
    drop(guard);
    Ok(())
}

/// Brings a cluster up whose etcd says something and dies.
fn died() -> Result<()> {
    let dir = tempfile::tempdir().doing(|| "make a temporary folder".to_owned())?;
    let etcd = dir.path().join("etcd");
    write(&etcd, "#!/bin/sh\necho listen tcp 127.0.0.1:2379: bind: address already in use\nexit 1\n")?;
    fs::set_permissions(&etcd, fs::Permissions::from_mode(0o755)).doing(|| "make a program".to_owned())?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(dir.path().to_owned()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).doing(|| "build a PATH".to_owned())?;
    let me = std::env::current_exe().doing(|| "find this program".to_owned())?;
    let limit = Duration::from_secs(180);
    let got = Task::new(me, limit).args(["up", "k8s", "--name", NAME]).env("PATH", path).capture()?;
    for part in ["etcd ended", "bind: address already in use", "most likely: something else listens on its port"] {
        if got.ended.success() || !got.stderr.contains(part) {
            return Err(Error::new(format!("wanted {part:?}, got {}:\n{}", got.ended, got.stderr)));
        }
    }
    Ok(())
}

fn down(name: &str) -> Result<()> {
    let me = std::env::current_exe().doing(|| "find this program".to_owned())?;
    Task::new(me, Duration::from_secs(120)).args(["down", name]).stdout().map(drop)
}

fn tool(args: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(args).stdin(Stdio::null());
    command
}
