//! The journal of the real binary: failing system calls, and the commands that prove and repair it.

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

use conformance::http::{Origin, Script, Step};
use serde_json::Value;
use std::collections::BTreeMap;
use support::*;

fn origin() -> Origin {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
    let steps = vec![Step::ReadBody, Step::Apply, Step::Send(answer.into())];
    Origin::start(vec![Script::new("*", steps)], None).unwrap()
}

fn policy(origin: &Origin) -> String {
    format!(
        "[[route]]\nname = \"o\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/**\" }}\n",
        origin.address().port()
    )
}

/// J-7, D-1, R-6: `fdatasync`, `pwrite64` and `fallocate` fail under the writer of the running server. What was answered as committed is on record, what was refused before
/// dispatch had no effect, nothing happened twice, service resumes in the same process, and the log
/// verifies.
#[test]
fn j_7_failing_system_calls_break_no_promise() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace is not there");
        return;
    }
    for fault in [
        "fdatasync:error=EIO:when=1",
        "fdatasync:error=EIO:when=2",
        "fdatasync:error=EIO:when=5",
        "pwrite64:error=EIO:when=1",
        "pwrite64:error=ENOSPC:when=4",
        "pwrite64:retval=512:when=3",
        "fallocate:error=ENOSPC",
    ] {
        failing(fault);
    }
}

/// strace on the writer of the journal alone, attached.
fn strike(server: &Server, fault: &str) -> std::process::Child {
    use std::io::{BufRead as _, BufReader};
    let tasks = format!("/proc/{}/task", server.child.id());
    let writer = std::fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap())
        .find(|task| {
            std::fs::read_to_string(task.path().join("comm")).unwrap().trim() == "journal-writer"
        })
        .expect("the writer's thread");
    let thread = writer.file_name().into_string().unwrap();
    let call = fault.split(':').next().unwrap();
    let mut child = std::process::Command::new("strace")
        .args(["-p", &thread, "-o", "/dev/null", "-e", &format!("trace={call}")])
        .args(["-e", &format!("inject={fault}")])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    child
}

fn failing(fault: &str) {
    let home = Home::new();
    let origin = origin();
    home.policy(&policy(&origin));
    let server = home.serve();
    let mut strace = strike(&server, fault);
    let mut answered = BTreeMap::new();
    let mut disturbed = 0;
    for n in 0..14 {
        let url = format!("http://{}/{n}", origin.address());
        let response = server.curl(&["-d", "a=1", &url]);
        let outcome = response.outcome().to_owned();
        disturbed += u32::from(outcome != "committed");
        let effects = origin.effects(&format!("/{n}"));
        match outcome.as_str() {
            "committed" => assert_eq!((response.status, effects), (200, 1), "{fault}: {n}"),
            "not_attempted" => assert_eq!(effects, 0, "{fault}: {n}: {response:?}"),
            "unknown" => assert!(effects <= 1, "{fault}: {n}"),
            other => panic!("{fault}: {n}: {other}"),
        }
        answered.insert(response.invocation(), outcome);
    }
    assert_eq!(disturbed == 0, fault.starts_with("fallocate"), "{fault}: {disturbed}");
    // Service resumes without a restart.
    eventually("service resumes", || {
        let response = server.curl(&["-d", "a=1", &format!("http://{}/after", origin.address())]);
        response.outcome() == "committed"
    });
    server.kill();
    wait(&mut strace, PATIENCE);
    home.ok(&["journal", "verify"]);
    let server = home.serve();
    for (id, outcome) in &answered {
        let record = server.control(&format!("invocations/{id}"));
        let Some(known) = record["error"]["outcome"].as_str() else {
            // Refused before its first record was durable: nothing was sent.
            assert_eq!(outcome, "not_attempted", "{fault}: {id} is lost");
            continue;
        };
        match outcome.as_str() {
            "committed" => assert_eq!(known, "committed", "{fault}: {id}"),
            // A dispatch whose sync failed can turn up after recovery: in doubt, never forgotten.
            "not_attempted" => assert!(known != "committed", "{fault}: {id}: {known}"),
            _ => assert!(known != "not_attempted", "{fault}: {id}: {known}"),
        }
    }
    assert!(server.terminate().is_some());
    eprintln!("{fault}: {disturbed} of 14 calls were disturbed");
}

/// Verify, checkpoint, export, seal and repair, as an operator uses them.
#[test]
fn j_6_the_log_is_proven_exported_sealed_and_repaired_from_the_command_line() {
    let home = Home::new();
    let origin = origin();
    home.policy(&policy(&origin));
    let identity = home.path().join("identity");
    let identity = identity.to_str().unwrap();
    home.ok(&["journal", "seal", "init", "--identity", identity]);
    let server = home.serve();
    let url = format!("http://{}/a", origin.address());
    assert_eq!(server.curl(&["-d", "a=1", &url]).outcome(), "committed");
    // Beside the running server.
    let note = home.ok(&["journal", "checkpoint"]);
    let file = home.path().join("note");
    std::fs::write(&file, &note).unwrap();
    let file = file.to_str().unwrap();
    let lines = home.ok(&["journal", "export"]);
    let records: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[0]["event"]["event"], "ACTION_ACCEPTED");
    assert_eq!(records[0]["sequence"], 1);
    assert!(!lines.contains("done"), "no content of results");
    let since = records.last().unwrap()["sequence"].as_u64().unwrap() + 1;
    assert_eq!(server.curl(&["-d", "a=2", &url]).outcome(), "committed");
    let later = home.ok(&["journal", "export", "--since", &since.to_string()]);
    assert!(later.contains("RESULT_COMMITTED"));
    let whole = home.ok(&["journal", "verify", "--checkpoint", file]);
    assert!(whole.contains("everything up to the checkpoint is there"), "{whole}");
    let refused = home.run(&["journal", "repair"]);
    assert!(text(&refused.stderr).contains("another process uses"), "{refused:?}");
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(
        home.ok(&["journal", "seal", "open", "--identity", identity]),
        home.ok(&["journal", "export"])
    );
    assert!(home.ok(&["journal", "repair"]).contains("nothing to repair"));

    // A flipped bit in the first record.
    let segment = home.path().join("journal/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4096 + 300] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let found = home.run(&["journal", "verify"]);
    assert_eq!(found.status.code(), Some(1));
    assert!(text(&found.stderr).contains("segment 1, offset 4096"), "{found:?}");
    assert_eq!(home.run(&["journal", "repair"]).status.code(), Some(1));
    let done = home.ok(&["journal", "repair", "--yes"]);
    assert!(done.contains("removed-"), "{done}");
    home.ok(&["journal", "verify"]);
    let cut = home.run(&["journal", "verify", "--checkpoint", file]);
    assert!(text(&cut.stderr).contains("truncated") || text(&cut.stderr).contains("replaced"));
    let server = home.serve();
    assert_eq!(server.curl(&["-d", "a=3", &url]).outcome(), "committed");
    assert_eq!(server.terminate(), Some(0));
}

/// An ordinary stop is no news: nothing is said at the level of warnings or errors.
#[test]
fn an_ordinary_stop_is_quiet() {
    let home = Home::new();
    let origin = origin();
    home.policy(&policy(&origin));
    for _ in 0..2 {
        let log = tempfile::NamedTempFile::new().unwrap();
        let script = format!("exec \"$@\" 2>{}", log.path().display());
        let server = Server::start_by(&home, &["sh", "-c", &script, "sh"]);
        let url = format!("http://{}/a", origin.address());
        assert_eq!(server.curl(&["-d", "a=1", &url]).outcome(), "committed");
        assert_eq!(server.terminate(), Some(0));
        let said = std::fs::read_to_string(log.path()).unwrap();
        assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    }
}
