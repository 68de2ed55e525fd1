//! What makes two commands the same, and what an approval is good for (contract V-6, K-10).

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

use serde_json::Value;
use support::*;
use target::Bench;

const ID: &str = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn envelope(stderr: &[u8]) -> Value {
    let text = text(stderr);
    let line = text.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no envelope: {text}"))).unwrap()
}

/// K-10: the variables that go along are part of the request, and so is a terminal; what the route does
/// not pass on is not.
#[test]
fn k_10_other_variables_are_another_request() {
    let bench = Bench::with("", "env = [\"LC_V*\"]\n");
    let ask = |set: &str, terminal: &str| {
        let set = format!("SetEnv={set} AFFIANT_INVOCATION={ID}");
        finish(bench.ssh(&["-o", &set, terminal], "echo v=$LC_V"), b"")
    };
    let first = ask("LC_V=1 LC_OTHER=1", "-T");
    assert_eq!((first.status.code(), text(&first.stdout).as_str()), (Some(0), "v=1\n"));
    let same = ask("LC_OTHER=2 LC_V=1", "-T");
    assert_eq!((same.status.code(), text(&same.stdout).as_str()), (Some(0), "v=1\n"));
    for (set, terminal) in [("LC_V=2", "-T"), ("LC_V2=1", "-T"), ("LC_V=1", "-tt")] {
        let other = ask(set, terminal);
        assert_eq!(other.status.code(), Some(255), "{set} {terminal}");
        let told = if terminal == "-tt" { &other.stdout } else { &other.stderr };
        let said = format!("{}{}", text(told), text(&other.stderr));
        assert!(said.contains("IDEMPOTENCY_MISMATCH"), "{set} {terminal}: {said}");
    }
}

/// V-6: what is approved are the variables as well: they are shown, and another value of one is another
/// question.
#[test]
fn v_6_a_command_runs_with_the_variables_that_were_approved() {
    let before = "[approvals]\nwait = \"1s\"\n";
    let bench = Bench::with(before, "approval = \"required\"\nenv = [\"LC_V\"]\n");
    let ask = |value: &str| {
        let set = format!("SetEnv=LC_V={value}");
        finish(bench.ssh(&["-o", &set], "echo v=$LC_V"), b"")
    };
    let first = envelope(&ask("1").stderr);
    assert_eq!(first["error"]["code"], "APPROVAL_PENDING");
    let held = bench.home.json(&["approval", "list"])["approvals"][0].clone();
    assert_eq!(held["request"]["variables"], serde_json::json!([["LC_V", "1"]]));
    assert_eq!(held["request"]["terminal"], false);
    assert!(bench.home.ok(&["approval", "list"]).contains("LC_V=1"));
    bench.home.ok(&["approval", "approve", first["invocation_id"].as_str().unwrap()]);
    let second = envelope(&ask("2").stderr);
    assert_eq!(second["error"]["code"], "APPROVAL_PENDING");
    assert_ne!(second["invocation_id"], first["invocation_id"]);
    let ran = ask("1");
    assert_eq!((ran.status.code(), text(&ran.stdout).as_str()), (Some(0), "v=1\n"));
    let committed = bench.home.json(&["inv", "list", "--outcome", "committed"]);
    assert_eq!(committed["invocations"][0]["invocation_id"], first["invocation_id"]);
}

/// V-6: nobody approves what they can't read to its end. The list says that a command is longer, and
/// `approval show` has all of it, without the secrets in it, on the terminal and in a file.
#[test]
fn v_6_a_long_command_is_shown_to_its_end() {
    let before = "[approvals]\nwait = \"1s\"\n";
    let bench = Bench::with(before, "approval = \"required\"\nenv = [\"LC_V\"]\n");
    let marker = bench.home.path().join("ran");
    let end = format!("touch {}", marker.display());
    // As long as one argument of a program can be here.
    let command = format!("{}echo é --password=hunter2; {end}", "true; ".repeat(20_000));
    let pending = envelope(&finish(bench.ssh(&["-o", "SetEnv=LC_V=1"], &command), b"").stderr);
    assert_eq!(pending["error"]["code"], "APPROVAL_PENDING", "{pending}");
    let id = pending["invocation_id"].as_str().unwrap();
    let held = bench.home.json(&["approval", "list"])["approvals"][0]["request"].clone();
    assert_eq!(held["is_whole"], false);
    assert_eq!(held["command"], format!("{}...", &command[..4096]));
    let hint = format!("(cut: `affiant approval show {id}` shows all of it)");
    assert!(bench.home.ok(&["approval", "list"]).contains(&hint));
    let shown = bench.home.ok(&["approval", "show", id]);
    assert!(shown.trim_end().ends_with(&end), "{}", &shown[shown.len() - 200..]);
    let file = bench.home.path().join("whole");
    bench.home.ok(&["approval", "show", id, "-o", file.to_str().unwrap()]);
    let written = std::fs::read_to_string(&file).unwrap();
    let (head, whole) = written.split_once("\n\n").unwrap();
    let length_bytes = command.len();
    assert_eq!(head, format!("command of {length_bytes} bytes\nvariable [\"LC_V\",\"1\"]"));
    let (start, rest) = whole.split_once("--password=").unwrap();
    assert!(command.starts_with(start) && rest.ends_with(&format!("; {end}")), "{rest}");
    assert!(rest.starts_with("(hidden: 7 bytes"), "{rest}");
    bench.home.ok(&["approval", "approve", id]);
    let ran = finish(bench.ssh(&["-o", "SetEnv=LC_V=1"], &command), b"");
    assert_eq!((ran.status.code(), marker.exists()), (Some(0), true));
    // One that the list shows whole has nothing beside it.
    let short = envelope(&finish(bench.ssh(&[], "true"), b"").stderr);
    let id = short["invocation_id"].as_str().unwrap();
    assert_eq!(bench.home.json(&["approval", "list"])["approvals"][0]["request"]["is_whole"], true);
    let none = bench.home.run(&["approval", "show", id, "-o", file.to_str().unwrap()]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("there is no more to write"));
}

/// V-6: a command is shown whatever it has in it that looks like a secret.
#[test]
fn v_6_a_command_hides_behind_no_secret() {
    let bench = Bench::with("[approvals]\nwait = \"1s\"\n", "approval = \"required\"\n");
    let command = "echo '{\"token\":\"'; echo $(id); echo '\"}' -----BEGIN PRIVATE KEY-----; id";
    let asked = finish(bench.ssh(&[], command), b"");
    assert_eq!(envelope(&asked.stderr)["error"]["code"], "APPROVAL_PENDING");
    let held = bench.home.json(&["approval", "list"])["approvals"][0].clone();
    assert_eq!(
        (&held["request"]["command"], &held["request"]["hidden"]),
        (&command.into(), &0.into())
    );
    let listed = bench.home.ok(&["approval", "list"]);
    assert!(listed.contains(command), "{listed}");
}

/// V-6, V-1: an approval is of the agent that asked. One that is added again under its name, or has another
/// token since, asks anew.
#[test]
fn v_6_an_approval_does_not_outlive_its_agent() {
    let mut bench = Bench::with("[approvals]\nwait = \"1s\"\n", "approval = \"required\"\n");
    let marker = bench.home.path().join("ran");
    let command = format!("echo x >> {}", marker.display());
    let renew = |bench: &Bench| {
        let config = bench.home.ok(&["ssh-config", "--agent", "coder"]);
        std::fs::write(&bench.config, config).unwrap();
    };
    let rotate: &[&[&str]] = &[&["agent", "rotate", "coder"]];
    let replace: &[&[&str]] = &[&["agent", "rm", "coder"], &["agent", "add", "coder"]];
    for change in [rotate, replace] {
        let first = envelope(&finish(bench.ssh(&[], &command), b"").stderr);
        assert_eq!(first["error"]["code"], "APPROVAL_PENDING");
        let id = first["invocation_id"].as_str().unwrap();
        bench.home.ok(&["approval", "approve", id]);
        for arguments in change {
            bench.home.ok(arguments);
        }
        renew(&bench);
        let back = envelope(&finish(bench.ssh(&[], &command), b"").stderr);
        assert_eq!(
            (&back["error"]["code"], &back["invocation_id"]),
            (&"AGENT_UNAUTHENTICATED".into(), &first["invocation_id"])
        );
        assert!(!marker.exists());
    }
    let id = envelope(&finish(bench.ssh(&[], &command), b"").stderr)["invocation_id"].clone();
    bench.home.ok(&["approval", "approve", id.as_str().unwrap()]);
    bench.server.kill();
    bench.server = bench.home.serve();
    renew(&bench);
    assert_eq!(finish(bench.ssh(&[], &command), b"").status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "x\n");
}
