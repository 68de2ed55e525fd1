//! The console: the control API on a TCP address, behind a bearer token.
//!
//! Every process of the machine reaches a loopback port, an agent's included; the socket in the
//! home is private by its mode, this port only by its token.

use super::{Problem, ProblemCode};
use crate::home::{Home, write_file};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SecureRandom as _;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// Makes a new token, writes it to the home (0600), and asks every request for it.
pub(crate) fn require_token(routes: axum::Router, home: &Home) -> anyhow::Result<axum::Router> {
    let mut random = [0; 32];
    ring::rand::SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| anyhow::anyhow!("the system gave no randomness for the console's token"))?;
    let token = URL_SAFE_NO_PAD.encode(random);
    write_file(&home.console_token(), 0o600, token.as_bytes())?;
    let expected: Arc<str> = format!("Bearer {token}").into();
    Ok(routes.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        check(Arc::clone(&expected), request, next)
    })))
}

async fn check(expected: Arc<str>, request: Request, next: Next) -> Response {
    let given = request.headers().get(http::header::AUTHORIZATION);
    let given = given.map(http::HeaderValue::as_bytes).unwrap_or_default();
    if bool::from(given.ct_eq(expected.as_bytes())) {
        return next.run(request).await;
    }
    let detail = "send `Authorization: Bearer` and the token in console.token of the home";
    Problem::new(ProblemCode::TokenRequired, detail).into_response()
}
