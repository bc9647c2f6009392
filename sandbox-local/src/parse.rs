//! What the kernel says in /proc. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// One line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountInfo {
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) point: PathBuf,
    pub(crate) flags: Flags,
    pub(crate) kind: String,
}

/// The flags of a mount that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    pub(crate) read_only: bool,
    pub(crate) no_suid: bool,
    pub(crate) no_dev: bool,
    pub(crate) no_exec: bool,
}

/// The mounts of a mountinfo file; `None` if a line has not the form that the kernel documents.
pub(crate) fn mountinfo(text: &[u8]) -> Option<Vec<MountInfo>> {
    let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    lines.map(mountinfo_line).collect()
}

fn mountinfo_line(line: &[u8]) -> Option<MountInfo> {
    let mut words = line.split(|b| *b == b' ');
    let mut text = || std::str::from_utf8(words.next()?).ok();
    let (id, parent) = (text()?.parse().ok()?, text()?.parse().ok()?);
    let _device = text()?;
    let _root = words.next()?;
    let point = PathBuf::from(OsStr::from_bytes(&unescaped(words.next()?)));
    let mut flags = Flags::default();
    for flag in words.next()?.split(|b| *b == b',') {
        match flag {
            b"ro" => flags.read_only = true,
            b"nosuid" => flags.no_suid = true,
            b"nodev" => flags.no_dev = true,
            b"noexec" => flags.no_exec = true,
            _ => {}
        }
    }
    let kind = words.skip_while(|w| *w != b"-").nth(1)?;
    Some(MountInfo { id, parent, point, flags, kind: String::from_utf8_lossy(kind).into_owned() })
}

/// `\ooo` becomes the byte.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|d| byte == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)))
            .and_then(|d| u8::try_from(d.iter().fold(0u32, |n, b| n * 8 + u32::from(b - b'0'))).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// Those of `mounts` that a path leads to: not the ones that a later mount hides.
pub(crate) fn visible(mounts: &[MountInfo]) -> Vec<&MountInfo> {
    let ids: std::collections::HashSet<u32> = mounts.iter().map(|m| m.id).collect();
    let Some(root) = mounts.iter().find(|m| !ids.contains(&m.parent) || m.parent == m.id) else { return Vec::new() };
    let mut on: std::collections::HashMap<(u32, &Path), &MountInfo> = std::collections::HashMap::new();
    for mount in mounts.iter().filter(|m| m.id != root.id) {
        on.insert((mount.parent, &mount.point), mount);
    }
    let top = |mut at: u32, path: &Path| {
        while let Some(above) = on.get(&(at, path)).filter(|m| m.id != at) {
            at = above.id;
        }
        at
    };
    let leads_to = |path: &Path| {
        let steps: Vec<&Path> = path.ancestors().collect();
        steps.iter().rev().fold(root.id, |at, step| top(at, step))
    };
    mounts.iter().filter(|m| leads_to(&m.point) == m.id).collect()
}

/// What a process says in its stat file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// In clock ticks since the machine started: tells it from a later process of the same pid.
    pub(crate) start: u64,
    pub(crate) state: u8,
}

/// Reads a stat file. The name in parentheses can hold anything, parentheses and spaces too.
pub(crate) fn stat(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { pid: pid.parse().ok()?, parent, start, state })
}

/// The value of one line of a status file.
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The inode in a namespace link such as `pid:[4026531836]`.
pub(crate) fn namespace(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// What programs and shells say, on one line: without a shell's name for its script and line, or hints about where else to look.
pub(crate) fn messages(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("dmesg(1)"));
    lines.map(without_line).collect::<Vec<_>>().join("; ")
}

/// `SCRIPT: line N: what` without what comes before `what`.
fn without_line(message: &str) -> &str {
    let Some((_, rest)) = message.split_once(": line ") else { return message };
    match rest.split_once(": ") {
        Some((number, what)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => what,
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 27 0:6 / /dev rw,nosuid - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,nosuid,nodev,noexec shared:2 master:1 - tmpfs tmpfs rw
30 25 0:27 / /dev/shm ro,relatime - tmpfs tmpfs rw
31 27 0:28 / /a\\040b\\134c rw - tmpfs tmpfs rw
";

    #[test]
    fn messages_are_for_people() {
        for (said, want) in [
            ("", ""),
            (
                "mount: fs/a: no.\n       dmesg(1) may have more information after failed mount system call.\n",
                "mount: fs/a: no.",
            ),
            (
                "environment: line 44: /usr/bin/umount: No such file or directory\n",
                "/usr/bin/umount: No such file or directory",
            ),
            ("a\n\nsandbox: line 3: b\n", "a; b"),
            ("x: line up: y", "x: line up: y"),
            ("x: line 7", "x: line 7"),
        ] {
            assert_eq!(messages(said), want);
        }
    }

    #[test]
    fn mounts_and_what_hides_them() {
        let mounts = mountinfo(INFO.as_bytes()).unwrap();
        assert_eq!(mounts.len(), 6);
        assert_eq!(mounts[5].point, Path::new("/a b\\c"));
        assert_eq!(mounts[3].kind, "tmpfs");
        assert_eq!(mounts[3].flags, Flags { read_only: false, no_suid: true, no_dev: true, no_exec: true });
        let ids: Vec<u32> = visible(&mounts).iter().map(|m| m.id).collect();
        assert_eq!(ids, [22, 27, 24, 30, 31]);
    }

    #[test]
    fn a_mount_below_a_covered_directory_is_hidden() {
        let text = "1 0 0:1 / / rw - a a rw\n2 1 0:2 / /usr/x/y rw - a a rw\n3 1 0:3 / /usr/x rw - a a rw\n4 3 0:4 / /usr/x/z rw - a a rw\n";
        let mounts = mountinfo(text.as_bytes()).unwrap();
        let ids: Vec<u32> = visible(&mounts).iter().map(|m| m.id).collect();
        assert_eq!(ids, [1, 3, 4]);
    }

    #[test]
    fn this_machines_own_mountinfo_is_understood() {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        let mounts = mountinfo(&text).unwrap();
        assert!(visible(&mounts).iter().any(|m| m.point == Path::new("/proc")));
    }

    #[test]
    fn broken_lines_are_refused() {
        for text in ["1", "1 2 3 / /", "x 0 0:1 / / rw - a a rw", "1 0 0:1 / / rw a a rw"] {
            assert!(mountinfo(text.as_bytes()).is_none(), "{text}");
        }
        assert_eq!(mountinfo(b"").unwrap(), []);
    }

    #[test]
    fn stat_of_a_process_with_an_odd_name() {
        let tail = "S 7 42 42 0 -1 4194560 151 0 0 0 0 0 0 0 20 0 1 0 449415 4034560 753";
        for name in ["bash", "a) S 1 (b", "", ") "] {
            let got = stat(&format!("42 ({name}) {tail}\n"));
            assert_eq!(got, Some(Stat { pid: 42, parent: 7, start: 449_415, state: b'S' }), "{name}");
        }
        for text in ["", "42", "42 (x) S 7", "x (y) S"] {
            assert_eq!(stat(text), None);
        }
    }

    #[test]
    fn status_and_namespaces() {
        let status = "Name:\tsleep\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n";
        assert_eq!(status_field(status, "NoNewPrivs"), Some("1"));
        assert_eq!(status_field(status, "NoNew"), None);
        assert_eq!(namespace("pid:[4026531836]"), Some(4_026_531_836));
        assert_eq!(namespace("pid:4026531836"), None);
    }
}
