//! Other people's tools against the real binary: varnishtest's scripts of framing, slowhttptest.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Origin, Script};
use std::process::{Command, Stdio};
use support::peers::program;
use support::*;

/// A policy for one port of loopback in clear text.
fn clear(port: u16) -> String {
    format!(
        r#"
[[route]]
name = "clear"
agents = ["coder"]
match = {{ scheme = "http", host = "127.0.0.1", port = {port}, path = "/**" }}
private_addresses = "allow"
"#
    )
}

/// Runs a script of varnishtest with the proxy between its client and its server.
fn script(name: &str) {
    let home = Home::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    home.policy(&clear(port));
    let server = home.serve();
    let mut command = Command::new("varnishtest");
    command.arg("-D").arg(format!("proxy={}", server.http)).arg("-D").arg(format!("port={port}"));
    command.arg("-D").arg(format!("token={}", home.token)).arg("-t").arg("30");
    command.arg(program(name));
    clean(&mut command);
    let said = succeed(command);
    assert!(said.contains("passed"), "{said}");
}

#[test]
fn varnishtest_agrees_where_messages_end() {
    script("framing.vtc");
}

/// V-1 and S-6: what can be framed in two ways is refused, or is no answer.
#[test]
fn v_1_s_6_varnishtest_finds_doubtful_framing_refused() {
    script("broken.vtc");
}

/// Slow heads, slow content and slow readers hold their connections, and nobody else's call.
#[test]
fn slowhttptest_holds_nobody_up() {
    let home = Home::new();
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
    home.policy(&clear(origin.address().port()));
    let server = home.serve();
    let target = format!("http://{}/", server.http);
    let mut attacks: Vec<_> = ["-H", "-B", "-X"]
        .into_iter()
        .map(|mode| {
            let mut command = Command::new("slowhttptest");
            command.args([mode, "-c", "300", "-r", "150", "-i", "2", "-l", "6", "-p", "5"]);
            command.args(["-v", "0", "-u", &target]);
            clean(&mut command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let url = format!("http://{}/call", origin.address());
    let descriptors = format!("/proc/{}/fd", server.child.id());
    let (mut most, mut calls) = (0, 0);
    while attacks.iter_mut().any(|attack| attack.try_wait().unwrap().is_none()) {
        most = most.max(std::fs::read_dir(&descriptors).unwrap().count());
        assert_eq!(server.curl(&[&url]).status, 200);
        calls += 1;
    }
    assert!(most > 300, "the attack held {most} descriptors at most");
    assert_eq!(origin.effects("/call"), calls);
}
