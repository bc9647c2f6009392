//! The Debian packages that tests need: installed when we may, named when we may not.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::process::{Task, in_path};

/// A program and the package that brings it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
}

const fn need(program: &'static str, package: &'static str) -> Need {
    Need { program, package }
}

pub(crate) const SHELLCHECK: Need = need("shellcheck", "shellcheck");

/// What the tests of the workspace use.
pub(crate) const FOR_TESTS: &[Need] = &[
    need("unshare", "util-linux"),
    need("bash", "bash"),
    need("busybox", "busybox-static"),
    SHELLCHECK,
    need("ps", "procps"),
    need("setfacl", "acl"),
    need("bwrap", "bubblewrap"),
    need("tar", "tar"),
    need("perl", "perl-base"),
];

/// What a cluster is made of, besides Kubernetes itself.
pub(crate) const FOR_K8S: &[Need] = &[
    need("containerd", "containerd"),
    need("runc", "runc"),
    need("/usr/lib/cni/bridge", "containernetworking-plugins"),
    need("etcd", "etcd-server"),
    need("busybox", "busybox-static"),
    need("bash-static", "bash-static"),
    need("iptables", "iptables"),
    need("conntrack", "conntrack"),
    need("socat", "socat"),
    need("openssl", "openssl"),
    need("mmdebstrap", "mmdebstrap"),
    need("ip", "iproute2"),
    need("cc", "gcc"),
    need("/usr/include/stdio.h", "libc6-dev"),
];

/// What a systemd host in namespaces is made with.
pub(crate) const FOR_HOST: &[Need] = &[
    need("mmdebstrap", "mmdebstrap"),
    need("systemd-nspawn", "systemd-container"),
    need("busybox", "busybox-static"),
    need("bash-static", "bash-static"),
    need("ip", "iproute2"),
    need("tar", "tar"),
    need("cc", "gcc"),
    need("/usr/include/stdio.h", "libc6-dev"),
];

/// What a virtual machine is made with.
pub(crate) const FOR_VM: &[Need] = &[
    need("mmdebstrap", "mmdebstrap"),
    need("mkfs.ext4", "e2fsprogs"),
    need("ssh", "openssh-client"),
    need("ssh-keygen", "openssh-client"),
    need("busybox", "busybox-static"),
    need("bash-static", "bash-static"),
    need("cc", "gcc"),
    need("/usr/include/stdio.h", "libc6-dev"),
];

/// Makes sure that all of `needs` are there.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() || !in_path("apt-get") {
        return Err(Error::new(format!(
            "these packages are missing: {list}\non Debian: sudo apt-get install --no-install-recommends {list}"
        )));
    }
    println!("installing {list}");
    apt_get(&["update", "-q"])?;
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&install)?;
    let still = self::missing(needs);
    if still.is_empty() {
        Ok(())
    } else {
        Err(Error::new(format!("installed, but still missing: {}", still.join(" "))))
    }
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<_> = needs.iter().filter(|need| !present(need)).map(|need| need.package).collect();
    packages.dedup();
    packages
}

fn present(need: &Need) -> bool {
    if need.program.starts_with('/') { std::path::Path::new(need.program).exists() } else { in_path(need.program) }
}

fn apt_get(args: &[&str]) -> Result<()> {
    // Another apt-get may hold the lock for a while: wait for it rather than fail.
    Task::new("apt-get", Duration::from_secs(900))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .named(format!("apt-get {}", args[0]))
        .stdout()
        .map(drop)
}
