//! What a program would inherit from this process.

use std::fs;
use std::io;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::parse::status_field;

/// What a program would inherit from this process beyond its three standard streams, and must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Inherited {
    /// Something that has to be undone by a program in between: descriptors, ignored signals, an unusual umask.
    pub(crate) unclean: bool,
    /// Signals are ignored, among the rest.
    pub(crate) signals: bool,
    /// A controlling terminal.
    pub(crate) terminal: bool,
}

/// With more descriptors than this it is cheaper to undo than to look.
const MAX_LOOKED_AT: usize = 192;

/// Looks at this process. What cannot be seen counts as there.
pub(crate) fn look() -> Inherited {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let signals = ignores_signals(&status);
    Inherited {
        unclean: signals || status_field(&status, "Umask") != Some("0022") || leaks().unwrap_or(true),
        signals,
        terminal: has_terminal(&stat),
    }
}

/// SIGPIPE does not count: it is ignored in every Rust program, and reset for every one that it starts. Nor do the two signals that the C
/// library keeps for itself: it leaves them ignored in what it starts.
fn ignores_signals(status: &str) -> bool {
    let uncounted: u64 = [13, 32, 33].iter().map(|signal| 1 << (signal - 1)).sum();
    let mask = status_field(status, "SigIgn").and_then(|m| u64::from_str_radix(m, 16).ok());
    mask.is_none_or(|m| m & !uncounted != 0)
}

fn has_terminal(stat: &str) -> bool {
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
    fields.and_then(|mut f| f.nth(4)) != Some("0")
}

/// Whether a descriptor would stay open across the start of a program: Rust's own never do, inherited ones and C libraries' can. One that
/// a C library opens between this look and the start is missed.
fn leaks() -> io::Result<bool> {
    let directory =
        openat(CWD, "/proc/self/fdinfo", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // What is asked for comes first; the rest, long for some kinds, is left unread.
    let mut head = [0u8; 64];
    for (count, entry) in Dir::read_from(&directory)?.enumerate() {
        if count > MAX_LOOKED_AT {
            return Ok(true);
        }
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b".." | b"0" | b"1" | b"2") {
            continue;
        }
        let file = match openat(&directory, entry.file_name(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(e.into()),
        };
        match rustix::io::read(&file, &mut head) {
            Ok(n) if !closes_itself(&head[..n]) => return Ok(true),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(false)
}

fn closes_itself(info: &[u8]) -> bool {
    const CLOEXEC: u64 = 0o2_000_000;
    let info = String::from_utf8_lossy(info);
    let flags = status_field(&info, "flags").and_then(|f| u64::from_str_radix(f, 8).ok());
    flags.is_some_and(|f| f & CLOEXEC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says() {
        assert!(!ignores_signals("SigIgn:\t0000000180001000\n") && !ignores_signals("SigIgn:\t0000000000000000\n"));
        assert!(ignores_signals("SigIgn:\t0000000000001001\n") && ignores_signals(""));
        assert!(!has_terminal("7 (a) b) S 1 7 7 0 -1 4194560"));
        assert!(has_terminal("7 (ab) S 1 7 7 34816 -1 4194560") && has_terminal(""));
        assert!(closes_itself(b"pos:\t0\nflags:\t02100000\nmnt_id") && !closes_itself(b"pos:\t0\nflags:\t0100000\n"));
        assert!(!closes_itself(b""));
    }

    #[test]
    fn a_descriptor_that_would_be_inherited_is_seen() {
        let file = fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        assert!(leaks().unwrap() && look().unclean);
    }
}
