//! Idempotency keys of the broker's own, where a route says so (contract K-1 to K-5, K-11, X-3).

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

use serde_json::json;
use service::{Asked, Done, Service, honours_keys, pay};
use std::sync::mpsc;
use support::*;

const OURS: &str = r#"idempotency = { header = "Idempotency-Key", scope = "pay", retention = "1h", contract = "verified", generate = true }
retry = { max_attempts = 4 }"#;

/// The keys that the service was sent, request by request.
fn keys(service: &Service) -> Vec<Option<String>> {
    let key = |asked: &Asked| asked.field("idempotency-key").map(str::to_owned);
    service.asked().iter().map(key).collect()
}

/// K-1, K-2, T-3, X-3: the four facts are on record before the dispatch, and every retry carries the
/// same key, over a kill of the broker as well: the service charges once and gives its first result.
#[test]
fn k_2_a_key_of_ours_is_on_record_and_carried_by_every_retry() {
    let mut remember = honours_keys();
    // The second answer is lost as well.
    let service = Service::start(move |asked| match (asked.number, remember(asked)) {
        (2, done) => Done { answer: None, ..done },
        (_, done) => done,
    });
    let home = home(&service.policy(OURS));
    let server = home.serve();
    let lost = pay(&server, &service, &[]);
    assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
    let envelope = lost.json();
    assert_eq!(envelope["error"]["retry"], "same_idempotency_key");
    let facts = &envelope["evidence"]["idempotency"];
    let key = facts["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("req_") && key.len() == 30, "{key}");
    assert_eq!(facts["added_as"], "idempotency-key");
    assert_eq!((&facts["scope"], &facts["remote_contract"]), (&json!("pay"), &json!("verified")));
    assert_eq!(facts["fingerprint"], envelope["evidence"]["fingerprint"]);
    let id = lost.invocation();
    let shown = server.control(&format!("invocations/{id}"));
    let lasts_ms =
        facts["expires_at_ms"].as_u64().unwrap() - shown["accepted_at_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_600_000).contains(&lasts_ms), "{lasts_ms}");
    let events = server.control(&format!("invocations/{id}/events"))["events"].clone();
    let at = |name: &str| {
        events.as_array().unwrap().iter().position(|event| event["event"] == name).unwrap()
    };
    assert!(at("PREFLIGHT_VALIDATED") < at("DISPATCH_STARTED"));
    assert!(events[at("PREFLIGHT_VALIDATED")].to_string().contains(&key), "{events}");

    let (status, retried) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, &retried["attempt"]["error"]["outcome"]), (200, &json!("unknown")));
    server.kill();
    let server = home.serve();
    assert_eq!(decision(&server, &id)["decision"], "RETRY_SAME_KEY");
    let (status, retried) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, &retried["attempt"]["error"]["outcome"]), (200, &json!("committed")));
    assert_eq!(retried["attempt"]["evidence"]["idempotency"]["key"], key.as_str());
    assert_eq!(retried["attempt"]["evidence"]["idempotency"]["added_as"], "idempotency-key");
    assert_eq!(keys(&service), vec![Some(key); 3]);
    assert_eq!(service.effects(), 1);
    let result = server.curl(&[&format!("http://affiant.internal/v1/invocations/{id}/result")]);
    assert_eq!((result.status, text(&result.body).as_str()), (200, "charged once"));
}

/// K-11, K-2: a repeat that a client hides goes out under the key of what it repeats. Its result is
/// that of the earlier call too; after it was handed over, an equal request is a new action under a
/// new key, and so is one with an id of its own.
#[test]
fn k_11_a_hidden_repeat_carries_the_same_key_and_a_new_action_another() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(OURS));
    let server = home.serve();
    let lost = pay(&server, &service, &[]);
    assert_eq!(lost.outcome(), "unknown");
    server.kill();
    let server = home.serve();
    let repeated = pay(&server, &service, &[]);
    assert_eq!((repeated.status, repeated.outcome()), (200, "committed"));
    assert_eq!(text(&repeated.body), "charged once");
    let sent = keys(&service);
    assert_eq!((sent.len(), &sent[0]), (2, &sent[1]));
    assert_eq!(service.effects(), 1);
    let first = server.control(&format!("invocations/{}", lost.invocation()));
    assert_eq!(first["error"]["outcome"], "committed", "{first}");
    assert_eq!(first["evidence"]["source"], "remote_query");
    assert_eq!(first["links"]["observed_by"], repeated.invocation());
    assert_eq!(home.json(&["inv", "waiting"])["invocations"], json!([]));

    let another = pay(&server, &service, &[]);
    assert_eq!(another.outcome(), "unknown");
    let own = "Affiant-Invocation: act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let meant = pay(&server, &service, &["-H", own]);
    assert_eq!(meant.outcome(), "unknown");
    let sent = keys(&service);
    assert_eq!((sent.len(), service.effects()), (4, 3));
    assert!(sent[2] != sent[0] && sent[3] != sent[2] && sent[3] != sent[0], "{sent:?}");
}

/// K-6, K-11: while the first is in flight, an equal request is held back; of 16 at once one is sent.
#[test]
fn k_11_equal_requests_in_flight_are_sent_once() {
    let (arrived, reached) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let service = Service::start(move |_| {
        arrived.send(()).unwrap();
        held.recv().unwrap();
        Done::and_answers(200, "", "charged")
    });
    let home = home(&service.policy(OURS));
    let server = home.serve();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..16).map(|_| scope.spawn(|| pay(&server, &service, &[]))).collect();
        reached.recv().unwrap();
        eventually("the others are answered", || {
            calls.iter().filter(|call| call.is_finished()).count() == 15
        });
        release.send(()).unwrap();
        let mut statuses: Vec<u16> =
            calls.into_iter().map(|call| call.join().unwrap().status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [vec![200], vec![424; 15]].concat());
    });
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
}

/// K-4: a key is added where the route says so and to nothing else: not on a route that declares a key
/// without it, not on an undeclared one, not where repeating is harmless; a caller's key stays.
#[test]
fn k_4_no_key_is_added_anywhere_else() {
    let answers = |_: &Asked| Done::and_answers(200, "", "ok");
    for (rules, method, own, expected) in [
        (OURS, "POST", None, true),
        (OURS, "POST", Some("mine"), false),
        (OURS, "GET", None, false),
        (&*format!("{OURS}\nidempotent = true"), "POST", None, false),
        (&OURS.replace(", generate = true", ""), "POST", None, false),
        ("retry = { max_attempts = 4 }", "POST", None, false),
        ("", "POST", None, false),
    ] {
        let service = Service::start(answers);
        let home = home(&service.policy(rules));
        let server = home.serve();
        let mut arguments = vec!["-X", method];
        let field = own.map(|key| format!("Idempotency-Key: {key}"));
        arguments.extend(field.iter().flat_map(|field| ["-H", field.as_str()]));
        let url = service.url("/x");
        arguments.push(&url);
        let answer = server.curl(&arguments);
        assert_eq!(answer.status, 200);
        let sent = keys(&service);
        if expected {
            assert!(sent[0].as_ref().unwrap().starts_with("req_"), "{sent:?}");
        } else {
            assert_eq!(sent, [own.map(str::to_owned)], "{rules} {method}");
        }
        let state = server.control(&format!("invocations/{}", answer.invocation()));
        let added = &state["evidence"]["idempotency"]["added_as"];
        assert_eq!(added.is_string(), expected, "{rules} {method}");
    }
}

/// K-1: a key that the caller nominates as its hop's own reaches no service, so it counts for nothing;
/// one of ours is sent whatever the caller nominates.
#[test]
fn k_1_a_key_that_stays_on_the_hop_is_no_key() {
    for (rules, decided) in
        [(OURS.replace(", generate = true", ""), "RECONCILE"), (OURS.into(), "RETRY_SAME_KEY")]
    {
        let service = Service::start(|_| Done::and_closes());
        let home = home(&service.policy(&rules));
        let server = home.serve();
        let nominated = ["-H", "Idempotency-Key: k-1", "-H", "Connection: Idempotency-Key"];
        let id = pay(&server, &service, &nominated).invocation();
        assert_eq!(decision(&server, &id)["decision"], decided);
        let ours = keys(&service)[0].as_ref().is_some_and(|key| key.starts_with("req_"));
        assert_eq!(ours, decided == "RETRY_SAME_KEY");
    }
}

/// K-1, X-3: a service that ignores keys is declared as unverified. The key of ours goes out and is on
/// record, and nothing is sent again, by the engine or by a client's repeat.
#[test]
fn k_1_a_service_that_ignores_keys_is_asked_once() {
    let service = Service::start(|_| Done::and_closes());
    let home = home(&service.policy(&OURS.replace("\"verified\"", "\"unverified\"")));
    let server = home.serve();
    let lost = pay(&server, &service, &[]);
    let id = lost.invocation();
    assert_eq!(lost.json()["error"]["retry"], "reconcile");
    assert_eq!(decision(&server, &id)["decision"], "RECONCILE");
    let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    let stopped = pay(&server, &service, &[]);
    assert_eq!((stopped.status, stopped.outcome()), (424, "not_attempted"));
    assert_eq!(stopped.json()["error"]["follow"], id.as_str());
    assert!(keys(&service)[0].as_ref().unwrap().starts_with("req_"));
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
}

/// K-3, X-3: a caller may name the key that the record shows. With the same request it is that call's
/// key; with another one it is a mismatch, and the service, which would refuse it, never sees it. Another
/// request has another key.
#[test]
fn k_3_a_caller_names_the_key_of_ours_for_the_same_request_only() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(OURS));
    let server = home.serve();
    let lost = pay(&server, &service, &[]);
    let key = keys(&service)[0].clone().unwrap();
    let field = format!("Idempotency-Key: {key}");
    let url = service.url("/charges");
    let other = ["-d", "amount=2", "-H", "Content-Type: text/plain"];
    let changed = server.curl(&[&other[..], &["-H", &field, &url]].concat());
    assert_eq!((changed.status, changed.outcome()), (422, "not_attempted"));
    assert_eq!(changed.json()["error"]["code"], "IDEMPOTENCY_MISMATCH");
    assert_eq!(service.asked().len(), 1);
    let named = pay(&server, &service, &["-H", &field]);
    assert_eq!((named.status, text(&named.body).as_str()), (200, "charged once"));
    let apart = server.curl(&[&other[..], &[&url]].concat());
    assert_eq!(apart.outcome(), "unknown");
    let sent = keys(&service);
    assert_eq!((&sent[1], service.effects()), (&Some(key.clone()), 2));
    assert_ne!(sent[2], Some(key));
    assert_eq!(lost.outcome(), "unknown");
}

/// K-5: once the key of ours may be forgotten, neither the engine nor a client's repeat sends it, nor
/// another key in its place.
#[test]
fn k_5_an_expired_key_of_ours_is_neither_sent_nor_replaced() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(&OURS.replace("\"1h\"", "\"2s\"")));
    let server = home.serve();
    let id = pay(&server, &service, &[]).invocation();
    eventually("the key has expired", || decision(&server, &id)["decision"] == "RECONCILE");
    let (status, _) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!(status, 409);
    let stopped = pay(&server, &service, &[]);
    assert_eq!((stopped.status, stopped.outcome()), (424, "not_attempted"));
    let envelope = stopped.json();
    let error = &envelope["error"];
    assert_eq!((&error["retry"], &error["follow"]), (&json!("reconcile"), &json!(id)));
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
}

/// K-11: a result that was not handed over answers a repeat; a service's own failure under the key is
/// asked for again under it.
#[test]
fn k_11_a_failure_is_repeated_under_its_key() {
    let service = Service::start(|asked| match asked.number {
        1 => Done::and_answers(500, "", "failed inside"),
        _ => Done::nothing_but(200, "", "done after all"),
    });
    let home = home(&service.policy(OURS));
    let server = home.serve();
    let failed = pay(&server, &service, &[]);
    assert_eq!((failed.status, failed.outcome()), (500, "committed"));
    let repeated = pay(&server, &service, &[]);
    assert_eq!((repeated.status, text(&repeated.body).as_str()), (200, "done after all"));
    let sent = keys(&service);
    assert_eq!((sent.len(), &sent[0]), (2, &sent[1]));
}

/// T-1, K-2: where the route opts in, the broker repeats under its key by itself, and a caller that knows
/// nothing of keys gets one effect and its result.
#[test]
fn t_1_the_broker_repeats_under_its_own_key_by_itself() {
    let service = Service::start(honours_keys());
    let rules = OURS.replace("max_attempts = 4", "max_attempts = 4, automatic = true");
    let home = home(&service.policy(&rules));
    let server = home.serve();
    let answer = pay(&server, &service, &[]);
    assert_eq!((answer.status, answer.outcome()), (200, "committed"));
    assert_eq!(text(&answer.body), "charged once");
    let sent = keys(&service);
    assert_eq!((sent.len(), &sent[0], service.effects()), (2, &sent[1], 1));
    let explained =
        home.ok(&["policy", "explain", "--agent", "coder", "POST", &service.url("/charges")]);
    assert!(explained.contains("key in header idempotency-key, a key of ours where there is none"));
}

/// K-7: the question about a call in doubt names it by the key of ours.
#[test]
fn k_7_a_call_in_doubt_is_asked_about_by_the_key_of_ours() {
    let service = Service::start(|asked| match asked.method.as_str() {
        "GET" => Done::nothing_but(200, "", "there"),
        _ => Done::and_closes(),
    });
    let rules = format!(
        "{OURS}\nreconcile = {{ path = \"/charges?key={{idempotency_key}}\", \
         committed = {{ status = 200 }} }}"
    );
    let home = home(&service.policy(&rules));
    let server = home.serve();
    let id = pay(&server, &service, &[]).invocation();
    let (status, answer) = post(&server, &format!("invocations/{id}/reconcile"));
    assert_eq!(status, 200, "{answer}");
    let key = keys(&service)[0].clone().unwrap();
    assert_eq!(service.asked()[1].target, format!("/charges?key={key}"));
    let settled = server.control(&format!("invocations/{id}"));
    assert_eq!(settled["error"]["outcome"], "committed");
}
