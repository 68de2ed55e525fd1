//! Sessions written out packet by packet.

use super::wire::{HEAD_BYTES, MAX_PATH_BYTES};
use super::*;

fn packet(kind: u8, id: u32, rest: &[u8]) -> Vec<u8> {
    let mut body = vec![kind];
    body.extend_from_slice(&id.to_be_bytes());
    body.extend_from_slice(rest);
    let mut packet = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    packet.extend_from_slice(&body);
    packet
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn number(value: u32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

/// A session: requests and replies in the order in which they pass.
fn script() -> Vec<(bool, Vec<u8>)> {
    let attributes = [number(4), number(0o600)].concat();
    let write = |text: &str| [string("h"), vec![0; 8], string(text)].concat();
    vec![
        (true, packet(1, 3, b"")),
        (false, packet(2, 3, b"")),
        (true, packet(16, 1, &string("."))),
        (false, packet(104, 1, &number(0))),
        (true, packet(3, 2, &[string("/a"), number(0x1a), attributes.clone()].concat())),
        (false, packet(102, 2, &string("h"))),
        (true, packet(6, 3, &write("hello"))),
        (true, packet(6, 4, &write(&"x".repeat(40_000)))),
        (false, packet(101, 4, &number(0))),
        (false, packet(101, 3, &number(0))),
        (true, packet(4, 5, &string("h"))),
        (false, packet(101, 5, &number(0))),
        (true, packet(9, 6, &[string("/a"), attributes].concat())),
        (false, packet(101, 6, &number(3))),
        (true, packet(18, 7, &[string("/a"), string("/b")].concat())),
        (true, packet(13, 8, &string("/c"))),
        (false, packet(101, 8, &number(2))),
        (false, packet(101, 7, &number(0))),
        (true, packet(3, 9, &[string("/b"), number(1), number(0)].concat())),
        (false, packet(102, 9, &string("r"))),
        (true, packet(5, 10, &[string("r"), vec![0; 8], number(32768)].concat())),
        (false, packet(103, 10, &string("content"))),
        (true, packet(200, 11, &[string("fsync@openssh.com"), string("r")].concat())),
        (true, packet(14, 12, &string("/d"))),
    ]
}

fn observe(pieces: &[(bool, &[u8])]) -> (Vec<Value>, Totals) {
    let mut sftp = Sftp::default();
    let mut told = Vec::new();
    for (is_request, data) in pieces {
        if *is_request {
            sftp.request(data);
        } else {
            told.extend(sftp.reply(data));
        }
    }
    told.extend(sftp.finish());
    (told, sftp.totals())
}

fn expected() -> Vec<Value> {
    vec![
        json!({ "op": "open", "path": "/a", "access": "write,create,truncate", "status": "OK" }),
        json!({ "op": "close", "path": "/a", "read_bytes": 0, "written_bytes": 40_005,
            "status": "OK" }),
        json!({ "op": "setstat", "path": "/a", "set": "mode=600", "status": "PERMISSION_DENIED" }),
        json!({ "op": "remove", "path": "/c", "status": "NO_SUCH_FILE" }),
        json!({ "op": "rename", "path": "/a", "to": "/b", "status": "OK" }),
        json!({ "op": "open", "path": "/b", "access": "read", "status": "OK" }),
        json!({ "op": "fsync", "path": "/b", "status": "UNANSWERED" }),
        json!({ "op": "mkdir", "path": "/d", "status": "UNANSWERED" }),
        json!({ "op": "close", "path": "/b", "read_bytes": 7, "written_bytes": 0,
            "status": "NOT_CLOSED" }),
    ]
}

#[test]
fn operations_are_told_with_paths_and_status() {
    let script = script();
    let pieces: Vec<(bool, &[u8])> = script.iter().map(|(who, data)| (*who, &data[..])).collect();
    let (told, totals) = observe(&pieces);
    assert_eq!(told, expected());
    assert_eq!(
        totals,
        Totals {
            operations: 9,
            questions: 1,
            read_bytes: 7,
            written_bytes: 40_005,
            is_whole: true
        }
    );
}

/// Whatever the pieces, the session is the same.
#[test]
fn the_pieces_do_not_matter() {
    let script = script();
    for size in [1, 2, 3, 5, 7, 4096] {
        let pieces = script
            .iter()
            .flat_map(|(who, data)| data.chunks(size).map(|piece| (*who, piece)))
            .collect::<Vec<_>>();
        assert_eq!(observe(&pieces).0, expected(), "{size}");
    }
}

#[test]
fn what_can_not_be_read_is_said() {
    for bytes in [
        &[0, 0, 0, 0][..],
        &[0xff, 0xff, 0xff, 0xff, 3],
        &packet(99, 1, b""),
        &packet(3, 1, &number(1000)),
    ] {
        let (told, totals) = observe(&[(true, bytes)]);
        assert!(told.is_empty() && !totals.is_whole, "{bytes:?}");
    }
    let long = packet(13, 1, &string(&"p".repeat(5000)));
    let (told, totals) = observe(&[(true, &long), (false, &packet(101, 1, &number(0)))]);
    assert_eq!(told[0]["path"], format!("{}...", "p".repeat(MAX_PATH_BYTES)));
    assert!(totals.is_whole);
}

/// A client that never waits for answers does not make the observer grow.
#[test]
fn memory_is_bounded() {
    let mut sftp = Sftp::default();
    for id in 0..20_000_u32 {
        sftp.request(&packet(13, id, &string("/x")));
    }
    assert_eq!(sftp.asked.len(), MAX_ASKED);
    assert!(!sftp.totals().is_whole);
    for _ in 0..20_000 {
        sftp.request(&packet(13, 1, &string("/x")));
    }
    assert_eq!(sftp.told.len(), MAX_ASKED);
    sftp.request(&packet(6, 1, &[string("h"), vec![0; 8], string(&"x".repeat(1 << 20))].concat()));
    assert!(sftp.requests.head.capacity() <= 2 * HEAD_BYTES);
}

/// S-1: which answer belongs to which of two requests under one id can't be told, so none is claimed of
/// either, and the record does not say that it is whole.
#[test]
fn s_1_requests_under_one_id_are_ambiguous() {
    let remove = packet(13, 5, &string("/victim"));
    let told = |path: &str| json!({ "op": "remove", "path": path, "status": "AMBIGUOUS" });
    // A question beside it, whose answer would pass for the removal's.
    let stat = packet(17, 5, &string("/missing"));
    let (missing, done) = (packet(101, 5, &number(2)), packet(101, 5, &number(0)));
    let session = [(true, &*stat), (true, &*remove), (false, &*missing), (false, &*done)];
    let (operations, totals) = observe(&session);
    assert_eq!(operations, [told("/victim")]);
    assert_eq!((totals.operations, totals.questions, totals.is_whole), (1, 1, false));
    // Three operations, one of them after the first answer.
    let [a, b, c] = ["/a", "/b", "/c"].map(|path| packet(13, 5, &string(path)));
    let session = [
        (true, &*a),
        (true, &*b),
        (false, &*done),
        (true, &*c),
        (false, &*done),
        (false, &*done),
        (true, &*remove),
        (false, &*done),
    ];
    let (operations, totals) = observe(&session);
    let last = json!({ "op": "remove", "path": "/victim", "status": "OK" });
    assert_eq!(operations, [told("/a"), told("/b"), told("/c"), last]);
    assert!(!totals.is_whole);
}

/// A reply that nobody asked for, and a handle that is given twice, leave the record not whole.
#[test]
fn s_1_replies_that_fit_nothing_are_told() {
    let (_, totals) = observe(&[(false, &packet(101, 5, &number(0)))]);
    assert!(!totals.is_whole);
    let open = |id, path| packet(3, id, &[string(path), number(1), number(0)].concat());
    let (one, other) = (open(1, "/a"), open(2, "/b"));
    let [first, second] = [1, 2].map(|id| packet(102, id, &string("h")));
    let (operations, totals) =
        observe(&[(true, &one), (false, &first), (true, &other), (false, &second)]);
    assert_eq!(operations.len(), 3);
    assert!(!totals.is_whole);
}
