//! What kinds of failure there are, and what can be said about them.

use std::fmt;

/// What kind of failure this is: match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is malformed; [`Error::reason`](crate::Error::reason) says how.
    InvalidInput,
    /// A slot name breaks the grammar of [`SlotName`](crate::SlotName).
    InvalidSlot,
    /// An in-node path, a root directory or a host path is malformed.
    InvalidPath,
    /// A grant is malformed; [`Error::index`](crate::Error::index) says which.
    InvalidGrant,
    /// The text names no mode this version knows.
    UnknownMode,
    /// The mode is known, but this program can't operate it.
    ModeUnavailable,
    /// The backend can't provide a grant of this kind; [`Error::index`](crate::Error::index) says which.
    GrantUnsupported,
    /// The slot was never prepared.
    UnknownSlot,
    /// Something has to be prepared first (a package, a directory, a unit).
    NotPrepared,
    /// The slot is prepared, but its node stack does not run.
    NotRunning,
    /// Something that is not ours, or the other slot, is in the way.
    Conflict,
    /// Another process holds the slot; [`Error::holder_pid`](crate::Error::holder_pid) may say which.
    Busy,
    /// The deadline passed.
    Timeout,
    /// A helper program of ours failed; see [`Error::program`](crate::Error::program) and [`Error::stderr_tail`](crate::Error::stderr_tail).
    Command,
    /// The way into the node failed, so nothing is known about the command.
    Transport,
    /// The program does not exist, or can't be executed.
    CommandNotFound,
    /// The root file system or another artefact is unusable.
    Artifact,
    /// A file operation failed; [`Error::path`](crate::Error::path) says where.
    Io,
    /// The caller cancelled the call.
    Cancelled,
    /// The backend does not offer this.
    Unsupported,
    /// State on disk contradicts itself.
    Corrupt,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidInput => "invalid input",
            Self::InvalidSlot => "invalid slot name",
            Self::InvalidPath => "invalid path",
            Self::InvalidGrant => "invalid grant",
            Self::UnknownMode => "unknown mode",
            Self::ModeUnavailable => "mode not available",
            Self::GrantUnsupported => "grant not supported",
            Self::UnknownSlot => "slot was never prepared",
            Self::NotPrepared => "not prepared",
            Self::NotRunning => "not running",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Timeout => "timed out",
            Self::Command => "command failed",
            Self::Transport => "transport failed",
            Self::CommandNotFound => "command not found",
            Self::Artifact => "unusable artefact",
            Self::Io => "input or output error",
            Self::Cancelled => "cancelled",
            Self::Unsupported => "not supported",
            Self::Corrupt => "corrupt state",
        })
    }
}

/// Whether a failed operation can have changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Effect {
    /// It certainly changed nothing.
    #[default]
    None,
    /// It changed something and did not finish; the same call may be repeated.
    Partial,
    /// Nobody can tell: look before you retry.
    Unknown,
}

/// Which rule a rejected value breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// The value is empty.
    Empty,
    /// The value is longer than its maximum.
    TooLong,
    /// The first character is not allowed there.
    FirstCharacter,
    /// The last character is not allowed there.
    LastCharacter,
    /// A character is not allowed at all.
    Character,
    /// Two dashes in a row.
    DoubleDash,
    /// The name is reserved.
    Reserved,
    /// The value contains a NUL.
    Nul,
    /// The path is not absolute.
    NotAbsolute,
    /// The path has a `..` component.
    Traversal,
    /// The path is not in its normal form.
    NotNormal,
    /// The directory is the host's root.
    HostRoot,
    /// The target is the root of the node.
    NodeRoot,
    /// The value names nothing this version knows.
    Unknown,
    /// The mode has no entry in the mode table.
    NotCompiledIn,
    /// The mode has an entry that must be switched on.
    NeedsOptIn,
    /// The slot is in neither half of the pair.
    NotInPair,
    /// The two halves of a pair are equal.
    SamePair,
    /// A field that this kind needs is missing.
    MissingField,
    /// A field that this kind forbids is there.
    ForbiddenField,
    /// The purpose does not go with the kind.
    PurposeMismatch,
    /// The device is not below `/dev`.
    NotADevice,
    /// The entry is not of the expected type (a file, a directory).
    WrongType,
    /// The value has a suffix that is not a unit's.
    UnitSuffix,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::TooLong => "is too long",
            Self::FirstCharacter => "starts with a character that is not allowed there",
            Self::LastCharacter => "ends with a character that is not allowed there",
            Self::Character => "has a character that is not allowed",
            Self::DoubleDash => "has two dashes in a row",
            Self::Reserved => "is reserved",
            Self::Nul => "contains a NUL",
            Self::NotAbsolute => "is not absolute",
            Self::Traversal => "has a `..` component",
            Self::NotNormal => "is not in its normal form",
            Self::HostRoot => "is the root of the host",
            Self::NodeRoot => "is the root of the node",
            Self::Unknown => "is not known",
            Self::NotCompiledIn => "is not part of this program",
            Self::NeedsOptIn => "must be opted into",
            Self::NotInPair => "is not in the pair",
            Self::SamePair => "is there twice",
            Self::MissingField => "lacks a field its kind needs",
            Self::ForbiddenField => "has a field its kind forbids",
            Self::PurposeMismatch => "has a purpose that does not go with its kind",
            Self::NotADevice => "is not below /dev",
            Self::WrongType => "is not of the expected type",
            Self::UnitSuffix => "does not end like a unit",
        })
    }
}
