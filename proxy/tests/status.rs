//! Every error type of RFC 9209: where it arises, or why it can't.

#![allow(clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use proxy::Options;
use std::collections::BTreeSet;
use support::http2::Http2Origin;
use support::{Client, Response, World};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

enum Place {
    /// In this file.
    Here,
    /// In another one, as part of a test of that name.
    There(&'static str, &'static str),
    Never(&'static str),
}
use Place::{Here, Never, There};

const ADDRESSES: &str = include_str!("addresses.rs");
const CERTIFICATES: &str = include_str!("certificates.rs");
const PARENTS: &str = include_str!("parents.rs");
const REDACTION: &str = include_str!("redaction.rs");
const WEBSOCKETS: &str = include_str!("websockets.rs");

/// RFC 9209 section 2.3, in its order.
const TYPES: [(&str, Place); 32] = [
    ("dns_timeout", There(ADDRESSES, "c_1_failures_of_dns_have_their_kinds")),
    ("dns_error", There(ADDRESSES, "c_1_failures_of_dns_have_their_kinds")),
    ("destination_not_found", There(ADDRESSES, "c_1_failures_of_dns_have_their_kinds")),
    ("destination_unavailable", There(PARENTS, "c_8_a_parent_that_opens_no_tunnel")),
    ("destination_ip_prohibited", There(ADDRESSES, "c_4_every_try_is_on_record")),
    ("destination_ip_unroutable", Here),
    ("connection_refused", Here),
    ("connection_terminated", Here),
    ("connection_timeout", Here),
    ("connection_read_timeout", Here),
    ("connection_write_timeout", Here),
    ("connection_limit_reached", Never("connections to an origin are not limited in number")),
    ("tls_protocol_error", Here),
    ("tls_certificate_error", Here),
    ("tls_alert_received", There(CERTIFICATES, "c_1_alerts_are_told")),
    ("http_request_error", Here),
    ("http_request_denied", Here),
    ("http_response_incomplete", Here),
    ("http_response_header_section_size", Here),
    ("http_response_header_size", Never("the head is bounded as a whole, not line by line")),
    ("http_response_body_size", Never("no route bounds it; for a caller it is read to its end")),
    ("http_response_trailer_section_size", Here),
    ("http_response_trailer_size", Never("the section is bounded as a whole, not line by line")),
    ("http_response_transfer_coding", Here),
    ("http_response_content_coding", There(REDACTION, "i_4_a_decompression_bomb_is_withheld")),
    ("http_response_timeout", Here),
    ("http_upgrade_failed", There(WEBSOCKETS, "s_5_websockets_that_do_not_open")),
    ("http_protocol_error", Here),
    ("proxy_internal_response", Here),
    ("proxy_internal_error", Here),
    ("proxy_configuration_error", Here),
    ("proxy_loop_detected", Here),
];

/// A route to a port of an address of loopback.
fn route(name: &str, scheme: &str, host: &str, port: u16, terms: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\nprivate_addresses = \"allow\"\n{terms}\n\
         match = {{ scheme = \"{scheme}\", host = \"{host}\", port = {port} }}\n"
    )
}

/// One request in absolute form, and its answer.
async fn call(world: &World, url: &str, method: &str, fields: &str, content: &[u8]) -> Response {
    let authority = url.split("://").nth(1).expect("a URL").split('/').next().expect("authority");
    let (credentials, length) = (world.credentials(), content.len());
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!(
            "{method} {url} HTTP/1.1\r\nHost: {authority}\r\n{credentials}{fields}\
             Content-Length: {length}\r\n\r\n"
        ))
        .await;
    // An early answer may come before all is taken.
    let _taken = client.try_send(content).await;
    client.response(method).await
}

/// The parameters that belong to the type.
fn check(answer: &Response, error: &str, parameters: &str) {
    let said = answer.field("proxy-status");
    let rest = said.strip_prefix(&format!("affiant;error={error}"));
    let rest = rest.unwrap_or_else(|| panic!("{error} is not in {said}"));
    assert!(rest.is_empty() || rest.starts_with(';'), "{error} {said}");
    assert!(rest.contains(parameters), "{parameters} is not in {said}");
}

/// Remotes that don't answer, and what keeps them so.
struct Remotes {
    /// Refuses connections.
    closed: u16,
    /// Answers no further connection: its backlog is full.
    silent: u16,
    /// Accepts connections, and never reads.
    deaf: u16,
    /// Says something that is not TLS.
    babbling: u16,
    _held: (TcpSocket, TcpListener, TcpStream, TcpListener, tokio::task::JoinHandle<()>),
}

impl Remotes {
    async fn new() -> Self {
        let (refusing, closed) = support::refusing();
        let socket = TcpSocket::new_v4().expect("socket");
        socket.bind("127.0.0.1:0".parse().expect("address")).expect("bound");
        let full = socket.listen(0).expect("listener");
        let silent = full.local_addr().expect("address");
        let fits = TcpStream::connect(silent).await.expect("the one that fits");
        let unread = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let deaf = unread.local_addr().expect("address").port();
        let (babbling, babbler) = support::babble().await;
        let _held = (refusing, full, fits, unread, babbler);
        Self { closed: closed.port(), silent: silent.port(), deaf, babbling, _held }
    }

    fn routes(&self, plain: &support::Origin, secure: &support::Origin) -> String {
        let short = "limits = { connect_timeout = \"300ms\", response_timeout = \"1s\", idle_timeout = \"1s\" }";
        let clear = plain.address.port();
        route("closed", "http", "127.0.0.1", self.closed, "")
            + &route("silent", "http", "127.0.0.1", self.silent, short)
            + &route("deaf", "http", "127.0.0.1", self.deaf, short)
            + &route("broadcast", "http", "255.255.255.255", 80, "")
            + &route("no-tls", "https", "127.0.0.1", self.babbling, "")
            + &route("other-name", "https", "127.0.0.1", secure.address.port(), "")
            + &format!(
                "[[route]]\nname = \"short\"\nprivate_addresses = \"allow\"\n{short}\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {clear}, \
                 path = \"/gate*\" }}\n"
            )
    }
}

/// E-4: what goes wrong has the type, the next hop, and the parameters of RFC 9209.
#[tokio::test(flavor = "multi_thread")]
async fn e_4_error_types_arise() {
    let mut arisen = BTreeSet::new();
    let mut expect = |answer: &Response, error: &'static str, parameters: &str| {
        check(answer, error, parameters);
        arisen.insert(error);
    };
    let remotes = Remotes::new().await;
    let Remotes { closed, silent, deaf, babbling, .. } = remotes;
    let world =
        World::with(|plain, secure| remotes.routes(plain, secure), Options::default()).await;
    let origin = world.origin.address.to_string();
    let hop = format!(";next-hop=\"{origin}\"");
    let at = |port: u16| format!("http://127.0.0.1:{port}/");
    let get = |path: &'static str| {
        let (world, url) = (&world, world.plain_url(path));
        async move { call(world, &url, "GET", "", b"").await }
    };
    let hop_of = |port: u16| format!(";next-hop=\"127.0.0.1:{port}\"");
    let answer = call(&world, "http://255.255.255.255/", "GET", "", b"").await;
    expect(&answer, "destination_ip_unroutable", ";next-hop=\"255.255.255.255:80\"");
    expect(&call(&world, &at(closed), "GET", "", b"").await, "connection_refused", &hop_of(closed));
    expect(&call(&world, &at(silent), "GET", "", b"").await, "connection_timeout", &hop_of(silent));
    let much = vec![b'x'; 24 << 20];
    let answer = call(&world, &at(deaf), "PUT", "", &much).await;
    expect(&answer, "connection_write_timeout", &hop_of(deaf));
    let received = format!("{hop};received-status=200");
    for (path, error, parameters) in [
        ("/close", "connection_terminated", hop.as_str()),
        ("/gate-stall", "connection_read_timeout", &hop),
        ("/gate", "http_response_timeout", &hop),
        ("/cut", "http_response_incomplete", &received),
        ("/bad-chunk", "http_protocol_error", &received),
        ("/bad-head", "http_protocol_error", &hop),
        ("/long-head", "http_response_header_section_size", ";header-section-size=65536"),
        ("/long-trailer", "http_response_trailer_section_size", ";trailer-section-size=65536"),
        ("/bad-coding", "http_response_transfer_coding", ";coding=gzip"),
    ] {
        expect(&get(path).await, error, parameters);
    }
    // As many fields as are too many have a size that is none.
    for (path, error) in [
        ("/fields?101", "http_response_header_section_size"),
        ("/fields?held-trailers-101", "http_response_trailer_section_size"),
    ] {
        let answer = get(path).await;
        expect(&answer, error, "");
        let said = answer.field("proxy-status").to_owned();
        assert!(!said.contains("-section-size="), "{said}");
    }
    let secure = format!("https://127.0.0.1:{}/", world.secure.address.port());
    let answer = call(&world, &secure, "GET", "", b"").await;
    expect(&answer, "tls_certificate_error", &hop_of(world.secure.address.port()));
    let url = format!("https://127.0.0.1:{babbling}/");
    expect(&call(&world, &url, "GET", "", b"").await, "tls_protocol_error", &hop_of(babbling));
    let answer = call(&world, &world.plain_url("/ok"), "GET", "Expect: x\r\n", b"").await;
    expect(&answer, "http_request_error", ";status-code=417;status-phrase=\"Expectation Failed\"");
    let answer = call(&world, "http://elsewhere.example/", "GET", "", b"").await;
    expect(&answer, "http_request_denied", "");
    let answer = call(&world, "http://affiant.internal/v1/x", "GET", "", b"").await;
    expect(&answer, "proxy_internal_response", "");
    let via = format!("Via: {}\r\n", get("/ok").await.field("via"));
    let answer = call(&world, &world.plain_url("/ok"), "GET", &via, b"").await;
    expect(&answer, "proxy_loop_detected", "");
    let with_credential = world.secure_url("/with-credential/ok");
    world.policy.remove_secret("pay-token").expect("removed");
    let answer = call(&world, &with_credential, "GET", "", b"").await;
    expect(&answer, "proxy_configuration_error", "");
    world.policy.vault().lock();
    let answer = call(&world, &with_credential, "GET", "", b"").await;
    expect(&answer, "proxy_internal_error", "");
    let here = TYPES.iter().filter(|(_, place)| matches!(place, Here)).map(|(error, _)| *error);
    assert_eq!(arisen, here.collect());
}

/// E-4: the sections of an origin of HTTP/2 are bounded as those of HTTP/1.1 are, with the same types: what
/// the library reads in part, what it leaves out, and what it ends the connection for. Trailers that it
/// shortens are not handed over as if they were whole (S-2).
#[tokio::test(flavor = "multi_thread")]
async fn e_4_s_2_long_sections_of_streams_have_their_types() {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::start(directory.path(), &[b"h2"]).await;
    let extra = origin.routes();
    let world = World::with(|_, _| extra, Options::default()).await;
    let at = |path: &str| format!("https://{}{path}", origin.address);
    for length in [1000, 65_000] {
        for path in [format!("/long-head/{length}"), format!("/long-trailer/{length}")] {
            let answer = call(&world, &at(&path), "GET", "", b"").await;
            assert_eq!(answer.status, 200, "{path}");
            assert!(answer.complete, "{path}");
        }
    }
    for length in [66_000, 150_000, 250_000, 700_000, 1_500_000] {
        for (kind, error, parameters) in [
            ("head", "http_response_header_section_size", ";header-section-size=65536"),
            ("trailer", "http_response_trailer_section_size", ";trailer-section-size=65536"),
        ] {
            let path = format!("/long-{kind}/{length}");
            let answer = call(&world, &at(&path), "POST", "", b"").await;
            assert_eq!(answer.status, 502, "{path}");
            check(&answer, error, parameters);
            let verdict = world.invocation(answer.id()).await.verdict();
            assert_eq!(verdict.code().as_str(), "REMOTE_PROTOCOL_ERROR", "{path}");
            assert_eq!(verdict.outcome().as_str(), "unknown", "{path}");
            assert_eq!(origin.effects(&path), 1, "{path}");
        }
    }
}

/// The proxy's own sources, but for the table of types that other hops may say.
fn sources(directory: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if !path.ends_with("hops.rs") {
            text.push_str(&std::fs::read_to_string(&path).expect("source"));
        }
    }
}

/// E-4: each type arises in a test, or can't arise for a reason that is written down: then nothing says
/// it.
#[test]
fn e_4_no_error_type_is_left_out() {
    let mut said = String::new();
    sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut said);
    assert!(said.contains("\"http_response_incomplete\""));
    for (error, place) in &TYPES {
        match place {
            Here => {}
            There(text, test) => {
                let (_, body) = text.split_once(&format!("async fn {test}(")).expect("the test");
                let body = body.split("\n}\n").next().expect("a body");
                assert!(body.contains(error), "{error} is not in {test}");
            }
            Never(reason) => {
                assert!(reason.len() > 20 && !said.contains(&format!("\"{error}\"")), "{error}");
            }
        }
    }
}

/// E-4: what the caller broke is told as its own, before dispatch and after it, and no hop terminated anything.
#[tokio::test]
async fn e_4_a_callers_fault_is_the_callers() {
    let world = World::new().await;
    for (length, size) in [("4", "2\r\nok\r\nzz\r\n"), ("more", "zz\r\n")] {
        let much = if length == "more" {
            format!("{:x}\r\n{}\r\n", 2 << 20, "x".repeat(2 << 20))
        } else {
            String::new()
        };
        let fields = "Transfer-Encoding: chunked\r\n";
        let mut client = Client::connect(world.address).await;
        client.send(&world.plain_request("PUT", "/status/200", fields, "")).await;
        client.send(&(much + size)).await;
        let answer = client.response("PUT").await;
        assert_eq!(answer.status, 400, "{answer:?}");
        check(&answer, "http_request_error", ";status-code=400;status-phrase=\"Bad Request\"");
        let dispatched = world.invocation(answer.id()).await.evidence().dispatch_started;
        assert_eq!(dispatched, length == "more");
        let outcome = if dispatched { "unknown;" } else { "not_attempted;" };
        assert!(answer.outcome().starts_with(outcome), "{}", answer.outcome());
    }
}

/// E-4: an origin's `Proxy-Status` that is no list is left out, so that ours can be read; one that is goes on.
#[tokio::test]
async fn e_4_what_cannot_be_read_does_not_hide_ours() {
    let world = World::new().await;
    let answer = world.plain("GET", "/odd-status", "", "").await;
    let lines = answer.all("proxy-status");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("affiant;"), "{lines:?}");
    assert!(!answer.trailers.to_lowercase().contains("proxy-status"), "{}", answer.trailers);
    let events = world.journal.events(answer.id()).expect("events");
    let noted = events.iter().filter(|(_, event)| event.body.name() == "NOTED").count();
    assert_eq!(noted, 2, "of the head, and of the trailers");
    let answer = world.plain("GET", "/ok", "", "").await;
    assert_eq!(answer.all("proxy-status")[0], "far; error=dns_error");
}
