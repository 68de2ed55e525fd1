//! Messages and frames that nobody may take for good ones.

use super::{MALFORMED, applied, lines, open, raw, whole};
use crate::case::table::{Table, settled};
use crate::case::{Shape, Truth};
use crate::http2::{OnStream, Step, kind};

/// A message that is malformed is no answer (RFC 9113 section 8.1.1).
pub(super) fn heads(t: &mut Table) {
    let rule = "S-1 S-6; RFC 9113 section 8";
    let malformed = |_: &Shape| open(MALFORMED, false);
    let own = |lines: &[(&str, &str)], end: bool| {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Step::Lines { fields: lines.iter().map(owned).collect(), end }
    };
    for (name, lines) in [
        ("no_status", &[("x", "y")][..]),
        ("two_statuses", &[(":status", "200"), (":status", "200")]),
        ("status_not_a_number", &[(":status", "2oo")]),
        ("status_of_two_digits", &[(":status", "20")]),
        ("pseudo_field_last", &[("x", "y"), (":status", "200")]),
        ("upper_case_name", &[(":status", "200"), ("X-Upper", "y")]),
        ("nul_in_value", &[(":status", "200"), ("x", "a\0b")]),
        ("lf_in_value", &[(":status", "200"), ("x", "a\nb")]),
        ("unasked_switch", &[(":status", "101")]),
        ("status_999", &[(":status", "999")]),
    ] {
        let steps = move |_: &Shape| applied([own(lines, true)]);
        t.frames(name, rule, steps, malformed);
    }
    // Behind the head of HTTP/1.1 such content would be the next response.
    for (name, status) in [("no_content_with_data", 204), ("not_modified_with_data", 304)] {
        let steps = move |shape: &Shape| {
            let head = Step::Head { status, fields: lines(shape, &[]), end: false };
            let next = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
            applied([head, Step::Data { content: next.into(), end: true }])
        };
        let rule = "S-2 S-6; RFC 9110 section 6.4.1";
        t.frames(name, rule, steps, |_| open(MALFORMED, true)).only(Shape::bodied);
    }
    // The same of a pseudo field of requests, which libraries drop unseen.
    let pseudo = |shape: &Shape| {
        let mut all = vec![(":status".to_owned(), "200".to_owned())];
        all.push((":path".to_owned(), "/".to_owned()));
        all.extend(lines(shape, &[]));
        applied([Step::Lines { fields: all, end: true }])
    };
    t.frames("request_pseudo_field", "RFC 9113 section 8.3", pseudo, |_| {
        let empty = Truth::Settled { status: 200, retry_after: false, content: String::new() };
        Truth::Either(vec![empty, open(MALFORMED, false)])
    });
    // Forbidden, and harmless once it is gone: refusing the message or dropping the field is honest.
    let lenient = |shape: &Shape| Truth::Either(vec![settled(shape, 200), open(MALFORMED, false)]);
    for (name, field) in [
        ("connection_field", ("connection", "close")),
        ("transfer_encoding_field", ("transfer-encoding", "chunked")),
    ] {
        let steps = move |shape: &Shape| applied(whole(shape, 200, &[field]));
        t.frames(name, "RFC 9113 section 8.2.2", steps, lenient);
    }
    let huge = |_: &Shape| {
        let field = ("x-long".to_owned(), "x".repeat(200_000));
        applied([Step::Head { status: 200, fields: vec![field], end: true }])
    };
    t.frames("huge_head", rule, huge, malformed);
}

/// What breaks the connection below the messages.
pub(super) fn frames(t: &mut Table) {
    let broken = |_: &Shape| open(MALFORMED, false);
    let rule = "S-6 D-1; RFC 9113 section 5.4";
    let this = OnStream::This;
    let long = vec![0; (1 << 14) + 1];
    for (name, frame) in [
        ("not_http2", Step::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..].into())),
        ("frame_too_long", raw(kind::DATA, 0, this, &long)),
        ("data_before_head", raw(kind::DATA, 1, this, b"hello")),
        ("data_on_the_connection", raw(kind::DATA, 1, OnStream::Connection, b"hello")),
        ("head_on_no_stream", raw(kind::HEADERS, 5, OnStream::Unopened, &[0x88])),
        ("padding_longer_than_frame", raw(kind::HEADERS, 4 | 8, this, &[200, 0x88])),
        ("field_block_broken", raw(kind::HEADERS, 4 | 1, this, &[0xff, 0xff, 0xff, 0xff])),
        ("settings_of_five_bytes", raw(kind::SETTINGS, 0, OnStream::Connection, &[0; 5])),
        ("window_update_of_zero", raw(kind::WINDOW_UPDATE, 0, OnStream::Connection, &[0; 4])),
        (
            "window_over_the_limit",
            raw(kind::WINDOW_UPDATE, 0, OnStream::Connection, &[0x7f, 0xff, 0xff, 0xff]),
        ),
        ("push_that_was_refused", raw(kind::PUSH_PROMISE, 4, this, &[0, 0, 0, 2, 0x82])),
        ("continuation_of_nothing", raw(kind::CONTINUATION, 4, this, &[0x88])),
        ("reset_of_three_bytes", raw(kind::RST_STREAM, 0, this, &[0; 3])),
        ("goaway_on_a_stream", raw(kind::GOAWAY, 0, this, &[0; 8])),
    ] {
        let steps = move |_: &Shape| applied([frame.clone(), Step::Close]);
        t.frames(name, rule, steps, broken);
    }
    let endless = |_: &Shape| {
        let first = raw(kind::HEADERS, 0, OnStream::This, &[0x88]);
        let empty = raw(kind::CONTINUATION, 0, OnStream::This, &[]);
        // Whoever waits for its end waits for ever.
        let all = std::iter::once(first).chain(std::iter::repeat_n(empty, 5_000));
        applied(all.chain([Step::Stall]))
    };
    t.frames("endless_continuation", "D-1; RFC 9113 section 10.5", endless, broken);
    // A client may take any number of these; it may also call it a day.
    for (name, kind, length) in [("pings", kind::PING, 8), ("settings", kind::SETTINGS, 0)] {
        let steps = move |shape: &Shape| {
            let one = raw(kind, 0, OnStream::Connection, &vec![0; length]);
            applied(std::iter::repeat_n(one, 500).chain(whole(shape, 200, &[])))
        };
        let either =
            |shape: &Shape| Truth::Either(vec![settled(shape, 200), open(MALFORMED, false)]);
        t.frames(&format!("many_{name}"), "RFC 9113 section 10.5", steps, either);
    }
}
