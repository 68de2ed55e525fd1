//! The exchange after dispatch: the request goes out, the response comes in, is recorded, and goes
//! to the caller.
//!
//! ```text
//!  wait for head ──► hold ──► commit ──► deliver      (up to `hold_bytes`, see `hold`)
//!                     └─────► stream (stored beside) ──► commit ──► trailers
//! ```
//!
//! A held response leaves only after its record is durable (contract R-1). A streamed one says
//! `unknown` in its head and carries the outcome in its trailers (contract E-4); when it breaks, it
//! is broken off visibly (contract S-2). When the caller goes away, the response is read to its end
//! all the same (contract D-4).

use crate::access::{Caller, LOOK, Looks};
use crate::deliver::{self, Delivery, Outbound};
use crate::engine::Prepared;
use crate::grpc;
use crate::head::{Fields, Response, Version};
use crate::hops;
use crate::proxy::Shared;
use crate::record::{is_event_stream, remote_request_id};
use crate::redact::Redactor;
use crate::respond::Broken;
use crate::upstream::exchange::{self, Piece, Received, Receiver, Sender};
use crate::websocket::Opening;
use bytes::Bytes;
use journal::Call;
use journal::contract::{Completion, Operation, RequestSent, ResponseStarted};
use policy::HttpGrant;
use sha2::{Digest as _, Sha256};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};
use upload::Unsent;

mod access;
mod hold;
mod hop;
mod keep;
mod search;
mod settle;
pub(crate) mod upload;

use hold::Wait;
use search::Search;

/// How long a response is waited for after the request could not be written in full.
const EARLY_RESPONSE: Duration = Duration::from_secs(3);
/// Content read for a caller that went away, at most.
const UNATTENDED_BYTES: u64 = 256 << 20;

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
    /// On record, be it as a result or as a hop's answer, and nothing of it can be delivered: it holds the
    /// credential where it can't be replaced (contract I-4). The coding that is in the way, where it has a name.
    Withheld(Option<&'static str>),
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
    /// Whether the caller was cut because its access ended.
    access_over: bool,
    held: Vec<Bytes>,
    held_bytes: usize,
    kept_bytes: u64,
    received: u64,
    digest: Sha256,
    search: Search,
    /// Bytes that a streamed response still owes of the length that it declared.
    owed: Option<u64>,
    /// The piece that makes that length whole. It waits for the record (contract R-1).
    last: Bytes,
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
    /// The WebSocket that the request asks for.
    pub(crate) opening: Option<&'a Opening>,
    pub(crate) next_hop: &'a str,
    /// Whether an upstream proxy answers for the origin, in clear text.
    pub(crate) through_parent: bool,
    pub(crate) pseudonym: &'a str,
    /// Whether the response comes in frames.
    pub(crate) in_frames: bool,
    pub(crate) hold_bytes: usize,
    /// Whether a refusal that may be tried again later is kept from the caller.
    pub(crate) hold_refusal: bool,
    pub(crate) redactor: &'a mut Redactor,
    /// Counts what left of the request.
    pub(crate) progress: &'a AtomicU64,
    /// For what is put on record beside the call.
    pub(crate) shared: &'a Shared,
    pub(crate) prepared: &'a Prepared,
    /// Whose access it rests on; an attempt without a caller has none.
    pub(crate) caller: Option<Caller<'a>>,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        Self {
            parts,
            seen_progress: 0,
            sending: true,
            down: Down::Untouched,
            access_over: false,
            held: Vec::new(),
            held_bytes: 0,
            kept_bytes: 0,
            received: 0,
            digest: Sha256::new(),
            search: Search::Plain,
            owed: None,
            last: Bytes::new(),
        }
    }

    /// Runs the exchange to its end.
    pub(crate) async fn run(
        &mut self,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Ended {
        // Nothing that was not redacted goes on from here, to the record either (contract I-4).
        let shared = self.parts.shared;
        let head = tokio::select! {
            biased;
            head = self.head(upload.as_mut(), receiver) => head,
            () = shared.cut_off() => Err(Broken::Stopped),
        };
        let head = match head {
            Ok(Received::Switched(head)) => return self.switched(head),
            Ok(Received::Final(head) | Received::Interim(head)) => self.parts.redactor.head(head),
            Err(error) => return self.broken(error),
        };
        let head = self.readable(head);
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
        let content = tokio::select! {
            biased;
            content = self.content(&head, upload, receiver) => content,
            () = shared.cut_off() => Err(Broken::Stopped),
        };
        match content {
            Ok((completion, trailers)) => {
                let head = self.true_head(head);
                let trailers = self.true_trailers(trailers);
                self.settle(&head, completion, &trailers).await
            }
            Err(error) => self.broken(error),
        }
    }

    /// Records an upgrade. What follows belongs to nobody here.
    fn switched(&mut self, head: Response) -> Ended {
        if self.access_over {
            return self.broken(Broken::AccessOver);
        }
        if self.sending {
            return self.broken(Broken::Receive { error: exchange::Error::Switched, begun: true });
        }
        let head = self.parts.redactor.head(head);
        let head = self.readable(head);
        let started = ResponseStarted {
            status: Some(head.status),
            remote_request_id: remote_request_id(&head.fields),
        };
        match self.parts.call.response_started(started) {
            Ok(()) => Ended::Switched(head),
            Err(error) => self.broken(Broken::NotStored(error)),
        }
    }

    /// The head without a `Proxy-Status` that nobody can read, ours behind it included.
    fn readable(&mut self, mut head: Response) -> Response {
        if hops::drop_unreadable(&mut head.fields) {
            self.parts
                .call
                .note("proxy_status_unreadable", "the origin's is no list, and left out");
        }
        head
    }

    fn broken(&self, error: Broken) -> Ended {
        let is_cut = self.access_over && matches!(error, Broken::Unattended);
        let error = if is_cut { Broken::AccessOver } else { error };
        let begun = matches!(self.down, Down::Streaming(_) | Down::Gone);
        Ended::Broken { error, begun, length_bytes: self.received }
    }

    /// Waits for the final response's head while the request goes out.
    async fn head(
        &mut self,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Result<Received, Broken> {
        let patience = self.parts.grant.limits.response_timeout;
        let mut deadline = Instant::now() + patience;
        let wake = sleep_until(deadline.min(Instant::now() + LOOK));
        tokio::pin!(wake);
        let mut unsent = None;
        loop {
            tokio::select! {
                biased;
                sent = upload.as_mut(), if self.sending => {
                    self.sending = false;
                    // The origin may have answered before it stopped reading.
                    unsent = self.sent(sent)?;
                    let patience = if unsent.is_none() { patience } else { EARLY_RESPONSE };
                    deadline = Instant::now() + patience;
                    wake.as_mut().reset(deadline.min(Instant::now() + LOOK));
                }
                head = receiver.head(self.parts.method, self.parts.opening) => match head {
                    Ok(Received::Interim(head)) => self.interim(head).await,
                    Ok(head) => return Ok(head),
                    Err(
                        error @ (exchange::Error::NotProcessed
                        | exchange::Error::Certificate(_)
                        | exchange::Error::Unsent),
                    ) => return Err(Broken::Receive { error, begun: false }),
                    Err(error) => {
                        let begun = receiver.has_bytes();
                        return Err(match unsent {
                            // What broke the protocol broke the writing as well, and is the cause.
                            Some(unsent) if !begun && !error.is_malformed() => Broken::Send(unsent),
                            Some(_) | None => Broken::Receive { error, begun },
                        });
                    }
                },
                () = &mut wake => {
                    let now = Instant::now();
                    if now < deadline {
                        self.look()?;
                    } else if unsent.is_none() && self.has_progressed() {
                        deadline = now + patience;
                    } else {
                        let silent =
                            if self.sending { Broken::WriteTimeout } else { Broken::ResponseTimeout };
                        return Err(unsent.map_or(silent, Broken::Send));
                    }
                    wake.as_mut().reset(deadline.min(now + LOOK));
                }
            }
        }
    }

    /// Passes an interim response on; it settles nothing (contract S-5), and neither does a caller that does not
    /// take it: nothing of the response was due yet. A 100 answers what this proxy asked or answered itself,
    /// and stays.
    async fn interim(&mut self, head: Response) {
        let head = self.parts.redactor.head(head);
        if head.status != 100
            && self.parts.version == Version::Http11
            && let Err(error) = self.parts.out.send(&deliver::interim(&head)).await
        {
            tracing::debug!(%error, "a caller did not take an interim response");
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
            Err(Unsent::Access) => Err(Broken::AccessOver),
        }
    }

    /// Reads the content to its proven end.
    async fn content(
        &mut self,
        head: &Response,
        mut upload: Pin<&mut impl Future<Output = Result<RequestSent, Unsent>>>,
        receiver: &mut Receiver,
    ) -> Result<(Completion, Fields), Broken> {
        // A success that begins before its request ended: the caller may wait for it before it sends more.
        let begins = (200..300).contains(&head.status) && !grpc::is_status_alone(head);
        let two_way = self.sending && begins;
        if is_event_stream(head) || grpc::streams(head) || two_way {
            self.begin_streaming(head).await?;
        }
        let limits = &self.parts.grant.limits;
        let mut wait = Wait::new(limits, self.streams_soon(head));
        let mut looks = Looks::default();
        loop {
            match self.down {
                Down::Gone => wait.leave(limits),
                Down::Streaming(_) => wait.takes_on(),
                Down::Untouched => {}
            }
            if self.access_over {
                wait.leave(limits);
            }
            let piece = tokio::select! {
                biased;
                sent = upload.as_mut(), if self.sending => {
                    self.sending = false;
                    self.sent(sent)?;
                    wait.go_on(limits);
                    continue;
                }
                piece = timeout_at(wait.until(), receiver.next()) => piece,
            };
            let Ok(piece) = piece else {
                self.waited(head, &mut wait).await?;
                continue;
            };
            match piece.map_err(|error| Broken::Receive { error, begun: true })? {
                Piece::End(completion, trailers) => {
                    self.search_end(head).await?;
                    let mut trailers = self.parts.redactor.fields(trailers);
                    if hops::drop_unreadable(&mut trailers) {
                        let why = "the one in the origin's trailers is no list, and left out";
                        self.parts.call.note("proxy_status_unreadable", why);
                    }
                    return Ok((completion, trailers));
                }
                Piece::Data(data) => {
                    self.received += data.len() as u64;
                    self.digest.update(&data);
                    let much = wait.is_unattended() && self.received > UNATTENDED_BYTES;
                    if much || wait.is_over() {
                        return Err(Broken::Unattended);
                    }
                    if !self.access_over && looks.find_over(self.parts.caller) {
                        self.access_ends()?;
                    }
                    self.searched(head, data).await?;
                    wait.hold_back(self.holds_back());
                    wait.go_on(limits);
                }
            }
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
