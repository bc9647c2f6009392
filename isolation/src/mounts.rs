//! What is mounted where.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The mount points at or below `dir`, the deepest last. Blocks.
///
/// Removing a tree with a bind mount in it empties what was bound, so every backend asks before it
/// destroys a root.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) if the kernel's list can't be read.
pub fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    const LIST: &str = "/proc/self/mountinfo";
    // The kernel shows resolved paths.
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let list = std::fs::read(LIST).map_err(|cause| Error::io("list the mounts", LIST, cause))?;
    let mut found = parse(&list);
    found.retain(|mount| mount.starts_with(&dir));
    found.sort();
    Ok(found)
}

/// The mount points of a mountinfo file: the fifth field, with its octal escapes undone.
fn parse(list: &[u8]) -> Vec<PathBuf> {
    let points = list.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| PathBuf::from(OsStr::from_bytes(&unescape(point)))).collect()
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let octal =
            behind.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                plain.push(u8::try_from(value).unwrap_or(b'?'));
                rest = &behind[3..];
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_found_and_unescaped() {
        let list =
            b"22 1 0:20 / /proc rw - proc proc rw\n23 1 8:1 /x /m/kube1/a\\040b\\134 ro shared:1 - ext4 /dev/sda1 rw\n";
        assert_eq!(parse(list), [Path::new("/proc"), Path::new("/m/kube1/a b\\")]);
        assert!(mounts_below(Path::new("/proc")).unwrap().contains(&PathBuf::from("/proc")));
        assert_eq!(mounts_below(Path::new("/proc/self/no/such")).unwrap(), [] as [PathBuf; 0]);
    }
}
