//! The one error of this crate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Effect, ErrorKind, ExecStatus, Mode, Reason};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

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
