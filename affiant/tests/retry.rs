//! The retry engine against services with a memory (contract K-1 to K-6, T-1 to T-3, X-3).

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
use service::{Asked, Done, Service, honours_keys, pay};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::*;

const KEYED: &str = r#"idempotency = { header = "Idempotency-Key", scope = "pay", retention = "1h", contract = "verified" }
retry = { max_attempts = 3 }"#;

/// K-1 to K-3, X-3: a service that honours keys is asked again with the same key and the same bytes;
/// the effect happens once, the result is the caller's by its own id, and the attempts are linked.
#[test]
fn k_1_the_same_key_brings_the_first_result() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(KEYED));
    let server = home.serve();
    let lost = pay(&server, &service, &["-H", "Idempotency-Key: k-1"]);
    assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
    let id = lost.invocation();
    let before = decision(&server, &id);
    assert_eq!(before["decision"], "RETRY_SAME_KEY");
    assert_eq!((before["attempts"].as_u64(), before["max_attempts"].as_u64()), (Some(1), Some(3)));

    let (status, retried) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!(status, 200, "{retried}");
    let attempt = retried["attempt"]["invocation_id"].as_str().unwrap().to_owned();
    assert_ne!(attempt, id);
    assert_eq!(retried["attempt"]["error"]["outcome"], "committed");
    assert_eq!(retried["attempt"]["links"]["earlier"], id.as_str());
    assert_eq!(retried["attempt"]["evidence"]["attempt"], 2);
    assert_eq!(service.effects(), 1);
    let asked = service.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].body, asked[1].body);
    for name in ["idempotency-key", "authorization", "content-type", "host"] {
        assert_eq!(asked[0].field(name), asked[1].field(name), "{name}");
    }

    // J-3: late evidence settles the first attempt; what was observed of it stays.
    let first = server.control(&format!("invocations/{id}"));
    assert_eq!(first["error"]["outcome"], "committed");
    assert_eq!(first["evidence"]["source"], "remote_query");
    assert_eq!(first["evidence"]["response_complete"], false);
    assert_eq!(first["links"]["retries"], json!([attempt]));
    assert_eq!(first["links"]["observed_by"], attempt.as_str());
    let names: Vec<_> = server.control(&format!("invocations/{id}/events"))["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["event"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "REQUEST_STORED",
            "SETUP_ATTEMPTED",
            "DISPATCH_STARTED",
            "REQUEST_SENT",
            "INVOCATION_ENDED",
            "LEASE_ACQUIRED",
            "LEASE_USED",
            "RESULT_COMMITTED",
            "LEASE_RELEASED",
        ]
    );
    // R-2: nobody waited for it, so the instruction is to fetch it.
    assert_eq!(retried["attempt"]["error"]["retry"], "fetch_result");
    let result = server.curl(&[&format!("http://affiant.internal/v1/invocations/{id}/result")]);
    assert_eq!((result.status, text(&result.body).as_str()), (200, "charged once"));
    eventually("the result is handed over", || {
        decision(&server, &id)["decision"] == "RETURN_RECORDED_RESULT"
    });
    // T-2: nothing more is sent, and the answer says why.
    let (status, refused) = post(&server, &format!("invocations/{attempt}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    assert_eq!(refused["decision"], "RETURN_RECORDED_RESULT");
    assert_eq!(service.asked().len(), 2);
}

/// K-3, X-3: the key with another request is stopped here; the service, which would refuse it, never
/// sees it.
#[test]
fn k_3_a_key_with_another_request_is_a_mismatch() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(KEYED));
    let server = home.serve();
    let key = ["-H", "Idempotency-Key: k-1"];
    let lost = pay(&server, &service, &key);
    assert_eq!(lost.outcome(), "unknown");
    let url = service.url("/charges");
    let other = server.curl(&["-d", "amount=2", key[0], key[1], &url]);
    assert_eq!((other.status, other.outcome()), (422, "not_attempted"));
    assert_eq!(other.json()["error"]["code"], "IDEMPOTENCY_MISMATCH");
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
}

/// K-1, X-3: where the contract of the key is not verified, or the route has no key, nothing is sent
/// again: the service would have applied it twice.
#[test]
fn k_1_without_a_verified_contract_nothing_is_sent_again() {
    for contract in [
        r#"idempotency = { header = "Idempotency-Key", contract = "unverified" }
retry = { max_attempts = 3, automatic = true }"#,
        "retry = { max_attempts = 3, automatic = true }",
    ] {
        let service = Service::start(|_| Done::and_closes());
        let home = home(&service.policy(contract));
        let server = home.serve();
        let lost = pay(&server, &service, &["-H", "Idempotency-Key: k-1"]);
        assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
        let id = lost.invocation();
        assert_eq!(decision(&server, &id)["decision"], "RECONCILE");
        let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
        assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
        assert_eq!(refused["decision"], "RECONCILE");
        assert_eq!((service.asked().len(), service.effects()), (1, 1));
    }
}

/// K-5, X-3: once the retention of a key has passed nothing is sent again: the service has forgotten the
/// key, and would charge a second time.
#[test]
fn k_5_x_3_a_service_that_forgets_keys_is_not_asked_after_their_retention() {
    let mut remember: Box<dyn FnMut(&Asked) -> Done + Send> = Box::new(honours_keys());
    let forgets = Arc::new(AtomicBool::new(false));
    let has_forgotten = Arc::clone(&forgets);
    let service = Service::start(move |asked| {
        if has_forgotten.swap(false, Ordering::SeqCst) {
            remember = Box::new(honours_keys());
        }
        remember(asked)
    });
    let home = home(&service.policy(&KEYED.replace("\"1h\"", "\"2s\"")));
    let server = home.serve();
    let key = ["-H", "Idempotency-Key: k-1"];
    let lost = pay(&server, &service, &key).invocation();
    eventually("the key has expired", || decision(&server, &lost)["decision"] == "RECONCILE");
    forgets.store(true, Ordering::SeqCst);
    let (status, refused) = post(&server, &format!("invocations/{lost}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
    // Nor by the client's own repeat: the key lifts the guard no more (K-11), and renews nothing.
    for _ in 0..2 {
        let stopped = pay(&server, &service, &key);
        assert_eq!((stopped.status, stopped.outcome()), (424, "not_attempted"));
        let envelope = stopped.json();
        let error = &envelope["error"];
        assert_eq!(error["code"], "IN_DOUBT_DUPLICATE");
        assert_eq!((&error["retry"], &error["follow"]), (&json!("reconcile"), &json!(lost)));
    }
    assert_eq!((service.asked().len(), service.effects()), (1, 1));

    // What that is good for: asked past the broker, the service charges again.
    let url = service.url("/charges");
    let sent = ["-s", "--noproxy", "*", "-d", "amount=1", key[0], key[1], &url];
    assert_eq!(Command::new("curl").args(sent).status().unwrap().code(), Some(52));
    assert_eq!(service.effects(), 2);
}

/// T-3: a service that never answers uses up the budget; then the instruction is `reconcile`, and a
/// restart resets nothing.
#[test]
fn t_3_a_spent_budget_is_reconcile_after_a_restart_too() {
    let service = Service::start(|asked| Done { effect: asked.number == 1, answer: None });
    let home = home(&service.policy(KEYED));
    let server = home.serve();
    let id = pay(&server, &service, &["-H", "Idempotency-Key: k-1"]).invocation();
    for n in 2..=3 {
        let (status, retried) = post(&server, &format!("invocations/{id}/retry"));
        assert_eq!(status, 200, "{retried}");
        assert_eq!(retried["attempt"]["error"]["outcome"], "unknown");
        assert_eq!(retried["standing"]["attempts"], n);
    }
    let check = |server: &Server| {
        let spent = decision(server, &id);
        assert_eq!(
            (&spent["decision"], &spent["retry"]),
            (&json!("RECONCILE"), &json!("reconcile"))
        );
        let (status, refused) = post(server, &format!("invocations/{id}/retry"));
        assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
        assert_eq!(service.asked().len(), 3);
    };
    check(&server);
    server.kill();
    let server = home.serve();
    check(&server);
    // It waits for a person, and a person settles all attempts of it.
    let waiting = home.json(&["inv", "waiting"]);
    assert_eq!(waiting["invocations"].as_array().unwrap().len(), 1);
    assert_eq!(waiting["invocations"][0]["invocation_id"], id.as_str());
    home.ok(&["inv", "attest", &id, "--outcome", "committed", "--note", "seen in the ledger"]);
    assert_eq!(home.json(&["inv", "waiting"])["invocations"], json!([]));
    let stated = server.control(&format!("invocations/{id}"));
    assert_eq!(stated["note"], "seen in the ledger");
}

/// V-5, T-1: the credential of a retry is the one of now, with its version on record; policy is asked
/// anew, and a route that lost its permission stops it.
#[test]
fn v_5_a_retry_uses_the_credential_and_the_policy_of_now() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(KEYED));
    let server = home.serve();
    let one = pay(&server, &service, &["-H", "Idempotency-Key: k-1"]).invocation();
    let two = pay(&server, &service, &["-H", "Idempotency-Key: k-2"]).invocation();
    home.secret("pay-token", "another-canary-secret");
    let (status, retried) = post(&server, &format!("invocations/{one}/retry"));
    assert_eq!(status, 200, "{retried}");
    assert_eq!(retried["attempt"]["credential"]["version"], 2);
    let first = server.control(&format!("invocations/{one}"));
    assert_eq!(first["credential"]["version"], 1);
    let sent: Vec<_> =
        service.asked().iter().map(|a| a.field("authorization").unwrap().to_owned()).collect();
    assert_eq!(sent[2], "Bearer another-canary-secret");
    for policy in [
        service.policy(&KEYED.replace("\"verified\"", "\"unverified\"")),
        service.policy(KEYED.lines().next().unwrap()),
    ] {
        home.policy(&policy);
        let (status, refused) = post(&server, &format!("invocations/{two}/retry"));
        assert_eq!((status, refused["code"].as_str()), (409, Some("POLICY_CHANGED")), "{refused}");
    }
    assert_eq!(service.asked().len(), 3);
}

/// K-6: of 64 retries at once one is dispatched.
#[test]
fn k_6_of_64_retries_at_once_one_is_dispatched() {
    let service = Service::start(honours_keys());
    let home = home(&service.policy(KEYED));
    let server = home.serve();
    let id = pay(&server, &service, &["-H", "Idempotency-Key: k-1"]).invocation();
    let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let call = || post(&server, &format!("invocations/{id}/retry"));
        let calls: Vec<_> = (0..64).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|(status, _)| *status == 200).count(), 1);
    for (status, body) in answers.iter().filter(|(status, _)| *status != 200) {
        let code = body["code"].as_str().unwrap();
        assert_eq!(*status, 409);
        assert!(["RETRY_UNDER_WAY", "RETRY_NOT_ALLOWED"].contains(&code), "{body}");
    }
    assert_eq!((service.asked().len(), service.effects()), (2, 1));
}

/// T-1, C-4: where a route opts in, the broker retries what is idempotent while its caller waits, not
/// sooner than `Retry-After`, and the caller gets one answer under its own id.
#[test]
fn t_1_the_broker_retries_by_itself_where_a_route_opts_in() {
    let service = Service::start(|asked| match asked.number {
        1 => Done { effect: false, answer: None },
        2 => Done::nothing_but(503, "Retry-After: 1\r\n", "later"),
        _ => Done::and_answers(200, "X-Marker: third\r\n", "done"),
    });
    let home = home(&service.policy("retry = { max_attempts = 4, automatic = true }"));
    let server = home.serve();
    let answer = server.curl(&[&service.url("/items")]);
    assert_eq!((answer.status, answer.outcome()), (200, "committed"));
    assert_eq!((text(&answer.body).as_str(), answer.field("x-marker")), ("done", Some("third")));
    let id = answer.invocation();
    let first = server.control(&format!("invocations/{id}"));
    let retries: Vec<&str> =
        first["links"]["retries"].as_array().unwrap().iter().map(|r| r.as_str().unwrap()).collect();
    assert_eq!(retries.len(), 2);
    let second = server.control(&format!("invocations/{}", retries[0]));
    let third = server.control(&format!("invocations/{}", retries[1]));
    assert_eq!(second["error"]["outcome"], "rejected");
    let not_before = second["error"]["not_before_ms"].as_u64().unwrap();
    assert!(third["accepted_at_ms"].as_u64().unwrap() >= not_before, "{second} {third}");
    assert_eq!(third["evidence"]["attempt"], 3);
    assert_eq!(service.asked().len(), 3);
    eventually("the delivery of both", || {
        let delivered =
            |id: &str| server.control(&format!("invocations/{id}"))["delivery"] == "delivered";
        delivered(&id) && delivered(retries[1])
    });
}

/// T-1: an automatic retry that can't help is not made: the caller gets what stands, and the time a
/// service asks for is kept even when the caller would not wait for it.
#[test]
fn t_1_what_may_not_be_retried_is_answered_at_once() {
    let service = Service::start(|asked| match asked.target.as_str() {
        "/soon" => Done::nothing_but(503, "Retry-After: 86000\r\n", "tomorrow"),
        "/bad" => Done::nothing_but(404, "", "no"),
        "/broken" => Done::and_answers(500, "", "oops"),
        _ => Done::and_closes(),
    });
    let home =
        home(&service.policy(r#"retry = { max_attempts = 9, automatic = true, within = "5s" }"#));
    let server = home.serve();
    for (path, status, outcome, body) in [
        ("/soon", 503, "rejected", "tomorrow"),
        ("/bad", 404, "rejected", "no"),
        ("/broken", 500, "committed", "oops"),
    ] {
        let answer = server.curl(&[&service.url(path)]);
        assert_eq!((answer.status, answer.outcome()), (status, outcome), "{path}");
        assert_eq!(text(&answer.body), body);
    }
    assert_eq!(service.asked().len(), 3);
    // An explicit retry is no sooner either.
    let soon = server.control("invocations?outcome=rejected&limit=2");
    let id = soon["invocations"][1]["invocation_id"].as_str().unwrap();
    let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_TOO_EARLY")), "{refused}");
    assert_eq!(service.asked().len(), 3);
}

/// C-4: on a route that retries, setup is tried again within its time, each try on record, and none
/// crossed dispatch.
#[test]
fn c_4_setup_is_tried_again_and_every_try_is_on_record() {
    let (held, closed) = refusing();
    let home = home(&service::policy(closed, "retry = { max_attempts = 2 }"));
    let server = home.serve();
    let refused = server.curl(&[&format!("http://{closed}/x")]);
    assert_eq!((refused.status, refused.outcome()), (502, "not_attempted"));
    let envelope = refused.json();
    let attempts = envelope["evidence"]["attempts"].as_array().unwrap();
    let seen: Vec<_> = attempts.iter().map(|a| (a["n"].as_u64(), a["code"].as_str())).collect();
    let tried = |n| (Some(n), Some("ECONNREFUSED"));
    assert_eq!(seen, [tried(1), tried(2), tried(3)]);
    assert_eq!(envelope["evidence"]["dispatch_started"], false);
    // What was not attempted may be retried, and the service is there now.
    let id = refused.invocation();
    assert_eq!(decision(&server, &id)["decision"], "RETRY_NEW_ATTEMPT");
    let service = Service::on(listening(held), |_| Done::and_answers(200, "", "here"));
    let (status, retried) = retry_when_allowed(&server, &id);
    assert_eq!(status, 200, "{retried}");
    assert_eq!(service.effects(), 1);
    let result = server.curl(&[&format!("http://affiant.internal/v1/invocations/{id}/result")]);
    assert_eq!(text(&result.body), "here");
    let first = server.control(&format!("invocations/{id}"));
    assert_eq!(first["error"]["outcome"], "not_attempted", "not_attempted is final");
    eventually("the result is handed over", || {
        decision(&server, &id)["decision"] == "RETURN_RECORDED_RESULT"
    });
}

/// T-3, I-2: the stored request is in no file in clear, and holds no credential of policy's.
#[test]
fn t_3_a_stored_request_is_not_in_clear_anywhere() {
    const CONTENT: &str = "canary-of-the-content-4711";
    let service = Service::start(|_| Done::and_closes());
    let home = home(&service.policy("retry = { max_attempts = 2 }"));
    let server = home.serve();
    let lost = server.curl(&["-d", CONTENT, &service.url("/x")]);
    assert_eq!(lost.outcome(), "unknown");
    assert_eq!(server.terminate(), Some(0));
    let mut files = vec![home.path().to_owned()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(bytes) = std::fs::read(&path) {
            for canary in [CONTENT, SECRET] {
                let found = bytes.windows(canary.len()).any(|w| w == canary.as_bytes());
                assert!(!found, "{canary} is in {}", path.display());
            }
        }
    }
}

/// J-3, J-5: an operator's word settles what is in doubt, as an operator's word; the attempt's own
/// events stay. An agent can't state anything, and what is decided can't be stated.
#[test]
fn j_5_an_operator_states_what_happened() {
    let service = Service::start(|asked| match asked.target.as_str() {
        "/fine" => Done::and_answers(200, "", "ok"),
        _ => Done::and_closes(),
    });
    let home = home(&service.policy(""));
    let server = home.serve();
    let lost = |path: &str| server.curl(&["-d", "x", &service.url(path)]).invocation();
    let (one, two, fine) = (lost("/one"), lost("/two"), lost("/fine"));
    let events = |id: &str| server.control(&format!("invocations/{id}/events"))["events"].clone();
    let before = events(&one);

    let path = format!("http://affiant.internal/v1/invocations/{one}/attest");
    let statement = r#"{"outcome":"committed","note":"I say so"}"#;
    let refused = server.curl(&["-d", statement, &path]);
    assert_eq!((refused.status, refused.json()["code"].as_str()), (403, Some("OPERATORS_ONLY")));
    assert_eq!(events(&one), before);

    home.ok(&["inv", "attest", &one, "--outcome", "committed", "--note", "ledger 17"]);
    home.ok(&["inv", "attest", &two, "--outcome", "rejected", "--note", "not in the ledger"]);
    for (id, outcome, retry, note) in [
        (&one, "committed", "never", "ledger 17"),
        (&two, "rejected", "after_correction", "not in the ledger"),
    ] {
        let state = server.control(&format!("invocations/{id}"));
        assert_eq!(state["error"]["outcome"], outcome);
        assert_eq!(state["error"]["retry"], retry);
        assert_eq!(state["evidence"]["source"], "operator_attested");
        assert_eq!(state["evidence"]["response_complete"], false);
        assert_eq!(state["note"], note);
        assert_eq!(state["error"]["message"], "An operator stated the outcome of this call.");
    }
    let after = events(&one);
    let (old, all) = (before.as_array().unwrap(), after.as_array().unwrap());
    assert_eq!(&all[..old.len()], &old[..], "the attempt's own events are as they were");
    assert_eq!(all.len(), old.len() + 1);
    assert_eq!(all[old.len()]["source"], "operator_attested");

    for (id, outcome, code) in [(&one, "rejected", 1), (&fine, "committed", 1), (&two, "maybe", 2)]
    {
        let output =
            home.run(&["inv", "attest", id, "--outcome", outcome, "--note", "another word"]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
    let empty = home.run(&["inv", "attest", &one, "--outcome", "committed", "--note", " "]);
    assert_eq!(empty.status.code(), Some(2));
    // Without a server the statement works as well, and a retry says what is missing.
    let three = lost("/three");
    assert_eq!(server.terminate(), Some(0));
    let retry = home.run(&["inv", "retry", &three]);
    assert!(text(&retry.stderr).contains("affiant serve"), "{}", text(&retry.stderr));
    home.ok(&["inv", "attest", &three, "--outcome", "committed", "--note", "by phone"]);
    assert_eq!(home.json(&["inv", "show", &three])["note"], "by phone");
}

/// V-4: what is refused by validation is never retried, by the broker or on request.
#[test]
fn v_4_a_refusal_is_never_retried() {
    let service = Service::start(|_| Done::and_answers(200, "", "ok"));
    let home = home(&service.policy("retry = { max_attempts = 9, automatic = true }"));
    let server = home.serve();
    let refused = server.curl(&["-H", "Authorization: Bearer mine", &service.url("/x")]);
    assert_eq!(refused.json()["error"]["code"], "HEADER_FORBIDDEN");
    let id = refused.invocation();
    let (status, answer) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, answer["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    assert_eq!(answer["decision"], "STOP_FOR_CORRECTION");
    let all = server.control("invocations");
    assert_eq!(all["invocations"].as_array().unwrap().len(), 1);
    assert_eq!(service.asked().len(), 0);
}
