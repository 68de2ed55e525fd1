//! Where a person meets a held call: the list, the webhook, the console (contract V-6, I-2).

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
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use support::*;

const ASK: &str = "approval = \"required\"\n";

fn expect_pending(response: &Response) -> String {
    let envelope = response.json();
    assert_eq!(
        (response.status, &envelope["error"]["code"], response.outcome()),
        (403, &"APPROVAL_PENDING".into(), "not_attempted"),
        "{envelope}"
    );
    response.invocation()
}

/// A home with a route that asks, its origin and a server with a console.
struct Bench {
    home: Home,
    origin: TlsOrigin,
    server: Server,
}

impl Bench {
    fn new(more: &str) -> Self {
        let home = Home::new();
        let answers =
            || vec![Script::answer("/hook", 204, &[], ""), Script::answer("*", 201, &[], "paid")];
        let origin = TlsOrigin::start(answers());
        home.secret("pay-token", SECRET);
        home.policy(&(more.to_owned() + &origin.policy(ASK)));
        let server = Server::start_with(&home, &["--console", "127.0.0.1:0"]);
        Self { home, origin, server }
    }

    /// A call that waits; its id.
    fn ask(&self, more: &[&str], path: &str) -> String {
        let url = self.origin.url(path);
        let mut arguments = vec!["-H", "Affiant-Wait: 0"];
        arguments.extend(more);
        arguments.push(&url);
        expect_pending(&self.server.curl(&arguments))
    }

    fn waiting(&self) -> Vec<Value> {
        let list = self.home.json(&["approval", "list"]);
        list["approvals"].as_array().unwrap().clone()
    }

    fn console(&self) -> SocketAddr {
        self.server.console.unwrap()
    }

    fn token(&self) -> String {
        std::fs::read_to_string(self.home.path().join("console.token")).unwrap()
    }

    /// A request to the console.
    fn at_console(&self, path: &str, arguments: &[&str]) -> Response {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-i"]).args(arguments);
        curl.arg(format!("http://{}{path}", self.console()));
        clean(&mut curl);
        Response::parse(&finish(curl, b""))
    }
}

/// One request of a webhook: its head and its JSON.
fn receive(stream: &mut TcpStream) -> (String, Value) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        let all = text(&bytes);
        let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
        if let Ok(value) = serde_json::from_str(body) {
            return (head.to_owned(), value);
        }
        assert!(read > 0, "the webhook's request ended early: {all}");
    }
}

/// S-6: a webhook over TLS is told by a verified name only; to any other nothing is said.
#[test]
fn v_6_a_webhook_over_tls_is_verified() {
    let home = Home::new();
    let answers =
        || vec![Script::answer("/hook", 204, &[], ""), Script::answer("*", 201, &[], "paid")];
    let (origin, stranger) = (TlsOrigin::start(answers()), TlsOrigin::start(answers()));
    home.secret("pay-token", SECRET);
    let server = home.serve();
    let noted = |hook: &str, content: &str| {
        home.policy(&(format!("[approvals]\nwebhook = \"{hook}\"\n") + &origin.policy(ASK)));
        let url = origin.url("/charge");
        let pending = server.curl(&["-H", "Affiant-Wait: 0", "-d", content, &url]);
        let id = expect_pending(&pending);
        server.await_event(&id, "NOTED");
        let events = home.json(&["inv", "events", &id]);
        let all = events["events"].as_array().unwrap();
        all.iter().find(|e| e["event"] == "NOTED").unwrap()["data"].clone()
    };
    let told = noted(&origin.url("/hook"), "amount=1");
    assert_eq!(told["name"], "webhook_told", "{told}");
    assert_eq!(origin.origin.seen().len(), 1);
    let refused = noted(&stranger.url("/hook"), "amount=2");
    assert_eq!(refused["name"], "webhook_failed", "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("certificate"), "{refused}");
    assert!(stranger.origin.seen().is_empty());
}

/// What a request holds of secrets: in its query, its fields and its content, and one of the vault.
const OWN: [&str; 5] = ["qs-1f9a77", "hd-77c0e2", "pw-4d2b9e", "ck-99aa31", SECRET];

/// V-6, I-2: the exact request is shown on every surface, and none of the secrets in it on any.
#[test]
fn v_6_no_surface_shows_a_secret_of_the_request() {
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let hook =
        format!("[approvals]\nwebhook = \"http://{}/hook?x=1\"\n", receiver.local_addr().unwrap());
    let bench = Bench::new(&hook);
    let [query, field, password, cookie, vault] = OWN;
    let content = format!(
        r#"{{"amount": 10, "login": {{"password": "{password}"}}, "note": "as {vault}, by bob"}}"#
    );
    let path = format!("/charge?to=bob&api_key={query}&page=2");
    let (field, cookie) = (format!("X-Auth-Token: {field}"), format!("Cookie: s={cookie}"));
    let json = "Content-Type: application/json";
    let id = bench.ask(&["-H", &field, "-H", &cookie, "-H", json, "-d", &content], &path);
    // The first try fails, the second is taken.
    drop(receiver.accept().unwrap());
    let (mut stream, _) = receiver.accept().unwrap();
    let (head, told) = receive(&mut stream);
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /hook?x=1 HTTP/1.1\r\n"), "{head}");
    assert_eq!(
        (&told["event"], &told["invocation_id"]),
        (&"approval_requested".into(), &id.as_str().into())
    );
    assert_eq!(told["approve"], format!("affiant approval approve {id}"));
    bench.server.await_event(&id, "NOTED");

    let bearer = format!("Authorization: Bearer {}", bench.token());
    let console = bench.at_console("/v1/approvals", &["-H", &bearer]);
    let listed = bench.waiting().remove(0);
    let port = bench.origin.origin.address().port();
    for request in
        [&told["request"], &console.json()["approvals"][0]["request"], &listed["request"]]
    {
        let target = request["target"].as_str().unwrap();
        let start =
            format!("https://localhost:{port}/charge?to=bob&api_key=(hidden: 9 bytes, hmac ");
        assert!(target.starts_with(&start) && target.ends_with(")&page=2"), "{target}");
        let shown = request["content"]["text"].as_str().unwrap();
        let start = r#"{"amount": 10, "login": {"password": "(hidden: 9 bytes, hmac "#;
        assert!(shown.starts_with(start) && shown.ends_with(r#", by bob"}"#), "{shown}");
        assert_eq!(request["content"]["length_bytes"], content.len());
        assert_eq!(request["content"]["digest"], Value::Null, "it would check guesses");
        assert_eq!(request["hidden"], 5, "{request}");
    }
    let terminal = bench.home.ok(&["approval", "list"]);
    let record = bench.home.json(&["inv", "events", &id]);
    let all =
        [told.to_string(), text(&console.body), terminal, listed.to_string(), record.to_string()];
    for secret in OWN {
        assert!(all.iter().all(|surface| !surface.contains(secret)), "{secret}: {all:?}");
    }
    // The same values have the same digests, so that two questions can be compared.
    bench.ask(&["-H", &cookie, "-d", "amount=11"], "/charge");
    let headers = |n: usize| -> Vec<Value> {
        let list = bench.waiting();
        let all = list[n]["request"]["headers"].as_array().unwrap().clone();
        all.into_iter().filter(|field| field[0] == "Cookie").collect()
    };
    assert_eq!(headers(0), headers(1));
}

/// V-5, V-6: what can't be sent any more is not said to be sendable, in the list nor on approval.
#[test]
fn v_6_what_became_unsendable_is_told() {
    let bench = Bench::new("");
    let (first, second) =
        (bench.ask(&["-d", "a=1"], "/charge"), bench.ask(&["-d", "a=2"], "/charge"));
    bench.home.ok(&["approval", "approve", &second]);
    let check = |reason: &str| {
        for held in bench.waiting() {
            assert_eq!(held["state"], "unsendable", "{held}");
            assert!(held["unsendable"].as_str().unwrap().contains(reason), "{held}");
        }
        let shown = bench.home.json(&["inv", "show", &second]);
        assert_eq!(shown["approval"]["state"], "unsendable");
        let listed = bench.home.ok(&["approval", "list"]);
        assert!(listed.contains("unsendable") && listed.contains(reason), "{listed}");
        let refused = bench.home.run(&["approval", "approve", &first]);
        assert_eq!(refused.status.code(), Some(1));
        let told = text(&refused.stderr);
        assert!(told.contains("UNSENDABLE") && told.contains(reason), "{told}");
        assert_eq!(text(&refused.stdout), "");
    };
    bench.home.ok(&["agent", "rm", "coder"]);
    check("agent \"coder\" has no access any more");
    bench.home.ok(&["agent", "add", "coder"]);
    assert_eq!(bench.waiting()[0]["state"], "pending");
    bench.home.secret("pay-token", "another");
    check("the secret of credential \"pay\" has version 2");
    bench.home.policy(&bench.origin.policy(ASK));
    check("policy version 3 is in force");
    // To deny it is still an answer.
    bench.home.ok(&["approval", "deny", &first]);
    assert_eq!(bench.waiting().len(), 1);
    assert_eq!(bench.origin.origin.effects("/charge"), 0);
}

/// The console's page comes without a token, and holds nothing; a browser may do with it what it
/// needs, and no more.
#[test]
fn the_console_serves_one_page_under_a_strict_policy() {
    let bench = Bench::new("");
    let id = bench.ask(&["-d", "amount=10"], "/charge");
    let page = bench.at_console("/", &[]);
    assert_eq!(page.status, 200);
    assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
    let html = text(&page.body);
    for never in [id.as_str(), bench.token().as_str(), "/charge", "coder"] {
        assert!(!html.contains(never), "{never}");
    }
    let policy = page.field("content-security-policy").unwrap().to_owned();
    for part in [
        "default-src 'none'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    // The digests are those of what stands in the page: a browser would run nothing else.
    for element in ["script", "style"] {
        let inner = html.split_once(&format!("<{element}>")).unwrap().1;
        let inner = inner.split_once(&format!("</{element}>")).unwrap().0;
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-binary"]);
        let digest = finish(openssl, inner.as_bytes()).stdout;
        let mut base64 = Command::new("base64");
        base64.arg("-w0");
        let digest = text(&finish(base64, &digest).stdout);
        assert!(policy.contains(&format!("{element}-src 'sha256-{digest}'")), "{policy}");
    }
    for (name, value) in [
        ("cache-control", "no-store"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(page.field(name), Some(value));
    }
    assert_eq!(page.field("access-control-allow-origin"), None);
    assert_eq!(page.field("set-cookie"), None);
}

/// Who has no token, or comes by another name, or from another site's page, does nothing.
#[test]
fn the_console_acts_for_its_token_only() {
    let bench = Bench::new("");
    let id = bench.ask(&["-d", "amount=10"], "/charge");
    let approve = format!("/v1/approvals/{id}/approve");
    let bearer = format!("Authorization: Bearer {}", bench.token());
    let check = |arguments: &[&str], status: u16, code: &str| {
        let mut all = vec!["-X", "POST", "-d", r#"{"by":"alice"}"#];
        all.extend(arguments);
        let refused = bench.at_console(&approve, &all);
        assert_eq!((refused.status, &refused.json()["code"]), (status, &code.into()));
        assert_eq!(refused.field("access-control-allow-origin"), None);
        assert_eq!(bench.waiting()[0]["state"], "pending");
    };
    check(&[], 401, "TOKEN_REQUIRED");
    check(&["-H", "Authorization: Bearer wrong"], 401, "TOKEN_REQUIRED");
    check(&["-H", "Origin: https://evil.example"], 401, "TOKEN_REQUIRED");
    check(&["-H", "Authorization: Bearer "], 401, "TOKEN_REQUIRED");
    // The name of the scheme has no case, and what takes GET takes HEAD.
    let lower = bearer.replace("Bearer", "bearer");
    for arguments in [&["-H", &*lower][..], &["--head", "-H", &*bearer]] {
        let listed = bench.at_console("/v1/approvals", arguments);
        assert_eq!(listed.status, 200, "{arguments:?}");
        assert_eq!(listed.body.is_empty(), arguments.contains(&"--head"));
    }
    // A name that leads here by DNS, even with the token; the page neither.
    check(&["-H", "Host: evil.example", "-H", &bearer], 421, "WRONG_HOST");
    assert_eq!(bench.at_console("/", &["-H", "Host: evil.example"]).status, 421);
    // What a browser asks before another site may send the field is not answered with leave.
    let asked = bench.at_console(
        &approve,
        &[
            "-X",
            "OPTIONS",
            "-H",
            "Origin: https://evil.example",
            "-H",
            "Access-Control-Request-Headers: authorization",
        ],
    );
    assert_eq!((asked.status, asked.field("access-control-allow-headers")), (401, None));
    let host = format!("Host: localhost:{}", bench.console().port());
    let approved = bench.at_console(
        &approve,
        &["-X", "POST", "-d", r#"{"by":"alice"}"#, "-H", &bearer, "-H", &host],
    );
    assert_eq!((approved.status, &approved.json()["decided_by"]), (200, &"alice".into()));
    assert_eq!(bench.waiting()[0]["state"], "approved");
}

/// V-6: all of what is approved can be read, without its secrets; what is drawn is what is there.
#[test]
fn v_6_all_of_a_long_request_can_be_read() {
    let bench = Bench::new("");
    let (long, turned) = ("x".repeat(6000), '\u{202e}');
    let content = format!(
        r#"{{"note":"{long}","to":"mallory {turned}ecila","amount":1000000,"pin":"pn-8812"}}"#
    );
    let id = bench.ask(&["-H", "Content-Type: application/json", "-d", &content], "/charge");
    let held = bench.waiting().remove(0);
    assert_eq!(
        (&held["request"]["is_whole"], &held["request"]["hidden"]),
        (&false.into(), &1.into())
    );
    let listed = bench.home.ok(&["approval", "list"]);
    assert!(listed.contains(&format!("affiant approval show {id}")), "{listed}");
    assert!(
        listed.contains("User-Agent: curl/7") && listed.contains("(may differ when it is sent)")
    );
    let whole = bench.home.ok(&["approval", "show", &id]);
    let end = r#"","to":"mallory \u{202e}ecila","amount":1000000,"pin":"(hidden: 7 bytes, hmac "#;
    assert!(whole.contains(end), "{}", &whole[whole.len() - 400..]);
    let file = bench.home.path().join("request.txt");
    bench.home.ok(&["approval", "show", &id, "-o", file.to_str().unwrap()]);
    let written = std::fs::read_to_string(&file).unwrap();
    let start = format!("POST {} HTTP/1.1\n", bench.origin.url("/charge"));
    assert!(written.starts_with(&start) && written.contains("\n\n{\"note\":\"xxx"), "{written}");
    for shown in [&whole, &written, &held.to_string()] {
        assert!(!shown.contains("pn-8812"));
    }
    let refused =
        bench.server.curl(&[&format!("http://affiant.internal/v1/approvals/{id}/request")]);
    assert_eq!((refused.status, &refused.json()["code"]), (403, &"OPERATORS_ONLY".into()));
    bench.home.ok(&["approval", "approve", &id]);
    let named = format!("Affiant-Invocation: {id}");
    let url = bench.origin.url("/charge");
    let json = "Content-Type: application/json";
    let done = bench.server.curl(&["-H", &named, "-H", json, "-d", &content, &url]);
    assert_eq!((done.status, done.outcome()), (201, "committed"));
    assert_eq!(bench.origin.origin.seen()[0].body, content.as_bytes());
    // Content that is no text is told by its digest, and is whole.
    let file = bench.home.path().join("packed");
    std::fs::write(&file, [0x1f, 0x8b, 0xff, 0xfe]).unwrap();
    bench.ask(&["--data-binary", &format!("@{}", file.display())], "/charge");
    let held = bench.waiting().remove(0);
    assert_eq!(held["request"]["content"]["is_text"], false);
    assert!(held["request"]["content"]["digest"].as_str().unwrap().starts_with("sha256:"));
    assert!(bench.home.ok(&["approval", "list"]).contains("no text"));
}
