//! The console: a page for people and the control API, on a TCP address, behind a bearer token.
//!
//! Every process of the machine reaches a loopback port, an agent's included; the socket in the
//! home is private by its mode, this port only by its token. The page holds no data and no token. It
//! asks for the token, keeps it in the page's memory and sends it in a field that no other site can
//! set; there are no cookies. Requests for other names than the address itself are refused, so that
//! a name which is led here by DNS is of no use.

use super::{Problem, ProblemCode};
use crate::home::{Home, write_file};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, Method, header};
use ring::digest::{SHA256, digest};
use ring::rand::SecureRandom as _;
use std::net::SocketAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// The whole page; it loads nothing else.
const PAGE: &str = include_str!("console/page.html");

/// What every request is measured by.
struct Gate {
    /// The token of who may use the API.
    token: String,
    /// The values of `Host` that mean this address.
    hosts: [String; 2],
    /// What the browser may do with the page.
    content_policy: HeaderValue,
}

/// Makes a new token, writes it to the home (0600), asks every request to the API for it, and puts
/// the page beside it.
pub(crate) fn guard(
    routes: axum::Router,
    home: &Home,
    address: SocketAddr,
) -> anyhow::Result<axum::Router> {
    let mut random = [0; 32];
    ring::rand::SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| anyhow::anyhow!("the system gave no randomness for the console's token"))?;
    let token = URL_SAFE_NO_PAD.encode(random);
    write_file(&home.console_token(), 0o600, token.as_bytes())?;
    let gate = Arc::new(Gate {
        token,
        hosts: [address.to_string(), format!("localhost:{}", address.port())],
        content_policy: HeaderValue::from_str(&content_policy())?,
    });
    Ok(routes.layer(axum::middleware::from_fn(move |request: Request, next: Next| {
        check(Arc::clone(&gate), request, next)
    })))
}

async fn check(gate: Arc<Gate>, request: Request, next: Next) -> Response {
    let answer = gate.judge(&request);
    let mut response = match answer {
        Some(answer) => answer,
        None => next.run(request).await,
    };
    harden(response.headers_mut(), &gate.content_policy);
    response
}

impl Gate {
    /// The answer to all but a request of the API by who may use it.
    fn judge(&self, request: &Request) -> Option<Response> {
        let field = |name: header::HeaderName| {
            request.headers().get(name).map(HeaderValue::as_bytes).unwrap_or_default()
        };
        let host = field(header::HOST).to_ascii_lowercase();
        if !self.hosts.iter().any(|own| own.as_bytes() == host) {
            let [own, _] = &self.hosts;
            let detail = format!("this is the console at {own}; ask for no other name");
            return Some(Problem::new(ProblemCode::WrongHost, detail).into_response());
        }
        if request.uri().path() == "/" && [Method::GET, Method::HEAD].contains(request.method()) {
            let page = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE);
            return Some(page.into_response());
        }
        // A scheme has no case (RFC 9110 section 11.1).
        let (scheme, token) = field(header::AUTHORIZATION).split_at_checked(7).unwrap_or_default();
        if scheme.eq_ignore_ascii_case(b"bearer ") && token.ct_eq(self.token.as_bytes()).into() {
            return None;
        }
        let detail = "send `Authorization: Bearer` and the token in console.token of the home";
        Some(Problem::new(ProblemCode::TokenRequired, detail).into_response())
    }
}

/// What keeps a browser from doing more with an answer than the page needs.
fn harden(headers: &mut HeaderMap, content_policy: &HeaderValue) {
    headers.insert(header::CONTENT_SECURITY_POLICY, content_policy.clone());
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// The page's own script and style by their digests, its own API, and nothing else.
fn content_policy() -> String {
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        digest_of("script"),
        digest_of("style")
    )
}

/// The digest of the page's one element of that name.
fn digest_of(element: &str) -> String {
    let inner = PAGE.split_once(&format!("<{element}>"));
    let inner = inner.and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let inner = inner.map(|(inner, _)| inner).unwrap_or_default();
    STANDARD.encode(digest(&SHA256, inner.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hostile text can't become markup, and the page loads nothing from elsewhere.
    #[test]
    fn the_page_writes_text_only_and_is_whole() {
        for never in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "://",
            "src=",
            "href=",
            " onclick",
            " onload",
            " onerror",
            " style=",
            "localStorage",
            "sessionStorage",
            "cookie",
        ] {
            assert!(!PAGE.contains(never), "{never}");
        }
        for element in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1, "{element}");
            assert_ne!(digest_of(element), digest_of("nothing"), "{element}");
        }
        assert!(PAGE.is_ascii());
    }
}
