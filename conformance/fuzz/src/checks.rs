//! What holds for every input. Used by the fuzz targets and by the replay of their corpora.

#![allow(clippy::expect_used, clippy::missing_panics_doc, reason = "a broken property is a panic")]

use crate::body::{Decoder, Step};
use crate::format::{FrameView, Header, RecordView, reseal_frame};
use crate::head::{self, Fields, Framing};
use crate::sftp::{Sftp, Totals};
use bytes::{Bytes, BytesMut};
use journal::contract::Event;
use policy::call::{Call, Rest};
use policy::{Body, Details, HttpAction, Policy};

/// More than our limit, so that ours is what decides.
const FIELDS: usize = 128;

/// A head that we accept means the same to another parser, and is what it was when it is written
/// again from its parts.
pub fn request_head(data: &[u8]) {
    let Some(head) = whole_head(data) else { return };
    let Ok(ours) = head::request(&head) else { return };
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut theirs = httparse::Request::new(&mut fields);
    let parsed = theirs.parse(&head).expect("another parser refuses what we accept");
    assert_eq!(parsed, httparse::Status::Complete(head.len()), "another end of the head");
    assert_eq!(theirs.method, Some(ours.method.as_str()));
    assert_eq!(theirs.path, Some(ours.target.as_str()));
    same_fields(&ours.fields, theirs.headers);
    if let Ok(framing) = head::request_framing(&ours) {
        assert!(framing != Framing::Close, "a request never ends by closing");
        unambiguous(&ours.fields);
    }
    let again = rewritten(format!("{} {} HTTP/1.1\r\n", ours.method, ours.target), &ours.fields);
    let again = head::request(&again).expect("what we write, we accept");
    assert_eq!((again.method, again.target), (ours.method, ours.target));
    assert!(again.fields.iter().eq(ours.fields.iter()));
}

/// The same for responses; and the framing never depends on who reads.
pub fn response_head(data: &[u8]) {
    let Some(head) = whole_head(data) else { return };
    let Ok(ours) = head::response(&head) else { return };
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut theirs = httparse::Response::new(&mut fields);
    let parsed = theirs.parse(&head).expect("another parser refuses what we accept");
    assert_eq!(parsed, httparse::Status::Complete(head.len()), "another end of the head");
    assert_eq!(theirs.code, Some(ours.status));
    same_fields(&ours.fields, theirs.headers);
    assert!(!matches!(head::response_framing(&ours, "HEAD"), Ok(Framing::Chunked)));
    let framing = head::response_framing(&ours, "GET");
    if matches!(ours.status, 204 | 304) {
        // RFC 9112 section 6.3: they end with their head, whatever it declares.
        assert!(!matches!(framing, Ok(Framing::Length(_) | Framing::Chunked | Framing::Close)));
    } else if framing.is_ok() {
        unambiguous(&ours.fields);
    }
}

/// An sftp session means the same in whatever pieces it comes, and every operation that is told has a
/// name and an end.
pub fn sftp(data: &[u8]) {
    let (told, totals) = sftp_session(data, usize::MAX);
    assert_eq!(sftp_session(data, 1), (told.clone(), totals), "the pieces decide");
    assert_eq!(totals.operations, told.len() as u64);
    for operation in told {
        assert!(operation.get("op").is_some_and(serde_json::Value::is_string));
        assert!(operation.get("status").is_some_and(serde_json::Value::is_string));
        assert!(operation.to_string().len() < 32 << 10, "a record without bound");
    }
}

/// Plays an input: each message begins with a byte that says who sends and how many bytes follow.
fn sftp_session(data: &[u8], piece_bytes: usize) -> (Vec<serde_json::Value>, Totals) {
    let (mut sftp, mut told, mut rest) = (Sftp::default(), Vec::new(), data);
    while let Some((head, after)) = rest.split_first() {
        let (message, later) = after.split_at(usize::from(head & 0x7f).min(after.len()));
        for piece in message.chunks(piece_bytes.min(message.len().max(1))) {
            if head & 0x80 == 0 {
                told.extend(sftp.reply(piece));
            } else {
                sftp.request(piece);
            }
        }
        rest = later;
    }
    told.extend(sftp.finish());
    (told, sftp.totals())
}

/// Chunked content is complete, cut or malformed, whatever the pieces it comes in; and nothing
/// shorter than a complete one is complete.
pub fn chunked(data: &[u8]) {
    let whole = decode(data, data.len().max(1));
    let by_byte = decode(data, 1);
    assert_eq!(whole.content, by_byte.content, "the content depends on the pieces");
    assert_eq!(whole.complete, by_byte.complete, "the end depends on the pieces");
    assert_eq!(whole.malformed, by_byte.malformed, "the verdict depends on the pieces");
    if whole.complete {
        assert_eq!(whole.read, by_byte.read);
        for shorter in [whole.read.saturating_sub(1), whole.read / 2] {
            let cut = decode(data.get(..shorter).unwrap_or_default(), usize::MAX);
            assert!(!cut.complete, "complete without its last bytes");
        }
    }
}

/// No bytes of a segment make the reader panic, and what it gives lies inside of them.
pub fn journal_record(data: &[u8]) {
    if let Some(record) = RecordView::decode(data) {
        assert!(record.length <= data.len());
        assert!(record.payload.len() <= record.length);
        let _linked = record.links(&[0; 32]);
        let _attachment = record.sound_attachment();
    }
    if let Some(frame) = FrameView::decode(data, &[0; 16], 0, 4096) {
        assert!(frame.length <= data.len() && frame.body.len() <= frame.length);
    }
    if let Some(header) = Header::decode(data) {
        assert_eq!(Header::decode(&header.encode()).map(|h| h.encode()), Some(header.encode()));
    }
}

/// Whatever is in the file of a segment, verifying and repairing it do not panic, and agree; what a
/// repair has left is whole. Checksums of frames are made good first, so that what lies behind
/// them is reached.
///
/// # Panics
/// When that does not hold.
pub fn journal_recovery(data: &[u8]) {
    const BLOCK: usize = 4096;
    let mut bytes = data.to_vec();
    if let Some(header) = Header::decode(data) {
        for offset in (BLOCK..bytes.len()).step_by(BLOCK) {
            let length = bytes.get(offset + 28..offset + 32).map_or(0, |field| {
                field.iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
            });
            let end = offset.saturating_add(length.saturating_add(64));
            if let Some(frame) = bytes.get_mut(offset..end) {
                reseal_frame(frame, &header.salt, header.segment, offset as u64);
            }
        }
    }
    for bytes in [data, &bytes] {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("00000001.seg"), bytes).expect("a segment");
        let found = journal::verify(home.path());
        match journal::repair::repair(home.path(), true) {
            Ok(None) => assert!(found.is_ok(), "verify finds what repair does not: {found:?}"),
            Ok(Some(_)) => assert!(found.is_err(), "repair cuts what verify accepts"),
            Err(journal::repair::Error::Hopeless(_)) => continue,
            Err(error) => assert!(found.is_err(), "{error}"),
        }
        let after = journal::verify(home.path());
        assert!(after.is_ok(), "a repaired log is whole: {after:?}");
    }
}

/// An event that is read is written and read again as the same.
pub fn event(data: &[u8]) {
    let Ok(event) = serde_json::from_slice::<Event>(data) else { return };
    let text = serde_json::to_vec(&event).expect("an event is written");
    assert_eq!(serde_json::from_slice::<Event>(&text).expect("and read again"), event);
}

/// A policy text is refused with places in it, or accepted every time.
///
/// # Panics
/// When that does not hold.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Policy::check(text, "fuzz.toml") {
        Ok(_) => assert!(Policy::check(text, "fuzz.toml").is_ok(), "accepted only once"),
        Err(found) => {
            assert!(!found.is_empty(), "refused without a word");
            let lines = text.split('\n').count();
            for diagnostic in found {
                let inside = (1..=lines).contains(&diagnostic.line) && diagnostic.column >= 1;
                assert!(inside, "a place outside of the text: {diagnostic}");
            }
        }
    }
}

/// An action is decided every time alike, as it is explained, and however its policy is ordered. The
/// first line is the action: agent, call, and JSON content behind the URL; the rest is the policy.
///
/// # Panics
/// When that does not hold.
pub fn decision(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((action, text)) = text.split_once('\n') else { return };
    let Some((agent, action)) = action.split_once(' ') else { return };
    let (call, body) = match action.split_once(" {") {
        Some((call, rest)) => (call, Some(format!("{{{rest}"))),
        None => (action, None),
    };
    let Ok(call) = Call::parse(call) else { return };
    let Ok(snapshot) = Policy::check(text, "fuzz.toml") else { return };
    let rest = Rest { headers: Vec::new(), body };
    let told = call.explain(&snapshot, agent, &rest);
    assert_eq!(told.allowed, told.code.is_none(), "allowed with a code, or denied without");
    if let Call::Http { method, scheme, host, port, path, query } = &call {
        let content = rest.body.as_deref().map_or(Body::Absent, |b| Body::Whole(b.as_bytes()));
        let fields = [(&b"content-type"[..], &b"application/json"[..])];
        let headers = if rest.body.is_some() { &fields[..] } else { &[] };
        let details = Details { query: query.as_deref(), headers, body: content };
        let action = HttpAction { agent, scheme: *scheme, host, port: *port, method, path };
        let decided = snapshot.http_with(&action, &details);
        assert_eq!(decided.is_ok(), told.allowed, "explained another way than decided");
        let injects = decided.ok().and_then(|grant| grant.credential).map(|c| c.id);
        assert_eq!(injects, told.credential, "another credential");
        let unread = Details { body: Body::default(), ..details };
        if !snapshot.looks_at_body(&action, &unread) {
            let blind = snapshot.http_with(&action, &unread);
            assert_eq!(blind.is_ok(), told.allowed, "content counts that was not asked for");
        }
    }
    // Tables that are turned around are the same policy.
    let parts: Vec<_> = text.split("\n[[route]]").collect();
    if let Some((first, routes)) = parts.split_first() {
        let turned: Vec<_> = std::iter::once(*first).chain(routes.iter().rev().copied()).collect();
        let turned = turned.join("\n[[route]]");
        if let Ok(turned) = Policy::check(&turned, "fuzz.toml") {
            let again = call.explain(&turned, agent, &rest);
            let both = (told.allowed, &told.rule);
            assert_eq!((again.allowed, &again.rule), both, "the order of rules decides");
        }
    }
}

fn whole_head(data: &[u8]) -> Option<Bytes> {
    let mut searched = 0;
    let end = head::find_end(data, &mut searched)?.ok()?;
    data.get(..end).map(Bytes::copy_from_slice)
}

fn same_fields(ours: &Fields, theirs: &[httparse::Header<'_>]) {
    assert_eq!(ours.iter().count(), theirs.len());
    for ((name, value), theirs) in ours.iter().zip(theirs) {
        assert_eq!(name, theirs.name.as_bytes());
        assert_eq!(value, theirs.value.trim_ascii());
    }
}

/// Nobody can read another length from a head whose framing we accept.
fn unambiguous(fields: &Fields) {
    let lengths = fields.all("content-length").count();
    let codings = fields.all("transfer-encoding").count();
    assert!(lengths + codings <= 1);
}

fn rewritten(start: String, fields: &Fields) -> Bytes {
    let mut out = start.into_bytes();
    for (name, value) in fields.iter() {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.into()
}

struct Decoded {
    content: Vec<u8>,
    complete: bool,
    malformed: bool,
    read: usize,
}

fn decode(data: &[u8], pace: usize) -> Decoded {
    let mut decoder = Decoder::from(Framing::Chunked);
    let mut buffer = BytesMut::new();
    let mut input = data.chunks(pace);
    let mut fed = 0;
    let (mut content, mut complete, mut malformed) = (Vec::new(), false, false);
    loop {
        match decoder.step(&mut buffer) {
            Ok(Step::Data(data)) => content.extend_from_slice(&data),
            Ok(Step::End(..)) => complete = true,
            Err(_) => malformed = true,
            Ok(Step::More) => match input.next() {
                Some(piece) => {
                    fed += piece.len();
                    buffer.extend_from_slice(piece);
                    continue;
                }
                None => break,
            },
        }
        if complete || malformed {
            break;
        }
    }
    Decoded { content, complete, malformed, read: fed - buffer.len() }
}
