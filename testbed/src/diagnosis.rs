//! Why a component did not come up: the end of its log, and what that usually means.

use std::fs;
use std::path::Path;

use crate::process::tail;

/// What a log says (part of a line, in lower case), and the most likely reason.
const CAUSES: &[(&str, &str)] = &[
    ("address already in use", "something else listens on its port: another cluster in the same namespace?"),
    ("no space left on device", "the disk is full: `df -h /var/tmp`"),
    ("too many open files", "the limit on open files is too low: `ulimit -n`"),
    ("cgroup v1", "the kubelet refuses cgroup v1: failCgroupV1 has to be false in its file"),
    (
        "can't get final child's pid",
        "runc may not set oom_score_adj: no CAP_SYS_RESOURCE, so restrict_oom_score_adj is needed",
    ),
    ("unable to apply caps", "a container asks for a capability that this root does not have (CAP_SYS_RESOURCE?)"),
    ("operation not permitted", "this root lacks a capability, or a seccomp profile forbids the call"),
    ("x509", "certificates do not fit: the bed's folder is older than its keys; take it down and up again"),
    ("connection refused", "what it talks to is not up: look at that component's log first"),
    ("invalid argument", "an overlay on an overlay? the bed's folder (/var/tmp) has to be on a real file system"),
    ("no such file or directory", "a program or a file is missing: is every Debian package of the list installed?"),
    ("executable file not found", "a program is missing: is every Debian package of the list installed?"),
    ("read-only file system", "a path that must be writable is mounted read-only (/proc/sys or /sys/fs/cgroup?)"),
    ("killed", "the machine ran out of memory"),
];

const LINES: usize = 30;

/// The last 30 lines of a log and the most likely cause.
pub(crate) fn of(log: &Path) -> String {
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("its log {} cannot be read: {error}", log.display()),
    };
    let end = tail(&text, LINES);
    format!("the end of {}:\n{end}\nmost likely: {}", log.display(), likely(&end))
}

/// The last line with a known sign decides: what comes before is often a warning that passed.
fn likely(end: &str) -> &'static str {
    let sign = |line: &str| {
        let line = line.to_lowercase();
        CAUSES.iter().find(|(sign, _)| line.contains(sign)).map(|(_, cause)| *cause)
    };
    end.lines().rev().find_map(sign).unwrap_or("nothing known; the lines above are all there is")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_known_sign_decides() {
        let log =
            "E0101 dial tcp: connection refused\nE0102 listen tcp 1.2.3.4:6443: bind: address already in use\nbye\n";
        assert!(likely(log).contains("port"));
        assert!(likely("all is well").starts_with("nothing known"));
    }

    #[test]
    fn thirty_lines_are_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<_> = (0..50).map(|n| format!("line {n}")).collect();
        fs::write(file.path(), text.join("\n")).unwrap();
        let shown = of(file.path());
        assert!(!shown.contains("line 19\n") && shown.contains("line 20\n") && shown.contains("line 49\n"), "{shown}");
    }

    #[test]
    fn a_missing_log_is_said() {
        assert!(of(Path::new("/nonexistent")).contains("cannot be read"));
    }
}
