//! Stock clients of four languages against stock servers, through `affiant run`: the same job by
//! everyone, with nothing set up but the environment, and every call on record as committed.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::nginx::Nginx;
use std::path::PathBuf;
use std::process::Command;
use support::peers::{Served, node, program};
use support::*;

/// Bytes that are uploaded and read back.
const LENGTH: usize = 1_200_000;

/// A server's place.
struct Place {
    port: u16,
    ca_file: PathBuf,
}

/// A program that does the job, and its first arguments.
struct Client {
    name: &'static str,
    command: Command,
}

fn shell(name: &'static str) -> Client {
    let mut command = Command::new("sh");
    clean(&mut command);
    command.arg(program("client.sh")).arg(name);
    Client { name, command }
}

fn python_with(name: &'static str) -> Client {
    let mut command = python();
    command.arg(program("client.py")).arg(name);
    Client { name, command }
}

fn node_with(name: &'static str) -> Client {
    let mut command = node();
    command.arg(program("client.cjs")).arg(name);
    Client { name, command }
}

fn java(version: &'static str) -> Client {
    let mut command = Command::new("java");
    clean(&mut command);
    // JDK switches Basic off for tunnels unless it is told otherwise.
    command.arg("-Djdk.http.auth.tunneling.disabledSchemes=");
    command.arg(program("Client.java")).arg(version);
    Client { name: "java", command }
}

fn sha256(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content() -> Vec<u8> {
    (0..LENGTH as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// Runs the steps at the server and compares what the client printed; then the record.
fn check(client: Client, place: &Place, steps: &[&str], expected: &[String]) {
    let home = Home::new();
    home.policy(&plain_policy(&place.ca_file, place.port));
    let file = home.path().join("content");
    std::fs::write(&file, content()).unwrap();
    let base = format!("https://localhost:{}", place.port);

    let mut command = home.command(&["run", "--"]);
    command.current_dir(home.path()).arg(client.command.get_program());
    command.args(client.command.get_args()).args([&base, file.to_str().unwrap()]);
    command.arg(format!("up-{}", home.path().file_name().unwrap().display())).args(steps);
    for (name, value) in client.command.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let said = succeed(command);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, expected, "{}", client.name);

    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let invocations = listed["invocations"].as_array().unwrap();
    assert!(!invocations.is_empty());
    for invocation in invocations {
        // What passes inside of a WebSocket is not judged.
        let socket = invocation["target"].as_str().unwrap().ends_with("/ws");
        let outcome = if socket { "unknown" } else { "committed" };
        assert_eq!(invocation["error"]["outcome"], outcome, "{}: {invocation}", client.name);
    }
}

/// What the steps print.
fn expected(client: &str, steps: &[&str]) -> Vec<String> {
    let digest = sha256(&content());
    let mut lines = Vec::new();
    for step in steps {
        match *step {
            "hello" => lines.push(format!("hello 200 hello by={client}")),
            "files" => lines.extend(["put 201".to_owned(), format!("get 200 {digest}")]),
            "sse" => lines.extend((0..3).map(|number| format!("event {number}"))),
            "ws" => lines.extend(["ws text".to_owned(), format!("ws {digest}")]),
            other => panic!("{other}"),
        }
    }
    lines
}

fn run(client: Client, place: &Place, steps: &[&str]) {
    let lines = expected(client.name, steps);
    check(client, place, steps, &lines);
}

/// A file server that takes uploads, as people set it up.
fn nginx() -> (Nginx, Place) {
    let server = "location /files/ { alias {dir}/www/; dav_methods PUT; }\n\
                  location = /hello { return 200 \"hello $args\"; }";
    let nginx = Nginx::start(server, |_| Ok(())).unwrap();
    let place = Place { port: nginx.port(), ca_file: nginx.ca_file() };
    (nginx, place)
}

fn place(served: &Served) -> Place {
    Place { port: served.port, ca_file: served.ca_file() }
}

/// curl prints the version that was spoken with the proxy; wget speaks 1.1.
fn run_shell(name: &'static str, version: &str, place: &Place, steps: &[&str]) {
    let mut lines = expected(name, steps);
    lines.insert(1, format!("version {version}"));
    check(shell(name), place, steps, &lines);
}

#[test]
fn every_client_at_nginx() {
    let (_nginx, place) = nginx();
    let steps = ["hello", "files"];
    run_shell("curl-h1", "1.1", &place, &steps);
    run_shell("curl-h2", "2", &place, &steps);
    run_shell("wget", "1.1", &place, &steps);
    for library in ["requests", "httpx", "aiohttp"] {
        run(python_with(library), &place, &steps);
    }
    for library in ["fetch", "undici", "axios"] {
        run(node_with(library), &place, &steps);
    }
    run(java("HTTP_1_1"), &place, &steps);
    run(java("HTTP_2"), &place, &steps);
}

/// The next event comes only after the one before it was read: a held event would end in a time-out.
#[test]
fn every_client_at_a_python_server() {
    let served = Served::python();
    let place = place(&served);
    let steps = ["hello", "files", "sse"];
    run_shell("curl-h1", "1.1", &place, &steps);
    run_shell("curl-h2", "2", &place, &steps);
    run(python_with("requests"), &place, &steps);
    run(python_with("httpx"), &place, &steps);
    run(python_with("aiohttp"), &place, &["hello", "files", "sse", "ws"]);
    for library in ["fetch", "undici", "axios"] {
        run(node_with(library), &place, &steps);
    }
    run(java("HTTP_1_1"), &place, &steps);
}

/// A server of HTTP/1.1 and HTTP/2: callers of HTTP/2 get HTTP/2 to the origin.
#[test]
fn every_client_at_a_node_server() {
    let served = Served::node();
    let place = place(&served);
    let steps = ["hello", "files", "sse"];
    run_shell("curl-h1", "1.1", &place, &steps);
    run_shell("curl-h2", "2", &place, &steps);
    run_shell("wget", "1.1", &place, &["hello", "files"]);
    run(python_with("requests"), &place, &steps);
    let mut http2 = python_with("httpx");
    http2.command.env("HTTP2", "1");
    run(http2, &place, &steps);
    run(python_with("aiohttp"), &place, &["hello", "files", "sse", "ws"]);
    for library in ["fetch", "undici", "axios"] {
        run(node_with(library), &place, &steps);
    }
    run(node_with("ws"), &place, &["ws"]);
    run(node_with("ws-h2"), &place, &["ws"]);
    run(java("HTTP_2"), &place, &steps);
}

/// Node's HTTP/2 with the proxy itself, on a listener of TLS: the tunnel is a stream, and HTTP/2 is inside.
#[test]
fn node_speaks_http2_with_the_proxy_itself() {
    let served = Served::node();
    let place = place(&served);
    let home = Home::new();
    home.policy(&plain_policy(&place.ca_file, place.port).replace("\"local\"", "\"coder\""));
    let server = home.serve();
    let file = home.path().join("content");
    std::fs::write(&file, content()).unwrap();
    let mut client = node();
    client.arg(program("client.cjs")).arg("h2-proxy");
    client
        .arg(format!("https://localhost:{}", place.port))
        .arg(&file)
        .arg("up")
        .args(["hello", "files"]);
    client.env(
        "PROXY_OVER_TLS",
        format!("https://coder:{}@localhost:{}", home.token, server.https.port()),
    );
    client.env("NODE_EXTRA_CA_CERTS", home.path().join("ca/ca-cert.pem"));
    let said = succeed(client);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, expected("h2-proxy", &["hello", "files"]));
    let listed = home.json(&["inv", "list", "--agent", "coder"]);
    let invocations = listed["invocations"].as_array().unwrap();
    assert_eq!(invocations.len(), 3, "{listed}");
    assert!(invocations.iter().all(|one| one["error"]["outcome"] == "committed"), "{listed}");
}

/// grpcio on both sides: each kind of method, trailers, and a status that settles the call (S-9).
#[test]
fn s_9_grpcio_calls_every_kind_of_method() {
    let served = Served::start(python(), "grpc_server.py");
    let home = Home::new();
    home.policy(&plain_policy(&served.ca_file(), served.port));
    let python = std::env::var("AFFIANT_TEST_PYTHON").unwrap();
    let client = program("grpc_client.py");
    let target = format!("localhost:{}", served.port);
    let said = home.ok(&["run", "--", &python, client.to_str().unwrap(), &target]);
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "unary one",
        "NOT_FOUND nothing of that name not here",
        "['part 0', 'part 1', 'part 2', 'part 3', 'part 4']",
        "1000000 bytes",
        "echo 0",
        "echo 1",
        "echo 2",
    ];
    assert_eq!(lines, expected);

    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let mut outcomes: Vec<(String, &str)> = Vec::new();
    for invocation in listed["invocations"].as_array().unwrap() {
        let target = invocation["target"].as_str().unwrap();
        let method = target.rsplit('/').next().unwrap().to_owned();
        outcomes.push((method, invocation["error"]["outcome"].as_str().unwrap()));
    }
    outcomes.sort();
    let expected = [
        ("Both", "committed"),
        ("ClientStream", "committed"),
        ("ServerStream", "committed"),
        ("Unary", "committed"),
        ("Unary", "rejected"),
    ];
    assert_eq!(outcomes, expected.map(|(method, outcome)| (method.to_owned(), outcome)));
}

/// E-1, K-11: a client of gRPC that repeats whatever it can is told, in its own terms, what must not be
/// repeated; of a call without an answer there is one effect.
#[test]
fn k_11_grpcio_does_not_repeat_what_is_unknown() {
    let served = Served::start(python(), "grpc_server.py");
    let home = Home::new();
    let route = |name: &str, path: &str, terms: &str| {
        let port = served.port;
        format!(
            "[[route]]\nname = \"{name}\"\nagents = [\"local\"]\n{terms}\n\
             match = {{ scheme = \"https\", host = \"localhost\", port = {port}, path = \"{path}\" }}\n"
        )
    };
    let inward = route("inward", "/demo.Demo/Inward", "private_addresses = \"deny\"");
    let terms = "private_addresses = \"allow\"\nlimits = { response_timeout = \"2s\" }";
    let stuck = route("stuck", "/demo.Demo/Stuck", terms);
    home.policy(&(plain_policy(&served.ca_file(), served.port) + &inward + &stuck));
    let python = std::env::var("AFFIANT_TEST_PYTHON").unwrap();
    let client = program("grpc_retries.py");
    let target = format!("localhost:{}", served.port);
    let said = home.ok(&["run", "--", &python, client.to_str().unwrap(), &target]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("PERMISSION_DENIED not_attempted: "), "{said}");
    assert!(lines[1].starts_with("UNKNOWN unknown: "), "{said}");
    assert_eq!(lines[2], "1");
}
