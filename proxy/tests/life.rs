//! Connections and their ends: callers that leave, that half-close, that come in crowds; a journal
//! that takes nothing.

#![allow(clippy::indexing_slicing, clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;
use support::{Client, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A caller that leaves inside its content before dispatch: not attempted.
#[tokio::test]
async fn d_1_a_caller_that_leaves_before_dispatch() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("POST", "/ok", "", &"x".repeat(100));
    client.send(&request[..request.len() - 50]).await;
    drop(client);
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    let newest = loop {
        let filter = journal::Filter { limit: 1, ..Default::default() };
        if let Some(found) = world.journal.list(&filter).expect("list").invocations.pop() {
            break found;
        }
        assert!(tokio::time::Instant::now() < until);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    let verdict = world.invocation(newest.id()).await.verdict();
    assert_eq!(
        [verdict.code().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()],
        ["CALLER_GONE", "not_attempted", "backoff"]
    );
    assert_eq!(world.origin.all_effects(), 0);
}

/// D-4: a caller that leaves inside its content after dispatch: unknown.
#[tokio::test]
async fn d_4_a_caller_that_leaves_inside_its_content() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let mut client = Client::connect(world.address).await;
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let request = world.plain_request("PUT", "/status/200", &fields, &"x".repeat(3 << 20));
    client.send(&request[..2 << 20]).await;
    world.events(id, "DISPATCH_STARTED").await;
    drop(client);
    let verdict = world.invocation(id).await.verdict();
    assert_eq!(
        [verdict.code().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()],
        ["CALLER_CANCELLED", "unknown", "backoff"]
    );
}

/// A caller that ends its writing direction after the request still gets its answer.
#[tokio::test]
async fn half_closed_callers_are_answered() {
    let world = World::new().await;
    let mut tcp = TcpStream::connect(world.address).await.expect("connect");
    let request = world.plain_request("POST", "/ok", "", "x");
    tcp.write_all(request.as_bytes()).await.expect("write");
    tcp.shutdown().await.expect("shutdown");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.expect("read");
    assert!(answer.starts_with("HTTP/1.1 200 Fine\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    let filter = journal::Filter { limit: 1, ..Default::default() };
    let id = world.journal.list(&filter).expect("list").invocations[0].id();
    world.events(id, "RESULT_DELIVERED").await;
}

/// Both directions flow at once: an origin that answers while it reads blocks nobody.
#[tokio::test]
async fn both_directions_flow_at_once() {
    let world = World::new().await;
    let content = "0123456789abcdef".repeat(1 << 20);
    let request = world.plain_request("PUT", "/duplex", "", &content);
    let tcp = TcpStream::connect(world.address).await.expect("connect");
    let (reading, mut writing) = tcp.into_split();
    let sent = tokio::spawn(async move {
        writing.write_all(request.as_bytes()).await.expect("write");
        writing
    });
    let mut client = Client::over(reading);
    let response = client.response("PUT").await;
    assert_eq!(response.status, 200);
    assert!(response.complete);
    assert!(response.content == content.as_bytes());
    assert!(response.trailers.contains("Affiant-Outcome: committed;"), "{}", response.trailers);
    drop(sent.await.expect("sent"));
}

/// A caller that sends more only when it has read the beginning of the answer, where no guard has to see
/// the content first (an idempotent call; a POST needs `repeat_guard = "off"`).
#[tokio::test]
async fn two_way_calls_are_not_held() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("PUT", "/duplex", "", &"x".repeat(30));
    client.send(&request[..request.len() - 20]).await;
    for sent in 1..=3 {
        if sent == 1 {
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert!(head.contains("Affiant-Outcome: unknown;"), "{head}");
        } else {
            client.send(&"y".repeat(10)).await;
        }
        assert_eq!(client.line().await.as_deref(), Some("a"), "a chunk of ten");
        assert_eq!(client.take(12).await.len(), 12);
    }
    assert_eq!(client.line().await.as_deref(), Some("0"));
    assert!(client.head().await.contains("Affiant-Outcome: committed;"));
}

/// K-11: on a guarded route the same is not dispatched before its content is whole, because the guard
/// compares it; then it runs.
#[tokio::test]
async fn k_11_a_guarded_call_waits_for_its_content() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let mut client = Client::connect(world.address).await;
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let request = world.plain_request("POST", "/duplex", &fields, &"x".repeat(30));
    client.send(&request[..request.len() - 20]).await;
    // Of a later call everything happens; of this one nothing is on record yet.
    assert_eq!(world.plain("GET", "/ok", "", "").await.status, 200);
    assert_eq!(world.origin.connections(), 1);
    assert!(world.journal.invocation(id).expect("read").is_none());
    client.send(&request[request.len() - 20..]).await;
    let response = client.response("POST").await;
    assert_eq!((response.status, response.content.len()), (200, 30));
    assert!(response.outcome().starts_with("committed;"), "{}", response.outcome());
}

/// Many callers at once, each with several calls: every call runs once and is on record.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served() {
    const CALLERS: usize = 32;
    const CALLS: usize = 10;
    let world = Arc::new(World::new().await);
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            let mut client = world.tunnel().await;
            let mut ids = Vec::new();
            for call in 0..CALLS {
                let content = format!("{caller} {call}");
                let (path, method) = if call % 2 == 0 { ("/echo", "POST") } else { ("/ok", "GET") };
                let content = if method == "GET" { "" } else { content.as_str() };
                client.send(&world.secure_request(method, path, "", content)).await;
                let response = client.response(method).await;
                assert_eq!(response.status, 200, "{response:?}");
                assert!(response.text().ends_with(content) || method == "GET");
                assert!(response.outcome().starts_with("committed;"));
                ids.push(response.id());
            }
            ids
        });
    }
    let mut ids = std::collections::HashSet::new();
    while let Some(done) = tasks.join_next().await {
        ids.extend(done.expect("caller"));
    }
    assert_eq!(ids.len(), CALLERS * CALLS);
    assert_eq!(world.secure.all_effects(), CALLERS * CALLS);
    for id in ids {
        assert_eq!(world.invocation(id).await.verdict().outcome().as_str(), "committed");
    }
}

/// D-1: a journal that takes nothing stops the call before dispatch.
#[tokio::test]
async fn d_1_without_a_journal_nothing_is_sent() {
    let world = World::new().await;
    world.journal.close().await;
    let response = world.plain("POST", "/ok", "", "x").await;
    assert_eq!(response.status, 503);
    assert_eq!(response.facts(), ["JOURNAL_UNAVAILABLE", "validation", "not_attempted", "backoff"]);
    assert!(response.field("proxy-status").starts_with("affiant;error=proxy_internal_error"));
    assert_eq!(world.origin.all_effects(), 0);
}

/// Connections over the bound wait for their turn.
#[tokio::test]
async fn connections_are_bounded() {
    let options = proxy::Options { connections: 1, ..proxy::Options::default() };
    let world = World::with(|_, _| String::new(), options).await;
    let mut first = Client::connect(world.address).await;
    first.send(&world.plain_request("GET", "/ok", "", "")).await;
    assert_eq!(first.response("GET").await.status, 200);
    let mut second = Client::connect(world.address).await;
    second.send(&world.plain_request("GET", "/ok", "", "")).await;
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), second.head()).await;
    assert!(early.is_err(), "served over the bound");
    drop(first);
    assert!(second.head().await.starts_with("HTTP/1.1 200"));
}
