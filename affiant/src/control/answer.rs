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
    OperatorsOnly,
    TokenRequired,
    NoResult,
    ResultIncomplete,
    ResultExpired,
    VaultLocked,
    WrongPassphrase,
    RangeNotSatisfiable,
    NotSettled,
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
            Self::OperatorsOnly => (StatusCode::FORBIDDEN, "OPERATORS_ONLY"),
            Self::TokenRequired => (StatusCode::UNAUTHORIZED, "TOKEN_REQUIRED"),
            Self::NoResult => (StatusCode::NOT_FOUND, "NO_RESULT"),
            Self::ResultIncomplete => (StatusCode::CONFLICT, "RESULT_INCOMPLETE"),
            Self::ResultExpired => (StatusCode::GONE, "RESULT_EXPIRED"),
            Self::VaultLocked => (StatusCode::SERVICE_UNAVAILABLE, "VAULT_LOCKED"),
            Self::WrongPassphrase => (StatusCode::FORBIDDEN, "WRONG_PASSPHRASE"),
            Self::RangeNotSatisfiable => {
                (StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_NOT_SATISFIABLE")
            }
            Self::NotSettled => (StatusCode::CONFLICT, "NOT_SETTLED"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR"),
        }
    }
}

/// A refusal with its words.
#[derive(Debug)]
pub(crate) struct Problem {
    code: ProblemCode,
    detail: String,
}

impl Problem {
    pub(crate) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    fn body(&self) -> (StatusCode, String) {
        let (status, code) = self.code.parts();
        let body = serde_json::json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "code": code,
            "detail": self.detail,
        });
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
