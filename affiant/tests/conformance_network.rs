//! The network that goes away: caller, broker and origin in network namespaces of their own, and the
//! links between them cut before, during and after a call.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

mod support;

use conformance::http::{Opening, Origin, Script, Step};
use serde_json::Value;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use support::*;

/// Without the right to make namespaces, `outcomes.rs` of the proxy and the truth matrix hold the same
/// at the level of sockets: silence, resets and refused connections.
#[test]
fn x_1_d_4_links_that_are_cut() {
    let status = Command::new("unshare")
        .arg("-n")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_between_links", "--ignored", "--nocapture"])
        .env("AFFIANT_NETWORK_CHILD", "1")
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(1)) | Err(_) => eprintln!("skipped: no right to make a network namespace"),
        other => panic!("{other:?}"),
    }
}

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    succeed(command);
}

/// The broker's namespace, as long as its keeper lives.
struct Beyond(Child);

impl Drop for Beyond {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Beyond {
    /// `c0`-`c1` leads the caller to the broker, `o0`-`o1` the broker to the origin.
    fn new() -> Self {
        let keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn();
        let mut keeper = keeper.unwrap();
        let mut ready = [0; 5];
        std::io::Read::read_exact(&mut keeper.stdout.take().unwrap(), &mut ready).unwrap();
        let beyond = Self(keeper);
        let pid = beyond.0.id();
        ip("link set lo up");
        for (near, far, net) in [("c0", "c1", 1), ("o0", "o1", 2)] {
            ip(&format!("link add {near} type veth peer name {far}"));
            ip(&format!("link set {far} netns {pid}"));
            ip(&format!("addr add 10.9.{net}.1/24 dev {near}"));
            ip(&format!("link set {near} up"));
            for line in
                [format!("addr add 10.9.{net}.2/24 dev {far}"), format!("link set {far} up")]
            {
                let mut inside = Command::new("nsenter");
                inside.args(["-n", "-t", &pid.to_string(), "ip"]).args(line.split(' '));
                succeed(inside);
            }
        }
        beyond
    }
}

#[test]
#[ignore = "it runs in the namespace that the test above makes"]
fn child_between_links() {
    if std::env::var_os("AFFIANT_NETWORK_CHILD").is_none() {
        return;
    }
    let beyond = Beyond::new();
    let home = Home::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
    let held = [Step::ReadBody, Step::Apply, Step::Hold, Step::Send(answer.into())];
    let scripts = vec![Script::answer("/at-once", 200, &[], "ok"), Script::new("*", held)];
    let listener = TcpListener::bind("10.9.2.1:0").unwrap();
    let origin = Origin::spawn(listener, Opening::Serve, scripts, None).unwrap();
    drop(entered);
    // Nobody listens at the second; policy lets the agent go there as well.
    let routes = [origin.address().port(), 9].map(|port| {
        format!(
            "[[route]]\nname = \"r{port}\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
             limits = {{ connect_timeout = \"2s\", response_timeout = \"3s\" }}\n\
             match = {{ scheme = \"http\", host = \"10.9.2.1\", port = {port}, path = \"/**\" }}\n"
        )
    });
    home.policy(&routes.concat());
    let pid = beyond.0.id().to_string();
    let server = beyond_server(&home, &pid);
    let id = |n: u32| format!("act_01ARZ3NDEKTSV4RRFFQ69G6N{n:02}");
    let url = |path: &str| format!("http://{}{path}", origin.address());
    let post = |n: u32, path: &str| {
        let field = format!("Affiant-Invocation: {}", id(n));
        server.curl(&["-d", &format!("n={n}"), "-H", &field, &url(path)])
    };
    assert_eq!(post(1, "/at-once").outcome(), "committed");

    // The link is gone before the call: nothing was sent. On the kept connection nobody can tell.
    let told = |response: &Response| {
        let envelope = response.json();
        (envelope["error"]["outcome"].clone(), envelope["error"]["phase"].clone())
    };
    let fresh = "http://10.9.2.1:9/never";
    ip("link set o0 down");
    let lost = post(2, "/kept");
    assert_eq!(told(&lost), ("unknown".into(), "remote_execution".into()), "{lost:?}");
    let field = format!("Affiant-Invocation: {}", id(3));
    let never = server.curl(&["-d", "a=1", "-H", &field, fresh]);
    assert_eq!(told(&never), ("not_attempted".into(), "connection_setup".into()), "{never:?}");
    ip("link set o0 up");

    cut_under_way(&server, &home, &origin, &id, &url);
    drop(server);
    home.ok(&["journal", "verify"]);
}

/// The links go while the origin works: the origin's, then the caller's.
fn cut_under_way(
    server: &Server,
    home: &Home,
    origin: &Origin,
    id: &dyn Fn(u32) -> String,
    url: &dyn Fn(&str) -> String,
) {
    let begin = |n: u32, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--max-time", "20", "-x", &server.proxy()]);
        command.args(["-H", &format!("Affiant-Invocation: {}", id(n)), "-d"]);
        command.args([&format!("n={n}"), &url(path)]);
        clean(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let record = |n: u32| -> Value { home.json(&["inv", "show", &id(n)]) };
    let mut caller = begin(4, "/cut-origin");
    eventually("the effect", || origin.effects("/cut-origin") == 1);
    ip("link set o0 down");
    eventually("an end", || record(4)["state"] == "settled");
    assert_eq!(record(4)["error"]["outcome"], "unknown");
    assert_eq!(record(4)["evidence"]["dispatch_started"], true);
    wait(&mut caller, PATIENCE);
    ip("link set o0 up");

    // D-4, R-2: the caller's link goes; the result is read to its end and kept.
    let mut caller = begin(5, "/cut-caller");
    eventually("the effect", || origin.effects("/cut-caller") == 1);
    ip("link set c0 down");
    origin.release();
    eventually("a result", || record(5)["error"]["outcome"] == "committed");
    assert_eq!(home.ok(&["inv", "result", &id(5)]), "done");
    ip("link set c0 up");
    caller.kill().unwrap();
    caller.wait().unwrap();
    assert_eq!((origin.effects("/cut-origin"), origin.effects("/cut-caller")), (1, 1));
}

fn beyond_server(home: &Home, pid: &str) -> Server {
    Server::start_at(home, &["nsenter", "-n", "-t", pid], "10.9.1.2:0")
}
