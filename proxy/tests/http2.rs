//! HTTP/2 in the caller's tunnel: the same engine, the same evidence, frames on the wire.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use journal::contract::{Body, Completion, InvocationId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Client, SECRET, World};

struct Answer {
    status: u16,
    head: HeaderMap,
    content: Vec<u8>,
    trailers: HeaderMap,
    error: Option<h2::Error>,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.head.get(name).map(|v| v.to_str().expect("text")).unwrap_or_default()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }

    fn id(&self) -> InvocationId {
        let (_, rest) = self.field("affiant-outcome").split_once("invocation=\"").expect("an id");
        rest[..30].parse().expect("an id")
    }
}

/// A connection inside of a tunnel that negotiated HTTP/2.
async fn connect(world: &World) -> SendRequest<Bytes> {
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    client.send(&connect).await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let tls = client.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
    tokio::spawn(connection);
    sender.ready().await.expect("ready")
}

fn request(world: &World, method: &str, path: &str) -> http::request::Builder {
    let port = world.secure.address.port();
    Request::builder().method(method).uri(format!("https://localhost:{port}{path}"))
}

async fn exchange(
    sender: &SendRequest<Bytes>,
    request: http::request::Builder,
    content: &[u8],
) -> Answer {
    let mut sender = sender.clone().ready().await.expect("ready");
    let request = request.body(()).expect("request");
    let (response, mut sending) = sender.send_request(request, content.is_empty()).expect("sent");
    let mut left = Bytes::copy_from_slice(content);
    while !left.is_empty() {
        sending.reserve_capacity(left.len());
        let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
        let Some(Ok(room)) = room else { break };
        let piece = left.split_to(room.min(left.len()));
        if sending.send_data(piece, left.is_empty()).is_err() {
            break;
        }
    }
    answer(response).await
}

async fn answer(response: h2::client::ResponseFuture) -> Answer {
    let response = tokio::time::timeout(Duration::from_secs(20), response).await;
    let (parts, mut body) = response.expect("in time").expect("a response").into_parts();
    let mut answer = Answer {
        status: parts.status.as_u16(),
        head: parts.headers,
        content: Vec::new(),
        trailers: HeaderMap::new(),
        error: None,
    };
    while let Some(piece) = body.data().await {
        match piece {
            Ok(piece) => {
                body.flow_control().release_capacity(piece.len()).expect("release");
                answer.content.extend_from_slice(&piece);
            }
            Err(error) => {
                answer.error = Some(error);
                return answer;
            }
        }
    }
    answer.trailers = body.trailers().await.expect("trailers").unwrap_or_default();
    answer
}

/// V-1: request trailers over the limit of a section are refused, whether the library would hand them over
/// or leave them out without a word.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_long_trailers_of_requests_are_refused() {
    let world = World::new().await;
    let sender = connect(&world).await;
    for (length, status) in [(60_000, 200), (66_000, 400), (150_000, 400), (250_000, 400)] {
        let mut sender = sender.clone().ready().await.expect("ready");
        let request = request(&world, "POST", "/status/200").body(()).expect("request");
        let (response, mut sending) = sender.send_request(request, false).expect("sent");
        sending.send_data(Bytes::from_static(b"abc"), false).expect("data");
        let mut fields = HeaderMap::new();
        fields.insert("x-sum", "x".repeat(length).parse().expect("value"));
        sending.send_trailers(fields).expect("trailers");
        let answer = answer(response).await;
        assert_eq!(answer.status, status, "{length}");
        if status == 400 {
            let verdict = world.invocation(answer.id()).await.verdict();
            let facts = (verdict.code().as_str(), verdict.outcome().as_str());
            assert_eq!(facts, ("INVALID_REQUEST", "not_attempted"), "{length}");
        }
    }
    assert_eq!(world.secure.effects("/status/200"), 1);
}

/// D-7: content without a length that ends in an empty frame, or in trailers, is one message of HTTP/1.1 to
/// the last byte: the next call goes over the same connection of the origin, and is understood.
#[tokio::test(flavor = "multi_thread")]
async fn d_7_ends_of_content_on_streams_leave_nothing_behind() {
    let world = World::new().await;
    let sender = connect(&world).await;
    for (trailers, expected) in [(None, "\r\n"), (Some("x-sum"), "x-sum: 1\r\n\r\n")] {
        for _ in 0..2 {
            let mut sender = sender.clone().ready().await.expect("ready");
            let request = request(&world, "PUT", "/status/200").header("te", "trailers");
            let request = request.body(()).expect("request");
            let (response, mut sending) = sender.send_request(request, false).expect("sent");
            sending.send_data(Bytes::from_static(b"abc"), false).expect("data");
            match trailers {
                None => sending.send_data(Bytes::new(), true).expect("the end"),
                Some(name) => {
                    let mut fields = HeaderMap::new();
                    fields.insert(name, "1".parse().expect("value"));
                    sending.send_trailers(fields).expect("trailers");
                }
            }
            let answer = answer(response).await;
            assert_eq!((answer.status, answer.content.as_slice()), (200, &b"body"[..]));
            assert_eq!(world.secure.last_content(), b"abc");
            assert_eq!(world.secure.last_trailers(), expected);
            // By then the origin's connection is free again.
            world.events(answer.id(), "RESULT_DELIVERED").await;
        }
    }
    assert_eq!((world.secure.connections(), world.secure.effects("/status/200")), (1, 4));
}

/// Requests in turn and at once, with content and without; what the origin gets is HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn d_2_calls_on_streams() {
    let world = World::new().await;
    let sender = connect(&world).await;
    for (method, path, status, text, completion) in [
        ("GET", "/ok", 200, "ok", Completion::ContentLength),
        ("GET", "/chunked", 200, "hello", Completion::Chunked),
        ("GET", "/204", 204, "", Completion::NoContent),
        ("GET", "/304", 304, "", Completion::NoContent),
        ("HEAD", "/ok", 200, "", Completion::NoContent),
        ("GET", "/interim", 200, "ok", Completion::ContentLength),
    ] {
        let answer = exchange(&sender, request(&world, method, path), b"").await;
        assert_eq!((answer.status, answer.text().as_str()), (status, text), "{path}");
        assert!(answer.field("affiant-outcome").starts_with("committed;"), "{path}");
        let evidence = world.invocation(answer.id()).await.evidence();
        assert_eq!(evidence.completion, Some(completion), "{path}");
        for gone in ["connection", "transfer-encoding", "keep-alive"] {
            assert!(!answer.head.contains_key(gone), "{path} {gone}");
        }
    }
    let answer = exchange(&sender, request(&world, "GET", "/trailers"), b"").await;
    assert_eq!(answer.trailers.get("x-t").map(|v| v.as_bytes()), Some(b"1".as_slice()));
    let calls = (0..20).map(|n| {
        let (sender, request) = (sender.clone(), request(&world, "POST", "/echo"));
        tokio::spawn(async move {
            let content = format!("content {n} {}", "x".repeat(n * 5000));
            let answer = exchange(&sender, request, content.as_bytes()).await;
            assert_eq!(answer.status, 200);
            assert!(answer.text().ends_with(&content), "{n}");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("call");
    }
    let head = world.secure.peer.seen()[0].text();
    let port = world.secure.address.port();
    assert!(head.starts_with("GET /ok HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: localhost:{port}\r\n")), "{head}");
}

/// Field lines: cookie crumbs are one line again, duplicates keep their order, the credential is
/// injected, what is ours is not forwarded.
#[tokio::test(flavor = "multi_thread")]
async fn fields_of_streams() {
    let world = World::new().await;
    let sender = connect(&world).await;
    let asked = request(&world, "GET", "/with-credential/ok")
        .header("cookie", "a=1")
        .header("x-twice", "1")
        .header("cookie", "b=2")
        .header("x-twice", "2")
        .header("te", "trailers")
        .header("affiant-other", "x")
        .header("proxy-authorization", "Basic x");
    let answer = exchange(&sender, asked, b"").await;
    assert_eq!(answer.status, 200);
    let head = world.secure.last_head();
    assert!(head.contains("\r\ncookie: a=1; b=2\r\n"), "{head}");
    assert!(head.contains("\r\nx-twice: 1\r\nx-twice: 2\r\n"), "{head}");
    assert!(head.contains(&format!("Bearer {SECRET}")), "{head}");
    assert!(!head.contains("affiant-other") && !head.contains("proxy-authorization"), "{head}");
    let all: Vec<_> = answer.head.get_all("set-cookie").iter().collect();
    assert_eq!(all, ["a", "b"]);
    assert_eq!(answer.field("date"), "Thu, 01 Jan 1970 00:00:01 GMT");
}

/// V-1: the authority of a stream is the tunnel's, or 421; what is refused is on record.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_streams_that_are_refused() {
    let world = World::new().await;
    let sender = connect(&world).await;
    let port = world.secure.address.port();
    for (uri, host) in [
        ("https://other.example/ok".to_owned(), None),
        (format!("http://localhost:{port}/ok"), None),
        (format!("https://localhost:{port}/ok"), Some("other.example")),
    ] {
        let mut asked = Request::builder().uri(&uri);
        if let Some(host) = host {
            asked = asked.header("host", host);
        }
        let answer = exchange(&sender, asked, b"").await;
        let expected = if host.is_some() { 400 } else { 421 };
        assert_eq!(answer.status, expected, "{uri} {host:?}");
        assert!(answer.text().contains("not_attempted"), "{uri}");
        world.invocation(answer.id()).await;
    }
    assert_eq!(world.secure.all_effects(), 0);
    assert_eq!(exchange(&sender, request(&world, "GET", "/ok"), b"").await.status, 200);
}

/// S-2: a response that breaks after its head reset the stream; before it, the envelope answers.
#[tokio::test(flavor = "multi_thread")]
async fn s_2_broken_responses_on_streams() {
    let world = World::new().await;
    let sender = connect(&world).await;
    let answer = exchange(&sender, request(&world, "POST", "/cut-stream"), b"x").await;
    assert_eq!(answer.text(), "hello");
    let error = answer.error.expect("a reset");
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    // Cut right behind its head: the head, which says that nothing is known yet, is not lost.
    for n in 0..20 {
        let path = format!("/cut-begin?{n}");
        let answer = exchange(&sender, request(&world, "GET", &path), b"").await;
        assert_eq!(answer.status, 200);
        assert!(answer.field("affiant-outcome").starts_with("unknown;"));
        assert!(answer.error.is_some(), "no reset");
    }
    for path in ["/close", "/cut"] {
        let answer = exchange(&sender, request(&world, "POST", path), b"x").await;
        assert_eq!(answer.status, 502, "{path}");
        assert_eq!(answer.field("x-should-retry"), "false");
        let verdict = world.invocation(answer.id()).await.verdict();
        assert_eq!(verdict.outcome().as_str(), "unknown", "{path}");
        let again = exchange(&sender, request(&world, "POST", path), b"x").await;
        assert_eq!(again.status, 424, "{path}");
        assert_eq!(world.secure.effects(path), 1);
    }
}

/// S-2: however slowly the caller takes what was sent before, the head of a response that is cut right
/// behind it is not overtaken by the reset.
#[tokio::test(flavor = "multi_thread")]
async fn s_2_a_reset_does_not_overtake_the_head() {
    let world = World::new().await;
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    client.send(&connect).await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    // Everything passes through here, and nothing while it is shut.
    let tls = client.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (near, far) = tokio::io::duplex(1024);
    let (gate, open) = tokio::sync::watch::channel(true);
    tokio::spawn(gated(far, tls, open));
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(64 << 20).initial_connection_window_size(64 << 20);
    let (sender, connection) = builder.handshake(near).await.expect("handshake");
    tokio::spawn(connection);
    let sender = sender.ready().await.expect("ready");
    assert_eq!(exchange(&sender, request(&world, "GET", "/ok"), b"").await.status, 200);
    gate.send(false).expect("watched");
    let calls = ["/big?20000000", "/cut-begin?x"].map(|path| {
        let (sender, request) = (sender.clone(), request(&world, "GET", path));
        tokio::spawn(async move { exchange(&sender, request, b"").await })
    });
    world.secure.reached("/cut-begin", 1).await;
    // The reset is due, and the way is shut for longer than anything here waits for.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    gate.send(true).expect("watched");
    let [long, cut] = calls;
    let answer = cut.await.expect("cut");
    assert_eq!(answer.status, 200);
    assert!(answer.error.is_some(), "no reset");
    assert_eq!(long.await.expect("long").content.len(), 20_000_000);
}

/// Passes bytes both ways; what the proxy sends only while the gate is open.
async fn gated(
    near: tokio::io::DuplexStream,
    far: Box<dyn support::wire::Transport>,
    mut open: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (mut near_reads, mut near_writes) = tokio::io::split(near);
    let (mut far_reads, mut far_writes) = tokio::io::split(far);
    let up = tokio::io::copy(&mut near_reads, &mut far_writes);
    let down = async {
        let mut piece = vec![0; 64 * 1024];
        loop {
            if open.wait_for(|open| *open).await.is_err() {
                return;
            }
            match far_reads.read(&mut piece).await {
                Ok(length @ 1..) => near_writes.write_all(&piece[..length]).await.expect("near"),
                Ok(0) | Err(_) => return,
            }
        }
    };
    tokio::select! { _ = up => {}, () = down => {} }
}

/// R-5, K-11: a response that the caller's host acknowledged is delivered; equal calls after it are
/// new actions, also beside a stream that stays open.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_streams_are_confirmed_one_by_one() {
    let world = World::new().await;
    let sender = connect(&world).await;
    let held = {
        let (sender, request) = (sender.clone(), request(&world, "GET", "/gate"));
        tokio::spawn(async move { exchange(&sender, request, b"").await })
    };
    world.secure.reached("/gate", 1).await;
    for (path, text) in
        [("/ok", "ok"), ("/trailers", "hello"), ("/events", "data: 0\n\ndata: 1\n\ndata: 2\n\n")]
    {
        for n in 1..=10 {
            let answer = exchange(&sender, request(&world, "POST", path), b"same").await;
            assert_eq!((answer.status, answer.text().as_str()), (200, text));
            assert!(!answer.field("affiant-outcome").contains("replayed"), "{path} {n}");
            let events = world.events(answer.id(), "RESULT_DELIVERED").await;
            assert!(matches!(events.last().map(|e| &e.body), Some(Body::ResultDelivered(_))));
        }
        assert_eq!(world.secure.effects(path), 10);
    }
    world.secure.open_gate();
    assert_eq!(held.await.expect("held").text(), "ok");
}

/// a caller that never opens its window has nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_a_stream_that_is_not_taken_is_not_delivered() {
    let world = World::new().await;
    let mut sender = connect(&world).await;
    let id = world.journal.new_id();
    let asked = request(&world, "POST", "/big?900000").header("affiant-invocation", id.to_string());
    let (response, _) = sender.send_request(asked.body(()).expect("request"), true).expect("sent");
    let response = response.await.expect("head");
    assert_eq!(response.status(), 200);
    drop(response);
    drop(sender);
    world.events(id, "DELIVERY_FAILED").await;
}

/// Content both ways, larger than every window, and a stream with its outcome in the trailers.
#[tokio::test(flavor = "multi_thread")]
async fn large_content_on_streams() {
    let world = World::new().await;
    let sender = connect(&world).await;
    let content: Vec<u8> = (0..9_000_000_u32).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
    let answer = exchange(&sender, request(&world, "POST", "/status/200"), &content).await;
    assert_eq!(answer.status, 200);
    assert!(world.secure.last_content() == content);
    let answer = exchange(&sender, request(&world, "GET", "/big?9000000"), b"").await;
    assert!(answer.content == content);
    let outcome = answer.trailers.get("affiant-outcome").map(|v| v.to_str().expect("text"));
    assert!(outcome.is_some_and(|outcome| outcome.starts_with("committed;")), "{outcome:?}");
}

/// Sends content for as long as it is taken, and counts it.
async fn pour(mut sending: h2::SendStream<Bytes>, poured: Arc<AtomicUsize>) {
    const PIECE: Bytes = Bytes::from_static(&[b'x'; 16 * 1024]);
    loop {
        sending.reserve_capacity(PIECE.len());
        let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
        let Some(Ok(room)) = room else { return };
        let piece = PIECE.slice(..room.min(PIECE.len()));
        poured.fetch_add(piece.len(), Ordering::Relaxed);
        sending.send_data(piece, false).expect("sent");
    }
}

/// V-1: calls whose content nobody takes hold up no other call of their connection, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_content_that_is_not_taken_holds_up_nobody_else() {
    const STALLED: usize = 20;
    let world = World::new().await;
    let sender = connect(&world).await;
    let poured = Arc::new(AtomicUsize::new(0));
    let mut waiting = Vec::new();
    for _ in 0..STALLED {
        let mut sender = sender.clone().ready().await.expect("ready");
        let request = request(&world, "PUT", "/unread").header("content-length", 64 << 20);
        let request = request.body(()).expect("request");
        let (response, sending) = sender.send_request(request, false).expect("sent");
        waiting.push(response);
        tokio::spawn(pour(sending, Arc::clone(&poured)));
    }
    // Until all of them stand still.
    let mut last = (0, tokio::time::Instant::now());
    while last.0 == 0 || last.1.elapsed() < Duration::from_secs(1) {
        let now = poured.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, tokio::time::Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let content = vec![b'y'; 100_000];
    let put = request(&world, "PUT", "/status/200");
    let answered = exchange(&sender, put, &content);
    let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
    let answer = answered.expect("the others hold it up");
    assert_eq!((answer.status, answer.text().as_str()), (200, "body"));
    assert_eq!(world.secure.last_content(), content);
}

/// D-4: a caller that resets its stream leaves the call running; its result can be fetched.
#[tokio::test(flavor = "multi_thread")]
async fn d_4_a_reset_stream_does_not_stop_the_call() {
    let world = World::new().await;
    let mut sender = connect(&world).await;
    let id = world.journal.new_id();
    let asked = request(&world, "POST", "/gate").header("affiant-invocation", id.to_string());
    let (response, mut sending) =
        sender.send_request(asked.body(()).expect("request"), false).expect("sent");
    sending.send_data(Bytes::from_static(b"x"), true).expect("data");
    world.secure.reached("/gate", 1).await;
    sending.send_reset(h2::Reason::CANCEL);
    drop((response, sending));
    world.secure.open_gate();
    let verdict = world.invocation(id).await.verdict();
    assert_eq!(verdict.outcome().as_str(), "committed");
    assert!(world.journal.result(id).is_ok());
}
