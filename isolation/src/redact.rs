//! Keeps secrets out of errors and events.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

type Rule = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Replaces what may be secret in the arguments of a helper program before they reach an error.
///
/// The default knows credentials and queries in URLs, values of options whose name says what they are
/// (`--token=…`, `password=…`), and long tokens after `Bearer`. A program with secrets of other shapes
/// adds a rule.
#[derive(Clone, Default)]
pub struct Redact {
    more: Option<Arc<Rule>>,
}

/// What stands in place of a secret.
const MASK: &str = "***";

const NAMES: [&str; 8] = ["token", "password", "passwd", "secret", "credential", "apikey", "api-key", "authorization"];

impl Redact {
    /// The default and one more rule, which returns a replacement for an argument or `None`.
    pub fn with_rule(rule: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { more: Some(Arc::new(rule)) }
    }

    /// Nothing is shown at all: for arguments that are somebody else's.
    pub fn everything() -> Self {
        Self::with_rule(|_| Some(MASK.to_owned()))
    }

    /// A whole argument list.
    pub fn argv(&self, argv: &[OsString]) -> Vec<String> {
        let mut secret_next = false;
        let mut shown = Vec::with_capacity(argv.len());
        for arg in argv {
            let arg = arg.to_string_lossy();
            shown.push(if secret_next { MASK.to_owned() } else { self.text(&arg) });
            // `--token VALUE`, and `Authorization: …` in an argument of its own.
            secret_next = arg.starts_with('-') && !arg.contains('=') && names_a_secret(&arg);
        }
        shown
    }

    /// One argument.
    pub fn text(&self, arg: &str) -> String {
        if let Some(replacement) = self.more.as_ref().and_then(|rule| rule(arg)) {
            return replacement;
        }
        if let Some((name, _)) = arg.split_once(['=', ':'])
            && names_a_secret(name)
        {
            return format!("{name}={MASK}");
        }
        if let Some(at) = arg.find("Bearer ") {
            return format!("{}Bearer {MASK}", &arg[..at]);
        }
        match arg.find("://") {
            Some(scheme) => url(arg, scheme + 3),
            None => arg.to_owned(),
        }
    }
}

fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.len() < 64 && NAMES.iter().any(|secret| name.contains(secret))
}

/// Drops user and query of the URL whose host starts at `host`.
fn url(arg: &str, host: usize) -> String {
    let (before, rest) = arg.split_at(host);
    let path = rest.find(['/', '?', '#', ' ']).unwrap_or(rest.len());
    let rest = match rest[..path].rfind('@') {
        Some(at) => format!("{MASK}@{}", &rest[at + 1..]),
        None => rest.to_owned(),
    };
    match rest.find(['?', '#']) {
        Some(query) => format!("{before}{}?{MASK}", &rest[..query]),
        None => format!("{before}{rest}"),
    }
}

impl fmt::Debug for Redact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redact").field("more", &self.more.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_and_the_rest_stays() {
        let table = [
            ("https://u:p@host/x", "https://***@host/x"),
            ("https://host/x?sig=abc&y#z", "https://host/x?***"),
            ("--source=https://host/x?sig=abc", "--source=https://host/x?***"),
            ("--token=abc", "--token=***"),
            ("BOOTSTRAP_TOKEN=abc", "BOOTSTRAP_TOKEN=***"),
            ("Authorization: Basic abc", "Authorization=***"),
            ("X: Bearer abc", "X: Bearer ***"),
            ("--machine=kube1", "--machine=kube1"),
            ("/etc/passwd", "/etc/passwd"),
            ("https://host/x", "https://host/x"),
        ];
        for (arg, shown) in table {
            assert_eq!(Redact::default().text(arg), shown);
        }
        let argv = ["curl", "--token", "abc", "-q"].map(OsString::from);
        assert_eq!(Redact::default().argv(&argv), ["curl", "--token", "***", "-q"]);
        let own = Redact::with_rule(|arg| arg.contains("hunter2").then(|| "x".to_owned()));
        assert_eq!(own.text("a-hunter2"), "x");
        assert_eq!(own.text("--token=a"), "--token=***");
    }
}
