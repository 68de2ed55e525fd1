//! Framing that leaves doubt, and what smuggles requests.

use super::check;
use super::support::{Client, World};

/// Content in chunks is refused.
async fn check_chunks(world: &World, content: &str) {
    let (url, credentials) = (world.plain_url("/ok"), world.credentials());
    let text = format!(
        "POST {url} HTTP/1.1\r\nHost: x\r\n{credentials}Transfer-Encoding: chunked\r\n\r\n{content}"
    );
    check(world, text.as_bytes(), 400, "INVALID_REQUEST", "request.content").await;
}

/// V-1, V-2: framing that leaves doubt.
#[tokio::test]
async fn v_1_doubtful_framing_is_refused() {
    let world = World::new().await;
    let url = world.plain_url("/ok");
    let credentials = world.credentials();
    for (fields, field) in [
        ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "request.headers.content-length"),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", "request.headers.content-length"),
        ("Content-Length: 1, 1\r\n", "request.headers.content-length"),
        ("Content-Length: -1\r\n", "request.headers.content-length"),
        ("Transfer-Encoding: chunked\t,\r\n", "request.headers.transfer-encoding"),
        ("Transfer-Encoding: xchunked\r\n", "request.headers.transfer-encoding"),
        ("Transfer-Encoding : chunked\r\n", "request.headers"),
        ("X: a\r\n b\r\n", "request.headers"),
        ("X: a\nY: b\r\n", "request.head"),
        ("X: a\0b\r\n", "request.head"),
        ("Host: a\r\nHost: b\r\n", "request.headers.host"),
        ("", "request.headers.host"),
    ] {
        let host = if field == "request.headers.host" { "" } else { "Host: x\r\n" };
        let text = format!("POST {url} HTTP/1.1\r\n{host}{credentials}{fields}\r\nx");
        check(&world, text.as_bytes(), 400, "INVALID_REQUEST", field).await;
    }
    let text = format!(
        "POST {url} HTTP/1.0\r\nHost: x\r\n{credentials}Transfer-Encoding: chunked\r\n\r\n"
    );
    let field = "request.headers.transfer-encoding";
    check(&world, text.as_bytes(), 400, "INVALID_REQUEST", field).await;
    for (path, says) in [("/caf\u{e9}", "belongs percent-encoded"), ("/?q=100%", "written %25")] {
        let text = format!("GET {url}{path} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        let mut client = Client::connect(world.address).await;
        client.send(&text).await;
        let answer = client.response("GET").await.json();
        assert_eq!(answer["error"]["field"], "request.target", "{path}");
        assert!(answer["error"]["message"].as_str().expect("text").contains(says), "{answer}");
    }
    check(&world, b"GARBAGE\r\n\r\n", 400, "INVALID_REQUEST", "request.line").await;
    check(&world, b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "INVALID_REQUEST", "request.head")
        .await;
}

/// V-1: a chunk that is malformed is found before dispatch where the content is read ahead.
#[tokio::test]
async fn v_1_a_malformed_chunk_is_refused() {
    let world = World::new().await;
    for content in
        ["zz\r\nx\r\n0\r\n\r\n", "1\r\nxy\r\n0\r\n\r\n", "-1\r\n\r\n", "1\nx\r\n0\r\n\r\n"]
    {
        check_chunks(&world, content).await;
    }
}

/// V-1: what smuggles a second request past other parsers is refused whole, and nothing of it is
/// taken for a request.
#[tokio::test]
async fn v_1_smuggled_requests_are_refused() {
    let world = World::new().await;
    let url = world.plain_url("/ok");
    let credentials = world.credentials();
    let inner = format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    for fields in [
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "Transfer-Encoding: \r\n",
        "Transfer\\Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "Content-Length: +0\r\n",
        "Content-Length: 0x0\r\n",
        "Content-Length: 0 0\r\n",
        "Content-Length: 0,0\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length:\r\n",
        "Content-Length: 0\r\nContent-Length: 1\r\n",
        "Content_Length: 0\r\n: x\r\n",
        "Host: y\r\n",
    ] {
        let text = format!("POST {url} HTTP/1.1\r\nHost: x\r\n{credentials}{fields}\r\n{inner}");
        let mut client = Client::connect(world.address).await;
        client.send(&text).await;
        let response = client.response("POST").await;
        assert_eq!(response.status, 400, "{fields:?} {response:?}");
        assert_eq!(response.facts()[2], "not_attempted", "{fields:?}");
        assert!(client.ends().await, "{fields:?}: the connection went on");
    }
    for line in [
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/1.2",
        "GET / HTTP/2.0",
        "GET /",
        "GET\t/ HTTP/1.1",
        " GET / HTTP/1.1",
        "G@T / HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1.10",
    ] {
        let mut client = Client::connect(world.address).await;
        client.send(&format!("{line}\r\nHost: x\r\n{credentials}\r\n{inner}")).await;
        assert_eq!(client.response("GET").await.status, 400, "{line:?}");
        assert!(client.ends().await, "{line:?}: the connection went on");
    }
    assert_eq!(world.origin.all_effects(), 0);
}

/// V-1: chunk framing that leaves doubt, extensions and trailers included, is found before dispatch.
#[tokio::test]
async fn v_1_abused_chunks_are_refused() {
    let world = World::new().await;
    let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(2000));
    for content in [
        long.as_str(),
        "1;a\nb\r\na\r\n0\r\n\r\n",
        "1;a\0\r\na\r\n0\r\n\r\n",
        "1 a\r\na\r\n0\r\n\r\n",
        "1 \r\na\r\n0\r\n\r\n",
        "1;a=\"\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1\r\na\r\n0\r\nX : y\r\n\r\n",
        "1\r\na\r\n0\r\n folded\r\n\r\n",
        "1\r\na\r\n0\r\nX: y\n\r\n",
        "fffffffffffffffff\r\na\r\n0\r\n\r\n",
    ] {
        check_chunks(&world, content).await;
    }
}
