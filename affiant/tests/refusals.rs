//! Bad input: each gets its status, code, phase, field and record, and nothing is dispatched.

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
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;
use support::*;

struct Bench {
    home: Home,
    origin: Origin,
    server: Server,
}

impl Bench {
    fn new() -> Self {
        let home = Home::new();
        let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
        home.secret("pay-token", SECRET);
        home.policy(&format!(
            r#"
[[credential]]
id = "pay"
secret = "pay-token"
inject = "bearer"

[[credential]]
id = "absent"
secret = "no-such-secret"
inject = "bearer"

[[route]]
name = "origin"
agents = ["coder"]
match = {{ scheme = "http", host = "127.0.0.1", port = {port}, path = "/**" }}
credential = "pay"
private_addresses = "allow"
limits = {{ request_bytes = "1KiB" }}

[[route]]
name = "unset"
agents = ["coder"]
match = {{ scheme = "http", host = "127.0.0.1", port = {port}, path = "/unset" }}
credential = "absent"
private_addresses = "allow"

[[route]]
name = "private"
agents = ["coder"]
match = {{ scheme = "http", host = "localhost", port = {port}, path = "/**" }}
"#,
            port = origin.address().port()
        ));
        let server = home.serve();
        Self { home, origin, server }
    }

    /// Sends bytes to the proxy and reads until it closes or answers in full.
    fn raw(&self, request: &str) -> Response {
        let request = request
            .replace("{origin}", &self.origin.address().to_string())
            .replace("{port}", &self.origin.address().port().to_string())
            .replace("{auth}", &format!("Proxy-Authorization: Basic {}", basic(&self.home.token)));
        let mut stream = TcpStream::connect(self.server.http).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = stream.read(&mut buffer).unwrap_or_default();
            bytes.extend_from_slice(&buffer[..read]);
            if read == 0 || is_whole(&bytes) {
                break;
            }
        }
        Response {
            exit: None,
            stderr: String::new(),
            status: text(&bytes).split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0),
            head: text(&bytes).split("\r\n\r\n").next().unwrap().to_owned(),
            body: text(&bytes).split_once("\r\n\r\n").map(|(_, b)| b.into()).unwrap_or_default(),
        }
    }

    /// Expects a refusal before dispatch, with a record of the same content.
    fn refused(&self, request: &str, status: u16, code: &str, phase: &str, field: Option<&str>) {
        let before = self.origin.seen().len();
        let response = self.raw(request);
        let envelope: Value = response.json();
        let error = &envelope["error"];
        assert_eq!(
            (response.status, error["code"].as_str(), error["phase"].as_str()),
            (status, Some(code), Some(phase)),
            "{request:?}: {envelope}"
        );
        assert_eq!(error["outcome"], "not_attempted", "{request:?}");
        assert_eq!(envelope["evidence"]["dispatch_started"], false, "{request:?}");
        assert_eq!(response.outcome(), "not_attempted", "{request:?}");
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
        assert!(response.field("proxy-status").is_some(), "{request:?}");
        if let Some(field) = field {
            assert_eq!(error["field"].as_str(), Some(field), "{request:?}");
        }
        assert_eq!(self.origin.seen().len(), before, "{request:?} reached the origin");
        let id = envelope["invocation_id"].as_str().unwrap();
        let record = self.home.json(&["inv", "show", id]);
        assert_eq!(record["error"]["code"], code, "{request:?}: the record differs");
        assert!(!envelope.to_string().contains(SECRET));
    }
}

fn basic(token: &str) -> String {
    let mut command = std::process::Command::new("base64");
    command.arg("-w0");
    let output = finish(command, format!("coder:{token}").as_bytes());
    text(&output.stdout)
}

fn is_whole(bytes: &[u8]) -> bool {
    let text = text(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    head.lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned))
        .and_then(|length| length.trim().parse::<usize>().ok())
        .is_some_and(|length| body.len() >= length)
}

/// V-1, V-2: malformed heads and framing.
#[test]
fn v_1_malformed_requests_are_refused_with_400() {
    let bench = Bench::new();
    let validation = "validation";
    let head = "POST http://{origin}/x HTTP/1.1\r\nHost: {origin}\r\n{auth}\r\n";
    for (more, what) in [
        ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "CL and TE"),
        ("Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "two lengths"),
        ("Content-Length: 1\r\nContent-Length: 1\r\n\r\n", "two equal lengths"),
        ("Content-Length: +1\r\n\r\n", "sign"),
        ("Transfer-Encoding: chunked, identity\r\n\r\n", "unknown coding"),
        ("Transfer-Encoding : chunked\r\n\r\n", "space before colon"),
        ("X-A: 1\r\n folded\r\n\r\n", "obs-fold"),
        ("X-A: 1\nX-B: 2\r\n\r\n", "bare LF"),
        ("X-A: a\0b\r\n\r\n", "NUL"),
    ] {
        eprintln!("{what}");
        bench.refused(&format!("{head}{more}"), 400, "INVALID_REQUEST", validation, None);
    }
    bench.refused("GET\r\n\r\n", 400, "INVALID_REQUEST", validation, None);
    let origin_form = "GET / HTTP/1.1\r\nHost: a\r\n{auth}\r\n\r\n";
    bench.refused(origin_form, 400, "INVALID_TARGET", validation, None);
}

/// V-1: what a well-formed request can still get wrong.
#[test]
fn v_1_refusals_name_code_and_field() {
    let bench = Bench::new();
    let get = |target: &str, more: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: {{origin}}\r\n{{auth}}\r\n{more}\r\n")
    };
    let validation = "validation";
    bench.refused(&get("http://u:p@{origin}/x", ""), 400, "INVALID_TARGET", validation, None);
    bench.refused(
        &get("http://elsewhere.example/x", ""),
        403,
        "TARGET_NOT_ALLOWED",
        validation,
        None,
    );
    bench.refused(
        &get("http://{origin}/x", "Authorization: Bearer mine\r\n"),
        403,
        "HEADER_FORBIDDEN",
        validation,
        Some("request.headers.authorization"),
    );
    bench.refused(
        &get("http://{origin}/x", "Affiant-Invocation: mine\r\n"),
        400,
        "INVALID_INVOCATION_ID",
        validation,
        Some("request.headers.affiant-invocation"),
    );
    bench.refused(
        &get("http://localhost:{port}/x", "").replace("Host: {origin}", "Host: localhost:{port}"),
        403,
        "ADDRESS_PROHIBITED",
        "connection_setup",
        None,
    );
    bench.refused(
        &format!(
            "POST http://{{origin}}/x HTTP/1.1\r\nHost: {{origin}}\r\n{{auth}}\r\n\
             Content-Length: 2000\r\n\r\n{}",
            "a".repeat(2000)
        ),
        413,
        "PAYLOAD_LIMIT",
        validation,
        None,
    );
    bench.refused(
        &get("http://{origin}/unset", ""),
        500,
        "SECRET_MISSING",
        "credential_injection",
        None,
    );
}

/// An unknown agent is told to authenticate, and the connection stays open.
#[test]
fn v_1_unknown_agents_are_challenged() {
    let bench = Bench::new();
    for request in [
        "GET http://{origin}/x HTTP/1.1\r\nHost: {origin}\r\n\r\n",
        "GET http://{origin}/x HTTP/1.1\r\nHost: {origin}\r\n\
         Proxy-Authorization: Basic Y29kZXI6d3Jvbmc=\r\n\r\n",
        "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n",
    ] {
        let response = bench.raw(request);
        assert_eq!(response.status, 407, "{request}");
        assert!(response.field("proxy-authenticate").unwrap().starts_with("Basic "), "{request}");
        assert_eq!(response.json()["error"]["code"], "AGENT_UNAUTHENTICATED");
    }
    assert_eq!(bench.origin.seen().len(), 0);
}

/// An agent sees its own invocations and nobody else's, and nothing of operators.
#[test]
fn agents_see_only_their_own_invocations() {
    let bench = Bench::new();
    let other = bench.home.json(&["agent", "add", "other"]);
    let response = bench.server.curl(&[&format!("http://{}/x", bench.origin.address())]);
    assert_eq!(response.outcome(), "committed");
    let id = response.invocation();
    let proxy = format!("http://other:{}@{}", other["token"].as_str().unwrap(), bench.server.http);
    // What another agent did is told as what nobody did, in every word.
    let nobodys = "act_00000000000000000000000000";
    for (method, path) in [
        ("GET", ""),
        ("GET", "?wait=1s"),
        ("GET", "/events"),
        ("GET", "/result"),
        ("GET", "/recording"),
        ("GET", "/decision"),
        ("POST", "/retry"),
        ("POST", "/reconcile"),
        ("POST", "/ack"),
    ] {
        let ask = |id: &str| {
            let url = format!("http://affiant.internal/v1/invocations/{id}{path}");
            let response = bench.server.curl(&["-x", &proxy, "-X", method, &url]);
            (response.status, response.json())
        };
        let (status, answer) = ask(&id);
        assert_eq!((status, &answer["code"]), (404, &"NO_SUCH_INVOCATION".into()), "{path}");
        assert_eq!((status, answer), ask(nobodys), "{path}");
    }
    for (path, status, code) in [
        ("stats", 403, "OPERATORS_ONLY"),
        ("nothing", 404, "NO_SUCH_RESOURCE"),
        ("invocations?cursor=abc", 400, "INVALID_PARAMETER"),
        ("invocations?limit=0", 400, "INVALID_PARAMETER"),
        ("invocations?outcome=maybe", 400, "INVALID_PARAMETER"),
        ("invocations?colour=red", 400, "INVALID_PARAMETER"),
    ] {
        let response = bench.server.curl(&[&format!("http://affiant.internal/v1/{path}")]);
        assert_eq!((response.status, response.json()["code"].as_str()), (status, Some(code)));
    }
}

/// An invalid policy names file, line and column, and the version in force stays.
#[test]
fn an_invalid_policy_is_refused_with_line_and_column() {
    let home = Home::new();
    let file = home.path().join("bad.toml");
    std::fs::write(&file, "[defaults]\negress = \"deny\"\nprivat_addresses = \"deny\"\n").unwrap();
    let before = home.json(&["policy", "history"]).as_array().unwrap().len();
    for verb in ["check", "apply"] {
        let output = home.run(&["policy", verb, file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{verb}");
        let said = text(&output.stderr);
        assert!(said.contains("bad.toml:3:1"), "{said}");
        assert!(said.contains("private_addresses"), "the hint is missing: {said}");
    }
    assert_eq!(home.json(&["policy", "history"]).as_array().unwrap().len(), before);
    let output = home.run(&["policy", "apply", "/no/such/policy.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/no/such/policy.toml"));
}

/// A locked vault refuses before dispatch; unlocked, the same call goes through (I-1).
#[test]
fn i_1_a_locked_vault_refuses_until_it_is_unlocked() {
    let home = {
        let directory = tempfile::tempdir().unwrap();
        let mut init = std::process::Command::new(BINARY);
        init.arg("--home").arg(directory.path()).args(["init", "--passphrase"]);
        clean(&mut init);
        let output = finish(init, b"correct horse\n");
        assert!(output.status.success(), "{}", text(&output.stderr));
        directory
    };
    let command = |arguments: &[&str]| {
        let mut command = std::process::Command::new(BINARY);
        command.arg("--home").arg(home.path()).args(arguments);
        clean(&mut command);
        command
    };
    let added = succeed(command(&["agent", "add", "coder", "--json"]));
    let added: Value = serde_json::from_str(&added).unwrap();
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
    let policy = home.path().join("p.toml");
    std::fs::write(
        &policy,
        format!(
            "[[credential]]\nid = \"pay\"\nsecret = \"pay-token\"\ninject = \"bearer\"\n\
             [[route]]\nname = \"o\"\nagents = [\"coder\"]\ncredential = \"pay\"\n\
             private_addresses = \"allow\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/**\" }}\n",
            origin.address().port()
        ),
    )
    .unwrap();
    succeed(command(&["policy", "apply", policy.to_str().unwrap()]));

    let mut serve = command(&["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"]);
    serve.stdout(std::process::Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let http = lines.next().unwrap().unwrap().rsplit(' ').next().unwrap().to_owned();
    let proxy = format!("http://coder:{}@{http}", added["token"].as_str().unwrap());
    let call = || {
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "-i", "-x", &proxy, &format!("http://{}/x", origin.address())]);
        clean(&mut curl);
        Response::parse(&finish(curl, b""))
    };
    let refused = call();
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["error"]["code"], "VAULT_LOCKED");
    assert_eq!(refused.json()["error"]["phase"], "credential_injection");
    assert_eq!(refused.json()["error"]["retry"], "after_correction");
    assert_eq!(origin.seen().len(), 0);

    let wrong = finish(command(&["vault", "unlock"]), b"wrong\n");
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(text(&wrong.stderr).contains("WRONG_PASSPHRASE"));
    let right = finish(command(&["vault", "unlock"]), b"correct horse\n");
    assert!(right.status.success(), "{}", text(&right.stderr));
    assert_eq!(call().json()["error"]["code"], "SECRET_MISSING");
    // The server has the vault open, this command does not: the value goes by the socket.
    let set = finish(command(&["secret", "set", "pay-token"]), SECRET.as_bytes());
    assert!(set.status.success(), "{}", text(&set.stderr));
    assert_eq!(call().status, 200);
    succeed(command(&["vault", "lock"]));
    let unasked = finish(command(&["secret", "set", "pay-token"]), b"value");
    assert_eq!(unasked.status.code(), Some(2));
    assert!(text(&unasked.stderr).contains("affiant vault unlock"), "{}", text(&unasked.stderr));
    let both = finish(command(&["secret", "set", "pay-token"]), b"correct horse\nother");
    assert!(both.status.success(), "{}", text(&both.stderr));
    assert_eq!(call().json()["error"]["code"], "VAULT_LOCKED");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A second server on the same home says so, and the first one goes on.
#[test]
fn a_second_server_on_the_same_home_is_refused() {
    let bench = Bench::new();
    let output = bench.home.run(&["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("already serves"), "{}", text(&output.stderr));
    let response = bench.server.curl(&[&format!("http://{}/x", bench.origin.address())]);
    assert_eq!(response.status, 200);
}
