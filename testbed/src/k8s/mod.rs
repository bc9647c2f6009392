//! A real one-node Kubernetes, from a plain root shell: etcd, the API server and its companions in one network
//! namespace, containerd and the kubelet in another.

pub(crate) mod bench;
pub(crate) mod binaries;
pub(crate) mod components;
mod config;
pub(crate) mod fault;
pub(crate) mod network;
pub(crate) mod proxied;
pub(crate) mod smoke;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::components::{Component, Setting};
use self::network::Addresses;
use crate::beds::{Bed, Kind, State};
use crate::error::{Context as _, Error, Result};
use crate::place::{Place, make_dir, write};
use crate::process::Task;
use crate::process_id::wait_for;
use crate::{cgroup, diagnosis, images, packages};

/// The context of every kubeconfig.
pub(crate) const CONTEXT: &str = "testbed";
/// The namespace with Pod Security `restricted`.
pub(crate) const RESTRICTED: &str = "restricted";
/// The cgroup below the bed's that the kubelet manages.
const NODE_CGROUP: &str = "node";
const CERTS: &str = include_str!("../../scripts/certs.sh");

/// A cluster that was started, at least in part.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) bed: Bed,
    setting: Setting,
}

/// Makes what is slow: packages, programs, images.
pub(crate) fn prepare(place: &Place, version: &str) -> Result<()> {
    packages::ensure(packages::FOR_K8S)?;
    binaries::ensure(place, version)?;
    images::ensure(place).map(drop)
}

impl Cluster {
    /// Makes a cluster and waits until it runs pods.
    pub(crate) fn up(place: &Place, name: &str, version: &str) -> Result<Self> {
        packages::ensure(packages::FOR_K8S)?;
        let bin = binaries::ensure(place, version)?;
        let archives = images::ensure(place)?;
        let state = State { kind: Kind::K8s, version: version.to_owned(), net: None, port: None };
        let mut bed = Bed::create(place, name, state)?;
        network::up(&mut bed)?;
        let cluster = Self::new(bed, bin)?;
        cluster.bring_up(&archives)?;
        Ok(cluster)
    }

    /// A cluster that was made before.
    pub(crate) fn open(place: &Place, name: &str) -> Result<Self> {
        let bed = Bed::open(place, name)?;
        if bed.state.kind != Kind::K8s {
            return Err(Error::new(format!("{name} is not a cluster")));
        }
        let bin = binaries::ensure(place, &bed.state.version)?;
        Self::new(bed, bin)
    }

    fn new(bed: Bed, bin: PathBuf) -> Result<Self> {
        let setting =
            Setting { dir: bed.dir.clone(), bin, addresses: Addresses::of(&bed)?, node: bed.machine_name.clone() };
        Ok(Self { bed, setting })
    }

    /// The kubeconfig of the cluster's administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.bed.dir.join("pki/admin.kubeconfig")
    }

    /// The folder of kubectl and the servers.
    pub(crate) fn bin(&self) -> &Path {
        &self.setting.bin
    }

    /// The node's name.
    pub(crate) fn node(&self) -> &str {
        &self.setting.node
    }

    /// `host:port` of the API server.
    pub(crate) fn api_address(&self) -> String {
        format!("{}:6443", self.setting.addresses.api())
    }

    /// A run of the cluster's own kubectl.
    pub(crate) fn kubectl(&self, args: &[&str], limit: Duration) -> Task {
        let name = format!("kubectl {}", args.join(" "));
        Task::new(self.setting.bin.join("kubectl"), limit).env("KUBECONFIG", self.kubeconfig()).args(args).named(name)
    }

    /// Creates or changes what a manifest says.
    pub(crate) fn apply(&self, name: &str, manifest: &serde_json::Value) -> Result<()> {
        let file = self.bed.dir.join(format!("{name}.json"));
        write(&file, manifest.to_string())?;
        self.kubectl(&["apply", "-f", &file.display().to_string()], Duration::from_secs(60)).stdout().map(drop)
    }

    /// Starts a component without waiting for it.
    pub(crate) fn start(&self, component: Component) -> Result<()> {
        let mut argv = network::enter(&self.bed, component.holder())?;
        argv.extend(component.argv(&self.setting));
        self.bed.start(component.name(), &argv)
    }

    /// Waits until a component does its work; the end of its log and a likely cause if it does not.
    pub(crate) fn wait_for(&self, component: Component) -> Result<()> {
        let quick = Duration::from_secs(5);
        let succeeds = |task: Task| Ok(task.capture()?.ended.success());
        let waited = wait_for(component.name(), Duration::from_secs(120), || {
            if self.bed.process(component.name()).is_none() {
                return Err(Error::new(format!("{} ended", component.name())));
            }
            match component {
                Component::Containerd => succeeds(self.ctr(quick).args(["version"])),
                Component::Etcd => {
                    let mut argv = network::enter(&self.bed, component.holder())?;
                    argv.extend(["bash", "-c", ": < /dev/tcp/127.0.0.1/2379"].map(str::to_owned));
                    succeeds(Task::new(&argv[0], quick).args(&argv[1..]))
                }
                Component::Apiserver => succeeds(self.kubectl(&["get", "--raw", "/readyz"], quick)),
                // Pods without a service account's token can't be made before this one worked.
                Component::ControllerManager => succeeds(self.kubectl(&["get", "serviceaccount", "default"], quick)),
                Component::Scheduler => Ok(true),
                Component::Kubelet => {
                    let ready =
                        ["get", "node", self.node(), "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"];
                    Ok(self.kubectl(&ready, quick).capture()?.stdout.trim() == "True")
                }
            }
        });
        waited.map_err(|error| Error::new(format!("{error}\n{}", diagnosis::of(&self.bed.log(component.name())))))
    }

    /// Writes the kubelet's file, with one eviction threshold changed if asked for.
    pub(crate) fn configure_kubelet(&self, eviction: Option<(&str, &str)>) -> Result<()> {
        self.with_config(|node| write(self.bed.dir.join("kubelet.json"), node.kubelet(eviction)))
    }

    /// Loads images into the node.
    pub(crate) fn import(&self, archives: &[PathBuf]) -> Result<()> {
        for archive in archives {
            let task = self.ctr(Duration::from_secs(300)).args(["images", "import"]).args([archive]);
            task.named(format!("import {}", archive.display())).stdout()?;
        }
        Ok(())
    }

    fn ctr(&self, limit: Duration) -> Task {
        let socket = self.bed.dir.join("containerd/containerd.sock");
        Task::new("ctr", limit).args(["--address"]).args([socket]).args(["--namespace", "k8s.io"])
    }

    fn bring_up(&self, archives: &[PathBuf]) -> Result<()> {
        let dir = &self.bed.dir;
        for folder in ["containerd", "cni", "etcd"] {
            make_dir(dir.join(folder))?;
        }
        let at = self.setting.addresses;
        let (api, service, node) = (at.api(), at.service(), at.node());
        let pki = dir.join("pki").display().to_string();
        Task::new("bash", Duration::from_secs(60))
            .args(["-c", CERTS, "certs.sh", &pki, &api, &service, self.node(), &node])
            .named("certs.sh")
            .stdout()?;
        cgroup::make_everywhere(&self.bed.machine_name, NODE_CGROUP)?;
        fs::copy("/etc/resolv.conf", dir.join("resolv.conf")).doing(|| "copy /etc/resolv.conf".to_owned())?;
        self.with_config(|node| {
            write(dir.join("containerd/config.toml"), node.containerd())?;
            write(dir.join("cni/10-testbed.conflist"), node.cni())
        })?;
        self.configure_kubelet(None)?;

        for component in [Component::Containerd, Component::Etcd, Component::Apiserver] {
            self.start(component)?;
        }
        // Images go in while the API server starts.
        std::thread::scope(|scope| {
            let node = scope.spawn(|| self.wait_for(Component::Containerd).and_then(|()| self.import(archives)));
            let control = self.wait_for(Component::Etcd).and_then(|()| self.wait_for(Component::Apiserver));
            let control = control.and_then(|()| {
                self.start(Component::ControllerManager)?;
                self.start(Component::Scheduler)
            });
            control.and(node.join().map_err(|_| Error::new("importing images panicked"))?)
        })?;
        self.start(Component::Kubelet)?;
        for component in [Component::ControllerManager, Component::Scheduler, Component::Kubelet] {
            self.wait_for(component)?;
        }
        self.apply(
            "runtime-class",
            &serde_json::json!({
                "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                "metadata": { "name": config::SECOND_RUNTIME }, "handler": config::SECOND_RUNTIME,
            }),
        )?;
        self.apply(
            "restricted",
            &serde_json::json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": RESTRICTED, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
            }),
        )
    }

    fn with_config(&self, then: impl FnOnce(config::Node<'_>) -> Result<()>) -> Result<()> {
        let at = self.setting.addresses;
        then(config::Node {
            dir: &self.bed.dir,
            version: &self.bed.state.version,
            address: &at.node(),
            pods: &at.pods(),
            cgroup_root: &format!("/{}/{NODE_CGROUP}", self.bed.machine_name),
            pause: images::PAUSE,
        })
    }
}
