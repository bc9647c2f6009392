//! What the API server's answers become.

use std::error::Error as StdError;
use std::time::Duration;

use kube::Error as KubeError;
use sandbox::{Effect, Error, ErrorKind};

use crate::request::is_absent;

/// The longest message that is taken over from the API server.
const MAX_MESSAGE: usize = 2048;
/// The longest that a server's wish to be left alone is heeded.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// An answer that was not the wanted one.
pub(crate) fn api_error(doing: &str, error: KubeError) -> Error {
    let KubeError::Api(status) = &error else {
        let (kind, why) = match &error {
            // What a credential plugin has printed is only ever in the source: it may be a secret.
            KubeError::Auth(_) => {
                (ErrorKind::Forbidden, Some("there are no credentials; the source says why".to_owned()))
            }
            error => (ErrorKind::Unavailable, cause(error)),
        };
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        return Error::new(kind).because(format!("cannot {doing}{why}")).caused_by(error);
    };
    let kind = match status.code {
        401 | 403 => ErrorKind::Forbidden,
        // What the spec makes of a Pod is refused as such.
        413 | 422 => ErrorKind::InvalidSpec,
        409 => ErrorKind::Busy,
        408 | 429 | 500..=599 => ErrorKind::Unavailable,
        // Somebody on the way who does not know the API server.
        404 if !is_absent(&error) => ErrorKind::Unavailable,
        _ => ErrorKind::Other,
    };
    Error::new(kind).because(format!("cannot {doing}: {} {}", status.code, plain(&status.message)))
}

/// A bounded copy without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}

/// Why no answer came, in the innermost words of what carries requests: as `Connection refused`. They know nothing of credentials.
fn cause(error: &KubeError) -> Option<String> {
    let mut inner: &(dyn StdError + 'static) = match error {
        KubeError::HyperError(inner) => inner,
        KubeError::Service(inner) => &**inner,
        KubeError::ReadEvents(inner) => inner,
        _ => return None,
    };
    while let Some(source) = inner.source() {
        inner = source;
    }
    Some(plain(&inner.to_string()))
}

/// No answer in time, which is `request_timeout`.
pub(crate) fn no_answer(doing: &str, after: Duration) -> Error {
    let why = format!("cannot {doing}: no answer within request_timeout ({after:?})");
    Error::new(ErrorKind::DeadlineExceeded).because(why)
}

/// Whether asking again can help, without knowing what the request was.
pub(crate) fn is_transient(error: &KubeError) -> bool {
    match error {
        KubeError::Api(status) => match status.code {
            408 | 429 | 500 | 502..=504 => true,
            404 => !is_absent(error),
            _ => false,
        },
        // The last is an answer that was cut short: what it was to is done none the less.
        KubeError::HyperError(_) | KubeError::Service(_) | KubeError::ReadEvents(_) | KubeError::SerdeError(_) => true,
        _ => false,
    }
}

/// How long the server wants to be left alone, by its `Status` or its header; it does not say so for long.
pub(crate) fn retry_after(error: &KubeError) -> Duration {
    let KubeError::Api(status) = error else { return Duration::ZERO };
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER)
}

pub(crate) fn has_code(error: &KubeError, code: u16) -> bool {
    matches!(error, KubeError::Api(status) if status.code == code)
}

/// The operation may have happened.
pub(crate) fn uncertain(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_for(seconds: u32) -> KubeError {
        let status = serde_json::json!({"status": "Failure", "code": 429, "details": {"retryAfterSeconds": seconds}});
        KubeError::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_servers_wish_is_heeded_up_to_ten_seconds() {
        for (asked, heeded) in [(0, 0), (1, 1), (10, 10), (11, 10), (3600, 10)] {
            assert_eq!(retry_after(&asks_for(asked)), Duration::from_secs(heeded), "{asked}");
        }
        assert_eq!(retry_after(&KubeError::LinesCodecMaxLineLengthExceeded), Duration::ZERO);
    }

    /// One error around another.
    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("client error (Connect)")
        }
    }

    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn what_the_network_says_is_told() {
        let refused = KubeError::Service(Box::new(Outer(std::io::Error::other("Connection\nrefused"))));
        let error = api_error("get pods", refused);
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Unavailable, Some("cannot get pods: Connection refused"))
        );
        assert!(error.source().is_some());
    }

    #[test]
    fn what_a_credential_plugin_prints_is_not() {
        let plugin = kube::client::AuthError::AuthExec("token-of-somebody".to_owned());
        let error = api_error("get pods", KubeError::Auth(plugin));
        assert_eq!(error.kind(), ErrorKind::Forbidden);
        assert!(error.to_string().contains("credentials") && !error.to_string().contains("token-of"), "{error}");
    }
}
