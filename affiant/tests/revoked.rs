//! Calls that wait for a person or for their connection when the access of their agent ends (contract V-6,
//! D-1); what is open at the origin is in `open_calls.rs`.

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

use conformance::http::Script;
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use support::*;

const ASK: &str = "approval = \"required\"\n";

/// How an agent's access ends.
const CHANGES: [&str; 2] = ["rm", "rotate"];

/// The id of the one call that waits for a person.
fn waiting(home: &Home) -> String {
    let list = || home.json(&["approval", "list"])["approvals"].as_array().unwrap().clone();
    eventually("a question", || !list().is_empty());
    list()[0]["invocation_id"].as_str().unwrap().to_owned()
}

/// Approves the call once the access of its agent has changed: that of a removed agent can't be sent by
/// anybody, so there is nothing to approve; one by an older token is approved and not sent.
fn approve_after(change: &str, home: &Home, id: &str) {
    home.ok(&["agent", change, "coder"]);
    let output = home.run(&["approval", "approve", id]);
    let expected = if change == "rm" { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{change}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr).contains("UNSENDABLE"), change == "rm");
    if change == "rm" {
        home.ok(&["approval", "deny", id]);
    }
}

/// The call is over, and says that nothing was sent.
fn not_sent(home: &Home, id: &str) {
    let record = home.json(&["inv", "show", id]);
    assert_eq!(
        (&record["error"]["outcome"], &record["evidence"]["dispatch_started"]),
        (&"not_attempted".into(), &false.into()),
        "{record}"
    );
    home.ok(&["journal", "verify"]);
}

fn origin() -> (Home, TlsOrigin) {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 201, &[], "paid")]);
    home.secret("pay-token", SECRET);
    (home, origin)
}

/// V-6: an approval is no access: a call whose agent was removed or got a new token while it waited is
/// not sent when it is approved, and its caller is told why.
#[test]
fn v_6_an_approved_call_of_an_agent_without_access_is_not_sent() {
    for change in CHANGES {
        let (home, origin) = origin();
        home.policy(&origin.policy(ASK));
        let server = home.serve();
        let url = origin.url("/charge");
        let (id, response) = std::thread::scope(|scope| {
            let call = scope.spawn(|| server.curl(&["-d", "amount=10", &url]));
            let id = waiting(&home);
            approve_after(change, &home, &id);
            (id, call.join().unwrap())
        });
        assert_eq!(response.status, 407, "{response:?}");
        assert_eq!(response.json()["error"]["code"], "AGENT_UNAUTHENTICATED");
        let code = if change == "rm" { "APPROVAL_DENIED" } else { "AGENT_UNAUTHENTICATED" };
        assert_eq!(home.json(&["inv", "show", &id])["error"]["code"], code);
        not_sent(&home, &id);
        assert_eq!(origin.origin.effects("/charge"), 0);
    }
}

/// V-1: a caller that waits for a person hears at once that its access is over.
#[test]
fn v_1_who_waits_without_access_waits_no_longer() {
    for change in CHANGES {
        let (home, origin) = origin();
        home.policy(&origin.policy(ASK));
        let server = home.serve();
        let url = origin.url("/charge");
        let response = std::thread::scope(|scope| {
            // Longer than curl waits.
            let call = scope.spawn(|| server.curl(&["-H", "Affiant-Wait: 600", "-d", "a=1", &url]));
            waiting(&home);
            home.ok(&["agent", change, "coder"]);
            call.join().unwrap()
        });
        assert_eq!(response.status, 407, "{response:?}");
        assert_eq!(response.json()["error"]["code"], "AGENT_UNAUTHENTICATED");
        assert_eq!(origin.origin.effects("/charge"), 0);
    }
}

/// V-6: the same for a command.
#[test]
fn v_6_an_approved_command_of_an_agent_without_access_does_not_run() {
    for change in CHANGES {
        let bench = target::Bench::with("", ASK);
        let marker = bench.home.path().join("ran");
        let command = format!("touch {}", marker.display());
        let (id, output) = std::thread::scope(|scope| {
            let ssh = scope.spawn(|| finish(bench.ssh(&[], &command), b""));
            let id = waiting(&bench.home);
            approve_after(change, &bench.home, &id);
            (id, ssh.join().unwrap())
        });
        assert_eq!(output.status.code(), Some(255), "{output:?}");
        not_sent(&bench.home, &id);
        assert!(!marker.exists());
    }
}

/// D-1: a call whose agent was removed while its connection was set up is not sent.
#[test]
fn d_1_an_access_that_ends_during_the_setup_dispatches_nothing() {
    let (home, origin) = origin();
    // The way to the origin waits to be opened.
    let gate = TcpListener::bind("127.0.0.1:0").unwrap();
    let behind = origin.origin.address();
    let port = gate.local_addr().unwrap().port();
    let policy = origin.policy("").replace(&behind.port().to_string(), &port.to_string());
    home.policy(&policy);
    let server = home.serve();
    let (taken, is_taken) = mpsc::channel();
    let (open, is_open) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let (near, _) = gate.accept().unwrap();
        taken.send(()).unwrap();
        if is_open.recv().is_ok() {
            let far = TcpStream::connect(behind).unwrap();
            let ways = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
            for (from, to) in ways {
                let (mut from, mut to) = (from.unwrap(), to.unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let url = format!("https://localhost:{port}/charge");
    let response = std::thread::scope(|scope| {
        let call = scope.spawn(|| server.curl(&["-d", "amount=10", &url]));
        is_taken.recv_timeout(PATIENCE).unwrap();
        home.ok(&["agent", "rm", "coder"]);
        open.send(()).unwrap();
        call.join().unwrap()
    });
    assert_eq!(response.status, 407, "{response:?}");
    let told: Value = response.json();
    assert_eq!(told["error"]["code"], "AGENT_UNAUTHENTICATED");
    not_sent(&home, told["invocation_id"].as_str().unwrap());
    assert_eq!(origin.origin.effects("/charge"), 0);
}

/// V-6, V-1: an approval of a caller that went away is no good for another agent of that name, nor for the
/// same one with another token.
#[test]
fn v_6_an_approval_is_of_the_agent_that_asked() {
    for change in CHANGES {
        let (home, origin) = origin();
        home.policy(&origin.policy(ASK));
        let server = home.serve();
        let url = origin.url("/charge");
        let ask = |proxy: &str, body: &str| {
            server.curl(&["-x", proxy, "-H", "Affiant-Wait: 0", "-d", body, &url])
        };
        let first = ask(&server.proxy(), "a=1");
        assert_eq!(first.json()["error"]["code"], "APPROVAL_PENDING");
        home.ok(&["approval", "approve", &first.invocation()]);
        let made = if change == "rm" {
            home.ok(&["agent", "rm", "coder"]);
            home.json(&["agent", "add", "coder"])
        } else {
            home.json(&["agent", "rotate", "coder"])
        };
        let token = made["token"].as_str().unwrap();
        let proxy = format!("http://coder:{token}@{}", server.http);
        let back = ask(&proxy, "a=1");
        assert_eq!(back.json()["error"]["code"], "AGENT_UNAUTHENTICATED", "{change}");
        assert_eq!(back.invocation(), first.invocation());
        not_sent(&home, &first.invocation());
        // Asked for anew, it is another question.
        let anew = ask(&proxy, "a=1");
        assert_eq!(anew.json()["error"]["code"], "APPROVAL_PENDING", "{change}");
        home.ok(&["approval", "approve", &anew.invocation()]);
        assert_eq!(ask(&proxy, "a=1").status, 201, "{change}");
        assert_eq!(origin.origin.effects("/charge"), 1);
    }
}
