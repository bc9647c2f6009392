//! Root file systems from Debian's packages, cached per suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Context as _, Result};
use crate::images;
use crate::place::{Place, digest, lock, make_dir, write};
use crate::process::Task;

/// What a node inside a host is made of: a machine or a container.
pub(crate) const NODE: &str = "systemd,systemd-sysv,dbus,kmod,iproute2,procps,ca-certificates,runc,containerd,iptables,nftables,\
conntrack,socat,ethtool,busybox-static";
/// What a host has besides.
pub(crate) const HOST: &str = "systemd-container,libnss-mymachines,udev,iputils-ping,less,podman,crun";

/// Where the pieces of one suite are.
#[derive(Debug, Clone)]
pub(crate) struct RootFs {
    /// The folder with all archives, bound into the host.
    pub(crate) dir: PathBuf,
    /// The unpacked root file system of the host.
    pub(crate) host: PathBuf,
    /// The archive of a node.
    pub(crate) node: PathBuf,
    /// The archive of an image that runs in the host's containerd.
    pub(crate) image: PathBuf,
}

/// Makes what is not in the cache yet.
pub(crate) fn ensure(place: &Place, suite: &str) -> Result<RootFs> {
    let recipe = digest([NODE, HOST].concat().as_bytes());
    let dir = place.cache().join(format!("rootfs-{suite}-{}", &recipe[..8]));
    let rootfs = RootFs { host: dir.join("host"), node: dir.join("node.tar"), image: dir.join("busybox.tar"), dir };
    make_dir(&rootfs.dir)?;
    let _lock = lock(&rootfs.dir.join("lock"))?;
    archive(&rootfs.node, suite, NODE)?;
    if !rootfs.host.exists() {
        let tar = rootfs.dir.join("host.tar");
        archive(&tar, suite, &format!("{NODE},{HOST}"))?;
        let new = rootfs.dir.join("host.new");
        unpack(&tar, &new)?;
        make_dir(new.join("etc/containers"))?;
        // In namespaces there is no pids controller to set podman's default limit with.
        write(new.join("etc/containers/containers.conf"), "[containers]\npids_limit = 0\n")?;
        rename(&new, &rootfs.host)?;
    }
    let busybox = images::ensure(place)?.into_iter().find(|path| path.ends_with("busybox.tar"));
    if let Some(busybox) = busybox {
        fs::copy(&busybox, &rootfs.image).doing(|| format!("copy {}", busybox.display()))?;
    }
    Ok(rootfs)
}

fn archive(path: &Path, suite: &str, packages: &str) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    println!("making {} of {suite}", path.display());
    let new = path.with_extension("new");
    images::debootstrap(suite, packages, &new)?;
    rename(&new, path)
}

/// Unpacks an archive into a fresh folder.
pub(crate) fn unpack(tar: &Path, dir: &Path) -> Result<()> {
    Task::new("rm", Duration::from_secs(60)).args(["-rf", "--"]).args([dir]).stdout()?;
    make_dir(dir)?;
    let task = Task::new("tar", Duration::from_secs(300)).args(["-C"]).args([dir]).args(["-xpf"]).args([tar]);
    task.stdout().map(drop)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).doing(|| format!("name {}", to.display()))
}
