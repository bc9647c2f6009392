//! How failures of the host become errors of the contract.

use std::io;

use sandbox::{Error, ErrorKind};

/// A failed call of the host's.
pub(crate) fn io_error(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
        io::ErrorKind::TimedOut => ErrorKind::DeadlineExceeded,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind).because(format!("{}: {error}", what.into()))
}
