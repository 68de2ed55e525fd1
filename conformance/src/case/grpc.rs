//! The cases of gRPC: the status in the trailers settles a call, the 200 of HTTP does not
//! (contract S-9).

use super::table::Table;
use super::{Case, Family, MARK, Shape, Truth};
use crate::http2::Step;
use journal::contract::Code;

/// What ends without a status: an incomplete result, or a protocol that was not kept.
const NO_STATUS: &[Code] = &[Code::RemoteResultIncomplete, Code::RemoteProtocolError];
const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const MESSAGE: &str = "\0\0\0\0\u{5}hello";

pub(super) fn cases() -> Vec<Case> {
    let mut table = Table::new(Family::Grpc);
    settled(&mut table);
    unsettled(&mut table);
    table.cases
}

fn fields(lines: &[(&str, &str)]) -> Vec<(String, String)> {
    lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn head(more: &[(&str, &str)], end: bool) -> Step {
    let mut lines = fields(&[(&MARK.to_ascii_lowercase(), "1")]);
    lines.push(("content-type".to_owned(), "application/grpc+proto".to_owned()));
    lines.extend(fields(more));
    Step::Head { status: 200, fields: lines, end }
}

fn message(end: bool) -> Step {
    Step::Data { content: MESSAGE.into(), end }
}

fn applied(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [Step::ReadBody, Step::Apply].into_iter().chain(steps).collect()
}

fn status(code: u8) -> Step {
    let code = code.to_string();
    Step::Lines { fields: fields(&[("grpc-status", &code), ("grpc-message", "m")]), end: true }
}

fn streamed(shape: &Shape) -> bool {
    shape.streamed
}

fn settled(t: &mut Table) {
    let told = |status: u8, content: &'static str| {
        move |_: &Shape| Truth::Grpc { status, content: content.to_owned() }
    };
    for code in 0..=16 {
        let steps = move |_: &Shape| applied([head(&[], false), message(false), status(code)]);
        t.frames(&format!("status_{code}"), "S-9 S-3", steps, told(code, MESSAGE))
            .streamed_too()
            .only(streamed);
        let steps = move |_: &Shape| {
            let code = code.to_string();
            applied([head(&[("grpc-status", &code), ("grpc-message", "m")], true)])
        };
        t.frames(&format!("status_{code}_alone"), "S-9 S-3", steps, told(code, ""));
    }
    let many = |_: &Shape| {
        applied(
            [head(&[], false)]
                .into_iter()
                .chain((0..50).map(|_| message(false)))
                .chain([status(0)]),
        )
    };
    let all = |_: &Shape| Truth::Grpc { status: 0, content: MESSAGE.repeat(50) };
    t.frames("many_messages", "S-9", many, all).streamed_too().only(streamed);
    let early = |_: &Shape| vec![Step::Apply, head(&[("grpc-status", "16")], true)];
    t.frames("refused_unread", "S-9 S-3", early, told(16, ""));
    let reset_after =
        |_: &Shape| applied([head(&[], false), message(false), status(0), Step::ResetStream(0)]);
    t.frames("status_then_reset", "S-9; RFC 9113 section 8.1", reset_after, told(0, MESSAGE))
        .streamed_too()
        .only(streamed);
}

fn unsettled(t: &mut Table) {
    let cut = |_: &Shape| Truth::Open { codes: NO_STATUS, head: true };
    let rule = "S-9 S-2";
    let mut streams = |name: &str, steps: Vec<Step>| {
        t.frames(name, rule, move |_| applied(steps.clone()), cut).streamed_too().only(streamed);
    };
    streams("ended_without_status", vec![head(&[], false), message(true)]);
    streams("ended_at_once", vec![head(&[], true)]);
    let other = Step::Lines { fields: fields(&[("x-sum", "1")]), end: true };
    streams("trailers_without_status", vec![head(&[], false), message(false), other]);
    let odd = Step::Lines { fields: fields(&[("grpc-status", "ok")]), end: true };
    streams("status_not_a_number", vec![head(&[], false), message(false), odd]);
    streams("reset_after_message", vec![head(&[], false), message(false), Step::ResetStream(2)]);
    streams(
        "cancelled_after_message",
        vec![head(&[], false), message(false), Step::ResetStream(8)],
    );
    streams("closed_after_message", vec![head(&[], false), message(false), Step::Close]);
    streams("closed_after_head", vec![head(&[], false), Step::Close]);
    // A reset of the transport may overtake the frames before it.
    let overtaken = |_: &Shape| {
        let lost = Truth::Open { codes: LOST, head: false };
        Truth::Either(vec![Truth::Open { codes: NO_STATUS, head: true }, lost])
    };
    let broken = |_: &Shape| applied([head(&[], false), message(false), Step::Reset]);
    t.frames("broken_after_message", rule, broken, overtaken).streamed_too().only(streamed);
    let lost = |_: &Shape| Truth::Open { codes: LOST, head: false };
    t.frames("closed_unanswered", "C-3 D-1", |_| applied([Step::Close]), lost);
    t.frames("reset_unanswered", "C-3 D-1", |_| applied([Step::ResetStream(2)]), lost);
    let refused = |_: &Shape| vec![Step::ResetStream(7)];
    t.frames("refused_stream", "C-6; RFC 9113 section 8.7", refused, |_| Truth::Refused);
    let worked = |_: &Shape| {
        applied([Step::Head { status: 103, fields: Vec::new(), end: false }, Step::ResetStream(7)])
    };
    t.frames("refused_stream_after_an_interim", "C-6 S-5", worked, lost);
    // A gateway in front of the service: its word of HTTP settles.
    for code in [403, 502, 503] {
        let steps = move |_: &Shape| {
            let lines = [(MARK.to_ascii_lowercase(), "1".to_owned())].into();
            applied([Step::Head { status: code, fields: lines, end: true }])
        };
        let truth = move |_: &Shape| Truth::Settled {
            status: code,
            retry_after: false,
            content: String::new(),
        };
        t.frames(&format!("http_{code}"), "S-9 S-3", steps, truth);
    }
}
