//! WebSockets, and tunnels that policy leaves alone: every byte passes, the record says how many.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Body, InvocationId, Phase};
use support::{Client, SECRET, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ASK: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Extensions: permessage-deflate\r\n";

async fn notes(world: &World, id: InvocationId) -> Vec<(String, String)> {
    let events = world.events(id, "INVOCATION_ENDED").await;
    let note = |body| if let Body::Noted(n) = body { Some((n.name, n.detail)) } else { None };
    events.into_iter().filter_map(|event| note(event.body)).collect()
}

fn passed(up: u64, down: u64) -> (String, String) {
    ("passed".to_owned(), format!("{up} bytes to the origin, {down} bytes to the caller"))
}

/// In clear text and in a tunnel: one head for the 101, the bytes right behind it kept, both
/// directions to their ends.
#[tokio::test]
async fn d_2_websockets_pass_both_ways() {
    let world = World::new().await;
    for tunnel in [false, true] {
        let mut client = if tunnel {
            let mut client = world.tunnel().await;
            client.send(&world.secure_request("GET", "/websocket", ASK, "")).await;
            client
        } else {
            let mut client = Client::connect(world.address).await;
            client.send(&world.plain_request("GET", "/websocket", ASK, "")).await;
            client
        };
        let response = client.response("GET").await;
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.field("sec-websocket-accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(response.all("connection"), ["Upgrade"]);
        assert_eq!(response.all("upgrade"), ["websocket"]);
        for framing in ["content-length", "transfer-encoding", "trailer"] {
            assert_eq!(response.all(framing).len(), 0, "{framing}");
        }
        assert!(response.outcome().starts_with("unknown;"), "{}", response.outcome());
        assert_eq!(client.take(5).await, b"early");
        let content: Vec<u8> =
            (0..300_000_u32).map(|n| u8::try_from(n % 253).unwrap_or(0)).collect();
        for size in [1, 125, 70_000] {
            client.send_bytes(&content[..size]).await;
            assert!(client.take(size).await == content[..size], "{size}");
        }
        client.finish().await;
        assert!(client.ends().await);
        let id = response.id();
        let expected = [("upgraded".to_owned(), "websocket".to_owned()), passed(70_126, 70_131)];
        assert_eq!(notes(&world, id).await, expected);
        let invocation = world.invocation(id).await;
        assert_eq!(invocation.evidence().status, Some(101));
        assert_eq!(facts(&invocation)[..3], ["NOT_JUDGED", "remote_execution", "unknown"]);
    }
    let head = world.origin.last_head();
    assert!(head.contains("\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"), "{head}");
}

/// I-4: the credential is injected at the upgrade, and what the origin echoes inside is redacted.
#[tokio::test]
async fn i_4_websockets_carry_the_credential_one_way() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    let path = "/with-credential/websocket";
    client.send(&world.secure_request("GET", path, ASK, "")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 101);
    let head = world.secure.last_head();
    assert!(head.contains(&format!("Bearer {SECRET}")));
    assert!(!head.to_lowercase().contains("extensions"), "extensions compress: {head}");
    assert_eq!(client.take(7).await, b"\x81\x05early");
    let text = format!("a {SECRET} b");
    let frame = [&[0x82, u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    let (one, two) = frame.split_at(11);
    client.send_bytes(one).await;
    client.send_bytes(two).await;
    let stars = "*".repeat(SECRET.len());
    assert_eq!(client.take(2).await, frame[..2]);
    assert_eq!(client.take(text.len()).await, format!("a {stars} b").as_bytes());
    // The beginning of the secret alone passes with the end of its message.
    client.send_bytes(b"\x81\x06canary").await;
    assert_eq!(client.take(8).await, b"\x81\x06canary");
    client.finish().await;
    assert!(client.ends().await);
    let names: Vec<_> = notes(&world, response.id()).await.into_iter().map(|n| n.0).collect();
    assert_eq!(names, ["upgraded", "redacted", "passed"]);
}

/// What is no upgrade stays an exchange: a refusal passes, an answer of 101 to another question does
/// not.
#[tokio::test]
async fn s_5_refused_and_unasked_upgrades() {
    let world = World::new().await;
    let response = world.plain("GET", "/status/403", ASK, "").await;
    assert_eq!((response.status, response.text().as_str()), (403, "body"));
    assert!(response.outcome().starts_with("rejected;"), "{}", response.outcome());
    for (path, fields) in [("/websocket", ""), ("/switch", ASK)] {
        let response = world.plain("GET", path, fields, "").await;
        assert_eq!(response.status, 502, "{path}");
        assert_eq!(response.facts()[0], "REMOTE_PROTOCOL_ERROR", "{path}");
    }
    // Other upgrades do not pass: h2c would escape.
    let fields =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    assert_eq!(world.plain("GET", "/ok", fields, "").await.status, 200);
    let head = world.origin.last_head().to_lowercase();
    assert!(!head.contains("upgrade") && !head.contains("http2-settings"), "{head}");
    let response = world.plain("POST", "/websocket", ASK, "x").await;
    assert_eq!((response.status, response.facts()[0].as_str()), (501, "UNSUPPORTED_ACTION"));
}

fn left_alone(port: u16, closed: u16) -> String {
    pinned("pinned", port) + &pinned("dead", closed)
}

/// A route of that name, for tunnels that policy leaves alone.
fn pinned(name: &str, port: u16) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\nagents = [\"coder\"]\nintercept = false\n\
         match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n"
    )
}

/// The cause of the end on record.
async fn cause(world: &World, id: InvocationId) -> Option<String> {
    let events = world.events(id, "INVOCATION_ENDED").await;
    let Some(Body::InvocationEnded(ended)) = events.into_iter().last().map(|event| event.body)
    else {
        unreachable!("it was waited for");
    };
    ended.observation.map(|seen| seen.cause)
}

/// V-5: what is open ends with the access that it rests on: when policy lets its agent there no more, and
/// when the agent is gone. Another policy that still allows it ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn v_5_open_passages_end_with_their_access() {
    let world =
        World::with(|_, s| left_alone(s.address.port(), 1), proxy::Options::default()).await;
    let text = |more: &str| {
        let routes = left_alone(world.secure.address.port(), 1) + more;
        support::policy_text(&world.origin, &world.secure, &routes)
    };
    let opened = async || {
        let mut socket = Client::connect(world.address).await;
        socket.send(&world.plain_request("GET", "/websocket", ASK, "")).await;
        let switched = socket.response("GET").await;
        assert_eq!((switched.status, socket.take(5).await), (101, b"early".to_vec()));
        let mut tunnel = Client::connect(world.address).await;
        let (port, credentials) = (world.secure.address.port(), world.credentials());
        tunnel
            .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
            .await;
        let established = tunnel.response("CONNECT").await;
        assert_eq!(established.status, 200);
        [(socket, switched.id()), (tunnel, established.id())]
    };
    let passages = opened().await;
    let more = "[[route]]\nname = \"more\"\nmatch = { host = \"more.test\" }\n";
    world.policy.apply(&text(more), "policy.toml", "test").expect("applied");
    // As many looks at the new policy as there are seconds in this.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let [(mut socket, id), (tunnel, other)] = passages;
    socket.send("still").await;
    assert_eq!(socket.take(5).await, b"still");
    world.policy.apply("", "empty.toml", "test").expect("applied");
    for (mut client, id, code) in
        [(socket, id, "REMOTE_OUTCOME_UNKNOWN"), (tunnel, other, "TARGET_NOT_ALLOWED")]
    {
        assert!(client.ends().await);
        assert_eq!(cause(&world, id).await.as_deref(), Some("ACCESS_OVER"));
        assert_eq!(facts(&world.invocation(id).await)[0], code);
    }
    world.policy.apply(&text(""), "policy.toml", "test").expect("applied");
    let passages = opened().await;
    world.policy.remove_agent("coder").expect("removed");
    let codes = ["REMOTE_OUTCOME_UNKNOWN", "AGENT_UNAUTHENTICATED"];
    for ((mut client, id), code) in passages.into_iter().zip(codes) {
        assert!(client.ends().await);
        assert_eq!(cause(&world, id).await.as_deref(), Some("ACCESS_OVER"));
        assert_eq!(facts(&world.invocation(id).await)[0], code);
    }
}

/// A side that has ended its direction, and another that stays silent: the passage ends all the same, and
/// the record says why.
#[tokio::test]
async fn half_closed_passages_end() {
    let tunnels = Tunnels::with("limits = { response_timeout = \"1s\" }\n").await;
    // Taken, and never answered or closed.
    let (mut client, id, mut taken) = tunnels.opened().await;
    client.finish().await;
    assert!(client.ends().await);
    assert_eq!(cause(&tunnels.world, id).await.as_deref(), Some("IDLE"));
    // Nothing of it is left, on that side either.
    let mut byte = [0; 1];
    let read = tokio::time::timeout(std::time::Duration::from_secs(20), taken.read(&mut byte));
    assert!(matches!(read.await.expect("in time"), Ok(0) | Err(_)));
}

/// Tunnels that are left alone, to an origin of the test's.
struct Tunnels {
    origin: tokio::net::TcpListener,
    world: World,
    connect: String,
}

impl Tunnels {
    async fn new() -> Self {
        Self::with("").await
    }

    /// With more in their route.
    async fn with(more: &str) -> Self {
        let origin = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let port = origin.local_addr().expect("address").port();
        let route = pinned("pinned", port) + more;
        let world = World::with(|_, _| route, proxy::Options::default()).await;
        let credentials = world.credentials();
        let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        Self { origin, world, connect }
    }

    /// One more of them, from the caller's side to the origin's.
    async fn opened(&self) -> (Client, InvocationId, tokio::net::TcpStream) {
        let tcp = tokio::net::TcpStream::connect(self.world.address).await.expect("connected");
        // Dropped, it breaks off.
        tcp.set_zero_linger().expect("linger");
        let mut client = Client::on(tcp);
        client.send(&self.connect).await;
        let opened = client.response("CONNECT").await;
        assert_eq!(opened.status, 200);
        let (origin, _) = self.origin.accept().await.expect("accept");
        (client, opened.id(), origin)
    }
}

/// V-1, V-2, D-1: TLS that asks for another host than the tunnel's, or that can't be read to its end, gets an alert, and
/// not a byte of it goes to the origin: it is refused, and was not attempted. What is no TLS passes.
#[tokio::test]
async fn v_1_the_tls_of_a_tunnel_asks_for_its_host() {
    let tunnels = Tunnels::new().await;
    let (world, opened) = (&tunnels.world, async || tunnels.opened().await);
    for (hello, alert, expected, code, field) in [
        (hello("evil.test"), 112, "OTHER_NAME", "AUTHORITY_MISMATCH", "tls.server_name"),
        (
            vec![22, 3, 1, 0, 4, 9, 9, 9, 9],
            50,
            "UNREADABLE_HELLO",
            "INVALID_REQUEST",
            "tls.client_hello",
        ),
        (half_hello(), 50, "CUT_HELLO", "INVALID_REQUEST", "tls.client_hello"),
    ] {
        let (mut client, id, mut origin) = opened().await;
        client.send_bytes(&hello).await;
        if expected == "CUT_HELLO" {
            client.finish().await;
        }
        assert_eq!(client.take(7).await, [21, 3, 1, 0, 2, 2, alert]);
        assert!(client.ends().await);
        let mut came = Vec::new();
        origin.read_to_end(&mut came).await.expect("an end");
        assert!(came.is_empty(), "{came:?}");
        assert_eq!(cause(world, id).await.as_deref(), Some(expected));
        let mut notes = notes(world, id).await;
        assert_eq!(notes.pop(), Some(passed(0, 7)));
        if expected == "OTHER_NAME" {
            assert_eq!(notes.pop(), Some(("other_name".to_owned(), "evil.test".to_owned())));
        }
        let invocation = world.invocation(id).await;
        assert_eq!(facts(&invocation), [code, "validation", "not_attempted", "after_correction"]);
        assert_eq!(invocation.envelope().error.field.as_deref(), Some(field));
        assert!(!invocation.evidence().dispatch_started);
        let phase = Some(Phase::Validation);
        let refused = world.journal.list(&journal::Filter { phase, ..Default::default() });
        assert_eq!(refused.expect("list").invocations[0].id(), id);
    }
    let (mut client, _, mut origin) = opened().await;
    client.send("no TLS").await;
    let mut came = [0; 6];
    origin.read_exact(&mut came).await.expect("bytes");
    assert_eq!(&came, b"no TLS");
}

/// D-1: a tunnel that breaks off before its caller sent anything was not attempted; one whose origin speaks
/// first begins with its caller's first byte.
#[tokio::test]
async fn d_1_a_tunnel_begins_with_its_callers_first_byte() {
    let tunnels = Tunnels::new().await;
    let (world, opened) = (&tunnels.world, async || tunnels.opened().await);
    let (mut client, id, mut speaking) = opened().await;
    speaking.write_all(b"220 hello\r\n").await.expect("written");
    assert_eq!(client.take(11).await, b"220 hello\r\n");
    let begun = world.events(id, "NOTED").await;
    assert!(
        begun.iter().all(|event| event.body.name() != "DISPATCH_STARTED"),
        "nothing is sent yet"
    );
    client.send("HELO").await;
    let mut came = [0; 4];
    speaking.read_exact(&mut came).await.expect("bytes");
    client.finish().await;
    assert_eq!(speaking.read(&mut came).await.expect("an end"), 0);
    drop(speaking);
    assert!(client.ends().await);
    let ended = world.invocation(id).await;
    assert!(ended.evidence().dispatch_started);
    assert_eq!(facts(&ended), ["NOT_JUDGED", "remote_execution", "unknown", "reconcile"]);

    let (mut client, id, silent) = opened().await;
    silent.set_zero_linger().expect("linger");
    drop(silent);
    assert!(client.ends().await);
    let ended = world.invocation(id).await;
    assert_eq!(
        facts(&ended),
        ["CONNECTION_TERMINATED", "connection_setup", "not_attempted", "backoff"]
    );
}

/// D-1: dispatch begins with the orderly end of the caller's side as well, where nothing was sent before it: the
/// origin sees that end, and what it says then passes.
#[tokio::test]
async fn d_1_a_tunnel_begins_with_its_callers_end() {
    let tunnels = Tunnels::new().await;
    let (mut client, id, mut origin) = tunnels.opened().await;
    client.finish().await;
    assert_eq!(origin.read(&mut [0; 1]).await.expect("an end"), 0);
    origin.write_all(b"bye").await.expect("written");
    drop(origin);
    assert_eq!(client.take(3).await, b"bye");
    assert!(client.ends().await);
    let ended = tunnels.world.invocation(id).await;
    assert!(ended.evidence().dispatch_started);
    assert_eq!(facts(&ended), ["NOT_JUDGED", "remote_execution", "unknown", "reconcile"]);
    assert_eq!(notes(&tunnels.world, id).await.pop(), Some(passed(0, 3)));
}

/// D-1: a tunnel whose caller breaks off, or is too slow, before anything may go on was not attempted, and the
/// record says how far the caller came.
#[tokio::test]
async fn d_1_what_was_never_sent_in_a_tunnel_is_told_as_it_was() {
    let tunnels = Tunnels::with("limits = { response_timeout = \"1s\" }\n").await;
    for (hello, breaks, expected, message) in [
        (
            vec![],
            true,
            "CALLER_BROKE",
            "The caller broke off before it sent anything in the tunnel.",
        ),
        (
            half_hello(),
            true,
            "CALLER_BROKE",
            "The caller broke off inside its TLS ClientHello; nothing of it was sent.",
        ),
        (vec![], false, "IDLE", "The caller sent nothing in the tunnel for too long."),
        (
            half_hello(),
            false,
            "IDLE",
            "The caller's TLS ClientHello did not come whole in time; nothing of it was sent.",
        ),
    ] {
        let (mut client, id, mut origin) = tunnels.opened().await;
        client.send_bytes(&hello).await;
        if breaks {
            drop(client);
        } else {
            assert!(client.ends().await);
        }
        let mut came = Vec::new();
        origin.read_to_end(&mut came).await.expect("an end");
        assert!(came.is_empty(), "{came:?}");
        assert_eq!(cause(&tunnels.world, id).await.as_deref(), Some(expected));
        let ended = tunnels.world.invocation(id).await;
        assert!(!ended.evidence().dispatch_started);
        assert_eq!(facts(&ended), ["CALLER_GONE", "validation", "not_attempted", "backoff"]);
        assert_eq!(ended.envelope().error.message, message);
    }
}

fn facts(invocation: &journal::Invocation) -> [&'static str; 4] {
    let verdict = invocation.verdict();
    let [code, phase] = [verdict.code().as_str(), verdict.phase().as_str()];
    [code, phase, verdict.outcome().as_str(), verdict.retry().as_str()]
}

/// A ClientHello for the name.
fn hello(name: &'static str) -> Vec<u8> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = name.try_into().expect("name");
    let mut client = rustls::ClientConnection::new(config.into(), name).expect("client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("written");
    bytes
}

/// The beginning of one.
fn half_hello() -> Vec<u8> {
    let mut bytes = hello("half.test");
    bytes.truncate(bytes.len() / 2);
    bytes
}

/// A tunnel that policy leaves alone: the origin's own certificate reaches the client; opening, bytes
/// and end are on record, the outcome is unknown by nature, and says so by its code.
#[tokio::test]
async fn d_1_tunnels_that_are_left_alone() {
    let (_held, closed) = support::refusing();
    let closed = closed.port();
    let world = World::with(
        |_, secure| left_alone(secure.address.port(), closed),
        proxy::Options::default(),
    )
    .await;
    let port = world.secure.address.port();
    let credentials = world.credentials();
    for n in 1..=2 {
        let mut client = Client::connect(world.address).await;
        let connect = format!(
            "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{credentials}\r\n"
        );
        client.send(&connect).await;
        let opened = client.response("CONNECT").await;
        assert_eq!(opened.status, 200, "{opened:?}");
        // E-4
        assert!(opened.outcome().starts_with("unknown;"), "{}", opened.outcome());
        let hop = format!("affiant;next-hop=\"127.0.0.1:{port}\"");
        assert_eq!(opened.field("proxy-status"), hop);
        let ca = std::fs::read_to_string(world.secure.ca_file.as_ref().expect("ca")).expect("file");
        let mut client = client.into_tls(&ca, "127.0.0.1").await;
        client.send("GET /ok HTTP/1.1\r\nHost: any\r\n\r\n").await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        assert_eq!(response.field("affiant-outcome"), "lie", "it is the origin's own answer");
        client.close().await;
        let id = opened.id();
        let notes = notes(&world, id).await;
        assert_eq!(notes[0], ("tunnel_opened".to_owned(), format!("127.0.0.1:{port}")));
        assert_eq!(notes[1].0, "passed");
        let invocation = world.invocation(id).await;
        assert_eq!(facts(&invocation), ["NOT_JUDGED", "remote_execution", "unknown", "reconcile"]);
        assert_eq!(invocation.accepted().action, "CONNECT");
        assert_eq!(world.secure.effects("/ok"), n);
    }
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!("CONNECT 127.0.0.1:{closed} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    let refused = client.response("GET").await;
    assert_eq!(refused.status, 502);
    assert_eq!(
        refused.facts(),
        ["CONNECTION_REFUSED", "connection_setup", "not_attempted", "backoff"]
    );
}
