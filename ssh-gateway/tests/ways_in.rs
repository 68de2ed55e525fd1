//! The ways in beside `ssh -J`, with stock OpenSSH: without a jump, by `ProxyCommand`, and to the
//! gateway itself.

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
use common::{AGENT, envelope, facts, within};
use journal::contract::{Code, Outcome, Phase};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;

/// `ssh 'USER%TARGET'@GATEWAY`: the agent's key says whose session it is.
#[tokio::test]
async fn a_target_is_reached_without_a_jump() {
    let Some(bench) = Bench::start("").await else { return };
    let login = format!("{}%t", bench.sshd.user);
    let key = bench.home.identity.agent_key(AGENT).unwrap();
    let direct = |line: &str| {
        let mut command = bench.command("ssh");
        command.arg("-i").arg(&key).args(["-l", &login, "affiant-gateway", line]);
        command
    };
    let output = within(direct("echo out; echo err >&2; exit 3").output()).await.unwrap();
    assert_eq!((out(&output), err(&output)), ("out\n".to_owned(), "err\n".to_owned()));
    assert_eq!(output.status.code(), Some(3));
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(invocation.accepted().agent.as_deref(), Some(AGENT));
    assert_eq!(invocation.accepted().target, format!("ssh://{}@t:22", bench.sshd.user));
    // Both ways at once, more than a window.
    let bytes = pattern(6_000_000);
    let mut child = direct("cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut writer = child.stdin.take().unwrap();
    let input = bytes.clone();
    let feeding = tokio::spawn(async move { drop(writer.write_all(&input).await) });
    let output = within(child.wait_with_output()).await.unwrap();
    feeding.await.unwrap();
    assert_eq!(digest(&output.stdout), digest(&bytes));
    // A terminal.
    let mut command = direct("tty");
    let output = within(command.arg("-tt").output()).await.unwrap();
    assert!(out(&output).contains("/dev/pts/") || err(&output).contains("tty"), "{output:?}");
    // A target that policy does not know is refused as on any other way.
    let nowhere = format!("{}%nowhere", bench.sshd.user);
    let mut command = bench.command("ssh");
    command.arg("-i").arg(&key).args(["-l", &nowhere, "affiant-gateway", "id"]);
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::TargetNotAllowed);
    assert_eq!(facts(&envelope(&output.stderr)), expected);
    // A key of nobody opens nothing.
    let mut command = bench.command("ssh");
    command.arg("-i").arg(bench.sshd.directory.path().join("user_key"));
    let output = within(command.args(["-l", &login, "affiant-gateway", "id"]).output());
    assert!(err(&output.await.unwrap()).contains("Permission denied"));
}

/// `ProxyCommand ssh -W`, which older set-ups use in place of `ProxyJump`.
#[tokio::test]
async fn a_proxy_command_leads_through() {
    let Some(bench) = Bench::start("").await else { return };
    let through =
        format!("ProxyCommand=ssh -F {} -W %h:%p affiant-gateway", bench.config.display());
    let output = within(bench.ssh(&["-o", &through, "t", "echo in; exit 4"]).output());
    let output = output.await.unwrap();
    assert_eq!((out(&output).as_str(), output.status.code()), ("in\n", Some(4)));
}

/// E-5: the gateway's own commands.
#[tokio::test]
async fn e_5_the_gateway_answers_for_itself() {
    let Some(bench) = Bench::start("").await else { return };
    let own = async |line: &str| {
        let mut command = bench.command("ssh");
        within(command.args(["affiant-gateway", line]).output()).await.unwrap()
    };
    let output = own("inv list --outcome unknown --limit 5").await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["agent"], AGENT);
    assert_eq!(told["target"], "GET /v1/invocations?outcome=unknown&limit=5");
    let output = own("inv result act_01").await;
    assert_eq!((out(&output).as_str(), err(&output).as_str()), ("out\n", "err\n"));
    let output = own("inv show act_missing").await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err(&output), "affiant: NO_SUCH_INVOCATION: it is not here\n");
    let output = own("uname -a").await;
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("ssh -J AGENT@GATEWAY"), "{}", err(&output));
    // What fails while it is asked leaves nobody waiting, and ends no other command.
    let output = own("inv show act_failing").await;
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(255), ""));
    assert_eq!(own("inv list").await.status.code(), Some(0));
    // Nothing of it is an invocation.
    assert_eq!(bench.home.count(), 0);
}

/// One connection to the gateway serves every jump of a client that shares it (ControlMaster on the
/// jump host), and each jump its own commands.
#[tokio::test]
async fn a_shared_connection_to_the_gateway_serves_every_jump() {
    let Some(bench) = Bench::start("").await else { return };
    let socket = bench.home.directory.path().join("jump");
    let config = std::fs::read_to_string(&bench.config).unwrap();
    let shared = format!(
        "Host affiant-gateway\n    ControlMaster auto\n    ControlPath {}\n    \
         ControlPersist 60\n\n{config}",
        socket.display()
    );
    std::fs::write(&bench.config, shared).unwrap();
    // The master that stays behind keeps the streams it was started with.
    let mut first = bench.ssh(&["t", "exit 7"]);
    first.stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(within(first.status()).await.unwrap().code(), Some(7));
    assert!(socket.exists());
    let lines: Vec<String> = (0..4).map(|n| format!("echo {n}")).collect();
    let runs = lines.iter().map(|line| bench.run(line));
    for (n, output) in futures::future::join_all(runs).await.into_iter().enumerate() {
        assert_eq!(out(&output), format!("{n}\n"), "{}", err(&output));
    }
    let mut exit = bench.command("ssh");
    exit.args(["-O", "exit", "affiant-gateway"]);
    within(exit.output()).await.unwrap();
}

/// A target's port is part of its name without a jump: `USER%TARGET:PORT`.
#[tokio::test]
async fn a_target_is_named_with_its_port() {
    let Some(bench) = Bench::start("").await else { return };
    let text = common::policy_text(bench.sshd.address, &bench.sshd.host_key(), "");
    let text = text.replace("{ host = \"t\" }", "{ host = \"t\", port = 2222 }");
    bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
    let key = bench.home.identity.agent_key(AGENT).unwrap();
    let direct = async |place: &str| {
        let login = format!("{}%{place}", bench.sshd.user);
        let mut command = bench.command("ssh");
        command.arg("-i").arg(&key).args(["-l", &login, "affiant-gateway", "echo in"]);
        within(command.output()).await.unwrap()
    };
    let output = direct("t:2222").await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("in\n", Some(0)), "{output:?}");
    let target = format!("ssh://{}@t:2222", bench.sshd.user);
    assert_eq!(bench.home.newest().await.accepted().target, target);
    let output = direct("t").await;
    assert_eq!(facts(&envelope(&output.stderr)).2, Code::TargetNotAllowed);
}

/// ControlMaster on both hops: one connection to the gateway, one inner session, and every command its
/// own connection to the target.
#[tokio::test]
async fn both_hops_can_be_shared() {
    let Some(bench) = Bench::start("").await else { return };
    let root = bench.home.directory.path();
    let config = std::fs::read_to_string(&bench.config).unwrap();
    let shared = format!(
        "Host affiant-gateway t\n    ControlMaster auto\n    ControlPath {}/mux-%n\n    \
         ControlPersist 60\n\n{config}",
        root.display()
    );
    std::fs::write(&bench.config, shared).unwrap();
    let mut first = bench.ssh(&["t", "exit 7"]);
    first.stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(within(first.status()).await.unwrap().code(), Some(7));
    let masters = ["mux-affiant-gateway", "mux-t"].map(|name| root.join(name));
    assert!(masters.iter().all(|master| master.exists()));
    let lines: Vec<String> = (0..6).map(|n| format!("cat; echo {n}; echo e{n} >&2")).collect();
    let runs = lines.iter().map(|line| bench.run_with(line, pattern(300_000)));
    for (n, output) in futures::future::join_all(runs).await.into_iter().enumerate() {
        let expected = [pattern(300_000), format!("{n}\n").into_bytes()].concat();
        assert_eq!(digest(&output.stdout), digest(&expected));
        assert_eq!((err(&output), output.status.code()), (format!("e{n}\n"), Some(0)));
    }
    let filter = journal::Filter { limit: 100, ..journal::Filter::default() };
    let page = bench.home.journal.list(&filter).unwrap();
    let mut connections: Vec<_> =
        page.invocations.iter().filter_map(|one| one.evidence().connection).collect();
    connections.sort_unstable();
    connections.dedup();
    assert_eq!(connections.len(), 7);
    for host in ["t", "affiant-gateway"] {
        let mut exit = bench.command("ssh");
        exit.args(["-O", "exit", host]);
        within(exit.output()).await.unwrap();
    }
}

/// The gateway logs in with keys of every type that OpenSSH makes.
#[tokio::test]
async fn keys_of_every_type_log_in() {
    let Some(bench) = Bench::start("").await else { return };
    let root = bench.sshd.directory.path();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = root.join(format!("user_{kind}"));
        let mut keygen = tokio::process::Command::new("ssh-keygen");
        keygen.args(["-q", "-t", kind, "-N", "", "-f"]).arg(&key);
        assert!(within(keygen.status()).await.unwrap().success());
        std::fs::copy(key.with_added_extension("pub"), root.join("authorized_keys")).unwrap();
        bench.home.policy.set_secret("target-key", &common::secret_file(&key)).unwrap();
        let output = bench.run(&format!("echo {kind}")).await;
        assert_eq!(out(&output), format!("{kind}\n"), "{}", err(&output));
    }
}

/// V-2: a subsystem that the route does not list is refused, and none is started.
#[tokio::test]
async fn v_2_a_subsystem_that_is_not_listed_is_refused() {
    let Some(bench) = Bench::start("").await else { return };
    let output = within(bench.ssh(&["-s", "t", "netconf"]).output()).await.unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(255), ""));
    let told = envelope(&output.stderr);
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::TargetNotAllowed);
    assert_eq!(facts(&told), expected);
    assert!(!told.evidence.dispatch_started);
    assert_eq!(bench.home.newest().await.accepted().action, "subsystem:netconf");
}

/// S-1, D-3: a real sshd refuses what it does not have, and leaves the channel to be closed. The refusal
/// is a complete result, and its client does not wait.
#[tokio::test]
async fn s_1_a_refusal_of_a_target_that_leaves_the_channel_open_is_told() {
    let Some(bench) = Bench::start("").await else { return };
    let key = bench.sshd.host_key();
    let keys =
        format!("host_keys = [\"{key}\"]\ncredential = \"c\"\nallow = [\"subsystem:nosuch\"]");
    bench.apply("ssh-key", &keys);
    let output = within(bench.ssh(&["-s", "t", "nosuch"]).output()).await.unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(255), ""));
    let expected = (Phase::RemoteExecution, Outcome::Rejected, Code::RequestRefused);
    assert_eq!(facts(&envelope(&output.stderr)), expected);
    assert_eq!(facts(&bench.home.newest().await.envelope()), expected);
}
