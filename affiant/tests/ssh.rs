//! Stock OpenSSH through the real binary to a real sshd, with `affiant ssh-config` only.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;
#[path = "support/ssh.rs"]
mod target;

use conformance::http::Origin;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use support::*;
use target::{Bench, keygen};

/// S-1: stdout, stderr, stdin, exit status and signal pass unchanged, and are on record.
#[test]
fn s_1_commands_pass_through_unchanged() {
    let bench = Bench::new();
    let output = finish(bench.ssh(&[], "cat; echo err >&2; exit 23"), b"over stdin\n");
    assert_eq!(
        (output.status.code(), text(&output.stdout), text(&output.stderr)),
        (Some(23), "over stdin\n".to_owned(), "err\n".to_owned())
    );
    let record = bench.newest();
    assert_eq!(record["error"]["outcome"], "committed");
    assert_eq!(record["evidence"]["ssh_end"]["exit_status"], 23);
    assert_eq!(record["evidence"]["dispatch_started"], true);
    assert_eq!(record["credential"]["id"], "deploy");
    let id = record["invocation_id"].as_str().unwrap();
    // C-2: every stage of the setup is on record before the dispatch.
    let events = bench.home.json(&["inv", "events", id]);
    let events = events["events"].as_array().unwrap();
    let at = |name: &str| events.iter().position(|event| event["event"] == name).unwrap();
    let setup = &events[at("SETUP_ATTEMPTED")];
    assert_eq!((&setup["data"]["n"], &setup["data"]["code"]), (&1.into(), &"ok".into()));
    assert!(at("SETUP_ATTEMPTED") < at("DISPATCH_STARTED"), "{events:?}");
    let stored = bench.home.run(&["inv", "result", id]);
    assert_eq!(text(&stored.stdout), "over stdin\n");

    let killed = finish(bench.ssh(&[], "kill -9 $$"), b"");
    assert_eq!(killed.status.code(), Some(255));
    assert_eq!(bench.newest()["evidence"]["ssh_end"]["exit_signal"], "KILL");

    let big = finish(bench.ssh(&[], "head -c 5000000 /dev/zero | tr '\\0' x"), b"");
    assert_eq!((big.status.code(), big.stdout.len()), (Some(0), 5_000_000));
}

/// E-5: `ssh AGENT@GATEWAY inv ...` answers from the gateway itself, for the agent's own calls.
#[test]
fn e_5_the_gateway_answers_for_itself() {
    let bench = Bench::new();
    let ran = finish(bench.ssh(&[], "echo out; echo err >&2; exit 3"), b"");
    assert_eq!(ran.status.code(), Some(3));
    let ask = |config: &Path, line: &str| {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(config).args(["-o", "BatchMode=yes", "affiant-gateway", line]);
        clean(&mut ssh);
        finish(ssh, b"")
    };
    let own = |line: &str| ask(&bench.config, line);
    let list: Value = serde_json::from_slice(&own("inv list --limit 1").stdout).unwrap();
    let id = list["invocations"][0]["invocation_id"].as_str().unwrap().to_owned();
    assert_eq!(id, bench.newest()["invocation_id"]);
    let result = own(&format!("inv result {id}"));
    assert_eq!((text(&result.stdout).as_str(), text(&result.stderr).as_str()), ("out\n", "err\n"));
    let decision: Value = serde_json::from_slice(&own(&format!("inv decide {id}")).stdout).unwrap();
    assert_eq!(decision["decision"], "RETURN_RECORDED_RESULT");
    let events: Value = serde_json::from_slice(&own(&format!("inv events {id}")).stdout).unwrap();
    assert_eq!(events["events"][0]["event"], "ACTION_ACCEPTED");
    let missing = own("inv show act_00000000000000000000000000");
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing.stderr));
    assert!(text(&missing.stderr).contains("NO_SUCH_INVOCATION"), "{}", text(&missing.stderr));
    // What another agent did is as unknown as what nobody did.
    bench.home.ok(&["agent", "add", "other"]);
    let config = bench.home.path().join("other_config");
    std::fs::write(&config, bench.home.ok(&["ssh-config", "--agent", "other"])).unwrap();
    for verb in ["show", "result", "events", "decide"] {
        let others = ask(&config, &format!("inv {verb} {id}"));
        assert_eq!((others.status.code(), text(&others.stdout)), (Some(1), String::new()));
        assert!(text(&others.stderr).contains("NO_SUCH_INVOCATION"), "{}", text(&others.stderr));
    }
    assert_eq!(ask(&config, "inv list").status.code(), Some(0), "it is logged in");
}

/// C-1: a target with another host key than the pinned one gets nothing.
#[test]
fn c_1_another_host_key_is_not_attempted() {
    let bench = Bench::new();
    keygen(&bench.home.path().join("other"));
    let other = std::fs::read_to_string(bench.home.path().join("other.pub")).unwrap();
    bench.home.policy(&bench.sshd.policy(other.trim()));
    let marker = bench.home.path().join("ran");
    let output = finish(bench.ssh(&[], &format!("touch {}", marker.display())), b"");
    assert_eq!(output.status.code(), Some(255));
    let said = text(&output.stderr);
    assert!(said.contains("HOST_KEY_MISMATCH"), "{said}");
    let record = bench.newest();
    assert_eq!(record["error"]["outcome"], "not_attempted");
    assert_eq!(record["error"]["phase"], "connection_setup");
    assert!(!marker.exists());
}

/// V-1: what policy does not name is refused, with the reason on stderr.
#[test]
fn v_1_an_unknown_target_is_refused() {
    let bench = Bench::new();
    let mut ssh = Command::new("ssh");
    ssh.arg("-F").arg(&bench.config).args(["-o", "BatchMode=yes", "-J"]);
    ssh.arg(format!("coder@{}", bench.server.ssh)).args(["root@elsewhere", "true"]);
    clean(&mut ssh);
    let output = finish(ssh, b"");
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("TARGET_NOT_ALLOWED"), "{}", text(&output.stderr));
    assert_eq!(bench.newest()["error"]["code"], "TARGET_NOT_ALLOWED");
}

/// S-8, E-5: sshd goes away in the middle: unknown, one summary line and the envelope.
#[test]
fn s_8_a_lost_target_gives_unknown_with_the_envelope() {
    let bench = Bench::new();
    // The command ends the sshd process that serves it.
    let output = finish(bench.ssh(&[], "echo begun; sleep 1; kill -9 $PPID; sleep 20"), b"");
    assert_eq!(output.status.code(), Some(255));
    assert_eq!(text(&output.stdout), "begun\n");
    let said = text(&output.stderr);
    let envelope: Value = said
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("no envelope in {said}"));
    assert_eq!(envelope["error"]["outcome"], "unknown");
    assert_eq!(envelope["error"]["code"], "REMOTE_RESULT_INCOMPLETE");
    assert_eq!(envelope["error"]["retry"], "reconcile");
    assert_eq!(bench.newest()["error"]["outcome"], "unknown");
}

/// X-2, J-7 over SSH: killed before dispatch, after it, inside the output, after the commit.
#[test]
fn x_2_killed_during_a_command() {
    let bench = Bench::new();
    let id = |n: u32| format!("act_01ARZ3NDEKTSV4RRFFQ69G5G{n:02}");
    let with_id = |n: u32| format!("SetEnv=AFFIANT_INVOCATION={}", id(n));
    let home = &bench.home;
    let start = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let marker = home.path().join("marker");
    let touch = format!("touch {}; ", marker.display());

    // After dispatch, before any output.
    let mut ssh = start(&mut bench.ssh(&["-o", &with_id(1)], &format!("{touch} sleep 60")));
    eventually("the effect", || marker.exists());
    let Bench { home, sshd, server, config } = bench;
    server.kill();
    assert_eq!(wait(&mut ssh, PATIENCE).code(), Some(255));
    let record = home.json(&["inv", "show", &id(1)]);
    assert_eq!(record["error"]["outcome"], "unknown");
    assert_eq!(record["error"]["code"], "BROKER_RESTARTED");

    // Inside the output.
    let bench = Bench { server: home.serve(), home, sshd, config };
    let mut ssh = start(&mut bench.ssh(&["-o", &with_id(2)], "echo half; sleep 60"));
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(ssh.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "half");
    let Bench { home, sshd, server, config } = bench;
    server.kill();
    assert_eq!(wait(&mut ssh, PATIENCE).code(), Some(255));
    assert_eq!(home.json(&["inv", "show", &id(2)])["error"]["outcome"], "unknown");
    assert!(!home.run(&["inv", "result", &id(2)]).status.success());

    // After the commit, before delivery: the client is stopped.
    let bench = Bench { server: home.serve(), home, sshd, config };
    let gate = bench.home.path().join("gate");
    let command = format!("while [ ! -e {} ]; do sleep 0.05; done; echo done", gate.display());
    let mut ssh = start(&mut bench.ssh(&["-o", &with_id(3)], &command));
    let path = format!("invocations/{}", id(3));
    eventually("dispatch", || bench.server.control(&path)["evidence"]["dispatch_started"] == true);
    signal(&ssh, rustix::process::Signal::STOP);
    std::fs::write(&gate, "").unwrap();
    eventually("the commit", || bench.server.control(&path)["state"] == "settled");
    let Bench { home, sshd, server, config } = bench;
    server.kill();
    signal(&ssh, rustix::process::Signal::CONT);
    wait(&mut ssh, PATIENCE);
    assert_eq!(home.json(&["inv", "show", &id(3)])["error"]["outcome"], "committed");
    assert_eq!(home.ok(&["inv", "result", &id(3)]), "done\n");

    // Before dispatch: the target accepts TCP and stays silent.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    home.policy(&sshd.policy(&sshd.host_key).replace(
        &format!("address = \"127.0.0.1:{}\"", sshd.port),
        &format!("address = \"127.0.0.1:{port}\""),
    ));
    let bench = Bench { server: home.serve(), home, sshd, config };
    let mut ssh = start(&mut bench.ssh(&["-o", &with_id(4)], "touch /nowhere"));
    let (held, _) = silent.accept().unwrap();
    bench.server.await_event(&id(4), "CREDENTIAL_AUTHORIZED");
    let Bench { home, server, .. } = bench;
    server.kill();
    drop(held);
    assert_eq!(wait(&mut ssh, PATIENCE).code(), Some(255));
    let record = home.json(&["inv", "show", &id(4)]);
    assert_eq!(record["error"]["outcome"], "not_attempted");
    assert_eq!(record["error"]["phase"], "connection_setup");
    home.ok(&["journal", "verify"]);
}

/// One server serves both gateways on one journal.
#[test]
fn both_gateways_write_one_journal() {
    let bench = Bench::new();
    let origin = Origin::start(Vec::new(), None).unwrap();
    let denied = bench.server.curl(&[&format!("http://{}/x", origin.address())]);
    assert_eq!(denied.status, 403);
    assert!(finish(bench.ssh(&[], "true"), b"").status.success());
    let listed = bench.home.json(&["inv", "list"]);
    let gateways: Vec<&str> = listed["invocations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|invocation| invocation["gateway"].as_str().unwrap())
        .collect();
    assert_eq!(gateways, ["ssh", "http"]);
}

/// SIGTERM lets a command end and its exit status reach the client.
#[test]
fn r_5_sigterm_lets_the_exit_status_leave() {
    let mut bench = Bench::new();
    for n in 0..3 {
        let gate = bench.home.path().join(format!("gate{n}"));
        let command =
            format!("while [ ! -e {} ]; do sleep 0.05; done; echo fin; exit 6", gate.display());
        let id = format!("act_01ARZ3NDEKTSV4RRFFQ69G5H{n:02}");
        let mut ssh = bench.ssh(&["-o", &format!("SetEnv=AFFIANT_INVOCATION={id}")], &command);
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = ssh.spawn().unwrap();
        bench.server.await_event(&id, "DISPATCH_STARTED");
        signal(&bench.server.child, rustix::process::Signal::TERM);
        eventually("the listener's end", || {
            std::net::TcpStream::connect(bench.server.ssh).is_err()
        });
        std::fs::write(&gate, "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(6), "fin\n".to_owned()),
            "{}",
            text(&output.stderr)
        );
        let Bench { home, sshd, server, config } = bench;
        assert_eq!(server.exit_code(), Some(0));
        assert_eq!(
            home.json(&["inv", "list", "--limit", "1"])["invocations"][0]["delivery"],
            "delivered"
        );
        let server = home.serve();
        std::fs::write(&config, home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
        bench = Bench { home, sshd, server, config };
    }
}

/// a stored result is read on from where an earlier read ended, stream by stream, by the command
/// line and through the gateway itself.
#[test]
fn r_4_a_result_is_resumed_stream_by_stream() {
    let bench = Bench::new();
    let line = "for n in 0 1 2; do echo out-$n; echo err-$n >&2; done";
    assert!(finish(bench.ssh(&[], line), b"").status.success());
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let own = |line: &str| {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(&bench.config).args(["-o", "BatchMode=yes", "affiant-gateway", line]);
        clean(&mut ssh);
        finish(ssh, b"")
    };
    let cases = [
        (&["--from", "6"][..], "out-1\nout-2\n"),
        (&["--from", "15"], "-2\n"),
        (&["--stream", "stderr"], "err-0\nerr-1\nerr-2\n"),
        (&["--stream", "stderr", "--from", "12"], "err-2\n"),
        (&["--stream", "stdout", "--from", "0"], "out-0\nout-1\nout-2\n"),
    ];
    for (options, expected) in cases {
        let read = bench.home.run(&[&["inv", "result", &id][..], options].concat());
        assert_eq!(text(&read.stdout), expected, "{options:?}: {}", text(&read.stderr));
        let read = own(&format!("inv result {id} {}", options.join(" ")));
        assert_eq!((text(&read.stdout).as_str(), text(&read.stderr).as_str()), (expected, ""));
    }
    let past = bench.home.run(&["inv", "result", &id, "--from", "18"]);
    assert_ne!(past.status.code(), Some(0));
    assert!(text(&past.stderr).contains("has 18 bytes"), "{}", text(&past.stderr));
}

/// A shell is kept as a recording: `inv result` gives the file, `inv play` shows it as it went.
#[test]
fn a_shell_is_recorded_and_played() {
    let bench = Bench::new();
    let mut ssh = bench.ssh(&["-tt"], "");
    ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(ssh, b"echo sum-$((40 + 2)); sleep 1; exit 3\n");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let file = bench.home.path().join("session.cast");
    bench.home.ok(&["inv", "result", &id, "-o", file.to_str().unwrap()]);
    let cast = std::fs::read_to_string(&file).unwrap();
    let header: Value = serde_json::from_str(cast.lines().next().unwrap()).unwrap();
    assert_eq!(header["version"], 2);
    let played = bench.home.run(&["inv", "play", &id, "--speed", "50"]);
    assert_eq!(played.status.code(), Some(0), "{}", text(&played.stderr));
    assert_eq!(text(&played.stdout), text(&output.stdout));
    assert!(text(&played.stdout).contains("sum-42"));
    assert!(text(&played.stderr).contains("(exit status 3)"), "{}", text(&played.stderr));
    // Nothing of it lies in the home in clear.
    let mut grep = Command::new("grep");
    grep.args(["-rl", "sum-42"]).arg(bench.home.path().join("journal"));
    assert_eq!(text(&finish(grep, b"").stdout), "");
    assert!(finish(bench.ssh(&[], "true"), b"").status.success());
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    assert_ne!(bench.home.run(&["inv", "play", &id]).status.code(), Some(0));
}

/// S-2: what was recorded of a shell that ended in doubt can be played, and is no result.
#[test]
fn s_2_a_shell_that_ended_in_doubt_is_played() {
    let bench = Bench::new();
    let ssh = bench.ssh(&["-tt"], "");
    let output = finish(ssh, b"echo sum-$((40 + 2)); sleep 1; kill -9 $PPID; sleep 20\n");
    assert_eq!(output.status.code(), Some(255), "{output:?}");
    let record = bench.newest();
    assert_eq!(record["error"]["outcome"], "unknown");
    assert_eq!(record["evidence"]["result_stored"], false);
    let id = record["invocation_id"].as_str().unwrap();
    let played = bench.home.run(&["inv", "play", id, "--speed", "50"]);
    assert_eq!(played.status.code(), Some(0), "{}", text(&played.stderr));
    assert!(text(&played.stdout).contains("sum-42"), "{}", text(&played.stdout));
    let said = text(&played.stderr);
    assert!(said.contains("(ended without exit status)"), "{said}");
    assert_ne!(bench.home.run(&["inv", "result", id]).status.code(), Some(0));
    assert!(bench.home.run(&["journal", "verify"]).status.success());
}

/// Opens a shared session, runs `affiant agent CHANGE coder`, and asks for one more command over the
/// session: it is refused with that text, and does not run.
fn refused_over_an_open_session(bench: &Bench, change: &str, told: &str) {
    let socket = bench.home.path().join("mux");
    let master =
        ["-o", "ControlMaster=auto", "-o", "ControlPersist=30", "-S", socket.to_str().unwrap()];
    let first = finish(bench.ssh(&master, "true"), b"");
    assert_eq!(first.status.code(), Some(0), "{} {}", text(&first.stderr), bench.newest());
    let marker = bench.home.path().join("ran");
    bench.home.ok(&["agent", change, "coder"]);
    let output = finish(bench.ssh(&master, &format!("touch {}", marker.display())), b"");
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    assert_eq!(bench.newest()["error"]["code"], "AGENT_UNAUTHENTICATED");
    assert!(!marker.exists());
    let mut exit = Command::new("ssh");
    exit.args(["-S", socket.to_str().unwrap(), "-O", "exit", "prod-1"]);
    clean(&mut exit);
    finish(exit, b"");
}

/// V-1: a new token ends what was logged in with the old one: an open session gets nothing more.
#[test]
fn v_1_a_new_token_ends_open_sessions() {
    refused_over_an_open_session(&Bench::new(), "rotate", "has a new token");
}

/// V-1: a removed agent gets nothing more over a session that is still open, and its key no session.
#[test]
fn v_1_a_removed_agent_is_out_at_once() {
    let bench = Bench::new();
    refused_over_an_open_session(&bench, "rm", "AGENT_UNAUTHENTICATED");
    bench.home.ok(&["agent", "add", "coder"]);
    assert_eq!(finish(bench.ssh(&[], "true"), b"").status.code(), Some(255), "the old key got in");
}

/// The envelope on stderr, after the summary.
fn envelope(stderr: &[u8]) -> Value {
    let text = text(stderr);
    let line = text.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no envelope: {text}"))).unwrap()
}

/// V-6: a command is held before its dispatch, its exact text is shown, and it runs once it is approved,
/// with the input that came meanwhile.
#[test]
fn v_6_a_command_waits_and_runs_once_when_it_is_approved() {
    let bench = Bench::with("", "approval = \"required\"\n");
    let marker = bench.home.path().join("ran");
    let command = format!("cat >> {}; echo done", marker.display());
    let (home, waiting) = (&bench.home, || {
        bench.home.json(&["approval", "list"])["approvals"].as_array().unwrap().clone()
    });
    let output = std::thread::scope(|scope| {
        let ssh = scope.spawn(|| finish(bench.ssh(&[], &command), b"once\n"));
        eventually("a question", || !waiting().is_empty());
        let held = waiting().remove(0);
        assert_eq!((&held["action"], &held["state"]), (&"exec".into(), &"pending".into()));
        assert_eq!(held["request"]["command"], command.as_str());
        assert_eq!(held["request"]["not_covered"], "input");
        assert!(home.ok(&["approval", "list"]).contains(&command));
        assert!(!marker.exists(), "held before dispatch");
        home.ok(&["approval", "approve", held["invocation_id"].as_str().unwrap()]);
        ssh.join().unwrap()
    });
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"));
    assert!(text(&output.stderr).contains("waits for the approval of a person"), "{output:?}");
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "once\n");
    let record = bench.newest();
    assert_eq!(
        (&record["error"]["outcome"], &record["approval"]["state"]),
        (&"committed".into(), &"approved".into())
    );
}

/// V-6, I-1: who does not wait to the end gets the envelope and comes back by the id, also after a
/// restart; another command under that id is refused; a denied one is never run.
#[test]
fn v_6_a_command_comes_back_by_its_id_and_a_denied_one_never_runs() {
    let before = "[approvals]\nwait = \"1s\"\n";
    let mut bench = Bench::with(before, "approval = \"required\"\n");
    let marker = bench.home.path().join("ran");
    let command = format!("echo x >> {}", marker.display());
    let id = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let variable = format!("SetEnv=AFFIANT_INVOCATION={id}");
    let ask = |bench: &Bench, command: &str| {
        let output = finish(bench.ssh(&["-o", &variable], command), b"");
        (output.status.code(), output)
    };
    let (code, output) = ask(&bench, &command);
    let pending = envelope(&output.stderr);
    assert_eq!((code, &pending["error"]["code"]), (Some(255), &"APPROVAL_PENDING".into()));
    assert_eq!(
        (&pending["invocation_id"], &pending["error"]["outcome"]),
        (&id.into(), &"not_attempted".into())
    );
    bench.home.ok(&["approval", "approve", id]);
    bench.server.kill();
    bench.server = bench.home.serve();
    std::fs::write(&bench.config, bench.home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
    let (_, output) = ask(&bench, "echo other");
    assert_eq!(envelope(&output.stderr)["error"]["code"], "IDEMPOTENCY_MISMATCH");
    assert!(!marker.exists());
    for _ in 0..2 {
        let (code, output) = ask(&bench, &command);
        assert_eq!(code, Some(0), "{output:?}");
    }
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "x\n", "run once");

    let output = finish(bench.ssh(&[], "echo denied"), b"");
    let denied = envelope(&output.stderr)["invocation_id"].as_str().unwrap().to_owned();
    bench.home.ok(&["approval", "deny", &denied]);
    let record = bench.home.json(&["inv", "show", &denied]);
    let error = &record["error"];
    assert_eq!(
        (&error["code"], &error["phase"], &error["retry"]),
        (&"APPROVAL_DENIED".into(), &"credential_injection".into(), &"never".into())
    );
}

/// A command over the agent's budget is refused before its dispatch, with a time; one whose agent's
/// access ended gets no further, whether by token or by key.
#[test]
fn a_budget_holds_for_commands_and_an_ended_access_for_logins() {
    let bench = Bench::with("[[budget]]\nname = \"b\"\ncalls_per_day = 1\n", "");
    assert_eq!(finish(bench.ssh(&[], "echo 1"), b"").status.code(), Some(0));
    let output = finish(bench.ssh(&[], "echo 2"), b"");
    let spent = envelope(&output.stderr);
    assert_eq!(
        (output.status.code(), &spent["error"]["code"]),
        (Some(255), &"BUDGET_SPENT".into())
    );
    assert_eq!(
        (&spent["error"]["retry"], &spent["error"]["field"]),
        (&"backoff".into(), &"budget.calls_per_day".into())
    );
    assert!(spent["error"]["not_before_ms"].as_u64().is_some());
    bench.home.ok(&["agent", "rotate", "coder", "--lasts", "1s"]);
    bench.home.ok(&["ssh-config", "--agent", "coder"]);
    let mut refused = finish(bench.ssh(&[], "echo 3"), b"");
    eventually("the access ended", || {
        refused = finish(bench.ssh(&[], "echo 3"), b"");
        text(&refused.stderr).contains("Permission denied")
    });
    assert_eq!(refused.status.code(), Some(255));
    assert!(text(&refused.stderr).contains("Permission denied"), "{}", text(&refused.stderr));
}
