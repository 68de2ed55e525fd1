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

#[path = "support/service.rs"]
mod service;
mod support;

use conformance::http::Script;
use conformance::nginx::Nginx;
use service::{Done, Service};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use support::*;

fn answers() -> Vec<Script> {
    vec![Script::answer("*", 200, &[], "ok")]
}

/// S-6: the roots that origins are verified by are those of the machine; without them a private CA is none.
#[test]
fn s_6_the_roots_of_the_machine_are_trusted() {
    let home = Home::new();
    let origin = TlsOrigin::start(answers());
    home.policy("[defaults]\nprivate_addresses = \"allow\"\negress = \"allow\"\n");
    let roots = format!("SSL_CERT_FILE={}", origin.ca_file.path().display());
    for (by, status) in [(&["env", &roots][..], 200), (&[], 502)] {
        let server = Server::start_by(&home, by);
        let response = server.curl(&[&origin.url("/")]);
        assert_eq!(response.status, status, "{response:?}");
        if status == 502 {
            assert_eq!(response.json()["error"]["code"], "TLS_CERTIFICATE_ERROR");
        }
        server.kill();
    }
    assert_eq!(origin.origin.seen().len(), 1);
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

/// the result with the largest head that an origin may send can be fetched.
#[test]
fn r_2_a_result_with_the_largest_head_can_be_fetched() {
    // With the two that frame it.
    let fields: String = (0..98).map(|i| format!("X-{i}: v\r\n")).collect();
    let service = Service::start(move |_| Done::and_answers(200, &fields, "ok"));
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&service.policy(""));
    let server = home.serve();
    let response = server.curl(&["-d", "x", &service.url("/")]);
    assert_eq!((response.status, text(&response.body)), (200, "ok".to_owned()));
    assert_eq!(home.ok(&["inv", "result", &response.invocation()]), "ok");
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

/// One response with a length, off a connection that stays open.
fn one_response(stream: &mut TcpStream) -> Response {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut response =
        Response { exit: None, status, head, body: Vec::new(), stderr: String::new() };
    let length = response.field("content-length").unwrap().parse().unwrap();
    response.body.resize(length, 0);
    reader.read_exact(&mut response.body).unwrap();
    response
}

/// C-1: out of descriptors nothing can be dialled: that is the broker's own lack, nothing was attempted, and
/// it passes. Who knocks meanwhile is served afterwards.
#[test]
fn c_1_without_descriptors_nothing_is_dialled() {
    let home = Home::new();
    let origin = service::Service::start(|_| service::Done::and_answers(200, "", "ok"));
    home.secret("pay-token", SECRET);
    let named = "[[route]]\nname = \"named\"\nagents = [\"coder\"]\nmatch = { scheme = \"http\", host = \"name.test\" }\n";
    home.policy(&format!("{}{named}", origin.policy("")));
    let server = home.serve();
    let authority = origin.address().to_string();
    let mut number = 0;
    let mut ask = |stream: &mut TcpStream, authority: &str| {
        number += 1;
        let asked = format!(
            "POST http://{authority}/{number} HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\n\
             Proxy-Authorization: Bearer {}\r\n\r\n",
            home.token
        );
        stream.write_all(asked.as_bytes()).unwrap();
        one_response(stream)
    };
    let mut kept = TcpStream::connect(server.http).unwrap();
    assert_eq!(ask(&mut kept, "denied.test").status, 403);

    let pid = rustix::process::Pid::from_raw(server.child.id().cast_signed()).unwrap();
    let resource = rustix::process::Resource::Nofile;
    // The server has ours.
    let before = rustix::process::getrlimit(resource);
    let limit = |new| rustix::process::prlimit(Some(pid), resource, new).unwrap();
    limit(rustix::process::Rlimit { current: Some(3), maximum: before.maximum });
    // Neither the name of a destination can be looked up, nor a destination be connected to.
    for (authority, stage) in [("name.test", "resolve"), (authority.as_str(), "tcp_connect")] {
        let response = ask(&mut kept, authority);
        assert_eq!(response.status, 503, "{response:?}");
        let told = response.json();
        let error = &told["error"];
        let facts = ["code", "phase", "outcome", "retry"].map(|name| error[name].as_str().unwrap());
        assert_eq!(facts, ["RESOURCES_EXHAUSTED", "connection_setup", "not_attempted", "backoff"]);
        let attempt = &told["evidence"]["attempts"][0];
        assert_eq!(attempt["stage"], stage, "{told}");
        assert_eq!(attempt["code"], "EMFILE", "{told}");
        let said = response.field("proxy-status").unwrap();
        assert!(said.contains("error=proxy_internal_error"), "{said}");
    }
    assert_eq!(origin.effects(), 0);
    // The system takes the connection; the server can't yet.
    let mut waiting = TcpStream::connect(server.http).unwrap();
    limit(before);
    assert_eq!(ask(&mut waiting, &authority).status, 200);
    assert_eq!(ask(&mut kept, &authority).status, 200);
    assert_eq!(origin.effects(), 2);
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
    answer = session.get(os.environ['BASE'] + '/', stream=True)
    port = answer.raw.connection.sock.getsockname()[1]
    answer.content
    print(answer.status_code, port, flush=True)
";
    let mut command = python();
    command.args(["-c", script]).env("BASE", origin.url("")).env("https_proxy", server.proxy());
    command.env("REQUESTS_CA_BUNDLE", home.path().join("bundle.pem"));
    let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ask = client.stdin.take().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
    ask.write_all(b"\n").unwrap();
    let first = said.next().unwrap().unwrap();
    assert!(first.starts_with("200 "), "{first}");
    home.secret("pay-token", "canary-of-the-second-version");
    ask.write_all(b"\n").unwrap();
    // The same port of the client: it did not connect anew.
    assert_eq!(said.next().unwrap().unwrap(), first);
    drop(ask);
    wait(&mut client, PATIENCE);

    let seen = origin.origin.seen();
    let sent: Vec<_> = seen.iter().filter_map(|seen| seen.field("authorization")).collect();
    assert_eq!(sent, [format!("Bearer {SECRET}"), "Bearer canary-of-the-second-version".into()]);
}
