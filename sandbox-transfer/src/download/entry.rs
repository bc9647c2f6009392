//! What one entry of an archive says of itself.

use std::io::{self, Read};

use tar::{Entry, EntryType};

use crate::{Rule, names};

/// An entry that is taken, as far as its own header goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File { mode: u32 },
    Directory { mode: u32 },
    Link { target: Vec<u8> },
}

/// What `entry` is, or the rule that it breaks. `depth` is how many directories lie between the top and the entry, `None` for the
/// top itself.
pub(super) fn classify<R: Read>(entry: &mut Entry<'_, R>, links: bool, depth: Option<usize>) -> Result<Kind, Rule> {
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Directory | EntryType::Symlink => {}
        EntryType::Link => return Err(Rule::HardLink),
        EntryType::Char | EntryType::Block => return Err(Rule::Device),
        EntryType::Fifo => return Err(Rule::Fifo),
        EntryType::GNUSparse => return Err(Rule::Sparse),
        _ => return Err(Rule::UnknownKind),
    }
    extensions(entry)?;
    let mode = entry.header().mode().map_err(|_| Rule::Malformed)?;
    if kind == EntryType::Regular {
        return Ok(Kind::File { mode });
    }
    if entry.size() != 0 {
        return Err(Rule::Malformed);
    }
    if kind == EntryType::Directory {
        return Ok(Kind::Directory { mode });
    }
    if !links {
        return Err(Rule::Link);
    }
    let target = entry.link_name_bytes().ok_or(Rule::Malformed)?.into_owned();
    names::link_stays(&target, depth.ok_or(Rule::LinkLeaves)?)?;
    Ok(Kind::Link { target })
}

/// Refuses extensions that this reader and another could read differently: malformed records (also a value with a newline in it,
/// which the archive reader does not support), a key twice that decides a name or a size, and sparse files in disguise.
fn extensions<R: Read>(entry: &mut Entry<'_, R>) -> Result<(), Rule> {
    let size = entry.size();
    let Ok(Some(records)) = entry.pax_extensions() else { return Ok(()) };
    let (mut path, mut linkpath, mut sized) = (0, 0, 0);
    for record in records {
        let record = record.map_err(|_: io::Error| Rule::Malformed)?;
        match record.key_bytes() {
            b"path" => path += 1,
            b"linkpath" => linkpath += 1,
            b"size" => {
                sized += 1;
                let value = record.value().ok().and_then(|v| v.parse::<u64>().ok());
                if value != Some(size) {
                    return Err(Rule::Malformed);
                }
            }
            key if key.starts_with(b"GNU.sparse.") => return Err(Rule::Sparse),
            _ => {}
        }
    }
    if path > 1 || linkpath > 1 || sized > 1 { Err(Rule::Malformed) } else { Ok(()) }
}
