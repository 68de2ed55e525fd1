//! What is open when an agent is removed or gets a new token ends, with stock OpenSSH: no input that
//! comes after it reaches the target, and the record says why.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, err};
use common::{AGENT, envelope, facts, within};
use journal::contract::{Body, Code, Outcome, Phase};
use policy::Policy;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

/// What ends a login.
const CHANGES: [fn(&Policy); 2] = [
    |policy| policy.remove_agent(AGENT).unwrap(),
    |policy| drop(policy.rotate_agent(AGENT).unwrap()),
];

/// Starts a client, and waits until what it began has said a word.
async fn begun(mut command: Command, first: &str) -> (Child, ChildStdin) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    within(stdin.write_all(first.as_bytes())).await.unwrap();
    let stdout = child.stdout.as_mut().unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("begun") {
        said.push(within(stdout.read_u8()).await.unwrap());
    }
    (child, stdin)
}

/// The names of the notes on the newest invocation that say who went.
async fn gone(bench: &Bench) -> Vec<String> {
    let id = bench.home.newest().await.id();
    let notes = bench.home.journal.events(id).unwrap().into_iter();
    let names = notes.filter_map(|(_, event)| match event.body {
        Body::Noted(noted) => Some(noted.name),
        _ => None,
    });
    let who = ["CALLER_GONE", "CALLER_STALLED", "LOGIN_OVER"];
    names.filter(|name| who.contains(&name.as_str())).collect()
}

async fn appears(path: &Path) {
    let there = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(there).await;
}

/// V-1: the next line to an open shell is not run; the shell ends, and its client is told why.
#[tokio::test]
async fn v_1_an_open_shell_takes_no_input_after_its_login() {
    for change in CHANGES {
        let Some(bench) = Bench::start("").await else { return };
        let marker = bench.home.directory.path().join("ran");
        let (child, mut stdin) = begun(bench.ssh(&["-T", "t"]), "echo begun\n").await;
        change(&bench.home.policy);
        drop(stdin.write_all(format!("touch {}\n", marker.display()).as_bytes()).await);
        let output = within(child.wait_with_output()).await.unwrap();
        assert_eq!(output.status.code(), Some(255), "{}", err(&output));
        let told = envelope(&output.stderr);
        let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteOutcomeUnknown);
        assert_eq!(facts(&told), expected);
        assert!(told.error.message.contains("has a new token"), "{}", told.error.message);
        assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
        assert!(!marker.exists());
    }
}

/// V-1: a terminal that says nothing ends as well, also where the route's commands end by a signal.
#[tokio::test]
async fn v_1_a_silent_terminal_ends_with_its_login() {
    for extra in ["", "kill_on_cancel = true"] {
        let Some(bench) = Bench::start(extra).await else { return };
        let (child, stdin) = begun(bench.ssh(&["-tt", "t"]), "echo be''gun\n").await;
        CHANGES[0](&bench.home.policy);
        let output = within(child.wait_with_output()).await.unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(255), "{}", err(&output));
        let verdict = bench.home.newest().await.verdict();
        let expected = (Outcome::Unknown, Code::RemoteOutcomeUnknown);
        assert_eq!((verdict.outcome(), verdict.code()), expected);
        assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
    }
}

/// V-1: an sftp session that is open changes nothing more.
#[tokio::test]
async fn v_1_an_open_sftp_session_changes_nothing_after_its_login() {
    let Some(bench) = Bench::start("").await else { return };
    let root = bench.home.directory.path();
    let [before, after] = ["before", "after"].map(|name| root.join(name));
    let mut sftp = bench.command("sftp");
    sftp.args(["-b", "-", &format!("{}@t", bench.sshd.user)]).stdin(Stdio::piped());
    let mut child = sftp.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("mkdir {}\n", before.display()).as_bytes()).await.unwrap();
    appears(&before).await;
    CHANGES[0](&bench.home.policy);
    drop(stdin.write_all(format!("mkdir {}\n", after.display()).as_bytes()).await);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255), "{}", err(&output));
    assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
    assert!(!after.exists());
}

/// V-1: a forwarding passes nothing more on, and ends by itself.
#[tokio::test]
async fn v_1_a_forwarding_ends_with_its_login() {
    let Some(bench) = Bench::start("").await else { return };
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = origin.local_addr().unwrap().to_string();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = origin.accept().await.unwrap();
        stream.write_all(b"begun").await.unwrap();
        let mut taken = Vec::new();
        drop(stream.read_to_end(&mut taken).await);
        tell.send(taken).unwrap();
    });
    let route = format!(
        "host_keys = [\"{}\"]\ncredential = \"c\"\nallow = [\"forward\"]\nforward_to = [\"{place}\"]",
        bench.sshd.host_key()
    );
    bench.apply("ssh-key", &route);
    let (child, mut stdin) = begun(bench.ssh(&["-W", &place, "t"]), "").await;
    CHANGES[1](&bench.home.policy);
    drop(stdin.write_all(b"after").await);
    assert_eq!(within(told).await.unwrap(), b"");
    within(child.wait_with_output()).await.unwrap();
    let verdict = bench.home.newest().await.verdict();
    let expected = (Outcome::Unknown, Code::RemoteOutcomeUnknown);
    assert_eq!((verdict.outcome(), verdict.code()), expected);
    assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
}

/// V-1: a jump that is relayed as it is ends, too.
#[tokio::test]
async fn v_1_a_relayed_jump_ends_with_its_login() {
    let Some(bench) = Bench::start("").await else { return };
    bench.apply("ssh-key", "intercept = false");
    let marker = bench.home.directory.path().join("ran");
    let key = bench.sshd.directory.path().join("user_key");
    let mut command = bench.ssh(&["-T", "-o", "StrictHostKeyChecking=no", "-o"]);
    command.args(["UserKnownHostsFile=/dev/null", "-o", "PubkeyAuthentication=yes", "-i"]);
    command.arg(&key).arg("t");
    let (child, mut stdin) = begun(command, "echo begun\n").await;
    CHANGES[0](&bench.home.policy);
    drop(stdin.write_all(format!("touch {}\n", marker.display()).as_bytes()).await);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255), "{}", err(&output));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Unknown);
    assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
    assert!(!marker.exists());
}

/// V-1, D-4: a command takes no more input and its client gets no more output; what it did is read to
/// its end and on record.
#[tokio::test]
async fn v_1_d_4_a_command_is_read_to_its_end_without_its_login() {
    let Some(bench) = Bench::start("").await else { return };
    let taken = bench.home.directory.path().join("taken");
    let line = format!("echo begun; cat > {}; echo unseen; exit 3", taken.display());
    let (child, mut stdin) = begun(bench.ssh(&["t", &line]), "").await;
    CHANGES[0](&bench.home.policy);
    drop(stdin.write_all(b"after\n").await);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255), "{}", err(&output));
    assert!(err(&output).contains("The login of this connection is over"), "{}", err(&output));
    assert!(!output.stdout.windows(6).any(|bytes| bytes == b"unseen"));
    let invocation = bench.home.newest().await;
    bench.home.has_event(invocation.id(), "DELIVERY_FAILED").await;
    let verdict = invocation.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Committed, Code::RemoteFailed));
    assert_eq!(invocation.evidence().response_bytes, Some(13));
    assert_eq!(gone(&bench).await, ["LOGIN_OVER"]);
    assert_eq!(std::fs::read(&taken).unwrap(), b"");
}
