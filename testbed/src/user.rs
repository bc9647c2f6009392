//! An ordinary user without an account: a uid that nobody uses, with a home of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Context as _, Error, Result};
use crate::process::Task;

const FIRST_UID: u32 = 23_000;
const LAST_UID: u32 = 23_999;

/// Somebody who is not root, for the length of a test run.
#[derive(Debug)]
pub(crate) struct OrdinaryUser {
    uid: u32,
    root: tempfile::TempDir,
}

impl OrdinaryUser {
    /// Picks a uid that no account and no process has, and makes its folders.
    pub(crate) fn new() -> Result<Self> {
        let taken = taken_uids()?;
        // Where the search starts differs from process to process, so that two runs at once do not meet.
        let start = FIRST_UID + std::process::id() % (LAST_UID - FIRST_UID);
        let uid = (start..=LAST_UID)
            .chain(FIRST_UID..start)
            .find(|uid| !taken.contains(uid))
            .ok_or_else(|| Error::new("no unused uid"))?;
        let root = tempfile::Builder::new()
            .prefix("testbed-user-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .doing(|| "make a temporary folder".to_owned())?;
        let user = Self { uid, root };
        for (name, mode) in [("home", 0o755), ("tmp", 0o755), ("run", 0o700)] {
            let dir = user.path().join(name);
            fs::create_dir(&dir)
                .and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)))
                .and_then(|()| std::os::unix::fs::chown(&dir, Some(uid), Some(uid)))
                .doing(|| format!("make {}", dir.display()))?;
        }
        Ok(user)
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// A folder that the user can read, and only root can write.
    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// A program to run as this user, with a small clean environment.
    pub(crate) fn task(&self, program: &Path, limit: Duration) -> Task {
        let id = self.uid.to_string();
        let place = |name: &str| self.path().join(name);
        let mut task = Task::new("setpriv", limit).env_clear();
        for key in ["LANG", "CI", "RUST_BACKTRACE"] {
            if let Some(value) = std::env::var_os(key) {
                task = task.env(key, value);
            }
        }
        task.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
            .env("HOME", place("home"))
            .env("TMPDIR", place("tmp"))
            .env("XDG_RUNTIME_DIR", place("run"))
            .current_dir(place("home"))
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
            .args([program])
    }

    /// Copies a program to where the user can run it.
    pub(crate) fn lend(&self, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().ok_or_else(|| Error::new("a program without a name"))?;
        let dir = self.path().join("bin");
        let copy = dir.join(name);
        fs::create_dir_all(&dir)
            .and_then(|()| fs::copy(program, &copy))
            .doing(|| format!("copy {}", program.display()))?;
        Ok(copy)
    }

    /// Waits until no process of this user is left; otherwise kills what is left and says what it was.
    pub(crate) fn leftovers(&self, patience: Duration) -> Result<Vec<String>> {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.processes()?;
            if left.is_empty() {
                return Ok(Vec::new());
            }
            if Instant::now() >= deadline {
                for (pid, _) in &left {
                    if let Some(pid) = Pid::from_raw(*pid) {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
                return Ok(left.into_iter().map(|(pid, command)| format!("{pid} {command}")).collect());
            }
            // Another user's processes ending is nothing one can wait on without polling.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn processes(&self) -> Result<Vec<(i32, String)>> {
        let all = processes()?.into_iter();
        Ok(all
            .filter(|process| process.uids.contains(&self.uid))
            .map(|process| (process.pid, process.command))
            .collect())
    }
}

struct Process {
    pid: i32,
    uids: BTreeSet<u32>,
    command: String,
}

fn processes() -> Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").doing(|| "list /proc".to_owned())?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        // A zombie runs no more; its parent will collect it.
        if status.lines().any(|line| line.starts_with("State:\tZ")) {
            continue;
        }
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        let uids = uids.split_whitespace().filter_map(|uid| uid.parse().ok()).collect();
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
        all.push(Process { pid, uids, command });
    }
    Ok(all)
}

fn taken_uids() -> Result<BTreeSet<u32>> {
    let passwd = fs::read_to_string("/etc/passwd").doing(|| "read /etc/passwd".to_owned())?;
    let accounts = passwd.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok());
    Ok(accounts.chain(processes()?.into_iter().flat_map(|process| process.uids)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_seen_with_its_uid() {
        let me = i32::try_from(std::process::id()).unwrap();
        let found = processes().unwrap().into_iter().find(|process| process.pid == me).unwrap();
        assert!(found.uids.contains(&rustix::process::getuid().as_raw()));
        assert!(!found.command.is_empty());
    }
}
