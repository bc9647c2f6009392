//! One error: a sentence for the person who typed the command.

use std::fmt;

/// What went wrong, in words, with everything the reader needs already inside.
#[derive(Debug)]
pub(crate) struct Error(String);

/// Result with this tool's error.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Says what was being done when a foreign error came.
pub(crate) trait Context<T> {
    /// Turns the error into "could not {doing}: {cause}".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Error(format!("could not {}: {cause}", doing())))
    }
}
