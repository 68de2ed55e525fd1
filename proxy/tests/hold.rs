//! What is held of a response and what streams, and what becomes of it when its caller goes away.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Body, Code, InvocationId, Outcome};
use proxy::Options;
use std::time::Duration;
use support::http2::Http2Client;
use support::{Client, Origin, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Routes to what is answered in halves, with more terms by path.
fn halves(origin: &Origin, secure: &Origin, extra: &[(&str, &str)]) -> String {
    let (plain, tls) = (origin.address.port(), secure.address.port());
    let mut text = String::new();
    for (n, (path, terms)) in extra.iter().enumerate() {
        for (scheme, host, port) in [("http", "127.0.0.1", plain), ("https", "localhost", tls)] {
            text.push_str(&format!(
                "[[route]]\nname = \"half-{n}-{scheme}\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"{scheme}\", host = \"{host}\", port = {port}, \
                 path = \"{path}\" }}\nprivate_addresses = \"allow\"\n{terms}\n"
            ));
        }
    }
    text
}

/// I-4: a message of a stream that ends in what may be the beginning of the credential comes whole, though
/// nothing follows it until its caller has answered.
#[tokio::test]
async fn i_4_the_end_of_a_message_is_not_held_back() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/with-credential/half/begin", "", "")).await;
    let head = client.head().await;
    assert!(head.contains("Affiant-Outcome: unknown;"), "{head}");
    assert_eq!(client.line().await.as_deref(), Some("6"));
    assert_eq!(client.take(8).await, b"data: \r\n");
    assert_eq!(client.line().await.as_deref(), Some("1"));
    assert_eq!(client.take(3).await, b"B\r\n");
    world.secure.open_gate();
    assert_eq!(client.line().await.as_deref(), Some("3"));
    assert_eq!(client.take(8).await, b"end\r\n0\r\n");
}

/// E-4: a response of any type whose end is not in sight is passed on as it comes: its caller has the first
/// half before the origin sends the second, in clear text, in a tunnel and over HTTP/2.
#[tokio::test]
async fn e_4_a_response_without_a_length_streams() {
    let world = World::with(
        |plain, tls| halves(plain, tls, &[("/half/**", "limits = { hold_time = \"100ms\" }")]),
        Options::default(),
    )
    .await;
    for path in ["/half/chunked", "/half/close"] {
        for tunnel in [false, true] {
            let mut client;
            if tunnel {
                client = world.tunnel().await;
                client.send(&world.secure_request("GET", path, "", "")).await;
            } else {
                client = Client::connect(world.address).await;
                client.send(&world.plain_request("GET", path, "", "")).await;
            }
            let head = client.head().await;
            assert!(head.contains("Affiant-Outcome: unknown;"), "{head}");
            assert_eq!(client.line().await.as_deref(), Some("3"), "{path}");
            assert_eq!(client.take(5).await, b"the\r\n", "{path}");
            let origin = if tunnel { &world.secure } else { &world.origin };
            origin.open_gate();
            assert_eq!(client.line().await.as_deref(), Some("3"), "{path}");
            assert_eq!(client.take(8).await, b"end\r\n0\r\n", "{path}");
            let trailers = client.head().await;
            assert!(trailers.contains("Affiant-Outcome: committed;"), "{trailers}");
        }
        let h2 = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
        let mut sender = h2.sender.clone().ready().await.expect("ready");
        let request = http::Request::builder().uri(format!("https://{}{path}", h2.authority));
        let (response, _) =
            sender.send_request(request.body(()).expect("request"), true).expect("sent");
        let response = tokio::time::timeout(Duration::from_secs(20), response).await;
        let mut body = response.expect("in time").expect("a response").into_body();
        let first = tokio::time::timeout(Duration::from_secs(20), body.data()).await;
        assert_eq!(first.expect("in time").expect("a piece").expect("data"), "the", "{path}");
        world.secure.open_gate();
        assert_eq!(body.data().await.expect("a piece").expect("data"), "end", "{path}");
        let trailers = body.trailers().await.expect("trailers").expect("some");
        let outcome = trailers["affiant-outcome"].to_str().expect("text");
        assert!(outcome.starts_with("committed;"), "{outcome}");
    }
    // A caller of HTTP/1.0 has neither chunks nor trailers.
    let request = world.plain_request("GET", "/half/chunked", "", "");
    let mut client = Client::connect(world.address).await;
    client.send(&request.replace("HTTP/1.1", "HTTP/1.0")).await;
    let head = client.head().await;
    assert!(head.contains("Connection: close"), "{head}");
    assert_eq!(client.take(3).await, b"the");
    world.origin.open_gate();
    assert_eq!(client.take(3).await, b"end");
    assert!(client.ends().await);
}

/// M-7, D-5, T-1, S-2: what is read as a whole or may be tried again, and what says how short it is, is held
/// to its end, and says its outcome in its head.
#[tokio::test]
async fn s_2_what_needs_its_end_is_held() {
    const SHORT: &str = "limits = { hold_time = \"1ms\" }";
    let retry = format!("{SHORT}\nretry = {{ max_attempts = 2, automatic = true }}");
    let batch = format!(
        "{SHORT}\n[route.batch]\nrequests = \"\"\nresponses = \"\"\nstatus = \"/status\"\n"
    );
    let job = format!("{SHORT}\njob = {{ pointer = \"/url\", done = {{ status = 200 }} }}");
    for (path, terms, length) in [
        ("/half/length", SHORT, "6"),
        ("/half/chunked", retry.as_str(), ""),
        ("/half/chunked", batch.as_str(), ""),
        ("/half/job", job.as_str(), ""),
    ] {
        let world = World::with(
            |plain, tls| halves(plain, tls, &[("/half/**", terms)]),
            Options::default(),
        )
        .await;
        let mut client = Client::connect(world.address).await;
        let id = world.journal.new_id();
        let fields = format!("Affiant-Invocation: {id}\r\n");
        client.send(&world.plain_request("POST", path, &fields, "[]")).await;
        world.events(id, "REMOTE_RESPONSE_STARTED").await;
        // Only a mend that is missing can make a difference to what follows.
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.origin.open_gate();
        let answer = client.response("POST").await;
        assert!(answer.outcome().starts_with("committed;"), "{path} {terms}: {answer:?}");
        assert_eq!(answer.field("content-length"), length, "{path} {terms}");
        assert!(answer.complete && answer.trailers.is_empty(), "{path} {terms}");
        let events = world.journal.events(id).expect("events");
        let tracked = events.iter().any(|(_, event)| event.body.name() == "JOB_TRACKED");
        assert_eq!(tracked, path == "/half/job");
    }
}

/// An origin whose content never ends, and nobody's patience does, either.
async fn endless(
    head: &'static str,
    piece: &'static str,
) -> (u16, tokio::sync::mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let (ended, over) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let ended = ended.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                assert!(tcp.read(&mut request).await.expect("a request") > 0);
                tcp.write_all(head.as_bytes()).await.expect("a head");
                loop {
                    tokio::select! {
                        read = tcp.read(&mut request) => {
                            assert!(!matches!(read, Ok(1..)), "more than a request");
                            break;
                        }
                        () = tokio::time::sleep(Duration::from_millis(20)) => {
                            if tcp.write_all(piece.as_bytes()).await.is_err() {
                                break;
                            }
                        }
                    }
                }
                ended.send(()).await.ok();
            });
        }
    });
    (port, over)
}

async fn ends_unattended(world: &World, id: InvocationId) {
    let events = world.events(id, "INVOCATION_ENDED").await;
    let Some(Body::InvocationEnded(end)) = events.last().map(|event| &event.body) else {
        unreachable!("checked by its name")
    };
    assert_eq!(end.verdict.code(), Code::CallerCancelled);
    assert_eq!(end.verdict.outcome(), Outcome::Unknown);
    let cause = end.observation.as_ref().map(|observation| observation.cause.as_str());
    assert_eq!(cause, Some("UNATTENDED"));
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// D-4: a caller that goes away while the response is held for it, or while a stream is quiet, is noticed:
/// the response is read within bounds, and the call and its connection end.
#[tokio::test]
async fn d_4_a_caller_that_leaves_is_noticed() {
    for (head, piece, hold, by_reset) in [
        (HEAD, "1\r\nx\r\n", "1h", false),
        (HEAD, "1\r\nx\r\n", "1h", true),
        (HEAD, "1\r\nx\r\n", "1ms", false),
        (EVENTS, "", "1h", true),
    ] {
        let (port, mut over) = endless(head, piece).await;
        let world = World::with(
            |_, _| {
                format!(
                    "[[route]]\nname = \"endless\"\nagents = [\"coder\"]\n\
                     match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n\
                     private_addresses = \"allow\"\n\
                     limits = {{ response_timeout = \"1s\", hold_time = \"{hold}\" }}\n"
                )
            },
            Options::default(),
        )
        .await;
        let id = world.journal.new_id();
        let request = format!(
            "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n{}Affiant-Invocation: {id}\r\n\r\n",
            world.credentials()
        );
        let mut tcp = tokio::net::TcpStream::connect(world.address).await.expect("connect");
        tcp.write_all(request.as_bytes()).await.expect("sent");
        world.events(id, "REMOTE_RESPONSE_STARTED").await;
        if by_reset {
            tcp.set_zero_linger().expect("linger");
        }
        drop(tcp);
        ends_unattended(&world, id).await;
        over.recv().await.expect("the origin's connection ended");
    }
}

/// D-4: as above, with a stream that is reset, and with the connection below it gone.
#[tokio::test]
async fn d_4_a_stream_that_is_reset_is_noticed() {
    for (path, gone) in [("/held", false), ("/held", true), ("/events", false)] {
        let world = World::with(
            |plain, tls| {
                let terms = "limits = { response_timeout = \"1s\", hold_time = \"1h\" }";
                halves(plain, tls, &[("/half/**", terms)])
            },
            Options::default(),
        )
        .await;
        let path = if path == "/held" { "/half/chunked" } else { "/half/events" };
        let id = world.journal.new_id();
        let h2 = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
        let mut sender = h2.sender.clone().ready().await.expect("ready");
        let request = http::Request::builder()
            .uri(format!("https://{}{path}", h2.authority))
            .header("affiant-invocation", id.to_string());
        let (response, mut sending) =
            sender.send_request(request.body(()).expect("request"), true).expect("sent");
        world.events(id, "REMOTE_RESPONSE_STARTED").await;
        if gone {
            drop((response, sending, sender, h2));
        } else {
            sending.send_reset(h2::Reason::CANCEL);
            drop((response, sending));
        }
        ends_unattended(&world, id).await;
    }
}

/// D-4: an attempt that has no caller is bounded from its beginning.
#[tokio::test]
async fn d_4_an_attempt_without_a_caller_is_bounded() {
    let (port, mut over) = endless(HEAD, "1\r\nx\r\n").await;
    let world = World::with(
        |_, _| {
            format!(
                "[[route]]\nname = \"endless\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n\
                 private_addresses = \"allow\"\nidempotent = true\nretry = {{ max_attempts = 2 }}\n\
                 limits = {{ response_timeout = \"1s\" }}\n"
            )
        },
        Options::default(),
    )
    .await;
    let id = world.journal.new_id();
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!(
            "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n{}Affiant-Invocation: {id}\r\n\r\n",
            world.credentials()
        ))
        .await;
    world.events(id, "REMOTE_RESPONSE_STARTED").await;
    drop(client);
    ends_unattended(&world, id).await;
    over.recv().await.expect("the first connection ended");
    let retried = async {
        loop {
            match world.proxy.retry(id, "test").await {
                // No sooner than the instruction says.
                Err(journal::action::Error::TooEarly { .. }) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                retried => return retried.expect("an attempt"),
            }
        }
    };
    let attempt = tokio::time::timeout(Duration::from_secs(20), retried).await.expect("in time");
    ends_unattended(&world, attempt.id()).await;
    over.recv().await.expect("the second connection ended");
}

/// V-1, D-4: who waits for an answer when its access ends is cut, and the answer is read for the record.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_a_held_answer_is_not_for_an_agent_without_access() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let mut client = Client::connect(world.address).await;
    let fields = format!("Affiant-Invocation: {id}\r\n");
    client.send(&world.plain_request("POST", "/gate", &fields, "x")).await;
    world.origin.reached("/gate", 1).await;
    world.policy.remove_agent("coder").expect("removed");
    assert!(client.ends().await);
    world.origin.open_gate();
    world.events(id, "DELIVERY_FAILED").await;
    let invocation = world.invocation(id).await;
    assert_eq!(invocation.verdict().outcome().as_str(), "committed");
    let mut result = world.journal.result(id).expect("a result");
    assert_eq!(result.read_to_end().expect("content"), b"ok");
}
