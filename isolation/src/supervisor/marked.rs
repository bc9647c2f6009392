//! Finds and ends the processes of a slot: those that carry its mark in their environment.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

use crate::{Error, Result};

/// The variable that marks a process as a slot's.
pub(super) const MARK: &str = "ISOLATION_SLOT";

/// How long killed processes may take to go.
const LIMIT: Duration = Duration::from_secs(5);

/// Ends every process whose mark starts with `mark`; who is born meanwhile is found in the next round.
pub(super) async fn end(mark: &str) -> Result<()> {
    let begun = Instant::now();
    while end_now(mark) > 0 {
        if begun.elapsed() > LIMIT {
            return Err(Error::timeout("end the processes of the slot", begun.elapsed()));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Kills them once, for a place that can't wait, and says how many there were.
pub(super) fn end_now(mark: &str) -> usize {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let mut found = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        // First the handle, then the look: what is looked at is what is killed, or nothing is.
        let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { continue };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(&wanted)) {
            found += 1;
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
    found
}
