//! Malformed requests beside sound ones on one connection of HTTP/2 (RFC 9113 section 8.1.1): what of it the
//! library answers on the stream alone, and what ends the connection; the sound call's record is right
//! in both.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::InvocationId;
use std::time::Duration;
use support::World;
use support::frames::*;

const PROTOCOL_ERROR: u32 = 1;
const LIMIT: Duration = Duration::from_secs(20);

/// A connection with a call that waits for the origin's gate.
async fn begin(world: &World) -> (Raw, InvocationId) {
    let mut raw = Raw::open(world, "localhost", world.secure.address.port()).await;
    let id = world.journal.new_id();
    let named = literal("affiant-invocation", &id.to_string());
    let block = [fields(&authority(world), "/gate"), named].concat();
    let before = world.secure.effects("/gate");
    assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)).await);
    world.secure.reached("/gate", before + 1).await;
    (raw, id)
}

/// The next frame of a kind: its stream, and its payload.
async fn next(raw: &mut Raw, wanted: u8) -> (u32, Vec<u8>) {
    let found = async {
        loop {
            let (kind, id, payload) = raw.next().await.expect("the connection is open");
            if kind == wanted {
                return (id, payload);
            }
        }
    };
    tokio::time::timeout(LIMIT, found).await.expect("in time")
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]])
}

/// RFC 9113 section 8.1.1: a request that is malformed as a message is reset on its stream. It reaches
/// neither origin nor record, and the calls beside it go on.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_malformed_requests_are_reset_alone() {
    let world = World::new().await;
    let authority = authority(&world);
    let (mut raw, id) = begin(&world).await;
    let whole = fields(&authority, "/malformed");
    let after = |name: &str, value: &str| [whole.clone(), literal(name, value)].concat();
    let without = |left_out: &str| {
        let all = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", authority.as_str()),
            (":path", "/malformed"),
        ];
        let kept = all.iter().filter(|(name, _)| *name != left_out);
        kept.flat_map(|(name, value)| literal(name, value)).collect::<Vec<u8>>()
    };
    let malformed = [
        ("no :path", without(":path")),
        ("no :method", without(":method")),
        ("no :scheme", without(":scheme")),
        ("two :path", after(":path", "/other")),
        ("a status", after(":status", "200")),
        ("a pseudo field behind fields", [after("x-a", "1"), literal(":path", "/x")].concat()),
        ("connection", after("connection", "close")),
        ("transfer-encoding", after("transfer-encoding", "chunked")),
        ("te", after("te", "gzip")),
        ("content that is not there", after("content-length", "5")),
    ];
    for (n, (name, block)) in (0..).zip(&malformed) {
        let stream = 2 * n + 3;
        assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, block)).await);
        let (reset, payload) = next(&mut raw, RST_STREAM).await;
        assert_eq!((reset, number(&payload)), (stream, PROTOCOL_ERROR), "{name}");
    }
    world.secure.open_gate();
    assert_eq!(next(&mut raw, HEADERS).await.0, 1);
    assert_eq!(world.invocation(id).await.verdict().outcome().as_str(), "committed");
    world.events(id, "RESULT_DELIVERED").await;
    assert_eq!(world.secure.all_effects(), 1);
    let all = world.journal.list(&journal::Filter::default()).expect("list");
    assert_eq!(all.invocations.len(), 1);
}

/// RFC 9113 section 5.4.1 lets an endpoint end the connection instead. The library does for what it can't
/// read as fields: its GOAWAY names the last stream that was taken, and the sound call beside it has its
/// effect once, its record, and its result to fetch.
#[tokio::test(flavor = "multi_thread")]
async fn d_4_fields_that_are_none_end_the_connection() {
    let world = World::new().await;
    for (n, (name, value)) in (1..).zip([
        ("X-Upper", "1"),
        ("x a", "1"),
        ("", "1"),
        (":unknown", "1"),
        ("x-a", "a\nb"),
        ("x-a", "a\0b"),
    ]) {
        let (mut raw, id) = begin(&world).await;
        let block = [fields(&authority(&world), "/malformed"), literal(name, value)].concat();
        assert!(raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3, &block)).await);
        let (_, payload) = next(&mut raw, GOAWAY).await;
        assert_eq!((number(&payload), number(&payload[4..])), (1, PROTOCOL_ERROR), "{name:?}");
        while raw.next().await.is_some() {}
        world.secure.open_gate();
        world.events(id, "DELIVERY_FAILED").await;
        let verdict = world.invocation(id).await.verdict();
        let facts = [verdict.outcome().as_str(), verdict.retry().as_str()];
        assert_eq!(facts, ["committed", "fetch_result"], "{name:?} {value:?}");
        assert!(world.journal.result(id).is_ok());
        assert_eq!(world.secure.effects("/gate"), n, "{name:?} {value:?}");
    }
    assert_eq!(world.secure.effects("/malformed"), 0);
}
