//! Which names and links are taken: pure.

use crate::Rule;

/// The longest component of a name, in bytes.
const MAX_COMPONENT: usize = 255;

/// The components of an archive's name below its top entry, which must be `top`; none for the top itself.
///
/// What it answers never has an empty, `.` or `..` component, a slash or a NUL.
pub(crate) fn below<'a>(name: &'a [u8], directory: bool, top: &[u8]) -> Result<Vec<&'a [u8]>, Rule> {
    if name.is_empty() {
        return Err(Rule::EmptyName);
    }
    if name.contains(&0) {
        return Err(Rule::NulInName);
    }
    if name[0] == b'/' {
        return Err(Rule::AbsoluteName);
    }
    let name = if directory { name.strip_suffix(b"/").unwrap_or(name) } else { name };
    let mut unclean = false;
    let mut components = Vec::new();
    for component in name.split(|b| *b == b'/') {
        match component {
            b".." => return Err(Rule::ParentName),
            b"" | b"." => unclean = true,
            c if c.len() > MAX_COMPONENT => return Err(Rule::LongName),
            c => components.push(c),
        }
    }
    if unclean {
        return Err(Rule::UncleanName);
    }
    if components.first() != Some(&top) {
        return Err(Rule::OutsideTop);
    }
    components.remove(0);
    Ok(components)
}

/// Whether a link that lies `depth` directories below the top of its tree stays in the tree.
///
/// `..` may stand only at the beginning, at most `depth` times. The link's own directory is a real one, so each of these
/// goes to a real directory of the tree; what follows only goes down, and where it meets another link the same rule holds
/// there. So no chain of such links leaves the tree, which would not be so with `..` after a name: that name can be a link.
pub(crate) fn link_stays(target: &[u8], depth: usize) -> Result<(), Rule> {
    if target.is_empty() {
        return Err(Rule::Malformed);
    }
    if target.contains(&0) {
        return Err(Rule::NulInName);
    }
    if target[0] == b'/' {
        return Err(Rule::LinkAbsolute);
    }
    let (mut up, mut down) = (0, false);
    for component in target.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." if down => return Err(Rule::LinkUnclear),
            b".." => up += 1,
            c if c.len() > MAX_COMPONENT => return Err(Rule::LongName),
            _ => down = true,
        }
    }
    if up > depth { Err(Rule::LinkLeaves) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = [b"top/".as_slice(), &[b'a'; 256]].concat();
        let longest = [b"top/".as_slice(), &[b'a'; 255]].concat();
        let table: [(&[u8], bool, Result<usize, Rule>); 24] = [
            (b"top", false, Ok(0)),
            (b"top/", true, Ok(0)),
            (b"top/a", false, Ok(1)),
            (b"top/a/b/", true, Ok(2)),
            (b"top/ -rf\n\xff", false, Ok(1)),
            (b"top/...", false, Ok(1)),
            (b"top/\\..\\x", false, Ok(1)),
            (&longest, false, Ok(1)),
            (b"", false, Err(Rule::EmptyName)),
            (b"/", true, Err(Rule::AbsoluteName)),
            (b"/top/a", false, Err(Rule::AbsoluteName)),
            (b"..", true, Err(Rule::ParentName)),
            (b"../x", false, Err(Rule::ParentName)),
            (b"top/..", true, Err(Rule::ParentName)),
            (b"top/a/../../x", false, Err(Rule::ParentName)),
            (b"./top/..", true, Err(Rule::ParentName)),
            (b"./top", false, Err(Rule::UncleanName)),
            (b"top//a", false, Err(Rule::UncleanName)),
            (b"top/a/", false, Err(Rule::UncleanName)),
            (b"top//", true, Err(Rule::UncleanName)),
            (b"top/a\0b", false, Err(Rule::NulInName)),
            (b"other/a", false, Err(Rule::OutsideTop)),
            (b"topp", false, Err(Rule::OutsideTop)),
            (&long, false, Err(Rule::LongName)),
        ];
        for (name, directory, want) in table {
            assert_eq!(below(name, directory, b"top").map(|c| c.len()), want, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn links() {
        let table: [(&[u8], usize, Result<(), Rule>); 14] = [
            (b"a", 0, Ok(())),
            (b"./a//b/", 0, Ok(())),
            (b"../a", 1, Ok(())),
            (b"../../", 2, Ok(())),
            (b"missing", 0, Ok(())),
            (b"", 0, Err(Rule::Malformed)),
            (b"a\0b", 0, Err(Rule::NulInName)),
            (b"/etc/passwd", 9, Err(Rule::LinkAbsolute)),
            (b"..", 0, Err(Rule::LinkLeaves)),
            (b"../../a", 1, Err(Rule::LinkLeaves)),
            (b"./../a", 0, Err(Rule::LinkLeaves)),
            (b"a/..", 5, Err(Rule::LinkUnclear)),
            (b"up/../x", 5, Err(Rule::LinkUnclear)),
            (b"../a/../..", 5, Err(Rule::LinkUnclear)),
        ];
        for (target, depth, want) in table {
            assert_eq!(link_stays(target, depth), want, "{} at {depth}", target.escape_ascii());
        }
    }
}
