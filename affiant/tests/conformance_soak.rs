//! A short soak of the real binary; `affiant-conformance soak` runs it for as long as one likes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

use conformance::numbers::seed;
use conformance::soak::{Soaking, soak};
use std::path::Path;
use std::time::Duration;

/// How long; the hour is a command of the README.
const SOAKED: Duration = Duration::from_secs(180);

/// J-7, D-7: mixed traffic, faults and kills; nothing is lost, and nothing contradicts the counts.
#[test]
fn j_7_d_7_a_short_soak() {
    let binary = Path::new(env!("CARGO_BIN_EXE_affiant"));
    let seed = seed();
    let soaking = Soaking { how_long: SOAKED, seed, per_second: None };
    let soaked = soak(binary, soaking).unwrap();
    eprintln!("CONFORMANCE_SEED={seed}\n{}", soaked.summary());
    assert_eq!((soaked.lost, soaked.findings.len()), (0, 0), "{}", soaked.summary());
    assert!(
        soaked.kills >= 5 && soaked.calls > 1_000 && soaked.on_record > 1_000,
        "{}",
        soaked.summary()
    );
}
