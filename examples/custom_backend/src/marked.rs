//! Finds what runs for a slot by a mark in its environment, and ends it.

use std::time::Duration;

use isolation::{Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

/// The variable that marks a process as a slot's.
pub(crate) const NAME: &str = "BAY";

/// How long killed processes may take to go.
const LIMIT: Duration = Duration::from_secs(5);

/// Kills whoever carries `mark`, and says how many there were.
pub(crate) fn kill(mark: &str) -> usize {
    let wanted = format!("{NAME}={mark}").into_bytes();
    let mut found = 0;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        // First the handle, then the look: a number that is given away in between is not killed.
        let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { continue };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|byte| *byte == 0).any(|variable| variable == wanted) {
            found += 1;
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
    found
}

/// Kills until nobody is left: who is born meanwhile is found in the next round.
pub(crate) async fn end(mark: &str) -> Result<()> {
    let begun = Instant::now();
    while kill(mark) > 0 {
        if begun.elapsed() > LIMIT {
            return Err(Error::timeout("end the processes of the slot", begun.elapsed()));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
