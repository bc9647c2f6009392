//! The one error of this crate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{ExecStatus, Mode};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure this is: match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is malformed; [`Error::reason`] says how.
    InvalidInput,
    /// A slot name breaks the grammar of [`SlotName`](crate::SlotName).
    InvalidSlot,
    /// An in-node path, a root directory or a host path is malformed.
    InvalidPath,
    /// A grant is malformed; [`Error::index`] says which.
    InvalidGrant,
    /// The text names no mode this version knows.
    UnknownMode,
    /// The mode is known, but this program can't operate it.
    ModeUnavailable,
    /// The backend can't provide a grant of this kind; [`Error::index`] says which.
    GrantUnsupported,
    /// The slot was never prepared.
    UnknownSlot,
    /// Something has to be prepared first (a package, a directory, a unit).
    NotPrepared,
    /// The slot is prepared, but its node stack does not run.
    NotRunning,
    /// Something that is not ours, or the other slot, is in the way.
    Conflict,
    /// Another process holds the slot; [`Error::holder_pid`] may say which.
    Busy,
    /// The deadline passed.
    Timeout,
    /// A helper program of ours failed; see [`Error::program`] and [`Error::stderr_tail`].
    Command,
    /// The way into the node failed, so nothing is known about the command.
    Transport,
    /// The program does not exist, or can't be executed.
    CommandNotFound,
    /// The root file system or another artefact is unusable.
    Artifact,
    /// A file operation failed; [`Error::path`] says where.
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

#[derive(Debug, Default)]
struct Details {
    given: Option<String>,
    field: Option<&'static str>,
    reason: Option<Reason>,
    index: Option<usize>,
    path: Option<PathBuf>,
    program: Option<String>,
    argv: Vec<String>,
    status: Option<ExecStatus>,
    stderr_tail: Option<String>,
    after: Option<Duration>,
    holder_pid: Option<u32>,
    mode: Option<Mode>,
    known: Option<&'static str>,
    detail: Option<String>,
}

/// Why an operation failed.
///
/// Match on [`kind`](Self::kind), decide about a retry by [`effect`](Self::effect), show the text to a
/// human. The text is not part of the contract; the cause is in `source()` and is not repeated here.
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    effect: Effect,
    operation: String,
    details: Details,
    source: Option<BoxError>,
}

impl Error {
    /// An error of `kind` for an operation given as a verb phrase ("start the slot"), with effect
    /// [`Effect::None`].
    pub fn new(kind: ErrorKind, operation: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                effect: Effect::None,
                operation: operation.into(),
                details: Details::default(),
                source: None,
            }),
        }
    }

    /// A rejected value: what was given, which rule it breaks.
    pub fn rejected(kind: ErrorKind, what: &'static str, given: &[u8], reason: Reason) -> Self {
        let mut error = Self::new(kind, format!("accept the {what}"));
        error.inner.details.given = Some(escaped(given));
        error.inner.details.reason = Some(reason);
        error
    }

    /// The deadline of `operation` passed after `after`; the effect is unknown.
    pub fn timeout(operation: impl Into<String>, after: Duration) -> Self {
        let mut error = Self::new(ErrorKind::Timeout, operation).with_effect(Effect::Unknown);
        error.inner.details.after = Some(after);
        error
    }

    /// A file operation on `path` failed.
    pub fn io(operation: impl Into<String>, path: impl Into<PathBuf>, cause: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, operation).with_path(path).because(cause)
    }

    /// Which kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the operation can have changed anything.
    pub fn effect(&self) -> Effect {
        self.inner.effect
    }

    /// What was attempted, as a verb phrase.
    pub fn operation(&self) -> &str {
        &self.inner.operation
    }

    /// The rule a rejected value breaks.
    pub fn reason(&self) -> Option<Reason> {
        self.inner.details.reason
    }

    /// The rejected value: escaped, at most 64 characters.
    pub fn given(&self) -> Option<&str> {
        self.inner.details.given.as_deref()
    }

    /// The field of a structure that was rejected.
    pub fn field(&self) -> Option<&'static str> {
        self.inner.details.field
    }

    /// The position of the rejected member of a list.
    pub fn index(&self) -> Option<usize> {
        self.inner.details.index
    }

    /// The file that a file operation failed on.
    pub fn path(&self) -> Option<&Path> {
        self.inner.details.path.as_deref()
    }

    /// The helper program that failed or is missing.
    pub fn program(&self) -> Option<&str> {
        self.inner.details.program.as_deref()
    }

    /// The helper program's arguments, with everything secret replaced by [`Redact`](crate::Redact).
    pub fn argv(&self) -> &[String] {
        &self.inner.details.argv
    }

    /// How the helper program ended.
    pub fn status(&self) -> Option<ExecStatus> {
        self.inner.details.status
    }

    /// The end of what the helper program wrote to its standard error, at most 4 KiB.
    pub fn stderr_tail(&self) -> Option<&str> {
        self.inner.details.stderr_tail.as_deref()
    }

    /// How long was waited before the deadline passed.
    pub fn after(&self) -> Option<Duration> {
        self.inner.details.after
    }

    /// The process that holds the slot.
    pub fn holder_pid(&self) -> Option<u32> {
        self.inner.details.holder_pid
    }

    /// The mode that is not available.
    pub fn mode(&self) -> Option<Mode> {
        self.inner.details.mode
    }
}

/// For those who make errors: a backend, a source, a checker.
impl Error {
    /// Sets the effect.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.inner.effect = effect;
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<BoxError>) -> Self {
        self.inner.source = Some(cause.into());
        self
    }

    /// Adds one lowercase fragment for humans.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.inner.details.detail = Some(detail.into());
        self
    }

    /// Sets the broken rule.
    #[must_use]
    pub fn with_reason(mut self, reason: Reason) -> Self {
        self.inner.details.reason = Some(reason);
        self
    }

    /// Sets the rejected field.
    #[must_use]
    pub fn with_field(mut self, field: &'static str) -> Self {
        self.inner.details.field = Some(field);
        self
    }

    /// Sets the position in a list.
    #[must_use]
    pub fn with_index(mut self, index: usize) -> Self {
        self.inner.details.index = Some(index);
        self
    }

    /// Sets the file.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.inner.details.path = Some(path.into());
        self
    }

    /// Sets program and arguments; the arguments must be redacted already.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<String>, argv: Vec<String>) -> Self {
        self.inner.details.program = Some(program.into());
        self.inner.details.argv = argv;
        self
    }

    /// Sets how the helper program ended.
    #[must_use]
    pub fn with_status(mut self, status: ExecStatus) -> Self {
        self.inner.details.status = Some(status);
        self
    }

    /// Sets the end of the helper's standard error; all but the last 4 KiB is dropped.
    #[must_use]
    pub fn with_stderr_tail(mut self, tail: &[u8]) -> Self {
        let from = tail.len().saturating_sub(4096);
        let mut text = String::from_utf8_lossy(&tail[from..]).into_owned();
        // A cut or foreign byte becomes three: keep the promise in bytes, at a character boundary.
        let mut start = text.len().saturating_sub(4096);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text.drain(..start);
        self.inner.details.stderr_tail = Some(text);
        self
    }

    /// Sets the process that holds the slot.
    #[must_use]
    pub fn with_holder_pid(mut self, pid: Option<u32>) -> Self {
        self.inner.details.holder_pid = pid;
        self
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.inner.details.mode = Some(mode);
        self
    }

    /// Lists what would have been accepted.
    #[must_use]
    pub(crate) fn with_known(mut self, known: &'static str) -> Self {
        self.inner.details.known = Some(known);
        self
    }
}

/// Escapes control and non-ASCII bytes and cuts at 64 characters, so that no terminal is fooled.
fn escaped(given: &[u8]) -> String {
    // No escape is longer than its own text, so 64 bytes are always enough.
    let text = given[..given.len().min(64)].escape_ascii().to_string();
    text.chars().take(64).collect()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, operation, details, .. } = &*self.inner;
        write!(f, "could not {operation}: {kind}")?;
        match (&details.field, &details.given, details.reason) {
            (Some(field), Some(given), Some(reason)) => write!(f, ": {field} \"{given}\" {reason}")?,
            (None, Some(given), Some(reason)) => write!(f, ": \"{given}\" {reason}")?,
            (Some(field), None, Some(reason)) => write!(f, ": {field} {reason}")?,
            (None, None, Some(reason)) => write!(f, ": it {reason}")?,
            (_, Some(given), None) => write!(f, ": \"{given}\"")?,
            _ => {}
        }
        if let Some(index) = details.index {
            write!(f, " (number {index})")?;
        }
        if let Some(mode) = details.mode {
            write!(f, " ({mode})")?;
        }
        if let Some(known) = details.known {
            write!(f, ", known are {known}")?;
        }
        if let Some(path) = &details.path {
            write!(f, " at {}", path.display().to_string().escape_debug())?;
        }
        if let Some(program) = &details.program {
            write!(f, " ({})", program.escape_debug())?;
        }
        if let Some(status) = details.status {
            write!(f, ", {status}")?;
        }
        if let Some(after) = details.after {
            write!(f, " after {after:.1?}")?;
        }
        if let Some(pid) = details.holder_pid {
            write!(f, ", held by process {pid}")?;
        }
        if let Some(detail) = &details.detail {
            write!(f, ": {detail}")?;
        }
        if let Some(tail) = details.stderr_tail.as_deref().map(str::trim).filter(|t| !t.is_empty()) {
            write!(f, ": {}", tail.escape_debug())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("effect", &self.inner.effect)
            .field("message", &self.to_string())
            .field("source", &self.inner.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}
