//! Discovery over made-up hosts, compared with golden texts.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;

use isolation::discover::{Discovery, InfinibandForm, configured_devices, configured_mounts};
use isolation::{ErrorKind, Grant, node_path};

/// A host with these files.
fn host(files: &[&str]) -> (tempfile::TempDir, Discovery) {
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let discovery = Discovery::new(dir.path());
    (dir, discovery)
}

fn text(grants: &[Grant]) -> String {
    Grant::validate_all(grants).unwrap();
    let line = |grant: &Grant| serde_json::to_string(grant).unwrap() + "\n";
    grants.iter().map(line).collect()
}

#[test]
fn a_host_with_everything() {
    let (_dir, host) = host(&[
        "dev/vhost-net",
        "dev/kvm",
        "dev/net/tun",
        "sys/class/block/sdb/x",
        "sys/class/block/sda/x",
        "sys/class/block/sda1/x",
        "sys/class/block/loop0/x",
        "sys/class/block/ram1/x",
        "sys/class/block/zram0/x",
        "sys/class/block/sr0/x",
        "sys/class/block/fd0/x",
        "sys/class/block/dm-0/x",
        "sys/class/block/md127/x",
        "sys/class/block/cciss!c0d0/x",
        "sys/class/block/gone/x",
        "dev/sda",
        "dev/sda1",
        "dev/sdb",
        "dev/loop0",
        "dev/ram1",
        "dev/zram0",
        "dev/sr0",
        "dev/fd0",
        "dev/dm-0",
        "dev/md127",
        "dev/cciss/c0d0",
        "dev/infiniband/uverbs1",
        "dev/infiniband/uverbs0",
        "dev/infiniband/rdma_cm",
        "dev/infiniband/umad0",
        "dev/infiniband/issm0",
        "dev/nvidiactl",
        "dev/nvidia0",
        "dev/nvidia-uvm",
        "dev/nvidia-caps/nvidia-cap1",
        "dev/nvidia-caps-imex-channels/channel0",
        "dev/dri/card0",
        "dev/dri/renderD128",
        "dev/dri/by-path/x",
        "dev/kfd",
        "sys/class/kfd/x",
        "sys/module/amdgpu/x",
    ]);
    assert_eq!(text(&host.grants()), include_str!("golden/everything.txt"));
    assert_eq!(text(&host.infiniband(InfinibandForm::Nodes)), include_str!("golden/infiniband-nodes.txt"));
    assert_eq!(host.grants(), host.grants());
}

#[test]
fn a_bare_host_and_an_amd_host() {
    let (_dir, bare) = host(&["dev/null", "dev/dri/card0", "sys/class/block/loop0/x"]);
    assert_eq!(bare.grants(), []);
    let (_dir, amd) = host(&["dev/kfd", "dev/dri/renderD129", "dev/dri/card1", "dev/dri/other", "sys/module/amdgpu/x"]);
    assert_eq!(text(&amd.grants()), include_str!("golden/amd.txt"));
}

#[test]
fn hostile_names_grant_nothing() {
    let (_dir, host) =
        host(&["sys/class/block/sd a/x", "dev/sd a", "dev/nvidia0\nBind=", "dev/nvidia%n", "dev/nvidia:x"]);
    assert_eq!(host.grants(), []);
}

#[test]
fn links_are_links_of_the_host_that_is_looked_at() {
    let (dir, host) = host(&["dev/real", "sys/class/block/sda/x", "sys/class/block/sdb/x", "run/ib/uverbs0"]);
    let link = |to: &str, at: &str| symlink(to, dir.path().join(at)).unwrap();
    // Whoever followed it on this machine would find something.
    link("/proc/self/exe", "dev/sda");
    link("/../../../../../../proc", "dev/nvidia-caps");
    link("/", "dev/kvm");
    // And these lead nowhere here.
    link("/dev/real", "dev/sdb");
    link("/run/ib", "dev/infiniband");
    let sources: Vec<_> = host.grants().iter().map(|grant| grant.source().unwrap().to_string()).collect();
    assert_eq!(sources, ["/dev/kvm", "/dev/sdb", "/dev/infiniband"]);
}

#[test]
fn library_directories_follow_links() {
    let (dir, host) = host(&[
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550",
        "usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.1",
        "usr/lib/i386-linux-gnu/libcuda.so.1",
        "opt/lib/libcuda.so.1",
    ]);
    let link = |to: &str, at: &str| symlink(to, dir.path().join(at)).unwrap();
    link("/etc/alternatives/nvidia-ml", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
    fs::create_dir_all(dir.path().join("etc/alternatives")).unwrap();
    link("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.550", "etc/alternatives/nvidia-ml");
    link("libnvidia-loop.so", "opt/lib/libnvidia-loop.so");
    let ldconfig = "3 libs found in cache\n\
        \tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1\n\
        \tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\n\
        \tlibcuda.so.1 (libc6,x86-64) => /opt/lib/libcuda.so.1\n\
        \tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n\
        \tlibc.so.6 (libc6,x86-64) => /home/x/libc.so.6\n\
        nonsense\n";
    let dirs = |arch| host.library_dirs(ldconfig, arch).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        dirs("x86-64"),
        [
            "/opt/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu/nvidia/current",
            "/usr/lib/x86_64-linux-gnu/vdpau"
        ]
    );
    assert_eq!(dirs(""), ["/usr/lib/i386-linux-gnu"]);
    assert_eq!(dirs("aarch64"), [""; 0]);
}

#[test]
fn configured_grants_keep_their_order() {
    let devices = ["/dev/sdz", "char-input", "/dev/kvm"].map(str::to_owned);
    let mounts = [("/srv".to_owned(), None, false), ("/data".to_owned(), Some(node_path!("/mnt")), true)];
    let mut all = configured_devices(&devices).unwrap();
    all.extend(configured_mounts(&mounts).unwrap());
    assert_eq!(text(&all), include_str!("golden/configured.txt"));
    let error = configured_devices(&["/dev/kvm".to_owned(), "/etc/passwd".to_owned()]).unwrap_err();
    assert_eq!((error.kind(), error.index()), (ErrorKind::InvalidGrant, Some(1)));
    let error = configured_mounts(&[("/a:b".to_owned(), None, true)]).unwrap_err();
    assert_eq!((error.kind(), error.index()), (ErrorKind::InvalidGrant, Some(0)));
}
