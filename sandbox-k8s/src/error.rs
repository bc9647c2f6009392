//! What the API server's answers become.

use std::time::Duration;

use sandbox::{Effect, Error, ErrorKind};

use crate::request::is_absent;

/// The longest message that is taken over from the API server.
const MAX_MESSAGE: usize = 2048;
/// The longest that a server's wish to be left alone is heeded.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// An answer that was not the wanted one.
pub(crate) fn api_error(doing: &str, error: kube::Error) -> Error {
    let kube::Error::Api(status) = &error else {
        let kind = match &error {
            kube::Error::Auth(_) => ErrorKind::Forbidden,
            _ => ErrorKind::Unavailable,
        };
        return Error::new(kind).because(format!("cannot {doing}")).caused_by(error);
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
    let message: String =
        status.message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect();
    Error::new(kind).because(format!("cannot {doing}: {} {message}", status.code))
}

/// No answer in time.
pub(crate) fn no_answer(doing: &str, after: Duration) -> Error {
    Error::new(ErrorKind::DeadlineExceeded).because(format!("cannot {doing}: no answer within {after:?}"))
}

/// Whether asking again can help, without knowing what the request was.
pub(crate) fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => match status.code {
            408 | 429 | 500 | 502..=504 => true,
            404 => !is_absent(error),
            _ => false,
        },
        // The last is an answer that was cut short: what it was to is done none the less.
        kube::Error::HyperError(_)
        | kube::Error::Service(_)
        | kube::Error::ReadEvents(_)
        | kube::Error::SerdeError(_) => true,
        _ => false,
    }
}

/// How long the server wants to be left alone; it does not say so for long.
pub(crate) fn retry_after(error: &kube::Error) -> Duration {
    let kube::Error::Api(status) = error else { return Duration::ZERO };
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER)
}

pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The operation may have happened.
pub(crate) fn uncertain(error: Error) -> Error {
    error.with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_for(seconds: u32) -> kube::Error {
        let status = serde_json::json!({"status": "Failure", "code": 429, "details": {"retryAfterSeconds": seconds}});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_servers_wish_is_heeded_up_to_ten_seconds() {
        for (asked, heeded) in [(0, 0), (1, 1), (10, 10), (11, 10), (3600, 10)] {
            assert_eq!(retry_after(&asks_for(asked)), Duration::from_secs(heeded), "{asked}");
        }
        assert_eq!(retry_after(&kube::Error::LinesCodecMaxLineLengthExceeded), Duration::ZERO);
    }
}
