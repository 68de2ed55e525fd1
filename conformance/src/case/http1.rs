//! The cases of HTTP/1.1: faults before dispatch, around the request, in the head, in the content,
//! and complete answers of every kind.

use super::table::{
    Table, applied, chunk, content, halves, head, length_head, open, seen_content, send, served,
    settled,
};
use super::{Case, Family, Identity, Peer, Shape, Then, Truth};
use crate::http::{Opening, Step};
use crate::peer::Way;
use journal::contract::Code;

const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const CUT: &[Code] = &[Code::RemoteResultIncomplete];
const MALFORMED: &[Code] = &[Code::RemoteProtocolError];
const NO_RESPONSE: &[Code] = &[Code::ResponseTimeout];
const NO_PROGRESS: &[Code] = &[Code::ReadTimeout];
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
const WHOLE: &str = "HTTP/1.1 200 Smuggled\r\nContent-Length: 4\r\n\r\nevil";

/// Every case.
pub(super) fn cases() -> Vec<Case> {
    let mut table = Table::new(Family::Http1);
    before_dispatch(&mut table);
    around_the_request(&mut table);
    in_the_head(&mut table);
    malformed_heads(&mut table);
    in_the_content(&mut table);
    stalled_in_the_content(&mut table);
    malformed_content(&mut table);
    complete(&mut table);
    complete_with_nothing(&mut table);
    complete_oddly(&mut table);
    statuses(&mut table);
    table.cases
}

fn opening(opening: Opening) -> impl Fn(&Shape) -> Peer {
    move |_| Peer { opening, ..served(Vec::new()) }
}

fn identity(identity: Identity) -> impl Fn(&Shape) -> Peer {
    move |_| Peer { identity, ..served(Vec::new()) }
}

fn before_dispatch(t: &mut Table) {
    let fresh = |shape: &Shape| !shape.reused;
    let fresh_tls = |shape: &Shape| shape.tls && !shape.reused;
    let refused = |_: &Shape| Peer { listens: false, ..served(Vec::new()) };
    let untouched = |codes| move |_: &Shape| Truth::Untouched(codes);
    const TLS_BROKEN: &[Code] = &[Code::ConnectionTerminated, Code::TlsProtocolError];
    const CERTIFICATE: &[Code] = &[Code::TlsCertificateError];
    t.case("refused", "X-1 C-1", refused, untouched(&[Code::ConnectionRefused])).only(fresh);
    for (name, shown) in [
        ("tls_stranger", Identity::Stranger),
        ("tls_wrong_name", Identity::WrongName),
        ("tls_expired", Identity::Expired),
    ] {
        t.case(name, "C-1 S-6", identity(shown), untouched(CERTIFICATE)).only(fresh_tls);
    }
    for (name, does, codes) in [
        ("tls_clear_text", Opening::ClearText, TLS_BROKEN),
        ("tls_closed_in_handshake", Opening::CloseAfterHello, TLS_BROKEN),
        ("tls_closed_at_once", Opening::GivesUp(Way::Close), TLS_BROKEN),
        ("tls_reset_at_once", Opening::GivesUp(Way::Reset), TLS_BROKEN),
        ("tls_silent", Opening::Silent, &[Code::ConnectionTimeout][..]),
    ] {
        t.case(name, "X-1 C-1", opening(does), untouched(codes)).only(fresh_tls);
    }
    // Nothing was read there; but without TLS the broker may have handed the request over already.
    for (name, does) in [("closed_at_once", Way::Close), ("reset_at_once", Way::Reset)] {
        let either = |_: &Shape| {
            Truth::Either(vec![
                open(LOST, false),
                Truth::Untouched(&[Code::ConnectionTerminated, Code::ConnectionRefused]),
            ])
        };
        t.case(name, "C-3 I-3", opening(Opening::GivesUp(does)), either)
            .only(|s| !s.tls && !s.reused);
    }
}

fn around_the_request(t: &mut Table) {
    let lost = |_: &Shape| open(LOST, false);
    let clear_fresh = |shape: &Shape| !shape.tls && !shape.reused;
    t.case("closed_in_request_head", "I-3 C-3", opening(Opening::CloseAfterHello), lost)
        .only(clear_fresh);
    t.case("silent", "D-1", opening(Opening::Silent), |_| open(NO_RESPONSE, false))
        .only(clear_fresh);
    for (name, end) in
        [("closed_after_request_head", Step::Close), ("reset_after_request_head", Step::Reset)]
    {
        t.steps(name, "C-3 D-1", move |_| vec![end.clone()], lost);
    }
    for (name, end) in
        [("closed_in_request_content", Step::CutTls), ("reset_in_request_content", Step::Reset)]
    {
        t.steps(name, "X-1 D-2", move |_| vec![Step::ReadBytes(4096), end.clone()], lost)
            .content_bytes(300_000);
    }
    for (name, end) in [("applied_closed", Step::Close), ("applied_reset", Step::Reset)] {
        t.steps(name, "X-3 D-1 D-7", move |_| applied([end.clone()]), lost);
    }
    t.steps("applied_cut_tls", "X-3 S-6", |_| applied([Step::CutTls]), lost).only(|s| s.tls);
    t.steps("applied_stalled", "X-1 D-1", |_| applied([Step::Stall]), |_| open(NO_RESPONSE, false));
    t.steps(
        "stalled_after_request_head",
        "X-1 D-1",
        |_| vec![Step::Stall],
        |_| open(NO_RESPONSE, false),
    );
    t.case(
        "stale_connection",
        "C-3; RFC 9112 section 9.3.1",
        |shape| Peer {
            then: Then::Closes,
            ..served(applied([send(length_head(shape, 200, "") + &seen_content(shape))]))
        },
        |shape| Truth::Either(vec![settled(shape, 200), open(LOST, false)]),
    )
    .only(|shape| shape.reused);
}

fn in_the_head(t: &mut Table) {
    for (name, text) in [
        ("cut_in_status_line", "HTTP/1.1 20"),
        ("cut_in_head", "HTTP/1.1 200 OK\r\nContent-Len"),
        ("cut_before_empty_line", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"),
    ] {
        t.steps(name, "X-1", move |_| applied([send(text), Step::Close]), |_| open(CUT, false));
        let reset = format!("{name}_by_reset");
        t.steps(&reset, "X-1", move |_| applied([send(text), Step::Reset]), |_| open(CUT, false));
    }
    // What is interim settles nothing, and it is no part of the response that was waited for.
    const INTERIM: &[Code] = &[Code::RemoteOutcomeUnknown, Code::RemoteResultIncomplete];
    for (name, line) in [("after_100", "100 Continue"), ("after_103", "103 Early Hints")] {
        let steps = move |_: &Shape| {
            applied([send(format!("HTTP/1.1 {line}\r\nLink: </a>\r\n\r\n")), Step::Close])
        };
        t.steps(&format!("closed_{name}"), "S-5", steps, |_| open(INTERIM, false));
    }
    t.steps(
        "stalled_in_head",
        "X-1 D-2",
        |_| applied([send("HTTP/1.1 200 OK\r\nConte"), Step::Stall]),
        |_| open(&[Code::ResponseTimeout, Code::ReadTimeout], false),
    );
}

/// A response whose head nobody may take for a good one.
fn malformed_heads(t: &mut Table) {
    let malformed = |_: &Shape| open(MALFORMED, false);
    let rule = "S-1 S-6; RFC 9112";
    for (name, text) in [
        ("not_http", "SSH-2.0-x\r\n\r\n"),
        ("no_such_version", "HTTP/7.3 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("status_of_two_digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
        ("two_lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        ("length_not_a_number", "HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\nab"),
        ("length_negative", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab"),
        ("length_overflows", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551618\r\n\r\nab"),
        ("field_without_colon", "HTTP/1.1 200 OK\r\nContent-Length 2\r\n\r\nab"),
        ("nul_in_value", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nab"),
        ("unasked_switch", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    ] {
        t.steps(name, rule, move |_| applied([send(text), Step::Close]), malformed);
    }
    let odd = "HTTP/1.1 999 No Way\r\nContent-Length: 0\r\n\r\n";
    t.steps("status_999", rule, move |_| applied([send(odd)]), malformed);
    let huge = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\n\r\n", "x".repeat(200_000));
    t.steps("huge_head", rule, move |_| applied([send(huge.clone()), Step::Close]), malformed);
    // RFC 9112 lets a proxy repair these or refuse them.
    for (name, line) in [
        ("folded_field", "X: a\r\n b\r\n"),
        ("space_before_colon", "X : a\r\n"),
        ("bare_lf", "X: a\nY: b\r\n"),
    ] {
        let steps = move |shape: &Shape| {
            applied([send(length_head(shape, 200, line) + &seen_content(shape)), Step::Close])
        };
        t.steps(name, "RFC 9112 section 5", steps, |shape| {
            Truth::Either(vec![settled(shape, 200), open(MALFORMED, false)])
        });
    }
    let both = |shape: &Shape| {
        let body = format!("{}0\r\n\r\n", chunk(content(shape)));
        let body = if shape.bodied() { body } else { String::new() };
        applied([send(length_head(shape, 200, CHUNKED) + &body), Step::Close])
    };
    t.steps("length_and_chunked", "RFC 9112 section 6.3", both, |shape| {
        Truth::Either(vec![settled(shape, 200), open(MALFORMED, false), open(MALFORMED, true)])
    });
    let coding = |shape: &Shape| {
        let lines = "Transfer-Encoding: rot13, chunked\r\n";
        applied([send(head(shape, 200, lines) + "2\r\nab\r\n0\r\n\r\n"), Step::Close])
    };
    // Whoever passes coding and chunks on unchanged claims nothing that is not so.
    t.steps("unknown_coding", "RFC 9112 section 6.1", coding, |_| {
        let whole = Truth::Settled { status: 200, retry_after: false, content: "ab".to_owned() };
        Truth::Either(vec![open(MALFORMED, false), open(MALFORMED, true), whole])
    })
    .only(Shape::bodied);
}

fn in_the_content(t: &mut Table) {
    let cut = |_: &Shape| open(CUT, true);
    for (name, end) in [("closed", Step::Close), ("reset", Step::Reset)] {
        let last = end.clone();
        let steps = move |s: &Shape| applied([send(length_head(s, 200, "")), last.clone()]);
        t.steps(&format!("{name}_before_content"), "S-2 X-1", steps, cut).bodied();
        let last = end.clone();
        let steps = move |shape: &Shape| {
            applied([send(length_head(shape, 200, "") + halves(shape).0), last.clone()])
        };
        t.steps(&format!("{name}_in_length"), "S-2 X-1", steps, cut).bodied();
        let last = end.clone();
        let steps = move |shape: &Shape| {
            let text = content(shape);
            let but_one = text.get(..text.len() - 1).unwrap_or_default();
            applied([send(length_head(shape, 200, "") + but_one), last.clone()])
        };
        t.steps(&format!("{name}_one_byte_short"), "S-2", steps, cut).bodied();
        // What the chunks still lack.
        for (place, tail) in [
            ("in_size_line", "1"),
            ("in_chunk", "ff\r\nxy"),
            ("between_chunks", ""),
            ("in_last_chunk", "0\r\n"),
            ("in_trailers", "0\r\nX-Sum: 1\r\n"),
        ] {
            let last = end.clone();
            let steps = move |shape: &Shape| {
                let text = head(shape, 200, CHUNKED) + &chunk(content(shape)) + tail;
                applied([send(text), last.clone()])
            };
            t.steps(&format!("{name}_{place}"), "S-2; RFC 9112 section 8", steps, cut).bodied();
        }
    }
    let delimited =
        |shape: &Shape| send(head(shape, 200, "Connection: close\r\n") + halves(shape).0);
    t.steps(
        "close_delimited_reset",
        "S-2 D-2; RFC 9112 section 8",
        move |shape| applied([delimited(shape), Step::Reset]),
        cut,
    )
    .bodied();
    t.steps(
        "close_delimited_cut_tls",
        "S-2; RFC 9112 section 9.8",
        move |shape| applied([delimited(shape), Step::CutTls]),
        cut,
    )
    .bodied()
    .only(|shape| shape.tls);
}

fn stalled_in_the_content(t: &mut Table) {
    let cut = |_: &Shape| open(CUT, true);
    t.steps(
        "stalled_in_length",
        "S-2 D-2",
        |shape| applied([send(length_head(shape, 200, "") + halves(shape).0), Step::Stall]),
        |_| open(NO_PROGRESS, true),
    )
    .bodied();
    t.steps(
        "stalled_in_chunk",
        "S-2 D-2",
        |shape| {
            let text = head(shape, 200, CHUNKED) + &chunk(content(shape)) + "ff\r\nxy";
            applied([send(text), Step::Stall])
        },
        |_| open(NO_PROGRESS, true),
    )
    .bodied();
    t.steps(
        "error_closed_in_length",
        "S-2 S-3",
        |shape| applied([send(length_head(shape, 500, "") + halves(shape).0), Step::Close]),
        cut,
    )
    .bodied();
}

fn malformed_content(t: &mut Table) {
    for (name, text) in [
        ("size_not_a_number", "zz\r\nab\r\n0\r\n\r\n"),
        ("size_negative", "-2\r\nab\r\n0\r\n\r\n"),
        ("size_overflows", "fffffffffffffffff\r\nab\r\n0\r\n\r\n"),
        ("chunk_longer_than_said", "2\r\nabc\r\n0\r\n\r\n"),
        ("size_of_spaces", "  \r\nab\r\n0\r\n\r\n"),
    ] {
        let steps = move |s: &Shape| applied([send(head(s, 200, CHUNKED) + text), Step::Close]);
        t.steps(name, "S-2; RFC 9112 section 7.1", steps, |_| open(MALFORMED, true)).bodied();
    }
}

fn whole(shape: &Shape, status: u16, more: &str) -> Step {
    send(length_head(shape, status, more) + &seen_content(shape))
}

fn complete(t: &mut Table) {
    let ok = |shape: &Shape| settled(shape, 200);
    t.steps("length", "S-1 R-1", |shape| applied([whole(shape, 200, "")]), ok).streamed_too();
    for (name, zeros, extension, trailers) in [
        ("chunked", "", "", ""),
        ("chunk_extensions", "", ";a=\"b\"", ""),
        ("chunk_sizes_with_zeros", "00000000000000000000", "", ""),
        ("trailers", "", "", "X-Sum: 1\r\n"),
    ] {
        let steps = move |shape: &Shape| {
            let (first, second) = halves(shape);
            let mut text = head(shape, 200, CHUNKED);
            if shape.bodied() {
                text += &format!("{zeros}{:x}{extension}\r\n{first}\r\n", first.len());
                text += &format!("{}{zeros}0\r\n{trailers}\r\n", chunk(second));
            }
            applied([send(text)])
        };
        t.steps(name, "S-1; RFC 9112 section 7.1", steps, ok).streamed_too();
    }
    let delimited = |shape: &Shape| {
        let text = head(shape, 200, "Connection: close\r\n") + &seen_content(shape);
        applied([send(text), Step::Close])
    };
    t.steps("close_delimited", "S-1 D-2", delimited, ok).streamed_too();
    t.steps(
        "dripped",
        "S-1",
        |shape| {
            let text = length_head(shape, 200, "") + &seen_content(shape);
            applied([Step::Drip(text.into())])
        },
        ok,
    )
    .streamed_too();
    let interims = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    t.steps(
        "after_interims",
        "S-5",
        move |shape| applied([send(interims), whole(shape, 200, "")]),
        ok,
    );
    let framed = "HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n";
    t.steps(
        "after_an_interim_with_length",
        "S-5; RFC 9110 section 8.6",
        move |shape| applied([send(framed), whole(shape, 200, "")]),
        ok,
    );
}

fn complete_with_nothing(t: &mut Table) {
    let no_chunk = |shape: &Shape| {
        let end = if shape.bodied() { "0\r\n\r\n" } else { "" };
        applied([send(head(shape, 200, CHUNKED) + end)])
    };
    let nothing =
        |_: &Shape| Truth::Settled { status: 200, retry_after: false, content: String::new() };
    t.steps("empty_chunked", "S-1; RFC 9112 section 7.1", no_chunk, nothing).streamed_too();
    for (name, status, more) in [
        ("empty", 200, "Content-Length: 0\r\n"),
        ("no_content", 204, ""),
        ("not_modified", 304, "ETag: \"a\"\r\n"),
        ("not_modified_with_length", 304, "Content-Length: 23\r\n"),
    ] {
        let steps = move |shape: &Shape| applied([send(head(shape, status, more))]);
        let truth =
            move |_: &Shape| Truth::Settled { status, retry_after: false, content: String::new() };
        t.steps(name, "S-1; RFC 9112 section 6.3", steps, truth);
    }
}

/// Complete, and something beside it is odd.
fn complete_oddly(t: &mut Table) {
    let ok = |shape: &Shape| settled(shape, 200);
    for (name, end) in [("then_reset", Step::Reset), ("then_cut", Step::CutTls)] {
        let steps = move |shape: &Shape| applied([whole(shape, 200, ""), end.clone()]);
        t.steps(&format!("length_{name}"), "S-1 D-2", steps, ok).streamed_too();
    }
    t.steps(
        "length_then_more",
        "D-7; RFC 9112 section 6.3",
        |shape| {
            let text = length_head(shape, 200, "") + &seen_content(shape) + WHOLE;
            applied([send(text), Step::Close])
        },
        ok,
    );
    // The content is longer than the pieces of any buffer on the way.
    t.steps(
        "refused_early",
        "S-3; RFC 9112 section 9.3",
        |shape| vec![whole(shape, 413, "Connection: close\r\n"), Step::Linger],
        |shape| settled(shape, 413),
    )
    .content_bytes(300_000);
    let sender_lost = |shape: &Shape| {
        // The reset may overtake the answer.
        Truth::Either(vec![settled(shape, 413), open(LOST, false), open(CUT, false)])
    };
    t.steps(
        "refused_early_and_closed",
        "S-3; RFC 9112 section 9.3",
        |shape| vec![whole(shape, 413, "Connection: close\r\n"), Step::CutTls],
        sender_lost,
    )
    .content_bytes(300_000);
    t.steps(
        "forged_outcome",
        "E-4 S-6",
        |shape| {
            let lie = "Affiant-Outcome: not_attempted;retry=backoff\r\nX-Should-Retry: true\r\n";
            applied([whole(shape, 500, lie)])
        },
        |shape| settled(shape, 500),
    );
}

fn statuses(t: &mut Table) {
    for status in [
        201, 202, 206, 301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 409, 410, 412, 415, 421,
        422, 425, 428, 429, 431, 451, 500, 501, 502, 503, 504, 507, 520,
    ] {
        let more = match status {
            301..=308 => "Location: https://127.0.0.1:1/elsewhere\r\n",
            401 => "WWW-Authenticate: Basic realm=\"x\"\r\n",
            _ => "",
        };
        let steps = move |shape: &Shape| applied([whole(shape, status, more)]);
        let rule = "S-3 C-7";
        t.steps(&format!("status_{status}"), rule, steps, move |shape| settled(shape, status));
    }
    for status in [429, 503] {
        let steps = move |shape: &Shape| applied([whole(shape, status, "Retry-After: 7\r\n")]);
        let truth = move |shape: &Shape| Truth::Settled {
            status,
            retry_after: true,
            content: seen_content(shape),
        };
        t.steps(&format!("status_{status}_retry_after"), "S-3", steps, truth);
    }
}
