//! Just enough of the tar format to see what an archive holds: ustar, GNU's long names, and pax records.

use crate::{Failure, Outcome};

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) kind: u8,
    pub(super) mode: u32,
    pub(super) link: Vec<u8>,
    pub(super) content: Vec<u8>,
}

fn broken(why: &str, at: usize) -> Failure {
    Failure::new("reading the archive", "a tar archive, whole", format!("{why} at byte {at}"))
}

fn text(field: &[u8]) -> Vec<u8> {
    field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

fn octal(field: &[u8]) -> Option<usize> {
    let digits = text(field);
    let digits = std::str::from_utf8(&digits).ok()?.trim();
    if digits.is_empty() { Some(0) } else { usize::from_str_radix(digits, 8).ok() }
}

/// The value of `key` in pax records.
fn pax(records: &[u8], key: &str) -> Option<Vec<u8>> {
    let mut rest = records;
    while !rest.is_empty() {
        let space = rest.iter().position(|b| *b == b' ')?;
        let length: usize = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
        let record = rest.get(space + 1..length.checked_sub(1)?)?;
        if let Some(value) = record.strip_prefix(format!("{key}=").as_bytes()) {
            return Some(value.to_vec());
        }
        rest = rest.get(length..)?;
    }
    None
}

/// The entries of `archive`, which must be whole.
pub(super) fn entries(archive: &[u8]) -> Outcome<Vec<Entry>> {
    let (mut at, mut entries) = (0, Vec::new());
    let (mut long_name, mut long_link) = (None, None);
    loop {
        let header = archive.get(at..at + 512).ok_or_else(|| broken("no end", at))?;
        if header.iter().all(|b| *b == 0) {
            return Ok(entries);
        }
        let size = octal(&header[124..136]).ok_or_else(|| broken("a size that is no number", at))?;
        let body = archive.get(at + 512..at + 512 + size).ok_or_else(|| broken("a short entry", at))?;
        match header[156] {
            b'L' => long_name = Some(text(body)),
            b'K' => long_link = Some(text(body)),
            b'x' => {
                long_name = pax(body, "path").or(long_name);
                long_link = pax(body, "linkpath").or(long_link);
            }
            b'g' => {}
            kind => {
                let prefix = if &header[257..263] == b"ustar\0" { text(&header[345..500]) } else { Vec::new() };
                let short = text(&header[..100]);
                let short = if prefix.is_empty() { short } else { [prefix, short].join(&b'/') };
                let mode = octal(&header[100..108]).and_then(|mode| u32::try_from(mode).ok());
                entries.push(Entry {
                    name: long_name.take().unwrap_or(short),
                    kind: if kind == 0 { b'0' } else { kind },
                    mode: mode.ok_or_else(|| broken("a mode that is no number", at))? & 0o7777,
                    link: long_link.take().unwrap_or_else(|| text(&header[157..257])),
                    content: body.to_vec(),
                });
            }
        }
        at += 512 + size.div_ceil(512) * 512;
    }
}
