//! Small words to write cases with.

use super::{Case, Family, Identity, MARK, Peer, Shape, Then, Truth};
use crate::http::{Opening, Step};
use crate::http2::Step as Frame;
use journal::contract::Code;
use std::sync::Arc;

/// Content of a response that is held.
pub(super) const HELD: &str = "{\"result\":\"0123456789\"}";
/// Content of a response that is streamed.
pub(super) const EVENTS: &str = "data: tick\n\ndata: tock\n\n";

/// The content of this shape's response.
pub(super) const fn content(shape: &Shape) -> &'static str {
    if shape.streamed { EVENTS } else { HELD }
}

/// What a caller gets of it.
pub(super) fn seen_content(shape: &Shape) -> String {
    if shape.bodied() { content(shape).to_owned() } else { String::new() }
}

/// Bytes to send.
pub(super) fn send(text: impl Into<String>) -> Step {
    Step::Send(text.into().into())
}

/// A status line, the common fields, more field lines, and the empty line.
pub(super) fn head(shape: &Shape, status: u16, more: &str) -> String {
    let kind = if shape.streamed { "text/event-stream" } else { "application/json" };
    format!("HTTP/1.1 {status} Scripted\r\n{MARK}: 1\r\nContent-Type: {kind}\r\n{more}\r\n")
}

/// A head with the length of the shape's content.
pub(super) fn length_head(shape: &Shape, status: u16, more: &str) -> String {
    head(shape, status, &format!("Content-Length: {}\r\n{more}", content(shape).len()))
}

/// One chunk.
pub(super) fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// The shape's content in two halves.
pub(super) fn halves(shape: &Shape) -> (&'static str, &'static str) {
    content(shape).split_at(content(shape).len() / 2)
}

/// Reads the request, applies the effect, then takes the steps.
pub(super) fn applied(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [Step::ReadBody, Step::Apply].into_iter().chain(steps).collect()
}

pub(super) fn served(steps: Vec<Step>) -> Peer {
    Peer {
        listens: true,
        opening: Opening::Serve,
        identity: Identity::Trusted,
        steps,
        frames: Vec::new(),
        then: Then::Serves,
    }
}

/// The same on a connection of HTTP/2.
pub(super) fn on_streams(frames: Vec<Frame>) -> Peer {
    Peer { frames, ..served(Vec::new()) }
}

pub(super) const fn open(codes: &'static [Code], head: bool) -> Truth {
    Truth::Open { codes, head }
}

pub(super) fn settled(shape: &Shape, status: u16) -> Truth {
    Truth::Settled { status, retry_after: false, content: seen_content(shape) }
}

/// The table under construction.
pub(super) struct Table {
    pub(super) family: Family,
    pub(super) cases: Vec<Case>,
}

impl Table {
    pub(super) const fn new(family: Family) -> Self {
        Self { family, cases: Vec::new() }
    }

    /// A case, for every shape that [`Case::applies`] to by default: buffered only.
    pub(super) fn case(
        &mut self,
        name: &str,
        rule: &'static str,
        script: impl Fn(&Shape) -> Peer + Send + Sync + 'static,
        truth: impl Fn(&Shape) -> Truth + Send + Sync + 'static,
    ) -> &mut Case {
        let case = Case {
            name: name.to_owned(),
            family: self.family,
            rule,
            request_bytes: 11,
            script: Arc::new(script),
            truth: Arc::new(truth),
            applies: Arc::new(|shape| !shape.streamed),
        };
        self.cases.push_mut(case)
    }

    /// A case of steps after the request was read.
    pub(super) fn steps(
        &mut self,
        name: &str,
        rule: &'static str,
        steps: impl Fn(&Shape) -> Vec<Step> + Send + Sync + 'static,
        truth: impl Fn(&Shape) -> Truth + Send + Sync + 'static,
    ) -> &mut Case {
        self.case(name, rule, move |shape| served(steps(shape)), truth)
    }

    /// A case of steps on a stream.
    pub(super) fn frames(
        &mut self,
        name: &str,
        rule: &'static str,
        frames: impl Fn(&Shape) -> Vec<Frame> + Send + Sync + 'static,
        truth: impl Fn(&Shape) -> Truth + Send + Sync + 'static,
    ) -> &mut Case {
        self.case(name, rule, move |shape| on_streams(frames(shape)), truth)
    }
}

impl Case {
    /// Restricts the shapes further.
    pub(super) fn only(
        &mut self,
        filter: impl Fn(&Shape) -> bool + Send + Sync + 'static,
    ) -> &mut Self {
        let before = Arc::clone(&self.applies);
        self.applies = Arc::new(move |shape| before(shape) && filter(shape));
        self
    }

    /// Also for streamed responses.
    pub(super) fn streamed_too(&mut self) -> &mut Self {
        self.applies = Arc::new(|shape| shape.bodied() || !shape.streamed);
        self
    }

    /// Only where a response has content on the wire; streamed too.
    pub(super) fn bodied(&mut self) -> &mut Self {
        self.applies = Arc::new(Shape::bodied);
        self
    }

    /// With that much request content, for methods that carry any.
    pub(super) fn content_bytes(&mut self, bytes: usize) -> &mut Self {
        self.request_bytes = bytes;
        self.only(|shape| shape.method.has_content())
    }
}
