//! Batches (contract D-5): the whole, and one outcome for each member.

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

use serde_json::Value;
use service::{Done, Service};
use support::*;

/// Sends a batch over a route with the rule, and gives the record.
fn send(rule: &str, request: &str, answer: Option<(u16, &'static str)>) -> Value {
    let service = Service::start(move |_| match answer {
        Some((status, body)) => {
            Done::and_answers(status, "Content-Type: application/json\r\n", body)
        }
        None => Done::and_closes(),
    });
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&service.policy(rule));
    let server = home.serve();
    let id = server.curl(&["-d", request, &service.url("/batch")]).invocation();
    assert_eq!(service.asked().len(), 1);
    // What is on record survives the broker.
    server.kill();
    let server = home.serve();
    server.control(&format!("invocations/{id}"))
}

fn members(record: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let members = record["members"].as_array().unwrap().iter();
    members
        .map(|m| (text(&m["id"]), text(&m["verdict"]["outcome"]), text(&m["verdict"]["retry"])))
        .collect()
}

fn expect(id: &str, outcome: &str, retry: &str) -> (String, String, String) {
    (id.to_owned(), outcome.to_owned(), retry.to_owned())
}

const RPC: &str = r#"[{"jsonrpc":"2.0","id":1,"method":"pay"},{"jsonrpc":"2.0","id":2,"method":"x"},{"jsonrpc":"2.0","id":3,"method":"pay"}]"#;
const RPC_ANSWER: &str = r#"[{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no"}},{"jsonrpc":"2.0","id":1,"result":7}]"#;

/// D-5: a JSON-RPC batch that was answered in part: done, refused, and in doubt.
#[test]
fn d_5_json_rpc_members_have_outcomes_of_their_own() {
    let record = send("batch = { form = \"json-rpc\" }", RPC, Some((200, RPC_ANSWER)));
    assert_eq!(record["error"]["outcome"], "committed");
    assert_eq!(
        members(&record),
        [
            expect("1", "committed", "never"),
            expect("2", "rejected", "after_correction"),
            expect("3", "unknown", "reconcile"),
        ]
    );
}

/// D-5: the same at a service that applies a batch as one: the whole is reconciled.
#[test]
fn d_5_an_atomic_batch_is_reconciled_whole() {
    let rule = "batch = { form = \"json-rpc\", atomic = true }";
    let record = send(rule, RPC, Some((200, RPC_ANSWER)));
    let doubt = |id| expect(id, "unknown", "reconcile");
    assert_eq!(members(&record), [doubt("1"), doubt("2"), doubt("3")]);
}

/// D-5: a multi-status answer; and of a lost or refused whole each member shares the outcome.
#[test]
fn d_5_multi_status_members_and_a_lost_whole() {
    let rule = "batch = { form = \"multi-status\" }\nidempotent = true";
    let request = r#"{"requests":[{"id":"a"},{"id":"b"},{"id":"c"}]}"#;
    let answer = r#"{"responses":[{"id":"c","status":500},{"id":"a","status":201},{"id":"b","status":404}]}"#;
    let record = send(rule, request, Some((207, answer)));
    assert_eq!(
        members(&record),
        [
            expect("a", "committed", "never"),
            expect("b", "rejected", "after_correction"),
            expect("c", "committed", "backoff"),
        ]
    );
    let lost = send(rule, request, None);
    assert_eq!(lost["error"]["outcome"], "unknown");
    assert!(
        members(&lost).iter().all(|(_, outcome, retry)| outcome == "unknown" && retry == "backoff")
    );
    let refused = send(rule, request, Some((400, "{}")));
    assert!(members(&refused).iter().all(|(_, outcome, _)| outcome == "rejected"));
    assert_eq!(members(&refused).len(), 3);
    let single = send(rule, r#"{"id":"a"}"#, Some((200, "{}")));
    assert_eq!(members(&single), []);
}

/// D-5, K-1: under a key each member that is in doubt may be repeated with it, with the whole; a service
/// that applies a batch as one is reconciled as one.
#[test]
fn d_5_the_members_of_a_batch_under_a_key_share_its_instruction() {
    let key =
        r#"idempotency = { header = "Idempotency-Key", contract = "verified", generate = true }"#;
    let rule = format!("batch = {{ form = \"json-rpc\" }}\n{key}");
    let lost = send(&rule, RPC, None);
    assert_eq!(lost["error"]["retry"], "same_idempotency_key");
    let doubt = |id| expect(id, "unknown", "same_idempotency_key");
    assert_eq!(members(&lost), [doubt("1"), doubt("2"), doubt("3")]);
    let part = send(&rule, RPC, Some((200, RPC_ANSWER)));
    assert_eq!(
        members(&part),
        [
            expect("1", "committed", "never"),
            expect("2", "rejected", "after_correction"),
            doubt("3"),
        ]
    );
    let atomic = rule.replace("\"json-rpc\"", "\"json-rpc\", atomic = true");
    let lost = send(&atomic, RPC, None);
    let whole = |id| expect(id, "unknown", "reconcile");
    assert_eq!(members(&lost), [whole("1"), whole("2"), whole("3")]);
}

/// D-5: WebDAV in XML: the resources of a report, and the properties of a PROPPATCH, each with its own
/// status; what hides behind a document type says nothing.
#[test]
fn d_5_webdav_members_have_outcomes_of_their_own() {
    let report = r#"<C:calendar-multiget xmlns:C="urn:ietf:params:xml:ns:caldav" xmlns:D="DAV:"><D:prop><D:getetag/></D:prop><D:href>/a</D:href><D:href>/b</D:href><D:href>/c</D:href></C:calendar-multiget>"#;
    let answer = r#"<?xml version="1.0" encoding="utf-8"?><multistatus xmlns="DAV:"><response><href>/b</href><status>HTTP/1.1 404 Not Found</status></response><response><href>/a</href><propstat><prop><getetag>"1"</getetag></prop><status>HTTP/1.1 200 OK</status></propstat></response></multistatus>"#;
    let rule = "batch = { form = \"webdav\" }";
    let three = [
        expect("/a", "committed", "never"),
        expect("/b", "rejected", "after_correction"),
        expect("/c", "unknown", "reconcile"),
    ];
    assert_eq!(members(&send(rule, report, Some((207, answer)))), three);
    let hostile = r#"<!DOCTYPE m [<!ENTITY e "x">]><multistatus xmlns="DAV:"><response><href>/a</href><status>HTTP/1.1 200 OK</status></response></multistatus>"#;
    let said_nothing = send(rule, report, Some((207, hostile)));
    assert!(members(&said_nothing).iter().all(|(_, outcome, _)| outcome == "unknown"));

    let patch = r#"<D:propertyupdate xmlns:D="DAV:" xmlns:x="urn:x"><D:set><D:prop><x:author>me</x:author><x:year>1999</x:year></D:prop></D:set></D:propertyupdate>"#;
    let refused = r#"<D:multistatus xmlns:D="DAV:" xmlns:x="urn:x"><D:response><D:href>/doc</D:href><D:propstat><D:prop><x:author/></D:prop><D:status>HTTP/1.1 424 Failed Dependency</D:status></D:propstat><D:propstat><D:prop><x:year/></D:prop><D:status>HTTP/1.1 409 Conflict</D:status></D:propstat></D:response></D:multistatus>"#;
    let record = send(rule, patch, Some((207, refused)));
    assert_eq!(
        members(&record),
        [
            expect("{urn:x}author", "rejected", "after_correction"),
            expect("{urn:x}year", "rejected", "after_correction"),
        ]
    );
}
