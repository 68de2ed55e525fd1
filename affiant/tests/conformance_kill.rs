//! The kill matrix: the real binary struck between every two durable transitions of a call, and at
//! every write and sync, by SIGKILL and by disk errors, then restarted and compared with the count at
//! the far end.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

use conformance::kill::{Blow, Point, STAGES, Scene, Stage, Threads, under_way};
use conformance::numbers::seed;
use std::collections::BTreeMap;
use std::path::Path;

/// More points than that are no call any more.
const MOST: u32 = 24;

fn stage(scene: Scene) -> Stage {
    Stage::new(Path::new(env!("CARGO_BIN_EXE_affiant")), scene).unwrap()
}

/// Strikes at the 1st, 2nd, ... of the calls until the call outlives them; gives how many hit.
fn every(scene: Scene, threads: Threads, calls: &'static str, blow: Blow) -> u32 {
    let mut stage = stage(scene);
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for nth in 1..=MOST {
        let strike = stage.strike(Point { threads, calls, nth, blow }).unwrap();
        assert_eq!(strike.findings, Vec::<String>::new(), "{scene:?} {calls} {nth} {blow:?}");
        if !strike.hit {
            let hits = nth - 1;
            eprintln!("{scene:?} {threads:?} {calls} {blow:?}: {hits} points, {outcomes:?}");
            return hits;
        }
        *outcomes.entry(format!("{:?}", strike.outcome)).or_default() += 1;
    }
    panic!("{scene:?}: the call still writes after {MOST} {calls}");
}

const HELD: Scene = Scene::Http { tls: false, streamed: false };
const STREAMED: Scene = Scene::Http { tls: false, streamed: true };
const TLS: Scene = Scene::Http { tls: true, streamed: false };
const COMMAND: Scene = Scene::Ssh { streamed: false };
const COMMAND_IN_PARTS: Scene = Scene::Ssh { streamed: true };

/// The transitions of a call that succeeds (J-1).
const TRANSITIONS: [&str; 10] = [
    "ACTION_ACCEPTED",
    "PREFLIGHT_VALIDATED",
    "CREDENTIAL_AUTHORIZED",
    "SETUP_ATTEMPTED",
    "DISPATCH_STARTED",
    "REQUEST_SENT",
    "REMOTE_RESPONSE_STARTED",
    "REMOTE_RESPONSE_COMPLETE",
    "RESULT_COMMITTED",
    "RESULT_DELIVERED",
];

/// Ends the process at every stage of every transition; every place is reached, and what is on record
/// is what the last durable transition proves.
fn between_all(scene: Scene) {
    let mut stage = stage(scene);
    for event in TRANSITIONS {
        for at in STAGES {
            // Appended together with RESULT_COMMITTED, by one call.
            if event == "REMOTE_RESPONSE_COMPLETE" && matches!(at, "queue" | "act") {
                continue;
            }
            let strike = stage.fail_at(at, event).unwrap();
            let place = format!("{scene:?} {at}:{event}");
            assert_eq!(strike.findings, Vec::<String>::new(), "{place}");
            // The caller may have its answer before the delivery is on record, and a short command
            // may be over before the end of stdin was passed on.
            let may_miss = event == "RESULT_DELIVERED"
                || event == "REQUEST_SENT" && matches!(scene, Scene::Ssh { .. });
            assert!(strike.hit || may_miss, "{place} was not reached");
            let outcome = strike.outcome.map_or("none", |outcome| outcome.as_str());
            let durable = matches!(at, "tell" | "act");
            let expected: &[&str] = match event {
                "DISPATCH_STARTED" if durable => &["unknown"],
                // Written and not synced: it may be found.
                "DISPATCH_STARTED" if at == "sync" => &["none", "not_attempted", "unknown"],
                "REQUEST_SENT" | "REMOTE_RESPONSE_STARTED" => &["unknown", "committed"],
                "REMOTE_RESPONSE_COMPLETE" | "RESULT_COMMITTED" if durable => &["committed"],
                "REMOTE_RESPONSE_COMPLETE" | "RESULT_COMMITTED" => &["unknown", "committed"],
                "RESULT_DELIVERED" => &["committed"],
                _ => &["none", "not_attempted", "unknown"],
            };
            assert!(expected.contains(&outcome), "{place}: {outcome}, expected {expected:?}");
        }
    }
}

/// X-2, J-7, J-2, M-3: a POST whose response is held.
#[test]
fn x_2_j_7_ended_between_all_transitions_of_a_held_call() {
    between_all(TLS);
}

/// X-2, J-7, J-2: a POST whose response is streamed.
#[test]
fn x_2_j_7_ended_between_all_transitions_of_a_streamed_call() {
    between_all(STREAMED);
}

/// X-2, J-7, J-2: a command.
#[test]
fn x_2_j_7_ended_between_all_transitions_of_a_command() {
    between_all(COMMAND);
}

/// X-2, J-7, J-2: a command whose output comes in parts.
#[test]
fn x_2_j_7_ended_between_all_transitions_of_a_command_in_parts() {
    between_all(COMMAND_IN_PARTS);
}

/// X-2, J-7: a held response; admission, dispatch and result each have a write and a sync at least.
#[test]
fn x_2_j_7_killed_at_every_sync_and_write_of_a_held_call() {
    for scene in [HELD, TLS] {
        let syncs = every(scene, Threads::Writer, "fdatasync", Blow::Kill);
        let writes = every(scene, Threads::Writer, "pwrite64", Blow::Kill);
        assert!(syncs >= 2 && writes >= 2, "{syncs} {writes}");
    }
}

/// X-2, J-7: a streamed response.
#[test]
fn x_2_j_7_killed_at_every_sync_and_write_of_a_streamed_call() {
    let syncs = every(STREAMED, Threads::Writer, "fdatasync", Blow::Kill);
    let writes = every(STREAMED, Threads::Writer, "pwrite64", Blow::Kill);
    assert!(syncs >= 2 && writes >= 2, "{syncs} {writes}");
}

/// X-2, J-7: the same where callers write frames themselves, each on its own thread.
#[test]
fn x_2_j_7_killed_where_a_caller_writes() {
    let places =
        [(HELD, "fdatasync"), (HELD, "pwrite64"), (STREAMED, "fdatasync"), (COMMAND, "fdatasync")];
    for (scene, calls) in places {
        let hits = every(scene, Threads::Segments, calls, Blow::Kill);
        assert!(hits >= 1, "{calls}: {hits}");
    }
}

/// X-2, J-7: a command.
#[test]
fn x_2_j_7_killed_at_every_sync_and_write_of_a_command() {
    let syncs = every(COMMAND, Threads::Writer, "fdatasync", Blow::Kill);
    let writes = every(COMMAND, Threads::Writer, "pwrite64", Blow::Kill);
    assert!(syncs >= 2 && writes >= 2, "{syncs} {writes}");
}

/// between the transitions that are on disk: at every read and write of a socket.
#[test]
fn x_2_killed_at_every_socket_call() {
    for scene in [HELD, STREAMED] {
        let hits = every(
            scene,
            Threads::Named("tokio-rt-worker"),
            "sendto,recvfrom,write,writev",
            Blow::Kill,
        );
        assert!(hits >= 1, "{hits}");
    }
}

/// X-2, J-7, K-10: what `--kills` of the runner does to a release build: calls that wait for their answer,
/// and every scene at a moment of the seed.
#[test]
fn x_2_j_7_killed_under_way_and_at_random_moments() {
    let binary = Path::new(env!("CARGO_BIN_EXE_affiant"));
    let seed = seed();
    eprintln!("CONFORMANCE_SEED={seed}");
    let kills = under_way::affiant(binary, 8, seed).unwrap();
    assert_eq!((kills.kills, kills.lost), (16, 0), "{:#?}", kills.findings);
}

/// X-2, J-7: the index is derived. Killed at its writes and syncs, nothing that the log holds is lost.
#[test]
fn x_2_j_7_killed_while_the_index_is_written() {
    every(HELD, Threads::Named("journal-index"), "fdatasync,pwrite64", Blow::Kill);
}

/// R-6, D-1: a disk that fails once, is full once, or is read-only once. What is not durable is not
/// sent; calls are taken again without a restart.
#[test]
fn r_6_d_1_a_disk_error_at_every_sync_and_write() {
    for (calls, blow) in [
        ("fdatasync", Blow::Eio),
        ("pwrite64", Blow::Eio),
        ("pwrite64", Blow::Enospc),
        ("fdatasync", Blow::Erofs),
        ("pwrite64", Blow::Erofs),
    ] {
        let hits = every(HELD, Threads::Writer, calls, blow);
        assert!(hits >= 2, "{calls} {blow:?}: {hits}");
    }
}

/// R-6, D-1: the same of a command.
#[test]
fn r_6_d_1_a_disk_error_at_every_sync_and_write_of_a_command() {
    for (calls, blow) in [
        ("fdatasync", Blow::Eio),
        ("pwrite64", Blow::Eio),
        ("pwrite64", Blow::Enospc),
        ("pwrite64", Blow::Erofs),
    ] {
        let hits = every(COMMAND, Threads::Writer, calls, blow);
        assert!(hits >= 2, "{calls} {blow:?}: {hits}");
    }
}

/// R-6, D-1: the same where callers write frames themselves.
#[test]
fn r_6_d_1_a_disk_error_where_a_caller_writes() {
    for calls in ["fdatasync", "pwrite64"] {
        let hits = every(HELD, Threads::Segments, calls, Blow::Eio);
        assert!(hits >= 1, "{calls}: {hits}");
    }
}
