//! The one error of this crate family's sandbox half.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{SandboxPath, SessionId};

/// What went wrong, and enough around it to act on.
///
/// Match on [`kind`](Self::kind), decide on a retry by [`effect`](Self::effect). The text names the value and the rule; its
/// wording is not part of the contract. It speaks for its own level only: the cause is in
/// [`source`](StdError::source). Cloning it is cheap enough to tell several what went wrong; the copies share the cause.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    operation: Option<&'static str>,
    session: Option<SessionId>,
    path: Option<SandboxPath>,
    member: Option<usize>,
    death: Option<Death>,
    reason: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The class of an [`Error`]: what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The [`Spec`](crate::Spec), the session id or the provider's configuration breaks a rule. A caller's bug: never retry.
    InvalidSpec,
    /// Another argument of the call breaks a rule. A caller's bug: never retry.
    InvalidRequest,
    /// The backend does not claim what the call needs; see [`Capabilities`](crate::Capabilities).
    Unsupported,
    /// There is no such sandbox: never made, reaped, destroyed, dead, or not ready.
    NotFound,
    /// Something has the name that this session's sandbox would have, but is not this session's. It is left alone.
    NotOurs,
    /// The session has a sandbox that was made to another spec. It is left alone; the original spec still finds it.
    SpecMismatch,
    /// Somebody else is changing this session's sandbox. Try again.
    Busy,
    /// The file to read, the root to export or the working directory of a command does not exist.
    FileNotFound,
    /// The path is a directory, or a link to one, where a file is wanted.
    IsDirectory,
    /// Some component of the path exists and is not a directory.
    NotDirectory,
    /// The path is a link, a FIFO, a socket or a device where a regular file is wanted.
    NotRegularFile,
    /// The target is a device or a mount point, which a rename cannot replace. It is left alone.
    NotReplaceable,
    /// The target or a parent of it cannot be made; [`Error::reason`] has the system's own words.
    NotWritable,
    /// The file exists, and the call asked for a new one.
    AlreadyExists,
    /// The call asks for text, and the file's content is not UTF-8. The tenant decides what its files hold.
    NotText,
    /// The file is larger than the limit of the call.
    FileTooLarge,
    /// There is more of it than the call allows; [`Error::reason`] names the bound.
    LimitExceeded,
    /// An archive from a sandbox does not end properly, or holds what is not taken; [`Error::reason`] names the entry and the rule.
    ArchiveRefused,
    /// A file of this machine could not be read or written; [`Error::reason`] names it, with the system's own words.
    HostFile,
    /// Another number of bytes arrived than was declared. Retry: what was there before is still there.
    ShortTransfer,
    /// The operation did not finish in its time.
    DeadlineExceeded,
    /// The way into the sandbox broke in the middle; see [`Error::effect`].
    Lost,
    /// The sandbox's answer breaks the guest protocol: the image, or somebody inside, interferes.
    Protocol,
    /// It is not allowed: the backend's own permissions do not suffice, or the place refuses what is to be made by a rule of its own, such as a
    /// quota. [`Error::reason`] has its words.
    Forbidden,
    /// The backend, or what it stands on, does not work here or now.
    Unavailable,
    /// The image cannot be had.
    ImagePull,
    /// There is no place to run the sandbox.
    Unschedulable,
    /// None of the others.
    Other,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidSpec => "invalid spec",
            Self::InvalidRequest => "invalid request",
            Self::Unsupported => "not supported by this backend",
            Self::NotFound => "no such sandbox",
            Self::NotOurs => "the object of that name is not this session's",
            Self::SpecMismatch => "the session's sandbox was made to another spec",
            Self::Busy => "somebody else is changing this sandbox",
            Self::FileNotFound => "no such file",
            Self::IsDirectory => "it is a directory",
            Self::NotDirectory => "a component of the path is not a directory",
            Self::NotRegularFile => "it is not a regular file",
            Self::NotReplaceable => "it cannot be replaced",
            Self::NotWritable => "it cannot be written",
            Self::AlreadyExists => "it exists already",
            Self::NotText => "it is not a text",
            Self::FileTooLarge => "it is larger than the limit",
            Self::LimitExceeded => "there is more of it than the call allows",
            Self::ArchiveRefused => "the archive is refused",
            Self::HostFile => "a file of this machine could not be read or written",
            Self::ShortTransfer => "the number of bytes is not the declared one",
            Self::DeadlineExceeded => "it did not finish in time",
            Self::Lost => "the way into the sandbox broke",
            Self::Protocol => "the sandbox's answer breaks the protocol",
            Self::Forbidden => "permission denied",
            Self::Unavailable => "the backend is not available",
            Self::ImagePull => "the image cannot be had",
            Self::Unschedulable => "there is no place to run it",
            Self::Other => "an unexpected failure",
        })
    }
}

/// Whether a failed operation can have changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It did not happen.
    None,
    /// A known part of it happened; the error says which.
    Partial,
    /// It may have happened: look before you repeat it.
    Unknown,
}

/// Why a sandbox is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Death {
    /// It was over its memory limit.
    OomKilled,
    /// Its node needed the room, or it was over its disk limit.
    Evicted,
    /// Somebody removed it.
    Deleted,
    /// Somebody removed it and made another one for the same session.
    Replaced,
    /// Its node is gone, or was restarted.
    NodeLost,
    /// Its first process ended or was killed.
    Ended,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OomKilled => "killed for its memory",
            Self::Evicted => "evicted",
            Self::Deleted => "deleted",
            Self::Replaced => "replaced",
            Self::NodeLost => "its node was lost",
            Self::Ended => "its first process ended",
        })
    }
}

impl Error {
    /// An error of `kind` that changed nothing.
    #[must_use]
    pub fn new(kind: ErrorKind) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                effect: Effect::None,
                operation: None,
                session: None,
                path: None,
                member: None,
                death: None,
                reason: None,
                source: None,
            }),
        }
    }

    /// Adds the reason in words: the value and the rule, or what the system said.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.inner.reason = Some(reason.into());
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(Arc::from(source.into()));
        self
    }

    /// Says what the failure can have changed.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.inner.effect = effect;
        self
    }

    /// Adds the path it is about.
    #[must_use]
    pub fn at(mut self, path: SandboxPath) -> Self {
        self.inner.path = Some(path);
        self
    }

    /// Adds the position of the failed member in a batch.
    #[must_use]
    pub fn of_member(mut self, index: usize) -> Self {
        self.inner.member = Some(index);
        self
    }

    /// Adds why the sandbox is no more.
    #[must_use]
    pub fn with_death(mut self, death: Death) -> Self {
        self.inner.death = Some(death);
        self
    }

    /// Adds the operation, unless one is there already.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.inner.operation.get_or_insert(operation);
        self
    }

    /// Adds the session, unless one is there already.
    #[must_use]
    pub fn in_session(mut self, session: &SessionId) -> Self {
        self.inner.session.get_or_insert_with(|| session.clone());
        self
    }

    /// The class.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether it can have changed anything.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.inner.effect
    }

    /// The verb of the failed call, as in `exec`.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.inner.operation
    }

    /// The session of the failed call.
    #[must_use]
    pub fn session(&self) -> Option<&SessionId> {
        self.inner.session.as_ref()
    }

    /// The path it is about, as the caller spelled it.
    #[must_use]
    pub fn path(&self) -> Option<&SandboxPath> {
        self.inner.path.as_ref()
    }

    /// The position, from 0, of the failed member of a batch.
    #[must_use]
    pub fn member(&self) -> Option<usize> {
        self.inner.member
    }

    /// Why the sandbox is no more, where that is known.
    #[must_use]
    pub fn death(&self) -> Option<Death> {
        self.inner.death
    }

    /// The reason in words, such as `Permission denied`. It can come from inside the sandbox: show it, never parse it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.inner.reason.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.inner;
        if let Some(operation) = inner.operation {
            write!(f, "could not {operation}")?;
            if let Some(session) = &inner.session {
                write!(f, " in session {session}")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", inner.kind)?;
        if let Some(path) = &inner.path {
            write!(f, ": {path}")?;
        }
        if let Some(index) = inner.member {
            write!(f, " (member {index})")?;
        }
        if let Some(death) = inner.death {
            write!(f, " ({death})")?;
        }
        if let Some(reason) = &inner.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.inner.kind).field("effect", &self.inner.effect).field("text", &self.to_string());
        if let Some(source) = &self.inner.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|e| e as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_operation_session_path_and_reason_but_not_the_source() {
        let error = Error::new(ErrorKind::NotWritable)
            .at(SandboxPath::new("/etc/x").unwrap())
            .because("Read-only file system")
            .caused_by(std::io::Error::other("inner text"))
            .during("write")
            .during("later")
            .in_session(&SessionId::new("s1").unwrap());
        assert_eq!(
            error.to_string(),
            "could not write in session s1: it cannot be written: /etc/x: Read-only file system"
        );
        assert_eq!(error.source().unwrap().to_string(), "inner text");
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(error.operation(), Some("write"));
    }
}
