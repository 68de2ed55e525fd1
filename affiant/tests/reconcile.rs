//! Finding out later (contract K-7, J-3, J-5): on request, in the background, and by a person.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/service.rs"]
mod service;
mod support;

use serde_json::{Value, json};
use service::{Asked, Done, Service};
use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;

const KEYED: &str = r#"idempotency = { header = "Idempotency-Key", contract = "unverified" }"#;

/// Loses every answer to a charge; `/lost` charges are lost before their effect. Says of a key what it
/// knows, once it has been told to.
fn charges() -> impl FnMut(&Asked) -> Done + Send {
    let mut known = HashSet::new();
    move |asked| {
        let key = |text: &str| text.split("key=").nth(1).unwrap_or_default().to_owned();
        match (asked.method.as_str(), asked.target.as_str()) {
            ("POST", "/charges") => {
                known.insert(asked.field("idempotency-key").unwrap().to_owned());
                Done::and_closes()
            }
            ("POST", "/lost") => Done { effect: false, answer: None },
            ("GET", target) if known.contains(&key(target)) => {
                Done::nothing_but(200, "", r#"{"data":[{"id":"ch_1","paid":true}]}"#)
            }
            _ => Done::nothing_but(200, "", r#"{"data":[]}"#),
        }
    }
}

const BY_CONTENT: &str = r#"
[route.reconcile]
path = "/charges?key={idempotency_key}"
committed = { status = 200, pointer = "/data/0/paid", equals = ["true"] }
rejected = { status = 404 }
"#;

/// K-7, J-3: a question to the origin, an invocation of its own under the route's credential, decides
/// what is in doubt; what was observed of the attempt stays.
#[test]
fn k_7_a_question_decides_what_is_in_doubt() {
    let service = Service::start(charges());
    let home = home(&service.policy(&format!("{KEYED}\n{BY_CONTENT}")));
    let server = home.serve();
    let charge = |path: &str, key: &str| {
        let header = format!("Idempotency-Key: {key}");
        let lost = server.curl(&["-d", key, "-H", &header, &service.url(path)]);
        assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
        lost.invocation()
    };
    let (done, lost) = (charge("/charges", "k-1"), charge("/lost", "k-2"));
    let before = server.control(&format!("invocations/{done}/events"));
    let (status, asked) = post(&server, &format!("invocations/{done}/reconcile"));
    assert_eq!((status, &asked["shows"]), (200, &json!("committed")), "{asked}");
    assert_eq!(asked["query"]["links"]["earlier"], done.as_str());
    assert_eq!(asked["standing"]["decision"], "RETURN_RECORDED_RESULT");
    let last = service.asked().pop().unwrap();
    assert_eq!((last.method.as_str(), last.target.as_str()), ("GET", "/charges?key=k-1"));
    assert_eq!(last.field("authorization"), Some(format!("Bearer {SECRET}").as_str()));

    let first = server.control(&format!("invocations/{done}"));
    assert_eq!(first["error"]["outcome"], "committed");
    assert_eq!(first["evidence"]["source"], "remote_query");
    assert_eq!(first["links"]["observed_by"], asked["query"]["invocation_id"]);
    assert_eq!(first["evidence"]["response_complete"], false);
    let after = server.control(&format!("invocations/{done}/events"));
    let (before, after) =
        (before["events"].as_array().unwrap(), after["events"].as_array().unwrap());
    assert_eq!(&after[..before.len()], &before[..]);
    assert_eq!(after.len(), before.len() + 1);
    // The route lets nobody but the broker ask this, so the agent does not get to read the answer.
    let query = asked["query"]["invocation_id"].as_str().unwrap();
    let read = server.curl(&[&format!("http://affiant.internal/v1/invocations/{query}/result")]);
    assert_eq!((read.status, read.json()["code"].as_str()), (404, Some("NO_RESULT")));
    // Nothing is left to ask.
    let (status, refused) = post(&server, &format!("invocations/{done}/reconcile"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("NOT_IN_DOUBT")));

    // An answer that meets no condition decides nothing, and says so with status 1.
    let output = home.run(&["inv", "reconcile", &lost]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("nothing"));
    let still = server.control(&format!("invocations/{lost}"));
    assert_eq!(still["error"]["outcome"], "unknown");
    assert_eq!(service.effects(), 1);
}

/// K-7: rejected by the route's word; an answer of failure, or none, decides nothing.
#[test]
fn k_7_only_the_routes_conditions_decide() {
    let answers = Arc::new(Mutex::new(vec![404, 0, 503, 401]));
    let service = Service::start({
        let answers = Arc::clone(&answers);
        move |asked| match asked.method.as_str() {
            "POST" => Done::and_closes(),
            _ => match answers.lock().unwrap().pop() {
                Some(0) | None => Done { effect: false, answer: None },
                Some(status) => Done::nothing_but(status, "", "{}"),
            },
        }
    });
    let rule = r#"reconcile = { path = "/ops/{invocation_id}", committed = { status = 200 }, rejected = { status = 404 } }"#;
    let home = home(&service.policy(rule));
    let server = home.serve();
    let id = server.curl(&["-d", "x", &service.url("/do")]).invocation();
    for (shows, outcome) in [
        (Value::Null, "unknown"),
        (Value::Null, "unknown"),
        (Value::Null, "unknown"),
        (json!("rejected"), "rejected"),
    ] {
        let (status, asked) = post(&server, &format!("invocations/{id}/reconcile"));
        assert_eq!((status, &asked["shows"]), (200, &shows), "{asked}");
        assert_eq!(server.control(&format!("invocations/{id}"))["error"]["outcome"], outcome);
    }
    let target = service.asked().pop().unwrap().target;
    assert_eq!(target, format!("/ops/{id}"));
    assert_eq!(server.control(&format!("invocations/{id}"))["error"]["retry"], "after_correction");
}

/// Text in gzip (RFC 1952), stored as it is (RFC 1951 section 3.2.4), with a checksum that is wrong.
fn damaged(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap();
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(text.as_bytes());
    out.extend([0; 4]);
    out.extend(u32::from(length).to_le_bytes());
    out
}

/// K-7, I-4: an answer that can't be looked into shows nothing. Neither does what the broker says about it in its
/// place, whatever members the conditions ask for, nor what is longer than it reads.
#[test]
fn k_7_an_answer_that_is_not_seen_shows_nothing() {
    let long = Arc::new(Mutex::new(false));
    let service = Service::start({
        let long = Arc::clone(&long);
        move |asked| match (asked.method.as_str(), *long.lock().unwrap()) {
            ("POST", _) => Done::and_closes(),
            (_, false) => {
                let text = format!(r#"{{"charge":"ch_1","seen":"{SECRET}"}}"#);
                Done::nothing_but(200, "Content-Encoding: gzip\r\n", damaged(&text))
            }
            (_, true) => {
                let text = format!(r#"{{"charge":"ch_1","more":"{}"}}"#, "x".repeat(2 << 20));
                Done::nothing_but(200, "", text)
            }
        }
    });
    for (committed, rejected) in [
        (r#"{ status = 200, pointer = "/charge" }"#, r#"{ status = 200, pointer = "/error" }"#),
        (r#"{ pointer = "/status" }"#, "{ status = 404 }"),
        (r#"{ pointer = "/charge" }"#, "{ status = 200 }"),
    ] {
        let rule = format!(
            "reconcile = {{ path = \"/ops/{{invocation_id}}\", committed = {committed}, rejected = {rejected} }}"
        );
        let home = home(&service.policy(&rule));
        let server = home.serve();
        let id = server.curl(&["-d", "x", &service.url("/do")]).invocation();
        for is_long in [false, true] {
            *long.lock().unwrap() = is_long;
            let (status, asked) = post(&server, &format!("invocations/{id}/reconcile"));
            assert_eq!((status, &asked["shows"]), (200, &Value::Null), "{rule}: {asked}");
            let still = server.control(&format!("invocations/{id}"));
            assert_eq!(still["error"]["outcome"], "unknown", "{rule}");
        }
        *long.lock().unwrap() = false;
    }
}

/// K-7: a call that lacks the name to ask by, or whose route says nothing, is refused with a reason and
/// waits for a person.
#[test]
fn k_7_what_cannot_be_asked_waits_for_a_person() {
    let service = Service::start(|_| Done::and_closes());
    for (rule, reason) in [
        (format!("{KEYED}\n{BY_CONTENT}"), "no idempotency_key to ask by"),
        (String::new(), "no `reconcile`"),
    ] {
        let home = home(&service.policy(&rule));
        let server = home.serve();
        let id = server.curl(&["-d", "x", &service.url("/do")]).invocation();
        let (status, refused) = post(&server, &format!("invocations/{id}/reconcile"));
        assert_eq!((status, refused["code"].as_str()), (409, Some("NOT_RECONCILABLE")));
        assert!(refused["detail"].as_str().unwrap().contains(reason), "{refused}");
        let waiting = server.control("waiting");
        assert_eq!(waiting["invocations"][0]["invocation_id"], id.as_str());
        assert_eq!(waiting["invocations"][0]["standing"]["decision"], "RECONCILE");
    }
}

/// K-7: the broker does not go on by itself where no question can be asked: it says why, once, and the
/// call waits for a person. What a route can ask about is asked as before.
#[test]
fn k_7_what_the_broker_cannot_ask_by_itself_waits_for_a_person_at_once() {
    let service = Service::start(charges());
    let automatic = format!("{BY_CONTENT}automatic = true\nevery = \"1s\"\n");
    let home = home(&service.policy(&format!("{KEYED}\n{automatic}")));
    let server = home.serve();
    let nameless = server.curl(&["-d", "x", &service.url("/lost")]);
    assert_eq!(nameless.outcome(), "unknown");
    let id = nameless.invocation();
    let waiting = |server: &Server| {
        let waiting = server.control("waiting");
        let ids = waiting["invocations"].as_array().unwrap().iter();
        ids.map(|found| found["invocation_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually("it waits for a person", || waiting(&server) == [id.as_str()]);
    // A later call is asked about, so more than one look has passed.
    let key = ["-H", "Idempotency-Key: k-1"];
    let done = server.curl(&["-d", "x", key[0], key[1], &service.url("/charges")]).invocation();
    eventually("the answer", || {
        server.control(&format!("invocations/{done}"))["error"]["outcome"] == "committed"
    });
    let events = server.control(&format!("invocations/{id}/events"));
    let notes: Vec<_> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["data"]["name"] == "reconcile_not_askable")
        .map(|event| event["data"]["detail"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(notes.len(), 1, "{events}");
    assert!(notes[0].contains("no idempotency_key to ask by"), "{notes:?}");
    assert_eq!(waiting(&server), [id.as_str()]);
    // A restart keeps it so.
    server.kill();
    let server = home.serve();
    assert_eq!(waiting(&server), [id]);
}

/// K-7: where the route opts in the broker asks by itself, not more often than the route says, also
/// about calls from before a restart, and stops at its bound.
#[test]
fn k_7_the_broker_asks_by_itself_within_bounds() {
    let ready = Arc::new(Mutex::new(false));
    let service = Service::start({
        let ready = Arc::clone(&ready);
        move |asked| match (asked.method.as_str(), *ready.lock().unwrap()) {
            ("POST", _) => Done::and_closes(),
            (_, true) if asked.target.ends_with("never") => Done::nothing_but(202, "", ""),
            (_, true) => Done::nothing_but(200, "", ""),
            (_, false) => Done::nothing_but(202, "", ""),
        }
    });
    let rule = r#"idempotency = { header = "K", contract = "unverified" }
reconcile = { path = "/ops/{idempotency_key}", committed = { status = 200 }, automatic = true, every = "1s", max_queries = 2 }"#;
    let home = home(&service.policy(rule));
    let server = home.serve();
    let lost = |server: &Server, key: &str| {
        server.curl(&["-d", key, "-H", &format!("K: {key}"), &service.url("/do")]).invocation()
    };
    let never = lost(&server, "never");
    let notes = |server: &Server, id: &str| {
        let events = server.control(&format!("invocations/{id}/events"));
        let noted = |event: &&Value| event["data"]["name"] == "reconcile_inconclusive";
        let events = events["events"].as_array().unwrap().clone();
        events
            .iter()
            .filter(noted)
            .map(|event| event["at_ms"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    eventually("the first question", || notes(&server, &never).len() == 1);
    server.kill();
    let server = home.serve();
    *ready.lock().unwrap() = true;
    let soon = lost(&server, "soon");
    eventually("the answer", || {
        server.control(&format!("invocations/{soon}"))["error"]["outcome"] == "committed"
    });
    eventually("the bound", || notes(&server, &never).len() == 2);
    // What is past its bound is asked about no more, while others are.
    let another = lost(&server, "another");
    eventually("the answer", || {
        server.control(&format!("invocations/{another}"))["error"]["outcome"] == "committed"
    });
    let at = notes(&server, &never);
    assert_eq!(at.len(), 2);
    assert!(at[1] - at[0] >= 1000, "{at:?}");
    let waiting = server.control("waiting");
    assert_eq!(waiting["invocations"].as_array().unwrap().len(), 1);
    assert_eq!(waiting["invocations"][0]["invocation_id"], never.as_str());
}

/// K-8: a condition that the service enforces is on record as such, and a 412 under it is a refusal of
/// this attempt; a weak tag, or a wildcard that enforces nothing new, is no such evidence.
#[test]
fn k_8_a_condition_that_the_service_enforces_is_evidence() {
    let service = Service::start(|asked| match asked.field("if-match") {
        Some("\"v2\"") => Done::and_answers(200, "", "stored"),
        _ => Done::nothing_but(412, "", "changed meanwhile"),
    });
    let home = home(&service.policy(""));
    let server = home.serve();
    for (condition, status, outcome, enforced) in [
        ("If-Match: \"v1\"", 412, "rejected", Some("if-match")),
        ("If-Match: \"v2\"", 200, "committed", Some("if-match")),
        ("If-None-Match: *", 412, "rejected", Some("if-none-match")),
        ("If-Match: W/\"v1\"", 412, "rejected", None),
        ("If-None-Match: \"v1\"", 412, "rejected", None),
    ] {
        let put = server.curl(&["-X", "PUT", "-d", condition, "-H", condition, &service.url("/x")]);
        assert_eq!((put.status, put.outcome()), (status, outcome), "{condition}");
        let events = server.control(&format!("invocations/{}/events", put.invocation()));
        let noted = events["events"].as_array().unwrap().iter().find_map(|event| {
            let named = event["data"]["name"] == "server_enforced_condition";
            named.then(|| event["data"]["detail"].as_str().unwrap().to_owned())
        });
        assert_eq!(noted.as_deref(), enforced, "{condition}");
    }
}

/// K-7: of the broker's own questions an origin gets one at a time.
#[test]
fn k_7_an_origin_is_asked_one_question_at_a_time() {
    let at_once = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let counted = Arc::clone(&at_once);
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = slow.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in slow.incoming() {
            let (mut stream, counted) = (stream.unwrap(), Arc::clone(&counted));
            std::thread::spawn(move || {
                let mut begin = [0; 3];
                stream.read_exact(&mut begin).unwrap();
                if &begin == b"POS" {
                    return;
                }
                let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
                counted.1.fetch_max(now, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(400));
                counted.0.fetch_sub(1, Ordering::SeqCst);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                drop(stream.write_all(answer.as_bytes()));
            });
        }
    });
    let rule = "reconcile = { path = \"/s\", committed = { status = 200 }, automatic = true, every = \"1s\" }";
    let route = clear_route("r", address, rule);
    let home = Home::new();
    home.policy(&route);
    let server = home.serve();
    let call = |n| server.curl(&["-d", "x", &format!("http://{address}/{n}")]).invocation();
    let all: Vec<String> = (0..4).map(call).collect();
    eventually("all are settled", || {
        all.iter().all(|id| {
            server.control(&format!("invocations/{id}"))["error"]["outcome"] == "committed"
        })
    });
    assert_eq!(at_once.1.load(Ordering::SeqCst), 1, "one question at a time");
}
