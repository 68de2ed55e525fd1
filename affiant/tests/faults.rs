//! Faults at each point of a call and hostile origins: what the broker says agrees with
//! what the origin counted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Origin, Script, Step};
use conformance::pki::Authority;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use support::*;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n";

struct Case {
    what: &'static str,
    steps: Vec<Step>,
    status: u16,
    outcome: &'static str,
    code: &'static str,
    retry: &'static str,
    effects: usize,
}

/// Lets the agent reach the origin. What comes in two pieces is held together, however slow the machine is.
fn held(origin: &TlsOrigin) -> String {
    format!("[defaults]\nlimits = {{ hold_time = \"1h\" }}\n{}", origin.policy(""))
}

fn send(text: &str) -> Step {
    Step::Send(text.to_owned().into())
}

/// Steps after the effect was applied.
fn after(last: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [Step::ReadBody, Step::Apply].into_iter().chain(last).collect()
}

/// What breaks after the effect and before the end of its answer.
fn broken() -> Vec<Case> {
    let (incomplete, malformed) = ("REMOTE_RESULT_INCOMPLETE", "REMOTE_PROTOCOL_ERROR");
    let lost = "REMOTE_OUTCOME_UNKNOWN";
    let case = |what, code, last: Vec<Step>| Case {
        what,
        steps: after(last),
        status: 502,
        outcome: "unknown",
        code,
        retry: "reconcile",
        effects: 1,
    };
    vec![
        case("X-3: applies and closes", lost, vec![Step::Close]),
        case("X-1: resets after the request", lost, vec![Step::Reset]),
        case("TLS cut without close_notify", lost, vec![Step::CutTls]),
        case(
            "X-1: inside the head",
            incomplete,
            vec![send("HTTP/1.1 200 OK\r\nCont"), Step::Close],
        ),
        case(
            "X-1: inside a framed body",
            incomplete,
            vec![send(&format!("{HEAD}\r\nhalf")), Step::Close],
        ),
        case(
            "S-2: chunked without its last chunk",
            incomplete,
            vec![
                send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n"),
                Step::Close,
            ],
        ),
        case(
            "close-delimited, cut",
            incomplete,
            vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf"), Step::CutTls],
        ),
        case(
            "two lengths in the response",
            malformed,
            vec![send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab")],
        ),
        case("no HTTP at all", malformed, vec![send("SSH-2.0-x\r\n\r\n"), Step::Close]),
    ]
}

/// Whole answers, which settle.
fn answered() -> Vec<Case> {
    let committed = |what, status, last| Case {
        what,
        steps: after(last),
        status,
        outcome: "committed",
        code: if status == 500 { "REMOTE_FAILED" } else { "OK" },
        retry: "never",
        effects: 1,
    };
    vec![
        committed(
            "X-3: commits and then answers 500",
            500,
            vec![send("HTTP/1.1 500 E\r\nContent-Length: 2\r\n\r\nno")],
        ),
        Case {
            what: "S-3: refuses early, before the content was read",
            steps: vec![
                send("HTTP/1.1 413 L\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"),
                Step::Close,
            ],
            status: 413,
            outcome: "rejected",
            code: "REMOTE_REJECTED",
            retry: "after_correction",
            effects: 0,
        },
        committed(
            "S-5: 1xx settle nothing",
            200,
            vec![
                send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
                send(&format!("{HEAD}\r\n0123456789")),
            ],
        ),
        committed(
            "D-2: close-delimited, whole",
            200,
            vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it"), Step::Close],
        ),
        committed(
            "C-7: a redirect is answered, never followed",
            307,
            vec![send(
                "HTTP/1.1 307 R\r\nLocation: https://localhost:1/x\r\nContent-Length: 0\r\n\r\n",
            )],
        ),
    ]
}

/// D-7: after dispatch, over TLS: status, outcome, code, instruction, and one dispatch.
#[test]
fn x_1_x_3_faults_after_dispatch() {
    let home = Home::new();
    let cases: Vec<Case> = broken().into_iter().chain(answered()).collect();
    let scripts = cases
        .iter()
        .enumerate()
        .map(|(n, case)| Script::new(&format!("/{n}"), case.steps.clone()))
        .collect();
    let origin = TlsOrigin::start(scripts);
    home.secret("pay-token", SECRET);
    home.policy(&held(&origin));
    let server = home.serve();
    for (n, case) in cases.iter().enumerate() {
        let what = case.what;
        let body = format!("{{\"case\":{n}}}");
        let response = server.curl(&["-H", "Expect:", "-d", &body, &origin.url(&format!("/{n}"))]);
        assert_eq!((response.status, response.outcome()), (case.status, case.outcome), "{what}");
        let record = server.control(&format!("invocations/{}", response.invocation()));
        let error = &record["error"];
        assert_eq!(
            (error["code"].as_str(), error["retry"].as_str(), error["outcome"].as_str()),
            (Some(case.code), Some(case.retry), Some(case.outcome)),
            "{what}: {record}"
        );
        assert_eq!(origin.origin.effects(&format!("/{n}")), case.effects, "{what}");
        if case.outcome == "unknown" {
            assert_eq!(response.field("x-should-retry"), Some("false"), "{what}");
            assert_eq!(response.json()["error"]["code"], case.code, "{what}");
        }
    }
    // D-7: what arrived is exactly what was asked for, once each.
    let seen: Vec<String> = origin.origin.seen().iter().map(|s| s.target().to_owned()).collect();
    let asked: Vec<String> = (0..cases.len()).map(|n| format!("/{n}")).collect();
    assert_eq!(seen, asked);
}

/// X-1 before dispatch, C-1, S-6: nothing reaches the origin, and the credential was ready (I-3).
#[test]
fn x_1_c_1_faults_before_dispatch() {
    let home = Home::new();
    let good = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    let stranger = Authority::new("stranger").unwrap().leaf(&["localhost"]).unwrap();
    let wrong_name = Authority::new("other").unwrap();
    let misnamed = wrong_name.leaf(&["elsewhere.example"]).unwrap();
    let answer = || vec![Script::answer("*", 200, &[], "ok")];
    let untrusted = Origin::start(answer(), Some(stranger.server_config().unwrap())).unwrap();
    let other = Origin::start(answer(), Some(misnamed.server_config().unwrap())).unwrap();
    let clear = no_tls();
    let (_held, closed) = refusing();
    let closed = closed.port();
    home.secret("pay-token", SECRET);
    let route = |name: &str, port: u16| {
        format!(
            "[[route]]\nname = \"{name}\"\nagents = [\"coder\"]\ncredential = \"pay\"\n\
             private_addresses = \"allow\"\n\
             match = {{ scheme = \"https\", host = \"localhost\", port = {port}, path = \"/**\" }}\n"
        )
    };
    let more = [
        route("untrusted", untrusted.address().port()),
        route("other", other.address().port()),
        route("clear", clear),
        route("closed", closed),
    ]
    .concat();
    home.policy(&good.policy(&more));
    let server = home.serve();
    for (port, status, code, proxy_error) in [
        (untrusted.address().port(), 502, "TLS_CERTIFICATE_ERROR", "tls_certificate_error"),
        (other.address().port(), 502, "TLS_CERTIFICATE_ERROR", "tls_certificate_error"),
        (clear, 502, "TLS_PROTOCOL_ERROR", "tls_protocol_error"),
        (closed, 502, "CONNECTION_REFUSED", "connection_refused"),
    ] {
        let response = server.curl(&["-d", "a=1", &format!("https://localhost:{port}/pay")]);
        let envelope = response.json();
        assert_eq!(
            (response.status, envelope["error"]["code"].as_str(), response.outcome()),
            (status, Some(code), "not_attempted"),
            "{envelope}"
        );
        assert_eq!(envelope["error"]["phase"], "connection_setup");
        assert_eq!(envelope["evidence"]["dispatch_started"], false);
        let attempts = envelope["evidence"]["attempts"].as_array().unwrap();
        assert!(!attempts.is_empty(), "C-4: no attempt is on record: {envelope}");
        let status = response.field("proxy-status").unwrap();
        assert!(status.contains(&format!("error={proxy_error}")), "{status}");
        assert!(!text(&response.body).contains(SECRET));
    }
    for origin in [&untrusted, &other] {
        assert_eq!(origin.seen().len(), 0);
    }
}

/// A port that answers a ClientHello in clear text.
fn no_tls() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
    });
    port
}

/// an origin that honours a key, under a verified contract: the instruction is
/// `same_idempotency_key`, the client's repeat goes through, and the effect is one (K-1, K-2).
#[test]
fn x_3_k_1_a_verified_key_makes_unknown_repeatable() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::apply_and_close("/pay")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(
        "idempotency = { header = \"Idempotency-Key\", scope = \"pay\", retention = \"24h\", \
         contract = \"verified\" }",
    ));
    let server = home.serve();
    let url = origin.url("/pay");
    let first = server.curl(&["-H", "Idempotency-Key: k1", "-d", "a=1", &url]);
    let envelope = first.json();
    assert_eq!(envelope["error"]["retry"], "same_idempotency_key", "{envelope}");
    let key = &envelope["evidence"]["idempotency"];
    assert_eq!((key["key"].as_str(), key["scope"].as_str()), (Some("k1"), Some("pay")));
    assert_eq!(first.field("x-should-retry"), None);
    assert_eq!(
        server.control(&format!("invocations/{}/decision", first.invocation()))["decision"],
        "RETRY_SAME_KEY"
    );
    // The same key with another request fails here, before dispatch (K-3).
    let changed = server.curl(&["-H", "Idempotency-Key: k1", "-d", "a=2", &url]);
    assert_eq!(
        (changed.status, changed.json()["error"]["code"].as_str()),
        (422, Some("IDEMPOTENCY_MISMATCH"))
    );
    assert_eq!(origin.origin.seen().len(), 1);
    // The same key with the same request is dispatched: the remote holds the first result.
    server.curl(&["-H", "Idempotency-Key: k1", "-d", "a=1", &url]);
    assert_eq!(origin.origin.seen().len(), 2);
    // Without a contract no key helps, and none is added (K-4).
    assert!(
        origin.origin.seen().iter().all(|s| s.field("idempotency-key").as_deref() == Some("k1"))
    );
}

/// K-11: a deliberate second effect takes a new id; after a handed-over 2xx an equal request is new.
#[test]
fn k_11_deliberate_repeats_go_through() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![
        Script::apply_and_close("/lost"),
        Script::answer("/fine", 200, &[], "ok"),
    ]);
    home.secret("pay-token", SECRET);
    home.policy(&held(&origin));
    let server = home.serve();
    let lost = origin.url("/lost");
    assert_eq!(server.curl(&["-d", "a", &lost]).status, 502);
    assert_eq!(server.curl(&["-d", "a", &lost]).status, 424);
    let header = "Affiant-Invocation: act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    assert_eq!(server.curl(&["-d", "a", "-H", header, &lost]).status, 502);
    assert_eq!(origin.origin.effects("/lost"), 2);
    for count in 1..=20 {
        assert_eq!(server.curl(&["-d", "a", &origin.url("/fine")]).status, 200);
        assert_eq!(origin.origin.effects("/fine"), count);
    }
}

/// S-2, E-4: a stream goes out as it comes, `unknown` in front and the outcome as trailers; a cut
/// one is visibly cut.
#[test]
fn s_2_e_4_streams_end_with_trailers_or_visibly_cut() {
    let home = Home::new();
    let event = "c\r\ndata: tick\n\n\r\n";
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let stream = |end: Vec<Step>| {
        let first = vec![Step::ReadBody, Step::Apply, send(&format!("{head}{event}")), Step::Hold];
        [first, vec![send(event)], end].concat()
    };
    let origin = Origin::start(
        vec![
            Script::new("/whole", stream(vec![send("0\r\n\r\n")])),
            Script::new("/cut", stream(vec![Step::Close])),
        ],
        None,
    )
    .unwrap();
    home.policy(&clear_route("o", origin.address(), ""));
    let server = home.serve();
    for (path, outcome, whole) in [("/whole", "committed", true), ("/cut", "unknown", false)] {
        let mut caller = std::net::TcpStream::connect(server.http).unwrap();
        caller.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "POST http://{at}{path} HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: Bearer {}\r\n\
             Connection: close\r\nContent-Length: 1\r\n\r\n1",
            home.token,
            at = origin.address()
        );
        caller.write_all(request.as_bytes()).unwrap();
        // The first event is there before the origin sends the second.
        let mut got = Vec::new();
        let mut buffer = [0; 4096];
        while !text(&got).contains("data: tick") {
            let read = caller.read(&mut buffer).unwrap();
            assert!(read > 0, "closed early: {}", text(&got));
            got.extend_from_slice(&buffer[..read]);
        }
        assert!(text(&got).contains("Affiant-Outcome: unknown"), "{}", text(&got));
        origin.release();
        while let Ok(read @ 1..) = caller.read(&mut buffer) {
            got.extend_from_slice(&buffer[..read]);
        }
        let got = text(&got);
        assert_eq!(got.matches("data: tick").count(), 2, "{got}");
        let end = got.rsplit("data: tick\n\n\r\n").next().unwrap();
        assert_eq!(end.starts_with("0\r\n"), whole, "{end:?}");
        assert_eq!(end.contains("Affiant-Outcome: committed"), whole, "{end:?}");
        let id = got.split("invocation=\"").nth(1).unwrap().split('"').next().unwrap();
        let record: Value = server.control(&format!("invocations/{id}"));
        assert_eq!(record["error"]["outcome"], outcome);
    }
}

/// on a full disk calls are refused before dispatch, and taken again without a restart when
/// there is room. The disk is a tmpfs in a mount namespace of the server's own.
#[cfg(target_os = "linux")]
#[test]
fn r_6_a_full_disk_refuses_before_dispatch_and_resumes() {
    let home = Home::new();
    let disk = tempfile::tempdir().unwrap();
    let big = "x".repeat(900_000);
    let origin = Origin::start(vec![Script::answer("*", 200, &[], &big)], None).unwrap();
    home.policy(&clear_route("o", origin.address(), ""));
    let at = disk.path().display();
    let script = format!(
        "mount -t tmpfs -o size=160m,mode=700 tmpfs {at} && cp -a \"$3\"/. {at}/ && \
         program=$1 && shift 3 && exec \"$program\" --home {at} \"$@\""
    );
    let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    let server = Server::start_by(&home, &["unshare", flags, "sh", "-c", &script, "sh"]);
    let inside = format!("/proc/{}/root{at}", server.child.id());
    let url = format!("http://{}/big", origin.address());
    assert_eq!(server.curl(&["-d", "first", &url]).status, 200);

    let mut filler = std::fs::File::create(format!("{inside}/filler")).unwrap();
    while filler.write_all(&[0; 65536]).is_ok() {}
    let refused = (0..400)
        .map(|n| server.curl(&["-d", &n.to_string(), &url]))
        .find(|response| response.status != 200)
        .expect("the journal never filled");
    assert_eq!(refused.status, 503, "{}{}", refused.head, text(&refused.body));
    let envelope = refused.json();
    assert_eq!(envelope["error"]["code"], "JOURNAL_UNAVAILABLE");
    assert_eq!(envelope["error"]["outcome"], "not_attempted");
    assert_eq!(envelope["error"]["retry"], "backoff");
    let before = origin.seen().len();
    assert_eq!(server.curl(&["-d", "again", &url]).status, 503);
    assert_eq!(origin.seen().len(), before, "a refused call reached the origin");

    std::fs::remove_file(format!("{inside}/filler")).unwrap();
    drop(filler);
    eventually("service", || server.curl(&["-d", "later", &url]).status == 200);
    // Where the server is: the policy store resolves its path, which leads out of /proc.
    let mut verify = std::process::Command::new("nsenter");
    verify.args(["-t", &server.child.id().to_string(), "-m"]);
    if !rustix::process::geteuid().is_root() {
        verify.args(["-U", "--preserve-credentials"]);
    }
    verify.args([BINARY, "--home", &at.to_string(), "journal", "verify"]);
    clean(&mut verify);
    succeed(verify);
}

/// K-11: equal requests at once are one dispatch; the others are told to follow it.
#[test]
fn k_11_equal_requests_at_once_cause_one_effect() {
    const CALLERS: usize = 24;
    let home = Home::new();
    let answer = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
    let steps = vec![Step::ReadBody, Step::Apply, Step::Hold, send(answer)];
    let origin = TlsOrigin::start(vec![Script::new("*", steps)]);
    home.secret("pay-token", SECRET);
    home.policy(&held(&origin));
    let server = home.serve();
    let url = origin.url("/pay");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let call = || scope.spawn(|| server.curl(&["-d", "amount=1", &url]).status);
        let callers: Vec<_> = (0..CALLERS).map(|_| call()).collect();
        eventually("the refusals", || {
            let path = "invocations?phase=validation&limit=100";
            server.control(path)["invocations"].as_array().unwrap().len() == CALLERS - 1
        });
        origin.origin.release();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 424).count(), CALLERS - 1);
    assert_eq!(origin.origin.effects("/pay"), 1);
}
