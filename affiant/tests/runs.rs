//! `affiant run`: what a command is given, what becomes of its exit, and the server that runs share.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Origin, Script, Step};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use support::*;

/// A run whose command says "up" and then waits for a line.
struct Waiting {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    fn start(home: &Home, then: &str) -> Self {
        Self::start_with(home, "warn", then)
    }

    /// With a filter for the server's log, if this run starts one.
    fn start_with(home: &Home, filter: &str, then: &str) -> Self {
        let script = format!("echo up; read line; {then}");
        let mut command = home.command(&["--log", filter, "run", "--", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        Self { child, lines }
    }

    /// Lets it go on, and gives its next line, its exit code and what it said on stderr.
    fn end(mut self) -> (Option<String>, Option<i32>, String) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let line = self.lines.next().map(Result::unwrap);
        let status = wait(&mut self.child, PATIENCE);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut said).unwrap();
        (line, status.code(), said)
    }
}

/// A policy that lets a run reach the origin.
fn plain(origin: &Origin) -> String {
    format!(
        "[[route]]\nname = \"plain\"\nprivate_addresses = \"allow\"\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {} }}\n",
        origin.address().port()
    )
}

/// The server is no run's own: it ends with the last run that uses it, and not before.
#[test]
fn the_server_ends_with_the_last_of_the_runs() {
    let home = Home::new();
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "here")], None).unwrap();
    home.policy(&plain(&origin));
    let call = format!("curl -s http://{}/", origin.address());
    let first = Waiting::start(&home, "exit 3");
    let second = Waiting::start(&home, &call);
    let third = Waiting::start(&home, &call);
    let (line, code, said) = first.end();
    assert_eq!((line, code), (None, Some(3)));
    assert!(said.contains("the server goes on for other runs"), "{said}");
    assert_eq!(second.end().0.as_deref(), Some("here"));
    assert_eq!(third.end().0.as_deref(), Some("here"));
    eventually("the server ended", || !home.path().join("control.sock").exists());
    // Nobody has the home any more, and everything is on record.
    let mut listed = home.run(&["inv", "list", "--json"]);
    eventually("the home is free", || {
        listed = home.run(&["inv", "list", "--json"]);
        listed.status.success()
    });
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["invocations"].as_array().unwrap().len(), 2, "{listed}");
}

/// What the server says when the run that started it is gone is to be found in the home, by its owner alone.
#[test]
fn the_log_of_the_server_outlives_its_starter() {
    let home = Home::new();
    home.policy("[[route]]\nname = \"any\"\nmatch = { scheme = \"https\", host = \"a.test\" }\n");
    let first = Waiting::start_with(&home, "info", "exit 0");
    // Without the variables that name the CA, curl breaks the handshake off.
    let distrusts = "env -u CURL_CA_BUNDLE -u SSL_CERT_FILE curl -s https://a.test/; echo $?";
    let second = Waiting::start(&home, distrusts);
    assert!(first.end().2.contains("the server goes on for other runs"));
    let log = home.path().join("runs.log");
    let told = || std::fs::read_to_string(&log).unwrap();
    let words = "a caller's TLS handshake failed";
    assert!(!told().contains(words), "{}", told());
    assert_eq!(second.end().0.as_deref(), Some("60"));
    eventually("the server said so", || told().contains(words));
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Runs that begin at once find one server among them.
#[test]
fn runs_that_begin_at_once_share_a_server() {
    let home = Home::new();
    let children: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = home.command(&["run", "--", "sh", "-c", "exit 4"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(wait(&mut child, PATIENCE).code(), Some(4));
    }
}

/// A call that the command left behind holds the end back, which is said, and can be left to the server.
#[test]
fn a_run_says_that_it_waits_for_calls_under_way() {
    let home = Home::new();
    let origin = Origin::start(vec![Script::new("*", [Step::Stall])], None).unwrap();
    home.policy(&plain(&origin));
    let script = format!("curl -s http://{}/ & exec sleep 0.3", origin.address());
    let mut command = home.command(&["run", "--", "sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = said.find(|line| line.as_ref().unwrap().contains("waiting for calls under way"));
    assert!(waits.is_some());
    signal(&child, rustix::process::Signal::INT);
    assert_eq!(wait(&mut child, PATIENCE).code(), Some(0));
    drop(origin);
    eventually("the server ended", || !home.path().join("control.sock").exists());
}

/// An empty variable is none, and a home that can't be entered is not called incomplete.
#[test]
fn the_home_is_named_by_flag_or_variable() {
    let home = Home::new();
    let said = |variable: Option<&str>| {
        let mut command = Command::new(BINARY);
        command.args(["inv", "list"]).env("HOME", home.path()).env("XDG_DATA_HOME", "");
        clean(&mut command);
        variable.map(|value| command.env("AFFIANT_HOME", value));
        let output = finish(command, b"");
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let default = home.path().join(".local/share/affiant");
    let missing = format!("affiant: there is no home at {}: run `affiant init`", default.display());
    assert!(said(None).starts_with(&missing), "{}", said(None));
    assert!(said(Some("")).starts_with(&missing), "{}", said(Some("")));
    // Below a file there is no directory.
    let below = home.path().join("policy.toml/home");
    let below = said(below.to_str());
    assert!(below.contains("can't be entered"), "{below}");
}

/// What did not come to its end is told at the end: most programs show nothing of an answer to CONNECT.
#[test]
fn a_run_tells_of_calls_without_an_end() {
    let home = Home::new();
    let origin = Origin::start(vec![Script::apply_and_close("*")], None).unwrap();
    let (_held, closed) = refusing();
    let open = plain(&origin);
    let [own, other] = [origin.address(), closed].map(|at| format!("port = {}", at.port()));
    let policy = open.replace("plain", "closed").replace(&own, &other) + &open;
    home.policy(&policy);
    let script = format!(
        "curl -s https://x.test/; curl -s http://y.test/; curl -s http://{closed}/; \
         curl -s -d a http://{}/; true",
        origin.address()
    );
    let output = home.run(&["run", "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    let told = "affiant: 3 calls were not attempted: affiant inv list --agent local --outcome not_attempted\n\
                affiant: 1 call ended in doubt: affiant inv list --agent local --outcome unknown\n";
    assert!(said.ends_with(told), "{said}");
    for (outcome, number) in [("not_attempted", 3), ("unknown", 1)] {
        let listed = home.json(&["inv", "list", "--agent", "local", "--outcome", outcome]);
        assert_eq!(listed["invocations"].as_array().unwrap().len(), number, "{listed}");
    }
}

/// I-2: what the broker takes secrets from is not inherited.
#[test]
fn i_2_the_command_of_a_run_inherits_no_secret() {
    let home = Home::new();
    home.policy(
        "[[credential]]\nid = \"pay\"\nsecret = \"env:PAY_TOKEN\"\ninject = \"bearer\"\n\
         [[credential]]\nid = \"op\"\nsecret = { exec = [\"/usr/bin/op\", \"read\", \"x\"] }\n\
         inject = \"bearer\"\n\
         [[credential]]\nid = \"kv\"\nsecret = \"vault:kv/data/pay#token\"\ninject = \"bearer\"\n\
         [hashicorp]\naddress = \"https://127.0.0.1:1\"\n",
    );
    let secret = ["PAY_TOKEN", "VAULT_TOKEN", "OP_SERVICE_ACCOUNT_TOKEN", "CREDENTIALS_DIRECTORY"];
    let environment = |more: &[&str]| {
        let mut command = home.command(&[&["run"], more, &["--", "env"]].concat());
        command.env("KEPT", "kept-1");
        secret.iter().for_each(|name| {
            command.env(name, SECRET);
        });
        let output = finish(command, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (seen, said) = environment(&[]);
    assert!(!seen.contains(SECRET) && seen.contains("KEPT=kept-1\n"), "{seen}");
    for name in &secret[..3] {
        assert!(said.contains(&format!("affiant: the command does not get {name}\n")), "{said}");
    }
    let (seen, _) = environment(&["--hide", "KEPT", "--hide", "UNSET"]);
    assert!(!seen.contains("KEPT="), "{seen}");
}

/// `affiant run` passes on exit codes and signals, and the token ends with the run.
#[test]
fn affiant_run_passes_on_exit_code_and_signals() {
    let home = Home::new();
    assert_eq!(home.run(&["run", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(home.run(&["run", "--", "sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    assert_eq!(home.run(&["run", "--", "/no/such/program"]).status.code(), Some(127));
    assert_eq!(home.run(&["run", "--", "/dev/null"]).status.code(), Some(126));

    let mut command = home.command(&[
        "run",
        "--",
        "sh",
        "-c",
        "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done",
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(lines.next().unwrap().unwrap(), "got");
    assert_eq!(wait(&mut child, PATIENCE).code(), Some(5));

    let printed = home.ok(&["run", "--", "sh", "-c", "echo $https_proxy"]);
    let server = home.serve();
    let old = printed.trim().rsplit_once('@').unwrap().0.to_owned();
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "-i",
        "-x",
        &format!("{old}@{}", server.http),
        "http://affiant.internal/",
    ]);
    clean(&mut command);
    assert_eq!(Response::parse(&finish(command, b"")).status, 407);
}
