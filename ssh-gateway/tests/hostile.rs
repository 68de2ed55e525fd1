//! Targets and clients that behave badly, and what becomes of it: by name, in bounded time.

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

use common::openssh::{Bench, Sshd, err, out};
use common::{AGENT, demo_home, demo_home_with, envelope, facts, policy_text, within};
use futures::stream::{self, StreamExt as _};
use journal::contract::{Body, Code, Envelope, Outcome, Phase};
use ssh_gateway::Options;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

/// D-6: each of the 256 exit statuses comes out as it is.
#[tokio::test]
async fn d_6_every_exit_status_is_exact() {
    let (home, _target) = demo_home("repeat_guard = \"off\"").await;
    let client = home.client().await;
    let wrong: Vec<u32> = stream::iter(0..256)
        .map(|status| {
            let client = &client;
            async move {
                let ran = within(client.exec(&format!("exit {status}"), b"", None)).await.unwrap();
                (ran.status != Some(status)).then_some(status)
            }
        })
        .buffer_unordered(8)
        .filter_map(|wrong| async move { wrong })
        .collect()
        .await;
    assert_eq!(wrong, Vec::<u32>::new());
}

/// Signals of the client reach the command, by any name, and come back as what ended it.
#[tokio::test]
async fn a_signal_reaches_the_command() {
    let (home, _target) = demo_home("repeat_guard = \"off\"").await;
    let client = home.client().await;
    for name in ["USR1", "TERM", "INFO@example.test"] {
        let ran = within(client.exec_and_signal("await", name)).await.unwrap();
        assert_eq!((ran.stdout.as_slice(), ran.signal.as_deref()), (&b"begun\n"[..], Some(name)));
        assert_eq!(home.newest().await.verdict().outcome(), Outcome::Committed);
    }
}

/// S-1: an exit status is not the end of the output.
#[tokio::test]
async fn s_1_output_after_the_status_arrives() {
    let (home, _target) = demo_home("").await;
    let ran = within(home.client().await.exec("late", b"", None)).await.unwrap();
    assert_eq!((ran.stdout.as_slice(), ran.status), (&b"all of it\n"[..], Some(0)));
    assert_eq!(home.newest().await.verdict().outcome(), Outcome::Committed);
}

/// X-4, S-8: output after its own end breaks the protocol: unknown.
#[tokio::test]
async fn x_4_output_after_end_of_file_is_unknown() {
    let (home, target) = demo_home("").await;
    let ran = within(home.client().await.exec("beyond", b"", None)).await.unwrap();
    let told = envelope(&ran.stderr);
    let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteProtocolError);
    assert_eq!((facts(&told), target.effects()), (expected, 1));
    assert!(ran.stdout.is_empty());
}

/// a target that never answers the request is given up by the route's time.
#[tokio::test]
async fn x_4_a_target_that_never_answers_is_unknown_in_time() {
    let (home, _target) = demo_home("limits = { response_timeout = \"1s\" }").await;
    let ran = within(home.client().await.exec("silent", b"", None)).await.unwrap();
    let told = envelope(&ran.stderr);
    let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::ReadTimeout);
    assert_eq!(facts(&told), expected);
    assert!(told.evidence.dispatch_started && !told.evidence.response_headers_received);
}

/// D-4: a producer without an end, whose client has left, is read on for a bounded number of bytes.
#[tokio::test]
async fn d_4_an_endless_producer_is_not_read_for_ever() {
    let options = Options { read_on_bytes: 4 << 20, ..Options::default() };
    let (home, _target) = demo_home_with("result = { keep = \"digest\" }", options).await;
    let client = home.client().await;
    within(client.exec_and_leave("flood 4000000000", Duration::from_secs(5), None)).await.unwrap();
    let invocation = home.newest().await;
    let verdict = invocation.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::CallerCancelled));
}

/// `yes | head -1`: the client's closed stdout is not seen, so the route's bound ends it, by name, and
/// ends the producer as well.
#[tokio::test]
async fn an_endless_producer_ends_by_the_routes_bound() {
    let Some(bench) = Bench::start("limits = { output_bytes = \"8MiB\" }").await else { return };
    let mut child = bench.ssh(&["t", "yes"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut line = [0; 2];
    within(stdout.read_exact(&mut line)).await.unwrap();
    drop(stdout);
    let ended = within(child.wait_with_output()).await.unwrap();
    assert_eq!((&line, ended.status.code()), (b"y\n", Some(255)));
    // With its stdout closed OpenSSH shows no stderr either, so only the record says why.
    let verdict = bench.home.newest().await.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::ResultLimit));
    // Finite output behind a closed stdout comes to its own end.
    let mut child = bench.ssh(&["t", "seq 600000; exit 3"]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(within(child.wait()).await.unwrap().code(), Some(3));
}

/// A place that leads to one target or another, and takes its time.
#[derive(Clone)]
struct Detour {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
}

impl Detour {
    async fn start(to: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = Arc::new(Mutex::new(to));
        let place = Arc::clone(&to);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let to = *place.lock().unwrap();
                tokio::spawn(async move {
                    // The delay is the case: a target that is slow to answer.
                    tokio::time::sleep(delay).await;
                    let mut far = TcpStream::connect(to).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
                });
            }
        });
        Self { address, to }
    }

    fn lead_to(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
    }
}

/// C-1: a target that shows another key on the next call gets nothing of it.
#[tokio::test]
async fn c_1_a_host_key_that_changes_between_calls_is_refused() {
    let Some(bench) = Bench::start("").await else { return };
    let Some(other) = Sshd::start_with("").await else { return };
    let detour = Detour::start(bench.sshd.address, Duration::ZERO).await;
    let text = policy_text(detour.address, &bench.sshd.host_key(), "repeat_guard = \"off\"");
    bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
    assert_eq!(out(&bench.run("echo in").await), "in\n");
    detour.lead_to(other.address);
    let refused = bench.run("echo in").await;
    let expected = (Phase::ConnectionSetup, Outcome::NotAttempted, Code::HostKeyMismatch);
    assert_eq!((facts(&envelope(&refused.stderr)), out(&refused)), (expected, String::new()));
    assert!(!other.log().contains("Accepted"), "{}", other.log());
    detour.lead_to(bench.sshd.address);
    assert_eq!(out(&bench.run("echo in").await), "in\n");
}

/// stdin that comes while the target is still being reached waits for it, all of it.
#[tokio::test]
async fn early_stdin_waits_for_a_slow_target() {
    let Some(bench) = Bench::start("").await else { return };
    let detour = Detour::start(bench.sshd.address, Duration::from_secs(1)).await;
    let text = policy_text(detour.address, &bench.sshd.host_key(), "");
    bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
    let bytes = common::openssh::pattern(500_000);
    let output = bench.run_with("cat", bytes.clone()).await;
    assert!(output.stdout == bytes, "{}", err(&output));
}

/// Clients that are killed at any point of their way in leave nothing behind that disturbs others.
#[tokio::test]
async fn clients_killed_while_connecting_do_no_harm() {
    let Some(bench) = Bench::start("repeat_guard = \"off\"").await else { return };
    for step in 0..12 {
        let mut child = bench.ssh(&["t", "sleep 0.2"]).spawn().unwrap();
        // Another point of the way in each time.
        tokio::time::sleep(Duration::from_millis(40 * step)).await;
        child.kill().await.unwrap();
    }
    assert_eq!(out(&bench.run("echo in").await), "in\n");
}

/// A client whose process is stopped counts as gone after its keepalives, and its command settles.
#[tokio::test]
async fn a_frozen_client_counts_as_gone() {
    let options = Options {
        keepalive_interval: Duration::from_millis(300),
        keepalive_max: 2,
        ..Options::default()
    };
    let extra = "result = { keep = \"digest\" }";
    let Some(bench) = Bench::start_with(extra, "", options).await else { return };
    let mut child = bench.ssh(&["t", "echo begun; sleep 1; seq 9"]).spawn().unwrap();
    let mut begun = [0; 6];
    within(child.stdout.take().unwrap().read_exact(&mut begun)).await.unwrap();
    let stopped = signal(child.id().unwrap(), "STOP").await;
    let jump = bench.home.newest_now().id();
    bench.home.has_event(jump, "DELIVERY_FAILED").await;
    assert_eq!(bench.home.settled(jump).await.verdict().outcome(), Outcome::Committed);
    assert!(stopped);
    signal(child.id().unwrap(), "CONT").await;
    child.kill().await.unwrap();
}

/// A client that answers keepalives and takes no output counts as gone after its time: the result is
/// read to the end, the record says why it was not handed over, and the cut output has no status.
#[tokio::test]
async fn a_client_that_takes_no_output_counts_as_gone() {
    let options = Options { client_stall: Duration::from_secs(1), ..Options::default() };
    let extra = "result = { keep = \"digest\" }";
    let Some(bench) = Bench::start_with(extra, "", options).await else { return };
    let length_bytes = 30_000_000;
    let line = format!("head -c {length_bytes} /dev/zero");
    let mut child = bench.ssh(&["t", &line]).spawn().unwrap();
    // Nobody reads on behind the first byte.
    let mut first = [1];
    within(child.stdout.as_mut().unwrap().read_exact(&mut first)).await.unwrap();
    let id = bench.home.newest_now().id();
    bench.home.has_event(id, "DELIVERY_FAILED").await;
    let invocation = bench.home.settled(id).await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(invocation.evidence().response_bytes, Some(length_bytes));
    let events = bench.home.journal.events(id).unwrap();
    let notes: Vec<(String, String)> = events
        .into_iter()
        .filter_map(|(_, event)| match event.body {
            Body::Noted(noted) if noted.name.starts_with("CALLER") => {
                Some((noted.name, noted.detail))
            }
            _ => None,
        })
        .collect();
    let expected = ("CALLER_STALLED", "the client took no output for too long");
    assert_eq!(notes, [(expected.0.to_owned(), expected.1.to_owned())]);
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255), "{}", err(&output));
    assert!((output.stdout.len() as u64) < length_bytes - 1);
}

async fn signal(process: u32, name: &str) -> bool {
    let mut kill = tokio::process::Command::new("kill");
    let status = kill.args([&format!("-{name}"), &process.to_string()]).status();
    within(status).await.unwrap().success()
}

/// A command that is quiet for longer than keepalives take is not cut.
#[tokio::test]
async fn a_quiet_command_outlives_the_keepalives() {
    let options = Options {
        keepalive_interval: Duration::from_millis(200),
        keepalive_max: 2,
        ..Options::default()
    };
    let Some(bench) = Bench::start_with("", "", options).await else { return };
    let output = bench.run("sleep 3; echo ok").await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("ok\n", Some(0)));
}

/// Runs a command that does not get as far as the target.
async fn set_up_failed(bench: &Bench) -> Envelope {
    let told = envelope(&bench.run("id").await.stderr);
    let (phase, outcome, _) = facts(&told);
    assert_eq!((phase, outcome), (Phase::ConnectionSetup, Outcome::NotAttempted));
    told
}

/// C-1: a target that can do nothing safe gets no login.
#[tokio::test]
async fn c_1_a_target_with_old_algorithms_only_is_not_attempted() {
    let old = "MACs hmac-sha1\nCiphers aes128-ctr";
    let Some(bench) = Bench::start_with("", old, Options::default()).await else { return };
    set_up_failed(&bench).await;
    assert!(!bench.sshd.log().contains("Accepted"));
}

/// C-1: a name that leads nowhere (RFC 6761 section 6.4) is a failed setup, by its stage.
#[tokio::test]
async fn c_1_a_name_that_leads_nowhere_is_not_attempted() {
    let (home, target) = demo_home("").await;
    let text = policy_text(target.address(), &target.host_key(), "");
    let text = text.replace(&target.address().to_string(), "nowhere.invalid:22");
    home.policy.apply(&text, "policy.toml", "test").unwrap();
    let told =
        envelope(&within(home.client().await.exec("echo x", b"", None)).await.unwrap().stderr);
    let (phase, outcome, code) = facts(&told);
    assert_eq!((phase, outcome), (Phase::ConnectionSetup, Outcome::NotAttempted));
    // Without a network the resolver can't tell.
    let codes = [Code::DestinationNotFound, Code::DnsError, Code::DnsTimeout];
    assert!(codes.contains(&code), "{code}");
    assert_eq!(told.evidence.attempts.last().unwrap().stage.as_str(), "resolve");
    assert_eq!(target.effects(), 0);
}

/// C-2: a target that gives no session channel is a failed setup, by its stage.
#[tokio::test]
async fn c_2_a_target_without_sessions_is_not_attempted() {
    let none = "MaxSessions 0";
    let Some(bench) = Bench::start_with("", none, Options::default()).await else { return };
    let attempts = set_up_failed(&bench).await.evidence.attempts;
    assert_eq!(attempts.last().unwrap().stage, journal::contract::SetupStage::SshChannel);
}

/// The agent's name is not the user's, and a login tried with ten keys gets in by the one that counts.
#[tokio::test]
async fn an_agent_with_ten_keys_gets_in() {
    let Some(bench) = Bench::start("").await else { return };
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("agent");
    let mut agent = common::openssh::agent(&socket).await;
    let mut add = tokio::process::Command::new("ssh-add");
    add.env("SSH_AUTH_SOCK", &socket).arg("-q");
    for n in 0..10 {
        let key = root.path().join(n.to_string());
        common::openssh::keygen(&key).await;
        add.arg(key);
    }
    add.arg(bench.home.identity.agent_key(AGENT).unwrap());
    assert!(within(add.status()).await.unwrap().success());
    // Every key of the agent is offered, the right one last.
    let config = std::fs::read_to_string(&bench.config).unwrap();
    let offered: Vec<&str> =
        config.lines().filter(|line| !line.trim().starts_with("Identit")).collect();
    std::fs::write(&bench.config, offered.join("\n")).unwrap();
    let mut command = bench.ssh(&["t", "echo in"]);
    command.env("SSH_AUTH_SOCK", &socket);
    let output = within(command.output()).await.unwrap();
    assert_eq!(out(&output), "in\n", "{}", err(&output));
    agent.kill().await.unwrap();
}

/// Strict key exchange holds on every leg: of the outer and the inner session, and towards the target.
#[tokio::test]
async fn the_key_exchange_is_strict_on_every_leg() {
    let verbose = "LogLevel DEBUG3";
    let Some(bench) = Bench::start_with("", verbose, Options::default()).await else { return };
    let strict = "will use strict KEX ordering";
    let output = within(bench.ssh(&["-vvv", "t", "echo in"]).output()).await.unwrap();
    assert_eq!(out(&output), "in\n", "{}", err(&output));
    assert_eq!(err(&output).matches(strict).count(), 2, "{}", err(&output));
    assert_eq!(bench.sshd.log().matches(strict).count(), 1, "{}", bench.sshd.log());
}
