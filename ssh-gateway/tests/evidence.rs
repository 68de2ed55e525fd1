//! What is on record of a session beside its outcome: streams, file operations, recordings.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, out, pattern};
use common::{Home, demo_home, within};
use journal::contract::{Body, Digest, InvocationId};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;

/// The details of all notes of a name, as JSON.
fn notes(home: &Home, id: InvocationId, name: &str) -> Vec<Value> {
    let events = home.journal.events(id).unwrap();
    let details = events.into_iter().filter_map(|(_, event)| match event.body {
        Body::Noted(noted) if noted.name == name => Some(noted.detail),
        _ => None,
    });
    details.map(|detail| serde_json::from_str(&detail).unwrap()).collect()
}

/// What is kept of an invocation.
fn kept(home: &Home, id: InvocationId) -> String {
    let mut stored = home.journal.result(id).unwrap();
    String::from_utf8(stored.read_to_end().unwrap()).unwrap()
}

fn sum(text: &str) -> Value {
    json!({ "length_bytes": text.len(), "digest": Digest::of(text.as_bytes()) })
}

/// S-1, S-8: each stream with length and digest, and which facts came before the end.
#[tokio::test]
async fn s_1_s_8_streams_and_what_ended_them_are_on_record() {
    let (home, _target) = demo_home("").await;
    let client = home.client().await;
    let status = |status: u32| json!({ "exit_status": status });
    let cases = [
        ("echo hello", "hello\n", "", true, status(0), true),
        ("warn careful", "", "careful\n", true, status(3), true),
        ("bare hi", "hi\n", "", false, status(0), true),
        ("signal SEGV", "", "", true, json!({ "exit_signal": "SEGV" }), true),
        ("vanish", "", "", false, Value::Null, true),
        ("cut", "first half", "", false, status(0), false),
        ("drop", "", "", false, Value::Null, false),
    ];
    for (command, stdout, stderr, eof, end, close) in cases {
        within(client.exec(command, b"", None)).await.unwrap();
        let id = home.newest().await.id();
        let expected = json!({
            "stdout": sum(stdout), "stderr": sum(stderr), "eof": eof, "end": end, "close": close,
        });
        assert_eq!(notes(&home, id, "SSH_STREAMS"), [expected], "{command}");
    }
}

/// An sftp session: what it did to which file, and how each ended, in order.
#[tokio::test]
async fn sftp_operations_are_on_record() {
    let Some(bench) = Bench::start("").await else { return };
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("here"), pattern(100_000)).unwrap();
    let batch = format!(
        "mkdir {0}/d\nput {0}/here {0}/d/a\nrename {0}/d/a {0}/d/b\nchmod 600 {0}/d/b\n\
         get {0}/d/b {0}/back\n-rm {0}/missing\nsymlink {0}/d/b {0}/d/l\nrm {0}/d/l\n\
         rm {0}/d/b\nrmdir {0}/d\n",
        root.path().display()
    );
    let mut sftp = bench.command("sftp");
    sftp.args(["-b", "-", &format!("{}@t", bench.sshd.user)]).stdin(Stdio::piped());
    let mut child = sftp.spawn().unwrap();
    child.stdin.take().unwrap().write_all(batch.as_bytes()).await.unwrap();
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(std::fs::read(at("back")).unwrap() == pattern(100_000));

    let id = bench.home.newest().await.id();
    let status = "OK";
    let changed = [
        json!({ "op": "mkdir", "path": at("d"), "status": status }),
        json!({ "op": "open", "path": at("d/a"), "access": "write,create,truncate",
            "status": status }),
        json!({ "op": "close", "path": at("d/a"), "read_bytes": 0, "written_bytes": 100_000,
            "status": status }),
        json!({ "op": "rename", "path": at("d/a"), "to": at("d/b"), "status": status }),
        json!({ "op": "setstat", "path": at("d/b"), "set": "mode=600", "status": status }),
        json!({ "op": "open", "path": at("d/b"), "access": "read", "status": status }),
        json!({ "op": "close", "path": at("d/b"), "read_bytes": 100_000, "written_bytes": 0,
            "status": status }),
        json!({ "op": "remove", "path": at("missing"), "status": "NO_SUCH_FILE" }),
        json!({ "op": "symlink", "path": at("d/b"), "to": at("d/l"), "status": status }),
        json!({ "op": "remove", "path": at("d/l"), "status": status }),
        json!({ "op": "remove", "path": at("d/b"), "status": status }),
        json!({ "op": "rmdir", "path": at("d"), "status": status }),
    ];
    let told = notes(&bench.home, id, "SFTP");
    assert_eq!(told, changed);
    let lines: Vec<Value> =
        kept(&bench.home, id).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, told);
    let totals = &notes(&bench.home, id, "SFTP_TOTALS")[0];
    assert_eq!((&totals["operations"], &totals["noted"]), (&json!(12), &json!(12)));
    assert_eq!(
        (&totals["read_bytes"], &totals["written_bytes"]),
        (&json!(100_000), &json!(100_000))
    );
    assert_eq!(totals["whole"], true);
}

/// The journal itself holds the first operations of a session; the rest is counted, and listed in
/// what is kept.
#[tokio::test]
async fn a_long_sftp_session_is_bounded_in_the_journal() {
    let Some(bench) = Bench::start("").await else { return };
    let root = tempfile::tempdir().unwrap();
    let batch: String = (0..150)
        .map(|n| format!("mkdir {0}/{n}\nrmdir {0}/{n}\n", root.path().display()))
        .collect();
    let mut sftp = bench.command("sftp");
    sftp.args(["-q", "-b", "-", &format!("{}@t", bench.sshd.user)]).stdin(Stdio::piped());
    let mut child = sftp.spawn().unwrap();
    child.stdin.take().unwrap().write_all(batch.as_bytes()).await.unwrap();
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let id = bench.home.newest().await.id();
    assert_eq!(notes(&bench.home, id, "SFTP").len(), 200);
    let totals = &notes(&bench.home, id, "SFTP_TOTALS")[0];
    assert_eq!((&totals["operations"], &totals["noted"]), (&json!(300), &json!(200)));
    assert_eq!(kept(&bench.home, id).lines().count(), 300);
}

/// I-4: a file with the credential in it comes over sftp at its length, without the credential.
#[tokio::test]
async fn i_4_sftp_keeps_its_framing_where_a_credential_is_masked() {
    let Some(bench) = Bench::start("").await else { return };
    let key = bench.sshd.directory.path().join("user_key");
    let root = tempfile::tempdir().unwrap();
    let back = root.path().join("back");
    let mut sftp = bench.command("sftp");
    sftp.args(["-q", "-b", "-", &format!("{}@t", bench.sshd.user)]).stdin(Stdio::piped());
    let mut child = sftp.spawn().unwrap();
    let get = format!("get {} {}\n", key.display(), back.display());
    child.stdin.take().unwrap().write_all(get.as_bytes()).await.unwrap();
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (there, here) = (std::fs::read(&key).unwrap(), std::fs::read(&back).unwrap());
    assert_eq!(there.len(), here.len());
    let body: Vec<&str> = std::str::from_utf8(&there).unwrap().lines().skip(2).collect();
    let here = String::from_utf8(here).unwrap();
    for line in &body[..body.len() - 1] {
        assert!(!here.contains(line), "{here}");
    }
    assert!(bench.home.newest().await.evidence().redacted);
}

/// One recorded shell: header, output as events, sizes, and a mark at the end.
async fn shell(bench: &Bench, arguments: &[&str], script: &str) -> (Vec<Value>, String, String) {
    let mut child = bench.ssh(&[arguments, &["t"]].concat()).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).await.unwrap();
    let output = within(child.wait_with_output()).await.unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let id = bench.home.newest().await.id();
    let cast: Vec<Value> =
        kept(&bench.home, id).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: String = cast
        .iter()
        .filter(|event| event[1] == "o")
        .map(|event| event[2].as_str().unwrap())
        .collect();
    let times: Vec<f64> = cast[1..].iter().map(|event| event[0].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let recording = &notes(&bench.home, id, "RECORDING")[0];
    assert_eq!(recording["form"], "asciicast-v2");
    assert_eq!(
        (&recording["kept"], cast.last().unwrap()[2].as_str()),
        (&json!(true), Some("exit status 3"))
    );
    (cast, shown, out(&output))
}

/// A shell is kept as a recording, in a terminal or without one, and with the credential masked.
#[tokio::test]
async fn i_4_a_shell_is_recorded() {
    let Some(bench) = Bench::start("").await else { return };
    let key = bench.sshd.directory.path().join("user_key");
    let script = format!("cat {}\necho sum-$((40 + 2)) caf\u{e9}\nexit 3\n", key.display());
    let (cast, shown, seen) = shell(&bench, &["-tt"], &script).await;
    assert_eq!(shown, seen);
    assert_eq!(
        (&cast[0]["version"], &cast[0]["title"]),
        (&json!(2), &json!(format!("ssh://{}@t:22", bench.sshd.user)))
    );
    assert!(cast[0]["timestamp"].as_u64().unwrap() > 1_700_000_000);
    assert!(shown.contains("sum-42 caf\u{e9}"), "{shown}");
    let text = std::fs::read_to_string(&key).unwrap();
    assert!(!shown.contains(text.lines().nth(2).unwrap()) && shown.contains("[redacted]"));

    let (cast, shown, seen) =
        shell(&bench, &["-T"], "echo out; sleep 0.2; echo err >&2; exit 3\n").await;
    assert_eq!((shown.as_str(), seen.as_str()), ("out\nerr\n", "out\n"));
    assert_eq!(cast[0]["width"], 80);
}
