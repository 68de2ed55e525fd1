//! The cases of WebSockets: whether the connection, or the stream, switched is judged, what passes
//! inside is not.

use super::table::{Table, on_streams, open, send};
use super::{Case, EARLY, Family, MARK, Shape, Truth};
use crate::http::{Accept, Opening, Step};
use crate::http2::{Last, Step as Frame};
use journal::contract::Code;

const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const CUT: &[Code] = &[Code::RemoteResultIncomplete];
const MALFORMED: &[Code] = &[Code::RemoteProtocolError];
/// Both sides ended in order.
const ORDERLY: &[Code] = &[Code::NotJudged];
/// An origin that closes before it read what the caller sent resets the connection, before or after its own
/// end is seen.
const UNREAD: &[Code] = &[Code::NotJudged, Code::RemoteOutcomeUnknown];
/// Before an answer a connection that dies of malformed frames is lost as any other.
const BROKEN: &[Code] = &[Code::RemoteProtocolError, Code::RemoteOutcomeUnknown];
/// A text message of the origin.
const HELLO: &[u8] = b"\x81\x05hello";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n";
/// The statuses of answers that open nothing over HTTP/2.
const REFUSALS: [u16; 7] = [400, 401, 403, 404, 426, 500, 503];

pub(super) fn cases() -> Vec<Case> {
    let mut table = Table::new(Family::WebSocket);
    switched(&mut table);
    not_switched(&mut table);
    let mut streams = Table::new(Family::WebSocketStreams);
    opened(&mut streams);
    not_opened(&mut streams);
    not_processed(&mut streams);
    table.cases.into_iter().chain(streams.cases).collect()
}

/// What comes out of a WebSocket to its orderly end.
fn passed(content: &'static [u8]) -> impl Fn(&Shape) -> Truth + Send + Sync + 'static {
    move |_| ended(content, ORDERLY)
}

/// The same of an origin that closes with bytes unread.
fn passed_unread(content: &'static [u8]) -> impl Fn(&Shape) -> Truth + Send + Sync + 'static {
    move |_| ended(content, UNREAD)
}

fn ended(content: &[u8], codes: &'static [Code]) -> Truth {
    Truth::Passed { content: String::from_utf8_lossy(content).into_owned(), codes }
}

/// A reset may overtake what was sent before it, and the caller may see it as one.
fn passed_or_reset(_: &Shape) -> Truth {
    Truth::Either(vec![ended(b"", LOST), open(LOST, false)])
}

fn settled(status: u16) -> Truth {
    Truth::Settled { status, retry_after: false, content: "no".to_owned() }
}

fn switch() -> Step {
    Step::Switch { answer: Accept::Right, after: "".into() }
}

fn hello() -> Step {
    Step::Send(HELLO.into())
}

fn switched(t: &mut Table) {
    let rule = "M-5 S-5; RFC 6455 section 4.1";
    // What the caller sends reaches the origin after the switch only, and then all of it.
    let both_ways =
        |_: &Shape| vec![Step::Apply, switch(), Step::ReadBytes(EARLY.len()), hello(), Step::Close];
    t.steps("passed_both_ways", rule, both_ways, passed(HELLO));
    t.steps(
        "passed_with_the_switch",
        rule,
        |_| {
            let switch = Step::Switch { answer: Accept::Right, after: HELLO.into() };
            vec![Step::Apply, switch, Step::Close]
        },
        passed_unread(HELLO),
    );
    let nothing = |_: &Shape| vec![Step::Apply, switch(), Step::Close];
    t.steps("passed_nothing", rule, nothing, passed_unread(b""));
    t.steps(
        "passed_after_interim",
        rule,
        |_| {
            let hints = send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            vec![Step::Apply, hints, switch(), hello(), Step::Close]
        },
        passed_unread(HELLO),
    );
    t.steps(
        "passed_then_reset",
        rule,
        |_| vec![Step::Apply, switch(), Step::ReadBytes(EARLY.len()), Step::Reset],
        passed_or_reset,
    );
    // A caller of HTTP/1.1 looks at the answer to its key itself; one of HTTP/2 has none, so the
    // broker has to.
    t.steps(
        "switched_with_a_wrong_answer",
        "S-6; RFC 6455 section 4.1",
        |_| {
            let switch = Step::Switch { answer: Accept::Wrong, after: HELLO.into() };
            vec![Step::Apply, switch, Step::Close]
        },
        |shape| {
            if shape.pairing.caller_speaks_http2() {
                open(MALFORMED, false)
            } else {
                ended(HELLO, UNREAD)
            }
        },
    );
}

fn not_switched(t: &mut Table) {
    for status in std::iter::once(200).chain(REFUSALS) {
        let steps = move |_: &Shape| {
            vec![
                Step::Apply,
                send(format!(
                    "HTTP/1.1 {status} Scripted\r\n{MARK}: 1\r\nContent-Length: 2\r\n\r\nno"
                )),
            ]
        };
        // Over HTTP/2 a 2xx opens the stream (RFC 8441 section 5).
        let truth = move |shape: &Shape| match status {
            200 if shape.pairing.caller_speaks_http2() => {
                Truth::Misleading { status, shown: 502, content: "no".to_owned() }
            }
            _ => settled(status),
        };
        t.steps(&format!("answered_{status}"), "S-1 S-3", steps, truth);
    }
    for (name, end) in [("closed", Step::Close), ("reset", Step::Reset)] {
        let last = end.clone();
        let steps = move |_: &Shape| vec![Step::Apply, last.clone()];
        t.steps(&format!("{name}_before_switch"), "C-3 D-1", steps, |_| open(LOST, false));
        let last = end.clone();
        let steps = move |_: &Shape| vec![Step::Apply, send(SWITCH), last.clone()];
        t.steps(&format!("{name}_in_switch"), "X-1", steps, |_| open(CUT, false));
    }
    t.steps(
        "stalled_before_switch",
        "D-1",
        |_| vec![Step::Apply, Step::Stall],
        |_| open(&[Code::ResponseTimeout], false),
    );
    for (name, head) in [
        ("switched_to_another", format!("{SWITCH}Upgrade: h2c\r\n\r\n")),
        ("switched_to_nothing", format!("{SWITCH}\r\n")),
        ("switched_without_connection", "HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n".to_owned()),
    ] {
        let steps = move |_: &Shape| vec![Step::Apply, send(head.clone()), Step::Close];
        t.steps(name, "S-6; RFC 9110 section 7.8", steps, |_| open(MALFORMED, false));
    }
}

/// HEADERS with the common field.
fn head(status: u16, end: bool) -> Frame {
    Frame::Head { status, fields: vec![(MARK.to_ascii_lowercase(), "1".to_owned())], end }
}

fn data(content: &'static [u8], end: bool) -> Frame {
    Frame::Data { content: content.into(), end }
}

/// The origin opens the stream.
fn opened(t: &mut Table) {
    let rule = "M-5 S-5; RFC 8441 section 5";
    let read = || Frame::ReadBytes(EARLY.len());
    let both_ways = move |_: &Shape| {
        vec![Frame::Apply, head(200, false), read(), data(HELLO, false), data(b"", true)]
    };
    t.frames("passed_both_ways", rule, both_ways, passed(HELLO));
    let at_once = |_: &Shape| vec![Frame::Apply, head(200, false), data(HELLO, true)];
    t.frames("passed_at_once", rule, at_once, passed(HELLO));
    let nothing = |_: &Shape| vec![Frame::Apply, head(200, false), data(b"", true)];
    t.frames("passed_nothing", rule, nothing, passed(b""));
    let by_the_head = |_: &Shape| vec![Frame::Apply, head(200, true)];
    t.frames("passed_and_ended_by_the_head", rule, by_the_head, passed(b""));
    let hints =
        |_: &Shape| vec![Frame::Apply, head(103, false), head(200, false), data(HELLO, true)];
    t.frames("passed_after_interim", rule, hints, passed(HELLO));
    // A connection that takes no further streams carries this one to its end.
    let going = |_: &Shape| {
        let announced = Frame::GoAway(Last::This, 0);
        vec![Frame::Apply, head(200, false), announced, data(HELLO, true)]
    };
    t.frames("passed_beside_a_goaway", "RFC 9113 section 6.8", going, passed(HELLO));
    for (name, end) in [("stream_reset", Frame::ResetStream(8)), ("reset", Frame::Reset)] {
        let steps = move |_: &Shape| vec![Frame::Apply, head(200, false), read(), end.clone()];
        t.frames(&format!("passed_then_{name}"), rule, steps, passed_or_reset);
    }
}

/// It answers otherwise, or not at all.
fn not_opened(t: &mut Table) {
    for status in REFUSALS {
        let steps = move |_: &Shape| vec![Frame::Apply, head(status, false), data(b"no", true)];
        t.frames(&format!("answered_{status}"), "S-1 S-3", steps, move |_| settled(status));
    }
    let lost = |_: &Shape| open(LOST, false);
    for (name, end) in [
        ("closed", Frame::Close),
        ("reset", Frame::Reset),
        ("stream_reset", Frame::ResetStream(2)),
        ("stream_cancelled", Frame::ResetStream(8)),
    ] {
        let last = end.clone();
        let steps = move |_: &Shape| vec![Frame::Apply, last.clone()];
        t.frames(&format!("{name}_before_opening"), "C-3 D-1", steps, lost);
    }
    t.frames(
        "stalled_before_opening",
        "D-1",
        |_| vec![Frame::Apply, Frame::Stall],
        |_| open(&[Code::ResponseTimeout], false),
    );
    t.frames(
        "refusal_cut",
        "S-2 X-1",
        |_| vec![Frame::Apply, head(403, false), data(b"n", false), Frame::ResetStream(2)],
        |_| open(CUT, true),
    );
    // HTTP/2 has no 101 (RFC 9113 section 8.6).
    t.frames(
        "switched_by_101",
        "S-6; RFC 9113 section 8.6",
        |_| vec![Frame::Apply, head(101, false), data(HELLO, true)],
        |_| open(BROKEN, false),
    );
    let peer = |_: &Shape| super::Peer {
        opening: Opening::WithoutWebSockets,
        ..on_streams(vec![Frame::Apply, head(200, false), data(HELLO, true)])
    };
    t.case("not_taken", "C-1; RFC 8441 section 3", peer, |_| {
        Truth::Untouched(&[Code::UnsupportedAction])
    })
    .only(|shape| !shape.reused);
}

/// C-6: the words of the protocol for what was not processed.
fn not_processed(t: &mut Table) {
    let rule = "C-6; RFC 9113 section 8.7";
    let refused = |_: &Shape| Truth::Refused;
    t.frames("refused_stream", rule, |_| vec![Frame::ResetStream(7)], refused);
    let gone = |_: &Shape| vec![Frame::GoAway(Last::Before, 0), Frame::Close];
    t.frames("goaway_before", rule, gone, refused);
    t.frames(
        "http_1_1_required",
        "C-6; RFC 9113 section 7",
        |_| vec![Frame::ResetStream(13)],
        |_| open(LOST, false),
    );
    let worked = |_: &Shape| vec![Frame::Apply, head(103, false), Frame::ResetStream(7)];
    t.frames("refused_stream_after_an_interim", "C-6 S-5", worked, |_| open(LOST, false));
}
