//! Which processes a sandbox consists of, told from later ones that have the same numbers.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::parse;

/// A process: its pid, and when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

impl Process {
    /// Whether it runs. One that ended and was not waited for does not.
    pub(crate) fn lives(self) -> io::Result<bool> {
        Ok(stat(self.pid)?.is_some_and(|s| s.start == self.start && !matches!(s.state, b'Z' | b'X')))
    }

    /// Something that stands for this very process, whatever becomes of its number; `None` if it is gone.
    pub(crate) fn open(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // Only now: had the number been given away before, the start time would differ.
        Ok(stat(self.pid)?.is_some_and(|s| s.start == self.start).then_some(fd))
    }

    /// Sends a signal to this very process; to one that is gone, none.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<()> {
        match self.open()?.map(|fd| pidfd_send_signal(fd, signal)) {
            None | Some(Ok(()) | Err(Errno::SRCH)) => Ok(()),
            Some(Err(e)) => Err(e.into()),
        }
    }
}

/// What a running sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The first process inside.
    pub(crate) init: Process,
    /// Its parent outside, which lives in the outer user namespace and holds the lock.
    pub(crate) parent: Process,
    /// The namespaces of `init`, by kind.
    pub(crate) namespaces: BTreeMap<String, u64>,
    /// The outer user namespace.
    pub(crate) outer: u64,
}

/// The namespaces that tell a sandbox. The network is not among them: it can be the host's.
const KINDS: &[&str] = &["cgroup", "ipc", "mnt", "pid", "user", "uts"];

impl Identity {
    /// Completes what the first process said of itself; `None` if it is gone.
    pub(crate) fn complete(init: Process, parent: i32) -> io::Result<Option<Self>> {
        let mut namespaces = BTreeMap::new();
        for kind in KINDS {
            let Some(inode) = namespace(init.pid, kind)? else { return Ok(None) };
            namespaces.insert((*kind).to_owned(), inode);
        }
        let (Some(stat), Some(outer)) = (stat(parent)?, namespace(parent, "user")?) else { return Ok(None) };
        let this = Self { init, parent: Process { pid: parent, start: stat.start }, namespaces, outer };
        // What was read is of these two processes only if they are still there.
        Ok(this.lives()?.then_some(this))
    }

    /// Whether all of it is as it was. What cannot be looked at is an error, never an answer.
    pub(crate) fn lives(&self) -> io::Result<bool> {
        for (kind, inode) in &self.namespaces {
            if namespace(self.init.pid, kind)? != Some(*inode) {
                return Ok(false);
            }
        }
        Ok(namespace(self.parent.pid, "user")? == Some(self.outer)
            && stat(self.init.pid)?.is_some_and(|s| s.parent == self.parent.pid)
            && self.parent.lives()?
            && self.init.lives()?)
    }
}

/// What is there, unless the process it is about is gone.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// What a process says in its stat file; `None` if it is gone.
pub(crate) fn stat(pid: i32) -> io::Result<Option<parse::Stat>> {
    let Some(text) = unless_gone(fs::read(format!("/proc/{pid}/stat")))? else { return Ok(None) };
    let stat = parse::stat(&String::from_utf8_lossy(&text));
    stat.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not legible")))
}

/// The inode of a namespace of a process; `None` if it is gone.
pub(crate) fn namespace(pid: i32, kind: &str) -> io::Result<Option<u64>> {
    let Some(link) = unless_gone(fs::read_link(format!("/proc/{pid}/ns/{kind}")))? else { return Ok(None) };
    let inode = link.to_str().and_then(parse::namespace);
    inode
        .map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("namespace link {}", link.display())))
}

/// How many processes that can be seen are in a namespace.
pub(crate) fn count(kind: &str, inode: u64) -> u64 {
    let is_in = |pid: &i32| namespace(*pid, kind).ok().flatten() == Some(inode);
    processes().map_or(0, |all| all.filter(is_in).count() as u64)
}

/// The processes of this machine.
pub(crate) fn processes() -> io::Result<impl Iterator<Item = i32>> {
    let names = fs::read_dir("/proc")?.filter_map(Result::ok).map(|e| e.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()))
}

/// The time in which the starts of processes are told: ticks since this machine was started.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    let ticks = clock_ticks_per_second();
    seconds.saturating_mul(ticks).saturating_add(nanos.saturating_mul(ticks) / 1_000_000_000)
}

/// Tells one run of the machine from the next.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// A user, for messages: one without a number in this user namespace is shown by the kernel as somebody else.
pub(crate) fn user(uid: u32) -> String {
    let shown = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if shown.trim().parse() == Ok(uid) && !is_mapped(&map, uid, 1) {
        return format!("a user who does not exist in this user namespace (shown as {uid})");
    }
    format!("user {uid}")
}

/// Whether a user or group map has all of `count` numbers from `first` on. Pure.
pub(crate) fn is_mapped(map: &str, first: u32, count: u32) -> bool {
    let mut ranges: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
            let (inside, _, length) = (fields.next()?.ok()?, fields.next()?.ok()?, fields.next()?.ok()?);
            Some((inside, inside + length))
        })
        .collect();
    ranges.sort_unstable();
    let (mut at, end) = (u64::from(first), u64::from(first) + u64::from(count));
    for (from, to) in ranges {
        if from <= at && at < to {
            at = to;
        }
    }
    at >= end
}

/// Whether a process has `file` as its standard input.
pub(crate) fn reads_from(pid: i32, file: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/fd/0")).is_ok_and(|link| link == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_successors() {
        let before = now();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let it = Process { pid, start: stat(pid).unwrap().unwrap().start };
        assert!((before..=now()).contains(&it.start), "{before} {} {}", it.start, now());
        let other = Process { start: it.start + 1, ..it };
        assert!(it.lives().unwrap() && !other.lives().unwrap());
        assert!(it.open().unwrap().is_some() && other.open().unwrap().is_none());
        other.signal(Signal::KILL).unwrap();
        assert!(it.lives().unwrap());
        it.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(!it.lives().unwrap() && it.open().unwrap().is_none());
        it.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn an_ended_process_that_nobody_waited_for_does_not_live() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let it = Process { pid, start: stat(pid).unwrap().unwrap().start };
        for _ in 0..200 {
            if !it.lives().unwrap() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!it.lives().unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn who_is_mapped() {
        let whole = "         0          0 4294967295\n";
        let parts = "0 1000 1\n100 5000 50\n1 100000 99\n150 1 1\n";
        for (map, first, count, want) in [
            (whole, 0, 1, true),
            (whole, 0x7000_0000, 65_536, true),
            ("0 0 1\n", 0, 1, true),
            ("0 0 1\n", 0x7000_0000, 65_536, false),
            (parts, 0, 151, true),
            (parts, 0, 152, false),
            (parts, 50, 60, true),
            ("", 0, 1, false),
        ] {
            assert_eq!(is_mapped(map, first, count), want, "{map} {first} {count}");
        }
        assert_eq!(user(7), "user 7");
    }

    #[test]
    fn namespaces_of_this_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(namespace(pid, "pid").unwrap().is_some());
        assert_eq!(namespace(i32::MAX, "pid").unwrap(), None);
        assert!(processes().unwrap().any(|p| p == pid));
        assert!(!boot_id().is_empty());
    }
}
