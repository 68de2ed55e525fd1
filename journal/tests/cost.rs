//! What a call costs; prints, asserts only counters that don't depend on time.
//!
//! `cargo test --release -p affiant-journal --test cost -- --ignored --nocapture`

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
use journal::contract::Confirmation;
use journal::{Journal, Options};
use std::time::{Duration, Instant};

/// User and system time of this process.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
#[ignore = "a measurement; it needs a release build and a quiet machine"]
fn cost_of_a_call() {
    for concurrency in [1_u32, 8, 64, 256, 512] {
        let home = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes: 16 << 20, ..options(home.path()) };
        let (journal, _) = Journal::open(options, Some(key())).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let calls = (concurrency * 400).clamp(1_000, 40_000) / concurrency;
        let (begun, used) = (Instant::now(), cpu());
        runtime.block_on(async {
            let tasks: Vec<_> = (0..concurrency)
                .map(|n| {
                    let journal = journal.clone();
                    tokio::spawn(async move {
                        for round in 0..calls {
                            let text = format!("{n} {round}");
                            let mut call = dispatched(&journal, "coder", &text).await;
                            drop(respond(&mut call, 200, &[3; 2_000]).await);
                            call.delivered(Confirmation::Protocol);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let (took, used) = (begun.elapsed(), cpu() - used);
        runtime.block_on(journal.close());
        let stats = journal.stats();
        let n = u64::from(concurrency * calls);
        println!(
            "{concurrency:4}: {:7.0} calls/s, {:6.1} us CPU per call, {:5.1} appends per sync, \
             {:6} bytes per call ({} payload), wait {} us, sync {} us",
            n as f64 / took.as_secs_f64(),
            used.as_secs_f64() * 1e6 / n as f64,
            stats.appends as f64 / stats.syncs as f64,
            stats.written_bytes / n,
            stats.payload_bytes / n,
            stats.queue_wait_us / stats.appends,
            stats.sync_us / stats.syncs,
        );
        assert_eq!(stats.frames, stats.syncs);
    }
}

/// Counters that don't depend on time: at one call in flight two frames a call, one sync per frame, whole
/// blocks, and a file whose length and blocks do not change, so that no sync has metadata to write.
#[test]
fn a_call_costs_two_frames_and_no_metadata() {
    use std::os::unix::fs::MetadataExt as _;
    const CALLS: u64 = 20;
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let single = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    for (runtime, leads) in [(current, false), (single, false), (several, true)] {
        let home = tempfile::tempdir().unwrap();
        let (journal, _) = open(home.path());
        let file = home.path().join("00000001.seg");
        let shape = || {
            let metadata = std::fs::metadata(&file).unwrap();
            (metadata.len(), metadata.blocks())
        };
        let before = shape();
        runtime.block_on(async {
            for round in 0..CALLS {
                let mut call = dispatched(&journal, "coder", &round.to_string()).await;
                drop(respond(&mut call, 200, &[3; 2_000]).await);
                call.delivered(Confirmation::Protocol);
            }
        });
        let stats = journal.stats();
        assert_eq!(shape(), before);
        assert_eq!(stats.frames, stats.syncs);
        assert!(stats.written_bytes.is_multiple_of(4096));
        // A busy machine can make a delivery wait longer than it may, and then it goes alone.
        assert!((2 * CALLS..=3 * CALLS + 1).contains(&stats.frames), "{} frames", stats.frames);
        // Who waits alone changes no thread, where its thread may block.
        let led = if leads { CALLS..=2 * CALLS } else { 0..=0 };
        assert!(led.contains(&stats.led), "{} of {}", stats.led, stats.frames);
        runtime.block_on(journal.close());
    }
}

/// A batch gathers where another call is under way, even while that one appends nothing; one that only
/// lasts (a stream of events) is no reason to change threads for every append of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_writes_alone_between_the_appends_of_another_call() {
    const CALLS: u32 = 20;
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut earlier = dispatched(&journal, "coder", "first").await;
    let led = journal.stats().led;
    for round in 0..CALLS {
        let later = dispatched(&journal, "coder", &round.to_string()).await;
        drop(respond(&mut earlier, 200, b"in turn").await);
        earlier = later;
    }
    assert_eq!(journal.stats().led, led);
    for round in CALLS..2 * CALLS {
        let mut call = dispatched(&journal, "coder", &round.to_string()).await;
        drop(respond(&mut call, 200, b"beside a call that lasts").await);
    }
    assert!(journal.stats().led > led);
    drop(respond(&mut earlier, 200, b"at last").await);
    journal.close().await;
}
