//! What is held of a response, until when, and what the wait for its content goes by.

use super::{Down, Relay, Search};
use crate::access::LOOK;
use crate::deliver::Delivery;
use crate::head::{self, Framing, Response, Version, is_bodiless};
use crate::pump::HOLD;
use crate::respond::Broken;
use bytes::Bytes;
use journal::contract::{Code, Verdict, after_unknown};
use policy::Limits;
use tokio::time::Instant;

/// What the wait for the next piece of content ends by.
pub(super) struct Wait {
    idle: Instant,
    /// When a held response begins to stream.
    hold: Option<Instant>,
    look: Instant,
    /// When a few bytes that may begin the credential go on to a caller that may wait for them.
    release: Option<Instant>,
    /// When it is over for a caller that went away.
    unattended: Option<Instant>,
    /// Whether only the end of the caller's own side says that it went away.
    is_guess: bool,
}

/// What the time has come for.
enum Due {
    Nothing,
    Idle,
    Unattended,
    Stream,
    Release,
    Look,
}

impl Wait {
    /// From the head on; `streams`: the response is not held for longer than the route says.
    pub(super) fn new(limits: &Limits, streams: bool) -> Self {
        let now = Instant::now();
        Self {
            idle: now + limits.idle_timeout,
            hold: streams.then(|| now + limits.hold_time),
            look: now + LOOK,
            release: None,
            unattended: None,
            is_guess: false,
        }
    }

    /// The origin, or the request on its way to it, made progress.
    pub(super) fn go_on(&mut self, limits: &Limits) {
        self.idle = Instant::now() + limits.idle_timeout;
    }

    /// The caller went away: from here on there is a bound on the whole (contract D-4).
    pub(super) fn leave(&mut self, limits: &Limits) {
        self.unattended.get_or_insert_with(|| Instant::now() + limits.response_timeout);
    }

    /// The caller is sent something, and takes it: writing tells from now on.
    pub(super) const fn takes_on(&mut self) {
        if self.is_guess {
            self.unattended = None;
            self.is_guess = false;
        }
    }

    pub(super) const fn is_unattended(&self) -> bool {
        self.unattended.is_some()
    }

    /// Whether the time of a caller that went away is over.
    pub(super) fn is_over(&self) -> bool {
        self.unattended.is_some_and(|until| Instant::now() >= until)
    }

    /// Content came; `holds`: a few bytes of it are held back from a caller that is sent the others.
    pub(super) fn hold_back(&mut self, holds: bool) {
        self.release = holds.then(|| Instant::now() + HOLD);
    }

    pub(super) fn until(&self) -> Instant {
        let others = [Some(self.idle), self.hold, self.release, self.unattended];
        others.into_iter().flatten().fold(self.look, Instant::min)
    }

    fn due(&mut self) -> Due {
        let now = Instant::now();
        if self.is_over() {
            Due::Unattended
        } else if now >= self.idle {
            Due::Idle
        } else if self.hold.is_some_and(|until| now >= until) {
            self.hold = None;
            Due::Stream
        } else if self.release.is_some_and(|until| now >= until) {
            self.release = None;
            Due::Release
        } else if now >= self.look {
            self.look = now + LOOK;
            Due::Look
        } else {
            Due::Nothing
        }
    }
}

impl Relay<'_> {
    /// Whether the response begins to stream before its end is there. Held to its end is what is read as
    /// a whole, what may be tried again or encoded anew as long as nobody has a part of it, and what says
    /// itself that its end is near: that keeps its length, and its outcome in its head.
    pub(super) fn streams_soon(&self, head: &Response) -> bool {
        let parts = &self.parts;
        let job = parts.grant.job.as_ref().is_some_and(|rule| rule.accepts(head.status));
        let framing = head::response_framing(head, parts.method);
        let hold_bytes = u64::try_from(parts.hold_bytes).unwrap_or(u64::MAX);
        let is_short = matches!(framing, Ok(Framing::Length(length)) if length <= hold_bytes);
        parts.out.has_caller()
            && matches!(self.search, Search::Plain)
            && !(parts.hold_refusal || job || parts.grant.batch.is_some() || is_short)
    }

    /// Does what the time has come for, where no content came.
    pub(super) async fn waited(&mut self, head: &Response, wait: &mut Wait) -> Result<(), Broken> {
        let limits = &self.parts.grant.limits;
        match wait.due() {
            Due::Nothing => Ok(()),
            Due::Idle if !wait.is_unattended() && self.has_progressed() => {
                wait.go_on(limits);
                Ok(())
            }
            Due::Idle => Err(Broken::ReadTimeout),
            Due::Unattended => Err(Broken::Unattended),
            Due::Stream if matches!(self.down, Down::Untouched) => self.begin_streaming(head).await,
            Due::Stream => Ok(()),
            Due::Release => {
                let few = self.parts.redactor.release();
                self.pass(head, few).await
            }
            Due::Look => {
                self.look()?;
                // To a caller that gets something, writing tells; it may have ended its own side.
                let held = matches!(self.down, Down::Untouched);
                if !wait.is_unattended() && self.parts.out.has_left(held) {
                    wait.is_guess = held;
                    wait.leave(limits);
                }
                Ok(())
            }
        }
    }

    /// Holds or streams a piece.
    pub(super) async fn pass(&mut self, head: &Response, data: Bytes) -> Result<(), Broken> {
        if data.is_empty() {
            return Ok(());
        }
        if !matches!(self.down, Down::Untouched) {
            self.keep(&data).await;
            self.stream(data).await;
            return Ok(());
        }
        self.held_bytes += data.len();
        crate::pieces::push(&mut self.held, data);
        if self.held_bytes > self.parts.hold_bytes {
            self.begin_streaming(head).await?;
        }
        Ok(())
    }

    /// Sends the head with the outcome still open, and what was held.
    pub(super) async fn begin_streaming(&mut self, head: &Response) -> Result<(), Broken> {
        if is_bodiless(self.parts.method, head.status) {
            return Ok(());
        }
        let altered = self.is_altered().then(|| self.true_head(head.clone()));
        let head = altered.as_ref().unwrap_or(head);
        let delivery = self.streamed(head);
        if delivery == Delivery::Close {
            self.parts.keep_alive = false;
        }
        self.keep_head(head).await;
        let retry = after_unknown(self.parts.operation, self.parts.shared.journal.latest_ms());
        let verdict = Verdict::unknown(retry, Code::InFlight);
        let bytes = self.response_head(head, verdict, delivery);
        self.down = Down::Streaming(delivery);
        if delivery == Delivery::Frames {
            self.parts.out.frames_follow();
        }
        self.owed = match (delivery, head::response_framing(head, self.parts.method)) {
            (Delivery::Frames | Delivery::AsDeclared, Ok(Framing::Length(length))) => Some(length),
            _ => None,
        };
        if self.parts.out.send(&bytes).await.is_err() {
            self.down = Down::Gone;
        }
        for piece in std::mem::take(&mut self.held) {
            self.keep(&piece).await;
            self.stream(piece).await;
        }
        self.held_bytes = 0;
        Ok(())
    }

    /// How a response goes on whose end is not there yet. Its length stays true where nothing is encoded anew,
    /// and stays in the head where it leaves room for trailers, or where there are none: of HTTP/1.1 only
    /// chunks have trailers (contract E-4).
    fn streamed(&self, head: &Response) -> Delivery {
        let framing = head::response_framing(head, self.parts.method);
        let is_declared =
            matches!(framing, Ok(Framing::Length(_))) && matches!(self.search, Search::Plain);
        match self.parts.version {
            Version::Http10 if is_declared => Delivery::AsDeclared,
            Version::Http10 => Delivery::Close,
            Version::Http11 if is_declared && self.parts.out.is_stream() => Delivery::Frames,
            Version::Http11 => Delivery::Chunked,
        }
    }

    async fn stream(&mut self, data: Bytes) {
        if let Some(owed) = &mut self.owed {
            *owed = owed.saturating_sub(data.len() as u64);
            if *owed == 0 {
                // A caller that goes by the length would have all of it before the record has.
                self.last = data;
                return;
            }
        }
        let sent = match self.down {
            Down::Streaming(Delivery::Chunked | Delivery::Frames) => {
                self.parts.out.send(&crate::deliver::chunk(&data)).await
            }
            Down::Streaming(_) => self.parts.out.send(&data).await,
            Down::Untouched | Down::Gone => return,
        };
        if sent.is_err() {
            self.down = Down::Gone;
        }
    }
}
