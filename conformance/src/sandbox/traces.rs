//! What a sandbox leaves on the machine of the test.

use std::fs;
use std::path::Path;

/// What is left on this machine of a sandbox that had `place` for its files, one line each: the files, mounts, and processes that have to do
/// with them. For [`Setup::with_leak_check`](super::Setup::with_leak_check), where sandboxes live in directories of the machine that the test
/// runs on. Mounts and processes are those that `/proc` shows: all of them to root, else those of the user.
#[must_use]
pub fn traces_of(place: &Path) -> Vec<String> {
    let mut left = Vec::new();
    if fs::symlink_metadata(place).is_ok() {
        left.push(format!("{} is still there", place.display()));
    }
    let name = place.to_string_lossy();
    if fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().contains(&*name) {
        left.push(format!("something of {name} is mounted"));
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        if process.file_name().is_none_or(|id| id.to_string_lossy().parse() == Ok(std::process::id())) {
            continue;
        }
        let links = ["cwd", "root", "exe", "fd/0", "fd/1", "fd/2"].map(|link| fs::read_link(process.join(link)));
        let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        if mounts.contains(&*name) || command.contains(&*name) || links.iter().flatten().any(|l| l.starts_with(place)) {
            left.push(format!("process {}: {}", process.display(), command.replace('\0', " ")));
        }
    }
    left
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn files_and_processes_are_named_until_they_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        assert!(traces_of(&place).is_empty());
        fs::create_dir(&place).unwrap();
        let mut inside = std::process::Command::new("sleep").arg("60").current_dir(&place).spawn().unwrap();
        let mut named = std::process::Command::new("bash").args(["-c", "sleep 60; :"]).arg(&place).spawn().unwrap();
        let left = traces_of(&place);
        assert_eq!(left.len(), 3, "{left:?}");
        assert!(
            left[0].ends_with("is still there") && left[1..].iter().all(|line| line.contains("sleep 60")),
            "{left:?}"
        );
        for child in [&mut inside, &mut named] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        fs::remove_dir(&place).unwrap();
        assert!(traces_of(&place).is_empty());
    }
}
