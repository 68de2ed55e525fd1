//! How long a big home takes to open; prints, asserts the bounds.
//!
//! `cargo test --release -p affiant-journal --test big_home -- --ignored --nocapture` makes a home of
//! 10 million events (9 GB in the directory for temporary files, minutes); `AFFIANT_EVENTS` sets
//! another number.

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
use std::ffi::OsString;
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

/// The image of a directory: sealed segments as links, for they never change, the rest as copies.
fn image(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    let is_segment = |name: &OsString| name.to_string_lossy().ends_with(".seg");
    // Behind them are the youngest one and the spares.
    let sealed = names.iter().filter(|name| is_segment(name)).count().saturating_sub(4);
    let mut segments = 0;
    for name in names {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            continue;
        }
        segments += usize::from(is_segment(&name));
        if is_segment(&name) && segments <= sealed {
            std::fs::hard_link(from, to).unwrap();
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

fn timed_open(directory: &Path) -> (Journal, journal::Recovery, Duration) {
    let begun = Instant::now();
    let (journal, recovery) = Journal::open(Options::new(directory), Some(key())).unwrap();
    (journal, recovery, begun.elapsed())
}

#[test]
#[ignore = "long: a measurement; it needs a release build, minutes and gigabytes"]
fn a_big_home_opens_in_bounded_time() {
    let usual = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };
    let events: u64 =
        std::env::var("AFFIANT_EVENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let home = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
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
        while journal.stats().indexed_sequence < journal.stats().durable_sequence {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        image(&home.path().join("index"), &crashed.path().join("index"));
        let tail = (0..256).map(|worker| tokio::spawn(calls(journal.clone(), 1_000 + worker, 40)));
        for worker in tail.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        image(home.path(), crashed.path());
        journal.close().await;
    });
    let (journal, recovery, clean) = timed_open(home.path());
    println!("clean, {} records: {clean:?}", recovery.last_sequence);
    assert_eq!(recovery.replayed, 0);
    assert!(clean < Duration::from_secs(1), "{clean:?}");
    runtime.block_on(journal.close());
    let (journal, recovery, unclean) = timed_open(crashed.path());
    // The rest is older than the index, and nobody reads it.
    assert!(recovery.replayed < 200_000, "{}", recovery.replayed);
    println!("unclean, {} replayed: {unclean:?}", recovery.replayed);
    assert!(!recovery.rebuilt && unclean < Duration::from_secs(5), "{unclean:?}");
    runtime.block_on(journal.close());
    std::fs::remove_dir_all(home.path().join("index")).unwrap();
    let (journal, recovery, rebuilt) = timed_open(home.path());
    println!("rebuilt from {} records: {rebuilt:?}", recovery.replayed);
    runtime.block_on(journal.close());
}
