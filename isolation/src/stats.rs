//! What a slot uses of its host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

const READ: &str = "read what the slot uses";

/// What a slot uses of its host, as the kernel counts it for the slot's control group. What is not counted is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SlotStats {
    /// Processor time since the slot was started.
    pub cpu: Option<Duration>,
    /// Bytes of memory now.
    pub memory: Option<u64>,
    /// The most it ever was.
    pub memory_peak: Option<u64>,
    /// How many processes the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Processes and threads now.
    pub pids: Option<u64>,
    /// Bytes read from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes written to block devices.
    pub written_bytes: Option<u64>,
    /// How long some of it waited for a processor.
    pub cpu_stalled: Option<Duration>,
    /// How long some of it waited for memory.
    pub memory_stalled: Option<Duration>,
    /// How long some of it waited for a device.
    pub io_stalled: Option<Duration>,
}

impl SlotStats {
    /// What the control group of a node's main process has used. Blocks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRunning`] if there is no such process, [`ErrorKind::Unsupported`] on a host without the unified
    /// hierarchy.
    pub fn of_process(pid: u32) -> Result<Self> {
        Self::below(Path::new("/"), pid)
    }

    /// The same on a host whose files are below `root`.
    fn below(root: &Path, pid: u32) -> Result<Self> {
        let groups = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup")))
            .map_err(|cause| Error::new(ErrorKind::NotRunning, READ).because(cause))?;
        let unified = root.join("sys/fs/cgroup");
        if !unified.join("cgroup.controllers").exists() {
            return Err(Error::new(ErrorKind::Unsupported, READ).with_detail("the host has no unified control groups"));
        }
        let group = group_of(&groups).ok_or_else(|| Error::new(ErrorKind::Corrupt, READ))?;
        Ok(Self::read(&unified.join(group)))
    }

    fn read(group: &Path) -> Self {
        let text = |file: &str| std::fs::read_to_string(group.join(file)).unwrap_or_default();
        let number = |file: &str| text(file).trim().parse().ok();
        let (cpu, io) = (text("cpu.stat"), text("io.stat"));
        let stalled = |file: &str| {
            let text = text(file);
            let some = text.lines().find(|line| line.starts_with("some "))?;
            some.rsplit_once("total=")?.1.parse().ok().map(Duration::from_micros)
        };
        let moved = |key: &str| {
            let devices = io.split_whitespace().filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
            (!io.is_empty()).then(|| devices.sum())
        };
        Self {
            cpu: value_of(&cpu, "usage_usec").map(Duration::from_micros),
            memory: number("memory.current"),
            memory_peak: number("memory.peak"),
            oom_kills: value_of(&text("memory.events"), "oom_kill"),
            pids: number("pids.current"),
            read_bytes: moved("rbytes="),
            written_bytes: moved("wbytes="),
            cpu_stalled: stalled("cpu.pressure"),
            memory_stalled: stalled("memory.pressure"),
            io_stalled: stalled("io.pressure"),
        }
    }
}

/// The number behind `key` in lines of `key number`.
fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The group that holds the whole node: a node's first process sits in an `init.scope` of its own, which may be below a
/// group that was delegated to it.
fn group_of(groups: &str) -> Option<PathBuf> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let plain = own.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let above = |path: &Path, name: &str| path.ends_with(name).then(|| path.parent().map(Path::to_path_buf)).flatten();
    let node = above(own, "init.scope").unwrap_or_else(|| own.to_path_buf());
    plain.then(|| above(&node, "payload").unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_whole_node() {
        for (groups, group) in [
            ("0::/machine.slice/x@kube1.service/payload/init.scope\n", Some("machine.slice/x@kube1.service")),
            ("12:pids:/y\n0::/system.slice/box-1.scope/init.scope\n", Some("system.slice/box-1.scope")),
            ("0::/kube1.slice/kubelet.service\n", Some("kube1.slice/kubelet.service")),
            ("0::/\n", Some("")),
            ("0::/../outside\n", None),
            ("3:cpu:/x\n", None),
        ] {
            assert_eq!(group_of(groups), group.map(PathBuf::from), "{groups}");
        }
    }

    #[test]
    fn counters_are_read_and_missing_ones_are_absent() {
        let host = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = host.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(SlotStats::below(host.path(), 7).unwrap_err().kind(), ErrorKind::NotRunning);
        put("proc/7/cgroup", "0::/m/kube1/payload/init.scope\n");
        assert_eq!(SlotStats::below(host.path(), 7).unwrap_err().kind(), ErrorKind::Unsupported);
        put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        assert_eq!(SlotStats::below(host.path(), 7).unwrap(), SlotStats::default());
        for (file, text) in [
            ("cpu.stat", "usage_usec 2500000\nuser_usec 1\n"),
            ("memory.current", "4096\n"),
            ("memory.peak", "8192\n"),
            ("memory.events", "low 0\noom 3\noom_kill 2\n"),
            ("pids.current", "5\n"),
            ("io.stat", "8:0 rbytes=10 wbytes=1 rios=2\n8:16 rbytes=5 wbytes=2\n"),
            ("cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 total=9\n"),
            ("memory.pressure", "garbage"),
        ] {
            put(&format!("sys/fs/cgroup/m/kube1/{file}"), text);
        }
        let stats = SlotStats::below(host.path(), 7).unwrap();
        let want = SlotStats {
            cpu: Some(Duration::from_millis(2500)),
            memory: Some(4096),
            memory_peak: Some(8192),
            oom_kills: Some(2),
            pids: Some(5),
            read_bytes: Some(15),
            written_bytes: Some(3),
            cpu_stalled: Some(Duration::from_micros(1500)),
            memory_stalled: None,
            io_stalled: None,
        };
        assert_eq!(stats, want);
        let json = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<SlotStats>(&json).unwrap(), stats);
    }
}
