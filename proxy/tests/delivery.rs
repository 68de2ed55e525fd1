//! Whether a result reached its caller (contract R-5): what proves it, and what does not.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Body, Confirmation, Event, InvocationId};
use rustix::net::sockopt;
use std::time::Duration;
use support::{Client, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn confirmations(events: &[Event]) -> Vec<Confirmation> {
    let one = |event: &Event| {
        if let Body::ResultDelivered(delivered) = &event.body {
            Some(delivered.confirmation)
        } else {
            None
        }
    };
    events.iter().filter_map(one).collect()
}

/// R-5, K-11: callers that read their answer inside TLS, say goodbye and close at once have it: each
/// equal POST after that is a new action.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_a_caller_that_closes_after_its_answer_has_it() {
    let world = World::new().await;
    for (path, text) in [("/ok", "ok"), ("/chunked", "hello"), ("/trailers", "hello")] {
        for n in 1..=15 {
            let mut client = world.tunnel().await;
            client.send(&world.secure_request("POST", path, "", "same")).await;
            let response = client.response("POST").await;
            assert_eq!((response.status, response.text().as_str()), (200, text));
            assert!(!response.outcome().contains("replayed"), "{path} {n}");
            client.close().await;
            let events = world.events(response.id(), "RESULT_DELIVERED").await;
            assert_eq!(confirmations(&events).len(), 1);
        }
        assert_eq!(world.secure.effects(path), 15, "{path}");
    }
}

/// R-4, S-2: what was kept of a long response that was cut is no result: it can't be fetched, and a repeat by
/// id gets the envelope and no part of it.
#[tokio::test]
async fn r_4_a_result_that_was_cut_is_none() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let cut = world.plain("GET", "/cut-long", &fields, "").await;
    assert_eq!((cut.status, cut.complete), (200, false));
    assert!(cut.content.len() > 2_000_000, "most of it was streamed");
    let invocation = world.invocation(id).await;
    assert_eq!(invocation.verdict().code().as_str(), "REMOTE_RESULT_INCOMPLETE");
    assert!(!invocation.evidence().result_stored);
    assert!(world.journal.result(id).is_err());
    let repeat = world.plain("GET", "/cut-long", &fields, "").await;
    assert_eq!(repeat.status, 502, "{repeat:?}");
    assert_eq!(
        repeat.facts(),
        ["REMOTE_RESULT_INCOMPLETE", "remote_execution", "unknown", "backoff"]
    );
    assert_eq!(world.origin.effects("/cut-long"), 1);
}

/// the same for stock curl, which closes without waiting for our goodbye.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_k_11_equal_posts_of_curl_are_new_actions() {
    let world = World::new().await;
    for n in 1..=20 {
        let output = tokio::process::Command::new("curl")
            .args(["-sS", "--noproxy", "", "-m", "20", "-x", &world.url(), "--cacert"])
            .arg(world.ca_file())
            .args(["-d", "same", &world.secure_url("/ok")])
            .output()
            .await
            .expect("curl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(world.secure.effects("/ok"), n);
    }
}

/// Waits until the host of the caller has so many bytes that nobody read.
async fn lies_unread(tcp: &TcpStream, least: usize) {
    let mut bytes = vec![0; least];
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    while tcp.peek(&mut bytes).await.expect("peek") < least {
        assert!(tokio::time::Instant::now() < until, "the answer never came");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// R-5, K-11, X-6: an answer that its caller never read from its own host was not handed over. The reset
/// of the close takes the confirmation back, and the repeat is answered from the record: one effect,
/// however often that happens.
#[tokio::test(flavor = "multi_thread")]
async fn k_11_an_answer_that_lies_unread_was_not_handed_over() {
    let world = World::new().await;
    let id = world.journal.new_id();
    for n in 0..3 {
        let mut tcp = TcpStream::connect(world.address).await.expect("connect");
        let fields = if n == 0 { format!("Affiant-Invocation: {id}\r\n") } else { String::new() };
        let request = world.plain_request("POST", "/ok", &fields, "same");
        tcp.write_all(request.as_bytes()).await.expect("write");
        lies_unread(&tcp, 200).await;
        let events = recorded(&world, id, "RESULT_DELIVERED", n + 1).await;
        assert_eq!(confirmations(&events).last(), Some(&Confirmation::Transport), "{n}");
        drop(tcp);
        recorded(&world, id, "DELIVERY_FAILED", n + 1).await;
    }
    let verdict = world.invocation(id).await.verdict();
    assert_eq!(
        (verdict.code().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()),
        ("DELIVERY_FAILED", "committed", "fetch_result")
    );
    // Who reads it has it: an equal request after that is a new action.
    let mut client = Client::connect(world.address).await;
    client.send(&world.plain_request("POST", "/ok", "", "same")).await;
    let answer = client.response("POST").await;
    assert!(answer.outcome().contains("replayed") && answer.outcome().contains(&id.to_string()));
    client.close().await;
    assert_eq!(world.origin.effects("/ok"), 1);
    world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(world.plain("POST", "/ok", "", "same").await.status, 200);
    assert_eq!(world.origin.effects("/ok"), 2);
}

/// Waits until such an event is on record so often.
async fn recorded(world: &World, id: InvocationId, name: &str, times: usize) -> Vec<Event> {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let events: Vec<Event> = world.events(id, name).await;
        if events.iter().filter(|event| event.body.name() == name).count() >= times {
            return events;
        }
        assert!(tokio::time::Instant::now() < until, "{name} is not there {times} times");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// a caller of HTTP/2 that leaves its answer unread.
#[tokio::test(flavor = "multi_thread")]
async fn k_11_a_stream_that_lies_unread_was_not_handed_over() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let tls = stream_unread(&world, id).await;
    recorded(&world, id, "RESULT_DELIVERED", 1).await;
    drop(tls);
    recorded(&world, id, "DELIVERY_FAILED", 1).await;
    assert_eq!(world.invocation(id).await.verdict().code().as_str(), "DELIVERY_FAILED");
}

/// Sends a POST on a stream, whose answer nobody reads.
async fn stream_unread(world: &World, id: InvocationId) -> impl Sized + use<> {
    let mut client = Client::connect(world.address).await;
    let port = world.secure.address.port();
    let credentials = world.credentials();
    let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    client.send(&connect).await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let mut tls = client.into_h2(world.ca.certificate_pem(), "localhost").await;
    let text = |start: &[u8], name: &str, value: &str| {
        let part =
            |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
        let name = if name.is_empty() { Vec::new() } else { part(name) };
        [start, &name, &part(value)].concat()
    };
    // POST and https of the static table (RFC 7541 appendix A), and literals.
    let fields = [
        vec![0x83, 0x87],
        text(&[0x04], "", "/ok"),
        text(&[0x01], "", &format!("localhost:{port}")),
        text(&[0x00], "affiant-invocation", &id.to_string()),
    ]
    .concat();
    let length = u32::try_from(fields.len()).expect("short").to_be_bytes();
    let preface = &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..];
    let headers = [&length[1..], &[1, 5, 0, 0, 0, 1], &fields].concat();
    tls.write_all(&[preface, &headers].concat()).await.expect("sent");
    tls.flush().await.expect("flush");
    tls
}

/// the same inside TLS.
#[tokio::test(flavor = "multi_thread")]
async fn k_11_an_answer_that_lies_unread_inside_tls_was_not_handed_over() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let mut client = world.tunnel().await;
    let fields = format!("Affiant-Invocation: {id}\r\n");
    client.send(&world.secure_request("POST", "/ok", &fields, "same")).await;
    world.events(id, "RESULT_DELIVERED").await;
    // Closes without a word and without having read.
    drop(client);
    recorded(&world, id, "DELIVERY_FAILED", 1).await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("POST", "/ok", "", "same")).await;
    assert!(client.response("POST").await.outcome().contains("replayed"));
    assert_eq!(world.secure.effects("/ok"), 1);
}

/// a second request that was sent before the first response was acknowledged proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_pipelined_bytes_confirm_nothing() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let tcp = tokio::net::TcpSocket::new_v4().expect("socket");
    tcp.set_recv_buffer_size(2048).expect("buffer");
    let mut tcp = tcp.connect(world.address).await.expect("connect");
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let first = world.plain_request("POST", "/big?1000000", &fields, "x");
    tcp.write_all(first.as_bytes()).await.expect("write");
    world.origin.reached("/big", 1).await;
    world.invocation(id).await;
    let second = world.plain_request("POST", "/ok", "", "y");
    tcp.write_all(second.as_bytes()).await.expect("write");
    tokio::time::sleep(Duration::from_millis(100)).await;
    sockopt::set_socket_linger(&tcp, Some(Duration::ZERO)).expect("linger");
    drop(tcp);
    let events = world.events(id, "DELIVERY_FAILED").await;
    assert_eq!(confirmations(&events), []);
}

/// a next request that is sent after the answer was read confirms it.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_a_next_request_after_the_answer_confirms_it() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    client.send(&world.plain_request("POST", "/ok", "", "x")).await;
    let first = client.response("POST").await;
    client.send(&world.plain_request("POST", "/ok", "", "x")).await;
    assert_eq!(client.response("POST").await.status, 200);
    let events = world.events(first.id(), "RESULT_DELIVERED").await;
    assert_eq!(confirmations(&events).len(), 1);
    assert_eq!(world.origin.effects("/ok"), 2);
}

/// E-4, R-5: answers of the control API carry `Proxy-Status`. A stored result that is read there is handed over
/// by the rule for every answer: not while its host lacks a part, for the time being when its host has all of it,
/// and for good when the caller asks for more.
#[tokio::test]
async fn e_4_r_5_a_result_is_fetched_by_the_rule_of_delivery() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let tcp = unread(&world, &world.plain_request("POST", "/ok", &named(id), "same")).await;
    recorded(&world, id, "RESULT_DELIVERED", 1).await;
    drop(tcp);
    recorded(&world, id, "DELIVERY_FAILED", 1).await;

    *world.fetched.lock().expect("lock") = Some(proxy::Fetched { asked: id, held: id });
    let request = format!(
        "GET http://affiant.internal/v1/x HTTP/1.1\r\nHost: affiant.internal\r\n{}\r\n",
        world.credentials()
    );
    // Never all at its host.
    let socket = tokio::net::TcpSocket::new_v4().expect("socket");
    socket.set_recv_buffer_size(2048).expect("buffer");
    let mut tcp = socket.connect(world.address).await.expect("connect");
    tcp.write_all(request.replace("/v1/x", "/big").as_bytes()).await.expect("write");
    assert_eq!(tcp.read(&mut [0; 1]).await.expect("read"), 1);
    sockopt::set_socket_linger(&tcp, Some(Duration::ZERO)).expect("linger");
    drop(tcp);
    // At its host, and thrown away there.
    let tcp = unread(&world, &request).await;
    let events = recorded(&world, id, "RESULT_DELIVERED", 2).await;
    assert_eq!(confirmations(&events), [Confirmation::Transport; 2]);
    drop(tcp);
    recorded(&world, id, "DELIVERY_FAILED", 2).await;
    // Read.
    let mut client = Client::connect(world.address).await;
    client.send(&request).await;
    let response = client.response("GET").await;
    assert_eq!(response.text(), "coder GET /v1/x");
    assert_eq!(response.field("proxy-status"), "affiant;error=proxy_internal_response");
    let events = recorded(&world, id, "RESULT_DELIVERED", 3).await;
    assert_eq!(confirmations(&events), [Confirmation::Transport; 3]);
    client.send(&request).await;
    assert_eq!(client.response("GET").await.status, 200);
    let events = recorded(&world, id, "RESULT_DELIVERED", 4).await;
    assert_eq!(confirmations(&events).last(), Some(&Confirmation::Fetched));
    drop(client);
    assert_eq!(world.origin.effects("/ok"), 1);
}

/// The field that gives a call an id.
fn named(id: InvocationId) -> String {
    format!("Affiant-Invocation: {id}\r\n")
}

/// Sends a request, and leaves the answer unread once it lies there.
async fn unread(world: &World, request: &str) -> TcpStream {
    let mut tcp = TcpStream::connect(world.address).await.expect("connect");
    tcp.write_all(request.as_bytes()).await.expect("write");
    lies_unread(&tcp, 100).await;
    tcp
}

/// K-11, R-5, X-6: a repeat is on its way when the connection of an unread answer is reset. Who serves that
/// one has not heard of it when the repeat is taken on: the repeat asks, and is answered from the record.
#[tokio::test]
async fn k_11_a_repeat_beside_the_reset_is_not_sent() {
    let world = World::new().await;
    // Served before, so that nothing but its bytes is left to come.
    let mut plain = Client::connect(world.address).await;
    let mut secure = world.tunnel().await;
    let ids = [world.journal.new_id(), world.journal.new_id(), world.journal.new_id()];
    let port = world.secure.address.port();
    // One thread serves all of this, and this test does not wait between repeat and reset.
    for (id, transport) in ids.into_iter().zip(["clear text", "TLS", "HTTP/2"]) {
        let second = match transport {
            "clear text" => {
                let first = world.plain_request("POST", "/ok", &named(id), transport);
                let tcp = unread(&world, &first).await;
                recorded(&world, id, "RESULT_DELIVERED", 1).await;
                plain.send(&world.plain_request("POST", "/ok", "", transport)).await;
                drop(tcp);
                &mut plain
            }
            "TLS" => {
                let mut first = world.tunnel().await;
                first.send(&world.secure_request("POST", "/ok", &named(id), transport)).await;
                recorded(&world, id, "RESULT_DELIVERED", 1).await;
                secure.send(&world.secure_request("POST", "/ok", "", transport)).await;
                drop(first);
                &mut secure
            }
            _ => {
                let tls = stream_unread(&world, id).await;
                recorded(&world, id, "RESULT_DELIVERED", 1).await;
                let repeat = format!("POST /ok HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
                secure.send(&repeat).await;
                drop(tls);
                &mut secure
            }
        };
        let outcome = second.response("POST").await.outcome().to_owned();
        assert!(outcome.contains("replayed"), "{transport}: {outcome}");
        assert!(outcome.contains(&id.to_string()), "{transport}: {outcome}");
    }
    assert_eq!((world.origin.effects("/ok"), world.secure.effects("/ok")), (1, 2));
}

/// A caller inside TLS that ends its direction after the request still gets its answer.
#[tokio::test]
async fn half_closed_callers_inside_tls_are_answered() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("POST", "/gate", "", "x")).await;
    client.finish().await;
    world.secure.open_gate();
    let response = client.response("POST").await;
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    world.events(response.id(), "RESULT_DELIVERED").await;
}

/// A caller in clear text that ends its direction while its request is answered piece by piece.
#[tokio::test]
async fn half_closed_callers_get_a_stream_to_its_end() {
    let world = World::new().await;
    let mut tcp = TcpStream::connect(world.address).await.expect("connect");
    let request = world.plain_request("POST", "/events", "", "x");
    tcp.write_all(request.as_bytes()).await.expect("write");
    tcp.shutdown().await.expect("shutdown");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.expect("read");
    assert!(answer.contains("data: 2\n\n"), "{answer}");
    assert!(answer.contains("\r\n0\r\nAffiant-Outcome: committed;"), "{answer}");
}

/// a reset speaks of the last answer. The one before it, on the same connection, stays handed over,
/// though its caller had asked for both at once.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_a_reset_leaves_the_answer_before() {
    let world = World::new().await;
    let ids = [world.journal.new_id(), world.journal.new_id()];
    let mut tcp = TcpStream::connect(world.address).await.expect("connect");
    let both = ids.map(|id| {
        let fields = format!("Affiant-Invocation: {id}\r\n");
        world.plain_request("POST", "/ok", &fields, &id.to_string())
    });
    tcp.write_all(both.concat().as_bytes()).await.expect("write");
    recorded(&world, ids[0], "RESULT_DELIVERED", 1).await;
    recorded(&world, ids[1], "RESULT_DELIVERED", 1).await;
    let mut bytes = vec![0; 64 * 1024];
    let length = tcp.peek(&mut bytes).await.expect("peek");
    let second = memchr::memmem::rfind(&bytes[..length], b"HTTP/1.1 200").expect("an answer");
    assert!(second > 0, "both are there");
    tcp.read_exact(&mut bytes[..second]).await.expect("read");
    drop(tcp);
    recorded(&world, ids[1], "DELIVERY_FAILED", 1).await;
    let first = world.events(ids[0], "RESULT_DELIVERED").await;
    assert_eq!(confirmations(&first), [Confirmation::Transport]);
}
