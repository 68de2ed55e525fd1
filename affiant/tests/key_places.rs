//! Idempotency keys in queries, forms and JSON content, by presets and by routes (contract K-1 to K-5,
//! K-11). The services are reached through an upstream proxy of the test's, so that they have their names.

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

use conformance::nginx::Nginx;
use serde_json::{Value, json};
use service::{Asked, Done, Service};
use std::collections::HashMap;
use support::*;

/// One route for the hosts of a preset, in clear text, through the service as an upstream proxy.
fn policy(service: &Service, preset: &str, rest: &str) -> String {
    format!(
        "[[parent]]\nname = \"test\"\nurl = \"{}\"\n\
         [[credential]]\nid = \"key\"\nsecret = \"key\"\npreset = \"{preset}\"\n\
         [[route]]\nname = \"service\"\nagents = [\"coder\"]\npreset = \"{preset}\"\n\
         credential = \"key\"\nparent = \"test\"\n{rest}\n",
        service.url("")
    )
}

fn started(policy: &str) -> (Home, Server) {
    let home = Home::new();
    home.secret("key", "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
    home.policy(policy);
    let server = home.serve();
    (home, server)
}

/// The value of a parameter or form field, as it was sent.
fn parameter(text: &str, name: &str) -> Option<String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_owned())
}

fn query_key(asked: &Asked) -> Option<String> {
    parameter(asked.target.split_once('?')?.1, "requestId")
}

fn form_key(asked: &Asked) -> Option<String> {
    parameter(std::str::from_utf8(&asked.body).unwrap(), "ClientToken")
}

fn json_key(asked: &Asked) -> Option<String> {
    let content: Value = serde_json::from_slice(&asked.body).unwrap();
    content["ClientRequestToken"].as_str().map(str::to_owned)
}

/// Has its effect once per key, and loses the first answer of each.
fn honours(key: impl Fn(&Asked) -> Option<String> + Send) -> impl FnMut(&Asked) -> Done + Send {
    let mut seen: HashMap<Option<String>, Vec<u8>> = HashMap::new();
    move |asked| match seen.insert(key(asked), asked.body.clone()) {
        Some(body) if body != asked.body => Done::nothing_but(400, "", "another request"),
        Some(_) => Done::nothing_but(200, "", "done once"),
        None => Done::and_closes(),
    }
}

fn keys(service: &Service, key: impl Fn(&Asked) -> Option<String>) -> Vec<String> {
    service.asked().iter().map(|asked| key(asked).expect("a key")).collect()
}

fn is_uuid(key: &str) -> bool {
    let groups: Vec<_> = key.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && key.bytes().all(|c| c == b'-' || c.is_ascii_hexdigit())
}

/// Signs a request as it arrived once more, and prints the signature that it has and the one expected.
const CHECK: &str = r#"
import hashlib, json, re, sys
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

asked = json.load(sys.stdin)
fields = {name.lower(): value for name, value in asked["fields"]}
found = re.match(
    r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d+/([^/]+)/([^/]+)/aws4_request, "
    r"SignedHeaders=([^,]+), Signature=(\w+)$", fields["authorization"])
region, service, names, signature = found.groups()
signed = {name: fields[name] for name in names.split(";")}
request = AWSRequest(asked["method"], asked["url"], signed, asked["body"].encode())
request.context["timestamp"] = fields["x-amz-date"]
secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
auth = SigV4Auth(Credentials("AKIDEXAMPLE", secret), service, region)
canonical = auth.canonical_request(request)
print(service, region, signature == auth.signature(auth.string_to_sign(request, canonical), request))
"#;

/// Service and region of a valid signature over what arrived.
fn signed_for(asked: &Asked) -> String {
    let mut command = python();
    command.args(["-c", CHECK]);
    let asked = json!({
        "method": asked.method,
        "url": asked.target,
        "fields": asked.fields,
        "body": text(&asked.body),
    });
    let output = finish(command, asked.to_string().as_bytes());
    let told = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    told.trim_end().strip_suffix(" True").unwrap_or_else(|| panic!("{told}")).to_owned()
}

const TRANSACT: &str = "X-Amz-Target: DynamoDB_20120810.TransactWriteItems";
const AMZ_JSON: &str = "Content-Type: application/x-amz-json-1.0";
const TABLE: &str = "http://dynamodb.us-east-1.amazonaws.com/";
const WRITES: &str = r#"{"TransactItems": [{"Put": {"Item": {"n": {"N": "1"}}}}]}"#;

/// K-2, K-5, T-3: a token of ours goes into JSON content before the request is signed, with its length
/// declared anew, is on record before the dispatch, and is carried by every retry over a kill of the broker.
#[test]
fn k_2_a_client_token_in_json_is_signed_and_carried_by_every_retry() {
    let service = Service::start(honours(json_key));
    let rest = "match = { scheme = \"http\" }\nidempotency = { generate = true }\n\
                retry = { max_attempts = 4 }";
    let (home, server) = started(&policy(&service, "aws", rest));
    let lost = server.curl(&["-d", WRITES, "-H", AMZ_JSON, "-H", TRANSACT, TABLE]);
    assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
    let envelope = lost.json();
    assert_eq!(envelope["error"]["retry"], "same_idempotency_key", "{envelope}");
    let facts = &envelope["evidence"]["idempotency"];
    assert_eq!(facts["added_as"], "json:/ClientRequestToken");
    assert_eq!(facts["scope"], "aws/key/dynamodb.us-east-1.amazonaws.com");
    let key = facts["key"].as_str().unwrap().to_owned();
    assert!(is_uuid(&key), "{key}");
    let id = lost.invocation();
    server.kill();
    let server = home.serve();
    let (status, retried) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, &retried["attempt"]["error"]["outcome"]), (200, &json!("committed")));
    assert_eq!(keys(&service, json_key), [key.clone(), key.clone()]);
    assert_eq!(service.effects(), 1);
    for asked in service.asked() {
        let content = text(&asked.body);
        assert_eq!(
            content,
            WRITES.replacen('{', &format!("{{\"ClientRequestToken\":\"{key}\","), 1)
        );
        assert_eq!(asked.field("content-length"), Some(content.len().to_string().as_str()));
        assert_eq!(signed_for(&asked), "dynamodb us-east-1");
    }
}

/// K-11, K-3, K-4: a repeat that a client hides carries the same token in the form, in chunks as well; the
/// caller may name it; an operation whose contract nobody documents gets none.
#[test]
fn k_11_a_client_token_in_a_form_is_the_same_in_a_hidden_repeat() {
    let service = Service::start(honours(form_key));
    let rest = "match = { scheme = \"http\" }\nidempotency = { generate = true }";
    let (_home, server) = started(&policy(&service, "aws", rest));
    let url = "http://ec2.eu-west-1.amazonaws.com/";
    let launch = "Action=RunInstances&MinCount=1&Version=2016-11-15";
    let chunked = ["-H", "Transfer-Encoding: chunked"];
    let lost = server.curl(&["-d", launch, url, chunked[0], chunked[1]]);
    assert_eq!((lost.status, lost.outcome()), (502, "unknown"));
    let repeated = server.curl(&["-d", launch, url]);
    assert_eq!((repeated.status, text(&repeated.body).as_str()), (200, "done once"));
    let sent = keys(&service, form_key);
    assert_eq!((sent.len(), &sent[0], service.effects()), (2, &sent[1], 1));
    assert!(is_uuid(&sent[0]));
    for (asked, length) in service.asked().iter().zip([None, Some(launch.len() + 49)]) {
        assert_eq!(text(&asked.body), format!("{launch}&ClientToken={}", sent[0]));
        let declared = asked.field("content-length").map(|length| length.parse().unwrap());
        assert_eq!(declared, length);
        assert_eq!(signed_for(asked), "ec2 eu-west-1");
    }
    // K-3: named by the caller it is that request's key and no other's.
    let named = format!("{launch}&ClientToken={}", sent[0]);
    let again = server.curl(&["-d", &named, url]);
    assert_eq!((again.status, text(&again.body).as_str()), (200, "done once"));
    let other = server.curl(&["-d", &named.replace("MinCount=1", "MinCount=2"), url]);
    assert_eq!(other.json()["error"]["code"], "IDEMPOTENCY_MISMATCH");
    let before = service.asked().len();
    server.curl(&["-d", "Action=StopInstances&InstanceId=i-1", url]);
    let stopped = &service.asked()[before];
    assert_eq!(text(&stopped.body), "Action=StopInstances&InstanceId=i-1");
    // A token of the caller's own stays as it is.
    let own = format!("{launch}&ClientToken=mine");
    let answer = server.curl(&["-d", &own, url]);
    assert_eq!(answer.json()["evidence"]["idempotency"]["key"], "mine");
    assert_eq!(answer.json()["evidence"]["idempotency"]["added_as"], Value::Null);
    assert_eq!(text(&service.asked()[before + 1].body), own);
}

/// K-1, K-11: a request id in the query. Without a promise that is whole an outcome in doubt is reconciled;
/// a route that declares the promise repeats under the same id.
#[test]
fn k_1_a_request_id_in_the_query() {
    let url = "http://compute.googleapis.com/compute/v1/projects/p/zones/z/instances?x=a%20b";
    let calls = ["-d", "{}", "-H", "Content-Type: application/json", url];
    let scheme = "match = { scheme = \"http\" }\nidempotency";
    for (rule, decided) in [
        ("{ generate = true }", "RECONCILE"),
        ("{ query = \"requestId\", contract = \"verified\", generate = true }", "RETRY_SAME_KEY"),
    ] {
        let service = Service::start(honours(query_key));
        let rest = format!("{scheme} = {rule}");
        let (_home, server) = started(&policy(&service, "google-cloud", &rest));
        let lost = server.curl(&calls);
        assert_eq!(lost.outcome(), "unknown");
        assert_eq!(lost.json()["evidence"]["idempotency"]["added_as"], "query:requestId");
        assert_eq!(decision(&server, &lost.invocation())["decision"], decided);
        let repeated = server.curl(&calls);
        let sent = keys(&service, query_key);
        assert!(sent.iter().all(|key| is_uuid(key) && *key == sent[0]), "{sent:?}");
        let expected = format!("{url}&requestId={}", sent[0]);
        assert!(
            service.asked().iter().all(|asked| asked.target == expected && asked.body == b"{}")
        );
        let found = (repeated.status, sent.len(), service.effects());
        assert_eq!(found, if decided == "RECONCILE" { (424, 1, 1) } else { (200, 2, 1) });
    }
}

/// K-1, V-2: a key that could be read in two ways, or has no place, is refused by its field before anything
/// is sent.
#[test]
fn k_1_keys_without_one_reading_are_refused() {
    let service = Service::start(|_| Done::and_answers(200, "", "ok"));
    let rest = "match = { scheme = \"http\" }\nidempotency = { generate = true }";
    let (home, server) = started(&policy(&service, "aws", rest));
    let content = home.path().join("content");
    let from = format!("@{}", content.display());
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    let gzip = "Content-Encoding: gzip";
    for (body, more, part) in [
        (r#"{"ClientRequestToken":"a","ClientRequestToken":"b"}"#, None, "gives a name twice"),
        (r#"{"ClientRequestToken":7}"#, None, "is no text"),
        ("[]", None, "is no object"),
        ("{}", Some(gzip), "is compressed"),
        ("{}", Some("Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg=="), "carries a digest"),
        (&long, None, "is longer than 1 MiB"),
    ] {
        std::fs::write(&content, body).unwrap();
        let mut command = vec!["--data-binary", &from, "-H", AMZ_JSON, "-H", TRANSACT, TABLE];
        command.extend(more.iter().flat_map(|field| ["-H", field]));
        let answer = server.curl(&command);
        let envelope = answer.json();
        assert_eq!((answer.status, answer.outcome()), (422, "not_attempted"), "{part}");
        assert_eq!(envelope["error"]["code"], "IDEMPOTENCY_KEY_UNREADABLE", "{part}");
        assert_eq!(envelope["error"]["field"], "request.body/ClientRequestToken", "{part}");
        assert!(envelope["error"]["message"].as_str().unwrap().contains(part), "{envelope}");
    }
    assert_eq!(service.asked().len(), 0);
}

/// K-2: a caller over HTTP/2 has its query and its content keyed as well.
#[test]
fn k_2_keys_of_ours_over_http2() {
    let echo = "location /echo { add_header X-Uri $request_uri; add_header X-Length $content_length;\n\
                return 201; }";
    let site = Nginx::start(echo, |_| Ok(())).unwrap();
    let plain = plain_policy(&site.ca_file(), site.port()).replace("\"local\"", "\"coder\"");
    let url = format!("https://localhost:{}/echo", site.port());
    let json = "Content-Type: application/json";
    for (place, uri, length) in
        [("query = \"key\"", "/echo?key=", "2"), ("json = \"key\"", "/echo", "46")]
    {
        let rule = format!("idempotency = {{ {place}, generate = true }}\n");
        let home = home(&format!("{plain}{rule}"));
        let server = home.serve();
        let answer = server.curl(&["--http2", "-d", "{}", "-H", json, &url]);
        assert!(answer.head.starts_with("HTTP/2 201"), "{}", answer.head);
        let key = answer.field("x-uri").unwrap().strip_prefix(uri).unwrap();
        assert!(if place.starts_with("query") { is_uuid(key) } else { key.is_empty() }, "{key}");
        assert_eq!(answer.field("x-length"), Some(length));
    }
}

/// V-6, K-2: a call that a person approves is shown as the agent sent it, and goes out with the key of ours
/// that was on record when it was asked about.
#[test]
fn v_6_an_approved_call_carries_the_key_on_record() {
    let service = Service::start(|_| Done::and_answers(200, "", "ok"));
    let rest = "match = { scheme = \"http\" }\nidempotency = { generate = true }\n\
                approval = \"required\"";
    let (home, server) = started(&policy(&service, "aws", rest));
    let call = ["-d", WRITES, "-H", AMZ_JSON, "-H", TRANSACT, TABLE];
    let (answer, key) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.curl(&call));
        let held = || home.json(&["approval", "list"])["approvals"].clone();
        eventually("the question", || held().as_array().is_some_and(|all| all.len() == 1));
        let id = held()[0]["invocation_id"].as_str().unwrap().to_owned();
        let record = server.control(&format!("invocations/{id}"));
        let key = record["evidence"]["idempotency"]["key"].as_str().unwrap().to_owned();
        let shown = home.ok(&["approval", "show", &id]);
        assert!(
            shown.contains("TransactItems") && !shown.contains("ClientRequestToken"),
            "{shown}"
        );
        home.ok(&["approval", "approve", &id]);
        (waiting.join().unwrap(), key)
    });
    assert_eq!((answer.status, answer.outcome()), (200, "committed"));
    assert_eq!(keys(&service, json_key), [key]);
}

/// M-7: a batch of OpenAI is followed by its preset alone.
#[test]
fn m_7_a_batch_is_followed_by_the_preset() {
    let service = Service::start(|asked| match (asked.method.as_str(), asked.target.as_str()) {
        ("POST", _) => Done::and_answers(200, "", r#"{"id":"batch_7","status":"validating"}"#),
        ("GET", target) if target.ends_with("/v1/batches/batch_7") => {
            Done::nothing_but(200, "", r#"{"id":"batch_7","status":"completed"}"#)
        }
        _ => Done::nothing_but(404, "", "{}"),
    });
    let (_home, server) = started(&policy(&service, "openai", "match = { scheme = \"http\" }"));
    let submitted = server.curl(&["-d", "{}", "http://api.openai.com/v1/batches"]);
    assert_eq!((submitted.status, submitted.outcome()), (200, "committed"));
    let submission = server.control(&format!("invocations/{}", submitted.invocation()));
    let job = submission["links"]["job"].as_str().unwrap().to_owned();
    let record = || server.control(&format!("invocations/{job}"));
    eventually("the end of the job", || record()["error"]["outcome"] == "committed");
    assert_eq!(record()["evidence"]["source"], "remote_query");
    let asked = service.asked();
    let seen: Vec<_> = asked.iter().map(|a| (a.method.as_str(), a.target.as_str())).collect();
    assert_eq!(seen[0], ("POST", "http://api.openai.com/v1/batches"));
    assert_eq!(seen[1], ("GET", "http://api.openai.com/v1/batches/batch_7"));
    assert_eq!(seen.len(), 2);
}

/// K-11: npm repeats a publication whose answer was lost by itself; with the preset of its registries it
/// is published once.
#[test]
fn k_11_npm_publishes_once() {
    let service = Service::start(|asked| match asked.method.as_str() {
        "PUT" => Done::and_closes(),
        _ => Done::nothing_but(404, "Content-Type: application/json\r\n", "{}"),
    });
    let home = Home::new();
    home.secret("npm", "npm-secret");
    home.policy(&registry("npm", service.address().port()));
    let package = home.path().join("package");
    std::fs::create_dir(&package).unwrap();
    let manifest = r#"{"name":"affiant-demo","version":"1.0.0"}"#;
    std::fs::write(package.join("package.json"), manifest).unwrap();
    let address = service.address();
    let config = home.path().join("npmrc");
    std::fs::write(&config, format!("//{address}/:_authToken=placeholder\n")).unwrap();
    let mut command = home.command(&["run", "--", "npm", "publish", "--registry"]);
    command.arg(format!("http://{address}/")).arg("--cache").arg(home.path().join("npm-cache"));
    command.args([
        "--fetch-retries",
        "2",
        "--fetch-retry-mintimeout",
        "10",
        "--no-update-notifier",
    ]);
    command.env("NPM_CONFIG_USERCONFIG", &config).current_dir(&package);
    let output = finish(command, b"");
    assert!(!output.status.success(), "{}", text(&output.stdout));
    let sent: Vec<_> = service.asked().into_iter().filter(|a| a.method == "PUT").collect();
    assert_eq!((sent.len(), service.effects()), (1, 1), "{}", text(&output.stderr));
    assert_eq!(sent[0].target, "/affiant-demo");
    assert_eq!(sent[0].field("authorization"), Some("Bearer npm-secret"));
    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let put =
        |call: &&Value| call["action"] == "PUT" && call["evidence"]["dispatch_started"] == true;
    let all = listed["invocations"].as_array().unwrap();
    let published = all.iter().find(put).unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(published["error"]["outcome"], "unknown", "{published}");
    assert_eq!(published["error"]["retry"], "reconcile", "{published}");
}

/// A route of a preset that leaves the host open.
fn registry(preset: &str, port: u16) -> String {
    format!(
        "[[credential]]\nid = \"r\"\nsecret = \"{preset}\"\npreset = \"{preset}\"\n\
         [[route]]\nname = \"registry\"\npreset = \"{preset}\"\ncredential = \"r\"\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n\
         private_addresses = \"allow\"\n"
    )
}

/// pypiserver, which takes uploads by one user and refuses a file that it has.
const INDEX: &str = r#"
import sys
from wsgiref.simple_server import make_server
import pypiserver
app = pypiserver.app(roots=[sys.argv[1]], authenticate=["update"],
                     auther=lambda user, password: (user, password) == ("__token__", "index-secret"))
server = make_server("127.0.0.1", 0, app)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// S-3: twine uploads with a password that is none; the index has the file once, and refuses it the second
/// time, which is a complete refusal.
#[test]
fn s_3_twine_uploads_once() {
    let home = Home::new();
    let root = home.path().join("index");
    std::fs::create_dir(&root).unwrap();
    let mut command = python();
    command.args(["-c", INDEX]).arg(&root).stdout(std::process::Stdio::piped());
    let mut index = Running(command.stderr(std::process::Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    let stdout = index.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let port: u16 = line.trim_end().parse().unwrap();
    home.secret("pypi", "__token__:index-secret");
    home.policy(&registry("pypi", port));
    let wheel = home.path().join("affiant_demo-1.0-py3-none-any.whl");
    let mut command = python();
    command.args(["-c", WHEEL]).arg(&wheel);
    succeed(command);
    let python = std::env::var("AFFIANT_TEST_PYTHON").unwrap();
    let upload = || {
        let mut command = home.command(&["run", "--", &python, "-m", "twine", "upload"]);
        command.args(["--non-interactive", "--username", "u", "--password", "placeholder"]);
        command.args(["--disable-progress-bar", "--repository-url"]);
        command.arg(format!("http://127.0.0.1:{port}/")).arg(&wheel);
        command.env("TWINE_CONFIG_FILE", "/dev/null");
        finish(command, b"")
    };
    let first = upload();
    assert!(first.status.success(), "{}{}", text(&first.stdout), text(&first.stderr));
    let uploaded = root.join("affiant_demo-1.0-py3-none-any.whl");
    assert_eq!(std::fs::read(&uploaded).unwrap(), std::fs::read(&wheel).unwrap());
    assert!(!upload().status.success());
    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let calls: Vec<_> = listed["invocations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|call| call["action"] == "POST")
        .map(|call| (call["error"]["outcome"].clone(), call["evidence"]["status"].clone()))
        .collect();
    let expected = [(json!("committed"), json!(200)), (json!("rejected"), json!(400))];
    assert!(expected.iter().all(|call| calls.contains(call)) && calls.len() == 2, "{calls:?}");
}

/// Ends with its test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A wheel of nothing but its metadata (PEP 427).
const WHEEL: &str = r#"
import sys, zipfile
info = "affiant_demo-1.0.dist-info"
files = {
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: affiant-demo\nVersion: 1.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/RECORD": "",
}
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
"#;
