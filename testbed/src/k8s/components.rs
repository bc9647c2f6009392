//! The daemons of a cluster: their command lines and the namespaces they live in.

use std::path::PathBuf;

use clap::ValueEnum;

use super::network::{Addresses, CONTROL, NODE};

/// A daemon of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Component {
    Containerd,
    Etcd,
    Apiserver,
    ControllerManager,
    Scheduler,
    Kubelet,
}

/// What the command lines are about.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) dir: PathBuf,
    pub(crate) bin: PathBuf,
    pub(crate) addresses: Addresses,
    pub(crate) node: String,
}

impl Component {
    /// The name of its process file and its log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Etcd => "etcd",
            Self::Apiserver => "apiserver",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Kubelet => "kubelet",
        }
    }

    /// Whose namespaces it lives in.
    pub(crate) fn holder(self) -> &'static str {
        match self {
            Self::Containerd | Self::Kubelet => NODE,
            Self::Etcd | Self::Apiserver | Self::ControllerManager | Self::Scheduler => CONTROL,
        }
    }

    /// Its command line.
    pub(crate) fn argv(self, at: &Setting) -> Vec<String> {
        let program = |name: &str| at.bin.join(name).display().to_string();
        let below = |name: &str| at.dir.join(name).display().to_string();
        let pki = |name: &str| at.dir.join("pki").join(name).display().to_string();
        let kubeconfig = pki(&format!("{}.kubeconfig", self.name()));
        let (api, node) = (at.addresses.api(), at.addresses.node());
        match self {
            Self::Containerd => words(&["containerd", "--config", &below("containerd/config.toml")]),
            Self::Etcd => words(&[
                "etcd",
                "--name=testbed",
                &format!("--data-dir={}", below("etcd")),
                "--listen-client-urls=http://127.0.0.1:2379",
                "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                "--initial-cluster=testbed=http://127.0.0.1:2380",
                // Nothing here has to survive a power cut.
                "--unsafe-no-fsync",
            ]),
            Self::Apiserver => words(&[
                &program("kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                &format!("--bind-address={api}"),
                &format!("--advertise-address={api}"),
                "--secure-port=6443",
                &format!("--tls-cert-file={}", pki("apiserver.crt")),
                &format!("--tls-private-key-file={}", pki("apiserver.key")),
                &format!("--client-ca-file={}", pki("ca.crt")),
                &format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")),
                &format!("--kubelet-client-key={}", pki("kubelet-client.key")),
                &format!("--kubelet-certificate-authority={}", pki("ca.crt")),
                "--kubelet-preferred-address-types=InternalIP",
                &format!("--service-cluster-ip-range={}", at.addresses.services()),
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                &format!("--service-account-key-file={}", pki("service-accounts.pub")),
                &format!("--service-account-signing-key-file={}", pki("service-accounts.key")),
                &format!("--requestheader-client-ca-file={}", pki("front-ca.crt")),
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                &format!("--proxy-client-cert-file={}", pki("front-proxy-client.crt")),
                &format!("--proxy-client-key-file={}", pki("front-proxy-client.key")),
                "--allow-privileged=true",
            ]),
            Self::ControllerManager => words(&[
                &program("kube-controller-manager"),
                &format!("--kubeconfig={kubeconfig}"),
                &format!("--authentication-kubeconfig={kubeconfig}"),
                &format!("--authorization-kubeconfig={kubeconfig}"),
                "--bind-address=127.0.0.1",
                &format!("--service-account-private-key-file={}", pki("service-accounts.key")),
                &format!("--root-ca-file={}", pki("ca.crt")),
                &format!("--cluster-signing-cert-file={}", pki("ca.crt")),
                &format!("--cluster-signing-key-file={}", pki("ca.key")),
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                // A cut node is noticed in 20 seconds instead of 50.
                "--node-monitor-grace-period=20s",
                "--node-monitor-period=2s",
            ]),
            Self::Scheduler => words(&[
                &program("kube-scheduler"),
                &format!("--kubeconfig={kubeconfig}"),
                &format!("--authentication-kubeconfig={kubeconfig}"),
                &format!("--authorization-kubeconfig={kubeconfig}"),
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
            ]),
            Self::Kubelet => words(&[
                &program("kubelet"),
                &format!("--kubeconfig={kubeconfig}"),
                &format!("--config={}", below("kubelet.json")),
                &format!("--hostname-override={}", at.node),
                &format!("--node-ip={node}"),
                &format!("--root-dir={}", below("kubelet")),
                &format!("--cert-dir={}", below("kubelet/pki")),
                "--v=2",
            ]),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
