//! Callers that take their answer slowly, or stop taking it (contract ): a slow one gets
//! all of it, one that takes nothing for the time of the option has gone, and the record says so.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use bytes::Bytes;
use h2::RecvStream;
use journal::contract::InvocationId;
use std::time::Duration;
use support::World;
use support::http2::Http2Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Longer than what the sockets between hold, and kept as a whole by default.
const LENGTH: usize = 8_000_000;

async fn world(patience: Duration) -> World {
    let options = proxy::Options { write_timeout: patience, ..proxy::Options::default() };
    World::with(|_, _| String::new(), options).await
}

/// A connection whose host takes little ahead of its program.
async fn connect(world: &World) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("socket");
    socket.set_recv_buffer_size(4096).expect("buffer");
    socket.connect(world.address).await.expect("connect")
}

fn names(world: &World, id: InvocationId) -> Vec<String> {
    let events = world.journal.events(id).expect("events");
    events.iter().map(|(_, event)| event.body.name().to_owned()).collect()
}

fn count(names: &[String], wanted: &str) -> usize {
    names.iter().filter(|name| *name == wanted).count()
}

/// Sends a request and takes nothing of its answer for three times the patience: the pause is the case. How
/// much there is of it then, and how it ends.
async fn stopped(world: &World, request: &str, patience: Duration) -> (usize, std::io::Result<()>) {
    let mut tcp = connect(world).await;
    tcp.write_all(request.as_bytes()).await.expect("write");
    tcp.readable().await.expect("an answer");
    tokio::time::sleep(patience * 3).await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), tcp.read_to_end(&mut rest)).await;
    let ended = read.expect("the connection ends").map(drop);
    (rest.len(), ended)
}

/// Where the length tells whether it was cut, in whatever way the connection ended.
async fn stops(world: &World, request: &str, patience: Duration) -> usize {
    stopped(world, request, patience).await.0
}

/// S-2, R-2: a response that ends with the connection is whole by an orderly end, so a caller that paused for too
/// long sees none.
#[tokio::test(flavor = "multi_thread")]
async fn s_2_a_caller_of_http_1_0_that_pauses_sees_the_cut() {
    let patience = Duration::from_secs(1);
    let world = world(patience).await;
    let id = world.journal.new_id();
    let request = format!(
        "GET {} HTTP/1.0\r\nAffiant-Invocation: {id}\r\n{}\r\n",
        world.plain_url(&format!("/until-close?{LENGTH}")),
        world.credentials()
    );
    let (taken, ended) = stopped(&world, &request, patience).await;
    assert!(taken < LENGTH, "{taken} bytes");
    let error = ended.expect_err("an orderly end makes the cut whole");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    world.events(id, "DELIVERY_FAILED").await;
    let verdict = world.invocation(id).await.verdict();
    let facts = [verdict.code().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()];
    assert_eq!(facts, ["DELIVERY_FAILED", "committed", "fetch_result"]);
}

/// a caller that stops taking its answer has gone, the first time and at every repeat: the record
/// says `DELIVERY_FAILED` and `fetch_result` until somebody takes all of the stored result.
#[tokio::test(flavor = "multi_thread")]
async fn r_2_a_caller_that_stops_reading_a_stored_result() {
    let patience = Duration::from_secs(1);
    let world = world(patience).await;
    let id = world.journal.new_id();
    let path = format!("/big?{LENGTH}");
    let fields = format!("Affiant-Invocation: {id}\r\nConnection: close\r\n");
    let request = world.plain_request("POST", &path, &fields, "x");
    for repeats in 0..3 {
        let taken = stops(&world, &request, patience).await;
        assert!(taken < LENGTH, "{taken} bytes of {repeats}");
        let invocation = world.invocation(id).await;
        let verdict = invocation.verdict();
        let facts = [verdict.code().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()];
        assert_eq!(facts, ["DELIVERY_FAILED", "committed", "fetch_result"], "{repeats}");
        let names = names(&world, id);
        let counts = ["DELIVERY_FAILED", "REPEAT_ANSWERED", "RESULT_DELIVERED"]
            .map(|name| count(&names, name));
        assert_eq!(counts, [1, repeats, 0], "{names:?}");
    }
    let whole = world.plain("POST", &path, &fields, "x").await;
    assert_eq!((whole.status, whole.content.len(), whole.complete), (200, LENGTH, true));
    world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(world.origin.effects(&path), 1);
}

/// a stored result whose reader at the control API stops is handed over to nobody; to who takes all of
/// it, it is.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_a_caller_that_stops_reading_the_control_api() {
    let patience = Duration::from_secs(1);
    let world = world(patience).await;
    let id = world.journal.new_id();
    let path = format!("/big?{LENGTH}");
    let fields = format!("Affiant-Invocation: {id}\r\nConnection: close\r\n");
    stops(&world, &world.plain_request("POST", &path, &fields, "x"), patience).await;
    *world.fetched.lock().expect("lock") = Some(proxy::Fetched { asked: id, held: id });
    let request = format!(
        "GET http://affiant.internal/big HTTP/1.1\r\nHost: affiant.internal\r\nConnection: close\r\n{}\r\n",
        world.credentials()
    );
    let length = "coder GET /big".len() << 20;
    let taken = stops(&world, &request, patience).await;
    assert!(taken < length, "{taken} bytes");
    let names = names(&world, id);
    let counts = ["DELIVERY_FAILED", "RESULT_DELIVERED"].map(|name| count(&names, name));
    assert_eq!(counts, [1, 0], "{names:?}");
    assert_eq!(world.invocation(id).await.verdict().retry().as_str(), "fetch_result");
    let mut tcp = connect(&world).await;
    tcp.write_all(request.as_bytes()).await.expect("write");
    let mut all = Vec::new();
    tcp.read_to_end(&mut all).await.expect("read");
    assert!(all.len() > length);
    world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(world.origin.effects(&path), 1);
}

async fn begin(client: &Http2Client, path: &str, id: InvocationId) -> RecvStream {
    let request = client.request("POST", path).header("affiant-invocation", id.to_string());
    let request = request.body(()).expect("request");
    let mut sender = client.sender.clone().ready().await.expect("ready");
    let (response, mut sending) = sender.send_request(request, false).expect("sent");
    sending.send_data(Bytes::from_static(b"x"), true).expect("data");
    let response = tokio::time::timeout(Duration::from_secs(20), response).await;
    response.expect("in time").expect("a response").into_body()
}

/// over HTTP/2 the time is that of a piece: a caller that takes longer for all of a stored result than
/// it may take nothing gets all of it, and one that stops is reset.
#[tokio::test(flavor = "multi_thread")]
async fn r_4_callers_of_http2_have_their_time_for_each_piece() {
    let patience = Duration::from_secs(3);
    let world = world(patience).await;
    let id = world.journal.new_id();
    let path = format!("/big?{LENGTH}");
    let port = world.secure.address.port();
    let client = Http2Client::open_to(&world, "localhost", port).await;
    // Gives no window back: what is there is the first window, and then the reset.
    let mut body = begin(&client, &path, id).await;
    let mut taken = 0;
    let broken = loop {
        match tokio::time::timeout(Duration::from_secs(20), body.data()).await.expect("in time") {
            Some(Ok(piece)) => taken += piece.len(),
            Some(Err(error)) => break error,
            None => panic!("it ended in order after {taken} bytes"),
        }
    };
    assert!(broken.is_reset() && taken < LENGTH, "{broken} after {taken} bytes");
    world.events(id, "DELIVERY_FAILED").await;
    // Gives the connection's window back.
    drop(body);
    // A pause for each fortieth of it: longer in all than the caller may take nothing.
    let mut body = begin(&client, &path, id).await;
    let (mut taken, mut pauses) = (0, 0);
    while let Some(piece) = body.data().await {
        let length = piece.expect("a piece").len();
        taken += length;
        body.flow_control().release_capacity(length).expect("window");
        if taken / (LENGTH / 40) > pauses {
            pauses += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!((taken, pauses), (LENGTH, 40));
    world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(world.secure.effects(&path), 1);
}
