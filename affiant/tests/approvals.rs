//! Calls that a person approves, with real curl through the binary (contract V-6, I-1).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::Script;
use journal::contract::InvocationId;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;
use support::*;

const ASK: &str = "approval = \"required\"\n";

struct Bench {
    home: Home,
    origin: TlsOrigin,
    server: Server,
}

impl Bench {
    /// `more` stands before the routes, `route` in the one route.
    fn new(more: &str, route: &str) -> Self {
        let home = Home::new();
        let origin = TlsOrigin::start(vec![Script::answer("*", 201, &[], "paid")]);
        home.secret("pay-token", SECRET);
        home.policy(&(more.to_owned() + &origin.policy(route)));
        let server = home.serve();
        Self { home, origin, server }
    }

    fn url(&self) -> String {
        self.origin.url("/charge?to=bob")
    }

    /// A call of the agent with that id, which does not wait.
    fn ask(&self, id: &str, body: &str) -> Response {
        let id = format!("Affiant-Invocation: {id}");
        self.server.curl(&["-H", &id, "-H", "Affiant-Wait: 0", "-d", body, &self.url()])
    }

    fn waiting(&self) -> Vec<Value> {
        let list = self.home.json(&["approval", "list"]);
        list["approvals"].as_array().unwrap().clone()
    }

    fn decide(&self, what: &str, id: &str) -> Output {
        self.home.run(&["approval", what, id])
    }

    /// `kill -9`, and a new server on the same home.
    fn restart(mut self) -> Self {
        self.server.kill();
        self.server = self.home.serve();
        self
    }

    fn effects(&self) -> usize {
        self.origin.origin.effects("/charge")
    }
}

fn new_id(n: u128) -> String {
    InvocationId::from_parts(1_764_476_760_000, n).to_string()
}

fn expect(response: &Response, status: u16, code: &str, phase: &str, retry: &str) {
    let envelope = response.json();
    let error = &envelope["error"];
    assert_eq!(
        (response.status, error["code"].as_str(), error["phase"].as_str(), error["retry"].as_str()),
        (status, Some(code), Some(phase), Some(retry)),
        "{envelope}"
    );
    assert_eq!(error["outcome"], "not_attempted", "{envelope}");
    assert_eq!(response.outcome(), "not_attempted");
}

/// V-6: the call is held before its dispatch, the exact request is shown without the credential, and
/// the caller that waits gets the answer of the remote once a person approves.
#[test]
fn v_6_a_waiting_call_is_shown_and_goes_on_when_it_is_approved() {
    let bench = Bench::new("", ASK);
    let response = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let cookie = "Cookie: session=agents-own";
            bench.server.curl(&["-H", cookie, "-d", "amount=10", &bench.url()])
        });
        eventually("a question", || !bench.waiting().is_empty());
        let held = bench.waiting().remove(0);
        assert_eq!(bench.effects(), 0, "held before dispatch");
        let port = bench.origin.origin.address().port();
        assert_eq!(held["state"], "pending");
        assert_eq!((&held["agent"], &held["route"]), (&"coder".into(), &"origin".into()));
        assert_eq!(held["credential"]["id"], "pay");
        let request = &held["request"];
        assert_eq!(request["method"], "POST");
        assert_eq!(request["target"], format!("https://localhost:{port}/charge?to=bob"));
        assert_eq!(request["content"]["text"], "amount=10");
        assert_eq!(request["content"]["length_bytes"], 9);
        let headers = request["headers"].to_string();
        assert!(headers.contains(r#"["Cookie","(hidden: 18 bytes, hmac "#), "{headers}");
        assert_eq!(request["hidden"], 1);
        let shown = bench.home.ok(&["approval", "list"]);
        for part in ["amount=10", "/charge?to=bob", "pay version 1, bearer", "coder"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        for text in [&shown, &held.to_string()] {
            assert!(!text.contains(SECRET) && !text.contains("agents-own"), "{text}");
        }
        let id = held["invocation_id"].as_str().unwrap();
        let record = bench.home.json(&["inv", "show", id]);
        assert_eq!(
            (&record["state"], &record["error"]["outcome"]),
            (&"held".into(), &"not_attempted".into())
        );
        assert_eq!(record["evidence"]["fingerprint"], held["fingerprint"]);
        assert_eq!(bench.home.ok(&["inv", "decide", id]).trim(), "STOP_FOR_CORRECTION");
        assert!(bench.decide("approve", id).status.success());
        let response = call.join().unwrap();
        assert_eq!(response.invocation(), id);
        response
    });
    assert_eq!((response.status, response.outcome()), (201, "committed"));
    assert_eq!(bench.effects(), 1);
    let seen = bench.origin.origin.seen();
    assert_eq!(seen[0].field("authorization"), Some(format!("Bearer {SECRET}")));
    assert_eq!(seen[0].field("affiant-wait"), None);
    let events = bench.home.json(&["inv", "events", &response.invocation()]);
    let names: Vec<&str> =
        events["events"].as_array().unwrap().iter().filter_map(|e| e["event"].as_str()).collect();
    assert_eq!(
        names[..6],
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "APPROVAL_REQUESTED",
            "APPROVAL_DECIDED",
            "CREDENTIAL_AUTHORIZED",
            "SETUP_ATTEMPTED"
        ]
    );
    assert!(bench.waiting().is_empty());
    assert!(!events.to_string().contains("amount=10"), "what is shown is encrypted in the log");
}

/// V-6: words that look like secrets hide nothing but themselves; what is decided on is shown.
#[test]
fn v_6_what_is_decided_on_is_shown() {
    let bench = Bench::new("", ASK);
    let url = bench.origin.url("/charge?u=http://a:b&amount=100000&to=evil@x");
    let content = r#"{"x":"token=1","amount":1000000,"y":2}"#;
    let response = bench.server.curl(&["-H", "Affiant-Wait: 0", "-d", content, &url]);
    expect(&response, 403, "APPROVAL_PENDING", "validation", "after_correction");
    let held = bench.waiting().remove(0);
    assert_eq!(held["request"]["target"], url);
    assert_eq!(held["request"]["hidden"], 1);
    let listed = bench.home.ok(&["approval", "list"]);
    let shown = bench.home.ok(&["approval", "show", &response.invocation()]);
    for text in [held["request"]["content"]["text"].as_str().unwrap(), &listed, &shown] {
        assert!(text.contains(r#"{"x":"token=(hidden: 1 bytes, hmac "#), "{text}");
        assert!(text.contains(r#")","amount":1000000,"y":2}"#), "{text}");
    }
}

/// V-6, K-10: a caller that does not wait gets its answer later by its id; a restart by `kill -9` loses
/// neither the question nor the decision, and nothing is sent twice.
#[test]
fn v_6_a_restart_loses_nothing_and_a_repeat_by_id_goes_on_once() {
    let bench = Bench::new("", ASK);
    let id = new_id(1);
    let pending = bench.ask(&id, "amount=10");
    expect(&pending, 403, "APPROVAL_PENDING", "validation", "after_correction");
    assert_eq!(pending.invocation(), id);
    assert_eq!(pending.field("x-should-retry"), Some("false"));
    let bench = bench.restart();
    assert_eq!(bench.waiting()[0]["request"]["content"]["text"], "amount=10");
    expect(&bench.ask(&id, "amount=10"), 403, "APPROVAL_PENDING", "validation", "after_correction");
    let other = bench.ask(&id, "amount=99");
    expect(&other, 422, "IDEMPOTENCY_MISMATCH", "validation", "after_correction");
    assert!(bench.decide("approve", &id).status.success());
    let bench = bench.restart();
    let state = bench.server.control(&format!("invocations/{id}"));
    assert_eq!(
        (&state["approval"]["state"], &state["error"]["retry"]),
        (&"approved".into(), &"backoff".into())
    );
    let other = bench.ask(&id, "amount=99");
    expect(&other, 422, "IDEMPOTENCY_MISMATCH", "validation", "after_correction");
    assert_eq!(bench.effects(), 0);
    let done = bench.ask(&id, "amount=10");
    assert_eq!(
        (done.status, done.outcome(), done.body.as_slice()),
        (201, "committed", &b"paid"[..])
    );
    let again = bench.ask(&id, "amount=10");
    assert_eq!((again.status, again.body.as_slice()), (201, &b"paid"[..]));
    assert!(again.field("affiant-outcome").unwrap().contains("replayed"), "{again:?}");
    assert_eq!(bench.effects(), 1);
    assert_eq!(bench.home.ok(&["inv", "result", &id]), "paid");
    bench.home.ok(&["journal", "verify"]);
}

/// V-6: an agent that sends the same request again, without any id, means the call that waits.
#[test]
fn v_6_the_same_request_joins_the_call_that_waits() {
    let bench = Bench::new("", ASK);
    let call = || bench.server.curl(&["-H", "Affiant-Wait: 0", "-d", "amount=10", &bench.url()]);
    let first = call();
    expect(&first, 403, "APPROVAL_PENDING", "validation", "after_correction");
    assert_eq!(call().invocation(), first.invocation());
    assert_eq!(bench.waiting().len(), 1);
    assert!(bench.decide("approve", &first.invocation()).status.success());
    let done = call();
    assert_eq!((done.status, done.outcome()), (201, "committed"));
    assert_eq!((done.invocation(), bench.effects()), (first.invocation(), 1));
    // What was approved was sent: the next one is another call.
    expect(&call(), 403, "APPROVAL_PENDING", "validation", "after_correction");
    assert_eq!(bench.effects(), 1);
}

/// V-6, D-4: what is approved once its caller has gone is sent when it is asked for again, and not before.
#[test]
fn v_6_a_caller_that_has_gone_has_nothing_sent() {
    let bench = Bench::new("", ASK);
    let ask = |more: &str| {
        let mut caller = TcpStream::connect(bench.server.http).unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (url, token) = (bench.url(), &bench.home.token);
        let text = format!(
            "POST {url} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Bearer {token}\r\n{more}\
             Connection: close\r\nContent-Length: 9\r\n\r\namount=10"
        );
        caller.write_all(text.as_bytes()).unwrap();
        caller
    };
    let read = |mut caller: TcpStream| {
        let mut answer = String::new();
        caller.read_to_string(&mut answer).unwrap();
        answer
    };
    let caller = ask("");
    eventually("a question", || !bench.waiting().is_empty());
    // The end of its own side, after which nobody is known to wait.
    caller.shutdown(Shutdown::Write).unwrap();
    let answer = read(caller);
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("APPROVAL_PENDING"), "{answer}");
    let id = bench.waiting()[0]["invocation_id"].as_str().unwrap().to_owned();
    assert!(bench.decide("approve", &id).status.success());
    assert_eq!(bench.effects(), 0);
    let answer = read(ask(&format!("Affiant-Invocation: {id}\r\n")));
    assert!(answer.starts_with("HTTP/1.1 201 ") && answer.contains(&id), "{answer}");
    assert_eq!(bench.effects(), 1);
}

/// V-6: nobody can be shown what passes a WebSocket, so that none is opened by an approval.
#[test]
fn v_6_a_websocket_can_not_be_approved() {
    let bench = Bench::new("", ASK);
    let upgrade = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
    let key =
        ["-H", "Sec-WebSocket-Version: 13", "-H", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="];
    let url = bench.url();
    let arguments = [&["--http1.1"][..], &upgrade, &key, &[&url]].concat();
    let answer = bench.server.curl(&arguments);
    expect(&answer, 403, "APPROVAL_PENDING", "validation", "after_correction");
    assert_eq!(answer.json()["error"]["field"], "approval");
    assert!(bench.waiting().is_empty());
    assert_eq!(bench.effects(), 0);
}

/// V-6, D-7: of many callers that wait for one approval, one is sent, and all have its answer.
#[test]
fn v_6_of_many_waiters_one_is_sent() {
    let bench = Bench::new("", ASK);
    let url = bench.url();
    let id = new_id(1);
    bench.ask(&id, "amount=10");
    let header = format!("Affiant-Invocation: {id}");
    let arguments = ["-H", &header, "-d", "amount=10", &url];
    let answers = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..6).map(|_| scope.spawn(|| bench.server.curl(&arguments))).collect();
        assert!(bench.decide("approve", &id).status.success());
        calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
    });
    for answer in &answers {
        assert_eq!((answer.status, answer.invocation()), (201, id.clone()), "{answer:?}");
    }
    assert_eq!(bench.effects(), 1);
    assert!(bench.waiting().is_empty());
}

/// I-1: a denied approval is `credential_injection`, `not_attempted`, `never`; a decision is made once.
#[test]
fn i_1_a_denied_call_is_never_sent() {
    let bench = Bench::new("", ASK);
    let id = new_id(1);
    expect(&bench.ask(&id, "a=1"), 403, "APPROVAL_PENDING", "validation", "after_correction");
    assert!(bench.decide("deny", &id).status.success());
    for _ in 0..2 {
        let denied = bench.ask(&id, "a=1");
        expect(&denied, 403, "APPROVAL_DENIED", "credential_injection", "never");
        assert_eq!(denied.field("x-should-retry"), Some("false"));
    }
    let again = bench.decide("approve", &id);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("NO_SUCH_APPROVAL"));
    assert_eq!(bench.effects(), 0);
    let record = bench.home.json(&["inv", "show", &id]);
    assert_eq!(
        (&record["approval"]["state"], &record["error"]["retry"]),
        (&"denied".into(), &"never".into())
    );
    assert!(!record["approval"]["decided_by"].as_str().unwrap().is_empty());
    // Approved once, it can't be decided again.
    let id = new_id(2);
    bench.ask(&id, "a=2");
    assert!(bench.decide("approve", &id).status.success());
    let again = bench.decide("deny", &id);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("ALREADY_DECIDED"), "{}", text(&again.stderr));
}

/// V-6: who is asked for the same once more is told that it was denied, and how often.
#[test]
fn v_6_a_request_that_was_denied_says_so_when_it_is_asked_again() {
    let bench = Bench::new("", ASK);
    for (n, before) in [(1, "-"), (2, "once"), (3, "2 times")] {
        let id = new_id(n);
        bench.ask(&id, "a=1");
        assert_eq!(bench.waiting()[0]["denied_before"], Value::from(n as u64 - 1));
        for shown in
            [bench.home.ok(&["approval", "list"]), bench.home.ok(&["approval", "show", &id])]
        {
            let line = shown.lines().find(|line| line.starts_with("  denied "));
            let told = line.map_or("-", |line| line.trim_start_matches("  denied").trim());
            assert_eq!(told.trim_end_matches(" before, this very request"), before, "{shown}");
        }
        assert!(bench.decide("deny", &id).status.success());
    }
    // Another request is another question.
    bench.ask(&new_id(4), "a=2");
    assert_eq!(bench.waiting()[0]["denied_before"], 0);
    assert_eq!(bench.effects(), 0);
}

/// V-6: a question that nobody answers is over after its time, and so is an approval.
#[test]
fn v_6_questions_and_approvals_expire() {
    let bench = Bench::new("[approvals]\nexpire = \"1s\"\n", ASK);
    let (asked, approved) = (new_id(1), new_id(2));
    bench.ask(&asked, "a=1");
    eventually("the end of the question", || {
        let late = bench.decide("approve", &asked);
        late.status.code() == Some(1) && text(&late.stderr).contains("EXPIRED")
            || text(&late.stderr).contains("NO_SUCH_APPROVAL")
    });
    let over = bench.ask(&asked, "a=1");
    expect(&over, 403, "APPROVAL_EXPIRED", "validation", "after_correction");
    bench.ask(&approved, "a=2");
    let in_time = bench.decide("approve", &approved).status.success();
    eventually("the end of the approval", || {
        let state = bench.home.json(&["inv", "show", &approved]);
        let until = state["approval"]["expires_at_ms"].as_u64().unwrap();
        std::time::UNIX_EPOCH.elapsed().unwrap() > Duration::from_millis(until)
    });
    let over = bench.ask(&approved, "a=2");
    expect(&over, 403, "APPROVAL_EXPIRED", "validation", "after_correction");
    assert!(in_time);
    assert_eq!(bench.effects(), 0);
}

/// V-5, V-6: what is sent is bound as it was when the person was asked. Another version of policy or of
/// the secret makes another call.
#[test]
fn v_6_a_changed_binding_is_a_mismatch() {
    let bench = Bench::new("", ASK);
    let policy = bench.origin.policy(ASK);
    // Who applies a policy is told what it means for a call that waits.
    bench.ask(&new_id(9), "a=9");
    let file = bench.home.path().join("same.toml");
    std::fs::write(&file, &policy).unwrap();
    let applied = bench.home.run(&["policy", "apply", file.to_str().unwrap()]);
    assert!(applied.status.success());
    let told = text(&applied.stderr);
    assert!(told.contains("1 held calls were asked about under the version before"), "{told}");
    let changes: [&dyn Fn(); 2] =
        [&|| bench.home.policy(&policy), &|| bench.home.secret("pay-token", "another")];
    for (n, change) in (1..).zip(changes) {
        let id = new_id(n);
        bench.ask(&id, "a=1");
        assert!(bench.decide("approve", &id).status.success());
        change();
        let refused = bench.ask(&id, "a=1");
        expect(&refused, 403, "APPROVAL_MISMATCH", "validation", "after_correction");
    }
    assert_eq!(bench.effects(), 0);
}

/// An agent sees its own questions, without their content, and can't decide them.
#[test]
fn v_6_an_agent_cannot_approve_its_own_call() {
    let bench = Bench::new("", ASK);
    let id = new_id(1);
    bench.ask(&id, "amount=10");
    for what in ["approve", "deny"] {
        let url = format!("http://affiant.internal/v1/approvals/{id}/{what}");
        let refused = bench.server.curl(&["-X", "POST", &url]);
        assert_eq!((refused.status, &refused.json()["code"]), (403, &"OPERATORS_ONLY".into()));
    }
    let own = bench.server.control("approvals");
    assert_eq!(own["approvals"][0]["invocation_id"], id);
    assert!(own["approvals"][0].get("request").is_none(), "{own}");
    let other: Value = bench.home.json(&["agent", "add", "other"]);
    let proxy = format!("http://other:{}@{}", other["token"].as_str().unwrap(), bench.server.http);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-x", &proxy, "http://affiant.internal/v1/approvals"]);
    clean(&mut curl);
    let others: Value = serde_json::from_str(&succeed(curl)).unwrap();
    assert_eq!(others["approvals"].as_array().unwrap().len(), 0);
    assert_eq!(bench.waiting()[0]["state"], "pending");
}

/// All of the content is approved, so there is a bound on it.
#[test]
fn v_6_content_that_can_not_be_approved_as_a_whole_is_refused() {
    let bench = Bench::new("", ASK);
    let file = bench.home.path().join("long");
    std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
    let body = format!("@{}", file.display());
    let refused = bench.server.curl(&["-H", "Expect:", "--data-binary", &body, &bench.url()]);
    expect(&refused, 413, "PAYLOAD_LIMIT", "validation", "after_correction");
    let refused = bench.server.curl(&["-H", "Affiant-Wait: soon", "-d", "a=1", &bench.url()]);
    expect(&refused, 400, "INVALID_REQUEST", "validation", "after_correction");
    // What escapes to much more than itself still fits into its record, and what is cut says so.
    std::fs::write(&file, vec![1_u8; 9000]).unwrap();
    let mut many = vec!["-H".to_owned(), "Affiant-Wait: 0".to_owned()];
    for n in 0..60 {
        many.extend(["-H".to_owned(), format!("X-{n}: {}", "\u{e9}".repeat(200))]);
    }
    let (body_argument, url) = (body.clone(), bench.url());
    let mut arguments: Vec<&str> = many.iter().map(String::as_str).collect();
    arguments.extend(["--data-binary", &body_argument, &url]);
    let held = bench.server.curl(&arguments);
    expect(&held, 403, "APPROVAL_PENDING", "validation", "after_correction");
    let request = &bench.waiting()[0]["request"];
    assert_eq!(request["content"]["is_cut"], true);
    assert!(request["headers_not_shown"].as_u64().unwrap() >= 20, "{request}");
    assert!(bench.home.ok(&["approval", "list"]).contains("more that are not shown"));
    bench.decide("deny", &held.invocation());
    std::fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
    let body = ["-H", "Expect:", "-H", "Affiant-Wait: 0", "--data-binary", &body, &bench.url()];
    expect(&bench.server.curl(&body), 403, "APPROVAL_PENDING", "validation", "after_correction");
}

/// SIGTERM: who waits for a person is answered, and the question is there after the restart.
#[test]
fn v_6_a_drain_ends_the_waiting_and_keeps_the_question() {
    let bench = Bench::new("[approvals]\nwait = \"10m\"\n", ASK);
    let Bench { home, origin, server } = bench;
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-i", "--max-time", "50", "-x", &server.proxy()]);
    curl.arg("--cacert").arg(home.path().join("bundle.pem"));
    curl.args(["-d", "a=1", &origin.url("/charge")]);
    clean(&mut curl);
    let call = std::thread::spawn(move || Response::parse(&finish(curl, b"")));
    eventually("a question", || {
        !home.json(&["approval", "list"])["approvals"].as_array().unwrap().is_empty()
    });
    assert_eq!(server.terminate(), Some(0));
    let answer = call.join().unwrap();
    expect(&answer, 403, "APPROVAL_PENDING", "validation", "after_correction");
    let server = home.serve();
    let waiting = home.json(&["approval", "list"]);
    assert_eq!(waiting["approvals"][0]["invocation_id"], answer.invocation());
    drop(server);
}
