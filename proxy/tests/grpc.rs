//! HTTP/2 from end to end: gRPC by its status, and what the protocol proves of a refused stream.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use journal::contract::{Completion, InvocationId};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Client, SECRET, World};
use tokio::net::TcpListener;

#[derive(Default)]
struct Seen {
    effects: HashMap<String, usize>,
    heads: Vec<http::request::Parts>,
    connections: usize,
}

/// An origin that speaks HTTP/2 and does what the path says.
struct Origin {
    address: SocketAddr,
    ca_file: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

async fn origin(directory: &Path) -> Origin {
    let ca_key = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).expect("ca");
    let ca_file = directory.join("h2-ca.pem");
    std::fs::write(&ca_file, ca.pem()).expect("file");
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate().expect("key");
    let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    let leaf = leaf.signed_by(&key, &issuer).expect("leaf");
    let der = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], der.into())
        .expect("config");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let address = listener.local_addr().expect("address");
    let seen = Arc::new(Mutex::new(Seen::default()));
    let shared = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accept");
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
            seen.lock().expect("lock").connections += 1;
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let Ok(mut connection) = h2::server::handshake(tls).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let path = request.uri().path().to_owned();
                    *seen.lock().expect("lock").effects.entry(path.clone()).or_default() += 1;
                    if path.ends_with("/goaway") {
                        connection.graceful_shutdown();
                    }
                    if path.ends_with("/gone") {
                        return;
                    }
                    tokio::spawn(stream(request, respond, Arc::clone(&seen)));
                }
            });
        }
    });
    Origin { address, ca_file, seen }
}

async fn stream(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: Arc<Mutex<Seen>>,
) {
    let (parts, mut body) = request.into_parts();
    let path = parts.uri.path().trim_start_matches("/with-credential").to_owned();
    if path == "/refuse" {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    let mut content = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        drop(body.flow_control().release_capacity(piece.len()));
        content.extend_from_slice(&piece);
    }
    let authorization = parts.headers.get("authorization").cloned();
    seen.lock().expect("lock").heads.push(parts);
    if path == "/reset" {
        return respond.send_reset(Reason::INTERNAL_ERROR);
    }
    let grpc = path.strip_prefix("/grpc/");
    let mut response = Response::builder();
    if grpc.is_some() {
        response = response.header("content-type", "application/grpc");
    }
    if let Some(status) = grpc.and_then(|rest| rest.strip_prefix("only/")) {
        let response = response.header("grpc-status", status).body(()).expect("response");
        drop(respond.send_response(response, true));
        return;
    }
    if path == "/interim" {
        let hints = Response::builder().status(103).header("link", "x").body(()).expect("hints");
        respond.send_informational(hints).expect("sent");
    }
    let response = response.body(()).expect("response");
    let mut sending = respond.send_response(response, false).expect("sent");
    if path == "/cut" {
        sending.send_data(Bytes::from_static(b"hello"), false).expect("data");
        tokio::time::sleep(Duration::from_millis(50)).await;
        return sending.send_reset(Reason::INTERNAL_ERROR);
    }
    let text = authorization.map_or(content, |value| value.as_bytes().to_vec());
    sending.send_data(Bytes::from(text), grpc.is_none()).expect("data");
    match grpc {
        Some("none") => drop(sending.send_data(Bytes::new(), true)),
        Some(status) => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().expect("value"));
            trailers.insert("grpc-message", "m".parse().expect("value"));
            sending.send_trailers(trailers).expect("trailers");
        }
        None => {}
    }
}

struct Answer {
    status: u16,
    head: HeaderMap,
    content: Vec<u8>,
    trailers: HeaderMap,
    whole: bool,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.head.get(name).map(|v| v.to_str().expect("text")).unwrap_or_default()
    }

    fn id(&self) -> InvocationId {
        let (_, rest) = self.field("affiant-outcome").split_once("invocation=\"").expect("an id");
        rest[..30].parse().expect("an id")
    }
}

struct Test {
    world: World,
    origin: Origin,
    sender: SendRequest<Bytes>,
    _directory: tempfile::TempDir,
}

impl Test {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let origin = origin(directory.path()).await;
        let port = origin.address.port();
        let extra = format!(
            "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n\
             [[route]]\nname = \"h2\"\nagents = [\"coder\"]\n\
             match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n\
             [[route]]\nname = \"h2-credential\"\nagents = [\"coder\"]\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/with-credential/**\" }}\n\
             private_addresses = \"allow\"\ncredential = \"pay\"\n",
            origin.ca_file.display()
        );
        let world = World::with(|_, _| extra, proxy::Options::default()).await;
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        let connect = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        client.send(&connect).await;
        assert_eq!(client.response("CONNECT").await.status, 200);
        let tls = client.into_h2(world.ca.certificate_pem(), "127.0.0.1").await;
        let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
        tokio::spawn(connection);
        Self { world, origin, sender, _directory: directory }
    }

    async fn call(&self, method: &str, path: &str, content: &'static [u8]) -> Answer {
        let port = self.origin.address.port();
        let request = Request::builder()
            .method(method)
            .uri(format!("https://127.0.0.1:{port}{path}"))
            .header("te", "trailers")
            .body(())
            .expect("request");
        let mut sender = self.sender.clone().ready().await.expect("ready");
        let (response, mut sending) = sender.send_request(request, false).expect("sent");
        sending.send_data(Bytes::from_static(content), true).expect("data");
        let response = tokio::time::timeout(Duration::from_secs(20), response).await;
        let (parts, mut body) = response.expect("in time").expect("a response").into_parts();
        let (mut content, mut whole) = (Vec::new(), true);
        while let Some(piece) = body.data().await {
            match piece {
                Ok(piece) => content.extend_from_slice(&piece),
                Err(_) => {
                    whole = false;
                    break;
                }
            }
        }
        let trailers = body.trailers().await.ok().flatten().unwrap_or_default();
        let (status, head) = (parts.status.as_u16(), parts.headers);
        Answer { status, head, content, trailers, whole }
    }

    fn effects(&self, path: &str) -> usize {
        self.origin.seen.lock().expect("lock").effects.get(path).copied().unwrap_or(0)
    }
}

/// D-2: streams of one connection on both sides, proven by END_STREAM.
#[tokio::test(flavor = "multi_thread")]
async fn d_2_http2_from_end_to_end() {
    let test = Test::new().await;
    for path in ["/a", "/b", "/interim"] {
        let answer = test.call("POST", path, b"content").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"content".as_slice()));
        let evidence = test.world.invocation(answer.id()).await.evidence();
        assert_eq!(evidence.completion, Some(Completion::EndStream));
    }
    assert_eq!(test.origin.seen.lock().expect("lock").connections, 1);
    let answer = test.call("POST", "/with-credential/x", b"").await;
    let text = String::from_utf8_lossy(&answer.content).into_owned();
    assert_eq!(text, format!("Bearer {}", "*".repeat(SECRET.len())).replace("Bearer ", "*******"));
    let seen = test.origin.seen.lock().expect("lock");
    let head = seen.heads.last().expect("head");
    assert_eq!(head.headers["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(head.headers["te"], "trailers");
    assert!(!head.headers.contains_key("host") && !head.headers.contains_key("connection"));
    let authority = head.uri.authority().expect("authority").as_str();
    assert_eq!(authority, test.origin.address.to_string());
}

/// S-9: the status of gRPC settles, wherever it stands; without one the outcome is unknown and the
/// stream is broken off.
#[tokio::test(flavor = "multi_thread")]
async fn s_9_grpc_settles_by_its_status() {
    let test = Test::new().await;
    for (path, outcome, code) in [
        ("/grpc/0", "committed", "OK"),
        ("/grpc/5", "rejected", "REMOTE_REJECTED"),
        ("/grpc/13", "committed", "REMOTE_FAILED"),
    ] {
        let answer = test.call("POST", path, b"message").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"message".as_slice()));
        let status = path.trim_start_matches("/grpc/");
        assert_eq!(answer.trailers["grpc-status"], status);
        assert_eq!(answer.trailers["grpc-message"], "m");
        let said = answer.trailers["affiant-outcome"].to_str().expect("text").to_owned();
        assert!(said.starts_with(&format!("{outcome};")), "{path} {said}");
        let verdict = test.world.invocation(answer.id()).await.verdict();
        assert_eq!(
            (verdict.outcome().as_str(), verdict.code().as_str()),
            (outcome, code),
            "{path}"
        );
    }
    let answer = test.call("POST", "/grpc/only/12", b"x").await;
    assert_eq!(answer.field("grpc-status"), "12");
    assert!(answer.field("affiant-outcome").starts_with("rejected;"));
    assert!(answer.trailers.is_empty() && answer.content.is_empty());
    let answer = test.call("POST", "/grpc/none", b"x").await;
    assert!(!answer.whole);
    let verdict = test.world.invocation(answer.id()).await.verdict();
    assert_eq!(verdict.outcome().as_str(), "unknown");
    assert_eq!(verdict.code().as_str(), "REMOTE_RESULT_INCOMPLETE");
}

/// C-6, D-7: a refused stream settles as rejected and may be sent again later; the broker itself sent
/// it once. A reset, and a lost connection, prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_what_the_protocol_proves() {
    let test = Test::new().await;
    let answer = test.call("POST", "/refuse", b"x").await;
    assert_eq!(answer.status, 503);
    let said = answer.field("affiant-outcome");
    assert!(said.starts_with("rejected;phase=remote_execution;retry=backoff;"), "{said}");
    assert_eq!(answer.field("retry-after"), "1");
    assert_eq!(test.effects("/refuse"), 1);
    let verdict = test.world.invocation(answer.id()).await.verdict();
    assert_eq!(verdict.code().as_str(), "REMOTE_NOT_PROCESSED");
    for path in ["/reset", "/gone"] {
        let answer = test.call("POST", path, b"x").await;
        assert_eq!(answer.status, 502, "{path}");
        let verdict = test.world.invocation(answer.id()).await.verdict();
        assert_eq!(verdict.outcome().as_str(), "unknown", "{path}");
        assert_eq!(verdict.code().as_str(), "REMOTE_OUTCOME_UNKNOWN", "{path}");
        assert_eq!(test.effects(path), 1, "{path}");
    }
    let answer = test.call("POST", "/cut", b"x").await;
    assert_eq!(answer.status, 502);
    assert_eq!(test.world.invocation(answer.id()).await.verdict().outcome().as_str(), "unknown");
}

/// C-6: a connection that goes away finishes what it took, and takes no more; the next call is on a
/// new one.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_a_connection_that_goes_away() {
    let test = Test::new().await;
    for n in 1..=3 {
        let answer = test.call("POST", "/goaway", b"x").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"x".as_slice()));
        test.world.events(answer.id(), "RESULT_DELIVERED").await;
        assert_eq!(test.effects("/goaway"), n);
    }
    assert!(test.origin.seen.lock().expect("lock").connections >= 2);
}
