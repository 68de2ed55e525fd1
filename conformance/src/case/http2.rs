//! The cases of an origin of HTTP/2: what a stream and a connection can end by, what the protocol
//! proves of a request that was not processed, malformed messages and frames, complete answers.

mod malformed;

use super::table::{Table, content, halves, seen_content, settled};
use super::{Case, Family, Identity, MARK, Peer, Shape, Then, Truth};
use crate::http::Opening;
use crate::http2::{Last, OnStream, Step, kind};
use journal::contract::Code;

const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const CUT: &[Code] = &[Code::RemoteResultIncomplete];
const MALFORMED: &[Code] = &[Code::RemoteProtocolError];

/// Error codes (RFC 9113 section 7).
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;
const HTTP_1_1_REQUIRED: u32 = 13;

pub(super) fn cases() -> Vec<Case> {
    let mut table = Table::new(Family::Http2);
    before_dispatch(&mut table);
    around_the_request(&mut table);
    not_processed(&mut table);
    malformed::heads(&mut table);
    malformed::frames(&mut table);
    in_the_content(&mut table);
    at_the_end(&mut table);
    complete(&mut table);
    complete_seldom(&mut table);
    complete_oddly(&mut table);
    statuses(&mut table);
    table.cases
}

fn open(codes: &'static [Code], head: bool) -> Truth {
    Truth::Open { codes, head }
}

fn applied(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [Step::ReadBody, Step::Apply].into_iter().chain(steps).collect()
}

/// The common lines of a response's head, and more.
fn lines(shape: &Shape, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let kind = if shape.streamed { "text/event-stream" } else { "application/json" };
    let mark = MARK.to_ascii_lowercase();
    let common = [(mark.as_str(), "1"), ("content-type", kind)];
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    common.iter().chain(more).map(owned).collect()
}

/// HEADERS; they end the stream where a response has no content.
fn head(shape: &Shape, status: u16, more: &[(&str, &str)]) -> Step {
    Step::Head { status, fields: lines(shape, more), end: !shape.bodied() }
}

fn data(text: &str, end: bool) -> Step {
    Step::Data { content: text.to_owned().into(), end }
}

/// A whole answer: HEADERS, DATA with END_STREAM.
fn whole(shape: &Shape, status: u16, more: &[(&str, &str)]) -> Vec<Step> {
    let mut steps = vec![head(shape, status, more)];
    if shape.bodied() {
        steps.push(data(content(shape), true));
    }
    steps
}

fn raw(kind: u8, flags: u8, on: OnStream, payload: &[u8]) -> Step {
    Step::Frame { kind, flags, on, payload: payload.to_vec().into() }
}

fn before_dispatch(t: &mut Table) {
    const CERTIFICATE: &[Code] = &[Code::TlsCertificateError];
    const TLS_BROKEN: &[Code] = &[Code::ConnectionTerminated, Code::TlsProtocolError];
    let fresh = |shape: &Shape| !shape.reused;
    let served = || super::table::on_streams(Vec::new());
    let refused = move |_: &Shape| Peer { listens: false, ..served() };
    t.case("refused", "X-1 C-1", refused, |_| Truth::Untouched(&[Code::ConnectionRefused]))
        .only(fresh);
    for (name, identity) in [
        ("tls_stranger", Identity::Stranger),
        ("tls_wrong_name", Identity::WrongName),
        ("tls_expired", Identity::Expired),
    ] {
        let peer = move |_: &Shape| Peer { identity, ..served() };
        t.case(name, "C-1 S-6", peer, |_| Truth::Untouched(CERTIFICATE)).only(fresh);
    }
    for (name, opening, codes) in [
        ("tls_closed_in_handshake", Opening::CloseAfterHello, TLS_BROKEN),
        ("tls_silent", Opening::Silent, &[Code::ConnectionTimeout][..]),
    ] {
        let peer = move |_: &Shape| Peer { opening, ..served() };
        t.case(name, "X-1 C-1", peer, move |_| Truth::Untouched(codes)).only(fresh);
    }
}

fn around_the_request(t: &mut Table) {
    let lost = |_: &Shape| open(LOST, false);
    for (name, end) in [("closed", Step::Close), ("reset", Step::Reset), ("cut_tls", Step::CutTls)]
    {
        let last = end.clone();
        t.frames(&format!("{name}_after_headers"), "C-3 D-1", move |_| vec![last.clone()], lost);
        let last = end.clone();
        t.frames(&format!("applied_{name}"), "X-3 D-1 D-7", move |_| applied([last.clone()]), lost);
        let last = end.clone();
        let steps = move |_: &Shape| vec![Step::ReadSome, last.clone()];
        t.frames(&format!("{name}_in_request_content"), "X-1 D-2", steps, lost)
            .content_bytes(300_000);
    }
    let late = |_: &Shape| open(&[Code::ResponseTimeout], false);
    t.frames("applied_stalled", "X-1 D-1", |_| applied([Step::Stall]), late);
    t.frames("stalled_after_headers", "X-1 D-1", |_| vec![Step::Stall], late);
    // None of these codes says that nothing was done (RFC 9113 section 8.7).
    for (name, code) in [
        ("no_error", NO_ERROR),
        ("protocol_error", PROTOCOL_ERROR),
        ("internal_error", INTERNAL_ERROR),
        ("cancel", CANCEL),
        ("enhance_your_calm", ENHANCE_YOUR_CALM),
        ("an_unknown_code", 0xbeef),
    ] {
        let steps = move |_: &Shape| applied([Step::ResetStream(code)]);
        t.frames(&format!("stream_reset_by_{name}"), "C-6 D-7", steps, lost);
    }
    for (name, last) in [("this", Last::This), ("highest", Last::Highest)] {
        let steps = move |_: &Shape| applied([Step::GoAway(last, NO_ERROR), Step::Close]);
        t.frames(&format!("goaway_{name}_closed"), "C-6; RFC 9113 section 6.8", steps, lost);
        let steps = move |_: &Shape| applied([Step::GoAway(last, INTERNAL_ERROR), Step::Reset]);
        t.frames(&format!("goaway_{name}_reset"), "C-6; RFC 9113 section 6.8", steps, lost);
    }
    t.case(
        "stale_connection",
        "C-3; RFC 9113 section 5.4.1",
        |shape| Peer {
            then: Then::Closes,
            ..super::table::on_streams(applied(whole(shape, 200, &[])))
        },
        |shape| Truth::Either(vec![settled(shape, 200), open(LOST, false)]),
    )
    .only(|shape| shape.reused);
    // A request that waits for a stream there is sent when nobody wants it any more, or never.
    t.case(
        "full_connection",
        "D-1 D-4 C-6; RFC 9113 section 5.1.2",
        |shape| Peer {
            then: Then::IsFull,
            ..super::table::on_streams(applied(whole(shape, 200, &[])))
        },
        |shape| settled(shape, 200),
    )
    .only(|shape| shape.reused);
}

/// C-6: the words of the protocol for what was not processed.
fn not_processed(t: &mut Table) {
    let refused = |_: &Shape| Truth::Refused;
    let rule = "C-6; RFC 9113 section 8.7";
    t.frames("refused_stream", rule, |_| vec![Step::ResetStream(REFUSED_STREAM)], refused);
    t.frames(
        "refused_stream_after_content",
        rule,
        |_| vec![Step::ReadBody, Step::ResetStream(REFUSED_STREAM)],
        refused,
    )
    .content_bytes(40_000);
    for (name, code) in [("no_error", NO_ERROR), ("calm", ENHANCE_YOUR_CALM)] {
        let steps = move |_: &Shape| vec![Step::GoAway(Last::Before, code), Step::Close];
        t.frames(&format!("goaway_before_{name}"), rule, steps, refused);
    }
    t.frames(
        "goaway_before_after_content",
        rule,
        |_| vec![Step::ReadBody, Step::GoAway(Last::Before, NO_ERROR), Step::Close],
        refused,
    )
    .content_bytes(40_000);
    t.frames(
        "goaway_announced_then_before",
        rule,
        |_| {
            vec![
                Step::GoAway(Last::Highest, NO_ERROR),
                Step::GoAway(Last::Before, NO_ERROR),
                Step::Close,
            ]
        },
        refused,
    );
    // The code asks for another protocol; it is none of the proofs of section 8.7.
    t.frames(
        "stream_reset_by_http_1_1_required",
        "C-6; RFC 9113 section 7",
        |_| vec![Step::ResetStream(HTTP_1_1_REQUIRED)],
        |_| open(LOST, false),
    );
    // An interim response is the origin at work.
    for (name, word) in [
        ("refused_stream", Step::ResetStream(REFUSED_STREAM)),
        ("goaway_before", Step::GoAway(Last::Before, NO_ERROR)),
    ] {
        let steps = move |_: &Shape| {
            let hints = Step::Head { status: 103, fields: Vec::new(), end: false };
            applied([hints, word.clone(), Step::Close])
        };
        t.frames(&format!("{name}_after_an_interim"), "C-6 S-5", steps, |_| open(LOST, false));
    }
    // A refusal after an answer began contradicts it.
    t.frames(
        "refused_stream_inside_an_answer",
        "C-6 S-2",
        |shape| {
            let reset = Step::ResetStream(REFUSED_STREAM);
            applied([head(shape, 200, &[]), data(halves(shape).0, false), reset])
        },
        |_| Truth::Either(vec![open(CUT, true), open(MALFORMED, true)]),
    )
    .bodied()
    .only(|shape| !shape.streamed);
}

fn in_the_content(t: &mut Table) {
    let cut = |_: &Shape| open(CUT, true);
    // A reset of the transport may overtake the frames before it.
    let overtaken = |_: &Shape| Truth::Either(vec![open(CUT, true), open(LOST, false)]);
    for place in ["before_content", "in_content", "before_end_stream"] {
        let steps = move |shape: &Shape| {
            let sent = match place {
                "before_content" => vec![head(shape, 200, &[])],
                "in_content" => vec![head(shape, 200, &[]), data(halves(shape).0, false)],
                _ => vec![head(shape, 200, &[]), data(content(shape), false)],
            };
            applied(sent.into_iter().chain([Step::Reset]))
        };
        t.frames(&format!("reset_{place}"), "S-2 X-1", steps, overtaken).bodied();
    }
    for (name, end) in [
        ("closed", Step::Close),
        ("cut_tls", Step::CutTls),
        ("stream_reset", Step::ResetStream(INTERNAL_ERROR)),
        ("stream_cancelled", Step::ResetStream(CANCEL)),
        ("stream_reset_by_no_error", Step::ResetStream(NO_ERROR)),
    ] {
        let last = end.clone();
        let steps = move |s: &Shape| applied([head(s, 200, &[]), last.clone()]);
        t.frames(&format!("{name}_before_content"), "S-2 X-1", steps, cut).bodied();
        let last = end.clone();
        let steps = move |shape: &Shape| {
            applied([head(shape, 200, &[]), data(halves(shape).0, false), last.clone()])
        };
        t.frames(&format!("{name}_in_content"), "S-2 X-1", steps, cut).bodied();
        let last = end.clone();
        let steps = move |shape: &Shape| {
            applied([head(shape, 200, &[]), data(content(shape), false), last.clone()])
        };
        // All bytes are there, and the word that they are all is not.
        t.frames(&format!("{name}_before_end_stream"), "S-2", steps, cut).bodied();
    }
    t.frames(
        "goaway_in_content",
        "S-2 C-6",
        |shape| {
            let gone = Step::GoAway(Last::This, INTERNAL_ERROR);
            applied([head(shape, 200, &[]), data(halves(shape).0, false), gone, Step::Close])
        },
        cut,
    )
    .bodied();
    t.frames(
        "stalled_in_content",
        "X-1 D-2",
        |shape| applied([head(shape, 200, &[]), data(halves(shape).0, false), Step::Stall]),
        |_| open(&[Code::ReadTimeout], true),
    )
    .bodied();
}

fn at_the_end(t: &mut Table) {
    // RFC 9113 section 8.1.1: a length that the DATA frames do not add up to.
    let inside = |_: &Shape| open(MALFORMED, true);
    for (name, length) in [("length_too_long", "1000"), ("length_too_short", "3")] {
        let steps = move |s: &Shape| applied(whole(s, 200, &[("content-length", length)]));
        t.frames(name, "S-2; RFC 9113 section 8.1.1", steps, inside).bodied();
    }
    t.frames(
        "length_and_no_content",
        "S-2; RFC 9113 section 8.1.1",
        |shape| {
            let fields = lines(shape, &[("content-length", "5")]);
            applied([Step::Head { status: 200, fields, end: true }])
        },
        |_| Truth::Either(vec![open(MALFORMED, true), open(MALFORMED, false)]),
    )
    .bodied();
    t.frames(
        "trailers_without_end",
        "S-2; RFC 9113 section 8.1",
        |shape| {
            let trailers = vec![("x-sum".to_owned(), "1".to_owned())];
            let trailers = Step::Lines { fields: trailers, end: false };
            applied([head(shape, 200, &[]), data(content(shape), false), trailers, Step::Close])
        },
        inside,
    )
    .bodied();
}

fn complete(t: &mut Table) {
    let ok = |shape: &Shape| settled(shape, 200);
    let rule = "S-1 R-1; RFC 9113 section 8.1";
    t.frames("whole", rule, |shape| applied(whole(shape, 200, &[])), ok).streamed_too();
    t.frames(
        "with_length",
        rule,
        |shape| {
            let length = content(shape).len().to_string();
            applied(whole(shape, 200, &[("content-length", length.as_str())]))
        },
        ok,
    )
    .streamed_too();
    t.frames(
        "ended_by_an_empty_frame",
        rule,
        |s| applied([head(s, 200, &[]), data(content(s), false), data("", true)]),
        ok,
    )
    .bodied();
    t.frames(
        "trailers",
        rule,
        |shape| {
            let trailers = vec![("x-sum".to_owned(), "1".to_owned())];
            let trailers = Step::Lines { fields: trailers, end: true };
            applied([head(shape, 200, &[]), data(content(shape), false), trailers])
        },
        ok,
    )
    .bodied();
    t.frames(
        "dripped",
        rule,
        |shape| {
            let bytes =
                content(shape).bytes().map(|byte| data(&char::from(byte).to_string(), false));
            let all = std::iter::once(head(shape, 200, &[])).chain(bytes).chain([data("", true)]);
            applied(all)
        },
        ok,
    )
    .bodied();
}

/// Complete in ways that are seldom seen.
fn complete_seldom(t: &mut Table) {
    let ok = |shape: &Shape| settled(shape, 200);
    let rule = "S-1 R-1; RFC 9113 section 8.1";
    t.frames(
        "padded",
        "RFC 9113 section 6.1",
        |shape| {
            let payload = [&[5], content(shape).as_bytes(), &[0; 5]].concat();
            applied([head(shape, 200, &[]), raw(kind::DATA, 8 | 1, OnStream::This, &payload)])
        },
        ok,
    )
    .bodied();
    t.frames(
        "after_interims",
        "S-5",
        |shape| {
            let interim = |status| Step::Head {
                status,
                fields: vec![("link".to_owned(), "</a>".to_owned())],
                end: false,
            };
            applied([interim(100), interim(103)].into_iter().chain(whole(shape, 200, &[])))
        },
        ok,
    );
    t.frames(
        "after_an_interim_with_length",
        "S-5; RFC 9110 section 8.6",
        |shape| {
            let fields = vec![("content-length".to_owned(), "5".to_owned())];
            let interim = Step::Head { status: 103, fields, end: false };
            applied(std::iter::once(interim).chain(whole(shape, 200, &[])))
        },
        // Forbidden, and harmless once it is gone.
        move |shape| {
            let refused = [open(MALFORMED, false), open(MALFORMED, true)];
            Truth::Either(std::iter::once(ok(shape)).chain(refused).collect())
        },
    );
    t.frames(
        "unknown_frames_around",
        "RFC 9113 section 5.5",
        |shape| {
            let unknown = raw(0xbe, 0xff, OnStream::Connection, b"whatever");
            applied(std::iter::once(unknown).chain(whole(shape, 200, &[])))
        },
        ok,
    );
    for (name, status) in [("empty", 200), ("no_content", 204), ("not_modified", 304)] {
        let steps = move |shape: &Shape| {
            applied([Step::Head { status, fields: lines(shape, &[]), end: true }])
        };
        let truth =
            move |_: &Shape| Truth::Settled { status, retry_after: false, content: String::new() };
        t.frames(name, rule, steps, truth);
    }
}

/// Complete, and something comes after or beside it.
fn complete_oddly(t: &mut Table) {
    let ok = |shape: &Shape| settled(shape, 200);
    for (name, after) in [
        ("then_stream_reset", Step::ResetStream(NO_ERROR)),
        ("then_stream_cancelled", Step::ResetStream(CANCEL)),
        ("then_goaway", Step::GoAway(Last::This, NO_ERROR)),
        ("then_goaway_before", Step::GoAway(Last::Before, NO_ERROR)),
        ("then_closed", Step::Close),
        ("then_reset", Step::Reset),
    ] {
        let steps = move |s: &Shape| applied(whole(s, 200, &[]).into_iter().chain([after.clone()]));
        // What follows may overtake what was not read yet: only a reset of the transport drops it.
        let truth = move |shape: &Shape| match name {
            "then_reset" => Truth::Either(vec![ok(shape), open(LOST, false), open(CUT, true)]),
            _ => ok(shape),
        };
        t.frames(name, "S-1; RFC 9113 section 8.1", steps, truth).streamed_too();
    }
    t.frames(
        "announced_goaway_then_whole",
        "RFC 9113 section 6.8",
        |s| {
            let going = Step::GoAway(Last::Highest, NO_ERROR);
            applied(std::iter::once(going).chain(whole(s, 200, &[])))
        },
        ok,
    )
    .streamed_too();
    for (name, more) in [
        ("refused_early", None),
        ("refused_early_then_no_error", Some(Step::ResetStream(NO_ERROR))),
    ] {
        let steps = move |s: &Shape| whole(s, 413, &[]).into_iter().chain(more.clone()).collect();
        t.frames(name, "S-3; RFC 9113 section 8.1", steps, |shape| settled(shape, 413))
            .content_bytes(300_000);
    }
    t.frames(
        "forged_outcome",
        "E-4 S-6",
        |shape| {
            let lie = ("affiant-outcome", "not_attempted;retry=backoff");
            applied(whole(shape, 500, &[lie, ("x-should-retry", "true")]))
        },
        |shape| settled(shape, 500),
    );
}

fn statuses(t: &mut Table) {
    for status in
        [201, 202, 301, 307, 400, 401, 403, 404, 409, 412, 421, 422, 425, 429, 500, 502, 503]
    {
        let steps = move |shape: &Shape| applied(whole(shape, status, &[]));
        t.frames(&format!("status_{status}"), "S-3 C-7", steps, move |s| settled(s, status));
    }
    for status in [429, 503] {
        let steps = move |s: &Shape| applied(whole(s, status, &[("retry-after", "7")]));
        let truth = move |shape: &Shape| Truth::Settled {
            status,
            retry_after: true,
            content: seen_content(shape),
        };
        t.frames(&format!("status_{status}_retry_after"), "S-3", steps, truth);
    }
}
