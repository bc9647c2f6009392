//! What a stateful fake keeps on disk for one slot.

use crate::{Grant, GrantKind, IgnoredGrant, NodeFileKind, NodeFs, NodePath, NodeSpec, Result, UnitName, node_path};

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

/// Whether a grant becomes a link: the fake has no mounts of its own.
fn is_linked(grant: &Grant) -> bool {
    matches!(grant.kind(), GrantKind::Mount | GrantKind::Device)
}

/// Makes mounts and devices visible, as links.
pub(super) fn link(root: &NodeFs, grants: &[Grant]) -> Result<()> {
    for grant in grants.iter().filter(|grant| is_linked(grant)) {
        if let (Some(source), Some(target)) = (grant.source(), grant.target()) {
            if let Some(parent) = target.parent() {
                root.create_dir_all(&parent, 0o755)?;
            }
            root.symlink(source.as_path(), &target)?;
        }
    }
    Ok(())
}

/// Removes the links of `grants`, where there are any: a preparation that was cut short has not made all of them.
pub(super) fn unlink(root: &NodeFs, grants: &[Grant]) -> Result<()> {
    for grant in grants.iter().filter(|grant| is_linked(grant)) {
        let Some(target) = grant.target() else { continue };
        if root.metadata(&target)?.is_some_and(|found| found.kind == NodeFileKind::Symlink) {
            root.remove(&target)?;
        }
    }
    Ok(())
}

/// What becomes of each grant: what has a place in the node is applied; a class of devices has none.
pub(super) fn sort_grants(grants: &[Grant]) -> (Vec<usize>, Vec<IgnoredGrant>) {
    let (mut applied, mut ignored) = (Vec::new(), Vec::new());
    for (index, grant) in grants.iter().enumerate() {
        match grant {
            Grant::DeviceClass(_) => {
                let why = "commands run on the host and may use its devices";
                ignored.push(IgnoredGrant::new(index, GrantKind::Device, why));
            }
            _ => applied.push(index),
        }
    }
    (applied, ignored)
}

/// The user and the group of `user`, a name or a number, as the host knows them: the fake's commands run on the host.
pub(super) fn user_ids(user: &str) -> Option<(u32, u32)> {
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
        (name == user || uid == user).then(|| Some((uid.parse().ok()?, gid.parse().ok()?)))
    });
    known.flatten().or_else(|| if user == "root" { Some((0, 0)) } else { None })
}
