//! Expectations, answers before the end of the content, and content that stops or is taken slowly: one owner
//! of each handshake, and connections that end where their framing is in doubt.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use proxy::Options;
use support::{Client, World};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const CONTINUE: &str = "HTTP/1.1 100 Continue\n";
const EXPECT: &str = "Expect: 100-continue\r\n";

/// V-1: a caller that waits to be asked for its content is asked once, after policy's word and not
/// before it, in clear text and inside of a tunnel; guarded content beyond what is read ahead included.
#[tokio::test]
async fn v_1_content_is_asked_for_once_and_after_policys_word() {
    let world = World::new().await;
    let content = "x".repeat(3 << 20);
    for (method, tunnel) in [("POST", false), ("PUT", false), ("POST", true), ("PUT", true)] {
        let request = if tunnel {
            world.secure_request(method, "/status/200", EXPECT, &content)
        } else {
            world.plain_request(method, "/status/200", EXPECT, &content)
        };
        let mut client =
            if tunnel { world.tunnel().await } else { Client::connect(world.address).await };
        let (head, content) = request.split_at(request.len() - content.len());
        client.send(head).await;
        assert_eq!(client.head().await, CONTINUE, "{method}");
        client.send(content).await;
        let answer = client.response(method).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "body"), "{method} {tunnel}");
        let origin = if tunnel { &world.secure } else { &world.origin };
        assert!(origin.last_content() == content.as_bytes());
        assert!(!origin.last_head().to_lowercase().contains("\r\nexpect:"));
    }
    let before = world.origin.all_effects() + world.secure.all_effects();
    // By a path inside of a tunnel that is allowed, by a path, and without an identity.
    let mut client = world.tunnel().await;
    world.policy.apply("", "empty.toml", "test").expect("applied");
    client
        .send(&world.secure_request("PUT", "/ok", &format!("{EXPECT}Content-Length: 9\r\n"), ""))
        .await;
    assert_eq!(client.response("PUT").await.status, 403);
    for (fields, status) in [(world.credentials(), 403), (String::new(), 407)] {
        let url = world.plain_url("/ok");
        let mut client = Client::connect(world.address).await;
        client
            .send(&format!(
                "PUT {url} HTTP/1.1\r\nHost: x\r\n{fields}{EXPECT}Content-Length: 9\r\n\r\n"
            ))
            .await;
        let answer = client.response("PUT").await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.interim.is_empty());
    }
    assert_eq!(world.origin.all_effects() + world.secure.all_effects(), before);
}

/// An answer before the end of the content, with content on its way that reads like a request: the answer
/// arrives, the rest is no request, and the connection ends.
#[tokio::test]
async fn early_answers_end_the_connection() {
    let world = World::new().await;
    let inner = world.plain_request("GET", "/smuggled", "", "");
    let length = "Content-Length: 3145728\r\n";
    let early = world.plain_request("PUT", "/early", length, "");
    let denied = early.replace(&world.origin.address.to_string(), "denied.test");
    for (head, status) in [(early, 413), (denied, 403)] {
        let mut client = Client::connect(world.address).await;
        // A part of the content is there before the answer is, and more than is read for good manners.
        client.send(&(head + &inner.repeat((1 << 20) / inner.len()))).await;
        let answer = client.response("PUT").await;
        assert_eq!((answer.status, answer.field("connection")), (status, "close"), "{answer:?}");
        assert!(client.ends().await, "something followed");
    }
    assert_eq!(world.origin.effects("/smuggled"), 0, "content was read as a request");
    assert_eq!(world.origin.connections(), 1);
}

/// S-3: an origin that refuses and closes while content is on its way to it: the write fails, the answer is
/// read all the same, and the record says that not all was sent.
#[tokio::test]
async fn s_3_a_refusal_is_read_although_the_write_fails() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    // More than every buffer on the way holds.
    let content = "x".repeat(24 << 20);
    let _taken =
        client.try_send(world.plain_request("PUT", "/early", "", &content).as_bytes()).await;
    let answer = client.response("PUT").await;
    assert_eq!((answer.status, answer.text().as_str()), (413, "big"), "{answer:?}");
    assert!(answer.outcome().starts_with("rejected;"), "{}", answer.outcome());
    let evidence = world.invocation(answer.id()).await.evidence();
    assert!(evidence.response_complete && !evidence.request_complete);
    assert_eq!(world.origin.all_effects(), 0);
}

/// S-2: a long response that only the origin's close ends, and a caller that is slower than it: every byte
/// arrives, with the outcome behind it, in clear text and over TLS on both sides.
#[tokio::test]
async fn s_2_a_slow_caller_gets_every_byte() {
    const LENGTH: usize = 24_000_000;
    let world = World::new().await;
    let path = format!("/until-close?{LENGTH}");
    for tunnel in [false, true] {
        let mut client;
        if tunnel {
            client = world.tunnel().await;
            client.send(&world.secure_request("GET", &path, "", "")).await;
        } else {
            client = Client::connect(world.address).await;
            client.send(&world.plain_request("GET", &path, "", "")).await;
        }
        let head = client.head().await;
        assert!(head.contains("Transfer-Encoding: chunked"), "{head}");
        let (mut content, mut chunks) = (Vec::with_capacity(LENGTH), 0);
        let trailers = loop {
            let size =
                usize::from_str_radix(&client.line().await.expect("a size"), 16).expect("hex");
            if size == 0 {
                break client.head().await;
            }
            chunks += 1;
            // Buffers on the way fill up before it goes on.
            if chunks < 50 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            content.extend(client.take(size).await);
            assert_eq!(client.line().await.as_deref(), Some(""));
        };
        assert_eq!(content.len(), LENGTH, "{tunnel}");
        assert!(content.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 251));
        assert!(trailers.contains("Affiant-Outcome: committed;"), "{trailers}");
    }
}

/// V-1, D-4: a caller that closes inside the head of a chunk: before dispatch nothing was attempted, after
/// it the outcome is open; the origin gets no last chunk, and nothing goes on spinning.
#[tokio::test]
async fn d_4_a_caller_that_closes_inside_a_chunks_head() {
    let world = World::new().await;
    for (method, size, code, outcome) in [
        ("POST", 4_usize, "CALLER_GONE", "not_attempted"),
        ("PUT", 2 << 20, "CALLER_CANCELLED", "unknown"),
    ] {
        let id = world.journal.new_id();
        let fields = format!("Affiant-Invocation: {id}\r\nTransfer-Encoding: chunked\r\n");
        let head = world.plain_request(method, "/status/200", &fields, "");
        let head = head.replace("Content-Length: 0\r\n", "");
        let mut client = Client::connect(world.address).await;
        client.send(&format!("{head}{size:x}\r\n{}\r\n4\r", "x".repeat(size))).await;
        if method == "PUT" {
            world.events(id, "DISPATCH_STARTED").await;
        }
        client.close().await;
        // What is refused before it is admitted has an id of its own.
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        let id = loop {
            let listed = world.journal.list(&journal::Filter::default()).expect("list");
            let newest = listed.invocations.first().filter(|newest| newest.is_settled());
            if let Some(newest) = newest.filter(|newest| newest.accepted().action == method) {
                break newest.id();
            }
            assert!(tokio::time::Instant::now() < until, "{method} does not end");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        let verdict = world.invocation(id).await.verdict();
        assert_eq!([verdict.code().as_str(), verdict.outcome().as_str()], [code, outcome]);
    }
    assert_eq!(world.origin.all_effects(), 0, "a content without its end was taken for whole");
}

/// S-5, D-4, R-4: an interim response that its caller does not take says nothing of the result: that is kept with
/// its head, and answers a repeat.
#[tokio::test]
async fn s_5_a_caller_that_left_before_an_interim_response() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let request = world.plain_request("POST", "/half/interim", &fields, "x");
    let mut tcp = TcpStream::connect(world.address).await.expect("connect");
    tcp.write_all(request.as_bytes()).await.expect("write");
    world.origin.reached("/half/interim", 1).await;
    tcp.set_zero_linger().expect("linger");
    drop(tcp);
    world.origin.open_gate();
    world.events(id, "DELIVERY_FAILED").await;
    let stored = world.journal.result(id).expect("stored");
    let head = String::from_utf8_lossy(stored.head().expect("a head")).into_owned();
    assert!(head.contains("X-Kept"), "{head}");
    let mut client = Client::connect(world.address).await;
    client.send(&request).await;
    let again = client.response("POST").await;
    assert_eq!((again.status, again.text().as_str()), (201, "ok"), "{again:?}");
    assert_eq!(again.field("x-kept"), "1");
    assert_eq!(world.origin.effects("/half/interim"), 1);
}

/// C-8, S-7: content that grows over the route's limit after dispatch: no word of the answer may say that
/// nothing was sent.
#[tokio::test]
async fn c_8_content_that_grows_over_its_limit() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"bounded\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
                 limits = {{ request_bytes = \"3MiB\" }}\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/gate\" }}\n",
                origin.address.port()
            )
        },
        Options::default(),
    )
    .await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\nTransfer-Encoding: chunked\r\n");
    let head = world.plain_request("PUT", "/gate", &fields, "");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let mut client = Client::connect(world.address).await;
    let content = chunk.repeat(4) + "0\r\n\r\n";
    // It may be answered before all is taken.
    let _taken = client.try_send((head + &content).as_bytes()).await;
    let answer = client.response("PUT").await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(answer.facts(), ["PAYLOAD_LIMIT", "remote_execution", "unknown", "backoff"]);
    let said = answer.field("proxy-status");
    assert!(said.starts_with("affiant;error=connection_terminated;"), "{said}");
    assert_eq!(world.origin.all_effects(), 0);
}

/// Empty lines where a request should begin buy no time.
#[tokio::test]
async fn v_1_empty_lines_do_not_hold_a_connection() {
    let second = std::time::Duration::from_secs(1);
    let options = Options { keep_alive: second, head_timeout: second, ..Options::default() };
    let world = World::with(|_, _| String::new(), options).await;
    let mut client = Client::connect(world.address).await;
    // So many that they would keep it for ten times as long.
    for _ in 0..100 {
        if !client.try_send(b"\r\n").await {
            return;
        }
        tokio::time::sleep(second / 10).await;
    }
    unreachable!("the connection is still there");
}

/// V-1: a call that comes back to the proxy itself is a loop, whoever it seems to come from: in clear text,
/// and by a tunnel through an upstream proxy that is this one.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_a_proxy_that_calls_itself() {
    let world = World::new().await;
    let port = world.address.port();
    let terms = "private_addresses = \"allow\"\nagents = [\"coder\"]\n";
    let own = format!(
        "[[route]]\nname = \"own\"\n{terms}\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n\
         [[parent]]\nname = \"own\"\nurl = \"http://127.0.0.1:{port}\"\ncredential = \"own\"\n\
         [[credential]]\nid = \"own\"\nsecret = \"own\"\ninject = \"basic\"\n\
         [[route]]\nname = \"round\"\n{terms}parent = \"own\"\n\
         match = {{ scheme = \"https\", host = \"127.0.0.1\", port = 9 }}\n"
    );
    // With the agent's own identity, so that nothing else would end it.
    let identity = policy::Secret::from(format!("coder:{}", world.token).as_str());
    world.policy.set_secret("own", &identity).expect("secret");
    let text = support::policy_text(&world.origin, &world.secure, &own);
    world.policy.apply(&text, "policy.toml", "test").expect("applied");
    for url in [format!("http://127.0.0.1:{port}/x"), "https://127.0.0.1:9/x".to_owned()] {
        let before = world.journal.list(&journal::Filter::default()).expect("list").invocations;
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client.send(&format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
        let answer = client.response("GET").await;
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(answer.head.contains("error=proxy_loop_detected"), "{}", answer.head);
        let after = world.journal.list(&journal::Filter::default()).expect("list").invocations;
        let new = after.len() - before.len();
        assert_eq!(new, 2, "the call, and the loop that it was");
        let codes: Vec<_> = after[..new].iter().map(|i| i.verdict().code().as_str()).collect();
        assert_eq!(codes[0], "LOOP_DETECTED", "{codes:?}");
    }
}

/// An answer of the broker's own does not wait for content that the caller still owes: it may owe it until it
/// has that answer. The connection goes on behind the content.
#[tokio::test]
async fn refusals_do_not_wait_for_content() {
    let world = World::new().await;
    let credentials = world.credentials();
    let earlier = world.plain("POST", "/ok", "", "0123456789").await;
    let repeated = format!("{credentials}Affiant-Invocation: {}\r\n", earlier.id());
    let elsewhere = "http://127.0.0.1:1/elsewhere".to_owned();
    for (method, url, fields, status) in [
        ("PUT", elsewhere, credentials.clone(), 403),
        ("PUT", "http://127.0.0.1:bad/".to_owned(), credentials.clone(), 400),
        ("POST", world.plain_url("/ok"), repeated, 422),
    ] {
        let mut client = Client::connect(world.address).await;
        let head = format!("{method} {url} HTTP/1.1\r\nHost: x\r\n{fields}");
        client.send(&format!("{head}Content-Length: 10\r\n\r\nabc")).await;
        if status == 422 {
            client.send("defghij").await;
        }
        let answer = client.response(method).await;
        assert_eq!((answer.status, answer.field("connection")), (status, ""), "{answer:?}");
        if status != 422 {
            client.send("defghij").await;
        }
        client.send(&world.plain_request("GET", "/ok", "", "")).await;
        assert_eq!(client.response("GET").await.text(), "ok", "{method} {url}");
    }
}

/// V-1: of content that a stranger sends nothing is read: the answer comes at once, says that the
/// connection ends, and is not destroyed by what the stranger still sends.
#[tokio::test]
async fn v_1_content_of_strangers_is_not_read() {
    let world = World::new().await;
    let url = world.plain_url("/ok");
    let chunks = "1\r\nx\r\n".repeat(10_000);
    let short = ("Content-Length: 3\r\n", "abc".to_owned());
    let owed = ("Content-Length: 10\r\n", "abc".to_owned());
    for (framing, content) in [short, owed, ("Transfer-Encoding: chunked\r\n", chunks)] {
        let mut client = Client::connect(world.address).await;
        client.send(&format!("POST {url} HTTP/1.1\r\nHost: x\r\n{framing}\r\n{content}")).await;
        let answer = client.response("POST").await;
        let closes = answer.field("connection");
        assert_eq!((answer.status, closes, answer.complete), (407, "close", true), "{framing}");
        assert!(client.ends().await);
        assert!(!client.was_reset(), "{framing}");
    }
}
