//! `clients/python` against the real binary (contract T-4).

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

use service::{Done, Service};
use std::collections::HashSet;
use std::path::Path;
use support::*;

fn clients() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/python")
}

/// What every script begins with: `send(path, key)` gives a sender by the standard library.
const BEGIN: &str = r#"
import affiant, json, os, urllib.request, urllib.error

class Pass(urllib.request.HTTPErrorProcessor):
    http_response = https_response = lambda self, request, response: response

opener = urllib.request.build_opener(Pass)
broker = affiant.Broker.from_environment()

def sender(path, key=None, method='POST'):
    def send(headers):
        request = urllib.request.Request(os.environ['BASE'] + path, method=method)
        if method == 'POST':
            request.data = b'amount=1'
        for name, value in headers.items():
            request.add_header(name, value)
        if key:
            request.add_header('Idempotency-Key', key)
        return opener.open(request)
    return send

def failure(call):
    try:
        return call().status
    except affiant.Failed as failed:
        return failed.envelope
"#;

fn run(home: &Home, server: &Server, service: &Service, script: &str) -> String {
    let mut command = python();
    command
        .args(["-c", &format!("{BEGIN}\n{script}")])
        .env("PYTHONPATH", clients())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BASE", service.url(""))
        .env("HTTP_PROXY", server.proxy())
        .env("http_proxy", server.proxy())
        .env("SSL_CERT_FILE", home.path().join("bundle.pem"));
    succeed(command)
}

const POLICY: &str = r#"idempotency = { header = "Idempotency-Key", scope = "pay", contract = "verified" }
retry = { max_attempts = 3 }"#;

/// T-4: the whole envelope is on the error; what is in doubt is repeated by no ordinary call, and by one
/// whose name says so.
#[test]
fn t_4_what_is_in_doubt_takes_a_call_that_says_unsafe() {
    let service = Service::start(|asked| match asked.target.as_str() {
        "/refused" => Done::nothing_but(404, "", "no"),
        "/fine" => Done::and_answers(200, "", "ok"),
        _ => Done::and_closes(),
    });
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&service.policy(POLICY));
    let server = home.serve();
    let said = run(
        &home,
        &server,
        &service,
        r#"
doubt = failure(lambda: broker.call(sender('/pay'), repeat=True))
print(doubt.outcome, doubt.retry, doubt.code, doubt.evidence['dispatch_started'])
again = failure(lambda: broker.call(sender('/pay'), repeat=True))
print(again.code, again.follow == doubt.invocation_id)
print(broker.decide(doubt.invocation_id)['decision'], len(broker.waiting()))
refused = failure(lambda: broker.call(sender('/refused'), repeat=True))
print(refused.outcome, refused.retry, refused.code)
print(failure(lambda: broker.call(sender('/fine'), repeat=True)))
for act in (broker.retry, broker.reconcile, broker.result):
    try:
        act(doubt.invocation_id)
    except affiant.Refused as error:
        print(error.status, error.code)
"#,
    );
    assert_eq!(
        said.lines().collect::<Vec<_>>(),
        [
            "unknown reconcile REMOTE_OUTCOME_UNKNOWN True",
            "IN_DOUBT_DUPLICATE True",
            "RECONCILE 1",
            "rejected after_correction REMOTE_REJECTED",
            "200",
            "409 RETRY_NOT_ALLOWED",
            "409 NOT_RECONCILABLE",
            "409 RESULT_INCOMPLETE",
        ]
    );
    let of = |path: &str| service.asked().iter().filter(|asked| asked.target == path).count();
    assert_eq!((of("/pay"), of("/refused"), of("/fine")), (1, 1, 1));
    run(
        &home,
        &server,
        &service,
        "print(failure(lambda: broker.call_again_although_it_may_happen_twice(sender('/pay'))).outcome)",
    );
    assert_eq!(of("/pay"), 2);
}

/// T-4: `backoff` and `same_idempotency_key` are repeated, by opt-in only, and not sooner than allowed.
#[test]
fn t_4_only_what_is_safe_is_repeated_and_only_by_opt_in() {
    let mut clock = python();
    clock.args([
        "-c",
        "import email.utils, time; print(email.utils.formatdate(time.time() + 3600, usegmt=True))",
    ]);
    let date = succeed(clock).trim().to_owned();
    let service = Service::start(move |asked| match (asked.target.as_str(), asked.number) {
        ("/items", 1 | 3) => Done::nothing_but(503, "Retry-After: 1\r\n", "later"),
        ("/items", _) => Done::nothing_but(200, "", "items"),
        ("/dated", _) => Done::nothing_but(503, &format!("Retry-After: {date}\r\n"), "later"),
        (_, 5) => Done::and_closes(),
        _ => Done::nothing_but(200, "", "charged once"),
    });
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&service.policy(POLICY));
    let server = home.serve();
    let said = run(
        &home,
        &server,
        &service,
        r#"
import time
items = sender('/items', method='GET')
once = failure(lambda: broker.call(items))
print(once.outcome, once.retry)
assert broker.call(items).read() == b'items'
begun = time.monotonic()
assert broker.call(items, repeat=True).read() == b'items'
print(time.monotonic() - begun >= 1)
response = broker.call(sender('/pay', key='k-1'), repeat=True)
print(affiant.outcome_of(response)['outcome'], response.read())
dated = failure(lambda: broker.call(sender('/dated', method='GET'), repeat=True))
print(dated.retry, dated.code)
for text in ('soon', '-1', '', '1e9'):
    assert affiant._asked_pause(text) == 0, text
"#,
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "rejected backoff",
            "True",
            "committed b'charged once'",
            // A date is a time as well: beyond the caller's patience nothing is sent again.
            "backoff REMOTE_REJECTED",
        ]
    );
    assert_eq!(service.asked().len(), 7);
    assert_eq!(service.effects(), 1);
}

/// Calls by three libraries that raise for a status of failure.
const RAISING: &str = r#"
import httpx, requests
base = os.environ['BASE']

def plain(method, path):
    request = urllib.request.Request(base + path, method=method)
    def send(headers):
        for name, value in headers.items():
            request.add_header(name, value)
        return urllib.request.urlopen(request)
    return send

def raising(library):
    def make(method, path):
        def send(headers):
            response = library.request(method, base + path, headers=headers)
            response.raise_for_status()
            return response
        return send
    return make

for name, make in [('urllib', plain), ('requests', raising(requests)), ('httpx', raising(httpx))]:
    for path in ('refused', 'doubt'):
        send = make('POST', f'/{path}/{name}')
        try:
            broker.call(send, repeat=True)
        except affiant.Failed as failed:
            found = failed.envelope
            print(name, found.outcome, found.retry, found.code, type(failed.__cause__).__name__)
    again = make('POST', f'/doubt/{name}')
    try:
        broker.call_again_although_it_may_happen_twice(again)
    except affiant.Failed as failed:
        print(name, failed.envelope.outcome, failed.envelope.code)
    items = broker.call(make('GET', f'/items/{name}'), repeat=True)
    print(name, items.read() if name == 'urllib' else items.content)

def unreachable(headers):
    raise requests.ConnectionError('the broker has no part in this')

try:
    broker.call(unreachable, repeat=True)
except requests.ConnectionError as error:
    print(error)
"#;

/// T-4: a library that raises by itself changes nothing: the envelope is on the error, a repeat is by
/// the instruction, and what the broker has no part in is left alone.
#[test]
fn t_4_what_a_library_raises_carries_the_envelope() {
    let mut busy = HashSet::new();
    let service = Service::start(move |asked| match asked.target.as_str() {
        path if path.starts_with("/refused") => Done::nothing_but(404, "", "no"),
        path if path.starts_with("/items") && busy.insert(path.to_owned()) => {
            Done::nothing_but(503, "Retry-After: 1\r\n", "later")
        }
        path if path.starts_with("/items") => Done::nothing_but(200, "", "items"),
        _ => Done::and_closes(),
    });
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(&service.policy(POLICY));
    let server = home.serve();
    let said = run(&home, &server, &service, RAISING);
    let of = |name: &str, class: &str| {
        [
            format!("{name} rejected after_correction REMOTE_REJECTED {class}"),
            format!("{name} unknown reconcile REMOTE_OUTCOME_UNKNOWN {class}"),
            format!("{name} unknown REMOTE_OUTCOME_UNKNOWN"),
            format!("{name} b'items'"),
        ]
    };
    let mut expected =
        [of("urllib", "HTTPError"), of("requests", "HTTPError"), of("httpx", "HTTPStatusError")]
            .concat();
    expected.push("the broker has no part in this".to_owned());
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    for name in ["urllib", "requests", "httpx"] {
        let asked = service.asked();
        let of = |path: &str| {
            asked.iter().filter(|asked| asked.target == format!("/{path}/{name}")).count()
        };
        assert_eq!((of("refused"), of("doubt"), of("items")), (1, 2, 2), "{name}");
    }
}

/// The client stays small.
#[test]
fn the_python_client_is_under_300_lines() {
    let text = std::fs::read_to_string(clients().join("affiant.py")).unwrap();
    assert!(text.lines().count() < 300);
}
