//! What the origin does at which path.

use conformance::http::{Accept, Seen, Step};
use std::time::Duration;

/// Bytes of a response, and whether the connection goes on after it.
type Answer = (Vec<u8>, bool);

const KEEPS: bool = true;
const CLOSES: bool = false;

/// Answers that are always the same.
const FIXED: &[(&str, bool, &str)] = &[
    ("/close", CLOSES, ""),
    ("/half-head", CLOSES, "HTTP/1.1 200 OK\r\nContent-Le"),
    ("/cut", CLOSES, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"plausible\":1}"),
    ("/cut-chunked", CLOSES, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    (
        "/cut-stream",
        CLOSES,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n",
    ),
    (
        "/cut-begin",
        CLOSES,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    (
        "/chunked",
        KEEPS,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "/trailers",
        KEEPS,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n\
         5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    ),
    (
        "/odd-trailers",
        KEEPS,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0000000000000005\r\nhello\r\n\
         00000000000000000\r\nX-T: 1\r\nSet-Cookie: a=b\r\ncontent-encoding: gzip\r\n\
         Content-Type: text/html\r\nContent-Range: bytes 0-1/2\r\nLOCATION: /x\r\n\
         WWW-Authenticate: Basic\r\nProxy-Authenticate: Basic\r\nContent-Length: 9\r\n\
         Transfer-Encoding: gzip\r\nCache-Control: no-store\r\nAge: 1\r\nVary: *\r\n\
         Retry-After: 9\r\nKeep-Alive: timeout=9\r\nETag: \"e\"\r\n\r\n",
    ),
    ("/half/chunked", KEEPS, "3\r\nend\r\n0\r\n\r\n"),
    ("/half/job", KEEPS, "1\r\n}\r\n0\r\n\r\n"),
    (
        "/half/interim",
        KEEPS,
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\n\
         HTTP/1.1 201 Created\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok",
    ),
    ("/half/begin", KEEPS, "3\r\nend\r\n0\r\n\r\n"),
    ("/half/close", CLOSES, "end"),
    ("/half/length", KEEPS, "end"),
    (
        "/bad-chunk",
        CLOSES,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n",
    ),
    (
        "/odd-status",
        KEEPS,
        "HTTP/1.1 200 OK\r\nProxy-Status: a;;garbage=\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nok\r\n0\r\nProxy-Status: b;;\r\n\r\n",
    ),
    (
        "/lost",
        KEEPS,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         7\r\n[{\"a\":1\r\n0\r\nProxy-Status: cdn; error=http_response_incomplete\r\n\r\n",
    ),
    (
        "/lost-stream",
        KEEPS,
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nProxy-Status: cdn; error=connection_terminated\r\n\r\n",
    ),
    (
        "/passed-on",
        KEEPS,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nProxy-Status: cdn; received-status=200\r\n\r\n",
    ),
    ("/old-answer", CLOSES, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ("/no-length", CLOSES, "HTTP/1.1 200 OK\r\n\r\nall there is"),
    ("/abrupt", CLOSES, "HTTP/1.1 200 OK\r\n\r\nall there is"),
    (
        "/interim",
        KEEPS,
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ),
    (
        "/framed-interim",
        KEEPS,
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 5\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ),
    ("/bad-head", CLOSES, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    ("/folded", CLOSES, "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok"),
    ("/space-colon", CLOSES, "HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 2\r\n\r\nok"),
    ("/lf-in-value", CLOSES, "HTTP/1.1 200 OK\r\nX: a\nb\r\nContent-Length: 2\r\n\r\nok"),
    ("/nul-in-value", CLOSES, "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok"),
    ("/bare-lf", CLOSES, "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
    ("/bad-coding", CLOSES, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
    ("/switch", CLOSES, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
    ("/204", KEEPS, "HTTP/1.1 204 No Content\r\n\r\n"),
    (
        "/204-framed",
        KEEPS,
        "HTTP/1.1 204 No Content\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ),
    ("/304", KEEPS, "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 10\r\n\r\n"),
    ("/close-after", CLOSES, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    (
        "/echo-gzip",
        KEEPS,
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 16\r\n\r\nzzzzzzzzzzzzzzzz",
    ),
];

const OK: &str = "HTTP/1.1 200 Fine\r\nDate: Thu, 01 Jan 1970 00:00:01 GMT\r\nX-b: 1\r\nx-A: 2\r\n\
    X-B: 3\r\nSet-Cookie: a\r\nAffiant-Outcome: lie\r\nAffiant-Other: lie\r\n\
    Proxy-Status: far; error=dns_error\r\nConnection: x-hop\r\nX-Hop: 1\r\nSet-Cookie: b\r\n\
    Content-Length: 2\r\n\r\n";

/// What is done with a request whose head was read.
pub fn steps(seen: &Seen) -> Vec<Step> {
    let path = path(seen);
    let switch = |answer| {
        // What is sent with a credential has to be frames.
        let framed = seen.target().starts_with("/with-credential");
        let after: &[u8] = if framed { b"\x81\x05early" } else { b"early" };
        let early = Step::Switch { answer, after: after.into() };
        vec![Step::ReadBody, Step::Apply, early, Step::Echo(u64::MAX), Step::Close]
    };
    match path.as_str() {
        "/websocket" => switch(Accept::Right),
        "/websocket-lie" => switch(Accept::Wrong),
        "/websocket-extension" => switch(Accept::Extended),
        "/early" => {
            let text =
                "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
            vec![Step::Send(text.into()), Step::CutTls]
        }
        // Takes nothing of its content, and never answers.
        "/unread" => vec![Step::Stall],
        "/duplex" => {
            let length = seen.field("content-length").and_then(|text| text.parse().ok());
            let length: u64 = length.expect("a length");
            let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            vec![Step::Send(start.into()), Step::Echo(length), Step::Apply]
        }
        _ => vec![Step::ReadBody, Step::Apply, Step::Then(answered)],
    }
}

/// The path and its query, without what only policy tells apart: `/sdk/close/v1/messages` is `/close`.
fn path(seen: &Seen) -> String {
    let path = seen.target().trim_start_matches("/with-credential");
    match path.strip_prefix("/sdk/").and_then(|rest| rest.split_once("/v1/")) {
        Some((what, _)) => format!("/{what}"),
        None => path.to_owned(),
    }
}

/// What is done with a request that was read to its end.
fn answered(seen: &Seen) -> Vec<Step> {
    let (head, target) = (seen.text(), path(seen));
    let (path, argument) = target.split_once('?').unwrap_or((&target, ""));
    match path {
        "/echo-split" => {
            let pieces = authorization(&head).as_bytes().chunks(3).map(<[u8]>::to_vec);
            in_chunks(pieces, Duration::from_millis(1))
        }
        "/events" => {
            let events = 0..argument.parse().unwrap_or(3);
            let events = events.map(|n: u32| format!("data: {n}\n\n").into_bytes());
            in_chunks(events, Duration::from_millis(20))
        }
        "/gate-stall" => {
            vec![Step::Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".into()), Step::Stall]
        }
        _ => {
            let mut steps: Vec<Step> = Vec::new();
            steps.extend(first_half(path).map(|half| Step::Send(half.into())));
            if path == "/gate" || path.starts_with("/half/") {
                steps.push(Step::Hold);
            }
            let (text, keeps) = answer(path, argument, &head, &seen.body);
            steps.push(Step::Send(text.into()));
            if !keeps {
                steps.push(if path == "/abrupt" { Step::CutTls } else { Step::Close });
            }
            steps
        }
    }
}

/// An event stream, each piece in a chunk of its own, with a pause after it.
fn in_chunks(pieces: impl Iterator<Item = Vec<u8>>, pause: Duration) -> Vec<Step> {
    let start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                 Transfer-Encoding: chunked\r\n\r\n";
    let chunk = |piece: Vec<u8>| {
        [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat().into()
    };
    let pieces = pieces.flat_map(|piece| [Step::Send(chunk(piece)), Step::Pause(pause)]);
    let end = Step::Send("0\r\n\r\n".into());
    std::iter::once(Step::Send(start.into())).chain(pieces).chain([end]).collect()
}

/// The answer at a path; `argument` is its query.
fn answer(path: &str, argument: &str, head: &str, content: &[u8]) -> Answer {
    let fixed = FIXED.iter().find(|(known, _, _)| *known == path);
    if let Some((_, keeps, text)) = fixed {
        return (text.as_bytes().to_vec(), *keeps);
    }
    match path {
        "/ok" | "/gate" => {
            let content = if head.starts_with("HEAD ") { "" } else { "ok" };
            (format!("{OK}{content}").into_bytes(), KEEPS)
        }
        "/encoded" => (super::encoded::response(argument, head), KEEPS),
        "/echo" => (echo(head, content), KEEPS),
        "/echo-reason" | "/echo-name" | "/echo-id" | "/echo-trailer" => {
            (echo_of_token(path, head).into_bytes(), KEEPS)
        }
        "/long-head" | "/long-trailer" | "/many-interim" => (long(path).into_bytes(), CLOSES),
        "/cut-long" => {
            let mut out = b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n".to_vec();
            out.resize(3_000_000, b'x');
            (out, CLOSES)
        }
        "/until-close" => (counted("", argument.parse().expect("a length")), CLOSES),
        "/fields" => (many_fields(argument).into_bytes(), KEEPS),
        "/big" => {
            let length = argument.parse().unwrap_or(3 << 20);
            (counted(&format!("Content-Length: {length}\r\n"), length), KEEPS)
        }
        other => (status(other, argument).into_bytes(), KEEPS),
    }
}

/// What is sent at once of an answer whose rest waits for the gate.
fn first_half(path: &str) -> Option<String> {
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n";
    let start = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    match path.strip_prefix("/half/")? {
        "chunked" => Some(format!("{start}{CHUNKED}3\r\nthe\r\n")),
        "job" => {
            Some(format!("HTTP/1.1 202 Accepted\r\n{CHUNKED}14\r\n{{\"url\":\"/status/200\"\r\n"))
        }
        "events" => {
            Some(format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{CHUNKED}"))
        }
        "begin" => Some(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{CHUNKED}7\r\ndata: B\r\n"
        )),
        "interim" => None,
        "close" => Some(format!("{start}\r\nthe")),
        _ => Some(format!("{start}Content-Length: 6\r\n\r\nthe")),
    }
}

/// The line of the credential.
fn authorization(head: &str) -> &str {
    let is = |line: &&str| line.to_ascii_lowercase().starts_with("authorization:");
    head.lines().find(is).unwrap_or_default()
}

fn echo(head: &str, content: &[u8]) -> Vec<u8> {
    let (line, length) = (authorization(head), head.len() + content.len());
    let start = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Echo: {line}\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    [start.as_bytes(), head.as_bytes(), content].concat()
}

fn echo_of_token(path: &str, head: &str) -> String {
    let token = authorization(head).split(' ').nth(2).unwrap_or("none");
    match path {
        "/echo-reason" => format!("HTTP/1.1 200 Bearer {token}\r\nContent-Length: 0\r\n\r\n"),
        "/echo-name" => {
            let name = token.to_uppercase();
            format!("HTTP/1.1 200 OK\r\nX-{name}-a: v\r\nContent-Length: 0\r\n\r\n")
        }
        "/echo-id" => {
            format!("HTTP/1.1 200 OK\r\nX-Request-Id: Bearer {token}\r\nContent-Length: 0\r\n\r\n")
        }
        _ => format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-{token}: {token}\r\n\r\n"
        ),
    }
}

fn long(path: &str) -> String {
    let value = "a".repeat(70_000);
    match path {
        "/long-head" => format!("HTTP/1.1 200 OK\r\nX: {value}\r\n\r\n"),
        "/long-trailer" => {
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: {value}\r\n\r\n")
        }
        _ => "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(40),
    }
}

/// As many fields as the query says, in the head or, behind `trailers-`, behind an event stream; or one of that
/// length, behind `long-`.
fn many_fields(query: &str) -> String {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let lines = |n: usize| (0..n).map(|i| format!("X-{i}: v\r\n")).collect::<String>();
    if let Some((held, n)) = query.split_once("trailers-") {
        let kind = if held.is_empty() { "text/event-stream" } else { "text/plain" };
        let start = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\n"
        );
        return format!("{start}{}\r\n", lines(number(n)));
    }
    let fields = match query.strip_prefix("long-") {
        Some(n) => format!("X: {}\r\n", "v".repeat(number(n))),
        None => lines(number(query) - 1),
    };
    format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok")
}

/// Content in which each byte tells its place.
fn counted(framing: &str, length: usize) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 200 OK\r\n{framing}\r\n").into_bytes();
    out.extend((0..length).map(|i| u8::try_from(i % 251).expect("a byte")));
    out
}

/// `/status/N`, and 404 elsewhere; the argument is the time to wait.
fn status(path: &str, argument: &str) -> String {
    let status = path.strip_prefix("/status/").and_then(|s| s.parse().ok()).unwrap_or(404);
    let retry = match argument {
        "" => String::new(),
        time => format!("Retry-After: {time}\r\n"),
    };
    format!("HTTP/1.1 {status} X\r\nX-Should-Retry: true\r\n{retry}Content-Length: 4\r\n\r\nbody")
}
