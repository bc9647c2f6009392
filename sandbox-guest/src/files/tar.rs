//! Just enough of the tar format to send files, in the dialect that GNU and BusyBox both read.

/// The unit of an archive.
pub(crate) const BLOCK: usize = 512;
/// What ends an archive.
pub(crate) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
/// The longest name that fits into a header.
const SHORT: usize = 100;

/// How many bytes must follow `size` bytes of content.
pub(crate) fn padding(size: usize) -> usize {
    size.next_multiple_of(BLOCK) - size
}

/// How many bytes the head of a member has.
pub(crate) fn head_len(name: &[u8]) -> usize {
    if name.len() > SHORT { 2 * BLOCK + (name.len() + 1).next_multiple_of(BLOCK) } else { BLOCK }
}

/// Appends the head of a regular file; `size` bytes of content and their padding follow.
pub(crate) fn push_head(out: &mut Vec<u8>, name: &[u8], size: usize, mode: u32) {
    if name.len() > SHORT {
        push_header(out, b"././@LongLink", name.len() + 1, 0, b'L');
        out.extend_from_slice(name);
        out.resize(out.len() + 1 + padding(name.len() + 1), 0);
    }
    push_header(out, &name[..name.len().min(SHORT)], size, mode, b'0');
}

fn push_header(out: &mut Vec<u8>, name: &[u8], size: usize, mode: u32, kind: u8) {
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name);
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar  ");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&header);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn both_dialects_read_it() {
        let names: Vec<Vec<u8>> = [1, 99, 100, 101, 510, 511, 512, 513, 1000]
            .map(|n| b"d/".iter().copied().chain(std::iter::repeat_n(b'x', 1)).cycle().take(n).collect())
            .to_vec();
        for program in [vec!["tar"], vec!["busybox", "tar"]] {
            if Command::new(program[0]).arg("--help").output().is_err() {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            let mut child = Command::new(program[0])
                .args(&program[1..])
                .args(["-x", "-p", "-o", "-m", "-f", "-"])
                .current_dir(dir.path())
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let mut archive = Vec::new();
            for (i, name) in names.iter().enumerate() {
                let name = [format!("{i}/").as_bytes(), name, b"-\xff"].concat();
                let before = archive.len();
                push_head(&mut archive, &name, i, 0o640);
                assert_eq!(archive.len() - before, head_len(&name));
                archive.resize(archive.len() + i, b'c');
                archive.resize(archive.len() + padding(i), 0);
            }
            archive.extend_from_slice(&END);
            child.stdin.take().unwrap().write_all(&archive).unwrap();
            assert!(child.wait().unwrap().success());
            for (i, name) in names.iter().enumerate() {
                let name = [format!("{i}/").as_bytes(), name, b"-\xff"].concat();
                let file = dir.path().join(std::ffi::OsStr::from_bytes(&name));
                assert_eq!(std::fs::read(&file).unwrap(), vec![b'c'; i], "{program:?} {}", name.len());
            }
        }
    }
}
