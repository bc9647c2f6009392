//! What a sandbox may reach.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::quoted;
use crate::{Error, ErrorKind};

/// What a sandbox may reach over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Networking {
    /// An unrestricted sandbox reaches all that the place it runs in can reach.
    #[default]
    Unrestricted,
    /// Only the hosts of the list. Without a gate nothing can honour a list, so that it means no way out at all. (A gate is what a deployment
    /// puts between its sandboxes and the network, such as a proxy that lets through what a session's list names. No backend brings one.)
    Limited(Limited),
    /// A sandbox without a network reaches nothing: no route, no name service.
    None,
}

/// The hosts of [`Networking::Limited`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limited {
    /// Hosts that may be reached, on any port.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Also the endpoints of the session's tool servers (MCP servers, which offer tools to the model that works in the session), as its
    /// gate knows them.
    pub allow_mcp_servers: bool,
    /// Also the package managers that its gate knows.
    pub allow_package_managers: bool,
}

impl Networking {
    /// No way out, or only through a gate.
    #[must_use]
    pub fn limited(allowed_hosts: impl IntoIterator<Item = AllowedHost>) -> Self {
        Self::Limited(Limited { allowed_hosts: allowed_hosts.into_iter().collect(), ..Limited::default() })
    }

    /// The wire name of the variant.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unrestricted => "unrestricted",
            Self::Limited(_) => "limited",
            Self::None => "none",
        }
    }
}

/// A host of an allow-list: a bare host name, an IPv4 address, or `*.` and a host name, which does not match that name itself.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowedHost(String);

impl AllowedHost {
    /// Checks `host`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the value and the rule.
    pub fn new(host: impl Into<String>) -> Result<Self, Error> {
        let host = host.into();
        let name = host.strip_prefix("*.").unwrap_or(&host);
        let label = |l: &str| {
            (1..=63).contains(&l.len())
                && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !l.starts_with('-')
                && !l.ends_with('-')
        };
        let numeric =
            name.split('.').next_back().is_some_and(|l| !l.is_empty() && l.bytes().all(|b| b.is_ascii_digit()));
        let address = name.parse::<std::net::Ipv4Addr>().is_ok();
        let legal = name.len() <= 253 && name.split('.').all(label) && (!numeric || (address && host == name));
        if legal {
            return Ok(Self(host));
        }
        Err(Error::new(ErrorKind::InvalidSpec).because(format!(
            "allowed host {}: a host name in lower case, an IPv4 address, or *. and a host name; no scheme, port or path",
            quoted(host.as_bytes())
        )))
    }

    /// The host as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl TryFrom<String> for AllowedHost {
    type Error = Error;

    fn try_from(host: String) -> Result<Self, Error> {
        Self::new(host)
    }
}

impl From<AllowedHost> for String {
    fn from(host: AllowedHost) -> Self {
        host.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for host in ["example.com", "a", "*.example.com", "10.0.0.1", "xn--bcher-kva.example", "a-b.c"] {
            assert_eq!(AllowedHost::new(host).unwrap_or_else(|e| panic!("{e}")).as_str(), host);
        }
        for host in [
            "",
            "*",
            "*.",
            "http://a",
            "a:80",
            "a/b",
            "a b",
            "A.com",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "*.10.0.0.1",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "*.*.a",
            "::1",
            "é",
        ] {
            let error = AllowedHost::new(host).expect_err(host);
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            let reason = error.reason().expect("a reason");
            assert!(
                reason.contains(&*quoted(host.as_bytes())) && reason.contains("no scheme, port or path"),
                "{host:?}: {reason}"
            );
        }
    }

    #[test]
    fn an_unknown_variant_or_field_is_refused_not_opened() {
        for json in
            [r#"{"type":"limitted"}"#, r#"{"type":""}"#, "{}", "null", r#"{"type":"limited","allowed_host":[]}"#]
        {
            assert!(serde_json::from_str::<Networking>(json).is_err(), "{json}");
        }
        let json = r#"{"type":"limited","allowed_hosts":["a.b"]}"#;
        assert_eq!(
            serde_json::from_str::<Networking>(json).unwrap(),
            Networking::limited([AllowedHost::new("a.b").unwrap()])
        );
        assert_eq!(serde_json::from_str::<Networking>(r#"{"type":"none"}"#).unwrap(), Networking::None);
    }
}
