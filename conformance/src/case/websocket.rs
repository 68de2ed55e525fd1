//! The cases of WebSockets: whether the connection switched is judged, what passes inside is not.

use super::table::{Table, open, send};
use super::{Case, EARLY, Family, MARK, Shape, Truth};
use crate::http::Step;
use journal::contract::Code;

const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const CUT: &[Code] = &[Code::RemoteResultIncomplete];
const MALFORMED: &[Code] = &[Code::RemoteProtocolError];
/// A text message of the origin.
const HELLO: &[u8] = b"\x81\x05hello";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n";

pub(super) fn cases() -> Vec<Case> {
    let mut table = Table::new(Family::WebSocket);
    switched(&mut table);
    not_switched(&mut table);
    table.cases
}

fn switch() -> Step {
    send(format!("{SWITCH}{MARK}: 1\r\nUpgrade: websocket\r\n\r\n"))
}

fn hello() -> Step {
    Step::Send(HELLO.into())
}

fn switched(t: &mut Table) {
    let passed = |content: &'static [u8]| {
        move |_: &Shape| Truth::Passed { content: String::from_utf8_lossy(content).into_owned() }
    };
    let rule = "M-5 S-5; RFC 6455 section 4.1";
    // What the caller sends reaches the origin after the switch only, and then all of it.
    let both_ways =
        |_: &Shape| vec![Step::Apply, switch(), Step::ReadBytes(EARLY.len()), hello(), Step::Close];
    t.steps("passed_both_ways", rule, both_ways, passed(HELLO));
    t.steps(
        "passed_with_the_switch",
        rule,
        |_| {
            let text = format!("{SWITCH}{MARK}: 1\r\nUpgrade: websocket\r\n\r\n");
            let both = [text.as_bytes(), HELLO].concat();
            vec![Step::Apply, Step::Send(both.into()), Step::Close]
        },
        passed(HELLO),
    );
    t.steps("passed_nothing", rule, |_| vec![Step::Apply, switch(), Step::Close], passed(b""));
    t.steps(
        "passed_after_interim",
        rule,
        |_| {
            let hints = send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            vec![Step::Apply, hints, switch(), hello(), Step::Close]
        },
        passed(HELLO),
    );
    // A reset may overtake what was sent before it, and the caller may see it as one.
    t.steps(
        "passed_then_reset",
        rule,
        |_| vec![Step::Apply, switch(), Step::ReadBytes(EARLY.len()), Step::Reset],
        |_| Truth::Either(vec![Truth::Passed { content: String::new() }, open(LOST, false)]),
    );
}

fn not_switched(t: &mut Table) {
    for status in [200, 400, 401, 403, 404, 426, 500, 503] {
        let steps = move |_: &Shape| {
            vec![
                Step::Apply,
                send(format!(
                    "HTTP/1.1 {status} Scripted\r\n{MARK}: 1\r\nContent-Length: 2\r\n\r\nno"
                )),
            ]
        };
        let truth = move |_: &Shape| Truth::Settled {
            status,
            retry_after: false,
            content: "no".to_owned(),
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
