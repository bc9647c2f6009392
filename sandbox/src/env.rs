//! Environment variables.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::quoted;
use crate::{Error, ErrorKind};

/// Environment variables for the commands of a sandbox, sorted by name.
///
/// A name is `[A-Za-z_][A-Za-z0-9_]*` and does not begin with `__sbx`, which belongs to what runs inside. A value is any
/// bytes but NUL, and reaches the command as it is. What the kernel would refuse at the first command is refused here:
/// `NAME=value` of 131,072 bytes or more, and more than 1 MiB in all.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, Value>", into = "BTreeMap<String, Value>")]
pub struct Env {
    vars: BTreeMap<String, Bytes>,
    size: usize,
}

/// Text where the value is text, else the list of its bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes(Vec<u8>),
}

/// Names that change how programs are loaded, how shells read, or where traffic goes.
const RESERVED: &[&str] = &[
    "PATH",
    "BASH_ENV",
    "ENV",
    "IFS",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PROMPT_COMMAND",
    "CDPATH",
    "GLOBIGNORE",
    "POSIXLY_CORRECT",
    "GCONV_PATH",
    "LOCPATH",
    "GLIBC_TUNABLES",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HOME",
    "TMPDIR",
];
const RESERVED_PREFIXES: &[&str] = &["LD_", "BASH_FUNC_", "MALLOC_", "KUBERNETES_"];

/// What [`Env::from_untrusted`] left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The name as it was given.
    pub name: String,
    /// The rule that it breaks.
    pub rule: String,
}

impl Env {
    /// The most that one `NAME=value` may have, in bytes (Linux's `MAX_ARG_STRLEN`, less the final NUL).
    pub const MAX_ENTRY: usize = 131_071;
    /// The most that all of them may have, in bytes.
    pub const MAX_TOTAL: usize = 1 << 20;
    /// The beginning of the names that no caller may set.
    pub const GUEST_PREFIX: &'static str = "__sbx";

    /// No variables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `name` to `value`; the later of two settings wins.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the variable (never its value) and the rule. The map is then as it was.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Result<(), Error> {
        let (name, value) = (name.into(), value.into());
        let refuse = |rule: &str| {
            Err(Error::new(ErrorKind::InvalidSpec).because(format!("env {}: {rule}", quoted(name.as_bytes()))))
        };
        if name.is_empty() {
            return refuse("a name must not be empty");
        }
        if name.as_bytes()[0].is_ascii_digit() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return refuse("a name is a letter or _, then letters, digits and _");
        }
        if name.starts_with(Self::GUEST_PREFIX) {
            return refuse("names that begin with __sbx belong to the guest");
        }
        if value.contains(&0) {
            return refuse("a value must not contain NUL");
        }
        let entry = name.len() + 1 + value.len();
        if entry > Self::MAX_ENTRY {
            return refuse("NAME=value must have at most 131071 bytes");
        }
        let before = self.vars.get(&name).map_or(0, |old| name.len() + 1 + old.len());
        if self.size - before + entry > Self::MAX_TOTAL {
            return refuse("all variables together must have at most 1048576 bytes");
        }
        self.size = self.size - before + entry;
        self.vars.insert(name, value);
        Ok(())
    }

    /// [`set`](Self::set), for chains.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Result<Self, Error> {
        self.set(name, value)?;
        Ok(self)
    }

    /// Builds a map from names and values that others chose, such as the names of stored credentials: what is not a
    /// legal variable or [is reserved](Self::is_reserved) is left out and reported, so that one bad name cannot fail it all.
    pub fn from_untrusted<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> (Self, Vec<Dropped>)
    where
        N: Into<String>,
        V: Into<Bytes>,
    {
        let (mut env, mut dropped) = (Self::new(), Vec::new());
        for (name, value) in vars {
            let name = name.into();
            if Self::is_reserved(&name) {
                dropped.push(Dropped { name, rule: "the name is reserved".to_owned() });
            } else if let Err(e) = env.set(name.clone(), value) {
                dropped.push(Dropped { name, rule: e.reason().unwrap_or_default().to_owned() });
            }
        }
        (env, dropped)
    }

    /// Whether `name` changes how programs are loaded, how shells read or where traffic goes, so that a value from an
    /// untrusted source must not set it. Case matters: `path` is not reserved. [`set`](Self::set) accepts these names.
    #[must_use]
    pub fn is_reserved(name: &str) -> bool {
        RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|p| name.starts_with(p))
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.vars.get(name)
    }

    /// The variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.vars.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vars.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vars.is_empty()
    }
}

/// Names only: a value can be a secret.
impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.vars.keys()).finish()
    }
}

impl TryFrom<BTreeMap<String, Value>> for Env {
    type Error = Error;

    fn try_from(vars: BTreeMap<String, Value>) -> Result<Self, Error> {
        let mut env = Self::new();
        for (name, value) in vars {
            match value {
                Value::Text(text) => env.set(name, text)?,
                Value::Bytes(bytes) => env.set(name, bytes)?,
            }
        }
        Ok(env)
    }
}

impl From<Env> for BTreeMap<String, Value> {
    fn from(env: Env) -> Self {
        let wire = |value: Bytes| match String::from_utf8(value.to_vec()) {
            Ok(text) => Value::Text(text),
            Err(e) => Value::Bytes(e.into_bytes()),
        };
        env.vars.into_iter().map(|(name, value)| (name, wire(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["A", "_", "_x", "A1", "PROXY_URL", "mixed_ABC", "a9_b0", "PATH", "LD_PRELOAD", "UID"] {
            Env::new().set(name, "v").unwrap_or_else(|e| panic!("{e}"));
        }
        for name in ["", "1A", "A=B", "a-b", "a.b", "a b", "é", "A; touch /tmp/pwn #", "a\n", "__sbx", "__sbx_nonce"] {
            let error = Env::new().set(name, "v").expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(&quoted(name.as_bytes())), "{error}");
        }
    }

    #[test]
    fn values() {
        let mut env = Env::new();
        for value in ["", "a b", "a\nb", "a=b", "$(X)", "$lit", "'\"", "`id`"] {
            env.set("V", value).unwrap();
            assert_eq!(env.get("V").unwrap(), value.as_bytes());
        }
        env.set("V", vec![0xff, 0xfe]).unwrap();
        let json = serde_json::to_string(&env).unwrap();
        assert_eq!(serde_json::from_str::<Env>(&json).unwrap(), env);
        assert!(env.set("V", vec![0]).is_err());
        assert!(env.set("V", vec![b'x'; Env::MAX_ENTRY - 1]).is_err());
        env.set("V", vec![b'x'; Env::MAX_ENTRY - 2]).unwrap();
        assert!(!format!("{env:?}").contains('x'), "a value in Debug");
        for i in 0..7 {
            env.set(format!("A{i}"), vec![b'x'; 131_000]).unwrap();
        }
        let before = env.clone();
        let error = env.set("Z", vec![b'x'; 131_000]).unwrap_err();
        assert!(error.to_string().contains("\"Z\""), "{error}");
        assert_eq!(env, before);
        env.set("V", "").unwrap();
        env.set("Z", vec![b'x'; 131_000]).unwrap();
    }

    #[test]
    fn untrusted_names_are_filtered_and_reported() {
        let vars = [("GOOD", "1"), ("PATH", "2"), ("a-b", "3"), ("LD_AUDIT", "4"), ("https_proxy", "5"), ("path", "6")];
        let (env, dropped) = Env::from_untrusted(vars);
        assert_eq!(env.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["GOOD", "path"]);
        assert_eq!(
            dropped.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(),
            ["PATH", "a-b", "LD_AUDIT", "https_proxy"]
        );
        for name in ["path", "MY_PATH", "PATH_", "HTTP_PROXY_URL", "MY_HTTP_PROXY"] {
            assert!(!Env::is_reserved(name), "{name}");
        }
        let all = "PATH BASH_ENV ENV IFS SHELLOPTS BASHOPTS PS4 PROMPT_COMMAND CDPATH GLOBIGNORE POSIXLY_CORRECT HOME TMPDIR \
                   LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT LD_ANY BASH_FUNC_read%% BASH_FUNC_x MALLOC_CHECK_ GLIBC_TUNABLES GCONV_PATH \
                   LOCPATH NODE_OPTIONS PYTHONSTARTUP PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS KUBERNETES_PORT \
                   HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy";
        for name in all.split_whitespace() {
            assert!(Env::is_reserved(name), "{name}");
            let (env, dropped) = Env::from_untrusted([(name, "1")]);
            assert!(env.is_empty() && dropped.len() == 1, "{name}");
        }
    }
}
