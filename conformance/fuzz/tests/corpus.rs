//! Replays the corpora of the fuzz targets, on any toolchain.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use fuzz::checks;
use std::path::Path;

/// Checks every input of a corpus, and everything that it begins with.
fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        check(&data);
        (0..data.len().min(256)).for_each(|end| check(data.get(..end).unwrap_or_default()));
        inputs += 1;
    }
    assert!(inputs > 3, "{target}: {inputs} inputs");
}

/// V-1: heads of requests mean to others what they mean to us.
#[test]
fn v_1_request_heads() {
    replay("request_head", checks::request_head);
}

/// S-6: heads of responses, likewise.
#[test]
fn s_6_response_heads() {
    replay("response_head", checks::response_head);
}

/// S-2: nothing shorter than a complete content is complete.
#[test]
fn s_2_chunked_content() {
    replay("chunked", checks::chunked);
}

/// J-6: no bytes of a segment break the reader.
#[test]
fn j_6_segments() {
    replay("journal_record", checks::journal_record);
}

/// J-7: no bytes of a segment break recovery. The seeds, and seeded changes of them.
#[test]
fn j_7_recovery() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/journal_recovery");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        checks::journal_recovery(&data);
        for _ in 0..if data.is_empty() { 0 } else { 40 } {
            let mut changed = data.clone();
            for _ in 0..3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = usize::try_from(random >> 16).unwrap() % changed.len();
                changed[at] = random.to_le_bytes()[0];
            }
            checks::journal_recovery(&changed);
        }
    }
}

/// J-1: events are read as they were written.
#[test]
fn j_1_events() {
    replay("event", checks::event);
}

/// V-1: decisions are told as they are made, whatever the order of rules.
#[test]
fn v_1_decisions() {
    replay("decision", checks::decision);
}

/// V-2: every refusal of a policy text has its place.
#[test]
fn v_2_policies() {
    replay("policy", checks::policy);
}

/// What an sftp session did is read from its packets, whatever the pieces.
#[test]
fn sftp_sessions() {
    replay("sftp", checks::sftp);
}
