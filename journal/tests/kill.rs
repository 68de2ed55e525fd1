//! A real process under load is killed again and again (J-7, X-2).
//!
//! `./dev long j_7_a_process_killed_5000_times` is the long mode.

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
use journal::contract::{InvocationId, Outcome};
use journal::{Journal, verify};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

const DIRECTORY: &str = "AFFIANT_KILL_DIRECTORY";

/// The process that is killed: calls in parallel, and a line for everything that it was promised.
#[test]
#[ignore = "it is the child of the test below and never ends"]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (journal, _) = open(Path::new(&directory));
        let workers: Vec<_> = (0..8).map(|n| tokio::spawn(calls(journal.clone(), n))).collect();
        for worker in workers {
            worker.await.unwrap();
        }
    });
}

async fn calls(journal: Journal, worker: u8) {
    let say = |what: &str, id: InvocationId| {
        let line = format!("\n{what} {id}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    };
    for round in 0_u32.. {
        let mut call = dispatched(&journal, "coder", &format!("{worker} {round}")).await;
        say("dispatched", call.id());
        let body = vec![worker; 10 + (round as usize * 977) % 90_000];
        drop(respond(&mut call, 200, &body).await);
        say("committed", call.id());
    }
}

/// J-7: whatever moment the kill hits, every promise holds after recovery.
#[test]
fn j_7_a_killed_process_keeps_every_promise() {
    killed(200);
}

#[test]
#[ignore = "long: 5,000 kills, half an hour"]
fn j_7_a_process_killed_5000_times_keeps_every_promise() {
    killed(5_000);
}

fn killed(rounds: u64) {
    let mut home = tempfile::tempdir().unwrap();
    let mut promised: HashMap<InvocationId, bool> = HashMap::new();
    let mut total = 0;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(DIRECTORY, home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // From the first moments of a process to well into its second segment.
        let mut left = 1 + (round * 37) % 60;
        // What was printed before the kill was promised, also what is read after it.
        for line in lines {
            let Ok(line) = line else { break };
            if let Some((what, id)) = line.split_once(' ')
                && let Ok(id) = id.parse()
            {
                *promised.entry(id).or_default() |= what == "committed";
                left = left.saturating_sub(1);
                if left == 0 {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        // The next child recovers by itself; here the promises are looked at.
        if round % 4 != 3 {
            continue;
        }
        let (journal, _) = open(home.path());
        for (id, committed) in &promised {
            let found = journal.invocation(*id).unwrap();
            let found = found.unwrap_or_else(|| panic!("round {round}: {id} is lost"));
            assert!(found.is_settled() && found.is_dispatched(), "round {round}: {id}");
            assert_ne!(found.verdict().outcome(), Outcome::NotAttempted);
            if *committed {
                assert_eq!(found.verdict().outcome(), Outcome::Committed);
                let body = content(&journal, *id);
                assert_eq!(Some(body.len() as u64), found.result().map(|kept| kept.length_bytes));
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(journal.close());
        // Old promises are looked at now and then, the newest in every round.
        if (round + 1) % 20 == 0 {
            verify(home.path()).unwrap();
            total += promised.len();
            assert!(promised.values().any(|committed| *committed));
            promised.clear();
        }
        // A new home before the old one fills the disk.
        if (round + 1) % 200 == 0 {
            home = tempfile::tempdir().unwrap();
        }
    }
    println!("{} promises over {rounds} rounds", total + promised.len());
}
