//! The `Status` objects with which an API server says no.

use http::StatusCode;
use serde_json::{Map, Value, json};

/// A request that was not served, as the client is told.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: StatusCode,
    reason: &'static str,
    message: String,
    details: Map<String, Value>,
    pub(crate) retry_after: Option<u64>,
    /// A kubelet answers in plain text.
    pub(crate) plain: bool,
}

impl Refusal {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Map::new(), retry_after: None, plain: false }
    }

    fn about(mut self, resource: &str, name: &str) -> Self {
        self.details.insert("name".into(), name.into());
        self.details.insert("kind".into(), resource.into());
        self
    }

    pub(crate) fn not_found(resource: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", format!("{resource} {name:?} not found")).about(resource, name)
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn already_exists(resource: &str, name: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "AlreadyExists", format!("{resource} {name:?} already exists"))
            .about(resource, name)
    }

    pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn invalid(resource: &str, name: &str, field: &str, why: &str) -> Self {
        let message = format!("{resource} {name:?} is invalid: {field}: {why}");
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(resource, name);
        let cause = json!([{"reason": "FieldValueInvalid", "message": why, "field": field}]);
        refusal.details.insert("causes".into(), cause);
        refusal
    }

    pub(crate) fn forbidden(resource: &str, name: &str, verb: &str) -> Self {
        let message = format!("{resource} {name:?} is forbidden: User \"fake\" cannot {verb} resource {resource:?}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(resource, name)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refusal = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        refusal.details.insert("retryAfterSeconds".into(), 1.into());
        refusal.retry_after = Some(1);
        refusal
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn unsupported_media_type(kind: &str) -> Self {
        let message = format!("the body of the request was in an unknown format: {kind:?}");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large() -> Self {
        let message = "Request entity is too large: limit is 3145728";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// What a kubelet says, in plain text and with a status of its own.
    pub(crate) fn kubelet(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
        refusal.plain = true;
        refusal
    }

    /// Whatever a rule asks for.
    pub(crate) fn scripted(code: StatusCode, message: Option<String>, retry_after: Option<u64>) -> Self {
        let reason = match code.as_u16() {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            410 => "Gone",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        let message = message.unwrap_or_else(|| format!("scripted answer {code}"));
        let mut refusal = Self::new(code, reason, message);
        if let Some(seconds) = retry_after {
            refusal.details.insert("retryAfterSeconds".into(), seconds.into());
        }
        refusal.retry_after = retry_after;
        refusal
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}
