//! What a stateful fake keeps on disk for one slot.

use std::path::Path;

use crate::{Error, Grant, GrantKind, IgnoredGrant, NodeFs, NodePath, NodeSpec, Result, UnitName, node_path};

/// The configuration a slot is prepared with, as the fake would hand it to a service manager.
pub(super) fn render(spec: &NodeSpec, after: &[UnitName]) -> String {
    let mut text = format!("# slot {}\n[Unit]\n", spec.slot);
    for unit in after {
        text.push_str(&format!("After={unit}\n"));
    }
    text.push_str("[Node]\n");
    // Mounts keep their order; everything else is sorted, so that discovery in any order renders the same.
    let mut lines = Vec::new();
    for (place, grant) in spec.grants.iter().enumerate() {
        let order = if grant.kind() == GrantKind::Mount { place } else { usize::MAX };
        let source = grant.source().map_or("", |source| source.as_str());
        let line = match (grant, grant.target()) {
            (Grant::DeviceClass(class), _) => format!("DeviceAllow={} rwm", class.class),
            (_, Some(target)) if grant.is_read_only() => format!("BindReadOnly={source}:{target}"),
            (_, target) => format!("Bind={source}:{}", target.unwrap_or_else(NodePath::root)),
        };
        lines.push((order, line));
    }
    lines.sort();
    lines.dedup();
    for (_, line) in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Fills an empty root.
pub(super) fn fill(root: &NodeFs) -> Result<()> {
    for dir in [node_path!("/etc"), node_path!("/tmp"), node_path!("/var/lib")] {
        root.create_dir_all(&dir, 0o755)?;
    }
    root.write_atomic(&node_path!("/etc/hostname"), 0o644, b"fake\n")
}

/// Makes mounts visible, as links: the fake has no mounts of its own.
pub(super) fn link_mounts(root: &NodeFs, grants: &[Grant]) -> Result<()> {
    for grant in grants {
        if let (GrantKind::Mount, Some(source), Some(target)) = (grant.kind(), grant.source(), grant.target()) {
            if let Some(parent) = target.parent() {
                root.create_dir_all(&parent, 0o755)?;
            }
            root.symlink(source.as_path(), &target)?;
        }
    }
    Ok(())
}

/// Removes the links of `grants`.
pub(super) fn unlink_mounts(root: &NodeFs, grants: &[Grant]) -> Result<()> {
    for grant in grants.iter().filter(|grant| grant.kind() == GrantKind::Mount) {
        if let Some(target) = grant.target() {
            root.remove(&target)?;
        }
    }
    Ok(())
}

/// What becomes of each grant: mounts are applied, devices are the host's own anyway, and library
/// directories are applied.
pub(super) fn sort_grants(grants: &[Grant]) -> (Vec<usize>, Vec<IgnoredGrant>) {
    let (mut applied, mut ignored) = (Vec::new(), Vec::new());
    for (index, grant) in grants.iter().enumerate() {
        match grant.kind() {
            GrantKind::Device => {
                ignored.push(IgnoredGrant::new(
                    index,
                    GrantKind::Device,
                    "commands run on the host and see its devices",
                ));
            }
            _ => applied.push(index),
        }
    }
    (applied, ignored)
}

/// Reads a file of the fake's own directory; absence is `None`.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::io("read the slot's configuration", path, cause)),
    }
}
