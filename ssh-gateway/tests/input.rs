//! Input that nobody takes: its channel ends by name, and the others of the connection go on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, digest, err, out, pattern};
use common::{AGENT, demo_home_with, envelope, facts, within};
use journal::contract::{Code, Outcome, Phase};
use russh::client::Handler;
use russh::keys::PublicKeyOrCertificate;
use russh::{ChannelMsg, Sig};
use ssh_gateway::Options;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// One client connection for all commands.
struct Shared {
    bench: Bench,
    socket: PathBuf,
    _master: Child,
}

impl Shared {
    async fn start(extra: &str, options: Options) -> Option<Self> {
        let extra = format!("repeat_guard = \"off\"\nresult = {{ keep = \"digest\" }}\n{extra}");
        let bench = Bench::start_with(&extra, "", options).await?;
        let socket = bench.home.directory.path().join("mux");
        let mut master = bench.ssh(&["-M", "-N", "-S", socket.to_str().unwrap(), "t"]);
        let master = master.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let there = async {
            while !socket.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(there).await;
        Some(Self { bench, socket, _master: master })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.bench.ssh(&["-S", self.socket.to_str().unwrap(), "t", line]);
        command.stdin(Stdio::piped());
        command
    }

    /// A command that takes nothing of an endless input, for as long as the test: nobody ends what runs on
    /// at the target.
    fn stalled(&self) -> (Child, JoinHandle<()>) {
        let home = self.bench.home.directory.path().display();
        let line = format!("while [ -e {home} ]; do sleep 0.2; done");
        let mut child = self.command(&line).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeding = tokio::spawn(async move {
            let block = vec![b'x'; 64 << 10];
            while stdin.write_all(&block).await.is_ok() {}
        });
        (child, feeding)
    }

    /// Moves 50 MB through a command that takes them all.
    async fn move_50_megabytes(&self) {
        let bytes = pattern(50_000_000);
        let mut child = self.command("sha256sum").spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        within(stdin.write_all(&bytes)).await.unwrap();
        drop(stdin);
        let output = within(child.wait_with_output()).await.unwrap();
        assert_eq!(out(&output), format!("{}  -\n", digest(&bytes)), "{}", err(&output));
    }
}

/// Two commands over one connection whose input nobody takes: another one's 50 MB arrive meanwhile, in a
/// time in which a connection that is slowed down moves a fifth of them, and neither is ended for it.
#[tokio::test]
async fn stalled_input_leaves_its_neighbours_their_rate() {
    let Some(shared) = Shared::start("", Options::default()).await else { return };
    let stalled = [shared.stalled(), shared.stalled()];
    shared.move_50_megabytes().await;
    for (mut child, feeding) in stalled {
        assert_eq!(child.try_wait().unwrap(), None, "a stalled command was ended");
        child.kill().await.unwrap();
        feeding.abort();
    }
}

/// Resident memory of this process, which the gateway is part of.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Ten commands whose endless input nobody takes, all over one connection, and a neighbour that moves 50 MB
/// meanwhile: each holds its 4 MiB and what it had been granted, 24 MiB at the very most.
#[tokio::test]
async fn ten_stalled_inputs_take_little_memory() {
    let Some(shared) = Shared::start("", Options::default()).await else { return };
    let before = resident_bytes();
    let stalled: Vec<_> = (0..10).map(|_| shared.stalled()).collect();
    shared.move_50_megabytes().await;
    // Less the neighbour's own bytes, which are of this test.
    let grown = resident_bytes().saturating_sub(before + 50_000_000);
    eprintln!("ten stalled inputs: {} MiB", grown >> 20);
    assert!(grown < 300 << 20, "{} MiB", grown >> 20);
    for (mut child, feeding) in stalled {
        assert_eq!(child.try_wait().unwrap(), None, "a stalled command was ended");
        child.kill().await.unwrap();
        feeding.abort();
    }
}

/// Input that a target does not take ends its own command after the route's idle time: told, and on
/// record. The connection goes on.
#[tokio::test]
async fn input_that_nobody_takes_ends_by_name() {
    let extra = "limits = { idle_timeout = \"1s\" }";
    let Some(shared) = Shared::start(extra, Options::default()).await else { return };
    let (child, _feeding) = shared.stalled();
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    let told = envelope(&output.stderr);
    assert_eq!(
        facts(&told),
        (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteOutcomeUnknown)
    );
    assert!(told.error.message.contains("took no input"), "{}", told.error.message);
    let record = shared.bench.home.settled(told.invocation_id).await;
    assert_eq!(record.verdict(), told.error.verdict);
    let mut next = shared.command("echo alive");
    assert_eq!(out(&within(next.stdin(Stdio::null()).output()).await.unwrap()), "alive\n");
}

struct Trusting;

impl Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }
}

/// Signals wait like input, and count: a client that sends them without an end is ended by name.
#[tokio::test]
async fn signals_that_wait_are_bounded() {
    let options = Options { stdin_spool_bytes: 64 << 10, ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let stream = tokio::net::TcpStream::connect(home.address).await.unwrap();
    let config = Arc::new(russh::client::Config::default());
    let mut session =
        within(russh::client::connect_stream(config, stream, Trusting)).await.unwrap();
    let login = session.authenticate_password("root%t", home.token.as_str());
    assert!(within(login).await.unwrap().success(), "{AGENT}");
    let channel = within(session.channel_open_session()).await.unwrap();
    let (mut read, write) = channel.split();
    write.exec(true, "sleep 30000").await.unwrap();
    let flooding = tokio::spawn(async move {
        // As much as makes the target's side wait.
        drop(
            tokio::time::timeout(Duration::from_secs(2), write.data_bytes(vec![0; 4 << 20])).await,
        );
        while write.signal(Sig::USR1).await.is_ok() {}
    });
    let mut said = Vec::new();
    let ended = async {
        while let Some(message) = read.wait().await {
            if let ChannelMsg::ExtendedData { data, .. } = message {
                said.extend_from_slice(&data);
            }
        }
    };
    within(ended).await;
    flooding.abort();
    let told = envelope(&said);
    assert_eq!(told.error.verdict.outcome(), Outcome::Unknown);
    assert!(told.error.message.contains("More input came"), "{}", told.error.message);
}
