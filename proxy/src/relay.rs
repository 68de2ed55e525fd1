//! The exchange after dispatch: the request goes out, the response comes in, is recorded, and goes
//! to the caller.
//!
//! ```text
//!  wait for head ──► hold ──► commit ──► deliver                 (up to `hold_bytes`)
//!                     └─────► stream (stored beside) ──► commit ──► trailers
//! ```
//!
//! A held response leaves only after its record is durable (contract R-1). A streamed one says
//! `unknown` in its head and carries the outcome in its trailers (contract E-4); when it breaks, it
//! is broken off visibly (contract S-2). When the caller goes away, the response is read to its end
//! all the same (contract D-4).

use crate::batch;
use crate::deliver::{self, Delivery, Ours, Outbound};
use crate::engine::Prepared;
use crate::engine::{BACKOFF_MS, now_ms};
use crate::grpc;
use crate::head::{Fields, Framing, Response, Version};
use crate::hops;
use crate::incoming::{self, Incoming};
use crate::job;
use crate::outgoing;
use crate::proxy::Shared;
use crate::record::{is_event_stream, remote_request_id, retry_after, stored_head};
use crate::redact::Redactor;
use crate::render::Status;
use crate::respond::Broken;
use crate::upstream::exchange::{self, Piece, Received, Receiver, Sender};
use bytes::Bytes;
use journal::contract::{
    Code, Completion, Digest, KeepResult, Operation, Outcome, RequestSent, ResponseComplete,
    ResponseStarted, Retry, Verdict, after_unknown, settle_http,
};
use journal::{Call, Settled, Stream};
use policy::HttpGrant;
use policy::recipe::ChunkSigner;
use sha2::{Digest as _, Sha256};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

mod hop;
mod search;

use search::Search;

/// How long a response is waited for after the request could not be written in full.
const EARLY_RESPONSE: Duration = Duration::from_secs(3);
/// Content read for a caller that went away, at most.
const UNATTENDED_BYTES: u64 = 256 << 20;

/// Why the request did not leave in full.
pub(crate) enum Unsent {
    Origin(io::Error),
    Caller(incoming::Error),
    Limit,
}

/// What the request may not exceed.
pub(crate) struct Bounds<'a> {
    /// Content bytes at most.
    pub(crate) limit_bytes: u64,
    /// What of trailers does not go on, beside what never does.
    pub(crate) grant: &'a HttpGrant,
}

/// The content of a request on its way.
pub(crate) struct Content {
    pub(crate) framing: Framing,
    /// What was read ahead.
    pub(crate) ahead: Vec<Bytes>,
    /// What changes all of it.
    pub(crate) chunks: Option<ChunkSigner>,
}

/// Sends head, content and trailers.
pub(crate) async fn upload(
    sender: &mut Sender,
    incoming: &mut Incoming,
    head: Zeroizing<Vec<u8>>,
    content: Content,
    bounds: &Bounds<'_>,
    progress: &AtomicU64,
) -> Result<RequestSent, Unsent> {
    let Content { framing, mut ahead, mut chunks } = content;
    for piece in &mut ahead {
        *piece = signed(&mut chunks, std::mem::take(piece))?;
    }
    sender.head(head, framing, &ahead).await.map_err(Unsent::Origin)?;
    drop(ahead);
    progress.fetch_add(1, Ordering::Relaxed);
    while let Some(piece) = incoming.next().await.map_err(Unsent::Caller)? {
        if incoming.length() > bounds.limit_bytes {
            return Err(Unsent::Limit);
        }
        let piece = signed(&mut chunks, piece)?;
        if !piece.is_empty() {
            sender.content(&piece).await.map_err(Unsent::Origin)?;
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
    if chunks.is_some_and(|chunks| chunks.finish().is_err()) {
        return Err(Unsent::Caller(incoming::Error::Malformed));
    }
    let trailers = outgoing::trailers(incoming.trailers(), bounds.grant);
    sender.finish(&trailers).await.map_err(Unsent::Origin)?;
    let (length_bytes, digest) = incoming.so_far();
    Ok(RequestSent { length_bytes, digest })
}

/// The piece as it leaves; content that was to be in signed chunks and is not ends the request.
fn signed(chunks: &mut Option<ChunkSigner>, piece: Bytes) -> Result<Bytes, Unsent> {
    let Some(chunks) = chunks else { return Ok(piece) };
    let signed = chunks.push(&piece).map_err(|_| Unsent::Caller(incoming::Error::Malformed))?;
    Ok(Bytes::from(signed))
}

/// What became of the caller's side.
enum Down {
    /// Nothing of the response was sent yet.
    Untouched,
    Streaming(Delivery),
    Gone,
}

/// How the exchange ended.
pub(crate) enum Ended {
    /// On record; the caller has it, or `delivered` says that it does not.
    Settled {
        /// Whether the caller's connection took the whole response.
        delivered: bool,
        /// Whether the response leaves that connection usable.
        keep: bool,
    },
    /// A hop between here and the origin answered for its own failure (contract C-8). The caller has
    /// that answer; it is no result.
    Answered {
        /// Whether the caller's connection can go on.
        keep: bool,
    },
    /// On record as refused, and nothing of the response was sent: it may be tried again first.
    Refused,
    /// On record, and nothing of it can be delivered: it holds the credential where it can't be
    /// replaced (contract I-4).
    Withheld,
    /// The connection was upgraded; the exchange has no end of its own any more.
    Switched(Response),
    /// No deciding result. `begun`: the caller has a part of the response.
    Broken { error: Broken, begun: bool, length_bytes: u64 },
}

/// One exchange under way.
pub(crate) struct Relay<'a> {
    parts: Parts<'a>,
    seen_progress: u64,
    /// Whether the request is still going out.
    sending: bool,
    down: Down,
    held: Vec<Bytes>,
    held_bytes: usize,
    kept_bytes: u64,
    received: u64,
    digest: Sha256,
    search: Search,
}

/// What an exchange works with.
pub(crate) struct Parts<'a> {
    pub(crate) call: &'a mut Call,
    pub(crate) out: &'a mut Outbound,
    pub(crate) grant: &'a HttpGrant,
    pub(crate) operation: &'a Operation,
    pub(crate) method: &'a str,
    pub(crate) version: Version,
    pub(crate) keep_alive: bool,
    /// Whether the request asks for a WebSocket.
    pub(crate) upgrade: bool,
    pub(crate) next_hop: &'a str,
    /// Whether an upstream proxy answers for the origin, in clear text.
    pub(crate) through_parent: bool,
    pub(crate) pseudonym: &'a str,
    pub(crate) hold_bytes: usize,
    /// Whether a refusal that may be tried again later is kept from the caller.
    pub(crate) hold_refusal: bool,
    pub(crate) redactor: &'a mut Redactor,
    /// Counts what left of the request.
    pub(crate) progress: &'a AtomicU64,
    /// For what is put on record beside the call.
    pub(crate) shared: &'a Shared,
    pub(crate) prepared: &'a Prepared,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        Self {
            parts,
            seen_progress: 0,
            sending: true,
            down: Down::Untouched,
            held: Vec::new(),
            held_bytes: 0,
            kept_bytes: 0,
            received: 0,
            digest: Sha256::new(),
            search: Search::Plain,
        }
    }

    /// Runs the exchange to its end.
    pub(crate) async fn run(
        &mut self,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Ended {
        // Nothing that was not redacted goes on from here, to the record either (contract I-4).
        let head = match self.head(upload.as_mut(), receiver).await {
            Ok(Received::Switched(head)) => return self.switched(head),
            Ok(Received::Final(head) | Received::Interim(head)) => self.parts.redactor.head(head),
            Err(error) => return self.broken(error),
        };
        if self.parts.through_parent && head.status == 407 {
            // By its meaning the hop's own word, whatever its content (RFC 9110 section 15.5.8).
            return self.broken(Broken::ParentAuth);
        }
        let started = ResponseStarted {
            status: Some(head.status),
            remote_request_id: remote_request_id(&head.fields),
        };
        if let Err(error) = self.parts.call.response_started(started) {
            return self.broken(Broken::NotStored(error));
        }
        self.search = self.search_in(&head);
        match self.content(&head, upload, receiver).await {
            Ok((completion, trailers)) => {
                let head = self.search.true_head(head);
                self.settle(&head, completion, &trailers).await
            }
            Err(error) => self.broken(error),
        }
    }

    /// Records an upgrade. What follows belongs to nobody here.
    fn switched(&mut self, head: Response) -> Ended {
        if self.sending || !matches!(self.down, Down::Untouched) {
            return self.broken(Broken::Receive { error: exchange::Error::Switched, begun: true });
        }
        let head = self.parts.redactor.head(head);
        let started = ResponseStarted {
            status: Some(head.status),
            remote_request_id: remote_request_id(&head.fields),
        };
        match self.parts.call.response_started(started) {
            Ok(()) => Ended::Switched(head),
            Err(error) => self.broken(Broken::NotStored(error)),
        }
    }

    fn broken(&self, error: Broken) -> Ended {
        let begun = matches!(self.down, Down::Streaming(_) | Down::Gone);
        Ended::Broken { error, begun, length_bytes: self.received }
    }

    /// Waits for the final response's head while the request goes out.
    async fn head(
        &mut self,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Result<Received, Broken> {
        let deadline = tokio::time::sleep(self.parts.grant.limits.response_timeout);
        tokio::pin!(deadline);
        let mut unsent = None;
        loop {
            tokio::select! {
                biased;
                sent = upload.as_mut(), if self.sending => {
                    self.sending = false;
                    deadline.as_mut().reset(Instant::now() + self.parts.grant.limits.response_timeout);
                    if let Some(error) = self.sent(sent)? {
                        // The origin may have answered before it stopped reading.
                        deadline.as_mut().reset(Instant::now() + EARLY_RESPONSE);
                        unsent = Some(error);
                    }
                }
                head = receiver.head(self.parts.method, self.parts.upgrade) => match head {
                    Ok(Received::Interim(head)) => self.interim(head).await,
                    Ok(head) => return Ok(head),
                    Err(error @ exchange::Error::NotProcessed) => {
                        return Err(Broken::Receive { error, begun: false });
                    }
                    Err(error) => {
                        return Err(match unsent {
                            Some(unsent) => Broken::Send(unsent),
                            None => Broken::Receive { error, begun: receiver.has_bytes() },
                        });
                    }
                },
                () = &mut deadline => {
                    if unsent.is_none() && self.has_progressed() {
                        deadline.as_mut().reset(Instant::now() + self.parts.grant.limits.response_timeout);
                        continue;
                    }
                    let silent =
                        if self.sending { Broken::WriteTimeout } else { Broken::ResponseTimeout };
                    return Err(unsent.map_or(silent, Broken::Send));
                }
            }
        }
    }

    /// Passes an interim response on; it settles nothing (contract S-5). A 100 answers what this
    /// proxy asked or answered itself, and stays.
    async fn interim(&mut self, head: Response) {
        let head = self.parts.redactor.head(head);
        if head.status != 100
            && self.parts.version == Version::Http11
            && matches!(self.down, Down::Untouched)
            && self.parts.out.send(&deliver::interim(&head)).await.is_err()
        {
            self.down = Down::Gone;
        }
    }

    /// Whether more of the request left since this was asked last.
    fn has_progressed(&mut self) -> bool {
        let now = self.parts.progress.load(Ordering::Relaxed);
        self.sending && std::mem::replace(&mut self.seen_progress, now) != now
    }

    /// Records what became of the request. `Some`: the origin took no more of it.
    fn sent(&mut self, sent: Result<RequestSent, Unsent>) -> Result<Option<io::Error>, Broken> {
        match sent {
            Ok(sent) => {
                self.parts.call.request_sent(sent).map(|()| None).map_err(Broken::NotStored)
            }
            Err(Unsent::Origin(error)) => {
                self.parts.keep_alive = false;
                Ok(Some(error))
            }
            Err(Unsent::Caller(error)) => Err(Broken::Caller(error)),
            Err(Unsent::Limit) => Err(Broken::PayloadLimit),
        }
    }

    /// Reads the content to its proven end.
    async fn content(
        &mut self,
        head: &Response,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Result<(Completion, Fields), Broken> {
        let mut unattended_until = None;
        if is_event_stream(head) || grpc::streams(head) {
            self.begin_streaming(head).await?;
        }
        loop {
            let idle = Instant::now() + self.parts.grant.limits.idle_timeout;
            if matches!(self.down, Down::Gone) && unattended_until.is_none() {
                unattended_until = Some(Instant::now() + self.parts.grant.limits.response_timeout);
            }
            let deadline = unattended_until.map_or(idle, |until| idle.min(until));
            let piece = tokio::select! {
                biased;
                sent = upload.as_mut(), if self.sending => {
                    self.sending = false;
                    self.sent(sent)?;
                    continue;
                }
                piece = timeout_at(deadline, receiver.next()) => piece,
            };
            if piece.is_err() && unattended_until.is_none() && self.has_progressed() {
                continue;
            }
            let piece = piece.map_err(|_| Broken::ReadTimeout)?;
            match piece.map_err(|error| Broken::Receive { error, begun: true })? {
                Piece::End(completion, trailers) => {
                    self.search_end(head).await?;
                    return Ok((completion, self.parts.redactor.fields(trailers)));
                }
                Piece::Data(data) => {
                    self.received += data.len() as u64;
                    self.digest.update(&data);
                    let late = unattended_until.is_some_and(|until| Instant::now() >= until);
                    if late || (unattended_until.is_some() && self.received > UNATTENDED_BYTES) {
                        return Err(Broken::Unattended);
                    }
                    self.searched(head, data).await?;
                }
            }
        }
    }

    /// Holds or streams a piece.
    async fn pass(&mut self, head: &Response, data: Bytes) -> Result<(), Broken> {
        if data.is_empty() {
            return Ok(());
        }
        if !matches!(self.down, Down::Untouched) {
            self.keep(&data).await;
            self.stream(&data).await;
            return Ok(());
        }
        self.held_bytes += data.len();
        self.held.push(data);
        if self.held_bytes > self.parts.hold_bytes {
            self.begin_streaming(head).await?;
        }
        Ok(())
    }

    /// Sends the head with the outcome still open, and what was held.
    async fn begin_streaming(&mut self, head: &Response) -> Result<(), Broken> {
        let delivery = if self.parts.method == "HEAD" || matches!(head.status, 204 | 304) {
            return Ok(());
        } else if self.parts.version == Version::Http10 {
            self.parts.keep_alive = false;
            Delivery::Close
        } else {
            Delivery::Chunked
        };
        self.keep_head(head).await;
        let retry = after_unknown(self.parts.operation, now_ms());
        let verdict = Verdict::unknown(retry, Code::InFlight);
        let bytes = self.response_head(head, verdict, delivery);
        self.down = Down::Streaming(delivery);
        if self.parts.out.send(&bytes).await.is_err() {
            self.down = Down::Gone;
        }
        for piece in std::mem::take(&mut self.held) {
            self.keep(&piece).await;
            self.stream(&piece).await;
        }
        self.held_bytes = 0;
        Ok(())
    }

    async fn stream(&mut self, data: &[u8]) {
        let sent = match self.down {
            Down::Streaming(Delivery::Chunked) => self.parts.out.send(&deliver::chunk(data)).await,
            Down::Streaming(_) => self.parts.out.send(data).await,
            Down::Untouched | Down::Gone => return,
        };
        if sent.is_err() {
            self.down = Down::Gone;
        }
    }

    async fn keep_head(&mut self, head: &Response) {
        if self.parts.grant.keep != KeepResult::Full {
            return;
        }
        let text = match stored_head(head) {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
                return self.parts.call.discard_result();
            }
        };
        if let Err(error) = self.parts.call.store(Stream::Head, &text).await {
            tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
        }
    }

    async fn keep(&mut self, data: &[u8]) {
        if self.parts.grant.keep != KeepResult::Full
            || self.kept_bytes > self.parts.grant.keep_bytes
        {
            return;
        }
        self.kept_bytes += data.len() as u64;
        if self.kept_bytes > self.parts.grant.keep_bytes {
            self.parts.call.discard_result();
            self.parts.call.note("result_not_kept", "the content is longer than the route keeps");
            return;
        }
        if let Err(error) = self.parts.call.store(Stream::Content, data).await {
            tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
        }
    }

    /// Commits, then delivers (contract R-1).
    async fn settle(
        &mut self,
        head: &Response,
        completion: Completion,
        trailers: &Fields,
    ) -> Ended {
        let held = std::mem::take(&mut self.held);
        if matches!(self.down, Down::Untouched) {
            self.keep_head(head).await;
            for piece in &held {
                self.keep(piece).await;
            }
        }
        let said = hops::read(&head.fields);
        if let Some(doubt) = said.doubt(head.status) {
            return self.hop_failed(head, (&said, doubt), &held, (completion, trailers)).await;
        }
        let status = match grpc::settling_status(head, trailers) {
            Ok(status) => status,
            Err(grpc::NoStatus) => return self.broken(Broken::NoGrpcStatus),
        };
        let (shared, prepared) = (self.parts.shared, self.parts.prepared);
        let next_hop = self.parts.next_hop;
        shared.redirects.note(self.parts.call, &prepared.target, head);
        job::track(shared, self.parts.call, prepared, next_hop, head, &held).await;
        let at_ms = now_ms();
        let not_before = retry_after(&head.fields, at_ms);
        let verdict = settle_http(status, not_before, self.parts.operation, at_ms);
        let complete = ResponseComplete {
            completion,
            length_bytes: self.received,
            digest: Digest(self.digest.clone().finalize().into()),
            ssh_end: None,
            redacted: self.parts.redactor.found(),
        };
        batch::judge(self.parts.call, prepared, verdict, &held);
        let backoff = verdict.retry() == Retry::Backoff;
        let not_before = backoff.then(|| not_before.unwrap_or(at_ms + BACKOFF_MS));
        let settled = match self.parts.call.commit(complete, verdict, not_before).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, id = %self.parts.call.id(), "a result could not be recorded");
                return self.broken(Broken::NotStored(error));
            }
        };
        if self.search.is_withheld() && matches!(self.down, Down::Untouched) {
            return Ended::Withheld;
        }
        let refused = backoff && verdict.outcome() == Outcome::Rejected;
        if refused && self.parts.hold_refusal && matches!(self.down, Down::Untouched) {
            return Ended::Refused;
        }
        let delivered = self.finish(settled, head, &held, (completion, trailers)).await;
        Ended::Settled { delivered, keep: self.parts.keep_alive && !self.sending }
    }

    /// Brings the response to its end at the caller. Takes the proof that its record is durable.
    async fn finish(
        &mut self,
        settled: Settled,
        head: &Response,
        held: &[Bytes],
        (completion, trailers): (Completion, &Fields),
    ) -> bool {
        match self.down {
            Down::Untouched => self.deliver_held(settled, head, held, (completion, trailers)).await,
            Down::Streaming(Delivery::Chunked) => {
                let last = self.last_chunk(head, settled.verdict(), trailers);
                self.parts.out.send(&last).await.is_ok()
            }
            Down::Streaming(_) => true,
            Down::Gone => false,
        }
    }

    /// Delivers a held response. Takes the proof that its record is durable.
    async fn deliver_held(
        &mut self,
        settled: Settled,
        head: &Response,
        held: &[Bytes],
        (completion, trailers): (Completion, &Fields),
    ) -> bool {
        let verdict = settled.verdict();
        let length = held.iter().map(Bytes::len).sum::<usize>();
        let bodiless = self.parts.method == "HEAD" || matches!(head.status, 204 | 304);
        let delivery = if bodiless || head.fields.has("content-length") {
            Delivery::AsDeclared
        } else if (completion == Completion::Chunked || trailers.iter().next().is_some())
            && self.parts.version == Version::Http11
        {
            Delivery::HeldChunks
        } else {
            Delivery::Length(length as u64)
        };
        let mut bytes = self.response_head(head, verdict, delivery);
        if delivery == Delivery::HeldChunks {
            held.iter().for_each(|piece| bytes.extend_from_slice(&deliver::chunk(piece)));
            bytes.extend_from_slice(&deliver::last_chunk(trailers, None));
        } else {
            bytes.reserve_exact(length);
            held.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        self.parts.out.send(&bytes).await.is_ok()
    }

    fn response_head(&self, head: &Response, verdict: Verdict, delivery: Delivery) -> Vec<u8> {
        let ours = self.ours(verdict, head.status);
        deliver::head(head, self.parts.version, delivery, &ours)
    }

    fn last_chunk(&self, head: &Response, verdict: Verdict, trailers: &Fields) -> Vec<u8> {
        deliver::last_chunk(trailers, Some(&self.ours(verdict, head.status)))
    }

    fn ours(&self, verdict: Verdict, status: u16) -> Ours<'a> {
        Ours {
            verdict,
            id: self.parts.call.id(),
            replayed: false,
            status: Status {
                received_status: Some(status),
                next_hop: Some(self.parts.next_hop),
                ..Status::default()
            },
            // A caller that is still sending would send its next request into this content.
            keep_alive: self.parts.keep_alive && !self.sending,
            pseudonym: self.parts.pseudonym,
        }
    }
}

/// Puts the connection back where it can serve again, if the exchange left it sound.
pub(crate) fn give_back(
    pool: &crate::upstream::pool::Pool,
    key: crate::upstream::pool::Key,
    sender: Sender,
    receiver: Receiver,
) {
    if let Some(idle) = exchange::rejoin(sender, receiver) {
        pool.put(key, idle);
    }
}
