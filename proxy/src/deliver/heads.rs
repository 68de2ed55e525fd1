//! The bytes of responses to the caller: heads, chunks, trailer sections.

use crate::grpc;
use crate::head::{Fields, Received, Response, Version};
use crate::outgoing::{is_header_only, stays};
use crate::render::{self, Status};
use crate::respond::forbids_retry;
use journal::contract::{Envelope, InvocationId, Verdict};

/// How the content goes to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The origin's own framing fields are true: nothing follows, or exactly the declared length.
    AsDeclared,
    /// Exactly so many bytes.
    Length(u64),
    /// Chunks with a trailer section.
    Chunked,
    /// The same, written to what makes frames of it: there the declared length stands beside trailers.
    Frames,
    /// Chunks as the origin sent them, all of them here; the head says the outcome.
    HeldChunks,
    /// Until the connection closes (callers of HTTP/1.0).
    Close,
}

/// What our own fields say.
#[derive(Clone, Copy)]
pub(crate) struct Ours<'a> {
    pub(crate) verdict: Verdict,
    pub(crate) id: InvocationId,
    pub(crate) replayed: bool,
    pub(crate) status: Status<'a>,
    pub(crate) keep_alive: bool,
    pub(crate) pseudonym: &'a str,
    /// How the message came that goes on.
    pub(crate) received: Received,
}

/// A response head for the caller, from the origin's.
pub(crate) fn head(
    response: &Response,
    version: Version,
    delivery: Delivery,
    ours: &Ours<'_>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    start(&mut out, response.status, &response.reason);
    for (name, value) in passing(response, delivery, forbids_retry(response.status, ours.verdict)) {
        line(&mut out, name, value);
    }
    finish(&mut out, response.status, version, delivery, ours);
    out
}

/// The origin's fields that go on to the caller.
fn passing(
    response: &Response,
    delivery: Delivery,
    retry_forbidden: bool,
) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = &response.fields;
    fields.iter().filter(move |(name, _)| {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("trailer") {
            return match delivery {
                Delivery::Chunked | Delivery::Frames | Delivery::HeldChunks => true,
                Delivery::AsDeclared | Delivery::Length(_) | Delivery::Close => false,
            };
        }
        // A 204 has no content, and may not declare any (RFC 9110 section 8.6).
        let declared = matches!(delivery, Delivery::AsDeclared | Delivery::Frames);
        let unframed = !declared || response.status == 204;
        let reframed = unframed && is("content-length");
        !(stays(name, fields) || reframed || (retry_forbidden && is("x-should-retry")))
    })
}

fn start(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes our own fields, the framing and the empty line.
fn finish(out: &mut Vec<u8>, status: u16, version: Version, delivery: Delivery, ours: &Ours<'_>) {
    line(out, b"Via", format!("{} {}", ours.received.name(), ours.pseudonym).as_bytes());
    status_lines(out, ours);
    if forbids_retry(status, ours.verdict) {
        line(out, b"x-should-retry", b"false");
    }
    match delivery {
        Delivery::AsDeclared => {}
        Delivery::Length(length) => {
            line(out, b"Content-Length", length.to_string().as_bytes());
        }
        Delivery::Chunked => {
            line(out, b"Transfer-Encoding", b"chunked");
            line(out, b"Trailer", b"Affiant-Outcome, Proxy-Status");
        }
        Delivery::Frames => line(out, b"Trailer", b"Affiant-Outcome, Proxy-Status"),
        Delivery::HeldChunks => line(out, b"Transfer-Encoding", b"chunked"),
        Delivery::Close => {}
    }
    if !ours.keep_alive || delivery == Delivery::Close {
        line(out, b"Connection", b"close");
    } else if version == Version::Http10 {
        line(out, b"Connection", b"keep-alive");
    }
    out.extend_from_slice(b"\r\n");
}

/// The line before a chunk's content.
pub(crate) fn chunk_size(length: usize) -> Vec<u8> {
    format!("{length:x}\r\n").into_bytes()
}

/// One chunk.
pub(crate) fn chunk(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 20);
    out.extend_from_slice(&chunk_size(content.len()));
    out.extend_from_slice(content);
    out.extend_from_slice(b"\r\n");
    out
}

/// The head that switches the caller's connection to WebSocket: no framing, and no field of a
/// response that ends.
pub(crate) fn switching(response: &Response, ours: &Ours<'_>) -> Vec<u8> {
    // The origin's may be a 2xx of HTTP/2.
    let mut out = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    let fields = &response.fields;
    let framing = ["content-length", "trailer"];
    for (name, value) in fields.iter().filter(|(name, _)| !stays(name, fields)) {
        if !framing.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
            line(&mut out, name, value);
        }
    }
    line(&mut out, b"Connection", b"Upgrade");
    line(&mut out, b"Upgrade", b"websocket");
    status_lines(&mut out, ours);
    out.extend_from_slice(b"\r\n");
    out
}

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n";

/// The answer to a CONNECT whose tunnel is not looked into.
pub(crate) fn established(ours: &Ours<'_>) -> Vec<u8> {
    let mut out = ESTABLISHED.to_vec();
    status_lines(&mut out, ours);
    out.extend_from_slice(b"\r\n");
    out
}

/// The answer to a CONNECT whose tunnel ends here. What comes inside is an invocation, the tunnel is none: it
/// has no outcome, and a reader that takes the first one it finds gets that of its call (contract E-4).
pub(crate) fn intercepting() -> Vec<u8> {
    let mut out = ESTABLISHED.to_vec();
    line(&mut out, b"Proxy-Status", render::proxy_status(&Status::default()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out
}

fn status_lines(out: &mut Vec<u8>, ours: &Ours<'_>) {
    line(out, b"Proxy-Status", render::proxy_status(&ours.status).as_bytes());
    let outcome = render::affiant_outcome(ours.verdict, ours.id, ours.replayed);
    line(out, b"Affiant-Outcome", outcome.as_bytes());
}

/// An interim response for the caller. It has no content to declare (RFC 9110 section 8.6).
pub(crate) fn interim(response: &Response) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    start(&mut out, response.status, &response.reason);
    let fields = &response.fields;
    let passes =
        |name: &[u8]| !stays(name, fields) && !name.eq_ignore_ascii_case(b"content-length");
    for (name, value) in fields.iter().filter(|(name, _)| passes(name)) {
        line(&mut out, name, value);
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// The origin's trailers that may be some.
pub(crate) fn trailing(trailers: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    trailers.iter().filter(|(name, _)| !stays(name, trailers) && !is_header_only(name))
}

/// The last chunk, with those of the origin's trailers that may be some and, where the head could not
/// say them, the final values of our fields.
pub(crate) fn last_chunk(trailers: &Fields, ours: Option<&Ours<'_>>) -> Vec<u8> {
    let mut out = b"0\r\n".to_vec();
    for (name, value) in trailing(trailers) {
        line(&mut out, name, value);
    }
    if let Some(ours) = ours {
        let outcome = render::affiant_outcome(ours.verdict, ours.id, ours.replayed);
        line(&mut out, b"Affiant-Outcome", outcome.as_bytes());
        line(&mut out, b"Proxy-Status", render::proxy_status(&ours.status).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// A response of our own: the envelope as problem details (contract E-1, RFC 9457).
pub(crate) fn problem(
    status: u16,
    version: Version,
    envelope: &Envelope,
    ours: &Ours<'_>,
    with_content: bool,
    now_ms: u64,
) -> Vec<u8> {
    let mut value = serde_json::to_value(envelope).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.insert("type".to_owned(), "about:blank".into());
        members.insert("title".to_owned(), reason(status).into());
        members.insert("status".to_owned(), status.into());
        members.insert("detail".to_owned(), envelope.error.message.clone().into());
    }
    let content = value.to_string();
    let mut out = Vec::with_capacity(1024 + content.len());
    start(&mut out, status, reason(status).as_bytes());
    line(&mut out, b"Content-Type", b"application/problem+json");
    if let Some(wait_ms) = envelope.error.not_before_ms.and_then(|at| at.checked_sub(now_ms)) {
        line(&mut out, b"Retry-After", wait_ms.div_ceil(1000).max(1).to_string().as_bytes());
    }
    if status == 407 {
        line(&mut out, b"Proxy-Authenticate", b"Basic realm=\"affiant\"");
    }
    finish(&mut out, status, version, Delivery::Length(content.len() as u64), ours);
    if with_content {
        out.extend_from_slice(content.as_bytes());
    }
    out
}

/// A response of our own to a call of gRPC: its status alone, in the head (Trailers-Only), because a caller
/// that finds another status of HTTP makes one of gRPC from it that says "repeat this" of a call that may
/// have been processed (contract E-1).
pub(crate) fn status_alone(
    status: u16,
    version: Version,
    envelope: &Envelope,
    ours: &Ours<'_>,
    now_ms: u64,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    start(&mut out, 200, b"OK");
    line(&mut out, b"Content-Type", b"application/grpc");
    let code = grpc::code_of(status, ours.verdict) as u8;
    line(&mut out, b"grpc-status", code.to_string().as_bytes());
    line(&mut out, b"grpc-message", grpc::message(&envelope.error.message).as_bytes());
    let wait_ms = envelope.error.not_before_ms.map(|at| at.saturating_sub(now_ms));
    if let Some(pushback) = grpc::pushback(ours.verdict, wait_ms) {
        line(&mut out, b"grpc-retry-pushback-ms", pushback.to_string().as_bytes());
    }
    finish(&mut out, 200, version, Delivery::Length(0), ours);
    out
}

/// The reason phrase of a status.
pub(crate) fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()).unwrap_or("")
}

/// A response of the control API.
pub(crate) fn own(
    response: &http::Response<bytes::Bytes>,
    version: Version,
    keep_alive: bool,
    bodiless: bool,
) -> Vec<u8> {
    let status = response.status().as_u16();
    let mut out = Vec::with_capacity(512 + response.body().len());
    start(&mut out, status, reason(status).as_bytes());
    for (name, value) in response.headers() {
        if name != http::header::CONTENT_LENGTH && name != http::header::CONNECTION {
            line(&mut out, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    if !response.headers().contains_key("proxy-status") {
        let internal = Status { error: Some("proxy_internal_response"), ..Status::default() };
        line(&mut out, b"Proxy-Status", render::proxy_status(&internal).as_bytes());
    }
    // The answer to HEAD says the length that GET would, or none (RFC 9110 section 8.6).
    let declared = response.headers().get(http::header::CONTENT_LENGTH);
    if let Some(length) = declared.filter(|_| bodiless) {
        line(&mut out, b"Content-Length", length.as_bytes());
    } else if !bodiless {
        line(&mut out, b"Content-Length", response.body().len().to_string().as_bytes());
    }
    if !keep_alive {
        line(&mut out, b"Connection", b"close");
    } else if version == Version::Http10 {
        line(&mut out, b"Connection", b"keep-alive");
    }
    out.extend_from_slice(b"\r\n");
    if !bodiless {
        out.extend_from_slice(response.body());
    }
    out
}
