//! The cgroups of a bed: a folder of the bed's name in each hierarchy. Whatever runs in there is the bed's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Context as _, Error, Result};
use crate::place::make_dir;
use crate::process_id::poll;

const ROOT: &str = "/sys/fs/cgroup";
/// Hierarchies (of a machine with cgroup v1 or both) that only group processes.
const GROUPING: [&str; 2] = ["systemd", "unified"];

/// Folders for a bed's own daemons, in the hierarchies that only group processes.
pub(crate) fn grouping(name: &str) -> Result<Vec<PathBuf>> {
    let mut roots: Vec<_> = GROUPING.iter().map(|hierarchy| Path::new(ROOT).join(hierarchy)).collect();
    roots.retain(|path| path.is_dir());
    if roots.is_empty() && Path::new(ROOT).join("cgroup.procs").exists() {
        roots.push(ROOT.into());
    }
    if roots.is_empty() {
        return Err(Error::new(format!("{ROOT} has no hierarchy that could keep a bed's processes together")));
    }
    let folders: Vec<_> = roots.into_iter().map(|root| root.join(name).join("parts")).collect();
    folders.iter().try_for_each(make_dir)?;
    Ok(folders)
}

/// Makes `name/leaf` in every hierarchy, ready for processes.
pub(crate) fn make_everywhere(name: &str, leaf: &str) -> Result<()> {
    if Path::new(ROOT).join("cgroup.procs").exists() {
        return make_dir(Path::new(ROOT).join(name).join(leaf));
    }
    for entry in fs::read_dir(ROOT).doing(|| format!("list {ROOT}"))?.flatten() {
        let hierarchy = entry.path();
        // `cpu` may be a link to `cpu,cpuacct`.
        if !hierarchy.join("cgroup.procs").exists() || hierarchy.is_symlink() {
            continue;
        }
        let mut parent = hierarchy;
        for part in [name, leaf] {
            let folder = parent.join(part);
            make_dir(&folder)?;
            // A cpuset is born empty, and nothing can run in an empty one.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (parent.join(file), folder.join(file));
                if fs::read_to_string(&to).is_ok_and(|text| text.trim().is_empty()) {
                    let value = fs::read_to_string(&from).doing(|| format!("read {}", from.display()))?;
                    fs::write(&to, value.trim()).doing(|| format!("write {}", to.display()))?;
                }
            }
            parent = folder;
        }
    }
    Ok(())
}

/// Kills what runs in a bed's cgroups until nothing does.
pub(crate) fn kill(name: &str) -> Result<()> {
    let empty = poll(Duration::from_secs(30), || {
        let left = processes(name);
        for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(left.is_empty())
    })?;
    if empty { Ok(()) } else { Err(Error::new(format!("processes of {name} do not end: {:?}", processes(name)))) }
}

/// Removes a bed's cgroups, which must be empty.
pub(crate) fn remove(name: &str) -> Result<()> {
    for folder in folders(name) {
        if !poll(Duration::from_secs(10), || Ok(remove_tree(&folder)))? {
            return Err(Error::new(format!("{} does not go away", folder.display())));
        }
    }
    Ok(())
}

/// The folders of a bed, one for each hierarchy where it has any.
pub(crate) fn folders(name: &str) -> Vec<PathBuf> {
    let mut folders = vec![Path::new(ROOT).join(name)];
    folders.extend(fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path().join(name)));
    folders.retain(|path| path.is_dir());
    folders
}

fn processes(name: &str) -> BTreeSet<i32> {
    folders(name).iter().flat_map(|folder| members(folder)).collect()
}

fn members(folder: &Path) -> Vec<i32> {
    let own = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<_> = own.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect();
    pids.extend(children(folder).iter().flat_map(|child| members(child)));
    pids
}

fn remove_tree(folder: &Path) -> bool {
    for child in children(folder) {
        remove_tree(&child);
    }
    let _ = fs::remove_dir(folder);
    !folder.exists()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
