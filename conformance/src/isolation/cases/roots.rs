//! Node roots: where paths lead, and where they never do.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use isolation::{ExecSpec, NodePath, NodeRoot, SlotRef, node_path};

use super::super::bed::ok;
use super::{B, Case};
use crate::{Failure, Outcome, ensure, equal};

const BOTH_WAYS: &str = "A file written through the node root can be read inside, and the other way round.";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "roots::of_the_slot",
            "The node root that `prepare` returns is that of the slot asked for.",
            of_the_slot,
        ),
        Case::new(
            "roots::below_the_directory",
            "The mapping of every node path is absolute and lies below the root directory, component by component.",
            below_the_directory,
        ),
        Case::new("roots::the_root_itself", "The mapping of `/` is the root directory itself.", the_root_itself),
        Case::new(
            "roots::two_paths_two_files",
            "Two different node paths never map to the same agent path.",
            two_paths_two_files,
        ),
        Case::new("roots::slots_do_not_meet", "The roots of two slots never map into each other.", slots_do_not_meet),
        Case::new(
            "roots::links_stay_inside",
            "The file operations of a node root never leave it, whatever links the image has planted.",
            links_stay_inside,
        ),
        Case::new("roots::written_outside_read_inside", BOTH_WAYS, written_outside_read_inside),
        Case::new("roots::written_inside_read_outside", BOTH_WAYS, written_inside_read_outside),
    ]
}

/// Paths of every shape.
fn paths() -> Outcome<Vec<NodePath>> {
    let mut texts: Vec<String> =
        ["/", "/a", "/A", "/a/b", "/a//b/./c/", "/a b", "/.a", "/...", "/a/..b", "/%n", "/é", "/~"]
            .map(str::to_owned)
            .to_vec();
    texts.push(format!("/{}", "d/".repeat(50)));
    texts.push(format!("/{}", "x".repeat(200)));
    texts.iter().map(|text| ok(&format!("the path {text}"), NodePath::new(text))).collect()
}

async fn root(bed: &B) -> Outcome<std::sync::Arc<dyn NodeRoot>> {
    bed.prepare(&bed.a()).await
}

async fn of_the_slot(bed: B) -> Outcome {
    for slot in [bed.a(), bed.b()] {
        let root = bed.prepare(&slot).await?;
        equal("the slot of the node root", root.slot(), &slot)?;
        ensure(root.dir().is_dir(), "its directory", "one", || root.dir().display().to_string())?;
    }
    Ok(())
}

async fn below_the_directory(bed: B) -> Outcome {
    let root = root(&bed).await?;
    let plain = |path: &Path| path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    for path in paths()? {
        let mapped = root.path(&path);
        let holds = mapped.is_absolute() && plain(&mapped) && mapped.starts_with(root.dir());
        ensure(holds, &format!("the mapping of {path}"), "absolute, below the root directory, without `..`", || {
            mapped.display().to_string()
        })?;
    }
    Ok(())
}

async fn the_root_itself(bed: B) -> Outcome {
    let root = root(&bed).await?;
    equal("the mapping of /", root.path(&NodePath::root()).as_os_str(), root.dir().as_os_str())
}

async fn two_paths_two_files(bed: B) -> Outcome {
    let root = root(&bed).await?;
    let mut seen = BTreeMap::new();
    for path in paths()? {
        if let Some(other) = seen.insert(root.path(&path), path.clone()) {
            return Err(Failure::new("mapping two paths", "two files", format!("{path} and {other} are one")));
        }
    }
    Ok(())
}

async fn slots_do_not_meet(bed: B) -> Outcome {
    let (first, second) = (bed.prepare(&bed.a()).await?, bed.prepare(&bed.b()).await?);
    for path in paths()? {
        for (one, other) in [(&first, &second), (&second, &first)] {
            let mapped = one.path(&path);
            ensure(!mapped.starts_with(other.dir()), &format!("the mapping of {path}"), "in its own slot", || {
                mapped.display().to_string()
            })?;
        }
    }
    Ok(())
}

async fn links_stay_inside(bed: B) -> Outcome {
    let root = root(&bed).await?;
    let io = |step: &str, error: std::io::Error| Failure::new(step, "success", error.to_string());
    let outside = tempfile::tempdir().map_err(|error| io("making a directory outside", error))?;
    let sentinel = outside.path().join("sentinel");
    std::fs::write(&sentinel, "untouched").map_err(|error| io("writing a sentinel", error))?;
    let fs = ok("the root's file operations", root.fs())?;
    let deep = Path::new("../../../../../../../../../../../../")
        .join(outside.path().strip_prefix("/").unwrap_or(outside.path()));
    ok("making a directory", fs.create_dir_all(&node_path!("/etc"), 0o755))?;
    for (name, to) in [("absolute", outside.path()), ("climbing", deep.as_path()), ("loop", Path::new("loop"))] {
        let link = ok("a path", NodePath::new(format!("/etc/{name}")))?;
        let planted = std::os::unix::fs::symlink(to, root.path(&link));
        planted.map_err(|error| io("planting a link", error))?;
        let below = ok("a path", link.join("sentinel"))?;
        let read = fs.read(&below, 100);
        ensure(read.is_err(), &format!("reading through the {name} link"), "an error", || crate::short(&read))?;
        let _ = fs.write_atomic(&below, 0o644, b"changed");
        let _ = fs.create_dir_all(&ok("a path", link.join("made"))?, 0o755);
        let _ = fs.remove(&below);
        let _ = fs.remove_tree(&link);
        let names: Vec<_> = std::fs::read_dir(outside.path()).map_err(|error| io("looking outside", error))?.collect();
        let content = std::fs::read_to_string(&sentinel).unwrap_or_default();
        equal(&format!("outside, after the {name} link"), (names.len(), content.as_str()), (1, "untouched"))?;
    }
    // And what is meant for the inside arrives there.
    let file = node_path!("/etc/inside");
    ok("writing a file", fs.write_atomic(&file, 0o644, b"inside"))?;
    equal("the file", std::fs::read(root.path(&file)).unwrap_or_default(), b"inside".to_vec())
}

async fn written_outside_read_inside(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/from-outside");
    ok("writing a file", root.fs().and_then(|fs| fs.write_atomic(&file, 0o644, b"from outside")))?;
    let spec = ExecSpec::new([Path::new("cat").as_os_str(), root.inside(&file).as_os_str()]);
    let output = ok("cat", bed.exec(&slot, &spec).await)?;
    equal("the file, read inside", output.stdout_text().as_str(), "from outside")
}

async fn written_inside_read_outside(bed: B) -> Outcome {
    let (slot, root) = bed.up().await?;
    let file = node_path!("/etc/from-inside");
    bed.sh(&slot, &format!("printf inside > '{}'", root.inside(&file).display())).await?;
    let read = ok("reading the file", root.fs().and_then(|fs| fs.read(&file, 100)))?;
    equal("the file, read outside", read, b"inside".to_vec())
}
