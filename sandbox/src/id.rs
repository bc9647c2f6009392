//! Session ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind};

/// The lowercase Crockford alphabet: no `i`, `l`, `o`, `u`.
pub(crate) const CROCKFORD: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The whole identity of a session, and so of its sandbox.
///
/// 1 to 59 bytes of `a-z`, `0-9` and `_`, beginning and ending with a letter or a digit. The rule is this narrow so that
/// an id is a legal label value as it is, can never change what a label selector means, and gives each session an
/// object name of its own (see [`SessionId::object_name`]).
///
/// ```
/// use sandbox::SessionId;
///
/// let id = SessionId::new("build_42")?;
/// assert_eq!(id.object_name("sbx"), "sbx-build-42");
/// assert!(SessionId::new("build-42").is_err());
/// # Ok::<(), sandbox::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// The longest id, in bytes: `prefix-` of four bytes and an id of 59 make a DNS label of 63.
    pub const MAX_LEN: usize = 59;

    /// Checks `id` against the rule above.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the value and what is wrong with it.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        let refuse = |rule: &str| {
            Err(Error::new(ErrorKind::InvalidSpec).because(format!("session id {}: {rule}", quoted(id.as_bytes()))))
        };
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if id.is_empty() {
            return refuse("it must not be empty");
        }
        if id.len() > Self::MAX_LEN {
            return refuse("it must have at most 59 bytes");
        }
        if !id.as_bytes().iter().all(|b| alphanumeric(b) || *b == b'_') {
            return refuse("only a-z, 0-9 and _ are allowed");
        }
        if !id.as_bytes().first().is_some_and(alphanumeric) || !id.as_bytes().last().is_some_and(alphanumeric) {
            return refuse("it must begin and end with a letter or a digit");
        }
        Ok(Self(id))
    }

    /// Mints a fresh id: `sesn_` and 24 characters that carry 120 random bits.
    ///
    /// # Panics
    ///
    /// If the operating system has no source of randomness.
    #[must_use]
    pub fn generate() -> Self {
        let mut bits = [0u8; 24];
        getrandom::fill(&mut bits).expect("the operating system has a source of randomness");
        let token: String = bits.iter().map(|b| CROCKFORD[usize::from(b & 31)] as char).collect();
        Self(format!("sesn_{token}"))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the object that holds this session: `prefix-` and the id with `_` written as `-`.
    ///
    /// Two ids never share a name, since `-` is not part of an id. With a prefix of at most three bytes it is a DNS label.
    #[must_use]
    pub fn object_name(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.0.replace('_', "-"))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for SessionId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        Self::new(id)
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(id: String) -> Result<Self, Error> {
        Self::new(id)
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

/// `value` in quotes with everything unprintable escaped, cut after 64 bytes: fit for an error text.
pub(crate) fn quoted(value: &[u8]) -> String {
    const MOST: usize = 64;
    let head = &value[..value.len().min(MOST)];
    let more = if value.len() > MOST { format!("... ({} bytes)", value.len()) } else { String::new() };
    format!("\"{}\"{more}", head.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted() {
        let longest = "a".repeat(59);
        for id in ["a", "7", "sesn_0123456789abcdefghjkmnpq", "session_x", "a_b", "a__b", longest.as_str()] {
            let parsed = SessionId::new(id).unwrap_or_else(|e| panic!("{id}: {e}"));
            assert_eq!(parsed.as_str(), id);
            assert!(parsed.object_name("sbx").len() <= 63, "{id}");
            assert_eq!(serde_json::from_str::<SessionId>(&serde_json::to_string(&parsed).unwrap()).unwrap(), parsed);
        }
    }

    #[test]
    fn rejected() {
        let long = ["a".repeat(60), "a".repeat(63), "a".repeat(64), "a".repeat(253), "a".repeat(1000)];
        let others = [
            "",
            "A",
            "sesn_ABC",
            "a-b",
            "a.b",
            "a/b",
            "_a",
            "a_",
            "_",
            "a b",
            " a",
            "a ",
            "a,b",
            "a=b",
            "!a",
            "(a)",
            "a\n",
            "a\0",
            "é",
            "\u{1f600}",
            "a-",
            "-a",
            "..",
        ];
        for id in long.iter().map(String::as_str).chain(others) {
            let error = SessionId::new(id).expect_err(id);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec, "{id:?}");
            let text = error.to_string();
            assert!(text.contains("session id \""), "{text}");
            assert!(serde_json::from_value::<SessionId>(id.into()).is_err(), "{id:?}");
        }
    }

    #[test]
    fn minted_ids_are_legal_and_differ() {
        let ids: std::collections::HashSet<_> = (0..1000).map(|_| SessionId::generate()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.as_str().len(), 29);
            assert_eq!(SessionId::new(id.as_str()).unwrap(), id);
        }
    }
}
