//! What a bed might leave behind: the machine is looked at before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::error::{Context as _, Error, Result};
use crate::process::{Task, in_path};
use crate::process_id::poll;

/// Each prints rules without what counts packets; the first those of nftables, the others those of the older tables, which it cannot see.
const FIREWALLS: &[&[&str]] =
    &[&["nft", "-s", "list", "ruleset"], &["iptables-legacy-save"], &["ip6tables-legacy-save"]];
const SANDBOXES: &[&str] = &["entry /var/tmp/sandbox", "mount /var/tmp/sandbox", "mount /var/lib/sandbox-local/"];

/// Everything that a bed could have changed, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Looks at the machine. `prefix` is what the names of our beds begin with.
    pub(crate) fn take(prefix: &str) -> Result<Self> {
        let mut lines = BTreeSet::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").doing(|| "read the mounts".to_owned())?;
        lines.extend(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|target| format!("mount {target}")));
        list(&mut lines, "interface", Path::new("/sys/class/net"))?;
        list(&mut lines, "entry", Path::new("/run"))?;
        list(&mut lines, "entry", Path::new("/run/netns"))?;
        list(&mut lines, "entry", Path::new("/var/tmp"))?;
        list(&mut lines, "cgroup", Path::new("/sys/fs/cgroup"))?;
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            list(&mut lines, "cgroup", &hierarchy.path())?;
        }
        for table in ["ip_forward", "conf/all/forwarding"] {
            let value = fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(table)).unwrap_or_default();
            lines.insert(format!("sysctl {table} {}", value.trim()));
        }
        for words in FIREWALLS {
            if in_path(words[0]) {
                let rules = Task::new(words[0], Duration::from_secs(20)).args(&words[1..]).tear_down().capture()?;
                let rules =
                    rules.stdout.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
                // Counters in brackets move by themselves.
                lines.extend(
                    rules.map(|line| format!("firewall {} {}", words[0], line.split(" [").next().unwrap_or(line))),
                );
            }
        }
        for process in fs::read_dir("/proc").doing(|| "list /proc".to_owned())?.flatten() {
            let read = |file: &str| fs::read(process.path().join(file)).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            // Without a command line it is a thread of the kernel, or has ended and waits for its parent.
            if command.is_empty() {
                continue;
            }
            let ours = |text: &str| text.contains(&format!("/{prefix}")) || text.starts_with(&format!("{prefix}-"));
            if ours(&command) || ours(&String::from_utf8_lossy(&read("cgroup"))) {
                lines.insert(format!("process {} {command}", process.file_name().display()));
            }
        }
        // What sandboxes keep on this machine, perhaps for others and just now, is theirs to clean up and has checks of its own.
        let sandboxes = |line: &str| {
            SANDBOXES.iter().any(|start| line.starts_with(start))
                || line.starts_with("cgroup ") && line.contains("/sandbox-")
        };
        lines.retain(|line| !foreign(line, prefix) && !sandboxes(line));
        Ok(Self(lines))
    }

    /// An error that names each difference, unless the machine looks like this again within a few seconds.
    pub(crate) fn compare(&self, prefix: &str) -> Result<()> {
        let mut now = Self::take(prefix)?;
        poll(Duration::from_secs(5), || {
            now = Self::take(prefix)?;
            Ok(now == *self)
        })?;
        let left: Vec<_> = now.0.difference(&self.0).map(|line| format!("left behind: {line}")).collect();
        let gone: Vec<_> = self.0.difference(&now.0).map(|line| format!("gone: {line}")).collect();
        let changes = [left, gone].concat();
        if changes.is_empty() { Ok(()) } else { Err(Error::new(changes.join("\n"))) }
    }
}

/// Whether a line is about a bed of another checkout, which may come and go meanwhile.
fn foreign(line: &str, prefix: &str) -> bool {
    let name = |part: &str| part.split('-').next().unwrap_or_default().to_owned();
    line.split([' ', '/']).map(name).any(|name| {
        let hex = name.strip_prefix("tb").filter(|rest| rest.len() == 4);
        name != prefix && hex.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit()))
    })
}

fn list(lines: &mut BTreeSet<String>, what: &str, dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry.doing(|| format!("list {}", dir.display()))?;
        // The files in a cgroup are the kernel's.
        if what != "cgroup" || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            lines.insert(format!("{what} {}", entry.path().display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beds_of_other_checkouts_are_not_ours() {
        for (line, want) in [
            ("interface /sys/class/net/tb01ef-k8s", true),
            ("interface /sys/class/net/tb0000-k8s", false),
            ("entry /var/tmp/tb01ef", true),
            ("entry /var/tmp/table", false),
            ("mount /var/tmp/tbxyz9/x", false),
        ] {
            assert_eq!(foreign(line, "tb0000"), want, "{line}");
        }
    }

    #[test]
    fn differences_are_named() {
        let now = Snapshot::take("tbnone").unwrap();
        let mut before = now.clone();
        before.0.insert("mount /nowhere".to_owned());
        let error = before.compare("tbnone").unwrap_err().to_string();
        assert!(error.contains("gone: mount /nowhere"), "{error}");
    }
}
