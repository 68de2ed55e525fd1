//! What policy judges, a person approves and a key contract rests on is what is sent, and it goes where
//! policy says now (contract V-5, V-6, K-1, C-7).

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

use service::{Done, Service};
use support::*;

fn bench(answer: fn() -> Done, policy: impl Fn(&Service) -> String) -> (Home, Service, Server) {
    let service = Service::start(move |_| answer());
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&policy(&service));
    let server = home.serve();
    (home, service, server)
}

fn ok() -> Done {
    Done::and_answers(200, "", "{}")
}

/// V-6: a field that `Connection` nominates does not go on, so it is not shown, and not approved: with it
/// and without are two requests.
#[test]
fn v_6_a_nominated_field_makes_another_request() {
    let asks = "approval = \"required\"\n";
    let (home, service, server) = bench(ok, |service| service.policy(asks));
    let ask = |more: &[&str]| {
        let url = service.url("/charge");
        let mut arguments = vec!["-H", "Affiant-Wait: 0", "-H", "X-Dry-Run: true", "-d", "a=1"];
        arguments.extend(more);
        arguments.push(&url);
        server.curl(&arguments)
    };
    let first = ask(&["-H", "If-Match: \"v1\""]);
    let id = first.invocation();
    home.ok(&["approval", "approve", &id]);
    let drop = ["-H", "If-Match: \"v1\"", "-H", "Connection: X-Dry-Run, if-match"];
    let other = ask(&drop);
    assert_eq!(other.json()["error"]["code"], "APPROVAL_PENDING");
    assert_ne!(other.invocation(), id);
    let named = format!("Affiant-Invocation: {id}");
    let mut same_id = drop.to_vec();
    same_id.extend(["-H", &named]);
    assert_eq!(ask(&same_id).json()["error"]["code"], "IDEMPOTENCY_MISMATCH");
    assert_eq!(service.effects(), 0);
    let list = home.json(&["approval", "list"]);
    let held = list["approvals"].as_array().unwrap().iter();
    let held = held.clone().find(|held| held["invocation_id"] == other.invocation().as_str());
    let headers = held.unwrap()["request"]["headers"].to_string();
    assert!(!headers.contains("X-Dry-Run") && !headers.contains("If-Match"), "{headers}");
    let done = ask(&["-H", "If-Match: \"v1\""]);
    assert_eq!((done.status, done.invocation()), (200, id));
    let sent = &service.asked()[0];
    assert_eq!((sent.field("x-dry-run"), sent.field("if-match")), (Some("true"), Some("\"v1\"")));
}

/// V-1: one match decides on what goes on: a nominated field meets no condition.
#[test]
fn v_1_a_nominated_field_meets_no_condition() {
    let (_home, service, server) = bench(ok, |service| {
        let text = service.policy("");
        text.replace("path = \"/**\"", "path = \"/**\", headers = { X-Dry-Run = \"true\" }")
    });
    let url = service.url("/x");
    let with = ["-H", "X-Dry-Run: true"];
    assert_eq!(server.curl(&[&with[..], &[&url]].concat()).status, 200);
    let refused = server.curl(&[&with[..], &["-H", "Connection: X-Dry-Run", &url]].concat());
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (403, &"TARGET_NOT_ALLOWED".into())
    );
    assert_eq!(service.asked().len(), 1);
}

/// K-1, K-2: a key that did not go on makes no repeat safe.
#[test]
fn k_1_a_nominated_key_is_no_key() {
    let keyed = "idempotency = { header = \"Idempotency-Key\", contract = \"verified\" }\n";
    let (_home, service, server) = bench(Done::and_closes, |service| service.policy(keyed));
    let send = |key: &str, more: &[&str]| {
        let (url, key) = (service.url("/charge"), format!("Idempotency-Key: {key}"));
        let mut arguments = vec!["-H", &key, "-d", "a=1"];
        arguments.extend(more);
        arguments.push(&url);
        server.curl(&arguments).json()["error"]["retry"].clone()
    };
    assert_eq!(send("k-1", &[]), "same_idempotency_key");
    assert_eq!(send("k-2", &["-H", "Connection: Idempotency-Key"]), "reconcile");
    let asked = service.asked();
    let keys: Vec<_> = asked.iter().map(|asked| asked.field("idempotency-key")).collect();
    assert_eq!(keys, [Some("k-1"), None]);
}

/// C-7, K-7: a route that leads elsewhere by now has no say about a call to where it led before: its
/// new credential is not shown there.
#[test]
fn c_7_a_moved_route_asks_nothing_of_its_old_origin() {
    const ASKS: &str =
        "reconcile = { path = \"/ops/{invocation_id}\", committed = { status = 200 } }\n";
    let (home, old, server) = bench(Done::and_closes, |service| service.policy(ASKS));
    let new = Service::start(|_| ok());
    let lost = server.curl(&["-d", "a=1", &old.url("/charge")]);
    assert_eq!(lost.outcome(), "unknown");
    home.secret("pay-token", "canary-of-the-new-home");
    home.policy(&new.policy(ASKS));
    let refused = home.run(&["inv", "reconcile", &lost.invocation()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("NOT_RECONCILABLE"), "{}", text(&refused.stderr));
    assert_eq!((old.asked().len(), new.asked().len()), (1, 0));
    // A route that leads there again may ask again.
    home.policy(&old.policy(ASKS));
    home.run(&["inv", "reconcile", &lost.invocation()]);
    assert_eq!(old.asked().len(), 2);
}
