//! Where the processes of a pod run, and how they all end.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::store::new_uid;

/// In the environment of every process, with the mark of its pod.
const MARK: &str = "FAKE_APISERVER_POD";
/// How long the processes of a pod may take to die of SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place of one pod. Dropping it kills every process in it and removes its directory.
#[derive(Debug)]
pub(crate) struct Place {
    dir: tempfile::TempDir,
    mark: String,
    gone: watch::Sender<bool>,
    used: bool,
}

impl Place {
    fn new() -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("fake-pod-").tempdir()?;
        Ok(Self { dir, mark: format!("{MARK}={}", new_uid()), gone: watch::Sender::new(false), used: false })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gone.send_replace(true);
        if self.used {
            kill_all(&self.mark, self.dir.path());
        }
    }
}

/// The places of all pods, by uid.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    places: HashMap<String, Place>,
}

impl Places {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of a pod, made on first use.
    pub(crate) fn dir(&self, uid: &str) -> io::Result<PathBuf> {
        Ok(place(&mut self.state(), uid)?.dir.path().to_owned())
    }

    /// Starts a process in the place of a pod. `gone` becomes true when the place is cleared.
    pub(crate) fn spawn(
        &self,
        uid: &str,
        set_up: impl FnOnce(&Path) -> Command,
    ) -> io::Result<(Child, watch::Receiver<bool>)> {
        // Under the lock: whoever clears the place sees the process.
        let mut state = self.state();
        let place = place(&mut state, uid)?;
        place.used = true;
        let mut command = set_up(place.dir.path());
        let (name, mark) = place.mark.split_once('=').unwrap_or((MARK, ""));
        command.env(name, mark).process_group(0).kill_on_drop(true);
        Ok((command.spawn()?, place.gone.subscribe()))
    }

    /// What runs in the place of a pod.
    pub(crate) fn processes(&self, uid: &str) -> Vec<i32> {
        let place = self.state().places.get(uid).map(|place| (place.mark.clone(), place.dir.path().to_owned()));
        place.map(|(mark, dir)| ours(&mark, &dir.canonicalize().unwrap_or(dir))).unwrap_or_default()
    }

    pub(crate) fn take(&self, uid: &str) -> Option<Place> {
        self.state().places.remove(uid)
    }

    /// Clears all places, and makes no new ones.
    pub(crate) fn close(&self) -> Vec<Place> {
        let mut state = self.state();
        state.closed = true;
        state.places.drain().map(|(_, place)| place).collect()
    }
}

fn place<'a>(state: &'a mut State, uid: &str) -> io::Result<&'a mut Place> {
    if state.closed {
        return Err(io::Error::other("the server has ended"));
    }
    if !state.places.contains_key(uid) {
        state.places.insert(uid.to_owned(), Place::new()?);
    }
    state.places.get_mut(uid).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Kills every process that bears the mark or works in the directory, until a look finds none.
fn kill_all(mark: &str, dir: &Path) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let killed: Vec<_> = ours(mark, &dir).into_iter().filter_map(|pid| kill(pid, mark, &dir)).collect();
        if killed.is_empty() {
            return;
        }
        for pidfd in killed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // Readable once the process has ended. An error here only shortens the wait.
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
        }
    }
}

fn ours(mark: &str, dir: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_ours(*pid, mark, dir)).collect()
}

fn is_ours(pid: i32, mark: &str, dir: &Path) -> bool {
    if u32::try_from(pid) == Ok(std::process::id()) {
        return false;
    }
    let marked = fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes()));
    marked || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(dir))
}

/// The number is looked at again once it can't be given to another process.
fn kill(pid: i32, mark: &str, dir: &Path) -> Option<std::os::fd::OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    if !is_ours(pid, mark, dir) {
        return None;
    }
    pidfd_send_signal(&pidfd, Signal::KILL).ok()?;
    Some(pidfd)
}
