//! Refusals of the control API, as RFC 9457 problem documents with a stable code.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, header};

/// Why the API refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemCode {
    NoSuchResource,
    MethodNotAllowed,
    InvalidParameter,
    NoSuchInvocation,
    NoSuchApproval,
    AlreadyDecided,
    ApprovalExpired,
    Unsendable,
    OperatorsOnly,
    TokenRequired,
    WrongHost,
    NoResult,
    ResultIncomplete,
    ResultExpired,
    VaultLocked,
    WrongPassphrase,
    VaultKeyUnusable,
    RangeNotSatisfiable,
    NotSettled,
    NotInDoubt,
    NotReconcilable,
    NoServer,
    ServerEnding,
    RetryNotAllowed,
    RetryTooEarly,
    RetryUnderWay,
    RequestNotStored,
    PolicyChanged,
    Internal,
}

impl ProblemCode {
    const fn parts(self) -> (StatusCode, &'static str) {
        match self {
            Self::NoSuchResource => (StatusCode::NOT_FOUND, "NO_SUCH_RESOURCE"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Self::InvalidParameter => (StatusCode::BAD_REQUEST, "INVALID_PARAMETER"),
            Self::NoSuchInvocation => (StatusCode::NOT_FOUND, "NO_SUCH_INVOCATION"),
            Self::NoSuchApproval => (StatusCode::NOT_FOUND, "NO_SUCH_APPROVAL"),
            Self::AlreadyDecided => (StatusCode::CONFLICT, "ALREADY_DECIDED"),
            Self::ApprovalExpired => (StatusCode::GONE, "APPROVAL_EXPIRED"),
            Self::Unsendable => (StatusCode::CONFLICT, "UNSENDABLE"),
            Self::OperatorsOnly => (StatusCode::FORBIDDEN, "OPERATORS_ONLY"),
            Self::TokenRequired => (StatusCode::UNAUTHORIZED, "TOKEN_REQUIRED"),
            Self::WrongHost => (StatusCode::MISDIRECTED_REQUEST, "WRONG_HOST"),
            Self::NoResult => (StatusCode::NOT_FOUND, "NO_RESULT"),
            Self::ResultIncomplete => (StatusCode::CONFLICT, "RESULT_INCOMPLETE"),
            Self::ResultExpired => (StatusCode::GONE, "RESULT_EXPIRED"),
            Self::VaultLocked => (StatusCode::SERVICE_UNAVAILABLE, "VAULT_LOCKED"),
            Self::WrongPassphrase => (StatusCode::FORBIDDEN, "WRONG_PASSPHRASE"),
            Self::VaultKeyUnusable => (StatusCode::SERVICE_UNAVAILABLE, "VAULT_KEY_UNUSABLE"),
            Self::RangeNotSatisfiable => {
                (StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_NOT_SATISFIABLE")
            }
            Self::NotSettled => (StatusCode::CONFLICT, "NOT_SETTLED"),
            Self::NotInDoubt => (StatusCode::CONFLICT, "NOT_IN_DOUBT"),
            Self::NotReconcilable => (StatusCode::CONFLICT, "NOT_RECONCILABLE"),
            Self::ServerEnding => (StatusCode::SERVICE_UNAVAILABLE, "SERVER_ENDING"),
            Self::NoServer => (StatusCode::SERVICE_UNAVAILABLE, "NO_SERVER"),
            Self::RetryNotAllowed => (StatusCode::CONFLICT, "RETRY_NOT_ALLOWED"),
            Self::RetryTooEarly => (StatusCode::CONFLICT, "RETRY_TOO_EARLY"),
            Self::RetryUnderWay => (StatusCode::CONFLICT, "RETRY_UNDER_WAY"),
            Self::RequestNotStored => (StatusCode::CONFLICT, "REQUEST_NOT_STORED"),
            Self::PolicyChanged => (StatusCode::CONFLICT, "POLICY_CHANGED"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR"),
        }
    }
}

/// A refusal with its words.
#[derive(Debug)]
pub(crate) struct Problem {
    code: ProblemCode,
    detail: String,
    /// More members of the document.
    more: serde_json::Map<String, serde_json::Value>,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), more: serde_json::Map::new() }
    }

    /// With the members of an object beside its own.
    pub(crate) fn with(mut self, members: serde_json::Value) -> Self {
        if let serde_json::Value::Object(members) = members {
            self.more.extend(members);
        }
        self
    }

    fn body(&self) -> (StatusCode, String) {
        let (status, code) = self.code.parts();
        let mut body = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "code": code,
            "detail": self.detail,
        });
        if let Some(members) = body.as_object_mut() {
            self.more.iter().for_each(|(name, value)| {
                members.entry(name).or_insert_with(|| value.clone());
            });
        }
        (status, body.to_string())
    }

    pub(crate) fn into_bytes(self) -> http::Response<Bytes> {
        let (status, body) = self.body();
        let mut response = http::Response::new(Bytes::from(body));
        *response.status_mut() = status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, body) = self.body();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response()
    }
}
