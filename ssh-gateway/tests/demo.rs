//! The gateway between the built-in client and the built-in target, which behaves well or badly.

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

use common::{AGENT, demo_home, demo_home_with, envelope, facts, within};
use journal::contract::{
    Code, Completion, Confirmation, Outcome, PeerIdentity, Phase, Retry, SignalName, SshEnd,
};
use journal::{Delivery, Stream};
use ssh_gateway::Options;
use ssh_gateway::demo::{Client, ClientError, Login, Output};
use std::time::Duration;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// D-3, S-1, R-1, C-5, R-5: a command from end to end, and every fact on record in order.
#[tokio::test]
async fn d_3_s_1_a_command_is_recorded_dispatched_settled_and_delivered() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let output = within(client.exec("echo hello", b"", None)).await.unwrap();
    assert_eq!((text(&output.stdout), output.status), ("hello\n".into(), Some(0)));
    assert_eq!(text(&output.stderr), "");
    assert_eq!(target.effects(), 1);
    let invocation = home.newest().await;
    home.has_event(invocation.id(), "RESULT_DELIVERED").await;
    let events = home.events(invocation.id());
    let order: Vec<_> = events.iter().filter(|name| **name != "REQUEST_SENT").copied().collect();
    assert_eq!(
        order,
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "SETUP_ATTEMPTED",
            "DISPATCH_STARTED",
            "REMOTE_RESPONSE_STARTED",
            "NOTED",
            "REMOTE_RESPONSE_COMPLETE",
            "RESULT_COMMITTED",
            "RESULT_DELIVERED",
        ]
    );
    let invocation = home.settled(invocation.id()).await;
    let verdict = invocation.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Committed, Code::Ok));
    assert_eq!(invocation.delivery(), Delivery::Delivered(Confirmation::Protocol));
    let evidence = invocation.evidence();
    assert_eq!(evidence.ssh_end, Some(SshEnd::ExitStatus(0)));
    assert_eq!(evidence.completion, Some(Completion::ExitStatus));
    assert_eq!(evidence.response_bytes, Some(6));
    assert_eq!(evidence.attempts.len(), 1);
    assert_eq!(evidence.attempts[0].code, "ok");
    assert!(matches!(evidence.peer, Some(PeerIdentity::SshHost { fingerprint })
        if fingerprint.starts_with("SHA256:")));
    let accepted = invocation.accepted();
    assert_eq!(accepted.target, "ssh://root@t:22");
    assert_eq!(accepted.agent.as_deref(), Some(AGENT));
    // The command's text can hold secrets.
    assert!(accepted.command.as_ref().unwrap().starts_with("sha256:"));
    let mut stored = home.journal.result(invocation.id()).unwrap();
    assert_eq!(stored.next_chunk().unwrap(), Some((Stream::Stdout, b"hello\n".to_vec())));
}

/// D-6, S-1: what the process says of itself is committed, whatever it says.
#[tokio::test]
async fn d_6_status_signal_and_streams_pass_unchanged() {
    let (home, _target) = demo_home("").await;
    let client = home.client().await;
    let output = within(client.exec("warn careful", b"", None)).await.unwrap();
    let expected = Output { stderr: b"careful\n".to_vec(), status: Some(3), ..Output::default() };
    assert_eq!(output, expected);
    assert_eq!(home.newest().await.verdict().code(), Code::RemoteFailed);
    for status in [0, 1, 127, 255, 256] {
        let output = within(client.exec(&format!("exit {status}"), b"", None)).await.unwrap();
        assert_eq!(output, Output { status: Some(status), ..Output::default() });
    }
    let output = within(client.exec("signal SEGV", b"", None)).await.unwrap();
    assert_eq!(output, Output { signal: Some("SEGV".into()), ..Output::default() });
    let invocation = home.newest().await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(invocation.evidence().ssh_end, Some(SshEnd::ExitSignal(SignalName::of("SEGV"))));
    let stdin = vec![b'y'; 300_000];
    let output = within(client.exec("cat", &stdin, None)).await.unwrap();
    assert!(output.stdout == stdin && output.status == Some(0));
    let evidence = home.newest().await.evidence();
    assert!(evidence.request_complete);
    assert_eq!(evidence.response_bytes, Some(300_000));
}

/// X-4, S-8, E-5: hostile ends are unknown, explained on stderr, with exit status 255.
#[tokio::test]
async fn x_4_s_8_hostile_ends_are_unknown() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let cases = [
        ("vanish", Code::RemoteResultIncomplete, ""),
        ("drop", Code::RemoteResultIncomplete, ""),
        ("cut", Code::RemoteResultIncomplete, "first half"),
        ("trail", Code::RemoteResultIncomplete, "first half"),
        ("mute", Code::RemoteOutcomeUnknown, ""),
        ("twice", Code::RemoteProtocolError, ""),
    ];
    for (index, (command, code, stdout)) in cases.into_iter().enumerate() {
        let output = within(client.exec(command, b"", None)).await.unwrap();
        assert_eq!(output.status, Some(255), "{command}: {output:?}");
        assert_eq!(text(&output.stdout), stdout, "{command}");
        let told = envelope(&output.stderr);
        assert_eq!(facts(&told), (Phase::RemoteExecution, Outcome::Unknown, code), "{command}");
        assert_eq!(told.error.verdict.retry(), Retry::Reconcile, "{command}");
        assert!(told.evidence.dispatch_started, "{command}");
        assert!(!told.evidence.response_complete, "{command}");
        assert_eq!(target.effects(), index + 1, "{command}");
        let invocation = home.settled(told.invocation_id).await;
        assert_eq!(invocation.envelope(), told, "{command}");
        let kept = home.journal.result(told.invocation_id);
        assert!(kept.is_err(), "{command}: a partial result is not shown as complete (S-2)");
    }
}

/// An orderly close stands for the end of the streams where the target sends no end-of-file.
#[tokio::test]
async fn s_1_a_target_without_end_of_file_is_complete_by_its_close() {
    let (home, _target) = demo_home("").await;
    let output = within(home.client().await.exec("bare hi", b"", None)).await.unwrap();
    assert_eq!((text(&output.stdout), output.status), ("hi\n".into(), Some(0)));
    assert_eq!(home.newest().await.verdict().code(), Code::Ok);
}

/// A request that the target refuses to start is rejected: nothing ran.
#[tokio::test]
async fn a_refused_request_is_rejected() {
    let (home, target) = demo_home("").await;
    let output = within(home.client().await.exec("refuse", b"", None)).await.unwrap();
    let told = envelope(&output.stderr);
    assert_eq!(facts(&told), (Phase::RemoteExecution, Outcome::Rejected, Code::RequestRefused));
    assert_eq!(told.error.verdict.retry(), Retry::AfterCorrection);
    assert_eq!((output.status, target.effects()), (Some(255), 0));
}

/// K-10: the same id and the same command answer from the record; another command is a mismatch.
#[tokio::test]
async fn k_10_the_same_id_answers_from_the_record() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let id = home.journal.new_id();
    let first = within(client.exec("warn once", b"", Some(id))).await.unwrap();
    let again = within(client.exec("warn once", b"", Some(id))).await.unwrap();
    assert_eq!(first, again);
    assert_eq!((first.status, target.effects()), (Some(3), 1));
    home.has_event(id, "REPEAT_ANSWERED").await;
    let other = within(client.exec("warn twice", b"", Some(id))).await.unwrap();
    let told = envelope(&other.stderr);
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::IdempotencyMismatch);
    assert_eq!(facts(&told), expected);
    assert_ne!(told.invocation_id, id);
    assert!(!text(&other.stderr).contains("once"));
    assert_eq!((other.status, target.effects()), (Some(255), 1));
}

/// K-10: a repeat of a call under way waits for its result.
#[tokio::test]
async fn k_10_a_repeat_of_a_call_under_way_waits_for_it() {
    let (home, target) = demo_home("").await;
    let (first, second) = (home.client().await, home.client().await);
    let id = home.journal.new_id();
    let one = first.exec("sleep 400", b"", Some(id));
    let two = async {
        home.has_event(id, "DISPATCH_STARTED").await;
        second.exec("sleep 400", b"", Some(id)).await
    };
    let (one, two) = within(async { tokio::join!(one, two) }).await;
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(target.effects(), 1);
}

/// K-11: an equal command is not sent while the earlier one is in doubt, unless it is meant.
#[tokio::test]
async fn k_11_an_equal_command_in_doubt_is_not_dispatched() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let first = within(client.exec("vanish", b"", None)).await.unwrap();
    let first = envelope(&first.stderr);
    let again = within(client.exec("vanish", b"", None)).await.unwrap();
    let told = envelope(&again.stderr);
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::InDoubtDuplicate);
    assert_eq!(facts(&told), expected);
    assert_eq!(told.error.follow, Some(first.invocation_id));
    assert_eq!(told.error.verdict.retry(), Retry::Reconcile);
    assert_eq!(target.effects(), 1);
    let id = home.journal.new_id();
    within(client.exec("vanish", b"", Some(id))).await.unwrap();
    assert_eq!(target.effects(), 2);
}

/// K-11: after a handed-over result an equal command is a new action.
#[tokio::test]
async fn k_11_an_equal_command_after_a_delivered_result_is_new() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    for run in 1..=5 {
        let output = within(client.exec("echo x", b"", None)).await.unwrap();
        assert_eq!((text(&output.stdout), output.status), ("x\n".into(), Some(0)));
        assert_eq!(target.effects(), run);
    }
    let failed = within(client.exec("exit 4", b"", None)).await.unwrap();
    let again = within(client.exec("exit 4", b"", None)).await.unwrap();
    assert_eq!((failed, target.effects()), (again, 7));
}

/// D-4, R-2, K-11: the client leaves after dispatch; the result is read to its end, kept, marked as
/// not handed over, and answers an equal command.
#[tokio::test]
async fn d_4_r_2_the_result_of_a_client_that_left_is_kept_and_answers_a_repeat() {
    let (home, target) = demo_home("").await;
    let id = home.journal.new_id();
    let client = home.client().await;
    let leaving = client.exec_and_leave("linger 500", common::CASE, Some(id));
    within(leaving).await.unwrap();
    home.has_event(id, "DELIVERY_FAILED").await;
    let invocation = home.settled(id).await;
    let verdict = invocation.verdict();
    assert_eq!((verdict.phase(), verdict.outcome()), (Phase::ResultDelivery, Outcome::Committed));
    assert_eq!(verdict.retry(), Retry::FetchResult);
    let again = within(home.client().await.exec("linger 500", b"", Some(id))).await.unwrap();
    assert_eq!((text(&again.stdout), again.status), ("begun\ndone\n".into(), Some(0)));
    assert_eq!(target.effects(), 1);
    home.has_event(id, "RESULT_DELIVERED").await;
}

/// C-1: every failure of the setup has its stage, its code, and no effect.
#[tokio::test]
async fn c_1_setup_failures_are_not_attempted() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    // Bound and not listening: it refuses, and nobody else gets it.
    let refusing = tokio::net::TcpSocket::new_v4().unwrap();
    refusing.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = refusing.local_addr().unwrap();
    let other = ssh_gateway::demo::Target::start().await.unwrap();
    let good = common::policy_text(target.address(), &target.host_key(), "");
    let mismatch = common::policy_text(target.address(), &other.host_key(), "");
    let nothing_there = common::policy_text(closed, &target.host_key(), "");
    // One that hangs up before it has said a word.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs_up = common::policy_text(silent.local_addr().unwrap(), &target.host_key(), "");
    let hanging_up = tokio::spawn(async move { while silent.accept().await.is_ok() {} });
    let unpinned = good.replace(&format!("host_keys = [\"{}\"]", target.host_key()), "");
    let no_secret = good.replace("secret = \"target-key\"", "secret = \"nowhere\"");
    let setup = Phase::ConnectionSetup;
    let cases = [
        (mismatch, setup, Code::HostKeyMismatch, Some("ssh_host_key")),
        (nothing_there, setup, Code::ConnectionRefused, Some("tcp_connect")),
        (hangs_up, setup, Code::ConnectionTerminated, Some("ssh_kex")),
        (unpinned, setup, Code::HostKeyUnknown, Some("ssh_host_key")),
        (no_secret, Phase::CredentialInjection, Code::SecretMissing, None),
    ];
    for (text, phase, code, stage) in cases {
        home.policy.apply(&text, "policy.toml", "test").unwrap();
        let output = within(client.exec("echo x", b"", None)).await.unwrap();
        assert_eq!(output.status, Some(255), "{code}");
        let told = envelope(&output.stderr);
        assert_eq!(facts(&told), (phase, Outcome::NotAttempted, code));
        let reached = told.evidence.attempts.last().map(|attempt| attempt.stage.as_str());
        assert_eq!(reached, stage, "{code}");
        assert!(!told.evidence.dispatch_started, "{code}");
        let events = home.events(told.invocation_id);
        assert!(!events.contains(&"DISPATCH_STARTED"), "{code}: {events:?}");
    }
    hanging_up.abort();
    home.policy.apply(&good, "policy.toml", "test").unwrap();
    home.policy.set_secret("target-key", &other.user_key()).unwrap();
    let output = within(client.exec("echo x", b"", None)).await.unwrap();
    let expected = (setup, Outcome::NotAttempted, Code::RemoteAuthFailed);
    let told = envelope(&output.stderr);
    assert_eq!(facts(&told), expected);
    assert_eq!(told.evidence.attempts.last().unwrap().stage.as_str(), "ssh_auth");
    home.policy.set_secret("target-key", &"not a key".into()).unwrap();
    let output = within(client.exec("echo x", b"", None)).await.unwrap();
    let unreadable = (Phase::CredentialInjection, Outcome::NotAttempted, Code::SecretUnreadable);
    assert_eq!(facts(&envelope(&output.stderr)), unreadable);
    assert_eq!(target.effects(), 0);
}

/// V-1, V-2: what policy does not allow is refused with code and field, and recorded.
#[tokio::test]
async fn v_1_a_denied_command_is_explained_and_recorded() {
    let (home, target) = demo_home("").await;
    let text = common::policy_text(target.address(), &target.host_key(), "")
        .replace("match = { host = \"t\" }", "match = { host = \"t\", commands = [\"echo *\"] }")
        .replace("allow = [\"exec\", \"shell\", \"sftp\"]", "allow = [\"exec\"]");
    home.policy.apply(&text, "policy.toml", "test").unwrap();
    let client = home.client().await;
    let allowed = within(client.exec("echo yes", b"", None)).await.unwrap();
    assert_eq!(allowed.status, Some(0));
    for command in ["vanish", "echo x; vanish", "echo x\nvanish", "echo `vanish`", "echo $(x)"] {
        let output = within(client.exec(command, b"", None)).await.unwrap();
        assert_eq!(output.status, Some(255), "{command:?}");
        let told = envelope(&output.stderr);
        assert_eq!(told.error.verdict.phase(), Phase::Validation, "{command:?}");
        assert_eq!(told.error.verdict.outcome(), Outcome::NotAttempted, "{command:?}");
        assert!(told.error.field.is_some(), "{command:?}");
        assert_eq!(home.settled(told.invocation_id).await.envelope(), told);
    }
    assert_eq!(target.effects(), 1);
    let bad_id = within(client.exec("echo yes", b"", None)).await.unwrap();
    assert_eq!(bad_id.status, Some(0));
}

/// V-1: a jump that policy does not allow is refused in the gateway's words; a wrong token is no
/// login. Both are on record.
#[tokio::test]
async fn v_1_jumps_and_logins_are_refused_and_recorded() {
    let (home, _target) = demo_home("").await;
    let login = Login { host: "elsewhere", ..home.login() };
    let refused = within(Client::connect(&home.identity, &login)).await;
    let Err(ClientError::Refused(reason)) = refused else { panic!("{refused:?}") };
    let invocation = home.newest().await;
    assert_eq!(invocation.verdict().code(), Code::TargetNotAllowed);
    assert_eq!(invocation.accepted().target, "ssh://elsewhere:22");
    assert!(reason.contains("TARGET_NOT_ALLOWED"), "{reason}");
    assert!(reason.contains(&invocation.id().to_string()), "{reason}");
    let login = Login { token: "wrong", ..home.login() };
    let refused = within(Client::connect(&home.identity, &login)).await;
    assert!(matches!(refused, Err(ClientError::Login | ClientError::Hop { .. })), "{refused:?}");
    within(async {
        while home.count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let invocation = home.newest().await;
    assert_eq!(invocation.verdict().code(), Code::AgentUnauthenticated);
    assert_eq!(invocation.accepted().agent, None);
}

/// The route's bounds end a command by name: output, input, time.
#[tokio::test]
async fn bounds_end_a_command_by_name() {
    let limits = "limits = { output_bytes = \"100KiB\", request_bytes = \"100KiB\", \
                  response_timeout = \"1s\" }";
    let (home, _target) = demo_home(limits).await;
    let client = home.client().await;
    let cases: [(&str, &[u8], Code); 3] = [
        ("flood 1000000", b"", Code::ResultLimit),
        ("cat", &[b'x'; 200_000], Code::RemoteOutcomeUnknown),
        ("sleep 20000", b"", Code::ReadTimeout),
    ];
    for (command, stdin, code) in cases {
        let output = within(client.exec(command, stdin, None)).await.unwrap();
        assert_eq!(output.status, Some(255), "{command}");
        let told = envelope(&output.stderr);
        assert_eq!(facts(&told), (Phase::RemoteExecution, Outcome::Unknown, code), "{command}");
    }
}

/// R-4, S-2: a result longer than the route keeps is delivered, but not kept.
#[tokio::test]
async fn a_result_longer_than_the_route_keeps_is_delivered_only() {
    let (home, _target) = demo_home("result = { max_bytes = \"64KiB\" }").await;
    let output = within(home.client().await.exec("flood 200000", b"", None)).await.unwrap();
    assert_eq!((output.stdout.len(), output.status), (200_000, Some(0)));
    let invocation = home.newest().await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(invocation.evidence().response_bytes, Some(200_000));
    assert!(!invocation.evidence().result_stored);
}

/// A stalled target never freezes the connection: stdin is spooled, another channel answers, and
/// when the target has taken nothing for the route's idle time, the command ends by a named error.
#[tokio::test]
async fn a_target_that_takes_no_input_stalls_only_its_own_command() {
    let options = Options { stdin_spool_bytes: 256 << 10, ..Options::default() };
    let (home, _target) = demo_home_with("limits = { idle_timeout = \"1s\" }", options).await;
    let client = home.client().await;
    let stdin = vec![b'x'; 32 << 20];
    let stalled = client.exec("sleep 30000", &stdin, None);
    let alive = async {
        let output = client.exec("echo alive", b"", None).await.unwrap();
        (text(&output.stdout), output.status)
    };
    let (stalled, alive) = within(async { tokio::join!(stalled, alive) }).await;
    assert_eq!(alive, ("alive\n".into(), Some(0)));
    let told = envelope(&stalled.unwrap().stderr);
    assert_eq!(told.error.verdict.outcome(), Outcome::Unknown);
    assert!(told.error.message.contains("took no input"), "{}", told.error.message);
}

/// Eight commands at once on one connection: eight records, eight upstream connections.
#[tokio::test]
async fn parallel_commands_have_their_own_connections() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let commands: Vec<_> = (0..8).map(|n| format!("echo {n}")).collect();
    let running = commands.iter().map(|command| client.exec(command, b"", None));
    let outputs = within(futures::future::join_all(running)).await;
    for (n, output) in outputs.into_iter().enumerate() {
        let output = output.unwrap();
        assert_eq!((text(&output.stdout), output.status), (format!("{n}\n"), Some(0)));
    }
    assert_eq!(target.effects(), 8);
    let filter = journal::Filter { limit: 100, ..journal::Filter::default() };
    let page = home.journal.list(&filter).unwrap();
    let mut connections: Vec<_> =
        page.invocations.iter().filter_map(|one| one.evidence().connection).collect();
    connections.sort_unstable();
    connections.dedup();
    assert_eq!(connections.len(), 8);
}

/// A gateway told to stop settles what is under way and takes nothing new.
#[tokio::test]
async fn a_stopping_gateway_settles_what_is_under_way() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    let id = home.journal.new_id();
    let running =
        tokio::spawn(async move { client.exec("sleep 600", b"", Some(id)).await.unwrap() });
    home.has_event(id, "DISPATCH_STARTED").await;
    let (_directory, journal) = home.stop().await;
    let output = within(running).await.unwrap();
    assert_eq!((text(&output.stdout), output.status), ("done\n".into(), Some(0)));
    let invocation = journal.invocation(id).unwrap().unwrap();
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    assert_eq!(target.effects(), 1);
}

/// K-11, R-5: without an id of its own, an equal command after a result that was never handed over
/// gets that result, marked as such; the next one is a new action.
#[tokio::test]
async fn k_11_a_result_that_was_not_handed_over_answers_an_equal_command() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    within(client.exec_and_leave("linger 300", common::CASE, None)).await.unwrap();
    let id = home.newest().await.id();
    home.has_event(id, "DELIVERY_FAILED").await;
    let client = home.client().await;
    let again = within(client.exec("linger 300", b"", None)).await.unwrap();
    assert_eq!((text(&again.stdout), again.status), ("begun\ndone\n".into(), Some(0)));
    let note = text(&again.stderr);
    assert!(note.contains("answered from the record") && note.contains(&id.to_string()), "{note}");
    assert_eq!(target.effects(), 1);
    home.has_event(id, "RESULT_DELIVERED").await;
    within(client.exec("linger 300", b"", None)).await.unwrap();
    assert_eq!(target.effects(), 2);
}

/// I-1: a locked vault is told as such, before any connection.
#[tokio::test]
async fn i_1_a_locked_vault_is_told_before_any_connection() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    home.policy.vault().lock();
    let output = within(client.exec("echo x", b"", None)).await.unwrap();
    let told = envelope(&output.stderr);
    let expected = (Phase::CredentialInjection, Outcome::NotAttempted, Code::VaultLocked);
    assert_eq!(facts(&told), expected);
    assert_eq!(told.error.verdict.retry(), Retry::AfterCorrection);
    assert!(told.evidence.attempts.is_empty());
    assert_eq!(target.effects(), 0);
}

/// a journal that takes no records refuses the call before dispatch.
#[tokio::test]
async fn r_6_without_a_journal_nothing_is_dispatched() {
    let (home, target) = demo_home("").await;
    let client = home.client().await;
    home.journal.close().await;
    let output = within(client.exec("echo x", b"", None)).await.unwrap();
    assert_eq!(output.status, Some(255));
    let told = envelope(&output.stderr);
    let expected = (Phase::Validation, Outcome::NotAttempted, Code::JournalUnavailable);
    assert_eq!(facts(&told), expected);
    assert_eq!(told.error.verdict.retry(), Retry::Backoff);
    assert_eq!(target.effects(), 0);
}

/// A target that opens a channel towards us is refused.
#[tokio::test]
async fn a_target_can_open_no_channel_towards_us() {
    let (home, _target) = demo_home("").await;
    let output = within(home.client().await.exec("intrude", b"", None)).await.unwrap();
    assert_eq!(output.status, Some(9));
}
