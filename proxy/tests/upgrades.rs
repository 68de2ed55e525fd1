//! The answer to an upgrade as bytes: its head leaves in one piece, and is read within a bound.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use std::time::Duration;
use support::{Client, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
const LIMIT: Duration = Duration::from_secs(20);

/// E-4: a client that takes the first read for the head of the 101 finds all of it there.
#[tokio::test]
async fn a_101_is_one_write() {
    let world = World::new().await;
    for n in 0..20 {
        let mut tcp = TcpStream::connect(world.address).await.expect("connect");
        let request = world.plain_request("GET", "/websocket", ASK, "");
        tcp.write_all(request.as_bytes()).await.expect("write");
        let mut first = vec![0; 64 * 1024];
        let read = tokio::time::timeout(LIMIT, tcp.read(&mut first)).await;
        let length = read.expect("in time").expect("read");
        let text = String::from_utf8_lossy(&first[..length]);
        assert!(text.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{n}: {text}");
        assert!(text.contains("\r\n\r\n"), "{n}: {text}");
    }
}

/// An origin that answers every connection by a head of that status without an end; so many bytes left, once
/// the other side had enough.
async fn endless(status: &'static str) -> (u16, tokio::task::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let task = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.expect("accept");
        let mut request = vec![0; 4096];
        let mut have = 0;
        while !request[..have].ends_with(b"\r\n\r\n") {
            have += tcp.read(&mut request[have..]).await.expect("a request");
        }
        let start = format!("HTTP/1.1 {status}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n");
        tcp.write_all(start.as_bytes()).await.expect("the start");
        let more = "X-More: more\r\n".repeat(1000);
        let mut sent = 0;
        while tcp.write_all(more.as_bytes()).await.is_ok() {
            sent += more.len();
        }
        sent
    });
    (port, task)
}

/// S-6, S-2: the answer to an upgrade is bounded like every head: one without an end is cut, whatever it
/// says that it is, and what is known then is that nothing is known.
#[tokio::test(flavor = "multi_thread")]
async fn s_6_an_endless_answer_to_an_upgrade_is_cut() {
    for status in ["101 Switching Protocols", "200 OK", "103 Early Hints"] {
        let (port, origin) = endless(status).await;
        let route = format!(
            "[[route]]\nname = \"endless\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n"
        );
        let world = World::with(|_, _| route, proxy::Options::default()).await;
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client
            .send(&format!(
                "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\n{credentials}{ASK}\r\n"
            ))
            .await;
        let answer = client.response("GET").await;
        assert_eq!(answer.status, 502, "{status}");
        let facts = answer.facts();
        assert_eq!(facts[..3], ["REMOTE_PROTOCOL_ERROR", "remote_execution", "unknown"]);
        let said = answer.field("proxy-status");
        assert!(said.contains("error=http_response_header_section_size"), "{said}");
        let sent = tokio::time::timeout(LIMIT, origin).await.expect("it ends").expect("an end");
        // Beyond the bound only what sockets hold.
        assert!(sent < 16 << 20, "{status}: {sent}");
    }
}
