//! How long a big home takes to open; prints, asserts the bounds.
//!
//! `AFFIANT_EVENTS=10000000 cargo test --release -p affiant-journal --test big_home -- --ignored --nocapture`

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{Code, Digest};
use journal::contract::{Confirmation, RequestSent, ResponseStarted, Retry, Verdict};
use journal::{Journal, Options};
use std::path::Path;
use std::time::{Duration, Instant};

/// Calls without results: ten events each.
async fn calls(journal: Journal, worker: u64, count: u64) {
    for n in 0..count {
        let mut call = dispatched(&journal, "coder", &format!("{worker} {n}")).await;
        call.request_sent(RequestSent { length_bytes: 0, digest: Digest::of(b"") }).unwrap();
        call.response_started(ResponseStarted { status: Some(200), remote_request_id: None })
            .unwrap();
        let verdict = Verdict::committed(Retry::Never, Code::Ok);
        drop(call.commit(complete(b""), verdict, None).await.unwrap());
        call.delivered(Confirmation::Protocol);
        call.note("n", "d");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn timed_open(directory: &Path) -> (Journal, journal::Recovery, Duration) {
    let begun = Instant::now();
    let (journal, recovery) = Journal::open(Options::new(directory), Some(key())).unwrap();
    (journal, recovery, begun.elapsed())
}

#[test]
#[ignore = "a measurement; it needs a release build, minutes and gigabytes"]
fn a_big_home_opens_in_bounded_time() {
    let events: u64 =
        std::env::var("AFFIANT_EVENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let home = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let options = Options { durable: false, ..Options::new(home.path()) };
    let (journal, _) = Journal::open(options, Some(key())).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let workers: Vec<_> = (0..256)
            .map(|worker| tokio::spawn(calls(journal.clone(), worker, events / 10 / 256)))
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        // The image of a crash under load: the index first, so that it is behind.
        let tail = tokio::spawn(calls(journal.clone(), 999, 400));
        copy(&home.path().join("index"), &crashed.path().join("index"));
        tail.await.unwrap();
        copy(home.path(), &crashed.path().join("late"));
        journal.close().await;
    });
    for entry in std::fs::read_dir(crashed.path().join("late")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "index" {
            std::fs::rename(entry.path(), crashed.path().join(entry.file_name())).unwrap();
        }
    }
    let (journal, recovery, clean) = timed_open(home.path());
    println!("clean, {} records: {clean:?}", recovery.last_sequence);
    assert_eq!(recovery.replayed, 0);
    assert!(clean < Duration::from_secs(1), "{clean:?}");
    runtime.block_on(journal.close());
    let (journal, recovery, unclean) = timed_open(crashed.path());
    println!("unclean, {} replayed: {unclean:?}", recovery.replayed);
    assert!(!recovery.rebuilt && unclean < Duration::from_secs(5), "{unclean:?}");
    runtime.block_on(journal.close());
    std::fs::remove_dir_all(home.path().join("index")).unwrap();
    let (journal, recovery, rebuilt) = timed_open(home.path());
    println!("rebuilt from {} records: {rebuilt:?}", recovery.replayed);
    runtime.block_on(journal.close());
}
