//! Cases of docs/http-cases.md that no other test holds: what users of such proxies reported, against
//! the real binary.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::Script;
use conformance::nginx::Nginx;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use support::*;

fn answers() -> Vec<Script> {
    vec![Script::answer("*", 200, &[], "ok")]
}

/// A name that policy refuses is not looked up, so that names carry nothing out; a name that it allows
/// is looked up once, and what came out is what is checked and dialled: nothing to rebind.
#[test]
fn names_are_looked_up_after_policy_and_once() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let trace = home.path().join("trace");
    let file = trace.to_str().unwrap();
    let by = ["strace", "-D", "-f", "-qq", "-e", "trace=openat", "-o", file];
    let server = Server::start_by(&home, &by);
    let lookups = || {
        let text = std::fs::read_to_string(&trace).unwrap();
        text.lines().filter(|line| line.contains("\"/etc/hosts\"")).count()
    };
    let before = lookups();
    assert_eq!(server.curl(&["http://secret-data.example.com/"]).status, 403);
    assert_eq!(server.curl(&["https://secret-data.example.com/"]).status, 403);
    assert_eq!(lookups(), before, "a refused name was looked up");
    assert_eq!(server.curl(&[&origin.url("/")]).status, 200);
    assert_eq!(lookups(), before + 1, "an allowed name is looked up once");

    // What it leads to is checked: loopback needs the route's word.
    home.policy(&origin.policy("").replace("private_addresses = \"allow\"", ""));
    let response = server.curl(&[&origin.url("/")]);
    assert_eq!((response.status, response.outcome()), (403, "not_attempted"));
    let proxy_status = response.field("proxy-status").unwrap();
    assert!(proxy_status.contains("error=destination_ip_prohibited"), "{proxy_status}");
}

/// A rule for a path holds for what the path means; what passes is forwarded as it was written.
#[test]
fn dot_segments_do_not_lead_out_of_a_route() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy("").replace("\"/**\"", "\"/public/**\""));
    let server = home.serve();
    for path in ["/public/../secret", "/public/%2e%2e/secret", "/public/.%2E/secret", "/secret"] {
        let response = server.curl(&["--path-as-is", &origin.url(path)]);
        assert_eq!(response.status, 403, "{path}");
    }
    assert_eq!(origin.origin.seen().len(), 0);
    for path in ["/public/./a%2Fb/c?", "/public//a", "/public/../public/x"] {
        assert_eq!(server.curl(&["--path-as-is", &origin.url(path)]).status, 200, "{path}");
        assert_eq!(origin.origin.seen().pop().unwrap().target(), path);
    }
}

/// A field for proxies that a client sends inside of its tunnel does not reach the origin either.
#[test]
fn proxy_authorization_inside_a_tunnel_stays() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let inside = ["-H", "Proxy-Authorization: Basic aW5zaWRl", &origin.url("/")];
    assert_eq!(server.curl(&inside).status, 200);
    assert_eq!(origin.origin.seen()[0].field("proxy-authorization"), None);
}

/// An address of IPv6 in brackets, in the tunnel's target, the leaf, the certificate and `Host`.
#[test]
fn addresses_of_ipv6_are_targets() {
    let site = Nginx::start("listen [::1]:{port} ssl; return 200 $http_host;", |_| Ok(())).unwrap();
    let home = Home::new();
    let policy = plain_policy(&site.ca_file(), site.port());
    home.policy(&policy.replace("\"localhost\"", "\"::1\"").replace("\"local\"", "\"coder\""));
    let server = home.serve();
    let response = server.curl(&[&format!("https://[::1]:{}/", site.port())]);
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(text(&response.body), format!("[::1]:{}", site.port()));
}

fn connect(server: &Server, token: &str, port: u16) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\
         Proxy-Authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    (stream, text(&status[9..]))
}

/// Many tunnels at once are no attack on the login, and a wrong token locks nobody out.
#[test]
fn tunnels_at_once_are_not_login_attempts() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let port = origin.origin.address().port();
    let open: Vec<_> = (0..50).map(|_| connect(&server, &home.token, port)).collect();
    assert!(open.iter().all(|(_, status)| status == "200"));
    for _ in 0..50 {
        assert_eq!(connect(&server, "afft_wrong", port).1, "407");
    }
    assert_eq!(connect(&server, &home.token, port).1, "200");
}

/// Out of descriptors, the server goes on as soon as there are some again.
#[test]
fn without_descriptors_the_server_waits() {
    const LIMIT: usize = 100;
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let limited = format!("ulimit -n {LIMIT}; exec \"$@\"");
    let server = Server::start_by(&home, &["sh", "-c", &limited, "sh"]);
    let descriptors = format!("/proc/{}/fd", server.child.id());
    let open: Vec<_> = (0..LIMIT + 20).map(|_| TcpStream::connect(server.http).unwrap()).collect();
    eventually("the last descriptor", || std::fs::read_dir(&descriptors).unwrap().count() >= LIMIT);
    drop(open);
    assert_eq!(server.curl(&[&origin.url("/")]).status, 200);
}

/// A secret that changes while a client keeps its connection is the one of the next request.
#[test]
fn a_kept_tunnel_gets_the_new_secret() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let script = "
import os, sys, requests
session = requests.Session()
for line in sys.stdin:
    print(session.get(os.environ['BASE'] + '/').status_code, flush=True)
";
    let mut command = python();
    command.args(["-c", script]).env("BASE", origin.url("")).env("https_proxy", server.proxy());
    command.env("REQUESTS_CA_BUNDLE", home.path().join("bundle.pem"));
    let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ask = client.stdin.take().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
    ask.write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "200");
    home.secret("pay-token", "canary-of-the-second-version");
    ask.write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "200");
    drop(ask);
    wait(&mut client, PATIENCE);

    let seen = origin.origin.seen();
    let sent: Vec<_> = seen.iter().filter_map(|seen| seen.field("authorization")).collect();
    assert_eq!(sent, [format!("Bearer {SECRET}"), "Bearer canary-of-the-second-version".into()]);
}
