//! Stored results come again with their trailers (contract R-4, S-9): behind what was held, behind what was
//! streamed, over both versions, and to a caller of gRPC.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use support::http2::{Http2Client, Http2Origin};
use support::{Client, World};

/// R-4, K-10: a repeat by id gets content and trailers; a caller of HTTP/1.0, which has no room for them,
/// gets the content.
#[tokio::test(flavor = "multi_thread")]
async fn r_4_a_repeat_gets_the_trailers() {
    for hold_bytes in [1 << 20, 1] {
        let options = proxy::Options { hold_bytes, ..proxy::Options::default() };
        let world = World::with(|_, _| String::new(), options).await;
        let id = world.journal.new_id();
        let fields = format!("Affiant-Invocation: {id}\r\n");
        let first = world.plain("POST", "/trailers", &fields, "x").await;
        assert_eq!(first.text(), "hello");
        assert!(first.trailers.starts_with("X-T: 1\n"), "{}", first.trailers);
        assert_eq!(first.trailers == "X-T: 1\n", hold_bytes > 5, "held or streamed");
        let again = world.plain("POST", "/trailers", &fields, "x").await;
        assert!(again.outcome().ends_with(";replayed"), "{again:?}");
        assert_eq!((again.text().as_str(), again.trailers.as_str()), ("hello", "X-T: 1\n"));
        assert_eq!(again.all("content-length").len(), 0);
        let request = world.plain_request("POST", "/trailers", &fields, "x");
        let mut old = Client::connect(world.address).await;
        old.send(&request.replace("HTTP/1.1\r\n", "HTTP/1.0\r\n")).await;
        let old = old.response("POST").await;
        assert_eq!((old.text().as_str(), old.trailers.as_str()), ("hello", ""));
        assert_eq!((old.all("content-length"), old.all("trailer").len()), (vec!["5"], 0));
        assert_eq!(world.origin.effects("/trailers"), 1);
    }
}

/// the same for callers of HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn r_4_a_repeat_on_a_stream_gets_the_trailers() {
    let world = World::new().await;
    let id = world.journal.new_id().to_string();
    let client = Http2Client::open_to(&world, "localhost", world.secure.address.port()).await;
    for replayed in [false, true] {
        let request = client.request("POST", "/trailers").header("affiant-invocation", &id);
        let answer = client.exchange(request, b"x").await;
        assert_eq!(answer.field("affiant-outcome").ends_with(";replayed"), replayed);
        assert_eq!((answer.content.as_slice(), answer.whole), (&b"hello"[..], true));
        assert_eq!(answer.trailers["x-t"], "1");
    }
    assert_eq!(world.secure.effects("/trailers"), 1);
}

/// S-9, K-10: what a caller of gRPC gets from the record has the status that settled it.
#[tokio::test(flavor = "multi_thread")]
async fn s_9_a_repeat_of_grpc_gets_its_status() {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::start(directory.path(), &[b"h2"]).await;
    let routes = origin.routes();
    let world = World::with(|_, _| routes, proxy::Options::default()).await;
    let client = Http2Client::open(&world, origin.address.port()).await;
    for (path, content) in [("/grpc/5", &b"message"[..]), ("/grpc/only/12", b"")] {
        let id = world.journal.new_id().to_string();
        for replayed in [false, true] {
            let request = client.request("POST", path).header("affiant-invocation", &id);
            let answer = client.exchange(request, b"message").await;
            assert_eq!(answer.content, content, "{path}");
            let status = path.rsplit('/').next().expect("a status");
            let fields = if content.is_empty() { &answer.head } else { &answer.trailers };
            assert_eq!(fields["grpc-status"], status, "{path}");
            if replayed {
                assert!(answer.field("affiant-outcome").ends_with(";replayed"));
            }
        }
        assert_eq!(origin.effects(path), 1, "{path}");
    }
}
