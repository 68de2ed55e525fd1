//! The real binary, killed at every sync and write of an SSH command, started again and compared with
//! what the command did (contract X-2).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

mod support;
#[path = "support/ssh.rs"]
mod target;

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::*;
use target::Bench;

/// More points than that are no command any more.
const MOST: u32 = 24;

/// strace on the threads of one name, which kills the process at the n-th of the calls.
fn tracer(process: u32, thread: &str, calls: &str, nth: u32) -> Child {
    let mut command = Command::new("strace");
    command.args(["-o", "/dev/null", "-e", &format!("trace={calls}")]);
    command.args(["-e", &format!("inject={calls}:signal=SIGKILL:when={nth}")]);
    let mut threads = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let path = task.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).unwrap_or_default().trim() == thread {
            command.arg("-p").arg(path.file_name().unwrap());
            threads += 1;
        }
    }
    assert!(threads > 0, "no thread {thread}");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..threads {
        let line = lines.next().expect("strace says that it attached").unwrap();
        assert!(line.contains("attached"), "{line}");
    }
    child
}

/// One command, struck; then a restart and the comparison. Whether it was hit, and what is on record.
fn strike(bench: &mut Bench, number: u32, thread: &str, calls: &str, nth: u32) -> (bool, String) {
    let marker = bench.home.path().join(format!("effects-{number}"));
    std::fs::write(&marker, "").unwrap();
    let effects = || std::fs::read_to_string(&marker).unwrap().lines().count();
    let id = format!("act_01ARZ3NDEKTSV4RRFFQ69G{number:04}");
    let set = format!("SetEnv=AFFIANT_INVOCATION={id}");
    let line = format!("echo x >> {}; echo done", marker.display());
    assert!(finish(bench.ssh(&[], "true"), b"").status.success());

    let mut tracer = tracer(bench.server.child.id(), thread, calls, nth);
    let told = finish(bench.ssh(&["-o", &set], &line), b"");
    let end = Instant::now() + Duration::from_millis(500);
    let mut hit = false;
    while !hit && Instant::now() < end {
        hit = bench.server.child.try_wait().unwrap().is_some();
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(tracer.kill());
    tracer.wait().unwrap();
    if !hit {
        bench.server.child.kill().unwrap();
        bench.server.child.wait().unwrap();
    }
    bench.server = bench.home.serve();

    let shown = bench.home.run(&["inv", "show", &id, "--json"]);
    let record: Option<Value> = serde_json::from_slice(&shown.stdout).ok();
    let outcome = record
        .as_ref()
        .map_or("none", |record| record["error"]["outcome"].as_str().unwrap())
        .to_owned();
    let at = format!("{calls} {nth}: {outcome}, told {told:?}");
    match outcome.as_str() {
        "none" | "not_attempted" => assert_eq!(effects(), 0, "J-7: {at}"),
        "committed" => assert_eq!(effects(), 1, "J-7: {at}"),
        other => assert_eq!(other, "unknown", "J-2: {at}"),
    }
    if told.status.code() == Some(0) {
        assert_eq!(
            (outcome.as_str(), text(&told.stdout).as_str()),
            ("committed", "done\n"),
            "{at}"
        );
    }
    assert!(record.is_none_or(|record| record["state"] == "settled"), "J-2: {at}");
    // K-10: the same id never acts a second time.
    finish(bench.ssh(&["-o", &set], &line), b"");
    assert!(effects() <= 1, "K-10: {at}");
    (hit, outcome)
}

/// Strikes at the 1st, 2nd, ... of the calls until the command outlives them; gives how many hit.
fn every(first: u32, thread: &str, calls: &str) -> u32 {
    let mut bench = Bench::new();
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for nth in 1..=MOST {
        let (hit, outcome) = strike(&mut bench, first + nth, thread, calls, nth);
        if !hit {
            bench.home.ok(&["journal", "verify"]);
            eprintln!("{thread} {calls}: {} points, {outcomes:?}", nth - 1);
            return nth - 1;
        }
        *outcomes.entry(outcome).or_default() += 1;
    }
    panic!("a command still has {calls} after {MOST}");
}

/// X-2, J-7 over SSH: between any two durable transitions.
#[test]
fn x_2_j_7_killed_at_every_sync_of_a_command() {
    let hits = every(0, "journal-writer", "fdatasync");
    assert!(hits >= 2, "{hits}");
}

/// X-2, J-7 over SSH: at every write of the log, and at every call on a socket.
#[test]
#[ignore = "long: dozens of restarts"]
fn x_2_j_7_killed_at_every_write_and_socket_call_of_a_command() {
    let writes = every(100, "journal-writer", "pwrite64");
    assert!(writes >= 2, "{writes}");
    let hits = every(200, "tokio-rt-worker", "sendto,writev,write");
    assert!(hits >= 1, "{hits}");
}
