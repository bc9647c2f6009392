//! The egress gate: a program beside a sandbox through which all its traffic goes, and the tokens that such a program has.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::id::{CROCKFORD, quoted};
use crate::{Error, ErrorKind, SessionId};

/// A gate for one sandbox: plain data. Its token is no part of it; see [`GateMinter`].
///
/// With a gate, whatever leaves the sandbox goes through it, and it decides by the policy that it fetches from its control plane. The
/// backend then adds no restriction of its own. Commands find it in `HTTP_PROXY` and `HTTPS_PROXY` (and the same in lower case), which no
/// variable of the session replaces. A session's gate is not compared when the session is provisioned again, only
/// whether there is one: if not, the sandbox is replaced, and [`Sandbox::recreated`](crate::Sandbox::recreated) says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GateSpec {
    /// What the gate is made from.
    pub image: String,
    /// Where it fetches its policy: an `http` or `https` URL.
    pub control_plane: String,
    /// Where it sends its telemetry, if anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<GateTelemetry>,
}

/// Where a gate sends its telemetry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GateTelemetry {
    /// An OTLP endpoint: an `http` or `https` URL.
    pub endpoint: String,
    /// Whether to go without TLS.
    #[serde(default)]
    pub insecure: bool,
}

impl GateTelemetry {
    /// Telemetry to `endpoint`, with TLS.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), insecure: false }
    }
}

/// The longest URL.
const MAX_URL: usize = 2048;

impl GateSpec {
    /// A gate from `image` that fetches its policy from `control_plane`.
    #[must_use]
    pub fn new(image: impl Into<String>, control_plane: impl Into<String>) -> Self {
        Self { image: image.into(), control_plane: control_plane.into(), telemetry: None }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSpec`], naming the field, the value and the rule.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |field: &str, value: &str, rule: &str| {
            let value = quoted(value.as_bytes());
            Err(Error::new(ErrorKind::InvalidSpec).because(format!("gate {field} {value}: {rule}")))
        };
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || c.is_whitespace());
        if self.image.is_empty() || self.image.len() > crate::Spec::MAX_IMAGE || !plain(&self.image) {
            return refuse("image", &self.image, "from 1 to 4096 bytes, without spaces and control characters");
        }
        let endpoint = self.telemetry.as_ref().map(|telemetry| ("telemetry", &telemetry.endpoint));
        for (field, url) in std::iter::once(("control_plane", &self.control_plane)).chain(endpoint) {
            let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let host = host.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
            if host.is_none_or(str::is_empty) || !plain(url) || url.len() > MAX_URL {
                return refuse(field, url, "an http or https URL of at most 2048 bytes");
            }
            if host.is_some_and(|host| host.contains('@')) {
                return refuse(field, "…", "credentials do not belong into a URL");
            }
        }
        Ok(())
    }
}

/// What a gate shows its control plane. Its text is in neither `Debug` nor JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct GateToken(String);

impl GateToken {
    /// A fresh token: `gtk_` and 52 characters that carry 256 random bits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system has no source of randomness.
    pub fn generate() -> Result<Self, Error> {
        let mut bits = [0u8; 52];
        getrandom::fill(&mut bits)
            .map_err(|e| Error::new(ErrorKind::Unavailable).because(format!("no source of randomness: {e}")))?;
        let text: String = bits.iter().map(|b| CROCKFORD[usize::from(b & 31)] as char).collect();
        Ok(Self(format!("gtk_{text}")))
    }

    /// A token that somebody else has made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`], without the value, if it is not 16 to 512 letters, digits, `-`, `_` and `.`.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if (16..=512).contains(&text.len()) && text.bytes().all(legal) {
            return Ok(Self(text));
        }
        Err(Error::new(ErrorKind::InvalidRequest)
            .because("gate token: it must have 16 to 512 letters, digits, -, _ and ."))
    }

    /// The text: a secret.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for GateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GateToken(…)")
    }
}

/// Makes the tokens of gates valid. Given to a backend when it is constructed.
///
/// A backend calls [`generate`](Self::generate) before it makes a gate and [`persist`](Self::persist) only once that gate is the session's; one
/// that is adopted keeps the token it has.
#[async_trait]
pub trait GateMinter: fmt::Debug + Send + Sync + 'static {
    /// A fresh token, known to nobody and recorded nowhere.
    ///
    /// # Errors
    ///
    /// Any; the provision fails with it, and nothing was made.
    fn generate(&self) -> Result<GateToken, Error>;

    /// Makes `token` the one valid token of the session; earlier ones are valid no longer. Store a digest, never the token.
    ///
    /// # Errors
    ///
    /// Any; the provision fails with it, and the gate is removed.
    async fn persist(&self, session: &SessionId, token: &GateToken) -> Result<(), Error>;
}

/// Takes the tokens of gates back. Given to a backend when it is constructed.
#[async_trait]
pub trait GateRevoker: fmt::Debug + Send + Sync + 'static {
    /// Makes every token of the session invalid. That there is none is success; so is repeating it.
    ///
    /// # Errors
    ///
    /// Any; the reap, `destroy` or provision stops with it before anything is removed, so that it is asked again. Only a gate whose token
    /// could not be recorded is removed all the same.
    async fn revoke(&self, session: &SessionId) -> Result<(), Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let telemetry = |endpoint: &str| {
            let mut spec = GateSpec::new("gate:1", "https://plane.example/base");
            spec.telemetry = Some(GateTelemetry::new(endpoint));
            spec
        };
        for good in [GateSpec::new("gate:1", "http://10.0.0.1:8080"), telemetry("http://otel:4318")] {
            good.validate().unwrap();
            let json = serde_json::to_string(&good).unwrap();
            assert_eq!(serde_json::from_str::<GateSpec>(&json).unwrap(), good);
        }
        for (bad, shown) in [
            (GateSpec::new("", "https://p"), "gate image \"\""),
            (GateSpec::new("a b", "https://p"), "gate image \"a b\""),
            (GateSpec::new("g", "p.example"), "gate control_plane \"p.example\""),
            (GateSpec::new("g", "https://"), "gate control_plane \"https://\""),
            (GateSpec::new("g", "https:// p"), "gate control_plane"),
            (GateSpec::new("g", "https://user:secret@p"), "credentials"),
            (telemetry("otel:4318"), "gate telemetry \"otel:4318\""),
        ] {
            let error = bad.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSpec);
            assert!(error.to_string().contains(shown) && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn tokens_are_fresh_and_never_shown() {
        let (one, two) = (GateToken::generate().unwrap(), GateToken::generate().unwrap());
        assert!(one != two && one.expose().len() == 56 && GateToken::new(one.expose()).is_ok());
        assert!(!format!("{one:?}").contains(&one.expose()[4..]));
        for bad in ["short", "with a space in it", "with$dollar_and_more"] {
            let error = GateToken::new(bad).unwrap_err();
            assert!(!error.to_string().contains(bad), "{error}");
        }
    }
}
