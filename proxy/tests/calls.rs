//! Calls from end to end: what the caller gets, what the origin saw, what is on record.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::Outcome;
use support::{Client, World};

fn names(events: &[journal::contract::Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.name()).collect()
}

/// D-1, R-1, E-4, S-1: the whole course of a plain call, in order.
#[tokio::test]
async fn d_1_a_call_runs_its_course() {
    let world = World::new().await;
    let response = world.plain("GET", "/ok?q=1", "", "").await;
    assert_eq!(response.status, 200);
    assert_eq!(response.text(), "ok");
    let id = response.id();
    assert_eq!(
        response.outcome(),
        format!("committed;phase=remote_execution;retry=never;code=OK;invocation=\"{id}\"")
    );
    let events = world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(
        names(&events),
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "SETUP_ATTEMPTED",
            "DISPATCH_STARTED",
            "REQUEST_SENT",
            "REMOTE_RESPONSE_STARTED",
            "REMOTE_RESPONSE_COMPLETE",
            "RESULT_COMMITTED",
            "RESULT_DELIVERED",
        ]
    );
    assert_eq!(world.origin.effects("/ok"), 1);
    assert!(world.origin.last_head().starts_with("GET /ok?q=1 HTTP/1.1\r\n"));
}

/// Fidelity: names, order, duplicates and `Date` of the origin stay; what belongs to the hop or
/// lies about the outcome goes.
#[tokio::test]
async fn e_4_fields_of_the_origin_stay_and_ours_are_added() {
    let world = World::new().await;
    let response = world.plain("GET", "/ok", "", "").await;
    assert!(response.head.starts_with("HTTP/1.1 200 Fine\n"), "{}", response.head);
    let lines: Vec<_> = response.head.lines().skip(1).take(7).collect();
    assert_eq!(
        lines,
        [
            "Date: Thu, 01 Jan 1970 00:00:01 GMT",
            "X-b: 1",
            "x-A: 2",
            "X-B: 3",
            "Set-Cookie: a",
            "Proxy-Status: far; error=dns_error",
            "Set-Cookie: b",
        ]
    );
    assert_eq!(response.all("affiant-outcome").len(), 1);
    assert_eq!(response.all("affiant-other").len(), 0);
    assert_eq!(response.all("x-hop").len(), 0);
    let next_hop = world.origin.address;
    assert_eq!(
        response.all("proxy-status"),
        [
            "far; error=dns_error".to_owned(),
            format!("affiant;next-hop=\"{next_hop}\";received-status=200")
        ]
    );
}

/// V-1: no identity, no call; the connection stays.
#[tokio::test]
async fn v_1_an_unknown_agent_is_asked_for_its_identity() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let address = world.origin.address;
    client.send(&format!("GET http://{address}/ok HTTP/1.1\r\nHost: {address}\r\n\r\n")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 407);
    assert_eq!(response.field("proxy-authenticate"), "Basic realm=\"affiant\"");
    assert_eq!(
        response.facts(),
        ["AGENT_UNAUTHENTICATED", "validation", "not_attempted", "after_correction"]
    );
    client.send(&world.plain_request("GET", "/ok", "", "")).await;
    assert_eq!(client.response("GET").await.status, 200);
    assert_eq!(world.origin.all_effects(), 1);
}

/// I-2, I-4, C-5: inside the tunnel the credential is injected, redacted when echoed, and nowhere
/// on disk.
#[tokio::test]
async fn i_4_an_echoed_credential_is_redacted() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    let fields = "Authorization: Bearer dummy\r\n";
    client.send(&world.secure_request("GET", "/with-credential/echo", fields, "")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 200, "{response:?}");
    let stars = "*".repeat("Bearer ".len() + support::SECRET.len());
    assert_eq!(response.field("x-echo"), format!("Authorization: {stars}"));
    assert!(response.text().contains(&stars));
    assert!(world.secure.last_head().contains(&format!("Bearer {}", support::SECRET)));
    assert!(!world.secure.last_head().contains("dummy"));
    let invocation = world.invocation(response.id()).await;
    assert!(invocation.evidence().redacted);
    world.journal.close().await;
    for file in walk(world.home.path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(support::SECRET.len()).any(|w| w == support::SECRET.as_bytes());
        assert!(!found, "{} holds the secret", file.display());
    }
}

/// I-2: a request in absolute form gets the credential of its route as one in a tunnel does.
#[tokio::test]
async fn i_2_absolute_form_gets_the_credential() {
    let route = |port: u16| {
        format!(
            "[[route]]\nname = \"clear\"\nagents = [\"coder\"]\ncredential = \"pay\"\n\
             private_addresses = \"allow\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, \
             path = \"/with-credential/**\" }}\n"
        )
    };
    let world =
        World::with(|origin, _| route(origin.address.port()), proxy::Options::default()).await;
    assert_eq!(world.plain("GET", "/with-credential/ok", "", "").await.status, 200);
    let head = world.origin.last_head();
    assert!(head.contains(&format!("\r\nauthorization: Bearer {}\r\n", support::SECRET)), "{head}");
    assert_eq!(world.plain("GET", "/ok", "", "").await.status, 200);
    assert!(!world.origin.last_head().contains(support::SECRET));
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

/// S-2, D-7: an origin that applies the effect and closes is asked once, and the outcome is
/// unknown.
#[tokio::test]
async fn d_7_a_close_without_an_answer_is_unknown_and_not_repeated() {
    let world = World::new().await;
    let response = world.plain("POST", "/close", "", "x").await;
    assert_eq!(response.status, 502);
    assert_eq!(
        response.facts(),
        ["REMOTE_OUTCOME_UNKNOWN", "remote_execution", "unknown", "reconcile"]
    );
    assert_eq!(response.field("x-should-retry"), "false");
    assert!(response.field("proxy-status").starts_with("affiant;error=connection_terminated"));
    assert_eq!(world.origin.effects("/close"), 1);
    let json = response.json();
    assert_eq!(json["evidence"]["dispatch_started"], true);
    assert_eq!(json["evidence"]["request_complete"], true);
    assert_eq!(json["evidence"]["response_headers_received"], false);
    assert_eq!(world.invocation(response.id()).await.verdict().outcome(), Outcome::Unknown);
}
