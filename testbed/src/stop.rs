//! Ctrl-C and SIGTERM: stop the children, then let the tear-down run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context as _, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
static STOPPED: Condvar = Condvar::new();

/// Starts listening for the signals that mean "stop".
pub(crate) fn install() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).doing(|| "listen for signals".to_owned())?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if !REQUESTED.swap(true, Ordering::SeqCst) {
                eprintln!("testbed: stopping, tearing down first");
            }
            let groups = groups();
            STOPPED.notify_all();
            for group in groups.iter().copied() {
                signal_group(group, Signal::TERM);
            }
        }
    });
    Ok(())
}

/// Whether the user asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Waits until the user asks to stop.
pub(crate) fn wait() {
    let mut groups = groups();
    while !requested() {
        groups = STOPPED.wait(groups).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Remembers a process group for as long as the value lives, so that a stop reaches it.
#[derive(Debug)]
pub(crate) struct Group(i32);

impl Group {
    /// The group that `pid` leads.
    pub(crate) fn of(pid: u32) -> Self {
        let pid = i32::try_from(pid).expect("a pid fits in pid_t");
        groups().insert(pid);
        Self(pid)
    }

    /// Kills everything in the group at once.
    pub(crate) fn kill(&self) {
        signal_group(self.0, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        groups().remove(&self.0);
    }
}

fn groups() -> MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(group) {
        // It may be gone already, which is what we want.
        let _ = kill_process_group(pid, signal);
    }
}
