//! Callers of HTTP/2 that flood: the connection ends by a rule that the caller is told, memory stays
//! bounded, and other connections are served.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Body, InvocationId, Outcome};
use std::time::Duration;
use support::frames::*;
use support::http2::Http2Origin;
use support::{Client, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;

const ENHANCE_YOUR_CALM: u32 = 11;
const REFUSED_STREAM: u32 = 7;
const LIMIT: Duration = Duration::from_secs(60);
/// What the process may grow by while a flood lasts.
const GROWTH_KIB: u64 = 64 * 1024;

/// Memory is the process's, so one flood at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Sends the flood, piece by piece, while it reads; the error code of the GOAWAY that ends it, and
/// how many pieces were sent before the connection ended.
async fn flood(raw: Raw, piece: impl Fn(u32) -> Vec<u8>) -> (Option<u32>, u32) {
    let (reading, mut writing) = tokio::io::split(raw.stream);
    let sent = async {
        for n in 0..u32::MAX {
            if writing.write_all(&piece(n)).await.is_err() || writing.flush().await.is_err() {
                return n;
            }
        }
        u32::MAX
    };
    let mut reader = Raw { stream: Box::new(tokio::io::join(reading, tokio::io::sink())) };
    let ended = async {
        let mut code = None;
        while let Some((kind, _, payload)) = reader.next().await {
            if kind == GOAWAY {
                code = payload.get(4..8).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]));
            }
        }
        code
    };
    let both = async { tokio::join!(ended, sent) };
    tokio::time::timeout(LIMIT, both).await.expect("the connection ends")
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("KiB")
}

/// Floods, and makes sure of what holds for every flood. The pieces may be sent forever: that the
/// sending ends is the point.
async fn check(name: &str, piece: impl Fn(&str, u32) -> Vec<u8>) {
    let _alone = ALONE.lock().await;
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::start(directory.path(), &[b"h2"]).await;
    let extra = origin.routes();
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let port = origin.address.port();
    let authority = format!("127.0.0.1:{port}");
    // Other callers, before and after.
    let mut other = world.tunnel().await;
    other.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(other.response("GET").await.status, 200);
    let before = resident_kib();
    let raw = Raw::open(&world, "127.0.0.1", port).await;
    let (code, sent) = flood(raw, |n| piece(&authority, n)).await;
    assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{name}: after {sent} pieces");
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "{name}: {grown} KiB");
    other.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(other.response("GET").await.status, 200, "{name}");
}

/// V-1: callers that nobody knows are answered, however many they are, and the journal does not grow with
/// them; a caller with a token is recorded as ever.
#[tokio::test]
async fn v_1_strangers_do_not_fill_the_journal() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let request = "GET http://example.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n";
    let (mut sent, mut recorded, mut left_out) = (0, 0, 0);
    // On until one is recorded again: it says how many were not.
    while recorded + left_out < 1500 || left_out == 0 {
        client.send(request).await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.facts()[0].as_str()), (407, "AGENT_UNAUTHENTICATED"));
        let events = world.journal.events(response.id()).expect("events");
        sent += 1;
        recorded += usize::from(!events.is_empty());
        for (_, event) in events {
            if let Body::Noted(noted) = event.body
                && noted.name == "refused_without_a_record"
            {
                left_out += noted.detail.parse::<usize>().expect("a number");
                assert_eq!(recorded + left_out, sent);
            }
        }
    }
    assert!((1000..1490).contains(&recorded), "{recorded}");
    // D-1, J-3: an answer without a record says nothing under an id that has one.
    let refused = client_refused(&world).await;
    for _ in 0..5 {
        let fields = format!("Host: a.test\r\nAffiant-Invocation: {refused}\r\n");
        client.send(&format!("GET http://a.test/ HTTP/1.1\r\n{fields}\r\n")).await;
        let response = client.response("GET").await;
        assert_eq!(response.facts()[0], "AGENT_UNAUTHENTICATED");
        assert_ne!(response.id(), refused);
    }
    assert_eq!(world.invocation(refused).await.verdict().code().as_str(), "TARGET_NOT_ALLOWED");
}

async fn client_refused(world: &World) -> InvocationId {
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client
        .send(&format!("GET http://no.test/ HTTP/1.1\r\nHost: no.test\r\n{credentials}\r\n"))
        .await;
    client.response("GET").await.id()
}

/// Requests that are taken back at once (rapid reset). What was dispatched runs to its end (D-4), and
/// no more of it at a time than a connection may have.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_rapid_resets_end_the_connection() {
    check("rapid reset", |authority, n| {
        let id = 2 * n + 1;
        let asked = frame(HEADERS, END_STREAM | END_HEADERS, id, &fields(authority, "/hang"));
        [asked, frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())].concat()
    })
    .await;
}

/// Streams over the bound, on and on: so many refusals in a row end the connection.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_endless_refusals_end_the_connection() {
    check("streams over the bound", |authority, n| {
        frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, &fields(authority, "/hang"))
    })
    .await;
}

/// A head that never ends, in empty frames and in full ones.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_endless_heads_end_the_connection() {
    check("empty CONTINUATION", |authority, n| match n {
        0 => frame(HEADERS, END_STREAM, 1, &fields(authority, "/ok")),
        _ => frame(CONTINUATION, 0, 1, b"").repeat(64),
    })
    .await;
    let field = literal("x-more", &"m".repeat(4000));
    check("full CONTINUATION", |authority, n| match n {
        0 => frame(HEADERS, END_STREAM, 1, &fields(authority, "/ok")),
        _ => frame(CONTINUATION, 0, 1, &field),
    })
    .await;
}

/// Frames that ask for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_idle_frames_end_the_connection() {
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]).repeat(64);
    check("SETTINGS", |_, _| settings.clone()).await;
    let ping = frame(PING, 0, 0, b"12345678").repeat(64);
    check("PING", |_, _| ping.clone()).await;
    let ack = frame(PING, ACK, 0, b"12345678").repeat(64);
    check("PING ack", |_, _| ack.clone()).await;
    let priority = frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 7]).repeat(64);
    check("PRIORITY", |_, _| priority.clone()).await;
    check("empty DATA", |authority, n| match n {
        0 => frame(HEADERS, END_HEADERS, 1, &fields(authority, "/ok")),
        _ => frame(0, 0, 1, b"").repeat(64),
    })
    .await;
}

/// An origin that acknowledges what nobody asked, on and on: its connection ends, and the call says that
/// nothing is known.
#[tokio::test]
async fn unasked_acknowledgements_of_an_origin_end_the_connection() {
    let _alone = ALONE.lock().await;
    let directory = tempfile::tempdir().expect("directory");
    let (config, ca_file) = support::http2::identity(directory.path(), &[b"h2"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let flood = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.expect("accept");
        let tls = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await.expect("handshake");
        let mut raw = Raw { stream: Box::new(tls) };
        assert!(raw.send(&frame(SETTINGS, 0, 0, b"")).await);
        raw.stream.read_exact(&mut [0; 24]).await.expect("a preface");
        while raw.next().await.expect("a request").0 != HEADERS {}
        let (mut reading, mut writing) = tokio::io::split(raw.stream);
        let read =
            tokio::spawn(
                async move { tokio::io::copy(&mut reading, &mut tokio::io::sink()).await },
            );
        let acks = frame(PING, ACK, 0, b"12345678").repeat(1000);
        while writing.write_all(&acks).await.is_ok() && writing.flush().await.is_ok() {}
        drop(read.await);
    });
    let extra = format!(
        "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n[[route]]\nname = \"h2\"\n\
         agents = [\"coder\"]\nmatch = {{ host = \"127.0.0.1\", port = {port} }}\n\
         private_addresses = \"allow\"\n",
        ca_file.display()
    );
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = support::http2::Http2Client::open(&world, port).await;
    let answer = client.call("POST", "/x", b"x").await;
    let said = answer.field("affiant-outcome").split(';').next().unwrap_or_default().to_owned();
    assert_eq!((answer.status, said.as_str()), (502, "unknown"));
    tokio::time::timeout(LIMIT, flood).await.expect("the connection ends").expect("flooded");
}

/// Streams over the number that was announced are refused one by one, and may be asked for again; the
/// others are answered.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_streams_over_the_bound_are_refused() {
    let _alone = ALONE.lock().await;
    let world = World::new().await;
    let mut raw = Raw::open(&world, "localhost", world.secure.address.port()).await;
    const BOUND: u32 = 128;
    const OVER: u32 = 20;
    for n in 0..BOUND + OVER {
        let asked = frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            2 * n + 1,
            &fields(&authority(&world), "/gate"),
        );
        assert!(raw.send(&asked).await);
    }
    let (mut refused, mut announced) = (Vec::new(), None);
    while refused.len() < OVER as usize {
        let (kind, id, payload) = raw.next().await.expect("open");
        if kind == RST_STREAM {
            assert_eq!(payload, REFUSED_STREAM.to_be_bytes());
            refused.push(id);
        } else if kind == SETTINGS && !payload.is_empty() {
            let bound = payload.chunks(6).find(|one| one[..2] == [0, 3]).expect("a bound");
            announced = Some(u32::from_be_bytes([bound[2], bound[3], bound[4], bound[5]]));
        }
    }
    assert_eq!(announced, Some(BOUND));
    let expected: Vec<u32> = (BOUND..BOUND + OVER).map(|n| 2 * n + 1).collect();
    assert_eq!(refused, expected);
    (0..BOUND).for_each(|_| world.secure.open_gate());
    let mut answered = std::collections::HashSet::new();
    while answered.len() < BOUND as usize {
        let (kind, id, _) = raw.next().await.expect("open");
        if kind == HEADERS {
            answered.insert(id);
        }
    }
    assert_eq!(world.secure.effects("/gate"), BOUND as usize);
}

/// A head over the limit is refused on record, and its connection goes on; what is far over it is
/// refused by the library with 431.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_long_heads_on_streams_are_refused() {
    let _alone = ALONE.lock().await;
    let world = World::new().await;
    let tls = Raw::tunnel(&world, "localhost", world.secure.address.port()).await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
    tokio::spawn(connection);
    for (bytes, status) in [(70_000, 400), (180_000, 400), (230_000, 431), (1000, 200)] {
        let uri = format!("https://localhost:{}/ok", world.secure.address.port());
        let mut request = http::Request::get(uri);
        for n in 0..bytes / 1000 {
            request = request.header(format!("x-{n}"), "v".repeat(990));
        }
        let mut sender = sender.clone().ready().await.expect("ready");
        let request = request.body(()).expect("request");
        let (response, _) = sender.send_request(request, true).expect("sent");
        let response = tokio::time::timeout(LIMIT, response).await.expect("in time");
        let response = response.expect("a response");
        assert_eq!(response.status(), status, "{bytes}");
        // E-4: the library's own answer can't have them.
        for field in ["proxy-status", "affiant-outcome"] {
            assert_eq!(response.headers().contains_key(field), status != 431, "{bytes} {field}");
        }
        if status == 400 {
            let newest = world.newest();
            let verdict = world.invocation(newest.id()).await.verdict();
            assert_eq!(verdict.code().as_str(), "INVALID_REQUEST");
            assert_eq!(verdict.outcome(), Outcome::NotAttempted);
        }
    }
    assert_eq!(world.secure.all_effects(), 1);
}

/// A head that never comes, or stops in its middle, does not hold the connection: it is told to go, and
/// is closed when it does not.
#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_on_streams_are_cut_off() {
    let _alone = ALONE.lock().await;
    let options = proxy::Options {
        keep_alive: Duration::from_millis(300),
        head_timeout: Duration::from_millis(300),
        ..proxy::Options::default()
    };
    let world = World::with(|_, _| String::new(), options).await;
    for begun in [false, true] {
        let mut raw = Raw::open(&world, "localhost", world.secure.address.port()).await;
        if begun {
            assert!(
                raw.send(&frame(HEADERS, END_STREAM, 1, &fields(&authority(&world), "/ok"))).await
            );
        }
        let ended = async {
            let mut told = false;
            while let Some((kind, _, _)) = raw.next().await {
                told |= kind == GOAWAY;
            }
            told
        };
        assert!(tokio::time::timeout(LIMIT, ended).await.expect("closed"), "{begun}");
    }
    assert_eq!(world.secure.all_effects(), 0);
}
