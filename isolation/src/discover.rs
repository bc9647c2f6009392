//! Finds what a node may want of its host: devices, driver libraries.
//!
//! Everything is read below a given root, `/` or a made-up one, whatever its links say ([`NodeFs`]: Linux 5.6 and later). What is found of each kind is sorted and free of
//! duplicates, so that equal hosts render equal configuration. Nothing is changed: what a driver still has
//! to create (`rdma_cm`, NVIDIA's nodes) is the embedder's to create before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::{DeviceClass, DeviceRule, Grant, HostPath, MountGrant, NodeFileKind, NodeFs, NodePath, Purpose, Result};

/// A directory of more names is none.
const MOST: usize = 100_000;

/// Looks at a host below a root.
///
/// ```no_run
/// use isolation::discover::Discovery;
///
/// let host = Discovery::new("/");
/// let grants = host.grants();
/// # drop(grants);
/// ```
#[derive(Debug, Clone)]
pub struct Discovery {
    root: PathBuf,
}

/// How the InfiniBand devices are granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum InfinibandForm {
    /// The whole directory, with rules for its classes: a device that appears later is usable.
    #[default]
    Directory,
    /// Each device node that is there now.
    Nodes,
}

impl Discovery {
    /// A host whose `/dev` and `/sys` are below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Everything but libraries, one kind after the other: host devices, every block device, InfiniBand, NVIDIA, AMD.
    ///
    /// The block devices are all that the host has, the disk that it runs from too: whoever is granted that one can do with the host
    /// as it likes. Take from the list what a node is to have.
    pub fn grants(&self) -> Vec<Grant> {
        let nvidia = self.nvidia();
        let mut all = self.host_devices();
        all.extend(self.block_devices());
        all.extend(self.infiniband(InfinibandForm::default()));
        let amd = self.amd(&nvidia);
        all.extend(nvidia);
        all.extend(amd);
        all
    }

    /// The host as it is, with its links as links of that host; nothing if it is no directory or the path is none.
    fn at<T>(&self, path: &str, look: impl FnOnce(&NodeFs, &NodePath) -> Result<T>) -> Option<T> {
        look(&NodeFs::open(&self.root).ok()?, &NodePath::new(path).ok()?).ok()
    }

    fn kind(&self, path: &str) -> Option<NodeFileKind> {
        self.at(path, |host, path| host.followed(path)).map(|found| found.kind)
    }

    fn exists(&self, path: &str) -> bool {
        self.kind(path).is_some()
    }

    /// Whether a node is there: something, and no directory.
    fn is_node(&self, path: &str) -> bool {
        self.kind(path).is_some_and(|kind| kind != NodeFileKind::Dir)
    }

    fn is_dir(&self, path: &str) -> bool {
        self.kind(path) == Some(NodeFileKind::Dir)
    }

    /// The names in a directory that can stand in a grant.
    fn names(&self, dir: &str) -> BTreeSet<String> {
        let names = self.at(dir, |host, dir| host.read_dir(dir, MOST)).unwrap_or_default();
        names.into_iter().filter_map(|name| name.into_string().ok()).collect()
    }

    fn devices(purpose: Purpose, paths: impl IntoIterator<Item = String>) -> Vec<Grant> {
        let paths: BTreeSet<HostPath> = paths.into_iter().filter_map(|path| HostPath::new(&path).ok()).collect();
        paths.into_iter().map(|path| Grant::device(purpose, path)).collect()
    }

    /// `/dev/kvm`, `/dev/net/tun` and `/dev/vhost-net`, where they are.
    pub fn host_devices(&self) -> Vec<Grant> {
        let known = ["/dev/kvm", "/dev/net/tun", "/dev/vhost-net"].map(str::to_owned);
        Self::devices(Purpose::HostDevice, known.into_iter().filter(|path| self.exists(path)))
    }

    /// Block devices with a node, except loop, ram, compressed memory, floppy and optical ones.
    pub fn block_devices(&self) -> Vec<Grant> {
        let ignored = ["loop", "ram", "zram", "fd", "sr"];
        let names = self.names("/sys/class/block").into_iter();
        let names = names.filter(|name| !ignored.iter().any(|prefix| name.starts_with(prefix)));
        // The kernel writes the slash of a name like `cciss/c0d0` as an exclamation mark.
        let paths = names.map(|name| format!("/dev/{}", name.replace('!', "/")));
        Self::devices(Purpose::HostDevice, paths.filter(|path| self.exists(path)))
    }

    /// The InfiniBand devices, if there are any.
    pub fn infiniband(&self, form: InfinibandForm) -> Vec<Grant> {
        const DIR: &str = "/dev/infiniband";
        let names = self.names(DIR);
        if names.is_empty() {
            return Vec::new();
        }
        if form == InfinibandForm::Nodes {
            let nodes = names.iter().map(|name| format!("{DIR}/{name}"));
            return Self::devices(Purpose::HostDevice, nodes.filter(|path| self.is_node(path)));
        }
        let mut rules = Vec::new();
        for (prefix, class) in [
            ("issm", "char-infiniband_mad"),
            ("rdma_cm", "/dev/infiniband/rdma_cm"),
            ("ucm", "char-infiniband_cm"),
            ("umad", "char-infiniband_mad"),
            ("uverbs", "char-infiniband_verbs"),
        ] {
            if names.iter().any(|name| name.starts_with(prefix)) {
                rules.extend(DeviceRule::parse(class));
            }
        }
        rules.sort();
        rules.dedup();
        let source = HostPath::new(DIR);
        source.map(|source| mount(Purpose::HostMount, source, rules)).into_iter().collect()
    }

    /// NVIDIA's device nodes and directories, and then the DRI nodes, which its container tools refer to.
    pub fn nvidia(&self) -> Vec<Grant> {
        let dirs = ["/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"];
        let names = self.names("/dev").into_iter().filter(|name| name.starts_with("nvidia"));
        let nodes = names.map(|name| format!("/dev/{name}")).filter(|path| self.is_node(path));
        let mut grants = Self::devices(Purpose::NvidiaDevice, nodes);
        for dir in dirs.into_iter().filter(|dir| self.is_dir(dir)) {
            let class = DeviceClass::new(&dir.replacen("/dev/", "char-", 1));
            if let (Ok(source), Ok(class)) = (HostPath::new(dir), class) {
                grants.push(mount(Purpose::NvidiaDevice, source, vec![DeviceRule::Class(class)]));
            }
        }
        if !grants.is_empty() {
            let dri = self.names("/dev/dri").into_iter().map(|name| format!("/dev/dri/{name}"));
            grants.extend(Self::devices(Purpose::NvidiaDevice, dri.filter(|path| self.is_node(path))));
        }
        grants
    }

    /// AMD's device nodes without those in `taken`, and the parts of `/sys` its plugin reads.
    pub fn amd(&self, taken: &[Grant]) -> Vec<Grant> {
        if !self.exists("/dev/kfd") {
            return Vec::new();
        }
        let dri = self.names("/dev/dri").into_iter();
        let dri = dri.filter(|name| name.starts_with("card") || name.starts_with("renderD"));
        let nodes = dri.map(|name| format!("/dev/dri/{name}")).chain(["/dev/kfd".to_owned()]);
        let is_taken = |path: &String| taken.iter().any(|grant| grant.source().is_some_and(|s| s.as_str() == path));
        let mut grants = Self::devices(Purpose::AmdDevice, nodes.filter(|path| self.is_node(path) && !is_taken(path)));
        for path in ["/sys/class/kfd", "/sys/module/amdgpu"] {
            if let (true, Ok(source)) = (self.exists(path), HostPath::new(path)) {
                grants.push(Grant::read_only_mount(Purpose::AmdSysfs, source));
            }
        }
        grants
    }

    /// The directories that hold the GPU driver's libraries: those of `ldconfig -p` for `arch` (`x86-64`,
    /// `aarch64`, or empty for 32-bit libraries), their `vdpau` subdirectories, and where links in them
    /// lead.
    pub fn library_dirs(&self, ldconfig: &str, arch: &str) -> Vec<HostPath> {
        let mut dirs = BTreeSet::new();
        for path in listed_libraries(ldconfig, arch) {
            let Some(dir) = path.rsplit_once('/').map(|(dir, _)| dir.to_owned()) else { continue };
            for dir in [dir.clone(), format!("{dir}/vdpau")] {
                for name in self.names(&dir) {
                    if is_driver_library(&name) {
                        dirs.insert(dir.clone());
                        dirs.extend(self.real_dir(&format!("{dir}/{name}")));
                    }
                }
            }
        }
        dirs.iter().filter_map(|dir| HostPath::new(dir).ok()).collect()
    }

    /// The directory of the file a link leads to, as a path of the host.
    fn real_dir(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..40 {
            let Some(to) = self.at(&path, |host, path| host.read_link(path)) else { break };
            let (dir, _) = path.rsplit_once('/')?;
            path = lexical(&Path::new(dir).join(to));
        }
        self.exists(&path).then(|| path.rsplit_once('/').map(|(dir, _)| dir.to_owned()))?
    }
}

fn mount(purpose: Purpose, source: HostPath, device_allow: Vec<DeviceRule>) -> Grant {
    Grant::Mount(MountGrant { purpose, source, target: None, read_only: false, device_allow })
}

/// Folds `.` and `..`: right for the links of a library directory, which lead through no other links.
fn lexical(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(parts.pop()),
            std::path::Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    format!("/{}", parts.join("/"))
}

fn is_driver_library(name: &str) -> bool {
    let prefixes =
        ["libcuda.so", "libcudadebugger.so", "libnvcuvid.so", "libnvidia-", "libnvoptix.so", "libvdpau_nvidia.so"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Paths of driver libraries in the output of `ldconfig -p`, whose lines are `name (kind,arch) => path`.
fn listed_libraries(ldconfig: &str, arch: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in ldconfig.lines() {
        let Some((left, path)) = line.split_once(" => ") else { continue };
        let Some((name, kind)) = left.trim().split_once(" (") else { continue };
        let kind = kind.trim_end_matches(')');
        let fits = if arch.is_empty() { kind == "libc6" } else { kind.split(',').any(|word| word.trim() == arch) };
        if fits && is_driver_library(name) {
            found.push(path.trim().to_owned());
        }
    }
    found
}

/// Devices an operator configured: a path below `/dev`, or a class, which is never bound.
///
/// # Errors
///
/// [`ErrorKind::InvalidGrant`](crate::ErrorKind::InvalidGrant) with the position.
pub fn configured_devices(devices: &[String]) -> Result<Vec<Grant>> {
    let grant = |text: &String| -> Result<Grant> {
        Ok(match DeviceRule::parse(text)? {
            DeviceRule::Node(source) => Grant::device(Purpose::HostDevice, source),
            DeviceRule::Class(class) => Grant::device_class(Purpose::HostDevice, class),
        })
    };
    let indexed = devices.iter().enumerate();
    indexed.map(|(index, text)| grant(text).map_err(|error| error.with_index(index))).collect()
}

/// Mounts an operator configured, in the operator's order: source, target (the source's path if absent),
/// read-only.
///
/// # Errors
///
/// [`ErrorKind::InvalidGrant`](crate::ErrorKind::InvalidGrant) with the position.
pub fn configured_mounts(mounts: &[(String, Option<NodePath>, bool)]) -> Result<Vec<Grant>> {
    let grant = |(source, target, read_only): &(String, Option<NodePath>, bool)| {
        let source = HostPath::new(source)?;
        let made = if *read_only { Grant::read_only_mount } else { Grant::mount };
        let grant = made(Purpose::HostMount, source);
        let grant = target.iter().fold(grant, |grant, target| grant.with_target(target.clone()));
        grant.validate().map(|()| grant)
    };
    let indexed = mounts.iter().enumerate();
    indexed.map(|(index, mount)| grant(mount).map_err(|error| error.with_index(index))).collect()
}
