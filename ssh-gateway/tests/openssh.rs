//! Stock OpenSSH on both sides: `ssh`, `scp` and `sftp` through the gateway to a real `sshd`, with
//! nothing configured but the lines of `ssh_gateway::client_config`.
//!
//! Needs `ssh`, `ssh-keygen` and `sshd` (Debian: openssh-client, openssh-server). Without them each
//! case says so and passes: there is nothing to test against.

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

use common::openssh::{Bench, digest, err, keygen, out, pattern};
use common::{AGENT, envelope, facts, within};
use journal::contract::{Code, Outcome, Phase, SignalName, SshEnd};
use ssh_gateway::Options;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// D-3, S-1: statuses, streams and signal pass unchanged, through `ProxyJump` of the configuration.
#[tokio::test]
async fn s_1_status_streams_and_signal_pass_unchanged() {
    let Some(bench) = Bench::start("").await else { return };
    for status in [0, 1, 3, 127, 255] {
        let output = bench.run(&format!("echo out; echo err >&2; exit {status}")).await;
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
        assert_eq!((out(&output).as_str(), err(&output).as_str()), ("out\n", "err\n"));
        let invocation = bench.home.newest().await;
        assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
        let status = u32::try_from(status).unwrap();
        assert_eq!(invocation.evidence().ssh_end, Some(SshEnd::ExitStatus(status)));
    }
    let output = bench.run("kill -9 $$").await;
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(255), ""));
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(invocation.evidence().ssh_end, Some(SshEnd::ExitSignal(SignalName::of("KILL"))));
    let output = bench.run_with("cat", b"half closed\n".to_vec()).await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("half closed\n", Some(0)));
    let output = bench.run("printf '\\377\\000\\n' | od -An -tx1").await;
    assert_eq!(out(&output).trim(), "ff 00 0a");
    let output = bench.run("sleep 0.3; echo late").await;
    assert_eq!(out(&output), "late\n");
}

/// The explicit jump, `StrictHostKeyChecking yes`, one `@cert-authority` line.
#[tokio::test]
async fn an_explicit_jump_works_with_one_cert_authority_line() {
    let Some(bench) = Bench::start("").await else { return };
    let jump = format!("{AGENT}@127.0.0.1:{}", bench.home.address.port());
    let strict = ["-o", "StrictHostKeyChecking=yes", "-J", &jump, "t", "echo in"];
    let output = within(bench.ssh(&strict).output()).await.unwrap();
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("in\n", Some(0)),
        "{}",
        err(&output)
    );
    assert_eq!(err(&output), "");
    // Without the line the client does not believe us.
    let bare = bench.home.directory.path().join("bare_config");
    let key = bench.home.identity.agent_key(AGENT).unwrap();
    std::fs::write(&bare, format!("IdentityFile {}\n", key.display())).unwrap();
    let mut command = Command::new("ssh");
    command
        .arg("-F")
        .arg(&bare)
        .args(["-o", "BatchMode=yes"])
        .args(strict)
        .env("HOME", bench.home.directory.path())
        .stdin(Stdio::null());
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert!(err(&output).contains("Host key verification failed"), "{}", err(&output));
    assert_eq!(bench.home.count(), 1);
}

/// The token as password, typed by an askpass program: no key file needed.
#[tokio::test]
async fn the_token_logs_in_by_password_and_keyboard_interactive() {
    let Some(bench) = Bench::start("").await else { return };
    let directory = bench.home.directory.path();
    bench.home.identity.remove_agent_key(AGENT).unwrap();
    let askpass = directory.join("askpass");
    std::fs::write(&askpass, format!("#!/bin/sh\necho {}\n", bench.home.token)).unwrap();
    std::fs::set_permissions(&askpass, std::fs::Permissions::from_mode(0o700)).unwrap();
    for method in ["password", "keyboard-interactive"] {
        // -o on the command line would not reach the jump.
        let config = std::fs::read_to_string(&bench.config).unwrap();
        let config = format!("PreferredAuthentications none,{method}\n{config}");
        let path = directory.join("askpass_config");
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new("ssh");
        command
            .arg("-F")
            .arg(&path)
            .args(["-l", &bench.sshd.user, "t", "echo in"])
            .env("HOME", directory)
            .env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .stdin(Stdio::null());
        let output = within(command.output()).await.unwrap();
        assert_eq!(out(&output), "in\n", "{method}: {}", err(&output));
    }
    assert_eq!(bench.home.count(), 2);
}

/// 10 MB each way, digests compared.
#[tokio::test]
async fn ten_megabytes_pass_each_way() {
    let Some(bench) = Bench::start("result = { max_bytes = \"32MiB\" }").await else { return };
    let bytes = pattern(10_000_000);
    let expected = digest(&bytes);
    let output = bench.run_with("sha256sum", bytes.clone()).await;
    assert_eq!(out(&output).split_whitespace().next(), Some(expected.as_str()));
    let sent = bench.home.newest().await.evidence();
    assert!(sent.request_complete);
    let file = bench.sshd.directory.path().join("big");
    std::fs::write(&file, &bytes).unwrap();
    let output = bench.run(&format!("cat {}", file.display())).await;
    assert_eq!(digest(&output.stdout), expected);
    let invocation = bench.home.newest().await;
    let evidence = invocation.evidence();
    assert_eq!(evidence.response_bytes, Some(10_000_000));
    assert_eq!(evidence.response_digest.unwrap().to_string(), format!("sha256:{expected}"));
    let mut stored = bench.home.journal.result(invocation.id()).unwrap();
    assert_eq!(digest(&stored.read_to_end().unwrap()), expected);
    let both = bench.run_with("cat", bytes).await;
    assert_eq!(digest(&both.stdout), expected);
}

/// New keys that the target asks for, again and again, both ways at once.
#[tokio::test]
async fn new_keys_from_the_target_both_ways() {
    let extra = "result = { keep = \"digest\" }\nlimits = { request_bytes = \"64MiB\" }";
    let lines = "RekeyLimit 1M\nLogLevel DEBUG1";
    let Some(bench) = Bench::start_with(extra, lines, Options::default()).await else { return };
    let bytes = pattern(30 << 20);
    let expected = digest(&bytes);
    let output = bench.run_with("cat", bytes).await;
    assert_eq!((digest(&output.stdout), output.status.code()), (expected, Some(0)));
    let asked = bench.sshd.log().matches("SSH2_MSG_KEXINIT sent").count();
    assert!(asked > 10, "the target asked for new keys {asked} times");
}

/// Full duplex with a reader that starts late: the case on which a relay that waits deadlocks.
#[tokio::test]
async fn full_duplex_with_a_late_reader_does_not_deadlock() {
    let extra = "result = { keep = \"digest\" }\nlimits = { request_bytes = \"1GiB\" }";
    let Some(bench) = Bench::start(extra).await else { return };
    // Several times what may wait for the target.
    let bytes = pattern(100 << 20);
    let expected = digest(&bytes);
    let mut child = bench.ssh(&["t", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut writer, mut reader) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let feeding = tokio::spawn(async move { writer.write_all(&bytes).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut received = Vec::new();
    within(reader.read_to_end(&mut received)).await.unwrap();
    assert_eq!(digest(&received), expected);
    within(feeding).await.unwrap().unwrap();
    assert!(within(child.wait()).await.unwrap().success());
}

/// A terminal, with its size, and a status from under it.
#[tokio::test]
async fn a_terminal_is_passed_on() {
    let Some(bench) = Bench::start("").await else { return };
    let output =
        within(bench.ssh(&["-tt", "t", "tty; echo $TERM; exit 5"]).env("TERM", "vt100").output());
    let output = output.await.unwrap();
    let text = out(&output);
    assert!(text.contains("/dev/pts/") && text.contains("vt100"), "{text}");
    assert_eq!(output.status.code(), Some(5));
    // A refusal under a terminal has its line ends.
    let mut shell = bench.ssh(&["-tt", "t"]).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(b"echo $((40 + 2)); exit 6\n").await.unwrap();
    let output = within(shell.wait_with_output()).await.unwrap();
    assert!(out(&output).contains("42"), "{}", out(&output));
    assert_eq!(output.status.code(), Some(6));
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.accepted().action, "shell");
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
}

/// The environment: language passes, everything else stays, the invocation id is taken out.
#[tokio::test]
async fn variables_pass_by_the_list_only() {
    let Some(bench) = Bench::start("").await else { return };
    let id = bench.home.journal.new_id().to_string();
    let set = format!("SetEnv=LC_TEST=yes SECRET=no AFFIANT_INVOCATION={id}");
    let line = "echo $LC_TEST.$SECRET.$AFFIANT_INVOCATION";
    let output = within(bench.ssh(&["-o", &set, "t", line]).output()).await.unwrap();
    assert_eq!(out(&output), "yes..\n");
    assert_eq!(bench.home.newest().await.id().to_string(), id);
    // K-10: the same id again answers from the record.
    let again = within(bench.ssh(&["-o", &set, "t", line]).output()).await.unwrap();
    assert_eq!((out(&again).as_str(), bench.home.count()), ("yes..\n", 1));
    let set = "SetEnv=AFFIANT_INVOCATION=mine";
    let output = within(bench.ssh(&["-o", set, "t", line]).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    let told = envelope(&output.stderr);
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::InvalidInvocationId);
    assert_eq!(facts(&told), expected);
    assert_eq!(told.error.field.as_deref(), Some("request.env.AFFIANT_INVOCATION"));
}

/// K-10, K-11: the input is part of the request.
#[tokio::test]
async fn k_10_other_input_is_another_request() {
    let Some(bench) = Bench::start("").await else { return };
    let file = bench.sshd.directory.path().join("paid");
    let line = format!("tee -a {}", file.display());
    let set = format!("SetEnv=AFFIANT_INVOCATION={}", bench.home.journal.new_id());
    let pay = async |stdin: &'static [u8]| {
        let mut child = bench.ssh(&["-o", &set, "t", &line]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin).await.unwrap();
        within(child.wait_with_output()).await.unwrap()
    };
    assert_eq!(out(&pay(b"pay1\n").await), "pay1\n");
    let other = pay(b"pay2\n").await;
    assert_eq!((other.status.code(), out(&other).as_str()), (Some(255), ""));
    assert_eq!(facts(&envelope(&other.stderr)).2, Code::IdempotencyMismatch);
    assert_eq!(out(&pay(b"pay1\n").await), "pay1\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "pay1\n");
    // A client that left before its result came: equal input gets the record, other input runs.
    let slow = format!("cat >> {0}; sleep 1", file.display());
    let mut child = bench.ssh(&["t", &slow]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a\n").await.unwrap();
    let seen = async {
        while !std::fs::read_to_string(&file).unwrap().contains("a\n") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(seen).await;
    let id = bench.home.newest_now().id();
    bench.home.has_event(id, "REQUEST_SENT").await;
    child.kill().await.unwrap();
    bench.home.has_event(id, "DELIVERY_FAILED").await;
    let repeat = bench.run_with(&slow, b"a\n".to_vec()).await;
    assert!(err(&repeat).contains("answered from the record"), "{}", err(&repeat));
    let other = bench.run_with(&slow, b"b\n".to_vec()).await;
    assert_eq!((other.status.code(), err(&other).as_str()), (Some(0), ""));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "pay1\na\nb\n");
}

/// E-5, V-2, I-1, C-1: refusals are explained on stderr, with exit status 255, before any dispatch.
#[tokio::test]
async fn e_5_refusals_are_explained_on_stderr() {
    let Some(bench) = Bench::start("").await else { return };
    let sshd = &bench.sshd;
    let good = common::policy_text(sshd.address, &sshd.host_key(), "");
    let other = tempfile::tempdir().unwrap();
    keygen(&other.path().join("key")).await;
    let other_key = std::fs::read_to_string(other.path().join("key.pub")).unwrap();
    let narrow = good.replace("host = \"t\"", "host = \"t\", commands = [\"uptime\"]");
    let narrow = narrow.replace("\"exec\", \"shell\", \"sftp\"", "\"exec\"");
    let setup = Phase::ConnectionSetup;
    let cases = [
        (narrow, Phase::Validation, Code::TargetNotAllowed),
        (common::policy_text(sshd.address, other_key.trim(), ""), setup, Code::HostKeyMismatch),
        (
            good.replace("\"target-key\"", "\"none\""),
            Phase::CredentialInjection,
            Code::SecretMissing,
        ),
    ];
    for (text, phase, code) in cases {
        bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
        let output = bench.run("id").await;
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(255), ""), "{code}");
        let told = envelope(&output.stderr);
        assert_eq!(told.error.verdict.phase(), phase);
        assert_eq!(told.error.verdict.outcome(), Outcome::NotAttempted);
        if phase != Phase::Validation {
            assert_eq!(told.error.verdict.code(), code);
        }
        assert!(!told.evidence.dispatch_started);
    }
    bench.home.policy.apply(&good, "policy.toml", "test").unwrap();
    let wrong = common::secret_file(&other.path().join("key"));
    bench.home.policy.set_secret("target-key", &wrong).unwrap();
    let output = bench.run("id").await;
    let expected = (setup, Outcome::NotAttempted, Code::RemoteAuthFailed);
    assert_eq!(facts(&envelope(&output.stderr)), expected);
    // A target that policy does not know: the jump is refused, and the client shows why.
    let jump = format!("{AGENT}@127.0.0.1:{}", bench.home.address.port());
    let output = within(bench.ssh(&["-J", &jump, "nowhere", "id"]).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert!(err(&output).contains("TARGET_NOT_ALLOWED"), "{}", err(&output));
}

/// scp in both protocols and sftp, where policy allows them, contents compared.
#[tokio::test]
async fn scp_and_sftp_copy_files() {
    let Some(bench) = Bench::start("").await else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let bytes = pattern(3_000_000);
    std::fs::write(path.join("here"), &bytes).unwrap();
    let there = |name: &str| format!("{}@t:{}", bench.sshd.user, path.join(name).display());
    for (mode, name) in [("-s", "one"), ("-O", "two")] {
        let mut command = bench.command("scp");
        command.args([mode, "-q"]).arg(path.join("here")).arg(there(name));
        let output = within(command.output()).await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{mode}: {}", err(&output));
        assert!(std::fs::read(path.join(name)).unwrap() == bytes, "{mode}");
        let back = format!("{name}.back");
        let mut command = bench.command("scp");
        command.args([mode, "-q", &there(name)]).arg(path.join(&back));
        let output = within(command.output()).await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{mode}: {}", err(&output));
        assert!(std::fs::read(path.join(&back)).unwrap() == bytes, "{mode}");
    }
    let batch = path.join("batch");
    let mut file = std::fs::File::create(&batch).unwrap();
    let (from, to) = (path.join("one"), path.join("three"));
    writeln!(file, "get {} {}", from.display(), to.display()).unwrap();
    let mut command = bench.command("sftp");
    command.arg("-b").arg(&batch).arg(format!("{}@t", bench.sshd.user));
    let output = within(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(std::fs::read(to).unwrap() == bytes);
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.accepted().action, "subsystem:sftp");
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
}

/// Eight clients at once; then eight commands over one shared connection.
#[tokio::test]
async fn eight_commands_at_once() {
    let Some(bench) = Bench::start("").await else { return };
    let lines: Vec<_> = (0..8).map(|n| format!("echo {n}")).collect();
    let outputs = futures::future::join_all(lines.iter().map(|line| bench.run(line))).await;
    for (n, output) in outputs.iter().enumerate() {
        assert_eq!(out(output), format!("{n}\n"), "{}", err(output));
    }
    let socket = bench.home.directory.path().join("mux");
    let path = format!("ControlPath={}", socket.display());
    let master = ["-M", "-N", "-f", "-o", &path, "-o", "ControlPersist=60", "t"];
    // The master goes to the background with its streams; piped ones would keep us waiting.
    let mut command = bench.ssh(&master);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    assert!(within(command.status()).await.unwrap().success());
    let shared = |line: String| {
        let mut command = bench.ssh(&["-S", socket.to_str().unwrap(), "t", &line]);
        async move { within(command.output()).await.unwrap() }
    };
    let outputs = futures::future::join_all((8..16).map(|n| shared(format!("echo {n}")))).await;
    for (n, output) in (8..16).zip(&outputs) {
        assert_eq!(out(output), format!("{n}\n"), "{}", err(output));
    }
    let mut exit = bench.ssh(&["-S", socket.to_str().unwrap(), "-O", "exit", "t"]);
    within(exit.output()).await.unwrap();
    assert_eq!(bench.home.count(), 16);
}

/// S-8: sshd closes a running command's channel without a status (`ChannelTimeout`).
#[tokio::test]
async fn s_8_a_channel_closed_without_status_is_unknown() {
    let timeout = "ChannelTimeout session:*=1s";
    let Some(bench) = Bench::start_with("", timeout, Options::default()).await else { return };
    let output = bench.run("sleep 4; exit 7").await;
    assert_eq!(output.status.code(), Some(255));
    let told = envelope(&output.stderr);
    let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteResultIncomplete);
    assert_eq!(facts(&told), expected, "{}", bench.sshd.log());
    assert!(told.evidence.dispatch_started && told.evidence.response_headers_received);
}

/// A target whose process dies under the command: unknown, at once.
#[tokio::test]
async fn a_connection_lost_under_a_command_is_unknown() {
    let Some(bench) = Bench::start("").await else { return };
    let output = bench.run("echo begun; sleep 0.5; kill -9 $PPID; sleep 5").await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("begun\n", Some(255)));
    let told = envelope(&output.stderr);
    let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteResultIncomplete);
    assert_eq!(facts(&told), expected);
}

/// D-4: the client is killed; the command ends, and its result is on record.
#[tokio::test]
async fn d_4_a_killed_client_leaves_a_recorded_result() {
    let Some(bench) = Bench::start("").await else { return };
    let mut child = bench.ssh(&["t", "echo begun; sleep 1; echo done"]).spawn().unwrap();
    let mut begun = [0; 6];
    within(child.stdout.take().unwrap().read_exact(&mut begun)).await.unwrap();
    child.kill().await.unwrap();
    let invocation = bench.home.newest().await;
    bench.home.has_event(invocation.id(), "DELIVERY_FAILED").await;
    let invocation = bench.home.settled(invocation.id()).await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    let mut stored = bench.home.journal.result(invocation.id()).unwrap();
    assert_eq!(stored.read_to_end().unwrap(), b"begun\ndone\n");
}

/// S-1: the status of a command that closes its streams long before it ends arrives, although a client
/// without input closes its channel at the end of the streams.
#[tokio::test]
async fn s_1_a_status_long_after_the_streams_arrives() {
    let Some(bench) = Bench::start("").await else { return };
    let output = bench.run("exec >&- 2>&-; sleep 2; exit 3").await;
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Committed);
}

/// D-4: a session whose client ended the input in order, and left, is read to its end: that client
/// had asked for nothing more. One that left with its input open ended the session.
#[tokio::test]
async fn d_4_a_session_outlives_its_client_once_its_input_has_ended() {
    let cases = [
        (true, "cat > /dev/null; echo begun; sleep 1; echo done\n", Outcome::Committed, Code::Ok),
        (false, "echo begun; exec cat\n", Outcome::Unknown, Code::CallerCancelled),
    ];
    for (ends, script, outcome, code) in cases {
        let Some(bench) = Bench::start("").await else { return };
        let mut child = bench.ssh(&["-T", "t"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        within(stdin.write_all(script.as_bytes())).await.unwrap();
        let open = (!ends).then_some(stdin);
        let mut begun = [0; 6];
        within(child.stdout.take().unwrap().read_exact(&mut begun)).await.unwrap();
        child.kill().await.unwrap();
        drop(open);
        let verdict = bench.home.settled(bench.home.newest().await.id()).await.verdict();
        assert_eq!((verdict.outcome(), verdict.code()), (outcome, code));
    }
}

/// K-11: running a command again after its result was handed over runs it again; twenty times.
#[tokio::test]
async fn k_11_a_command_runs_again_once_its_result_was_handed_over() {
    let Some(bench) = Bench::start("").await else { return };
    let file = bench.sshd.directory.path().join("count");
    let line = format!("echo x >> {0}; wc -l < {0}", file.display());
    for run in 1..=20 {
        let output = bench.run(&line).await;
        assert_eq!(out(&output).trim(), run.to_string(), "{}", err(&output));
    }
}

/// No output is lost at the end, whatever the order of end-of-file and status.
#[tokio::test]
async fn the_last_bytes_of_output_arrive() {
    let Some(bench) = Bench::start("repeat_guard = \"off\"").await else { return };
    for _ in 0..15 {
        let output = bench.run("head -c 1000003 /dev/zero; echo end >&2").await;
        assert_eq!((output.stdout.len(), err(&output).as_str()), (1_000_003, "end\n"));
        assert_eq!(output.status.code(), Some(0));
    }
}

/// Forwarding through the target is refused, and the command beside it runs.
#[tokio::test]
async fn a_forwarding_is_refused_and_recorded() {
    let Some(bench) = Bench::start("").await else { return };
    let output = within(bench.ssh(&["-W", "127.0.0.1:1", "t"]).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert!(err(&output).contains("TARGET_NOT_ALLOWED"), "{}", err(&output));
    assert_eq!(bench.home.newest().await.verdict().code(), Code::TargetNotAllowed);
}

/// I-4: a target that prints the injected key shows none of it, and the record says so.
#[tokio::test]
async fn i_4_an_echoed_key_is_redacted() {
    let Some(bench) = Bench::start("").await else { return };
    let key = bench.sshd.directory.path().join("user_key");
    let text = std::fs::read_to_string(&key).unwrap();
    let output = bench.run(&format!("cat {}", key.display())).await;
    assert_eq!(output.status.code(), Some(0));
    let shown = out(&output);
    assert!(shown.contains("[redacted]"), "{shown}");
    for line in text.lines().filter(|line| line.len() > 40 && !line.starts_with('-')).skip(1) {
        assert!(!shown.contains(line));
    }
    let invocation = bench.home.newest().await;
    assert!(invocation.evidence().redacted);
    let mut stored = bench.home.journal.result(invocation.id()).unwrap();
    assert_eq!(stored.read_to_end().unwrap(), output.stdout);
}
