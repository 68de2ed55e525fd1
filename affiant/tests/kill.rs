//! `kill -9` of the real binary in the middle of a call (X-2, J-7): after a restart the record says
//! what is provable, nothing acknowledged is lost, and the origin counted one effect at most.

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
use serde_json::Value;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use support::*;

fn policy(scheme: &str, port: u16) -> String {
    format!(
        r#"
[[route]]
name = "origin"
agents = ["coder"]
match = {{ scheme = "{scheme}", host = "127.0.0.1", port = {port}, path = "/**" }}
private_addresses = "allow"
"#
    )
}

/// Starts a POST in the background and gives its id.
fn begin(server: &Server, id: &str, url: &str) -> std::process::Child {
    let mut command = std::process::Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "30", "-x", &server.proxy(), "-d", "a=1"]);
    command.args(["-k", "-H", &format!("Affiant-Invocation: {id}"), url]);
    clean(&mut command);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    command.spawn().unwrap()
}

fn id(n: u32) -> String {
    format!("act_01ARZ3NDEKTSV4RRFFQ69G5F{n:02}")
}

fn state(home: &Home, id: &str) -> Value {
    home.json(&["inv", "show", id])
}

fn end(mut child: std::process::Child) {
    wait(&mut child, PATIENCE);
}

/// Before dispatch: the TLS handshake never ends.
#[test]
fn x_2_killed_before_dispatch_is_not_attempted() {
    let home = Home::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    home.policy(&policy("https", port));
    let server = home.serve();
    let curl = begin(&server, &id(1), &format!("https://127.0.0.1:{port}/pay"));
    let (held, _) = silent.accept().unwrap();
    server.await_event(&id(1), "CREDENTIAL_AUTHORIZED");
    server.kill();
    end(curl);
    drop(held);

    let record = state(&home, &id(1));
    assert_eq!(record["error"]["outcome"], "not_attempted");
    assert_eq!(record["error"]["phase"], "connection_setup");
    assert_eq!(record["error"]["code"], "BROKER_RESTARTED");
    assert_eq!(record["evidence"]["dispatch_started"], false);
    home.ok(&["journal", "verify"]);
}

/// After dispatch, before any response byte; the origin has applied the effect.
#[test]
fn x_2_killed_after_dispatch_is_unknown() {
    let home = Home::new();
    let steps = vec![Step::ReadBody, Step::Apply, Step::Stall];
    let origin = Origin::start(vec![Script::new("*", steps)], None).unwrap();
    home.policy(&policy("http", origin.address().port()));
    let server = home.serve();
    let url = format!("http://{}/pay", origin.address());
    let curl = begin(&server, &id(2), &url);
    eventually("the effect", || origin.effects("/pay") == 1);
    server.kill();
    end(curl);

    let record = state(&home, &id(2));
    assert_eq!(record["error"]["outcome"], "unknown");
    assert_eq!(record["error"]["phase"], "remote_execution");
    assert_eq!(record["error"]["code"], "BROKER_RESTARTED");
    assert_eq!(record["error"]["retry"], "reconcile");
    assert_eq!(record["evidence"]["dispatch_started"], true);
    // The same submission again, after the restart, by id and by content: neither is dispatched.
    let server = home.serve();
    let header = format!("Affiant-Invocation: {}", id(2));
    let again = server.curl(&["-d", "a=1", "-H", &header, &url]);
    assert_eq!(again.json()["error"]["code"], "BROKER_RESTARTED", "K-10: {again:?}");
    let again = server.curl(&["-d", "a=1", &url]);
    assert_eq!(
        (again.status, again.json()["error"]["code"].as_str()),
        (424, Some("IN_DOUBT_DUPLICATE"))
    );
    assert_eq!(again.field("x-should-retry"), Some("false"));
    assert_eq!(again.json()["error"]["follow"].as_str(), Some(id(2).as_str()));
    assert_eq!(origin.effects("/pay"), 1);
}

/// Inside the response.
#[test]
fn x_2_killed_inside_the_response_is_unknown() {
    let home = Home::new();
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let steps = vec![Step::ReadBody, Step::Apply, Step::Send(half.into()), Step::Stall];
    let origin = Origin::start(vec![Script::new("*", steps)], None).unwrap();
    home.policy(&policy("http", origin.address().port()));
    let server = home.serve();
    let curl = begin(&server, &id(3), &format!("http://{}/pay", origin.address()));
    let path = format!("invocations/{}", id(3));
    eventually("the response head", || {
        server.control(&path)["evidence"]["response_headers_received"] == true
    });
    server.kill();
    end(curl);

    let record = state(&home, &id(3));
    assert_eq!(record["error"]["outcome"], "unknown");
    assert_eq!(record["evidence"]["response_complete"], false);
    let result = home.run(&["inv", "result", &id(3)]);
    assert!(!result.status.success(), "a cut result was given as whole");
    assert_eq!(origin.effects("/pay"), 1);
}

/// After the commit, before delivery: the caller has not read. The result is there after a restart.
#[test]
fn x_2_killed_between_commit_and_delivery_keeps_the_result() {
    let home = Home::new();
    let body = "x".repeat(900_000);
    let origin = Origin::start(vec![Script::answer("*", 200, &[], &body)], None).unwrap();
    home.policy(&policy("http", origin.address().port()));
    let server = home.serve();
    let mut caller = slow_caller(&server);
    let request = format!(
        "POST http://{origin}/pay HTTP/1.1\r\nHost: {origin}\r\nProxy-Authorization: Bearer {}\r\n\
         Affiant-Invocation: {}\r\nContent-Length: 3\r\n\r\na=1",
        home.token,
        id(4),
        origin = origin.address()
    );
    caller.write_all(request.as_bytes()).unwrap();
    let path = format!("invocations/{}", id(4));
    eventually("the commit", || server.control(&path)["state"] == "settled");
    server.kill();
    drop(caller);

    let record = state(&home, &id(4));
    assert_eq!(record["error"]["outcome"], "committed");
    assert_eq!(record["evidence"]["response_complete"], true);
    assert_eq!(home.ok(&["inv", "result", &id(4)]), body);
    home.ok(&["journal", "verify"]);
    assert_eq!(origin.effects("/pay"), 1);
}

/// A connection whose window is small, so that a response can't be delivered unread.
fn slow_caller(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.http).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Killed at random under load, many times on one home: what was answered as committed is on
/// record as committed, and no record contradicts the origin's count.
#[test]
fn j_7_random_kills_lose_no_acknowledged_call() {
    let home = Home::new();
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
    home.policy(&policy("http", origin.address().port()));
    let mut acknowledged = Vec::new();
    for round in 0_u64..12 {
        let server = home.serve();
        let callers: Vec<_> = (0..4)
            .map(|n| {
                let url = format!("http://{}/p/{round}/{n}/", origin.address());
                let proxy = server.proxy();
                std::thread::spawn(move || load(&proxy, &url))
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(120 + 37 * round));
        server.kill();
        for caller in callers {
            acknowledged.extend(caller.join().unwrap());
        }
    }
    assert!(acknowledged.len() > 50, "only {} calls were answered", acknowledged.len());
    home.ok(&["journal", "verify"]);
    let server = home.serve();
    for id in &acknowledged {
        let record = server.control(&format!("invocations/{id}"));
        assert_eq!(record["error"]["outcome"], "committed", "{record}");
    }
    let mut cursor = String::new();
    loop {
        let page = server.control(&format!("invocations?limit=500{cursor}"));
        for record in page["invocations"].as_array().unwrap() {
            let path = record["target"].as_str().unwrap().split_once("/p/").unwrap().1;
            let effects = origin.effects(&format!("/p/{path}"));
            match record["error"]["outcome"].as_str().unwrap() {
                "committed" => assert_eq!(effects, 1, "{record}"),
                "not_attempted" => assert_eq!(effects, 0, "{record}"),
                _ => assert!(effects <= 1, "{record}"),
            }
        }
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
}

/// POSTs one after the other over one connection until it breaks; gives the ids answered in full.
fn load(proxy: &str, url: &str) -> Vec<String> {
    let mut command = std::process::Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "20", "-x", proxy, "-d", "a=1", "-o", "-"]);
    command.arg(format!("{url}[1-400]"));
    clean(&mut command);
    let output = finish(command, b"");
    let printed = text(&output.stdout);
    printed
        .split("HTTP/1.1 ")
        .filter(|response| response.starts_with("200") && response.ends_with("ok"))
        .filter_map(|response| response.split("invocation=\"").nth(1)?.split('"').next())
        .map(str::to_owned)
        .collect()
}
