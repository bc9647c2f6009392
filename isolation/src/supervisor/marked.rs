//! Finds and ends the processes of a slot: those that carry its mark in their environment.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep};

use crate::blocking::on_thread;
use crate::{Effect, Error, ErrorKind, Result};

/// The variable that marks a process as a slot's.
pub(super) const MARK: &str = "ISOLATION_SLOT";

/// How long killed processes may take to go.
const LIMIT: Duration = Duration::from_secs(5);

const END: &str = "end the processes of the slot";

/// Ends every process whose mark starts with `mark`; who is born meanwhile is found in the next round.
pub(super) async fn end(mark: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let mark = mark.to_owned();
        let looked = move || {
            end_now(&mark).map_err(|cause| Error::new(ErrorKind::Io, END).with_effect(Effect::Partial).because(cause))
        };
        let found = on_thread(END, looked).await?;
        if found == 0 {
            return Ok(());
        }
        if begun.elapsed() > LIMIT {
            return Err(Error::timeout(END, begun.elapsed()));
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Kills them once, for a place that can't wait, and says how many there were.
pub(super) fn end_now(mark: &str) -> io::Result<usize> {
    find(Path::new("/proc"), mark, true)
}

/// How many there are.
pub(super) fn count(mark: &str) -> io::Result<usize> {
    find(Path::new("/proc"), mark, false)
}

/// Fails if somebody could not be looked at, after a look at all others. A process of another user that may not be looked at is none of
/// ours; nor is the one that runs this.
fn find(proc: &Path, mark: &str, kill: bool) -> io::Result<usize> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let own = rustix::process::getpid();
    let (mut found, mut unseen) = (0, None);
    for entry in std::fs::read_dir(proc)? {
        let entry = entry?;
        let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        let Some(pid) = pid.filter(|pid| *pid != own) else { continue };
        // First the handle, then the look: what is looked at is what is killed, or nothing is.
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            // It went meanwhile; some kernels say of one whose parent has not waited yet that it is invalid.
            Err(Errno::SRCH | Errno::INVAL) => continue,
            Err(errno) => {
                unseen = Some(errno.into());
                continue;
            }
        };
        let environ = match std::fs::read(entry.path().join("environ")) {
            Ok(environ) => environ,
            Err(cause) => {
                let gone =
                    cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(Errno::SRCH.raw_os_error());
                if !gone && cause.kind() != io::ErrorKind::PermissionDenied {
                    unseen = Some(cause);
                }
                continue;
            }
        };
        if environ.split(|byte| *byte == 0).any(|entry| entry.starts_with(&wanted)) {
            found += 1;
            if kill
                && let Err(errno) = pidfd_send_signal(&handle, Signal::KILL)
                && errno != Errno::SRCH
            {
                unseen = Some(errno.into());
            }
        }
    }
    unseen.map_or(Ok(found), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_to_look_is_not_to_find_nobody() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(dir.path(), "x:", true).unwrap(), 0);
        assert!(find(&dir.path().join("none"), "x:", true).is_err());
        // A process that is there, and whose environment is not readable.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        std::fs::create_dir_all(dir.path().join(child.id().to_string()).join("environ")).unwrap();
        let looked = find(dir.path(), "x:", true);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(looked.is_err(), "{looked:?}");
    }
}
