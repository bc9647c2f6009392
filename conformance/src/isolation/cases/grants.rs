//! Grants, and whether requirements are honest.

use std::collections::BTreeSet;
use std::sync::Arc;

use isolation::{DeviceClass, ErrorKind, Grant, GrantKind, HostPath, NodePath, NodeRoot, NodeSpec, Purpose, node_path};

use super::super::bed::{none, ok, refused};
use super::{B, Case};
use crate::{Failure, Outcome, ensure, equal};

const STABLE: &str = "Equal grants render equally, and configured mounts keep their order.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "grants::accounted_for",
            "Every grant is listed in the report as applied or ignored, or refused as `GrantUnsupported`.",
            accounted_for,
        ),
        Case::new(
            "grants::only_the_new_ones",
            "Preparing again with other grants leaves exactly the new ones, and says that something changed.",
            only_the_new_ones,
        )
        .needs("mounts or devices", |c| c.mounts || c.devices),
        Case::new("grants::order_of_discovery", STABLE, order_of_discovery).needs("devices", |c| c.devices),
        Case::new("grants::order_of_mounts", STABLE, order_of_mounts).needs("mounts", |c| c.mounts),
        Case::new(
            "grants::invalid",
            "An invalid grant is refused as `InvalidGrant` with its position, before anything is written.",
            invalid,
        ),
        Case::new(
            "grants::no_injection",
            "No text in a grant can add a line or a section to a rendered file.",
            no_injection,
        )
        .needs("mounts", |c| c.mounts),
        Case::new(
            "grants::mounts_are_visible",
            "What is mounted for a node can be seen inside at its target.",
            mounts_are_visible,
        )
        .needs("mounts visible", |c| c.mounts_visible),
        Case::new("grants::read_only", "A read-only grant can't be written to from inside.", read_only)
            .needs("mounts read-only", |c| c.mounts_read_only),
        Case::new(
            "grants::devices_are_usable",
            "A device that is granted can be seen and opened inside.",
            devices_are_usable,
        )
        .needs("devices usable", |c| c.devices_usable),
        Case::new(
            "requirements::paths_are_declared",
            "Every path a backend writes is covered by its declared writable paths.",
            paths_are_declared,
        ),
        Case::new(
            "requirements::prepare_writes_where_declared",
            "Preparing writes only below the declared writable paths.",
            prepare_writes_where_declared,
        ),
        Case::new(
            "requirements::commands_are_declared",
            "Every program a backend runs is among its declared commands.",
            commands_are_declared,
        )
        .needs("executed", |c| c.executed),
        Case::new(
            "requirements::order_is_rendered",
            "Units to start after appear as ordering in the backend's own unit.",
            order_is_rendered,
        ),
    ]
}

fn host(path: &str) -> Outcome<HostPath> {
    ok(&format!("the host path {path}"), HostPath::new(path))
}

/// Grants of every legal combination, two device nodes for the host among them.
fn every_kind() -> Outcome<Vec<Grant>> {
    let class = ok("a device class", DeviceClass::new("char-mem"))?;
    let mut all = Vec::new();
    for (n, purpose) in
        [Purpose::HostMount, Purpose::NvidiaDevice, Purpose::NvidiaHelperBin, Purpose::AmdSysfs].into_iter().enumerate()
    {
        let target = ok("a target", isolation::NodePath::new(format!("/mnt/suite{n}")))?;
        all.push(Grant::read_only_mount(purpose, host("/usr")?).with_target(target));
    }
    for (purpose, node) in [
        (Purpose::HostDevice, "/dev/null"),
        (Purpose::HostDevice, "/dev/random"),
        (Purpose::NvidiaDevice, "/dev/zero"),
        (Purpose::AmdDevice, "/dev/full"),
    ] {
        all.push(Grant::device(purpose, host(node)?));
    }
    for purpose in [Purpose::HostDevice, Purpose::NvidiaDevice] {
        all.push(Grant::device_class(purpose, class.clone()));
    }
    for (purpose, dir) in [(Purpose::NvidiaLibDir, "/usr/lib"), (Purpose::NvidiaI386LibDir, "/usr/lib32")] {
        all.push(Grant::library_path(purpose, host(dir)?));
    }
    Ok(all)
}

/// The grants a backend does not refuse, of every kind.
async fn supported(bed: &B) -> Outcome<Vec<Grant>> {
    let mut grants = every_kind()?;
    loop {
        let spec = bed.spec(&bed.a()).with_grants(grants.clone());
        match bed.backend().prepare(&bed.ctx(), &spec).await {
            Ok(_) => return Ok(grants),
            Err(error) if error.kind() == ErrorKind::GrantUnsupported => match error.index() {
                Some(index) if index < grants.len() => drop(grants.remove(index)),
                _ => return Err(Failure::new("a refused grant", "its position", format!("{error:?}"))),
            },
            Err(error) => return Err(Failure::new("preparing with grants", "success", format!("{error:?}"))),
        }
    }
}

async fn accounted_for(bed: B) -> Outcome {
    let grants = supported(&bed).await?;
    let caps = bed.harness().caps();
    for (claim, claimed, kind, purpose) in [
        ("mounts", caps.mounts, GrantKind::Mount, Purpose::HostMount),
        ("devices", caps.devices, GrantKind::Device, Purpose::HostDevice),
    ] {
        let such = |grant: &&Grant| grant.kind() == kind && grant.purpose() == purpose && grant.source().is_some();
        match (claimed, grants.iter().find(such)) {
            (true, None) => {
                let got = "`GrantUnsupported`";
                return Err(Failure::new(format!("grants whose harness claims `{claim}`"), "that they are taken", got));
            }
            (false, Some(taken)) => {
                let step = format!("a grant whose harness does not claim `{claim}`");
                return Err(Failure::new(step, "`GrantUnsupported`", format!("{taken:?} was taken")));
            }
            _ => {}
        }
    }
    bed.destroy(&bed.a()).await?;
    let (_, report) = bed.prepare_with(&bed.spec(&bed.a()).with_grants(grants.clone())).await?;
    let mut listed: Vec<usize> = report.applied.clone();
    listed.extend(report.ignored.iter().map(|ignored| ignored.index));
    listed.sort_unstable();
    equal("the positions in the report", listed, (0..grants.len()).collect::<Vec<_>>())?;
    for ignored in &report.ignored {
        equal("the kind of an ignored grant", ignored.kind, grants[ignored.index].kind())?;
        ensure(!ignored.why.is_empty(), "an ignored grant", "a reason", || crate::short(ignored))?;
    }
    Ok(())
}

fn mounts(dirs: &[(&str, &str)]) -> Outcome<Vec<Grant>> {
    let grant = |(source, target): &(&str, &str)| {
        let target = ok("a target", isolation::NodePath::new(target))?;
        Ok(Grant::mount(Purpose::HostMount, host(source)?).with_target(target))
    };
    dirs.iter().map(grant).collect()
}

fn devices(nodes: &[&str]) -> Outcome<Vec<Grant>> {
    nodes.iter().map(|node| Ok(Grant::device(Purpose::HostDevice, host(node)?))).collect()
}

async fn only_the_new_ones(bed: B) -> Outcome {
    let (slot, caps) = (bed.a(), bed.harness().caps());
    if caps.devices {
        let (old, new) = (devices(&["/dev/null", "/dev/zero"])?, devices(&["/dev/zero", "/dev/full"])?);
        replaced(&bed, old, new).await?;
        bed.destroy(&slot).await?;
    }
    if caps.mounts {
        let old = mounts(&[("/usr/share", "/mnt/suite-old"), ("/usr/bin", "/mnt/suite-both")])?;
        let new = mounts(&[("/usr/bin", "/mnt/suite-both"), ("/usr/lib", "/mnt/suite-new")])?;
        let root = replaced(&bed, old, new).await?;
        if caps.mounts_visible {
            only_the_new_is_visible(&bed, &*root).await?;
        }
        bed.prepare_with(&bed.spec(&slot)).await?;
        let bare = bed.harness().rendered(&slot).await;
        ensure(!bare.contains("suite-"), "what is rendered without grants", "no grant", || bare.clone())?;
    }
    Ok(())
}

/// Prepares with old grants, then with new ones, and sees the same as of the new ones alone.
async fn replaced(bed: &B, old: Vec<Grant>, new: Vec<Grant>) -> Outcome<Arc<dyn NodeRoot>> {
    let slot = bed.a();
    let (old, new) = (bed.spec(&slot).with_grants(old), bed.spec(&slot).with_grants(new));
    bed.prepare_with(&new).await?;
    let want = bed.harness().rendered(&slot).await;
    bed.destroy(&slot).await?;
    bed.prepare_with(&old).await?;
    let (root, report) = bed.prepare_with(&new).await?;
    equal("`changed` of the second report", report.changed, true)?;
    equal("what is rendered after the second `prepare`", bed.harness().rendered(&slot).await, want)?;
    Ok(root)
}

async fn only_the_new_is_visible(bed: &B, root: &dyn NodeRoot) -> Outcome {
    let slot = bed.a();
    bed.start(&slot).await?;
    let count = |target: NodePath| format!("ls -A '{}' 2>/dev/null | wc -l", root.inside(&target).display());
    let (old, new) = (count(node_path!("/mnt/suite-old")), count(node_path!("/mnt/suite-new")));
    equal("the files of a mount that is no longer granted", bed.sh(&slot, &old).await?.trim(), "0")?;
    let seen = bed.sh(&slot, &new).await?;
    ensure(seen.trim() != "0", "the files that the node sees at the target of the new mount", "at least one", || {
        seen.clone()
    })?;
    bed.stop(&slot).await
}

async fn order_of_discovery(bed: B) -> Outcome {
    let mut grants = supported(&bed).await?;
    let rendered = bed.harness().rendered(&bed.a()).await;
    // Only what is discovered: mounts keep their order among each other.
    let mounts: Vec<_> = grants.iter().filter(|grant| grant.kind() == GrantKind::Mount).cloned().collect();
    grants.retain(|grant| grant.kind() != GrantKind::Mount);
    ensure(grants.len() > 1, "grants that are discovered", "two at least, to turn round", || format!("{grants:?}"))?;
    for turn in 1..grants.len() {
        grants.rotate_left(1);
        grants.reverse();
        let spec = bed.spec(&bed.a()).with_grants([&mounts[..], &grants[..]].concat());
        bed.prepare_with(&spec).await?;
        equal(&format!("order number {turn}"), bed.harness().rendered(&bed.a()).await, rendered.clone())?;
    }
    Ok(())
}

async fn order_of_mounts(bed: B) -> Outcome {
    let dirs = [("/usr/share", "/mnt/suite-z"), ("/usr/bin", "/mnt/suite-a"), ("/usr/lib", "/mnt/suite-m")];
    let (_, report) = bed.prepare_with(&bed.spec(&bed.a()).with_grants(mounts(&dirs)?)).await?;
    let rendered = bed.harness().rendered(&bed.a()).await;
    let places: Vec<_> = dirs.iter().map(|(_, target)| rendered.find(target)).collect();
    let ordered = places.iter().all(Option::is_some) && places.is_sorted();
    // Of what is ignored nothing need be rendered.
    let ignored = report.applied.is_empty() && places.iter().all(Option::is_none);
    ensure(ordered || ignored, "three mounts, rendered", "in the given order", || rendered.clone())
}

async fn invalid(bed: B) -> Outcome {
    // Before the bad one stands a good one, of a kind that is not refused for another reason.
    let good = match bed.harness().caps() {
        caps if caps.devices => devices(&["/dev/null"])?,
        caps if caps.mounts => mounts(&[("/usr", "/mnt/suite")])?,
        _ => Vec::new(),
    };
    for bad in [
        Grant::device(Purpose::HostDevice, host("/etc/passwd")?),
        Grant::device(Purpose::HostMount, host("/dev/null")?),
        Grant::mount(Purpose::AmdDevice, host("/usr")?),
        Grant::library_path(Purpose::HostMount, host("/usr/lib")?),
        Grant::mount(Purpose::HostMount, host("/usr")?).with_target(node_path!("/mnt/a:b")),
        Grant::mount(Purpose::HostMount, host("/usr")?).with_target(node_path!("/mnt/a\n[Service]")),
        Grant::mount(Purpose::HostMount, host("/usr")?).with_target(NodePath::root()),
    ] {
        let step = format!("preparing with {bad:?}");
        let spec = bed.spec(&bed.a()).with_grants([&good[..], &[bad][..]].concat());
        let prepared = bed.backend().prepare(&bed.ctx(), &spec).await;
        let error = refused(&step, prepared.map(drop), ErrorKind::InvalidGrant)?;
        equal(&format!("{step}: its position"), error.index(), Some(good.len()))?;
        none(&step, "no change", &bed.changes().await)?;
    }
    Ok(())
}

async fn no_injection(bed: B) -> Outcome {
    let slot = bed.a();
    let spec = |targets: &[&str]| -> Outcome<NodeSpec> {
        let grants = targets.iter().map(|target| mounts(&[("/usr", target)]));
        Ok(bed.spec(&slot).with_grants(grants.collect::<Outcome<Vec<_>>>()?.concat()))
    };
    bed.prepare_with(&spec(&["/mnt/a", "/mnt/b", "/mnt/c", "/mnt/d"])?).await?;
    let plain = bed.harness().rendered(&slot).await;
    bed.prepare_with(&spec(&["/mnt/[Service]", "/mnt/Bind=x", "/mnt/#c;d", "/mnt/-o,rw"])?).await?;
    let odd = bed.harness().rendered(&slot).await;
    let sections =
        |text: &str| text.lines().filter(|line| line.starts_with('[')).map(str::to_owned).collect::<Vec<_>>();
    equal("the number of lines", odd.lines().count(), plain.lines().count())?;
    equal("the sections", sections(&odd), sections(&plain))
}

async fn mounts_are_visible(bed: B) -> Outcome {
    let slot = bed.a();
    let outside = tempfile::tempdir().map_err(|error| Failure::new("making a directory", "one", error.to_string()))?;
    let written = std::fs::write(outside.path().join("sign"), "of the host");
    written.map_err(|error| Failure::new("writing a file", "success", error.to_string()))?;
    let source = outside.path().to_string_lossy().into_owned();
    let spec = bed.spec(&slot).with_grants(mounts(&[(&source, "/mnt/suite")])?);
    let (root, _) = bed.prepare_with(&spec).await?;
    bed.start(&slot).await?;
    let sign = root.inside(&node_path!("/mnt/suite/sign"));
    equal(
        "the mounted file, read inside",
        bed.sh(&slot, &format!("cat '{}'", sign.display())).await?.as_str(),
        "of the host",
    )
}

async fn read_only(bed: B) -> Outcome {
    let slot = bed.a();
    let outside = tempfile::tempdir().map_err(|error| Failure::new("making a directory", "one", error.to_string()))?;
    let source = host(&outside.path().to_string_lossy())?;
    let grant = Grant::read_only_mount(Purpose::HostMount, source).with_target(node_path!("/mnt/suite"));
    let (root, _) = bed.prepare_with(&bed.spec(&slot).with_grants(vec![grant])).await?;
    bed.start(&slot).await?;
    let file = root.inside(&node_path!("/mnt/suite/written"));
    let script = format!("echo x > '{}' && echo written", file.display());
    let output = ok("writing inside", bed.exec(&slot, &super::super::bed::sh(&script)).await)?;
    ensure(!output.status.success(), "writing inside", "a failure", || output.stdout_text())?;
    let there = outside.path().join("written").exists();
    ensure(!there, "the directory outside", "no new file", || "written".to_owned())
}

async fn devices_are_usable(bed: B) -> Outcome {
    let slot = bed.a();
    let node = Grant::device(Purpose::HostDevice, host("/dev/kmsg")?);
    let (root, _) = bed.prepare_with(&bed.spec(&slot).with_grants(vec![node])).await?;
    bed.start(&slot).await?;
    let node = root.inside(&node_path!("/dev/kmsg"));
    bed.sh(&slot, &format!("test -c '{0}' && : < '{0}'", node.display())).await.map(drop)
}

/// What was written that is not covered.
async fn uncovered(bed: &B) -> Vec<String> {
    let needs = bed.backend().requirements();
    let files = bed.footprint().await;
    let paths = files.files().filter(|path| !needs.covers(path));
    paths.map(|path| path.display().to_string()).collect()
}

async fn prepare_writes_where_declared(bed: B) -> Outcome {
    bed.prepare(&bed.a()).await?;
    none("the files of a prepared slot", "below a declared path", &uncovered(&bed).await)
}

async fn paths_are_declared(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    none("the files of a running slot", "below a declared path", &uncovered(&bed).await)?;
    bed.restart(&slot).await?;
    bed.stop(&slot).await?;
    none("the files of a stopped slot", "below a declared path", &uncovered(&bed).await)
}

async fn commands_are_declared(bed: B) -> Outcome {
    let (slot, _) = bed.up().await?;
    bed.sh(&slot, "true").await?;
    bed.restart(&slot).await?;
    bed.stop(&slot).await?;
    bed.destroy(&slot).await?;
    let (needs, ran) = (bed.backend().requirements(), bed.harness().executed());
    ensure(!ran.is_empty(), "the programs that ran", "at least one", String::new)?;
    let secret: Vec<_> = ran.into_iter().filter(|program| !needs.declares(program)).collect();
    none("the programs that ran", "only declared ones", &secret)
}

async fn order_is_rendered(bed: B) -> Outcome {
    bed.prepare(&bed.a()).await?;
    let rendered = bed.harness().rendered(&bed.a()).await;
    let after: BTreeSet<_> = rendered
        .lines()
        .filter_map(|line| line.trim().strip_prefix("After="))
        .flat_map(str::split_whitespace)
        .collect();
    for unit in bed.backend().requirements().after {
        ensure(after.contains(unit.as_str()), &format!("the order after {unit}"), "an `After=` line", || {
            rendered.clone()
        })?;
    }
    Ok(())
}
