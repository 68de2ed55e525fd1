//! Stock clients and servers through the real binary: curl, Python requests, Node, git, nginx.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Script, Step};
use conformance::nginx::Nginx;
use support::*;

fn charges() -> Vec<Script> {
    vec![Script::answer("*", 201, &[("X-Request-Id", "req_7")], r#"{"id":"ch_1"}"#)]
}

/// curl over interception: the origin gets the credential, the agent never does, and the answer
/// says what is known (E-4, I-2).
#[test]
fn e_4_curl_post_is_committed_with_the_credential_injected() {
    let home = Home::new();
    let origin = TlsOrigin::start(charges());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();

    let response = server.curl(&["-d", r#"{"amount":1}"#, &origin.url("/v1/charges?x=1")]);
    assert_eq!((response.status, response.body.as_slice()), (201, &br#"{"id":"ch_1"}"#[..]));
    assert_eq!(response.outcome(), "committed");
    let proxy_status = response.field("proxy-status").unwrap();
    assert!(proxy_status.contains("received-status=201"), "{proxy_status}");

    let [seen] = origin.origin.seen().try_into().unwrap();
    assert_eq!(seen.target(), "/v1/charges?x=1");
    assert_eq!(seen.field("authorization"), Some(format!("Bearer {SECRET}")));
    assert_eq!(seen.field("proxy-authorization"), None);
    assert_eq!(seen.body, br#"{"amount":1}"#);

    let state = server.control(&format!("invocations/{}", response.invocation()));
    assert_eq!(state["error"]["outcome"], "committed");
    assert_eq!(state["evidence"]["dispatch_started"], true);
    assert_eq!(state["evidence"]["response_complete"], true);
    assert_eq!(state["evidence"]["completion"], "content_length");
    assert_eq!(state["evidence"]["remote_request_id"], "req_7");
    assert_eq!(state["credential"]["id"], "pay");
    assert!(!state.to_string().contains(SECRET));
    let events = server.control(&format!("invocations/{}/events", response.invocation()));
    let names: Vec<&str> =
        events["events"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    let order = [
        "ACTION_ACCEPTED",
        "PREFLIGHT_VALIDATED",
        "CREDENTIAL_AUTHORIZED",
        "DISPATCH_STARTED",
        "REQUEST_SENT",
        "REMOTE_RESPONSE_STARTED",
        "REMOTE_RESPONSE_COMPLETE",
        "RESULT_COMMITTED",
    ];
    let mut rest = names.iter();
    for name in order {
        assert!(rest.any(|seen| *seen == name), "{name} is missing or out of order in {names:?}");
    }
    assert!(!events.to_string().contains(SECRET));
}

/// Absolute-form over clear text, and the stored result read back by id (R-3).
#[test]
fn r_3_absolute_form_and_the_stored_result() {
    let home = Home::new();
    let origin = conformance::http::Origin::start(charges(), None).unwrap();
    home.policy(&format!(
        r#"
[[route]]
name = "plain"
agents = ["coder"]
match = {{ scheme = "http", host = "127.0.0.1", port = {}, path = "/**" }}
private_addresses = "allow"
"#,
        origin.address().port()
    ));
    let server = home.serve();
    let response = server.curl(&["-d", "a=1", &format!("http://{}/things", origin.address())]);
    assert_eq!((response.status, response.outcome()), (201, "committed"));
    assert_eq!(origin.seen()[0].target(), "/things");

    let url = format!("http://affiant.internal/v1/invocations/{}/result", response.invocation());
    let stored = server.curl(&[&url]);
    assert_eq!((stored.status, &stored.body), (201, &response.body));
    assert_eq!(stored.field("x-request-id"), Some("req_7"));
    let resumed = server.curl(&["-H", "Range: bytes=6-", &url]);
    assert_eq!((resumed.status, resumed.body.as_slice()), (206, &br#""ch_1"}"#[..]));
    // Other ranges are left aside (RFC 9110 section 14.2), and HEAD says the length of GET (section 8.6).
    for range in ["bytes=0-3", "bytes=-3", "bytes=5-2", "items=1-"] {
        let whole = server.curl(&["-H", &format!("Range: {range}"), &url]);
        assert_eq!((whole.status, &whole.body), (201, &response.body), "{range}");
    }
    let head = server.curl(&["-I", &url]);
    assert_eq!((head.status, head.field("content-length")), (201, stored.field("content-length")));
    assert_eq!(stored.field("content-length"), Some("13"));
    assert_eq!(origin.effects("/things"), 1);
    assert_eq!(home.ok(&["inv", "result", &response.invocation()]), r#"{"id":"ch_1"}"#);
}

/// R-3, R-4: the trailers of a stored result are told beside its header fields, not among them.
#[test]
fn r_4_trailers_of_a_stored_result_are_told() {
    let home = Home::new();
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Sum: head\r\n\
                Content-Range: bytes 4-8/9\r\n\r\n\
                5\r\nhello\r\n0\r\nX-Sum: tail\r\nx-more: 2\r\n\r\n";
    let steps = [Step::ReadBody, Step::Apply, Step::Send(text.into())];
    let scripts = vec![Script::new("/sum", steps)];
    let origin = conformance::http::Origin::start(scripts, None).unwrap();
    home.policy("[defaults]\nprivate_addresses = \"allow\"\negress = \"allow\"\n");
    let server = home.serve();
    let response = server.curl(&["-d", "a=1", &format!("http://{}/sum", origin.address())]);
    // curl prints them behind the content.
    let printed = &b"helloX-Sum: tail\r\nx-more: 2\r\n"[..];
    assert_eq!((response.status, response.body.as_slice()), (200, printed));
    let url = format!("http://affiant.internal/v1/invocations/{}/result", response.invocation());
    for range in ["", "bytes=3-"] {
        let stored = server.curl(&["-H", &format!("Range: {range}"), &url]);
        let expected = if range.is_empty() { &b"hello"[..] } else { b"lo" };
        assert_eq!(stored.body, expected, "{stored:?}");
        assert_eq!(stored.field("x-sum"), Some("head"));
        let ranges = stored.head.lines().filter(|line| line.starts_with("content-range: "));
        let range = if range.is_empty() { "bytes 4-8/9" } else { "bytes 3-4/5" };
        assert_eq!(ranges.collect::<Vec<_>>(), [format!("content-range: {range}")]);
        let told = |line: &&str| line.starts_with("affiant-trailer: ");
        let told: Vec<_> = stored.head.lines().filter(told).collect();
        assert_eq!(told, ["affiant-trailer: X-Sum: tail", "affiant-trailer: x-more: 2"]);
    }
    assert_eq!(origin.effects("/sum"), 1);
}

/// The state of the art of clients behind `affiant run`: nothing is configured but the environment.
#[test]
fn python_and_node_behind_affiant_run() {
    let home = Home::new();
    let origin = TlsOrigin::start(charges());
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy("").replace("[\"coder\"]", "[\"local\"]"));
    let url = origin.url("/from");
    let python = std::env::var("AFFIANT_TEST_PYTHON").expect("run the tests by `./dev test`");
    let script = format!(
        "import requests\nr = requests.post('{url}/python', json={{'a': 1}})\n\
         print(r.status_code, r.json()['id'], r.headers['Affiant-Outcome'].split(';')[0])"
    );
    assert_eq!(home.ok(&["run", "--", &python, "-c", &script]), "201 ch_1 committed\n");

    // Python 3.13 verifies strictly by default; the flag asks the same of any version.
    let strict = format!(
        "import ssl, http.client, os, urllib.parse, base64\n\
         p = urllib.parse.urlparse(os.environ['https_proxy'])\n\
         c = ssl.create_default_context()\n\
         c.verify_flags |= ssl.VERIFY_X509_STRICT\n\
         h = http.client.HTTPSConnection(p.hostname, p.port, context=c)\n\
         a = base64.b64encode(f'{{p.username}}:{{p.password}}'.encode()).decode()\n\
         h.set_tunnel('localhost', {port}, headers={{'Proxy-Authorization': 'Basic ' + a}})\n\
         h.request('POST', '/strict', b'x')\n\
         print(h.getresponse().status)",
        port = origin.origin.address().port()
    );
    assert_eq!(home.ok(&["run", "--", &python, "-c", &strict]), "201\n");

    // Node's fetch; the agent reads the variables, as Node's own does with NODE_USE_ENV_PROXY.
    let modules =
        std::env::var("AFFIANT_TEST_NODE_MODULES").expect("run the tests by `./dev test`");
    let node = format!(
        "const {{ fetch, EnvHttpProxyAgent, setGlobalDispatcher }} = require('{modules}/undici');\n\
         setGlobalDispatcher(new EnvHttpProxyAgent());\n\
         fetch('{url}/node', {{ method: 'POST', body: '{{}}' }}).then(async r => console.log(\
           r.status, (await r.json()).id, r.headers.get('affiant-outcome').split(';')[0]))"
    );
    assert_eq!(home.ok(&["run", "--", "node", "-e", &node]), "201 ch_1 committed\n");

    assert_eq!(origin.origin.effects("/from/python"), 1);
    assert_eq!(origin.origin.effects("/strict"), 1);
    assert_eq!(origin.origin.effects("/from/node"), 1);
}

/// `git clone` over intercepted https from nginx with a private CA.
#[test]
fn git_clones_from_nginx_over_interception() {
    let home = Home::new();
    let mut big = Vec::new();
    let site = Nginx::start("", |at| {
        big = repository(at);
        Ok(())
    });
    let site = site.unwrap();
    home.policy(&plain_policy(&site.ca_file(), site.port()));
    let target = home.path().join("clone");
    let url = format!("https://localhost:{}/repo.git", site.port());
    home.ok(&["run", "--", "git", "clone", "-q", &url, target.to_str().unwrap()]);
    let cloned = std::fs::read(target.join("big.bin")).unwrap();
    assert!(cloned == big, "the clone differs from what was committed");
    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let invocations = listed["invocations"].as_array().unwrap();
    assert!(invocations.len() > 3, "{listed}");
    for invocation in invocations {
        let outcome = invocation["error"]["outcome"].as_str().unwrap();
        assert!(outcome == "committed" || outcome == "rejected", "{invocation}");
    }
}

/// A bare repository with one file, as static files below `www`; the file.
fn repository(at: &std::path::Path) -> Vec<u8> {
    let big: Vec<u8> =
        (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let work = at.join("work");
    std::fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q"]);
    std::fs::write(work.join("big.bin"), &big).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "big"]);
    let bare = at.join("www/repo.git");
    git(at, &["clone", "-q", "--bare", "work", bare.to_str().unwrap()]);
    git(&bare, &["update-server-info"]);
    big
}
