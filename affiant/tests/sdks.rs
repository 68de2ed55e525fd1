//! The OpenAI and Anthropic Python SDKs with their default retries, posting to an origin that
//! applies the effect and closes: exactly one effect (K-11, X-6).

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
use support::peers::Served;
use support::*;

const OPENAI: &str = "
import os, openai
client = openai.OpenAI(api_key='placeholder', base_url=os.environ['BASE'] + '/v1')
try:
    client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'pay'}])
    print('answered')
except openai.APIStatusError as error:
    body = error.response.json()
    print(error.status_code, body['error']['code'], body['error']['retry'])
except openai.APIConnectionError as error:
    print('connection')
";

const ANTHROPIC: &str = "
import os, anthropic
client = anthropic.Anthropic(api_key='placeholder', base_url=os.environ['BASE'])
try:
    client.messages.create(model='m', max_tokens=9, messages=[{'role': 'user', 'content': 'pay'}])
    print('answered')
except anthropic.APIStatusError as error:
    body = error.response.json()
    print(error.status_code, body['error']['code'], body['error']['retry'])
except anthropic.APIConnectionError as error:
    print('connection')
";

/// What a script of an SDK says, behind the broker.
fn run(script: &str, home: &Home, server: &Server, origin: &TlsOrigin) -> String {
    let mut command = python();
    command
        .args(["-c", script])
        .env("BASE", origin.url(""))
        .env("https_proxy", server.proxy())
        .env("SSL_CERT_FILE", home.path().join("bundle.pem"));
    succeed(command)
}

fn check(script: &str, path: &str, steps: Vec<Step>) -> String {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::new("*", steps)]);
    home.secret("pay-token", SECRET);
    // The SDKs send a key of their own; the route sets its own, so theirs is replaced.
    home.policy(&origin.policy("agent_header = \"replace\""));
    let server = home.serve();
    let said = run(script, &home, &server, &origin);
    assert_eq!(origin.origin.effects(path), 1, "effects at the origin; the SDK said {said}");
    let seen = origin.origin.seen();
    assert_eq!(seen[0].field("authorization"), Some(format!("Bearer {SECRET}")));
    said
}

fn closes() -> Vec<Step> {
    vec![Step::ReadBody, Step::Apply, Step::Close]
}

fn cuts() -> Vec<Step> {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"id\":";
    vec![Step::ReadBody, Step::Apply, Step::Send(half.into()), Step::Close]
}

fn resets() -> Vec<Step> {
    vec![Step::ReadBody, Step::Apply, Step::Reset]
}

fn fails() -> Vec<Step> {
    let failed = "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}";
    vec![Step::ReadBody, Step::Apply, Step::Send(failed.into())]
}

#[test]
fn k_11_x_6_openai_default_retries_cause_one_effect() {
    let path = "/v1/chat/completions";
    assert_eq!(check(OPENAI, path, closes()), "502 REMOTE_OUTCOME_UNKNOWN reconcile\n");
    assert_eq!(check(OPENAI, path, cuts()), "502 REMOTE_RESULT_INCOMPLETE reconcile\n");
    assert_eq!(check(OPENAI, path, resets()), "502 REMOTE_OUTCOME_UNKNOWN reconcile\n");
}

#[test]
fn k_11_x_6_anthropic_default_retries_cause_one_effect() {
    let path = "/v1/messages";
    assert_eq!(check(ANTHROPIC, path, closes()), "502 REMOTE_OUTCOME_UNKNOWN reconcile\n");
    assert_eq!(check(ANTHROPIC, path, cuts()), "502 REMOTE_RESULT_INCOMPLETE reconcile\n");
    assert_eq!(check(ANTHROPIC, path, resets()), "502 REMOTE_OUTCOME_UNKNOWN reconcile\n");
}

/// A complete 500 is a result: the SDK sees it once more from the record, not from the origin.
#[test]
fn k_11_a_complete_500_is_not_repeated_at_the_origin() {
    for (script, path) in [(OPENAI, "/v1/chat/completions"), (ANTHROPIC, "/v1/messages")] {
        let home = Home::new();
        let origin = TlsOrigin::start(vec![Script::new("*", fails())]);
        home.secret("pay-token", SECRET);
        home.policy(&origin.policy("agent_header = \"replace\""));
        let server = home.serve();
        let mut command = python();
        let quiet = script.replace("body = error.response.json()", "pass").replace(
            "body['error']['code'], body['error']['retry']",
            "error.response.headers['affiant-outcome'].split(';')[0]",
        );
        command
            .args(["-c", &quiet])
            .env("BASE", origin.url(""))
            .env("https_proxy", server.proxy())
            .env("SSL_CERT_FILE", home.path().join("bundle.pem"));
        assert_eq!(succeed(command), "500 committed\n");
        assert_eq!(origin.origin.effects(path), 1);
    }
}

/// Both SDKs read a stream word by word; the next word is sent after the one before was acknowledged
/// by a call of its own, so a held word would end in a time-out.
const STREAMS: &str = "
import os, sys, urllib.request, openai, anthropic
base, sdk = os.environ['BASE'], sys.argv[1]
messages = [{'role': 'user', 'content': 'count'}]
def acknowledge(number):
    urllib.request.urlopen(f'{base}/ack?id={sdk}&n={number}', data=b'').read()
words = []
if sdk == 'openai':
    client = openai.OpenAI(api_key='placeholder', base_url=base + '/v1')
    for chunk in client.chat.completions.create(model='m', messages=messages, stream=True, user=sdk):
        words.append(chunk.choices[0].delta.content)
        acknowledge(len(words) - 1)
else:
    client = anthropic.Anthropic(api_key='placeholder', base_url=base)
    with client.messages.stream(model='m', max_tokens=9, messages=messages,
                                metadata={'user_id': sdk}) as stream:
        for event in stream:
            if event.type == 'text':
                words.append(event.text)
                acknowledge(len(words) - 1)
            elif event.type == 'message_stop':
                acknowledge(len(words))
print(words)
";

#[test]
fn sdks_read_a_stream_word_by_word() {
    let served = Served::python();
    let home = Home::new();
    home.policy(&plain_policy(&served.ca_file(), served.port));
    let server = home.serve();
    for (sdk, path, expected) in [
        ("openai", "/v1/chat/completions", "['one ', 'two ', 'three', None]\n"),
        ("anthropic", "/v1/messages", "['one ', 'two ', 'three']\n"),
    ] {
        let mut command = home.command(&["run", "--"]);
        command.arg(std::env::var_os("AFFIANT_TEST_PYTHON").unwrap()).args(["-c", STREAMS, sdk]);
        command.env("BASE", format!("https://localhost:{}", served.port));
        assert_eq!(succeed(command), expected, "{sdk}");
        let listed = home.json(&["inv", "list", "--agent", "local"]);
        let calls = listed["invocations"].as_array().unwrap();
        let target = |call: &&serde_json::Value| call["target"].as_str().unwrap().ends_with(path);
        let [stream] = calls.iter().filter(target).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(stream["error"]["outcome"], "committed", "{stream}");
        assert_eq!(stream["evidence"]["completion"], "chunked", "{stream}");
        let kept = home.ok(&["inv", "result", stream["invocation_id"].as_str().unwrap()]);
        assert!(kept.contains("three") && kept.ends_with("\n\n"), "{kept}");
    }
    drop(server);
}

/// A stream that breaks off is an error to the SDK, `unknown` on record, and one effect (S-2, K-11).
#[test]
fn s_2_k_11_a_cut_stream_is_no_answer() {
    let part = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                Transfer-Encoding: chunked\r\n\r\n\
                8\r\ndata: {\"\r\n";
    let steps = vec![Step::ReadBody, Step::Apply, Step::Send(part.into()), Step::Close];
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::new("*", steps)]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy("agent_header = \"replace\""));
    let server = home.serve();
    let script = "
import os, openai
client = openai.OpenAI(api_key='placeholder', base_url=os.environ['BASE'] + '/v1')
try:
    for chunk in client.chat.completions.create(
            model='m', messages=[{'role': 'user', 'content': 'x'}], stream=True):
        print(chunk)
    print('complete')
except Exception as error:
    print(type(error).__name__)
";
    let said = run(script, &home, &server, &origin);
    assert_ne!(said, "complete\n");
    assert_eq!(origin.origin.effects("/v1/chat/completions"), 1, "{said}");
    let listed = server.control("invocations?outcome=unknown");
    assert_eq!(listed["invocations"][0]["error"]["code"], "REMOTE_RESULT_INCOMPLETE", "{listed}");
}
