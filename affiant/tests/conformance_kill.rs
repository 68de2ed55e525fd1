//! The kill matrix: the real binary struck at every write and sync of a call, by SIGKILL and by EIO,
//! then restarted and compared with the origin's count.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

use conformance::kill::{Blow, Point, Scene, Stage, Threads};
use conformance::pki::Authority;
use std::collections::BTreeMap;
use std::path::Path;

/// More points than that are no call any more.
const MOST: u32 = 24;

/// Strikes at the 1st, 2nd, ... of the calls until the call outlives them; gives how many hit.
fn every(scene: Scene, threads: Threads, calls: &'static str, blow: Blow) -> u32 {
    let authority = Authority::new("struck origins").unwrap();
    let config = authority.leaf(&["127.0.0.1"]).unwrap().server_config().unwrap();
    let identity = scene.tls.then(|| (config, authority.pem()));
    let binary = Path::new(env!("CARGO_BIN_EXE_affiant"));
    let mut stage = Stage::new(binary, scene, identity).unwrap();
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

const HELD: Scene = Scene { tls: false, streamed: false };
const STREAMED: Scene = Scene { tls: false, streamed: true };
const TLS: Scene = Scene { tls: true, streamed: false };

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
    for (scene, calls) in [(HELD, "fdatasync"), (HELD, "pwrite64"), (STREAMED, "fdatasync")] {
        let hits = every(scene, Threads::Segments, calls, Blow::Kill);
        assert!(hits >= 1, "{calls}: {hits}");
    }
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

/// X-2, J-7: the index is derived. Killed at its writes and syncs, nothing that the log holds is lost.
#[test]
fn x_2_j_7_killed_while_the_index_is_written() {
    every(HELD, Threads::Named("journal-index"), "fdatasync,pwrite64", Blow::Kill);
}

/// R-6, D-1: a disk that fails once. What is not durable is not sent; calls are taken again without
/// a restart.
#[test]
fn r_6_d_1_a_disk_error_at_every_sync_and_write() {
    for calls in ["fdatasync", "pwrite64"] {
        let hits = every(HELD, Threads::Writer, calls, Blow::Eio);
        assert!(hits >= 2, "{calls}: {hits}");
        let hits = every(HELD, Threads::Segments, calls, Blow::Eio);
        assert!(hits >= 1, "{calls}: {hits}");
    }
}
