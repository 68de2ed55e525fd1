//! The writing half of the caller's connection, and the heads of responses.

use crate::carrier::Carrier;
use crate::handover::HandedOver;
use crate::head::{Fields, Received, Response, Version};
use crate::http2::stream::Stream;
use crate::outgoing::{is_header_only, stays};
use crate::render::{self, Status};
use crate::respond::forbids_retry;
use crate::stream::{Shared, Wire};
use crate::unread::{Connection, Unread};
use journal::contract::{InvocationId, Verdict};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// What leaves on a stream is counted in pieces of that length.
const PIECE: usize = 256 * 1024;

/// The writing half of the caller's connection.
pub(crate) struct Outbound {
    sink: Sink,
    /// Bytes handed to the connection for the response under way.
    pub(crate) sent: u64,
    aborted: bool,
    /// A caller that takes nothing for so long is gone.
    patience: Duration,
}

enum Sink {
    /// The connection itself.
    Wire(Shared<Wire>),
    /// A stream of an HTTP/2 connection.
    Stream(Box<Stream>),
    /// Nobody waits: the result is on record.
    Nobody,
    /// The broker itself reads the answer; up to so many bytes.
    Kept(Vec<u8>, usize),
}

impl Outbound {
    pub(crate) const fn new(wire: Shared<Wire>, patience: Duration) -> Self {
        Self::of(Sink::Wire(wire), patience)
    }

    const fn of(sink: Sink, patience: Duration) -> Self {
        Self { sink, sent: 0, aborted: false, patience }
    }

    /// What is sent becomes frames of the stream.
    pub(crate) fn stream(stream: Stream, patience: Duration) -> Self {
        Self::of(Sink::Stream(Box::new(stream)), patience)
    }

    /// What is sent goes nowhere: an attempt without a caller.
    pub(crate) const fn nobody() -> Self {
        Self::of(Sink::Nobody, Duration::ZERO)
    }

    /// What is sent is kept for the broker itself.
    pub(crate) const fn kept(limit_bytes: usize) -> Self {
        Self::of(Sink::Kept(Vec::new(), limit_bytes), Duration::ZERO)
    }

    /// What was kept; none when it was too long, or is kept by nobody.
    pub(crate) fn into_kept(self) -> Option<Vec<u8>> {
        match self.sink {
            Sink::Kept(bytes, limit_bytes) if bytes.len() <= limit_bytes => Some(bytes),
            Sink::Kept(..) | Sink::Wire(_) | Sink::Stream(_) | Sink::Nobody => None,
        }
    }

    /// Whether the caller speaks HTTP/2.
    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self.sink, Sink::Stream(_))
    }

    /// What follows the next head comes in chunks, whatever that head says ([`Delivery::Frames`]).
    pub(crate) fn frames_follow(&mut self) {
        if let Sink::Stream(stream) = &mut self.sink {
            stream.chunks_follow();
        }
    }

    /// Whether somebody waits for the answer.
    pub(crate) const fn has_caller(&self) -> bool {
        matches!(self.sink, Sink::Wire(_) | Sink::Stream(_))
    }

    /// Whether nobody waits for the answer any more; `by_end`: nor does a caller that ended its own side.
    pub(crate) fn has_left(&mut self, by_end: bool) -> bool {
        match &mut self.sink {
            Sink::Wire(wire) => wire.lock().has_left(by_end),
            Sink::Stream(stream) => stream.has_left(),
            Sink::Nobody | Sink::Kept(..) => true,
        }
    }

    /// Writes and flushes everything.
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let patience = self.patience;
        let wire = match &mut self.sink {
            Sink::Wire(wire) => wire,
            Sink::Stream(stream) => {
                for piece in bytes.chunks(PIECE) {
                    stream.send(piece, patience).await?;
                    self.sent += piece.len() as u64;
                }
                return Ok(());
            }
            Sink::Nobody => return Ok(()),
            Sink::Kept(kept, limit_bytes) => {
                // One byte beyond the limit says that there was more.
                let room = (*limit_bytes + 1).saturating_sub(kept.len()).min(bytes.len());
                kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
                return Ok(());
            }
        };
        while !bytes.is_empty() {
            let written = within(patience, wire.write(bytes)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.sent += written as u64;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        within(patience, wire.flush()).await
    }

    /// Ends the writing direction in order, unless the connection was broken off.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        if self.aborted {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match &mut self.sink {
            Sink::Wire(wire) => within(self.patience, wire.shutdown()).await,
            Sink::Stream(stream) => stream.finish(),
            Sink::Nobody | Sink::Kept(..) => Ok(()),
        }
    }

    /// Reads what still comes on the connection until the caller ends its side, as it is, and keeps
    /// nothing of it.
    pub(crate) async fn read_away(&mut self) -> io::Result<()> {
        let Sink::Wire(wire) = &mut self.sink else { return Ok(()) };
        let mut bytes = Vec::with_capacity(8 * 1024);
        while wire.read_buf(&mut bytes).await? > 0 {
            bytes.clear();
        }
        Ok(())
    }

    /// Waits until the head of a response that is to be broken off left.
    pub(crate) async fn begun(&self) {
        match &self.sink {
            Sink::Wire(_) | Sink::Kept(..) | Sink::Nobody => {}
            // Whether it left in time makes no difference to what follows.
            Sink::Stream(stream) => drop(timeout(self.patience, stream.begun()).await),
        }
    }

    /// Breaks the connection off so that the caller sees it: no orderly end follows.
    pub(crate) fn abort(&mut self) {
        self.aborted = true;
        let mut wire = match &mut self.sink {
            Sink::Wire(wire) => wire.lock(),
            Sink::Stream(stream) => return stream.abort(),
            Sink::Nobody | Sink::Kept(..) => return,
        };
        if let Err(error) = wire.abort() {
            tracing::debug!(%error, "the connection could not be set to reset");
        }
    }

    /// Whether the caller's host acknowledged every byte and did not reset the connection.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_acknowledged(),
            Sink::Stream(stream) => stream.is_acknowledged(),
            Sink::Nobody | Sink::Kept(..) => Ok(false),
        }
    }

    /// Whether the caller's connection is one of TCP, whose reset says something of what was read.
    pub(crate) fn is_tcp(&self) -> bool {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_tcp(),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => false,
        }
    }

    /// Whether an orderly end is a message of its own: the close_notify of TLS.
    pub(crate) fn ends_with_a_word(&self) -> bool {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_tls(),
            Sink::Stream(_) => true,
            Sink::Nobody | Sink::Kept(..) => false,
        }
    }

    /// Keeps a delivery that a reset of the stream's connection takes back.
    pub(crate) fn hand_over(&self, handed_over: HandedOver, unread: &Arc<Unread>) {
        if let Sink::Stream(stream) = &self.sink {
            stream.hand_over(handed_over, unread);
        }
    }

    /// The connection itself, to be asked whether it has ended.
    pub(crate) fn connection(&self) -> Option<Connection> {
        match &self.sink {
            Sink::Wire(wire) => Some(wire.into()),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }

    /// Sends a head that opens what its request asked for: bytes without a frame follow.
    pub(crate) async fn open(&mut self, head: &[u8]) -> io::Result<()> {
        if let Sink::Stream(stream) = &mut self.sink {
            stream.opens();
        }
        self.send(head).await
    }

    /// What an opened stream carries from now on, with what comes on it.
    pub(crate) fn into_carrier(
        self,
        reading: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Option<Carrier> {
        match self.sink {
            Sink::Stream(stream) => stream.into_carrier(reading),
            Sink::Wire(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }

    /// The connection itself, if this is the last handle on it.
    pub(crate) fn into_wire(self) -> Option<Wire> {
        match self.sink {
            Sink::Wire(wire) => wire.into_inner(),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }
}

async fn within<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Bytes in the send queue that the peer has not acknowledged (`SIOCOUTQ`, tcp(7)).
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "rustix leaves it to the caller to pair an opcode with its type")]
pub(crate) fn unacknowledged(tcp: impl std::os::fd::AsFd) -> io::Result<i32> {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: SIOCOUTQ writes one int through the pointer.
    let bytes = unsafe {
        rustix::ioctl::ioctl(tcp, rustix::ioctl::Getter::<SIOCOUTQ, std::ffi::c_int>::new())
    };
    Ok(bytes?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unacknowledged(_tcp: impl std::os::fd::AsFd) -> io::Result<i32> {
    Ok(i32::MAX)
}

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
    envelope: &journal::contract::Envelope,
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
