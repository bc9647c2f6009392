//! What was moved, what was left out, and what stopped it.

use std::error::Error as StdError;
use std::fmt;

use sandbox::{Error, ErrorKind};

use crate::Limits;

/// What a transfer moved, and what it left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Regular files that arrived.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories, the one at the top included.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// What the caller's filter said no to; what lies below a refused directory is not counted.
    pub filtered: u64,
    /// What was left out and why; the first [`Report::MOST_NAMED`] of them.
    pub left_out: Vec<Refused>,
    /// How many were left out in all.
    pub left_out_total: u64,
}

impl Report {
    /// How many of the left-out entries are named.
    pub const MOST_NAMED: usize = 1000;

    pub(crate) fn leave_out(&mut self, refused: Refused) {
        self.left_out_total += 1;
        if self.left_out.len() < Self::MOST_NAMED {
            self.left_out.push(refused);
        }
    }
}

/// Something that was not taken. It is the [`source`](StdError::source) of an error of kind
/// [`ArchiveRefused`](ErrorKind::ArchiveRefused): see [`Refused::of`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Its name: relative to the folder in an upload, as the archive spells it in a download.
    pub name: Vec<u8>,
    /// The rule that it breaks.
    pub rule: Rule,
}

impl Refused {
    pub(crate) fn new(name: &[u8], rule: Rule) -> Self {
        // A name is kept up to the longest that a path can have; what is longer is only good for a message.
        Self { name: name[..name.len().min(Limits::MAX_NAME)].to_vec(), rule }
    }

    /// What `error` refused, where that is what it is about.
    #[must_use]
    pub fn of(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    pub(crate) fn into_error(self) -> Error {
        Error::new(ErrorKind::ArchiveRefused).because(self.to_string()).caused_by(self)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", quoted(&self.name), self.rule)
    }
}

impl StdError for Refused {}

/// Why something is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Its name is empty.
    EmptyName,
    /// Its name begins with a slash.
    AbsoluteName,
    /// Its name has a `..` component.
    ParentName,
    /// Its name has a `.` component, two slashes in a row, or a slash at the end where no directory is.
    UncleanName,
    /// Its name, or the target of a link, contains NUL.
    NulInName,
    /// A component of its name has more than 255 bytes, or its path more than a path can have.
    LongName,
    /// The file system on this side refuses the name.
    NameNotPortable,
    /// It does not lie below the one entry at the top, which is called like the exported root.
    OutsideTop,
    /// Its directory did not come before it.
    NoParent,
    /// A component of its path is a link or a file.
    ThroughLink,
    /// Something of that name is there already.
    Duplicate,
    /// A symbolic link, and links were not asked for.
    Link,
    /// A symbolic link to an absolute path.
    LinkAbsolute,
    /// A symbolic link out of the tree.
    LinkLeaves,
    /// A symbolic link with `..` after a name, which can lead anywhere.
    LinkUnclear,
    /// A hard link.
    HardLink,
    /// A block or character device.
    Device,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A sparse file.
    Sparse,
    /// Of a kind that is not known here.
    UnknownKind,
    /// Its header contradicts itself or the format.
    Malformed,
    /// It was replaced or removed while it was looked at.
    Changed,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmptyName => "the name is empty",
            Self::AbsoluteName => "the name is absolute",
            Self::ParentName => "the name has a .. component",
            Self::UncleanName => "the name is not clean",
            Self::NulInName => "there is NUL in the name",
            Self::LongName => "the name is too long",
            Self::NameNotPortable => "the file system here refuses the name",
            Self::OutsideTop => "it is not below the entry at the top",
            Self::NoParent => "its directory did not come before it",
            Self::ThroughLink => "a component of its path is a link or a file",
            Self::Duplicate => "something of that name is there already",
            Self::Link => "it is a link, and links were not asked for",
            Self::LinkAbsolute => "it is a link to an absolute path",
            Self::LinkLeaves => "it is a link out of the tree",
            Self::LinkUnclear => "it is a link with .. after a name",
            Self::HardLink => "it is a hard link",
            Self::Device => "it is a device",
            Self::Fifo => "it is a FIFO",
            Self::Socket => "it is a socket",
            Self::Sparse => "it is a sparse file",
            Self::UnknownKind => "it is of an unknown kind",
            Self::Malformed => "its header is malformed",
            Self::Changed => "it changed while it was looked at",
        })
    }
}

/// A bound of [`Limits`] that a transfer ran into. It is the [`source`](StdError::source) of an error of kind
/// [`LimitExceeded`](ErrorKind::LimitExceeded): see [`Exceeded::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exceeded {
    /// The bound.
    pub bound: Bound,
    /// Its value.
    pub most: u64,
}

/// A bound of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// [`Limits::entries`].
    Entries,
    /// [`Limits::bytes`].
    Bytes,
    /// [`Limits::file_bytes`].
    FileBytes,
    /// [`Limits::name_bytes`].
    NameBytes,
    /// [`Limits::depth`].
    Depth,
    /// What an archive may spend on the headers of one entry; fixed.
    HeaderBytes,
    /// What an archive may have after its end; fixed.
    TailBytes,
}

impl Exceeded {
    /// The bound that `error` is about, where that is what it is about.
    #[must_use]
    pub fn of(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    pub(crate) fn into_error(self) -> Error {
        Error::new(ErrorKind::LimitExceeded).because(self.to_string()).caused_by(self)
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match self.bound {
            Bound::Entries => "entries",
            Bound::Bytes => "bytes in all",
            Bound::FileBytes => "bytes in one file",
            Bound::NameBytes => "bytes in one name",
            Bound::Depth => "directories in one another",
            Bound::HeaderBytes => "bytes in the headers of one entry",
            Bound::TailBytes => "bytes after the end of the archive",
        };
        write!(f, "more than {} {bound}", self.most)
    }
}

impl StdError for Exceeded {}

/// `name` in quotes, printable, and short enough for a message.
pub(crate) fn quoted(name: &[u8]) -> String {
    const MOST: usize = 128;
    let more = if name.len() > MOST { format!("... ({} bytes)", name.len()) } else { String::new() };
    format!("\"{}\"{more}", name[..name.len().min(MOST)].escape_ascii())
}
