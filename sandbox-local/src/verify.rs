//! Whether a sandbox that was just made is what was asked for. Pure; whoever calls it fails closed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::fstab::{Mount, Plan, Source};
use crate::parse::{Flags, MountInfo, status_field, visible};

/// Compares the mounts that a process sees with what was planned.
pub(crate) fn mounts(plan: &Plan, seen: &[MountInfo]) -> Result<(), String> {
    let mut planned: HashMap<PathBuf, (&Mount, Flags)> = HashMap::new();
    for mount in &plan.mounts {
        let point = Path::new("/").join(&mount.point);
        let first = planned.get(&point).map_or(mount, |(first, _)| first);
        planned.insert(point, (first, mount.flags));
    }
    let shown = |point: &Path| {
        let cover = point.ancestors().find_map(|p| planned.get(p));
        // What begins with new flags came along with a tree of the host.
        cover.is_some_and(|(mount, flags)| matches!(mount.source, Source::Host(_) | Source::Again) && flags.read_only)
    };
    let reachable = visible(seen);
    for mount in &reachable {
        let text = mount.point.display();
        let need = match planned.get(&mount.point) {
            Some((first, flags)) => {
                if let Source::New(kind, _) = first.source
                    && kind != mount.kind
                {
                    return Err(format!("{text} is of type {}, not {kind}", mount.kind));
                }
                *flags
            }
            None if shown(&mount.point) => Flags { read_only: true, no_suid: true, no_dev: true, no_exec: false },
            None => return Err(format!("{text} is mounted and was not planned")),
        };
        let has = mount.flags;
        for (wanted, is, name) in [
            (need.read_only, has.read_only, "ro"),
            (need.no_suid, has.no_suid, "nosuid"),
            (need.no_dev, has.no_dev, "nodev"),
            (need.no_exec, has.no_exec, "noexec"),
        ] {
            if wanted && !is {
                return Err(format!("{text} is not mounted {name}"));
            }
        }
    }
    if let Some(hidden) = seen.iter().find(|m| !reachable.iter().any(|r| r.id == m.id) && !shown(&m.point)) {
        return Err(format!("{} is mounted below another mount", hidden.point.display()));
    }
    match planned.keys().find(|p| !reachable.iter().any(|m| m.point == **p)) {
        Some(missing) => Err(format!("{} is not mounted", missing.display())),
        None => Ok(()),
    }
}

/// Checks what the first process of a sandbox says of itself: its kernel user, and that it has no way to privileges.
pub(crate) fn credentials(status: &str, uid: u32, gid: u32) -> Result<(), String> {
    for (field, id) in [("Uid", uid), ("Gid", gid)] {
        let seen = status_field(status, field).unwrap_or_default();
        let mut ids = seen.split_ascii_whitespace();
        if seen.is_empty() || !ids.all(|seen| seen.parse() == Ok(id)) {
            return Err(format!("its first process has {field} {seen}, not {id}"));
        }
    }
    for field in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let seen = status_field(status, field).unwrap_or("?");
        if u64::from_str_radix(seen, 16) != Ok(0) {
            return Err(format!("its first process has {field} {seen}"));
        }
    }
    match status_field(status, "NoNewPrivs") {
        Some("1") => Ok(()),
        seen => Err(format!("its first process has NoNewPrivs {}", seen.unwrap_or("?"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::mountinfo;

    fn plan() -> Plan {
        let ro = Flags { read_only: true, no_suid: true, no_dev: true, no_exec: false };
        let rw = Flags { read_only: false, ..ro };
        let mount = |source, point: &str, flags| Mount { source, point: point.into(), flags };
        Plan {
            mounts: vec![
                mount(Source::Box("fs".into()), "", rw),
                mount(Source::Host("/usr".into()), "usr", ro),
                mount(Source::Again, "usr/local", ro),
                mount(Source::New("proc", ""), "proc", Flags { no_exec: true, ..rw }),
            ],
            ..Plan::default()
        }
    }

    const GOOD: &str = "\
64 42 254:0 /s/fs / rw,nosuid,nodev,relatime - ext4 /dev/vda rw
65 64 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw
66 65 0:9 / /usr/local ro,nosuid,nodev - tmpfs tmpfs rw
74 64 0:42 / /proc rw,nosuid,nodev,noexec - proc proc rw
";

    fn check(text: &str) -> Result<(), String> {
        mounts(&plan(), &mountinfo(text.as_bytes()).unwrap())
    }

    #[test]
    fn what_was_planned_passes() {
        check(GOOD).unwrap();
        check(&format!("{GOOD}77 65 0:9 / /usr/share/x ro,nosuid,nodev - tmpfs tmpfs rw\n")).unwrap();
        // Hidden by another one, out of reach, and so without the flags.
        let hidden = GOOD.replacen("66 65", "61 65 0:8 / /usr/local rw - tmpfs tmpfs rw\n66 61", 1);
        check(&hidden).unwrap();
        check(&format!("{GOOD}77 65 0:9 / /usr/local/x rw - tmpfs tmpfs rw\n")).unwrap();
    }

    #[test]
    fn every_deviation_is_named() {
        for (from, to, says) in [
            ("/usr ro,", "/usr rw,", "/usr is not mounted ro"),
            ("/usr/local ro,nosuid,nodev", "/usr/local ro,nosuid", "/usr/local is not mounted nodev"),
            ("/usr/local ro", "/usr/local rw", "/usr/local is not mounted ro"),
            ("- proc", "- tmpfs", "/proc is of type tmpfs, not proc"),
            ("/proc rw,nosuid,nodev,noexec", "/proc rw,nosuid,nodev", "/proc is not mounted noexec"),
            ("/proc rw", "/pro rw", "/pro is mounted and was not planned"),
            ("66 65 0:9 / /usr/local ro,nosuid,nodev - tmpfs tmpfs rw\n", "", "/usr/local is not mounted"),
            ("74 64", "43 64 254:0 / /.old rw,nosuid,nodev - ext4 /dev/vda rw\n74 64", "/.old is mounted"),
            ("74 64", "44 65 0:7 / /usr/z rw,nosuid,nodev - ext4 /dev/vda rw\n74 64", "/usr/z is not mounted ro"),
            ("74 64", "44 64 0:7 / / rw,nosuid,nodev - ext4 /dev/vda rw\n74 64", "mounted below another"),
        ] {
            let bent = GOOD.replacen(from, to, 1);
            assert_ne!(bent, GOOD);
            let error = check(&bent).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn credentials_are_checked_to_the_last() {
        let good = "Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
        credentials(good, 7, 8).unwrap();
        for (from, to) in [
            ("Uid:\t7\t7", "Uid:\t7\t0"),
            ("Gid:\t8", "Gid:\t0"),
            ("CapEff:\t00", "CapEff:\t01"),
            ("CapPrm:\t", "CapPrx:\t"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
            ("NoNewPrivs:\t1", ""),
            ("Uid:", "Uix:"),
        ] {
            credentials(&good.replacen(from, to, 1), 7, 8).expect_err(to);
        }
    }
}
