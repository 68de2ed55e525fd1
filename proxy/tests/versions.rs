//! Every version of HTTP towards the caller and towards the origin, in all pairings.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Completion, Outcome, SetupStage};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::http2::{Http2Client, Http2Origin, identity};
use support::{Client, Response, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// One caller of HTTP/1.x in a tunnel to the origin's port.
async fn tunnel(world: &World, port: u16) -> Client {
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    client.send(&connect).await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    client.into_tls(world.ca.certificate_pem(), "127.0.0.1").await
}

async fn call(client: &mut Client, port: u16, method: &str, path: &str, content: &str) -> Response {
    let length = content.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Name: v\r\nTE: trailers\r\n\
         Connection: TE\r\nContent-Length: {length}\r\n\r\n{content}"
    );
    client.send(&request).await;
    client.response(method).await
}

async fn world(protocols: &[&[u8]]) -> (World, Http2Origin, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::start(directory.path(), protocols).await;
    let extra = origin.routes();
    (World::with(|_, _| extra, proxy::Options::default()).await, origin, directory)
}

/// Trailers behind a length that was declared go on, which frames have room for and HTTP/1.1 only in chunks.
#[tokio::test(flavor = "multi_thread")]
async fn trailers_behind_a_declared_length_go_on() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let answer = call(&mut tunnel(&world, port).await, port, "GET", "/sized-trailer", "").await;
    assert_eq!((answer.text().as_str(), answer.field("transfer-encoding")), ("hello", "chunked"));
    assert_eq!(answer.all("content-length").len(), 0);
    // Ours stand behind it where the answer began before the request ended.
    assert!(answer.trailers.starts_with("x-sum: 1\n"), "{}", answer.trailers);
    let client = Http2Client::open(&world, port).await;
    let answer = client.call("GET", "/sized-trailer", b"").await;
    assert_eq!(answer.content, b"hello");
    assert_eq!(answer.trailers["x-sum"], "1");
    // Of requests, to HTTP/2 and to HTTP/1.1, which has to know of them before the content leaves.
    let uri = |port: u16, host: &str| format!("https://{host}:{port}/status/200");
    for (method, announced) in [("POST", false), ("PUT", true)] {
        let secure = world.secure.address.port();
        for (near, host, port) in [
            (&client.sender, "127.0.0.1", port),
            (&Http2Client::open_to(&world, "localhost", secure).await.sender, "localhost", secure),
        ] {
            let mut request = http::Request::builder().method(method).uri(uri(port, host));
            request = request.header("content-length", 3).header("te", "trailers");
            if announced {
                request = request.header("trailer", "x-sum");
            }
            let mut near = near.clone().ready().await.expect("ready");
            let request = request.body(()).expect("request");
            let (response, mut sending) = near.send_request(request, false).expect("sent");
            sending.send_data(bytes::Bytes::from_static(b"abc"), false).expect("data");
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", "1".parse().expect("value"));
            sending.send_trailers(trailers).expect("trailers");
            let answer = tokio::time::timeout(std::time::Duration::from_secs(20), response).await;
            assert_eq!(answer.expect("in time").expect("answer").status(), 200, "{method} {host}");
        }
        assert_eq!(origin.seen.lock().expect("lock").trailers.pop().expect("some")["x-sum"], "1");
        assert_eq!(world.secure.last_trailers(), "x-sum: 1\r\n\r\n", "{method}");
        assert_eq!(world.secure.last_content(), b"abc");
    }
}

/// S-6: what the library lets pass and RFC 9113 does not is no answer: a length twice (section 8.1.1), and
/// blanks around a value (section 8.2.1). Over HTTP/1.1 the one could not be told from a smuggled response.
#[tokio::test(flavor = "multi_thread")]
async fn s_6_heads_that_only_frames_can_have_are_malformed() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let client = Http2Client::open(&world, port).await;
    for path in ["/two-lengths", "/padded"] {
        let near = call(&mut tunnel(&world, port).await, port, "GET", path, "").await;
        let far = client.call("GET", path, b"").await;
        assert_eq!((near.status, far.status), (502, 502), "{path}");
        for said in [near.outcome(), far.field("affiant-outcome")] {
            assert!(
                said.starts_with("unknown;") && said.contains("=REMOTE_PROTOCOL_ERROR;"),
                "{said}"
            );
        }
        assert_eq!(origin.effects(path), 2);
    }
    let uri = format!("https://127.0.0.1:{port}/a");
    let request = http::Request::get(uri).header("x-padded", "v\t").body(()).expect("request");
    let mut near = client.sender.clone().ready().await.expect("ready");
    let (response, _) = near.send_request(request, true).expect("sent");
    assert_eq!(response.await.expect("answer").status(), 400);
    assert_eq!(origin.effects("/a"), 0);
}

/// C-3: a connection of HTTP/2 that its origin is about to end carries no further call, whatever its method.
#[tokio::test(flavor = "multi_thread")]
async fn c_3_a_connection_that_goes_away_idle_is_not_used() {
    for method in ["GET", "POST"] {
        let (world, origin, _directory) = world(&[b"h2"]).await;
        let port = origin.address.port();
        let mut client = tunnel(&world, port).await;
        // The GOAWAY is on its way before the answer.
        assert_eq!(call(&mut client, port, "GET", "/goaway", "").await.status, 200);
        let answer = call(&mut client, port, method, "/a", "").await;
        assert_eq!((answer.status, origin.effects("/a")), (200, 1), "{method}");
        let evidence = world.invocation(answer.id()).await.evidence();
        assert_eq!(evidence.connection_reused, Some(false));
        assert_eq!(origin.seen.lock().expect("lock").connections, 2);
    }
}

/// C-4, D-2: callers of HTTP/1.0 and 1.1 reach an origin that speaks HTTP/2 alone; that it does was
/// found out in the handshake, and is remembered. Calls at once share its one connection.
#[tokio::test(flavor = "multi_thread")]
async fn c_4_http1_callers_and_an_http2_origin() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let mut client = tunnel(&world, port).await;
    let answer = call(&mut client, port, "POST", "/a", "content").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "content"));
    assert_eq!(answer.field("content-length"), "7");
    let evidence = world.invocation(answer.id()).await.evidence();
    assert_eq!(evidence.completion, Some(Completion::EndStream));
    let tries: Vec<_> = evidence.attempts.iter().map(|a| (a.n, a.stage, a.code.as_str())).collect();
    assert_eq!(
        tries,
        [
            (1, SetupStage::TlsHandshake, "ALERT_NO_APPLICATION_PROTOCOL"),
            (2, SetupStage::TlsHandshake, "ok")
        ]
    );
    let answer = call(&mut client, port, "POST", "/grpc/0", "m").await;
    assert!(answer.trailers.contains("grpc-status: 0"), "{answer:?}");
    let answer = call(&mut client, port, "GET", "/interim", "").await;
    assert_eq!((answer.status, answer.interim.len()), (200, 1));
    client
        .send(&format!(
            "GET /b HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: keep-alive\r\n\r\n"
        ))
        .await;
    let answer = client.response("GET").await;
    assert_eq!((answer.status, answer.complete), (200, true));
    let evidence = world.invocation(answer.id()).await.evidence();
    assert_eq!((evidence.attempts.len(), evidence.connection_reused), (0, Some(true)));

    let mut others = tokio::task::JoinSet::new();
    for n in 0..8 {
        let mut other = tunnel(&world, port).await;
        let text = n.to_string();
        others.spawn(async move {
            let answer = call(&mut other, port, "POST", "/c", &text).await;
            assert_eq!((answer.status, answer.text()), (200, text));
        });
    }
    while let Some(done) = others.join_next().await {
        done.expect("answered");
    }
    let seen = origin.seen.lock().expect("lock");
    assert_eq!((seen.connections, seen.effects["/c"]), (1, 8));
    let head = &seen.heads[0];
    assert_eq!(
        (head.headers["x-name"].as_bytes(), head.headers["te"].as_bytes()),
        (&b"v"[..], &b"trailers"[..])
    );
    assert_eq!(head.uri.to_string(), format!("https://127.0.0.1:{port}/a"));
    assert!(!head.headers.contains_key("connection") && !head.headers.contains_key("host"));
}

/// Where the origin speaks both, each caller's own version goes on: the names of HTTP/1.1 keep their
/// case, and a caller of HTTP/2 has its frames.
#[tokio::test(flavor = "multi_thread")]
async fn each_version_goes_on_where_the_origin_speaks_it() {
    let (world, origin, _directory) = world(&[b"h2", b"http/1.1"]).await;
    let port = origin.address.port();
    let mut client = tunnel(&world, port).await;
    assert_eq!(call(&mut client, port, "GET", "/ok", "").await.text(), "ok");
    assert!(origin.http11.last_head().contains("\r\nX-Name: v\r\n"));
    let streams = Http2Client::open(&world, port).await;
    assert_eq!(streams.call("POST", "/x", b"y").await.content, b"y");
    assert_eq!(origin.effects("/x"), 1);
}

/// C-6, D-7: that an origin wants HTTP/1.1 does not say that it did nothing with the request, which is not
/// sent again; the next one goes over HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_http11_is_required() {
    let (world, origin, _directory) = world(&[b"h2", b"http/1.1"]).await;
    let client = Http2Client::open(&world, origin.address.port()).await;
    let answer = client.call("POST", "/http11", b"x").await;
    assert_eq!(answer.status, 502);
    let said = answer.field("affiant-outcome");
    assert!(said.starts_with("unknown;phase=remote_execution;retry=reconcile;"), "{said}");
    assert_eq!(origin.effects("/http11"), 1);
    assert_eq!(origin.http11.connections(), 0);
    let answer = client.call("POST", "/echo", b"x").await;
    assert_eq!(answer.status, 200);
    assert_eq!(origin.effects("/echo"), 0);
    assert_eq!(origin.http11.effects("/echo"), 1);
}

/// A target that frames can't carry is refused before dispatch.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_a_target_that_frames_do_not_carry() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let mut client = tunnel(&world, port).await;
    let answer = call(&mut client, port, "POST", "/a<b>", "x").await;
    assert_eq!((answer.status, answer.facts()[0].as_str()), (400, "INVALID_TARGET"));
    assert_eq!(world.invocation(answer.id()).await.verdict().outcome(), Outcome::NotAttempted);
    assert!(origin.seen.lock().expect("lock").effects.is_empty());
}

/// One frame.
fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

/// An origin that reads one request head per connection, answers it with these bytes in one flight and
/// closes; and how many it read.
async fn saying(
    directory: &std::path::Path,
    answer: Vec<u8>,
) -> (u16, std::path::PathBuf, Arc<AtomicUsize>) {
    let (config, ca_file) = identity(directory, &[b"h2"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accept");
            let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
            let mut preface = [0; 24];
            tls.read_exact(&mut preface).await.expect("preface");
            tls.write_all(&frame(4, 0, 0, b"")).await.expect("settings");
            tls.flush().await.expect("flush");
            let mut header = [0; 9];
            // The request's HEADERS are frames of type 1.
            while tls.read_exact(&mut header).await.is_ok() {
                let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                let mut payload = vec![0; length as usize];
                tls.read_exact(&mut payload).await.expect("payload");
                if header[3] == 1 {
                    counted.fetch_add(1, Ordering::Relaxed);
                    tls.write_all(&answer).await.expect("answer");
                    tls.shutdown().await.expect("shutdown");
                    break;
                }
            }
        }
    });
    (port, ca_file, asked)
}

fn goaway(last: u32) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

fn reset(code: u32) -> Vec<u8> {
    frame(3, 0, 1, &code.to_be_bytes())
}

/// Plays a POST to an origin that answers so, on a route that sends a refused one again by itself:
/// status, outcome, code, and how often the origin was asked.
async fn played(answer: Vec<u8>) -> (u16, String, String, usize) {
    let directory = tempfile::tempdir().expect("directory");
    let (port, ca_file, asked) = saying(directory.path(), answer).await;
    let extra = format!(
        "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n[[route]]\nname = \"h2\"\n\
         match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n\
         retry = {{ max_attempts = 2, automatic = true }}\n",
        ca_file.display()
    );
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = Http2Client::open(&world, port).await;
    let answer = client.call("POST", "/x", b"y").await;
    let verdict = world.invocation(answer.id()).await.verdict();
    let told = (verdict.outcome().as_str().to_owned(), verdict.code().as_str().to_owned());
    (answer.status, told.0, told.1, asked.load(Ordering::Relaxed))
}

/// C-6: a stream above the last one of a GOAWAY was not processed; of one at or below it nothing is
/// known.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_the_last_stream_of_a_goaway_decides() {
    for (last, status, outcome, code, times) in [
        (0, 503, "rejected", "REMOTE_NOT_PROCESSED", 2),
        (1, 502, "unknown", "REMOTE_OUTCOME_UNKNOWN", 1),
    ] {
        let told = played(goaway(last)).await;
        assert_eq!(told, (status, outcome.to_owned(), code.to_owned(), times), "{last}");
    }
}

/// C-6, S-5, T-1: whatever came of an answer voids the protocol's word that nothing was processed, and
/// a request that an origin wants over HTTP/1.1 may have been processed: one effect each, though the
/// route sends again by itself what was refused.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_an_answer_voids_the_word_that_nothing_was_processed() {
    const REFUSED: u32 = 7;
    const HTTP11: u32 = 13;
    let hints = || frame(1, 4, 1, b"\x08\x03103");
    let head = || frame(1, 4, 1, b"\x88");
    let whole = || frame(1, 5, 1, b"\x88");
    for (case, answer, code) in [
        ("hints, refused", [hints(), reset(REFUSED)].concat(), "REMOTE_OUTCOME_UNKNOWN"),
        ("hints, goaway", [hints(), goaway(0)].concat(), "REMOTE_OUTCOME_UNKNOWN"),
        ("goaway, hints", [goaway(0), hints()].concat(), "REMOTE_OUTCOME_UNKNOWN"),
        ("goaway, whole", [goaway(0), whole()].concat(), "REMOTE_OUTCOME_UNKNOWN"),
        ("head, refused", [head(), reset(REFUSED)].concat(), "REMOTE_RESULT_INCOMPLETE"),
        (
            "part of a head, goaway",
            // No other frame may stand inside of a field block (RFC 9113 section 6.10).
            [frame(1, 0, 1, b"\x88"), goaway(0)].concat(),
            "REMOTE_PROTOCOL_ERROR",
        ),
        ("HTTP/1.1", reset(HTTP11), "REMOTE_OUTCOME_UNKNOWN"),
    ] {
        let (status, outcome, told, times) = played(answer).await;
        assert_eq!((outcome.as_str(), told.as_str(), times), ("unknown", code, 1), "{case}");
        // A success that begins before its request ended is passed on at once, and broken off.
        assert!(status == 502 || (status == 200 && case == "head, refused"), "{case} {status}");
    }
}

/// V-1: a request with as many fields as a caller may send goes on in frames, too, with ours beside them.
#[tokio::test]
async fn v_1_the_largest_request_head_goes_on_in_frames() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let mut client = tunnel(&world, port).await;
    let fields: String = (0..99).map(|i| format!("X-{i}: v\r\n")).collect();
    client.send(&format!("GET /ok HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{fields}\r\n")).await;
    let answer = client.response("GET").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let seen = origin.seen.lock().expect("lock");
    let head = &seen.heads.last().expect("a head").headers;
    let of_caller = head.keys().filter(|name| name.as_str().starts_with("x-"));
    assert_eq!(of_caller.count(), 99);
}

/// `Via` names the protocol by which each message was received (RFC 9110 section 7.6.3): the request's from its
/// caller, the response's from its origin.
#[tokio::test]
async fn via_names_what_was_received() {
    let (world, origin, _directory) = world(&[b"h2"]).await;
    let port = origin.address.port();
    let of_request = |world: &World| {
        let head = world.origin.last_head() + &world.secure.last_head();
        head.lines().find_map(|line| Some(line.strip_prefix("Via: ")?.to_owned())).expect("via")
    };
    let is = |via: &str, received: &str| {
        assert!(via.starts_with(&format!("{received} affiant-")), "{received}: {via}");
    };
    let request = world.plain_request("GET", "/old-answer", "", "");
    for (version, received) in [("HTTP/1.1", "1.1"), ("HTTP/1.0", "1.0")] {
        let mut client = Client::connect(world.address).await;
        client.send(&request.replace("HTTP/1.1", version)).await;
        let answer = client.response("GET").await;
        is(&of_request(&world), received);
        is(answer.field("via"), "1.0");
    }
    assert!(world.plain("GET", "/status/200", "", "").await.field("via").starts_with("1.1 "));
    let mut client = tunnel(&world, port).await;
    let answer = call(&mut client, port, "GET", "/ok", "").await;
    is(answer.field("via"), "2");
    let seen = origin.seen.lock().expect("lock").heads.last().expect("a head").headers.clone();
    is(seen["via"].to_str().expect("text"), "1.1");
    let h2 = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
    let answer = h2.call("GET", "/status/200", b"").await;
    is(answer.field("via"), "1.1");
    let head = world.secure.last_head();
    let via = head.lines().find_map(|line| line.strip_prefix("Via: ")).expect("via");
    is(via, "2");
}
