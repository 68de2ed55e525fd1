//! WebSockets in every pairing of HTTP/1.1 and HTTP/2 (RFC 8441): the same bytes, the same evidence.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::Request;
use journal::contract::{Body, InvocationId};
use std::time::Duration;
use support::http2::{Http2Client, Http2Origin};
use support::{Client, SECRET, World};

const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

async fn world(protocols: &[&[u8]], connects: bool) -> (World, Http2Origin, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::with(directory.path(), protocols, connects).await;
    let extra = origin.routes();
    (World::with(|_, _| extra, proxy::Options::default()).await, origin, directory)
}

async fn notes(world: &World, id: InvocationId) -> Vec<(String, String)> {
    let events = world.events(id, "INVOCATION_ENDED").await;
    let note = |body| if let Body::Noted(n) = body { Some((n.name, n.detail)) } else { None };
    events.into_iter().filter_map(|event| note(event.body)).collect()
}

/// How the record says that it ended.
async fn cause(world: &World, id: InvocationId) -> String {
    let events = world.events(id, "INVOCATION_ENDED").await;
    let Some(Body::InvocationEnded(ended)) = events.into_iter().last().map(|event| event.body)
    else {
        return String::new();
    };
    ended.observation.map(|observation| observation.cause).unwrap_or_default()
}

fn note(name: &str, detail: &str) -> (String, String) {
    (name.to_owned(), detail.to_owned())
}

/// An opened stream, or a response in its place.
struct Opened {
    status: u16,
    head: http::HeaderMap,
    sending: SendStream<Bytes>,
    content: RecvStream,
    buffer: Vec<u8>,
}

impl Opened {
    async fn ask(client: &Http2Client, protocol: &str, path: &str) -> Self {
        let mut sender = client.sender.clone().ready().await.expect("ready");
        let mut request = Request::builder()
            .method("CONNECT")
            .uri(format!("https://{}{path}", client.authority))
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "chat")
            .body(())
            .expect("request");
        request.extensions_mut().insert(Protocol::from(protocol));
        let (response, sending) = sender.send_request(request, false).expect("sent");
        let response = tokio::time::timeout(Duration::from_secs(20), response).await;
        let (parts, content) = response.expect("in time").expect("a response").into_parts();
        let (status, head) = (parts.status.as_u16(), parts.headers);
        Self { status, head, sending, content, buffer: Vec::new() }
    }

    fn field(&self, name: &str) -> &str {
        self.head.get(name).map(|v| v.to_str().expect("text")).unwrap_or_default()
    }

    fn proxy_status(&self) -> String {
        let lines = self.head.get_all("proxy-status").iter();
        lines.map(|line| line.to_str().expect("text")).collect::<Vec<_>>().join(", ")
    }

    fn id(&self) -> InvocationId {
        let (_, rest) = self.field("affiant-outcome").split_once("invocation=\"").expect("an id");
        rest[..30].parse().expect("an id")
    }

    async fn send(&mut self, bytes: &[u8]) {
        let mut left = Bytes::copy_from_slice(bytes);
        while !left.is_empty() {
            self.sending.reserve_capacity(left.len());
            let room = std::future::poll_fn(|cx| self.sending.poll_capacity(cx)).await;
            let room = room.expect("open").expect("open").min(left.len());
            self.sending.send_data(left.split_to(room), false).expect("sent");
        }
    }

    /// The next piece; `None` at the end of the stream.
    async fn piece(&mut self) -> Option<Result<Bytes, h2::Error>> {
        loop {
            let piece = tokio::time::timeout(Duration::from_secs(20), self.content.data()).await;
            let piece = piece.expect("in time")?;
            if let Ok(piece) = &piece {
                self.content.flow_control().release_capacity(piece.len()).expect("release");
                if piece.is_empty() {
                    continue;
                }
            }
            return Some(piece);
        }
    }

    async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            let piece = self.piece().await.expect("more").expect("a piece");
            self.buffer.extend_from_slice(&piece);
        }
        self.buffer.drain(..length).collect()
    }
}

fn content() -> Vec<u8> {
    (0..300_000_u32).map(|n| u8::try_from(n % 253).unwrap_or(0)).collect()
}

/// D-2: a caller of HTTP/2 opens by an extended CONNECT; the origin is reached over HTTP/2 where it
/// takes one, else by an upgrade of HTTP/1.1, which is found out before anything is dispatched.
#[tokio::test(flavor = "multi_thread")]
async fn d_2_callers_of_http2_open_websockets() {
    for (protocols, connects, expected) in [
        (&[b"h2" as &[u8], b"http/1.1"][..], true, "websocket, over HTTP/2 on both sides"),
        (&[b"h2", b"http/1.1"], false, "websocket, over HTTP/2 to the caller"),
        (&[b"http/1.1"], false, "websocket, over HTTP/2 to the caller"),
    ] {
        let (world, origin, _directory) = world(protocols, connects).await;
        let client = Http2Client::open(&world, origin.address.port()).await;
        let mut socket = Opened::ask(&client, "websocket", "/websocket").await;
        assert_eq!(socket.status, 200, "{expected}");
        for gone in ["sec-websocket-accept", "connection", "upgrade", "content-length"] {
            assert!(!socket.head.contains_key(gone), "{gone}");
        }
        assert!(socket.field("affiant-outcome").starts_with("unknown;"));
        assert_eq!(socket.take(5).await, b"early");
        let content = content();
        for size in [1, 125, 70_000] {
            socket.send(&content[..size]).await;
            assert!(socket.take(size).await == content[..size], "{size}");
        }
        // Other calls share the connection with it.
        assert_eq!(client.call("POST", "/echo", b"x").await.status, 200);
        socket.sending.send_data(Bytes::new(), true).expect("end");
        assert!(socket.piece().await.is_none(), "the end is an end of the stream");
        let mut told = vec![
            note("upgraded", expected),
            note("passed", "70126 bytes to the origin, 70131 bytes to the caller"),
        ];
        if protocols.len() == 2 && !connects {
            told.insert(0, note("websocket_over_http1", "the origin takes no extended CONNECT"));
        }
        let id = socket.id();
        assert_eq!(notes(&world, id).await, told);
        let invocation = world.invocation(id).await;
        assert_eq!(invocation.accepted().action, "GET");
        assert_eq!(invocation.evidence().status, Some(if connects { 200 } else { 101 }));
        assert_eq!(invocation.verdict().outcome().as_str(), "unknown");
        if connects {
            let seen = origin.seen.lock().expect("lock");
            let head = seen.heads.iter().find(|head| head.uri.path() == "/websocket");
            let head = head.expect("the opening");
            assert_eq!(head.method, "CONNECT");
            assert_eq!(head.headers["sec-websocket-protocol"], "chat");
            for gone in ["sec-websocket-key", "connection", "upgrade"] {
                assert!(!head.headers.contains_key(gone), "{gone}");
            }
        } else {
            let seen = origin.http11.peer.seen();
            let mut heads = seen.iter().map(|seen| seen.text());
            let head = heads.find(|head| head.starts_with("GET /websocket "));
            let head = head.expect("the opening").to_lowercase();
            assert!(head.contains("\r\nconnection: upgrade\r\nupgrade: websocket\r\n"), "{head}");
            assert_eq!(head.matches("sec-websocket-key: ").count(), 1, "{head}");
        }
    }
}

/// D-2: a caller of HTTP/1.1 upgrades at an origin that speaks HTTP/2 alone; its key is answered.
#[tokio::test(flavor = "multi_thread")]
async fn d_2_an_origin_of_http2_alone_takes_upgrades() {
    let (world, origin, _directory) = world(&[b"h2"], true).await;
    let port = origin.address.port();
    for opened in 1..=2 {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client
            .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
            .await;
        assert_eq!(client.response("CONNECT").await.status, 200);
        let mut client = client.into_tls(world.ca.certificate_pem(), "127.0.0.1").await;
        let ask = format!("GET /websocket HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{ASK}\r\n");
        client.send(&ask).await;
        let response = client.response("GET").await;
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.all("sec-websocket-accept"), ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]);
        assert_eq!(response.all("connection"), ["Upgrade"]);
        assert!(response.field("proxy-status").contains("received-status=200"));
        assert_eq!(client.take(5).await, b"early");
        let content = content();
        client.send_bytes(&content).await;
        assert!(client.take(content.len()).await == content);
        client.finish().await;
        assert!(client.ends().await);
        let told = [
            note("upgraded", "websocket, over HTTP/2 to the origin"),
            note("passed", "300000 bytes to the origin, 300005 bytes to the caller"),
        ];
        assert_eq!(notes(&world, response.id()).await, told);
        assert_eq!(origin.effects("/websocket"), opened);
    }
    assert_eq!(origin.seen.lock().expect("lock").connections, 1);
}

/// I-4: what the origin echoes inside is redacted on streams as well.
#[tokio::test(flavor = "multi_thread")]
async fn i_4_websockets_on_streams_carry_the_credential_one_way() {
    let (world, origin, _directory) = world(&[b"h2"], true).await;
    let client = Http2Client::open(&world, origin.address.port()).await;
    let mut socket = Opened::ask(&client, "websocket", "/with-credential/websocket").await;
    assert_eq!(socket.status, 200);
    assert_eq!(socket.take(7).await, b"\x81\x05early");
    let head = origin.seen.lock().expect("lock").heads[0].headers["authorization"].clone();
    assert_eq!(head, format!("Bearer {SECRET}"));
    let text = format!("a {SECRET} b");
    let frame = [&[0x81, u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    socket.send(&frame[..11]).await;
    socket.send(&frame[11..]).await;
    let stars = "*".repeat(SECRET.len());
    assert_eq!(socket.take(2).await, frame[..2]);
    assert_eq!(socket.take(text.len()).await, format!("a {stars} b").as_bytes());
}

/// S-5, I-4: an extension that was not offered is no answer (RFC 6455 section 4.1), on either version: with a
/// credential none is.
#[tokio::test(flavor = "multi_thread")]
async fn s_5_extensions_that_were_not_offered() {
    for (protocols, connects) in [(&[b"h2" as &[u8]][..], true), (&[b"http/1.1"], false)] {
        let (world, origin, _directory) = world(protocols, connects).await;
        let client = Http2Client::open(&world, origin.address.port()).await;
        for path in ["/with-credential/websocket-extension", "/websocket-extension"] {
            let socket = Opened::ask(&client, "websocket", path).await;
            assert_eq!(socket.status, 502, "{path}");
            let said = socket.proxy_status();
            assert!(said.contains("error=http_upgrade_failed"), "{said}");
            let verdict = world.invocation(socket.id()).await.verdict();
            assert_eq!(verdict.code().as_str(), "REMOTE_PROTOCOL_ERROR");
            assert_eq!(verdict.outcome().as_str(), "unknown");
        }
    }
}

/// S-5: what does not open a WebSocket: a refusal, an answer of another kind, a wrong answer to our
/// key, an origin that takes none, another protocol than WebSocket.
#[tokio::test(flavor = "multi_thread")]
async fn s_5_websockets_that_do_not_open() {
    // A refusal is the origin's own, on either version.
    for (protocols, connects) in [(&[b"h2" as &[u8]][..], true), (&[b"http/1.1"], false)] {
        let (world, origin, _directory) = world(protocols, connects).await;
        let client = Http2Client::open(&world, origin.address.port()).await;
        let mut socket = Opened::ask(&client, "websocket", "/status/403").await;
        assert_eq!((socket.status, socket.take(4).await), (403, b"body".to_vec()));
        assert!(socket.field("affiant-outcome").starts_with("rejected;"));
        if connects {
            continue;
        }
        // A 200 of HTTP/1.1 is a complete answer, and would open the stream of HTTP/2.
        let socket = Opened::ask(&client, "websocket", "/ok").await;
        assert_eq!(socket.status, 502);
        assert!(socket.field("affiant-outcome").starts_with("committed;"));
        let said = socket.proxy_status();
        assert!(said.contains("error=http_upgrade_failed"), "{said}");
        assert!(said.contains("received-status=200"), "{said}");
        // Nobody behind us would look at the answer to our key.
        let socket = Opened::ask(&client, "websocket", "/websocket-lie").await;
        assert_eq!(socket.status, 502);
        let verdict = world.invocation(socket.id()).await.verdict();
        assert_eq!(verdict.code().as_str(), "REMOTE_PROTOCOL_ERROR");
    }
    let (world, origin, _directory) = world(&[b"h2"], false).await;
    let client = Http2Client::open(&world, origin.address.port()).await;
    for (protocol, status, code, phase, error) in [
        ("websocket", 502, "UNSUPPORTED_ACTION", "connection_setup", "http_upgrade_failed"),
        ("connect-udp", 501, "UNSUPPORTED_ACTION", "validation", "http_request_denied"),
    ] {
        let socket = Opened::ask(&client, protocol, "/websocket").await;
        assert_eq!(socket.status, status, "{protocol}");
        let said = socket.proxy_status();
        assert!(said.contains(&format!("error={error}")), "{said}");
        let verdict = world.invocation(socket.id()).await.verdict();
        let facts = [verdict.code().as_str(), verdict.phase().as_str(), verdict.outcome().as_str()];
        assert_eq!(facts, [code, phase, "not_attempted"], "{protocol}");
    }
    assert!(origin.seen.lock().expect("lock").effects.is_empty());
}

/// S-2: a WebSocket that is broken off on one side is broken off on the other: by a reset, not by an
/// orderly end.
#[tokio::test(flavor = "multi_thread")]
async fn s_2_resets_pass_through() {
    let (world, origin, _directory) = world(&[b"h2"], true).await;
    let client = Http2Client::open(&world, origin.address.port()).await;
    let mut socket = Opened::ask(&client, "websocket", "/websocket-reset").await;
    assert_eq!(socket.take(5).await, b"early");
    socket.send(b"x").await;
    let error = socket.piece().await.expect("no end").expect_err("a reset");
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
    assert_eq!(cause(&world, socket.id()).await, "ORIGIN_BROKE");

    let mut socket = Opened::ask(&client, "websocket", "/websocket").await;
    assert_eq!(socket.take(5).await, b"early");
    socket.sending.send_reset(h2::Reason::CANCEL);
    assert_eq!(cause(&world, socket.id()).await, "CALLER_BROKE");
}
