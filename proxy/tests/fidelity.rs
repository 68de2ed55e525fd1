//! What a client or an origin legally sends comes out unchanged.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use support::http2::Http2Client;
use support::{Client, World};

/// Trailers of a request reach the origin with what announces them; what frames, routes, modifies or
/// authenticates a message stays (RFC 9110 section 6.5.1).
#[tokio::test]
async fn request_trailers_are_forwarded() {
    let world = World::new().await;
    let address = world.origin.address;
    let mut client = Client::connect(world.address).await;
    for method in ["POST", "PUT"] {
        client
            .send(&format!(
                "{method} http://{address}/status/200 HTTP/1.1\r\nHost: {address}\r\n{}\
                 TE: trailers, deflate\r\nTrailer: X-Sum, Host\r\nTransfer-Encoding: chunked\r\n\r\n\
                 3;ext=\"a\"\r\nabc\r\n0\r\nX-sum: 1\r\nHost: evil\r\nAuthorization: x\r\n\
                 Affiant-Outcome: lie\r\nContent-Length: 3\r\nCookie: a=b\r\nContent-Encoding: gzip\r\n\
                 RANGE: bytes=0-1\r\nIf-Match: \"e\"\r\nif-range: \"e\"\r\nMax-Forwards: 1\r\n\
                 Cache-Control: no-store\r\nX-Sum: 2\r\n\r\n",
                world.credentials()
            ))
            .await;
        let response = client.response(method).await;
        assert_eq!((response.status, response.text().as_str()), (200, "body"));
        assert_eq!(world.origin.last_content(), b"abc");
        assert_eq!(world.origin.last_trailers(), "X-sum: 1\r\nX-Sum: 2\r\n\r\n");
        let head = world.origin.last_head();
        assert!(head.contains("\r\nTrailer: X-Sum, Host\r\n"), "{head}");
        assert!(head.contains("\r\nConnection: TE\r\nTE: trailers\r\n"), "{head}");
    }
}

/// RFC 9112 section 7.1: sizes of chunks may begin with zeros, and one that is no number of bytes that
/// there can be is refused before dispatch.
#[tokio::test]
async fn chunk_sizes_may_begin_with_zeros() {
    let world = World::new().await;
    let zeros = "0".repeat(40);
    let address = world.origin.address;
    for (size, method, status) in
        [("3", "PUT", 200), ("3", "POST", 200), ("10000000000000000", "POST", 400)]
    {
        let credentials = world.credentials();
        let request = format!(
            "{method} http://{address}/status/200 HTTP/1.1\r\nHost: {address}\r\n{credentials}\
             Transfer-Encoding: chunked\r\n\r\n{zeros}{size}\r\nabc\r\n{zeros}0\r\n\r\n"
        );
        let mut client = Client::connect(world.address).await;
        client.send(&request).await;
        let response = client.response(method).await;
        assert_eq!(response.status, status, "{method} {size} {}", response.text());
    }
    assert_eq!(
        (world.origin.last_content().as_slice(), world.origin.all_effects()),
        (&b"abc"[..], 2)
    );
}

/// K-11: other trailers make another request.
#[tokio::test]
async fn k_11_trailers_are_part_of_the_request() {
    let world = World::new().await;
    let address = world.origin.address;
    for (trailer, status) in [("X-T: 1\r\n", 502), ("X-T: 2\r\n", 502), ("X-T: 1\r\n", 424)] {
        let mut client = Client::connect(world.address).await;
        let text = format!(
            "POST http://{address}/close HTTP/1.1\r\nHost: {address}\r\n{}\
             Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n{trailer}\r\n",
            world.credentials()
        );
        client.send(&text).await;
        assert_eq!(client.response("POST").await.status, status);
    }
    assert_eq!(world.origin.effects("/close"), 2);
}

/// S-5: interim responses are passed on as they came and settle nothing; their number is bounded; a
/// caller of HTTP/1.0 knows none.
#[tokio::test]
async fn s_5_interim_responses_are_relayed() {
    let world = World::new().await;
    for method in ["GET", "POST"] {
        let response = world.plain(method, "/interim", "", "").await;
        assert_eq!(response.interim, ["HTTP/1.1 103 Early Hints\nLink: x\n"]);
        assert_eq!((response.status, response.text().as_str()), (200, "ok"));
        assert!(response.outcome().starts_with("committed;"));
    }
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/interim", "", "")).await;
    let response = client.response("GET").await;
    assert_eq!((response.interim.len(), response.status), (1, 200));
    let old = world.plain_request("GET", "/interim", "", "").replace(" HTTP/1.1", " HTTP/1.0");
    let mut client = Client::connect(world.address).await;
    client.send(&old).await;
    let response = client.response("GET").await;
    assert_eq!((response.interim.len(), response.status), (0, 200));
    // It has no content to declare.
    let response = world.plain("GET", "/framed-interim", "", "").await;
    assert_eq!(response.interim, ["HTTP/1.1 103 Early Hints\nLink: x\n"]);
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    let response = world.plain("GET", "/many-interim", "", "").await;
    assert_eq!((response.interim.len(), response.status), (32, 502));
    assert_eq!(response.facts()[..3], ["REMOTE_PROTOCOL_ERROR", "remote_execution", "unknown"]);
}

/// Trailers of a response are those that may be some (RFC 9110 section 6.5.1), and leading zeros of a
/// chunk size are no fault (RFC 9112 section 7.1).
#[tokio::test]
async fn response_trailers_control_nothing() {
    let world = World::new().await;
    let response = world.plain("GET", "/odd-trailers", "", "").await;
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    assert!(response.outcome().starts_with("committed;"), "{response:?}");
    assert_eq!(response.trailers, "X-T: 1\nETag: \"e\"\n");
}

/// The origin's framing is kept where the content is not changed.
#[tokio::test]
async fn framing_is_kept() {
    let world = World::new().await;
    let response = world.plain("GET", "/chunked", "", "").await;
    assert_eq!(response.field("transfer-encoding"), "chunked");
    assert_eq!(response.all("content-length").len(), 0);
    assert_eq!(response.all("trailer").len(), 0);
    assert_eq!((response.text().as_str(), response.trailers.as_str()), ("hello", ""));
    let response = world.plain("GET", "/trailers", "", "").await;
    assert_eq!(response.all("trailer"), ["X-T"]);
    assert_eq!(response.trailers, "X-T: 1\n");
    let response = world.plain("GET", "/ok", "", "").await;
    assert_eq!(response.all("content-length"), ["2"]);
    assert!(response.head.starts_with("HTTP/1.1 200 Fine\n"), "{}", response.head);
    let response = world.plain("HEAD", "/chunked", "", "").await;
    assert_eq!((response.status, response.all("content-length").len()), (200, 0));
}

/// The next response on a connection is found after one without content.
#[tokio::test]
async fn responses_without_content_leave_the_connection_sound() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    for (method, path, status) in [
        ("HEAD", "/ok", 200),
        ("GET", "/204", 204),
        ("GET", "/304", 304),
        ("DELETE", "/204", 204),
        ("GET", "/204-framed", 204),
        ("GET", "/ok", 200),
    ] {
        client.send(&world.secure_request(method, path, "", "")).await;
        let response = client.response(method).await;
        assert_eq!(response.status, status, "{method} {path}");
        assert_eq!(response.all("transfer-encoding").len(), 0, "{method} {path}");
        // RFC 9110 section 8.6: a caller that believed one would wait for content.
        let length = response.all("content-length").len();
        assert!(status != 204 || length == 0, "{method} {path}: {}", response.head);
    }
    assert_eq!(world.secure.connections(), 1);
}

/// Targets and field lines go out byte for byte as they came in.
#[tokio::test]
async fn targets_and_fields_are_forwarded_as_received() {
    let world = World::new().await;
    for target in [
        "/echo/%2Fx?",
        "/echo/a/../b/%7e",
        "/echo//a",
        "/echo?q=%20&&a=+",
        "//echo",
        "/echo;v=1/./x",
        "/?",
        "/echo?u=https://other.example/x",
        "/echo/https://other.example/x",
    ] {
        let fields = "x-LOWER: a  b\r\nX-Empty:\r\nX-Twice: 1\r\nx-other: \u{e9}\r\nX-Twice: 2\r\n";
        let response = world.plain("GET", target, fields, "").await;
        assert!(matches!(response.status, 200 | 404), "{target} {response:?}");
        let head = world.origin.last_head();
        assert!(head.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{head}");
        let lines: Vec<_> = head.lines().filter(|l| l.to_lowercase().starts_with("x-")).collect();
        let expected =
            ["x-LOWER: a  b", "X-Empty: ", "X-Twice: 1", "x-other: \u{e9}", "X-Twice: 2"];
        assert_eq!(lines, expected, "{target}");
        let mut tunnel = world.tunnel().await;
        tunnel.send(&world.secure_request("GET", target, "", "")).await;
        let response = tunnel.response("GET").await;
        assert!(matches!(response.status, 200 | 404), "{target} {response:?}");
        let head = world.secure.last_head();
        assert!(head.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{head}");
    }
}

/// Instructions to try again later come with their time (contract section 1).
#[tokio::test]
async fn m_1_backoff_states_its_time() {
    let world = World::new().await;
    let response = world.plain("GET", "/close", "", "").await;
    assert_eq!(response.facts()[3], "backoff");
    assert_eq!(response.field("retry-after"), "1");
    let at = response.json()["error"]["not_before_ms"].as_u64().expect("a time");
    let stated = world.journal.invocation(response.id()).expect("read").expect("on record");
    assert_eq!(stated.not_before_ms(), Some(at));
    let response = world.plain("POST", "/close", "", "x").await;
    assert_eq!(response.facts()[3], "reconcile");
    assert_eq!(response.all("retry-after").len(), 0);
}

/// All of a server is `*` to it (RFC 9112 section 3.2.4), and what counts hops is counted down (RFC 9110
/// section 7.6.2): at none the request stays here.
#[tokio::test]
async fn options_and_trace_are_forwarded_as_their_rules_say() {
    let world = World::new().await;
    let authority = world.origin.address.to_string();
    let ask = async |method: &str, target: &str, hops: &str| {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client
            .send(&format!(
                "{method} {target} HTTP/1.1\r\nHost: {authority}\r\nMax-Forwards: {hops}\r\n{credentials}\r\n"
            ))
            .await;
        client.response(method).await
    };
    let (all, one) = (format!("http://{authority}"), world.plain_url("/ok"));
    for (method, target, hops, line, left) in [
        ("OPTIONS", &all, "7", "OPTIONS * HTTP/1.1\r\n", "6"),
        ("OPTIONS", &one, "1", "OPTIONS /ok HTTP/1.1\r\n", "0"),
        ("TRACE", &one, "2", "TRACE /ok HTTP/1.1\r\n", "1"),
        ("GET", &one, "0", "GET /ok HTTP/1.1\r\n", "0"),
        ("GET", &all, "3", "GET / HTTP/1.1\r\n", "3"),
    ] {
        ask(method, target, hops).await;
        let head = world.origin.last_head();
        assert!(head.starts_with(line), "{method} {target}: {head}");
        assert!(head.contains(&format!("\r\nMax-Forwards: {left}\r\n")), "{method}: {head}");
    }
    let before = world.origin.all_effects();
    for method in ["OPTIONS", "TRACE"] {
        let answer = ask(method, &one, "0").await;
        assert_eq!((answer.status, answer.facts()[2].as_str()), (501, "not_attempted"), "{method}");
    }
    assert_eq!(world.origin.all_effects(), before);
}

/// S-1, R-1: a head or a trailer section that is as large as an origin's may be reaches callers of every
/// version, with our own fields in it.
#[tokio::test]
async fn s_1_the_largest_field_sections_arrive() {
    let world = World::new().await;
    let h2 = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
    for (query, fields) in
        [("97", 96), ("98", 97), ("99", 98), ("100", 99), ("long-65300", 1), ("trailers-100", 100)]
    {
        let path = format!("/fields?{query}");
        let answer = world.plain("POST", &path, "", "").await;
        let of_origin = |line: &&str| line.starts_with("X-") || line.starts_with("X: ");
        let section = if query.starts_with('t') { &answer.trailers } else { &answer.head };
        assert_eq!(section.lines().filter(of_origin).count(), fields, "{query}");
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "{query}");

        let answer = h2.call("POST", &path, b"").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, &b"ok"[..]), "{query}");
        assert!(answer.whole, "{query}");
        let section = if query.starts_with('t') { &answer.trailers } else { &answer.head };
        let of_origin = |name: &&http::HeaderName| name.as_str().starts_with("x");
        // `x-should-retry` is ours.
        let ours = usize::from(section.contains_key("x-should-retry"));
        assert_eq!(section.keys().filter(of_origin).count() - ours, fields, "{query}");
        assert!(section["affiant-outcome"].to_str().expect("text").starts_with("committed;"));
    }
}

/// E-4: a response that is too long to be held keeps its declared length towards callers of HTTP/2, whose
/// frames have trailers beside it, and of HTTP/1.0, which have none. Of HTTP/1.1 only chunks have trailers.
#[tokio::test]
async fn e_4_a_declared_length_stays_where_there_is_room_for_trailers() {
    const LENGTH: usize = 3_000_000;
    let world = World::new().await;
    let path = format!("/big?{LENGTH}");
    let whole = |content: &[u8]| {
        content.len() == LENGTH
            && content.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 251)
    };
    let h2 = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
    let answer = h2.call("GET", &path, b"").await;
    assert_eq!(answer.field("content-length"), LENGTH.to_string());
    assert!(answer.field("affiant-outcome").starts_with("unknown;"));
    assert!(answer.whole && whole(&answer.content));
    let outcome = answer.trailers["affiant-outcome"].to_str().expect("text");
    assert!(outcome.starts_with("committed;"), "{outcome}");

    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("GET", &path, "Connection: keep-alive\r\n", "");
    for _ in 0..2 {
        client.send(&request.replace("HTTP/1.1", "HTTP/1.0")).await;
        let answer = client.response("GET").await;
        assert_eq!(answer.field("content-length"), LENGTH.to_string());
        assert_eq!(answer.field("connection"), "keep-alive");
        assert!(answer.complete && whole(&answer.content));
        // what a length makes whole is on record by then.
        assert_eq!(world.newest().verdict().outcome().as_str(), "committed");
    }

    // The same of a caller that goes by the length, and does not wait for the end of the stream.
    let request = h2.request("GET", &path).body(()).expect("request");
    let mut sender = h2.sender.clone().ready().await.expect("ready");
    let (response, _) = sender.send_request(request, true).expect("sent");
    let mut content = response.await.expect("a response").into_body();
    let mut length = 0;
    while length < LENGTH {
        let data = content.data().await.expect("more").expect("data");
        length += data.len();
        content.flow_control().release_capacity(data.len()).expect("released");
    }
    assert_eq!(world.newest().verdict().outcome().as_str(), "committed");

    let answer = world.plain("GET", &path, "", "").await;
    assert_eq!(answer.field("transfer-encoding"), "chunked");
    assert_eq!(answer.all("content-length"), Vec::<&str>::new());
    assert!(whole(&answer.content));
    assert!(answer.trailers.contains("Affiant-Outcome: committed;"), "{}", answer.trailers);

    // S-2: a length that is not reached is no end.
    let h2_cut = h2.call("GET", "/cut-long", b"").await;
    assert_eq!((h2_cut.field("content-length"), h2_cut.whole), ("5000000", false));
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("GET", "/cut-long", "", "");
    client.send(&request.replace("HTTP/1.1", "HTTP/1.0")).await;
    let cut = client.response("GET").await;
    assert_eq!((cut.field("content-length"), cut.complete), ("5000000", false));
}
