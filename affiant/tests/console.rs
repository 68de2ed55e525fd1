//! The console's page against the real API: its own script runs in Node, and what it shows is compared
//! (contract V-6).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/ssh.rs"]
mod ssh;
mod support;

use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use support::*;

/// What the page shows.
fn shown(home: &Home, server: &Server) -> Value {
    let mut node = Command::new("node");
    clean(&mut node);
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/console.cjs"));
    node.arg(format!("http://{}", server.console.unwrap()));
    node.arg(std::fs::read_to_string(home.path().join("console.token")).unwrap());
    serde_json::from_str(&succeed(node)).unwrap()
}

/// V-6: the page shows all that is asked of a command over SSH: its text, the variables that go along and
/// the terminal; and it says where it does not show the whole.
#[test]
fn v_6_the_console_shows_a_command_with_its_circumstances() {
    let sshd = ssh::Sshd::start();
    let home = Home::new();
    home.secret("deploy-key", &sshd.user_key);
    let route = "approval = \"required\"\nenv = [\"LC_V\"]\n";
    home.policy(&format!("[approvals]\nwait = \"1s\"\n{}{route}", sshd.policy(&sshd.host_key)));
    let server = Server::start_with(&home, &["--console", "127.0.0.1:0"]);
    let config = home.path().join("ssh_config");
    std::fs::write(&config, home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
    let ask = |options: &[&str], command: &str| {
        let mut client = Command::new("ssh");
        client.arg("-F").arg(&config).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
        client.args(options).arg("-J").arg(format!("coder@{}", server.ssh));
        client.arg(format!("{}@prod-1", ssh::user())).arg(command);
        clean(&mut client);
        assert_eq!(finish(client, b"").status.code(), Some(255));
    };
    ask(&["-tt", "-o", "SetEnv=LC_V=/tmp/evil"], "make");
    let long = format!("{}hidden", "true; ".repeat(1000));
    ask(&["-T"], &long);
    let page = shown(&home, &server);
    let facts = |at: usize, name: &str| -> Vec<String> {
        let all = page["held"][at].as_array().unwrap().iter();
        let named = all.filter(|fact| fact[0] == name);
        named.map(|fact| fact[1].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(page["held"].as_array().unwrap().len(), 2, "{page}");
    assert_eq!(facts(0, "command"), ["make"]);
    assert_eq!(facts(0, "variable"), ["LC_V=/tmp/evil"]);
    assert_eq!(facts(0, "terminal"), ["yes"]);
    assert!(facts(0, "not shown").is_empty());
    assert_eq!(facts(1, "command"), [format!("{}...", &long[..4096])]);
    assert!(facts(1, "variable").is_empty() && facts(1, "terminal").is_empty());
    let id = &facts(1, "id")[0];
    assert_eq!(facts(1, "not shown"), [format!("it is cut: affiant approval show {id}")]);
}

/// The page leads to all invocations, fifty at a time.
#[test]
fn the_console_leads_to_older_invocations() {
    let home = Home::new();
    home.policy("");
    let server = Server::start_with(&home, &["--console", "127.0.0.1:0"]);
    // None of them is allowed, and each is on record.
    let asked = server.curl(&["http://localhost:1/[1-51]"]);
    assert_eq!(asked.exit, Some(0), "{}", asked.stderr);
    let listed = home.json(&["inv", "list", "--limit", "500"])["invocations"].clone();
    let ids: Vec<&Value> =
        listed.as_array().unwrap().iter().map(|one| &one["invocation_id"]).collect();
    assert_eq!(ids.len(), 51);
    assert_eq!(shown(&home, &server)["pages"], json!([ids[..50], ids[50..]]));
}

/// A connection that never says what it wants, from whoever reaches the port, keeps no server from its end.
#[test]
fn half_a_request_at_the_console_holds_no_server_up() {
    let home = Home::new();
    let server = Server::start_with(&home, &["--console", "127.0.0.1:0", "--drain", "1s"]);
    let mut silent = std::net::TcpStream::connect(server.console.unwrap()).unwrap();
    silent.write_all(b"GET /v1/health HTTP/1.1\r\nHo").unwrap();
    // Connections are taken in their order.
    shown(&home, &server);
    assert_eq!(server.terminate(), Some(0));
}
