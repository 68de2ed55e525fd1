//! What a shutdown has no time for is cut, wherever it is, and says so to its caller and to the record.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use proxy::Options;
use std::sync::Arc;
use std::time::Duration;
use support::http2::Http2Client;
use support::{Client, Response, World};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(20);

/// A world whose shutdown gives nobody time.
async fn hasty(extra: &str) -> World {
    let options = Options { drain: Duration::ZERO, farewell: LIMIT, ..Options::default() };
    World::with(|_, _| extra.to_owned(), options).await
}

/// Shuts down once all that was sent before is read, and awaits the answer.
async fn cut(world: &World, client: &mut Client, method: &str) -> Response {
    assert_eq!(world.plain("GET", "/ok", "", "").await.status, 200);
    world.shut_down();
    client.response(method).await
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + LIMIT;
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn is_refused(world: &World, answer: &Response) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.facts()[0], "SHUTTING_DOWN");
    assert_eq!(answer.facts()[2..], ["not_attempted", "backoff"]);
    let verdict = world.invocation(answer.id()).await.verdict();
    assert_eq!(
        (verdict.code().as_str(), verdict.outcome().as_str()),
        ("SHUTTING_DOWN", "not_attempted")
    );
}

/// D-1: content of a guarded call that is not whole yet.
#[tokio::test]
async fn d_1_a_call_whose_content_is_awaited() {
    let world = hasty("").await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("POST", "/ok", "", "0123456789");
    client.send(&request[..request.len() - 7]).await;
    let answer = cut(&world, &mut client, "POST").await;
    is_refused(&world, &answer).await;
    assert_eq!(answer.field("connection"), "close");
    assert_eq!(world.origin.effects("/ok"), 1, "the other call's");
}

/// D-1: a call on its way to an origin that does not answer the handshake; over HTTP/2 as well.
#[tokio::test]
async fn d_1_a_call_that_is_not_connected_yet() {
    for http2 in [false, true] {
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let port = silent.local_addr().expect("address").port();
        let world = hasty(&format!(
            "[[route]]\nname = \"silent\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
             match = {{ host = \"127.0.0.1\", port = {port} }}\n"
        ))
        .await;
        if http2 {
            let client = Arc::new(Http2Client::open(&world, port).await);
            let caller = Arc::clone(&client);
            let call = tokio::spawn(async move { caller.call("POST", "/x", b"x").await });
            let dialled = tokio::time::timeout(LIMIT, silent.accept()).await.expect("in time");
            let (_held, _) = dialled.expect("dialled");
            world.shut_down();
            let answer = call.await.expect("answered");
            let said = answer.field("affiant-outcome");
            assert_eq!(answer.status, 503);
            assert!(said.starts_with("not_attempted;"), "{said}");
        } else {
            let mut client = Client::connect(world.address).await;
            let credentials = world.credentials();
            let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n");
            client.send(&format!("{connect}{credentials}\r\n")).await;
            assert_eq!(client.response("CONNECT").await.status, 200);
            let mut client = client.into_tls(world.ca.certificate_pem(), "127.0.0.1").await;
            let host = format!("Host: 127.0.0.1:{port}\r\n");
            client.send(&format!("GET /x HTTP/1.1\r\n{host}\r\n")).await;
            let dialled = tokio::time::timeout(LIMIT, silent.accept()).await.expect("in time");
            let (_held, _) = dialled.expect("dialled");
            world.shut_down();
            is_refused(&world, &client.response("GET").await).await;
        }
    }
}

/// D-1: content that is still owed behind a dispatch keeps the envelope from nobody.
#[tokio::test]
async fn d_1_a_dispatched_call_whose_content_is_owed() {
    let world = hasty("").await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("PUT", "/status/200", "", "0123456789");
    client.send(&request[..request.len() - 7]).await;
    let list = || world.journal.list(&journal::Filter { limit: 1, ..Default::default() });
    until("dispatched", || {
        list().expect("list").invocations.first().is_some_and(journal::Invocation::is_dispatched)
    })
    .await;
    world.shut_down();
    let answer = client.response("PUT").await;
    assert_eq!((answer.status, answer.complete), (502, true), "{answer:?}");
    assert_eq!(answer.facts()[0], "BROKER_RESTARTED");
    assert_eq!(answer.facts()[2], "unknown");
}

/// K-10: a repeat that waits for the call under way.
#[tokio::test]
async fn k_10_a_repeat_that_waits() {
    let world = hasty("").await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let request = world.plain_request("POST", "/gate", &fields, "x");
    let (mut first, mut second) =
        (Client::connect(world.address).await, Client::connect(world.address).await);
    first.send(&request).await;
    world.origin.reached("/gate", 1).await;
    second.send(&request).await;
    let answer = cut(&world, &mut second, "POST").await;
    assert_eq!((answer.complete, answer.id()), (true, id), "{answer:?}");
    assert_eq!(answer.facts()[2], "unknown");
    let answer = first.response("POST").await;
    assert_eq!(answer.facts()[0], "BROKER_RESTARTED");
    assert_eq!(world.origin.effects("/gate"), 1);
}
