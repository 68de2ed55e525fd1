//! What happens to a command between its request and its dispatch, while the target is slow.

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

use common::openssh::Bench;
use common::{AGENT, Home, demo_home_with, envelope, facts, within};
use journal::contract::{Body, Code, Digest, Outcome, Phase};
use ssh_gateway::Options;
use ssh_gateway::demo::Target;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The way to a target, closed at first: connections are taken, and go no further.
struct Gate {
    way: watch::Sender<Way>,
    taken: watch::Receiver<usize>,
}

impl Gate {
    async fn taken(&mut self, count: usize) {
        within(self.taken.wait_for(|taken| *taken >= count)).await.unwrap();
    }
}

/// What becomes of connections.
#[derive(Clone, Copy)]
enum Way {
    /// They wait.
    Closed,
    /// The first is closed, the others wait.
    FirstDropped,
    /// They reach the target.
    Open,
}

/// The demo target behind a gate.
async fn gated(options: Options) -> (Home, Target, Gate) {
    let (home, target) = demo_home_with("", options).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let text = common::policy_text(address, &target.host_key(), "");
    home.policy.apply(&text, "policy.toml", "test").unwrap();
    let (way, ways) = watch::channel(Way::Closed);
    let (count, taken) = watch::channel(0);
    let behind = target.address();
    tokio::spawn(async move {
        for n in 0.. {
            let (mut near, _) = listener.accept().await.unwrap();
            count.send_modify(|count| *count += 1);
            let mut ways = ways.clone();
            tokio::spawn(async move {
                let decided = ways.wait_for(|way| match way {
                    Way::Closed => false,
                    Way::FirstDropped => n == 0,
                    Way::Open => true,
                });
                // A test that is over opens nothing.
                let Ok(Way::Open) = decided.await.map(|way| *way) else { return };
                let mut far = TcpStream::connect(behind).await.unwrap();
                drop(copy_bidirectional(&mut near, &mut far).await);
            });
        }
    });
    (home, target, Gate { way, taken })
}

fn options(repeat_wait: Duration) -> Options {
    Options { repeat_wait, ..Options::default() }
}

/// V-1, D-1: whose access ends while the connection is set up is not sent.
#[tokio::test]
async fn v_1_an_access_that_ends_during_the_setup_dispatches_nothing() {
    for rotates in [false, true] {
        let (home, target, mut gate) = gated(Options::default()).await;
        let client = home.client().await;
        let id = home.journal.new_id();
        let running = tokio::spawn(async move { client.exec("echo x", b"", Some(id)).await });
        gate.taken(1).await;
        if rotates {
            home.policy.rotate_agent(AGENT).unwrap();
        } else {
            home.policy.remove_agent(AGENT).unwrap();
        }
        gate.way.send_replace(Way::Open);
        let verdict = home.settled(id).await.verdict();
        assert_eq!(
            (verdict.outcome(), verdict.code()),
            (Outcome::NotAttempted, Code::AgentUnauthenticated)
        );
        assert!(!home.events(id).contains(&"DISPATCH_STARTED"));
        drop(within(running).await.unwrap());
        assert_eq!(target.effects(), 0);
    }
}

/// K-11: of equal commands that come at once while the target is slow, one is sent; the others are
/// told which one is under way.
#[tokio::test]
async fn k_11_of_equal_commands_at_once_one_is_sent() {
    let (home, target, mut gate) = gated(options(Duration::from_secs(1))).await;
    let client = home.client().await;
    let first = client.exec("echo x", b"", None);
    tokio::pin!(first);
    tokio::select! {
        ended = &mut first => panic!("{ended:?}"),
        () = gate.taken(1) => {}
    }
    // Nothing of the first was sent, so nothing but the record stands against the others.
    let others = (0..7).map(|_| client.exec("echo x", b"", None));
    let mut named = BTreeSet::new();
    for other in within(futures::future::join_all(others)).await {
        let told = envelope(&other.unwrap().stderr);
        let expected = (Phase::Validation, Outcome::NotAttempted, Code::InDoubtDuplicate);
        assert_eq!(facts(&told), expected);
        named.insert(told.error.follow.unwrap());
    }
    gate.way.send_replace(Way::Open);
    let output = within(first).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.status), (&b"x\n"[..], Some(0)));
    assert_eq!((target.effects(), *gate.taken.borrow()), (1, 1));
    let [id] = named.into_iter().collect::<Vec<_>>()[..] else { panic!("they name several") };
    assert_eq!(home.settled(id).await.verdict().outcome(), Outcome::Committed);
}

/// K-11: equal commands at once, of which the gateway sees the input of one only when it is sent: each
/// other input is another command, an equal one is not.
#[tokio::test]
async fn k_11_equal_commands_at_once_are_told_apart_by_their_input() {
    let (home, target, mut gate) = gated(options(Duration::from_secs(30))).await;
    let client = home.client().await;
    let inputs: Vec<String> = (0..4).map(|n| format!("input {n}")).collect();
    let running = inputs.iter().map(|input| client.exec("cat", input.as_bytes(), None));
    let opening = async {
        gate.taken(1).await;
        gate.way.send_replace(Way::Open);
    };
    let all = async { tokio::join!(futures::future::join_all(running), opening).0 };
    for (input, output) in inputs.iter().zip(within(all).await) {
        let output = output.unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.stdout.as_slice(), output.status),
            (input.as_bytes(), Some(0)),
            "{told}"
        );
    }
    assert_eq!((target.effects(), home.count()), (4, 4));
}

/// K-11: what failed before its dispatch stands against nothing: an equal command that waited for it
/// is sent.
#[tokio::test]
async fn k_11_a_command_that_was_not_attempted_makes_way() {
    let (home, target, mut gate) = gated(options(Duration::from_secs(30))).await;
    let client = home.client().await;
    let commands = async {
        let (first, second) = (client.exec("echo x", b"", None), client.exec("echo x", b"", None));
        tokio::join!(first, second)
    };
    let opening = async {
        gate.taken(1).await;
        gate.way.send_replace(Way::FirstDropped);
        gate.taken(2).await;
        gate.way.send_replace(Way::Open);
    };
    let (both, ()) = within(async { tokio::join!(commands, opening) }).await;
    let mut outputs = [both.0.unwrap(), both.1.unwrap()];
    outputs.sort_by_key(|output| output.status);
    let [output, failed] = outputs;
    assert_eq!(facts(&envelope(&failed.stderr)).1, Outcome::NotAttempted);
    assert_eq!((output.stdout.as_slice(), output.status), (&b"x\n"[..], Some(0)));
    assert_eq!(target.effects(), 1);
}

/// D-4, S-6: a relayed jump that the drain cuts is told and recorded as every call that is, with what went
/// to the target until then.
#[tokio::test]
async fn d_4_a_relayed_jump_that_the_drain_cuts_has_its_counts() {
    let options = Options { drain: Duration::from_millis(100), ..Options::default() };
    let Some(bench) = Bench::start_with("", "", options).await else { return };
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let route = format!(
        "[[ssh]]\nname = \"t\"\nagents = [\"{AGENT}\"]\nmatch = {{ host = \"t\" }}\n\
         address = \"{}\"\nintercept = false\n",
        echo.local_addr().unwrap()
    );
    bench.home.policy.apply(&route, "policy.toml", "test").unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = echo.accept().await.unwrap();
        let (mut from, mut to) = stream.split();
        drop(tokio::io::copy(&mut from, &mut to).await);
    });
    let mut client = bench.command("ssh");
    let mut client =
        client.args(["-W", "t:22", "affiant-gateway"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    within(input.write_all(b"so far")).await.unwrap();
    let mut echoed = [0; 6];
    within(client.stdout.as_mut().unwrap().read_exact(&mut echoed)).await.unwrap();
    let id = bench.home.newest_now().id();
    let (_directory, journal) = bench.home.stop().await;
    let record = journal.invocation(id).unwrap().unwrap();
    assert_eq!(record.verdict().code(), Code::BrokerRestarted);
    let (mut cause, mut sent) = (None, None);
    for (_, event) in journal.events(id).unwrap() {
        match event.body {
            Body::InvocationEnded(ended) => cause = ended.observation.map(|seen| seen.cause),
            Body::Noted(noted) if noted.name == "STDIN_SO_FAR" => sent = Some(noted.detail),
            _ => {}
        }
    }
    let expected = format!("6 {}", Digest::of(b"so far"));
    assert_eq!((cause.as_deref(), sent), (Some("BROKER_STOPPED"), Some(expected)));
    drop(within(client.wait()).await);
}
