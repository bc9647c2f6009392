//! Processes that are not our children, without mistaking a later one of the same number for them.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Context as _, Error, Result};
use crate::stop;

/// A process, known by its number and the time it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    started: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).doing(|| format!("use the pid {pid}"))?;
        let (_, started) = stat(pid).ok_or_else(|| Error::new(format!("process {pid} ended at once")))?;
        Ok(Self { pid, started })
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    pub(crate) fn signal(self, signal: Signal) -> std::io::Result<()> {
        if !self.alive() {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let pid = Pid::from_raw(self.pid).ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(kill_process(pid, signal)?)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for ProcessId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pid, started) = text.split_once(' ').ok_or_else(|| Error::new("not a process file"))?;
        let read = |_| Error::new("not a process file");
        Ok(Self { pid: pid.parse().map_err(read)?, started: started.parse().map_err(read)? })
    }
}

/// State letter and start time of a process.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, also spaces and brackets.
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<_> = rest.split(' ').collect();
    Some((fields.first()?.chars().next()?, fields.get(19)?.parse().ok()?))
}

/// Asks again and again until the answer is yes; false when the time is over.
pub(crate) fn poll(limit: Duration, mut check: impl FnMut() -> Result<bool>) -> Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if check()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Like [`poll`], for a bed that comes up: ends early when the user asks to stop, and no in time is an error.
pub(crate) fn wait_for(what: &str, limit: Duration, mut check: impl FnMut() -> Result<bool>) -> Result<()> {
    let up = poll(limit, || if stop::requested() { Err(Error::new("stopped")) } else { check() })?;
    if up { Ok(()) } else { Err(Error::new(format!("{what}: not within {} s", limit.as_secs()))) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_by_pid_and_start() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.alive());
        assert!(!ProcessId { started: me.started + 1, ..me }.alive());
        assert_eq!(me.to_string().parse::<ProcessId>().unwrap(), me);
    }

    #[test]
    fn a_dead_child_is_not_alive_before_it_is_collected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        child.kill().unwrap();
        assert!(poll(Duration::from_secs(5), || Ok(!id.alive())).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn a_wait_says_what_it_waited_for() {
        let error = wait_for("the moon", Duration::ZERO, || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "the moon: not within 0 s");
    }
}
