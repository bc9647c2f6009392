//! Requests to the API server.
//!
//! Not by `kube::Client::request`: that logs a body that it cannot read, and with it the variables and the gate's token that stand in a
//! Pod; it reads a body of any size; and it drops the headers.

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::{Client, Error as KubeError};
use serde::de::DeserializeOwned;

/// The largest answer that is read: a page of Pods' metadata with all the annotations that a cluster allows.
const MAX_ANSWER: usize = 160 << 20;
/// How much is told of an answer that is not the API server's.
const MAX_FOREIGN: usize = 256;
/// What a refusal gives as its reason where a Pod is not there.
const NOT_FOUND: &str = "NotFound";

/// One request and its answer.
pub(crate) async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, KubeError> {
    let request = request.map_err(KubeError::BuildRequest)?;
    let (parts, body) = client.send(request.map(Body::from)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(KubeError::Service)?.to_bytes();
    if parts.status.is_success() {
        return serde_json::from_slice(&body).map_err(KubeError::SerdeError);
    }
    Err(KubeError::Api(Box::new(refusal(parts.status, &parts.headers, &body))))
}

/// A refusal as the API server words it; one that is somebody else's has no reason.
fn refusal(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Status {
    let known = serde_json::from_slice::<serde_json::Value>(body).ok().filter(|answer| answer["kind"] == "Status");
    let mut status = known.and_then(|answer| serde_json::from_value(answer).ok()).unwrap_or_else(|| Status {
        message: String::from_utf8_lossy(&body[..body.len().min(MAX_FOREIGN)]).into_owned(),
        ..Status::default()
    });
    status.code = code.as_u16();
    // Whoever is too busy to answer a request says so in the header alone.
    let wanted = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse::<u32>().ok());
    if let Some(seconds) = wanted {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

/// Whether the API server itself says that something is not there. Others on the way also answer 404, of what they do not know.
pub(crate) fn is_absent(error: &KubeError) -> bool {
    matches!(error, KubeError::Api(status) if status.code == 404 && status.reason == NOT_FOUND)
}

/// As [`is_absent`], of a Pod.
pub(crate) fn no_such_pod(error: &KubeError) -> bool {
    let KubeError::Api(status) = error else { return false };
    is_absent(error) && status.details.as_ref().is_none_or(|details| matches!(&*details.kind, "" | "pods"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, retry_after: Option<&str>, body: &str) -> Status {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.parse().unwrap());
        }
        refusal(StatusCode::from_u16(code).unwrap(), &headers, body.as_bytes())
    }

    #[test]
    fn only_the_server_knows_what_is_not_there() {
        let said = |reason: &str, kind: &str| {
            serde_json::json!({"kind": "Status", "code": 404, "reason": reason, "details": {"kind": kind}}).to_string()
        };
        for (body, absent, pod) in [
            (said("NotFound", "pods"), true, true),
            (said("NotFound", ""), true, true),
            (said("NotFound", "namespaces"), true, false),
            (said("", "pods"), false, false),
            ("404 page not found".to_owned(), false, false),
            (String::new(), false, false),
            (r#"{"code": 404, "reason": "NotFound"}"#.to_owned(), false, false),
            (r#"{"kind": "Other", "reason": "NotFound"}"#.to_owned(), false, false),
        ] {
            let error = KubeError::Api(Box::new(refused(404, None, &body)));
            assert_eq!((is_absent(&error), no_such_pod(&error)), (absent, pod), "{body}");
        }
        let error = KubeError::Api(Box::new(refused(403, None, &said("NotFound", "pods"))));
        assert!(!is_absent(&error), "the code of the answer counts");
    }

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let status = r#"{"kind": "Status", "details": {"retryAfterSeconds": 3}}"#;
        for (header, body, seconds) in [
            (Some("2"), "Too many requests, please try again later.", Some(2)),
            (Some("2"), status, Some(3)),
            (Some("4"), status, Some(4)),
            (None, status, Some(3)),
            (Some("Wed, 21 Oct 2026 07:28:00 GMT"), "", None),
            (None, "", None),
        ] {
            let status = refused(429, header, body);
            assert_eq!(status.details.map(|details| details.retry_after_seconds), seconds, "{header:?} {body}");
        }
    }

    #[test]
    fn little_is_told_of_a_strangers_answer() {
        assert_eq!(refused(502, None, &"x".repeat(1000)).message.len(), MAX_FOREIGN);
    }
}
