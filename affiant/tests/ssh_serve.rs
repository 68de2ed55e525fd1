//! The server around SSH calls: its log, and its end.

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

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use support::*;
use target::Bench;

/// The same bench with a server of other arguments, or behind another program.
fn served(bench: Bench, start: impl FnOnce(&Home) -> Server) -> Bench {
    let Bench { home, sshd, server, config } = bench;
    server.kill();
    let server = start(&home);
    std::fs::write(&config, home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
    Bench { home, sshd, server, config }
}

/// I-2: whatever the log is asked for, the SSH engine prints no packet into it: neither commands, nor input,
/// nor output, nor the agent's token.
#[test]
fn i_2_a_log_at_trace_level_holds_no_packet() {
    let bench = Bench::new();
    let log = bench.home.path().join("server.log");
    let filter = "trace,russh=trace,russh::client=trace,russh::server=trace,russh::cipher=trace";
    let script = format!("exec \"$@\" --log {filter} 2>{}", log.display());
    let bench = served(bench, |home| Server::start_by(home, &["sh", "-c", &script, "sh"]));
    let ran = finish(bench.ssh(&[], "cat; echo canary-in-the-command"), b"canary-in-the-input\n");
    assert_eq!(text(&ran.stdout), "canary-in-the-input\ncanary-in-the-command\n");
    let Bench { server, .. } = bench;
    server.terminate();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(" DEBUG ") || log.contains(" TRACE "), "the log is not at trace level");
    assert!(!log.contains("canary"), "content is in the log");
    for level in ["TRACE russh", "DEBUG russh", "INFO russh"] {
        let line = log.lines().find(|line| line.contains(level));
        assert_eq!(line, None);
    }
}

/// D-1, D-4: a command that the drain has no time for is cut, and its record says so.
#[test]
fn d_4_sigterm_records_the_commands_that_it_cuts() {
    let bench = served(Bench::new(), |home| Server::start_with(home, &["--drain", "1s"]));
    let id = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let mut ssh = bench.ssh(&["-o", &format!("SetEnv=AFFIANT_INVOCATION={id}")], "sleep 60");
    ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let client = ssh.spawn().unwrap();
    bench.server.await_event(id, "DISPATCH_STARTED");
    let Bench { home, sshd: _sshd, server, .. } = bench;
    assert_eq!(server.terminate(), Some(0));
    let told = client.wait_with_output().unwrap();
    assert_eq!(told.status.code(), Some(255));
    assert!(text(&told.stderr).contains("The gateway was stopped"), "{}", text(&told.stderr));
    let shown = home.json(&["inv", "show", id]);
    assert_eq!(shown["error"]["outcome"], "unknown", "{shown}");
    assert_eq!(shown["error"]["code"], "BROKER_RESTARTED", "{shown}");
    assert_eq!(shown["error"]["retry"], "reconcile", "{shown}");
    let events = home.json(&["inv", "events", id]).to_string();
    assert!(events.contains("BROKER_STOPPED"), "{events}");
    home.ok(&["journal", "verify"]);
}

/// V-1, V-2: a time that no clock can tell is a wrong parameter, by whatever way it comes, and nobody is left
/// without an answer.
#[test]
fn v_2_an_age_beyond_all_clocks_is_refused() {
    let bench = Bench::new();
    for since in ["99999999999999999s", "18446744073709551615s", "15250284452471w"] {
        let told = "parameter `since`: too long ago";
        let path = format!("http://affiant.internal/v1/invocations?since={since}");
        let by_proxy = bench.server.curl(&[&path]);
        assert_eq!(by_proxy.status, 400, "{by_proxy:?}");
        assert_eq!(by_proxy.json()["detail"], told);
        let by_socket = bench.home.run(&["inv", "list", "--since", since]);
        assert_eq!(by_socket.status.code(), Some(2));
        assert!(text(&by_socket.stderr).contains(told), "{by_socket:?}");
        let mut own = std::process::Command::new("ssh");
        own.arg("-F").arg(&bench.config).args(["-o", "BatchMode=yes", "affiant-gateway"]);
        own.args(["inv", "list", "--since", since]);
        clean(&mut own);
        let by_ssh = finish(own, b"");
        let expected = format!("affiant: INVALID_PARAMETER: {told}\n");
        assert_eq!((by_ssh.status.code(), text(&by_ssh.stderr)), (Some(2), expected));
    }
}

/// K-7: what came over SSH is asked about by a server that takes no SSH any more.
#[test]
fn k_7_a_call_of_a_gateway_that_is_off_is_asked_about() {
    let rule = "[ssh.reconcile]\ncommand = \"echo done {invocation_id}\"\n\
                committed = { stdout = \"done act_*\" }\n";
    let bench = Bench::with("", rule);
    let lost = finish(bench.ssh(&[], "kill -9 $PPID"), b"");
    assert_eq!(lost.status.code(), Some(255));
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let Bench { home, sshd: _sshd, server, .. } = bench;
    assert_eq!(server.terminate(), Some(0));
    let mut command = home.command(&["serve", "--http", "127.0.0.1:0", "--ssh", "off", "--json"]);
    let mut served = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = BufReader::new(served.stdout.take().unwrap()).lines();
    assert!(ready.next().unwrap().unwrap().contains("ready"));
    let asked = home.run(&["inv", "reconcile", &id]);
    signal(&served, rustix::process::Signal::TERM);
    assert_eq!(wait(&mut served, PATIENCE).code(), Some(0));
    assert_eq!(asked.status.code(), Some(0), "{}", text(&asked.stderr));
    assert_eq!(home.json(&["inv", "show", &id])["error"]["outcome"], "committed");
}
