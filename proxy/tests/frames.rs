//! Echoes of the credential in the frames of a WebSocket (contract I-4): in pauses, in fragments, and behind
//! extensions that nobody offered. The origin sends back what it gets.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::{Body, InvocationId};
use std::time::Duration;
use support::{Client, SECRET, World};

const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Extensions: permessage-deflate\r\n";

/// Longer than anything is held back for.
const PAUSE: Duration = Duration::from_millis(60);

fn frame(first: u8, content: &str) -> Vec<u8> {
    [&[first, u8::try_from(content.len()).expect("short")], content.as_bytes()].concat()
}

async fn opened(world: &World) -> (Client, InvocationId) {
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/with-credential/websocket", ASK, "")).await;
    let switched = client.response("GET").await;
    assert_eq!((switched.status, client.take(7).await), (101, b"\x81\x05early".to_vec()));
    (client, switched.id())
}

/// Sends pieces with a pause behind each, which is the case, and reads what comes of them.
async fn echoed(client: &mut Client, pieces: &[&[u8]]) -> Vec<u8> {
    for piece in pieces {
        client.send_bytes(piece).await;
        tokio::time::sleep(PAUSE).await;
    }
    client.take(pieces.iter().map(|piece| piece.len()).sum()).await
}

/// I-4: an origin that stops inside of the credential, once or behind every byte, gets nothing of it through.
#[tokio::test(flavor = "multi_thread")]
async fn i_4_a_pause_inside_a_frame_gives_nothing_away() {
    let world = World::new().await;
    let (mut client, id) = opened(&world).await;
    let sent = frame(0x81, &format!("hello {SECRET}"));
    let expected = frame(0x81, &format!("hello {}", "*".repeat(SECRET.len())));
    let (begin, rest) = sent.split_at(sent.len() - 3);
    assert_eq!(echoed(&mut client, &[begin, rest]).await, expected);
    assert_eq!(echoed(&mut client, &sent.chunks(1).collect::<Vec<_>>()).await, expected);
    client.finish().await;
    assert!(client.ends().await);
    let events = world.events(id, "INVOCATION_ENDED").await;
    let is_note = |body: &Body| matches!(body, Body::Noted(note) if note.name == "redacted");
    assert!(events.iter().any(|event| is_note(&event.body)));
}

/// I-4: a message in several frames is one text, with a ping between them, and however slowly they come no
/// more than a few bytes pass.
#[tokio::test(flavor = "multi_thread")]
async fn i_4_fragments_of_a_message_are_one_text() {
    let world = World::new().await;
    let (mut client, _) = opened(&world).await;
    let (one, two) = SECRET.split_at(9);
    let stars = "*".repeat(SECRET.len());
    let message = |one: &str, two: &str| [frame(0x01, one), frame(0x89, "ping"), frame(0x80, two)];
    let (sent, expected) = (message(one, two), message(&stars[..9], &stars[9..]));
    assert_eq!(echoed(&mut client, &[&sent.concat()]).await, expected.concat());
    let pieces: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    assert_eq!(echoed(&mut client, &pieces).await, expected.concat());
    // A few bytes do not keep the frames behind them waiting.
    let (one, two) = SECRET.split_at(2);
    let sent = message(one, two);
    client.send_bytes(&sent[..2].concat()).await;
    assert_eq!(client.take(10).await, sent[..2].concat());
    client.send_bytes(&sent[2]).await;
    assert_eq!(client.take(sent[2].len()).await, frame(0x80, &stars[2..]));
}

/// I-4: what is no frame of an unextended WebSocket is cut, and on record as that.
#[tokio::test(flavor = "multi_thread")]
async fn i_4_compressed_and_masked_frames_do_not_pass() {
    let world = World::new().await;
    for bad in [&b"\xc1\x01x"[..], b"\x81\x81mask", b"\x83\x00"] {
        let (mut client, id) = opened(&world).await;
        client.send_bytes(bad).await;
        assert!(client.ends().await, "{bad:x?}");
        let events = world.events(id, "INVOCATION_ENDED").await;
        let Some(Body::InvocationEnded(ended)) = events.last().map(|event| &event.body) else {
            unreachable!("waited for above")
        };
        let cause = ended.observation.as_ref().map(|seen| seen.cause.as_str());
        assert_eq!(
            (ended.verdict.code().as_str(), cause),
            ("REMOTE_PROTOCOL_ERROR", Some("BAD_FRAMES"))
        );
    }
}

/// S-5: an extension that was offered on may be agreed on; with a credential none is.
#[tokio::test(flavor = "multi_thread")]
async fn s_5_extensions_are_agreed_on_only_where_they_were_offered() {
    let world = World::new().await;
    let bare = ASK.rsplit_once("Sec-WebSocket-Ext").expect("an offer").0;
    for (path, ask, status) in [
        ("/websocket-extension", ASK, 101),
        ("/websocket-extension", bare, 502),
        ("/with-credential/websocket-extension", ASK, 502),
    ] {
        let mut client = world.tunnel().await;
        client.send(&world.secure_request("GET", path, ask, "")).await;
        let answer = client.response("GET").await;
        assert_eq!(answer.status, status, "{path}");
        if status == 502 {
            assert_eq!(
                answer.facts()[..3],
                ["REMOTE_PROTOCOL_ERROR", "remote_execution", "unknown"]
            );
            let said = answer.field("proxy-status");
            assert!(said.contains("error=http_upgrade_failed"), "{said}");
        }
    }
}
