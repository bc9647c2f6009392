//! The configuration files of a node, as text.

use std::path::Path;

use serde_json::json;

use super::binaries::minor;

/// The second RuntimeClass, and containerd's name for its handler.
pub(crate) const SECOND_RUNTIME: &str = "testbed-second";

/// What the files are about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) version: &'a str,
    pub(crate) address: &'a str,
    pub(crate) pods: &'a str,
    pub(crate) cgroup_root: &'a str,
    pub(crate) pause: &'a str,
}

impl Node<'_> {
    /// containerd's own file.
    pub(crate) fn containerd(&self) -> String {
        let dir = self.dir.join("containerd");
        // Without CAP_SYS_RESOURCE (a root shell in a container) no process may lower its oom_score_adj, and every
        // container would fail to start: hence restrict_oom_score_adj.
        format!(
            r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{dir}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{cni}"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
{first}{second}"#,
            dir = dir.display(),
            pause = self.pause,
            cni = self.dir.join("cni").display(),
            first = runtime("runc"),
            second = runtime(SECOND_RUNTIME),
        )
    }

    /// The pod network: a bridge inside the node.
    pub(crate) fn cni(&self) -> String {
        json!({
            "cniVersion": "0.4.0",
            "name": "testbed",
            "plugins": [
                {
                    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                    "ipam": {
                        "type": "host-local", "dataDir": self.dir.join("cni-data"),
                        "ranges": [[{ "subnet": self.pods }]], "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        })
        .to_string()
    }

    /// The kubelet's file (JSON is YAML). `eviction` replaces one threshold.
    pub(crate) fn kubelet(&self, eviction: Option<(&str, &str)>) -> String {
        let pki = self.dir.join("pki");
        // The defaults are shares of the disk; on a disk that looks full they evict pods and delete images.
        let mut hard = json!({
            "memory.available": "100Mi",
            "nodefs.available": "50Mi",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "50Mi",
        });
        if let Some((signal, threshold)) = eviction {
            hard[signal] = threshold.into();
        }
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": 10250,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10248,
            "tlsCertFile": pki.join("kubelet-server.crt"),
            "tlsPrivateKeyFile": pki.join("kubelet-server.key"),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": pki.join("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup_root,
            "failSwapOn": false,
            "resolvConf": self.dir.join("resolv.conf"),
            "containerRuntimeEndpoint": format!("unix://{}", self.dir.join("containerd/containerd.sock").display()),
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": hard,
            "evictionPressureTransitionPeriod": "5s",
            "serializeImagePulls": false,
            "nodeStatusUpdateFrequency": "5s",
            "nodeLeaseDurationSeconds": 20,
        });
        if minor(self.version) >= 31 {
            config["failCgroupV1"] = false.into();
        }
        config.to_string()
    }
}

fn runtime(name: &str) -> String {
    format!(
        r#"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
    SystemdCgroup = false
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(version: &str) -> Node<'_> {
        let (address, pods) = ("10.99.1.11", "10.244.1.0/24");
        Node { dir: Path::new("/w"), version, address, pods, cgroup_root: "/tb/node", pause: "p:1" }
    }

    #[test]
    fn containerd_file_is_toml_with_two_runtimes() {
        let file: toml::Table = toml::from_str(&node("1.36.3").containerd()).unwrap();
        let cri = &file["plugins"]["io.containerd.grpc.v1.cri"];
        assert_eq!(cri["sandbox_image"].as_str(), Some("p:1"));
        let runtimes = cri["containerd"]["runtimes"].as_table().unwrap();
        assert!(runtimes.contains_key("runc") && runtimes.contains_key(SECOND_RUNTIME));
    }

    #[test]
    fn only_a_kubelet_that_knows_it_is_told_about_cgroup_v1() {
        assert!(node("1.36.3").kubelet(None).contains("failCgroupV1"));
        assert!(!node("1.30.1").kubelet(None).contains("failCgroupV1"));
    }

    #[test]
    fn an_eviction_threshold_replaces_one_signal() {
        let text = node("1.36.3").kubelet(Some(("memory.available", "99%")));
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["evictionHard"]["memory.available"], "99%");
        assert_eq!(file["evictionHard"]["nodefs.available"], "50Mi");
    }
}
