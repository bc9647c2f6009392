//! Finds and ends the processes of a slot: those that carry its mark in their environment.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks a process as a slot's.
pub(super) const MARK: &str = "ISOLATION_FAKE";

/// Ends every process whose mark starts with `mark`; who is born meanwhile is found in the next round.
pub(super) async fn end(mark: &str) {
    let wanted = format!("{MARK}={mark}").into_bytes();
    for _ in 0..100 {
        if kill_once(&wanted) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The same, from a place that can't wait.
pub(super) fn end_now(mark: &str) {
    kill_once(&format!("{MARK}={mark}").into_bytes());
}

fn kill_once(wanted: &[u8]) -> usize {
    let Ok(list) = std::fs::read_dir("/proc") else { return 0 };
    let mut found = 0;
    for entry in list.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        // First the handle, then the look: what is looked at is what is killed, or nothing is.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if is_marked(&entry.path().join("environ"), wanted) {
            found += 1;
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
    found
}

fn is_marked(environ: &std::path::Path, wanted: &[u8]) -> bool {
    let Ok(environ) = std::fs::read(environ) else { return false };
    environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(wanted))
}
