//! What a node stack asks of its host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{DeviceClass, Error, ErrorKind, HostPath, NodePath, Reason, Result};

/// What a grant is for. It steers where and in which order a backend renders the grant, and carries no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Purpose {
    /// A device node or a group of devices, such as `/dev/kvm` or `char-input`.
    HostDevice,
    /// A path the operator configured, or a whole directory of device nodes with its device rules.
    HostMount,
    /// A GPU's node, or a directory of them.
    NvidiaDevice,
    /// A directory of the GPU driver's libraries.
    NvidiaLibDir,
    /// A directory of the GPU driver's 32-bit libraries.
    NvidiaI386LibDir,
    /// A host directory of helper binaries that the start of the node copies in.
    NvidiaHelperBin,
    /// A GPU's node.
    AmdDevice,
    /// A path below `/sys` that the GPU's plugin reads.
    AmdSysfs,
}

impl Purpose {
    /// Every purpose, in the order grants are rendered.
    pub const ALL: [Self; 8] = [
        Self::HostDevice,
        Self::HostMount,
        Self::NvidiaDevice,
        Self::NvidiaLibDir,
        Self::NvidiaI386LibDir,
        Self::NvidiaHelperBin,
        Self::AmdDevice,
        Self::AmdSysfs,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostDevice => "host-device",
            Self::HostMount => "host-mount",
            Self::NvidiaDevice => "nvidia-device",
            Self::NvidiaLibDir => "nvidia-lib-dir",
            Self::NvidiaI386LibDir => "nvidia-i386-lib-dir",
            Self::NvidiaHelperBin => "nvidia-helper-bin",
            Self::AmdDevice => "amd-device",
            Self::AmdSysfs => "amd-sysfs",
        }
    }
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The kind of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GrantKind {
    /// Expose a path of the host.
    Mount,
    /// Expose a device of the host.
    Device,
    /// Extend where the node's linker looks for libraries.
    LibraryPath,
}

impl GrantKind {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Device => "device",
            Self::LibraryPath => "library-path",
        }
    }
}

impl std::fmt::Display for GrantKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something a node stack asks of its host, without saying how to provide it.
///
/// How is the backend's business, and doing nothing is legitimate where nothing is needed. Combinations
/// that make no sense can't be built:
///
/// | variant | needs | may have | purposes |
/// |---|---|---|---|
/// | `Mount` | source | target, read-only, device rules | host-mount, nvidia-device, nvidia-helper-bin, amd-sysfs |
/// | `Device` | source below `/dev` | target | host-device, nvidia-device, amd-device |
/// | `DeviceClass` | a class | | host-device, nvidia-device |
/// | `LibraryPath` | source, always read-only | target | nvidia-lib-dir, nvidia-i386-lib-dir |
///
/// What a variant can't rule out (a purpose that does not go with it, a target that would replace the root of the node)
/// [`validate`](Self::validate) does, and so does reading JSON. JSON has one flat object per grant; what an older Go agent wrote is
/// read as well.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Grant {
    /// A path of the host, visible inside.
    Mount(MountGrant),
    /// A device node of the host, visible and usable inside.
    Device(DeviceGrant),
    /// Every device of a class is usable inside.
    DeviceClass(DeviceClassGrant),
    /// A directory of libraries for the node's linker.
    LibraryPath(LibraryPathGrant),
}

/// A path of the host, visible inside.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountGrant {
    /// What it is for.
    pub purpose: Purpose,
    /// The path on the host; it need not exist yet.
    pub source: HostPath,
    /// Where it stands inside; the source's own path if absent.
    pub target: Option<NodePath>,
    /// Whether the node may not write to it.
    pub read_only: bool,
    /// For a directory of device nodes: which devices are usable, also those that appear later.
    pub device_allow: Vec<DeviceRule>,
}

/// A device node of the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceGrant {
    /// What it is for.
    pub purpose: Purpose,
    /// The node, below `/dev`.
    pub source: HostPath,
    /// Where it stands inside; the source's own path if absent.
    pub target: Option<NodePath>,
}

/// A class of devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceClassGrant {
    /// What it is for.
    pub purpose: Purpose,
    /// The class, as the host's `/proc/devices` names it.
    pub class: DeviceClass,
}

/// A directory of libraries, always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LibraryPathGrant {
    /// What it is for.
    pub purpose: Purpose,
    /// The directory on the host.
    pub source: HostPath,
    /// Where it stands inside; the source's own path if absent.
    pub target: Option<NodePath>,
}

/// One entry of a mount grant's device rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceRule {
    /// A device node.
    Node(HostPath),
    /// A class of devices.
    Class(DeviceClass),
}

impl DeviceRule {
    /// Reads a rule: a path below `/dev`, or a class.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`].
    pub fn parse(text: &str) -> Result<Self> {
        if text.starts_with('/') {
            let node = HostPath::new(text)?;
            if !node.is_device() {
                return Err(reject("device_allow", text, Reason::NotADevice));
            }
            Ok(Self::Node(node))
        } else {
            DeviceClass::new(text).map(Self::Class).map_err(|error| error.with_field("device_allow"))
        }
    }

    /// The rule as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Node(node) => node.as_str(),
            Self::Class(class) => class.as_str(),
        }
    }
}

pub(crate) fn reject(field: &'static str, given: &str, reason: Reason) -> Error {
    Error::rejected(ErrorKind::InvalidGrant, "grant", given.as_bytes(), reason).with_field(field)
}

impl Grant {
    /// A path of the host, read-write.
    pub fn mount(purpose: Purpose, source: HostPath) -> Self {
        Self::Mount(MountGrant { purpose, source, target: None, read_only: false, device_allow: Vec::new() })
    }

    /// A path of the host, read-only.
    pub fn read_only_mount(purpose: Purpose, source: HostPath) -> Self {
        Self::Mount(MountGrant { purpose, source, target: None, read_only: true, device_allow: Vec::new() })
    }

    /// A device node.
    pub fn device(purpose: Purpose, source: HostPath) -> Self {
        Self::Device(DeviceGrant { purpose, source, target: None })
    }

    /// A class of devices.
    pub fn device_class(purpose: Purpose, class: DeviceClass) -> Self {
        Self::DeviceClass(DeviceClassGrant { purpose, class })
    }

    /// A directory of libraries.
    pub fn library_path(purpose: Purpose, source: HostPath) -> Self {
        Self::LibraryPath(LibraryPathGrant { purpose, source, target: None })
    }

    /// Sets where it stands inside; a class stands nowhere and stays as it is.
    #[must_use]
    pub fn with_target(mut self, to: NodePath) -> Self {
        match &mut self {
            Self::Mount(MountGrant { target, .. })
            | Self::Device(DeviceGrant { target, .. })
            | Self::LibraryPath(LibraryPathGrant { target, .. }) => *target = Some(to),
            Self::DeviceClass(_) => {}
        }
        self
    }

    /// The kind.
    pub fn kind(&self) -> GrantKind {
        match self {
            Self::Mount(_) => GrantKind::Mount,
            Self::Device(_) | Self::DeviceClass(_) => GrantKind::Device,
            Self::LibraryPath(_) => GrantKind::LibraryPath,
        }
    }

    /// The purpose.
    pub fn purpose(&self) -> Purpose {
        match self {
            Self::Mount(MountGrant { purpose, .. })
            | Self::Device(DeviceGrant { purpose, .. })
            | Self::DeviceClass(DeviceClassGrant { purpose, .. })
            | Self::LibraryPath(LibraryPathGrant { purpose, .. }) => *purpose,
        }
    }

    /// The path on the host; a class has none.
    pub fn source(&self) -> Option<&HostPath> {
        match self {
            Self::Mount(MountGrant { source, .. })
            | Self::Device(DeviceGrant { source, .. })
            | Self::LibraryPath(LibraryPathGrant { source, .. }) => Some(source),
            Self::DeviceClass(_) => None,
        }
    }

    /// Where it stands inside: the target, or the source's own path.
    pub fn target(&self) -> Option<NodePath> {
        let (source, target) = match self {
            Self::Mount(MountGrant { source, target, .. })
            | Self::Device(DeviceGrant { source, target, .. })
            | Self::LibraryPath(LibraryPathGrant { source, target, .. }) => (source, target),
            Self::DeviceClass(_) => return None,
        };
        Some(target.clone().unwrap_or_else(|| source.to_node_path()))
    }

    /// Whether the node may not write to it.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Mount(mount) => mount.read_only,
            Self::LibraryPath(_) => true,
            Self::Device(_) | Self::DeviceClass(_) => false,
        }
    }

    /// Checks what the variants can't rule out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`], with field and rule.
    pub fn validate(&self) -> Result<()> {
        use Purpose::*;
        let fits: &[Purpose] = match self {
            Self::Mount(_) => &[HostMount, NvidiaDevice, NvidiaHelperBin, AmdSysfs],
            Self::Device(_) => &[HostDevice, NvidiaDevice, AmdDevice],
            Self::DeviceClass(_) => &[HostDevice, NvidiaDevice],
            Self::LibraryPath(_) => &[NvidiaLibDir, NvidiaI386LibDir],
        };
        if !fits.contains(&self.purpose()) {
            return Err(reject("purpose", self.purpose().as_str(), Reason::PurposeMismatch));
        }
        if let Self::Device(DeviceGrant { source, .. }) = self
            && !source.is_device()
        {
            return Err(reject("source", source.as_str(), Reason::NotADevice));
        }
        // A target ends up beside its source in a unit file, so the same characters are forbidden.
        if let Self::Mount(MountGrant { target: Some(target), .. })
        | Self::Device(DeviceGrant { target: Some(target), .. })
        | Self::LibraryPath(LibraryPathGrant { target: Some(target), .. }) = self
        {
            let text = String::from_utf8_lossy(target.as_bytes());
            HostPath::new(&text).map_err(|error| error.with_field("target"))?;
        }
        if self.target().is_some_and(|target| target.is_root()) {
            return Err(reject("target", "/", Reason::NodeRoot));
        }
        Ok(())
    }

    /// Checks a list; the error says which member.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidGrant`], with [`Error::index`].
    pub fn validate_all(grants: &[Self]) -> Result<()> {
        grants
            .iter()
            .enumerate()
            .try_for_each(|(index, grant)| grant.validate().map_err(|error| error.with_index(index)))
    }
}

/// One host directory of libraries, visible inside: [`lib_dir_mounts`] numbers them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibDirMount {
    /// Orders the mounts, and is the key by which a library file finds its directory.
    #[serde(alias = "Index")]
    pub index: u32,
    /// The directory on the host.
    #[serde(alias = "HostDir")]
    pub host_dir: HostPath,
    /// Where it stands inside.
    #[serde(alias = "ContainerDir")]
    pub container_dir: NodePath,
}

/// Numbers library directories from 0, one entry for each distinct one, below `/run/host-nvidia` or, for
/// 32-bit ones, `/run/host-nvidia-i386`. Equal input gives equal output.
pub fn lib_dir_mounts(dirs: &[HostPath], i386: bool) -> Vec<LibDirMount> {
    let base = if i386 { "/run/host-nvidia-i386" } else { "/run/host-nvidia" };
    let mut mounts: Vec<LibDirMount> = Vec::new();
    for dir in dirs {
        if mounts.iter().any(|mount| mount.host_dir == *dir) {
            continue;
        }
        let index = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
        let container_dir = NodePath::new(PathBuf::from(format!("{base}/{index}")))
            .expect("the base is absolute and the number has no slash");
        mounts.push(LibDirMount { index, host_dir: dir.clone(), container_dir });
    }
    mounts
}
