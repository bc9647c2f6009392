//! The beds of a test run: a cluster for the tests that talk to Kubernetes, systemd hosts for the tests that run inside.

use std::time::Duration;

use super::build::{Built, TestBinary};
use crate::error::{Context as _, Result};
use crate::host::{self, Debian, Host};
use crate::images;
use crate::k8s::{self, Cluster};
use crate::leak::Snapshot;
use crate::metadata::cargo;
use crate::packages;
use crate::place::{Place, checkout};
use crate::process::Task;
use crate::smoke::{self, Guard, Subject};
use crate::tally::{Checks, Tally};

/// Packages whose tests also run inside a systemd host.
pub(super) const IN_HOST: &[&str] = &["isolation-nspawn", "isolation-none", "isolation-container"];
/// Packages whose tests talk to a cluster.
const ON_CLUSTER: &[&str] = &["sandbox-k8s", "conformance"];
/// The bed's own tests. Evictions and the virtual machine's long pass are for `cargo testbed smoke --slow` by hand.
const SELF: &[Subject] = &[Subject::Leaks, Subject::Host12, Subject::Host13, Subject::Vm12];

const CLUSTER: &str = "test";
const HOST: &str = "testh";

/// The beds of a run; dropped, they are gone.
pub(super) struct Beds {
    place: Place,
    /// Everything is tested, the bed itself too.
    whole: bool,
    on_cluster: bool,
    in_host: bool,
    cluster: Option<Cluster>,
    before: Snapshot,
}

/// One host in which tests run.
pub(super) struct InHost<'a> {
    host: &'a Host,
}

impl Beds {
    /// Finds out what the tests need.
    pub(super) fn new(whole: bool, built: &Built) -> Result<Self> {
        let place = Place::here()?;
        let any = |packages: &[&str]| built.tests.iter().any(|test| packages.contains(&test.package.as_str()));
        let (on_cluster, in_host) = (whole || any(ON_CLUSTER), any(IN_HOST));
        // What an earlier run of this checkout left is no part of the picture.
        for name in [CLUSTER, HOST] {
            drop(Guard::new(&place, name)?);
        }
        // Packages first: some leave folders in /run, and those are no bed's.
        for needs in [packages::FOR_K8S, packages::FOR_HOST, packages::FOR_VM] {
            packages::ensure(needs)?;
        }
        let before = Snapshot::take(place.prefix())?;
        Ok(Self { place, whole, on_cluster, in_host, cluster: None, before })
    }

    /// Brings the cluster up, and tries every piece of it if everything is tested.
    pub(super) fn up(&mut self, tally: &mut Tally) -> Result<()> {
        if !self.on_cluster {
            return Ok(());
        }
        println!("\n==> a cluster");
        self.cluster = smoke::cluster(&self.place, CLUSTER, tally)?;
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.whole) {
            k8s::smoke::run(&self.place, cluster, false, &mut Checks::of("k8s", tally))?;
        }
        Ok(())
    }

    /// What a test has to know of the beds.
    pub(super) fn env(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let mut env = vec![
            ("CONFORMANCE_REQUIRE", "local,k8s".into()),
            ("CONFORMANCE_K8S", k8s::CONTEXT.into()),
            ("CONFORMANCE_K8S_NET_SETUP_IMAGE", images::BUSYBOX.into()),
            ("KUBECONFIG", cluster.kubeconfig().into_os_string()),
            ("TESTBED_CLUSTER", CLUSTER.into()),
            ("TESTBED_KUBECTL", cluster.bin().join("kubectl").into_os_string()),
        ];
        // For faults: `$TESTBED fault $TESTBED_CLUSTER pause apiserver`.
        env.extend(std::env::current_exe().map(|me| ("TESTBED", me.into_os_string())));
        env
    }

    /// Runs the quickstart on the cluster, if everything is tested.
    pub(super) fn quickstart(&self, tally: &mut Tally) -> Result<()> {
        if !self.whole || self.cluster.is_none() {
            return Ok(());
        }
        let words =
            ["run", "--quiet", "--package", "examples", "--example", "quickstart", "--features", "k8s", "--", "--k8s"];
        let mut task = Task::new(cargo(), Duration::from_secs(900)).args(words).named("quickstart --k8s");
        for (key, value) in self.env() {
            task = task.env(key, value);
        }
        let task = task.env("NET_SETUP_IMAGE", images::BUSYBOX);
        Checks::of("k8s", tally).run("the quickstart runs on the cluster", || task.show()?.ok())
    }

    /// Takes the cluster down, runs `tests` in each kind of host and the bed's own tests, and looks for what is left.
    pub(super) fn finish(self, tests: impl Fn(&InHost<'_>, &mut Tally) -> Result<()>, tally: &mut Tally) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            Checks::of("k8s", tally).run("the cluster goes down", || cluster.bed.remove())?;
        }
        if self.in_host {
            for debian in [Debian::Bookworm, Debian::Trixie] {
                self.host(debian, &tests, tally)?;
            }
        }
        if self.whole {
            for subject in SELF {
                println!("\n==> the bed itself: {subject:?}");
                smoke::run(*subject, false, tally)?;
            }
        }
        Checks::of("beds", tally).run("nothing is left of them", || self.before.compare(self.place.prefix()))
    }

    fn host(
        &self,
        debian: Debian,
        tests: impl Fn(&InHost<'_>, &mut Tally) -> Result<()>,
        tally: &mut Tally,
    ) -> Result<()> {
        let _guard = Guard::new(&self.place, HOST)?;
        let checkout = checkout().display();
        let mut binds = vec![format!("{checkout}:{checkout}")];
        if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
            let target = std::path::absolute(target).doing(|| "find the target folder".to_owned())?;
            binds.push(format!("{0}:{0}", target.display()));
        }
        host::prepare(&self.place, debian)?;
        let mut up = None;
        Checks::of(format!("host {}", debian.suite()), tally).run("a host for tests comes up", || {
            up = Some(Host::up(&self.place, HOST, debian, &binds)?);
            Ok(())
        })?;
        up.map_or(Ok(()), |host| tests(&InHost { host: &host }, tally))
    }
}

impl Drop for Beds {
    fn drop(&mut self) {
        for name in [CLUSTER, HOST] {
            if let Err(error) = Guard::new(&self.place, name) {
                eprintln!("testbed: could not take {name} down: {error}");
            }
        }
    }
}

impl InHost<'_> {
    pub(super) fn name(&self) -> String {
        format!("a {} host", self.host.bed.state.version)
    }

    /// A run of a test binary inside; the checkout is there under its own path, read-only.
    pub(super) fn task(&self, binary: &TestBinary, limit: Duration) -> Result<Task> {
        let script = "cd \"$1\" && shift && exec \"$@\"";
        let (dir, program) = (binary.dir.display().to_string(), binary.executable.display().to_string());
        let words = [
            "env",
            "CONFORMANCE_REQUIRE=nspawn,none,container",
            "TESTBED_NODE=/var/cache/testbed/node.tar",
            "TESTBED_IMAGE=/var/cache/testbed/busybox.tar",
            "sh",
            "-c",
            script,
            "sh",
            &dir,
            &program,
        ];
        self.host.task(&words, limit)
    }
}
