//! The fuzz targets, each for a minute, with libFuzzer on the toolchain of the workspace.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by a panic"
)]

use std::path::Path;
use std::process::Command;

const TARGETS: [&str; 7] = [
    "request_head",
    "response_head",
    "chunked",
    "journal_record",
    "journal_recovery",
    "event",
    "policy",
];

/// What makes the compiler report coverage to libFuzzer; all of it is stable. Without a sanitizer of
/// memory, which needs nightly and finds little in a workspace without unsafe code.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// V-1, S-2, S-6, J-1, J-6, J-7, V-2: no input breaks a property. `AFFIANT_FUZZ_SECONDS` for each target
/// (60). What is found stays in the folder that is printed; with its fix it goes into the corpus.
#[test]
#[ignore = "long: a build with coverage, then a minute for each target"]
fn no_input_breaks_a_property() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    // With a target named, build scripts and macros are built without coverage.
    let status = Command::new(cargo)
        .args(["build", "--locked", "-p", "affiant-fuzz", "--features", "fuzzing", "--bins"])
        .args(["--target", host, "--target-dir"])
        .arg(&built)
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
        .current_dir(own)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let seconds = std::env::var("AFFIANT_FUZZ_SECONDS").unwrap_or_else(|_| "60".to_owned());
    let found = tempfile::tempdir().unwrap();
    let mut broken = Vec::new();
    for target in TARGETS {
        let grown = tempfile::tempdir().unwrap();
        let output = Command::new(built.join(host).join("debug").join(target))
            .arg(grown.path())
            .arg(own.join("corpus").join(target))
            .arg(format!("-max_total_time={seconds}"))
            .args(["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/{target}-", found.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let runs = said.lines().find(|line| line.contains("number_of_executed_units"));
        eprintln!("{target}: {}", runs.unwrap_or("no statistics"));
        if !output.status.success() {
            let last: Vec<&str> = said.lines().rev().take(30).collect();
            broken.push(format!(
                "{target}: {}",
                last.into_iter().rev().collect::<Vec<_>>().join("\n")
            ));
        }
    }
    if !broken.is_empty() {
        panic!("inputs in {}:\n{}", found.keep().display(), broken.join("\n\n"));
    }
}
