//! Calls side by side on one connection of HTTP/2 to the origin and one to the caller: each has a verdict of
//! its own.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::World;
use support::http2::{Answer, Http2Client, Http2Origin, identity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const CALLS: usize = 6;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// How the origin ends the streams that are open.
#[derive(Clone, Copy)]
enum Ends {
    /// GOAWAY with the third stream as the last one, then the end of the connection.
    GoesAway,
    /// RST_STREAM of the third one; the others are answered.
    ResetsOne,
}

/// Answers the first stream of a connection; waits for so many more, then ends them.
async fn origin(directory: &Path, ends: Ends) -> (u16, PathBuf) {
    let (config, ca_file) = identity(directory, &[b"h2"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        // One connection has to do.
        let (tcp, _) = listener.accept().await.expect("accept");
        let mut tls = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await.expect("TLS");
        tls.read_exact(&mut [0; 24]).await.expect("preface");
        tls.write_all(&frame(4, 0, 0, b"")).await.expect("settings");
        tls.flush().await.expect("flush");
        let mut open: Vec<u32> = Vec::new();
        let mut header = [0; 9];
        while tls.read_exact(&mut header).await.is_ok() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            tls.read_exact(&mut vec![0; length as usize]).await.expect("payload");
            let [.., a, b, c, d] = header;
            let stream = u32::from_be_bytes([a, b, c, d]);
            if header[3] != 1 {
                continue;
            }
            // `:status: 200`, with the end of the stream.
            let answered = |stream| frame(1, 5, stream, &[0x88]);
            if stream == 1 {
                tls.write_all(&answered(stream)).await.expect("answer");
                tls.flush().await.expect("flush");
                continue;
            }
            open.push(stream);
            if open.len() < CALLS {
                continue;
            }
            let all: Vec<u8> = match ends {
                Ends::GoesAway => frame(7, 0, 0, &[open[2].to_be_bytes(), [0; 4]].concat()),
                Ends::ResetsOne => {
                    let reset = frame(3, 0, open[2], &2_u32.to_be_bytes());
                    let others = open.iter().filter(|stream| **stream != open[2]);
                    others.fold(reset, |all, stream| [all, answered(*stream)].concat())
                }
            };
            tls.write_all(&all).await.expect("ends");
            tls.flush().await.expect("flush");
            if matches!(ends, Ends::GoesAway) {
                return tls.shutdown().await.expect("shutdown");
            }
        }
    });
    (port, ca_file)
}

/// An origin whose first connection answers one stream, and then nothing, as after a host that went away without
/// a word; all others answer every one. How many came on each.
async fn falling_silent(directory: &Path) -> (u16, PathBuf, Arc<Mutex<Vec<usize>>>) {
    let (config, ca_file) = identity(directory, &[b"h2"]);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accept");
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(&config));
            let counted = Arc::clone(&counted);
            let number = {
                let mut counted = counted.lock().expect("lock");
                counted.push(0);
                counted.len()
            };
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await.expect("TLS");
                tls.read_exact(&mut [0; 24]).await.expect("preface");
                tls.write_all(&frame(4, 0, 0, b"")).await.expect("settings");
                tls.flush().await.expect("flush");
                let mut header = [0; 9];
                while tls.read_exact(&mut header).await.is_ok() {
                    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                    tls.read_exact(&mut vec![0; length as usize]).await.expect("payload");
                    let [.., a, b, c, d] = header;
                    if header[3] != 1 {
                        continue;
                    }
                    counted.lock().expect("lock")[number - 1] += 1;
                    let stream = u32::from_be_bytes([a, b, c, d]);
                    if number > 1 || stream == 1 {
                        tls.write_all(&frame(1, 5, stream, &[0x88])).await.expect("answer");
                        tls.flush().await.expect("flush");
                    }
                }
            });
        }
    });
    (port, ca_file, asked)
}

/// C-3, C-5: a connection on which a call waited in vain, and nothing at all came, is given to no other call: one is
/// lost with a host that went away without a word, and not all that follow.
#[tokio::test(flavor = "multi_thread")]
async fn c_3_a_connection_that_fell_silent_is_not_used() {
    let directory = tempfile::tempdir().expect("directory");
    let (port, ca_file, asked) = falling_silent(directory.path()).await;
    let extra = format!(
        "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n[[route]]\nname = \"h2\"\n\
         match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n\
         limits = {{ response_timeout = \"3s\" }}\n",
        ca_file.display()
    );
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = Http2Client::open(&world, port).await;
    for (path, status) in [("/a", 200), ("/b", 504), ("/c", 200), ("/d", 200)] {
        let answer = client.call("GET", path, b"").await;
        assert_eq!(answer.status, status, "{path}");
    }
    assert_eq!(*asked.lock().expect("lock"), [2, 2]);
}

/// Calls at once over one connection; how often each verdict came.
async fn verdicts(ends: Ends) -> BTreeMap<(u16, String, String), usize> {
    let directory = tempfile::tempdir().expect("directory");
    let (port, ca_file) = origin(directory.path(), ends).await;
    let extra = format!(
        "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n[[route]]\nname = \"h2\"\n\
         match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n",
        ca_file.display()
    );
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = Http2Client::open(&world, port).await;
    assert_eq!(client.call("POST", "/first", b"").await.status, 200);
    let paths: Vec<_> = (0..CALLS).map(|n| format!("/{n}")).collect();
    let calls = paths.iter().map(|path| client.call("POST", path, b"x"));
    let answers: Vec<Answer> = futures::future::join_all(calls).await;
    let mut counted = BTreeMap::new();
    for answer in answers {
        let invocation = world.invocation(answer.id()).await;
        let verdict = invocation.verdict();
        let facts = (verdict.outcome().as_str().to_owned(), verdict.code().as_str().to_owned());
        assert_eq!(invocation.evidence().connection_reused, Some(true), "all share one connection");
        *counted.entry((answer.status, facts.0, facts.1)).or_default() += 1;
    }
    counted
}

fn told(told: [(u16, &str, &str, usize); 2]) -> BTreeMap<(u16, String, String), usize> {
    let owned = |(status, outcome, code, times): (u16, &str, &str, usize)| {
        ((status, outcome.to_owned(), code.to_owned()), times)
    };
    told.into_iter().map(owned).collect()
}

/// C-6: a GOAWAY in the middle of six calls: the three above its last stream were not processed, of the
/// three up to it nothing is known.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_one_goaway_has_a_verdict_for_each_call() {
    let expected = told([
        (503, "rejected", "REMOTE_NOT_PROCESSED", 3),
        (502, "unknown", "REMOTE_OUTCOME_UNKNOWN", 3),
    ]);
    assert_eq!(verdicts(Ends::GoesAway).await, expected);
}

/// D-7, S-2: one broken call leaves those beside it alone, towards the origin and towards the caller.
#[tokio::test(flavor = "multi_thread")]
async fn d_7_one_reset_stream_leaves_the_others_alone() {
    let expected =
        told([(200, "committed", "OK", 5), (502, "unknown", "REMOTE_OUTCOME_UNKNOWN", 1)]);
    assert_eq!(verdicts(Ends::ResetsOne).await, expected);
}

/// D-1, D-4: where the origin takes no further stream on a connection, a call gets another connection: it
/// does not wait for a stream there, to be sent when its caller is gone. What has room is used again.
#[tokio::test]
async fn d_4_calls_do_not_wait_for_a_stream() {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::narrow(directory.path(), 2).await;
    let extra = origin.routes();
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = Arc::new(Http2Client::open(&world, origin.address.port()).await);
    let connections = || origin.seen.lock().expect("lock").connections;
    let mut held = 0;
    for (path, expected) in [
        ("/first", 1),
        ("/again/first", 1),
        ("", 1),
        ("/second", 2),
        ("/third", 2),
        ("", 2),
        ("/fourth", 3),
    ] {
        if path.is_empty() {
            // Two that stay: as many as a connection takes.
            for _ in 0..2 {
                held += 1;
                let client = Arc::clone(&client);
                tokio::spawn(async move { client.call("GET", "/hang", b"").await });
                let until = tokio::time::Instant::now() + Duration::from_secs(15);
                while origin.effects("/hang") < held {
                    assert!(tokio::time::Instant::now() < until, "{held} are not under way");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        } else {
            let answer = client.call("POST", path, b"x").await;
            let said = answer.field("affiant-outcome");
            assert!(said.starts_with("committed;"), "{said}");
            assert_eq!((answer.status, origin.effects(path)), (200, 1), "{path}");
        }
        assert_eq!(connections(), expected, "{path}");
    }
}
