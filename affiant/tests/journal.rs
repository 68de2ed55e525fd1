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
use std::io::{BufRead as _, BufReader};
use support::*;

fn origin() -> Origin {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
    let steps = vec![Step::ReadBody, Step::Apply, Step::Send(answer.into())];
    Origin::start(vec![Script::new("*", steps)], None).unwrap()
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
        failing(fault, By::Writer);
    }
    for fault in ["fdatasync:error=EIO:when=1", "pwrite64:retval=512:when=3"] {
        failing(fault, By::Caller);
    }
}

/// Who writes the frames of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// The thread of the journal: in a process with a single worker.
    Writer,
    /// The caller, as long as it is alone.
    Caller,
}

/// strace, attached to the writer of the journal alone, or to all threads where they touch the
/// segments.
fn strike(server: &Server, home: &Home, fault: &str, by: By) -> Strace {
    let call = fault.split(':').next().unwrap();
    let mut strace = std::process::Command::new("strace");
    strace.args(["-o", "/dev/null", "-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={fault}")]);
    let process = server.child.id();
    match by {
        By::Writer => {
            let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
            let name = |task: &std::fs::DirEntry| {
                std::fs::read_to_string(task.path().join("comm")).unwrap().trim().to_owned()
            };
            let mut tasks = tasks.map(|task| task.unwrap());
            let writer = tasks.find(|task| name(task) == "journal-writer").expect("the writer");
            strace.arg("-p").arg(writer.file_name());
        }
        By::Caller => {
            strace.args(["-f", "-p", &process.to_string()]);
            for segment in 1..4 {
                strace.arg("-P").arg(home.path().join(format!("journal/{segment:08}.seg")));
            }
        }
    }
    let mut child = strace.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    Strace { child, _said: said }
}

/// A running strace. It tells of new threads, so somebody has to listen.
struct Strace {
    child: std::process::Child,
    _said: BufReader<std::process::ChildStderr>,
}

fn failing(fault: &str, by: By) {
    let home = Home::new();
    let origin = origin();
    home.policy(&clear_route("o", origin.address(), ""));
    let server = match by {
        By::Writer => Server::start_by(&home, &["env", "TOKIO_WORKER_THREADS=1"]),
        By::Caller => home.serve(),
    };
    let mut strace = strike(&server, &home, fault, by);
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
    if by == By::Caller {
        // Each thread counts on its own, and new ones come: the fault would not end.
        strace.child.kill().unwrap();
    }
    // Service resumes without a restart.
    eventually("service resumes", || {
        let response = server.curl(&["-d", "a=1", &format!("http://{}/after", origin.address())]);
        response.outcome() == "committed"
    });
    server.kill();
    wait(&mut strace.child, PATIENCE);
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
            // A dispatch whose sync failed can turn up; then it is withdrawn, for no proof was given.
            "not_attempted" => assert_eq!(known, "not_attempted", "{fault}: {id}"),
            _ => assert!(known != "not_attempted", "{fault}: {id}: {known}"),
        }
    }
    assert!(server.terminate().is_some());
    eprintln!("{fault} by {by:?}: {disturbed} of 14 calls were disturbed");
}

/// Verify, checkpoint, export, seal and repair, as an operator uses them.
#[test]
fn j_6_the_log_is_proven_exported_sealed_and_repaired_from_the_command_line() {
    let home = Home::new();
    let origin = origin();
    home.policy(&clear_route("o", origin.address(), ""));
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
    home.policy(&clear_route("o", origin.address(), ""));
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
