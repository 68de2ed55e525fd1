//! Replays the corpora of the fuzz targets, and a short run of changes of them, on any toolchain.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use fuzz::checks;
use std::path::Path;

/// Beginnings of an input that are checked.
const PREFIXES: usize = 128;

/// Inputs of a corpus, with so many changes of three bytes in all; the same ones in every run.
fn short_run(target: &str, changes: usize, check: fn(&[u8])) -> usize {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut paths: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let each = changes / paths.len().max(1);
    for path in &paths {
        let data = std::fs::read(path).unwrap();
        check(&data);
        for _ in 0..if data.is_empty() { 0 } else { each } {
            let mut changed = data.clone();
            for _ in 0..3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = usize::try_from(random >> 16).unwrap() % changed.len();
                changed[at] = random.to_le_bytes()[0];
            }
            check(&changed);
        }
    }
    paths.len()
}

/// Checks every input of a corpus, everything that it begins with, and changes of it.
fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        (0..data.len().min(PREFIXES)).for_each(|end| check(data.get(..end).unwrap_or_default()));
    }
    let inputs = short_run(target, 3_000, check);
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

/// J-7: no bytes of a segment break recovery.
#[test]
fn j_7_recovery() {
    assert!(short_run("journal_recovery", 160, checks::journal_recovery) > 0);
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
