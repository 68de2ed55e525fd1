//! TLS with origins: who is verified, what is shown, and what alerts mean.

#![allow(clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use journal::contract::{Digest, Outcome, PeerIdentity};
use policy::Secret;
use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use support::{Client, Response, World};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

/// An authority that signs for both sides.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        Self::named("authority")
    }

    fn named(name: &str) -> Self {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("authority").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key as PEM text.
    fn leaf(&self, name: &str) -> String {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("name");
        params.distinguished_name.push(DnType::CommonName, name);
        let leaf = params.signed_by(&key, &self.issuer).expect("leaf");
        leaf.pem() + &key.serialize_pem()
    }
}

/// An origin that takes only clients with a certificate, and says by which they came.
struct Origin {
    port: u16,
    /// The leaves that were shown, one a connection.
    shown: Arc<Mutex<Vec<Vec<u8>>>>,
}

async fn origin(
    authority: &Authority,
    version: &'static rustls::SupportedProtocolVersion,
) -> Origin {
    let mut roots = rustls::RootCertStore::empty();
    let pem = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM");
    roots.add(pem).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let leaf = authority.leaf("127.0.0.1");
    let key = PrivatePkcs8KeyDer::from_pem_slice(leaf.as_bytes()).expect("key");
    let chain = vec![CertificateDer::from_pem_slice(leaf.as_bytes()).expect("leaf")];
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("verifier"))
        .with_single_cert(chain, key.into())
        .expect("config");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&shown);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accept");
            let (acceptor, shown) = (acceptor.clone(), Arc::clone(&shared));
            tokio::spawn(async move {
                let mut tls = match acceptor.accept(tcp).into_fallible().await {
                    Ok(tls) => tls,
                    // Closing with unread bytes would reset the connection and lose the alert.
                    Err((_, mut tcp)) => {
                        tcp.shutdown().await.expect("shutdown");
                        while matches!(tcp.read(&mut [0; 256]).await, Ok(1..)) {}
                        return;
                    }
                };
                let leaf = tls.get_ref().1.peer_certificates().expect("shown")[0].to_vec();
                shown.lock().expect("lock").push(leaf);
                let mut buffer = vec![0; 4096];
                while matches!(tls.read(&mut buffer).await, Ok(1..)) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    tls.write_all(answer).await.expect("answer");
                    tls.flush().await.expect("flush");
                }
            });
        }
    });
    Origin { port, shown }
}

async fn world(directory: &Path, trusted: &str, port: u16) -> World {
    let file = directory.join("authority.pem");
    std::fs::write(&file, trusted).expect("file");
    let terms = "private_addresses = \"allow\"\n";
    let route = |name: &str, path: &str, credential: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/{path}\" }}\n\
             {credential}{terms}"
        )
    };
    let credential =
        |id: &str| format!("[[credential]]\nid = \"{id}\"\nsecret = \"{id}\"\ninject = \"mtls\"\n");
    let extra = format!(
        "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n{}{}{}{}{}",
        file.display(),
        credential("one"),
        credential("two"),
        route("one", "one", "credential = \"one\"\n"),
        route("two", "two", "credential = \"two\"\n"),
        route("without", "without", ""),
    );
    World::with(|_, _| extra, proxy::Options::default()).await
}

async fn get(world: &World, port: u16, path: &str) -> Response {
    ask(world, "GET", port, path).await
}

async fn ask(world: &World, method: &str, port: u16, path: &str) -> Response {
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client
        .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let mut client = client.into_tls(world.ca.certificate_pem(), "127.0.0.1").await;
    client.send(&format!("{method} /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).await;
    client.response(method).await
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM").to_vec()
}

/// C-5, I-2: each credential's certificate opens connections of its own, over TLS 1.2 and 1.3, to an
/// origin whose identity is on record; the key is nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn c_5_client_certificates_open_their_own_connections() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let directory = tempfile::tempdir().expect("directory");
        let authority = Authority::new();
        let origin = origin(&authority, version).await;
        let world = world(directory.path(), &authority.pem, origin.port).await;
        let (one, two) = (authority.leaf("one"), authority.leaf("two"));
        world.policy.set_secret("one", &Secret::from(one.clone())).expect("secret");
        world.policy.set_secret("two", &Secret::from(two.clone())).expect("secret");
        for path in ["one", "two", "one", "two"] {
            let answer = get(&world, origin.port, path).await;
            assert_eq!(answer.text(), "ok", "{version:?} {answer:?}");
            let evidence = world.invocation(answer.id()).await.evidence();
            let Some(PeerIdentity::Tls { name, .. }) = evidence.peer else { panic!("no TLS") };
            assert_eq!(name, "127.0.0.1");
        }
        assert_eq!(*origin.shown.lock().expect("lock"), [der(&one), der(&two)]);
        // A rotated certificate is shown from the next call on.
        let three = authority.leaf("three");
        world.policy.set_secret("one", &Secret::from(three.clone())).expect("secret");
        assert_eq!(get(&world, origin.port, "one").await.text(), "ok");
        assert_eq!(origin.shown.lock().expect("lock").last(), Some(&der(&three)));
        let key = one.lines().rev().nth(1).expect("a line of the key").to_owned();
        assert_eq!(world.files_with(&key), Vec::<std::path::PathBuf>::new());
    }
}

/// I-1: what is no certificate with its key is found before anything is dialled.
#[tokio::test(flavor = "multi_thread")]
async fn i_1_client_certificates_that_can_not_be_used() {
    let directory = tempfile::tempdir().expect("directory");
    let authority = Authority::new();
    let origin = origin(&authority, &rustls::version::TLS13).await;
    let world = world(directory.path(), &authority.pem, origin.port).await;
    let (one, two) = (authority.leaf("one"), authority.leaf("two"));
    let key_at = |pem: &str| pem.find("-----BEGIN PRIVATE KEY").expect("key");
    let mixed = format!("{}{}", &one[..key_at(&one)], &two[key_at(&two)..]);
    for text in ["no PEM at all".to_owned(), mixed] {
        world.policy.set_secret("one", &Secret::from(text)).expect("secret");
        let answer = get(&world, origin.port, "one").await;
        assert_eq!(
            answer.facts()[..3],
            ["SECRET_UNREADABLE", "credential_injection", "not_attempted"]
        );
    }
    assert_eq!(origin.shown.lock().expect("lock").len(), 0);
}

/// C-1, C-6: an origin that wants a certificate says so by an alert. Over TLS 1.2 that ends the
/// set-up; over TLS 1.3 it comes after the request left, and says that it was not processed.
#[tokio::test(flavor = "multi_thread")]
async fn c_1_alerts_are_told() {
    for (version, code, outcome) in [
        (&rustls::version::TLS12, "TLS_ALERT_RECEIVED", Outcome::NotAttempted),
        (&rustls::version::TLS13, "REMOTE_NOT_PROCESSED", Outcome::Rejected),
    ] {
        let directory = tempfile::tempdir().expect("directory");
        let authority = Authority::new();
        let origin = origin(&authority, version).await;
        let world = world(directory.path(), &authority.pem, origin.port).await;
        let answer = get(&world, origin.port, "without").await;
        assert_eq!((answer.status, answer.facts()[0].as_str()), (502, code), "{answer:?}");
        assert_eq!(world.invocation(answer.id()).await.verdict().outcome(), outcome);
        let said = answer.field("proxy-status");
        let expected = format!(
            "affiant;error=tls_alert_received;next-hop=\"127.0.0.1:{}\";alert-id=116;\
             alert-message=\"certificate_required\";",
            origin.port
        );
        assert!(said.starts_with(&expected), "{said}\n{expected}");
    }
}

/// What `openssl req -x509` makes: a certificate of its own issuer, which is an authority. Its text.
async fn self_signed(directory: &Path, name: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(directory).args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]);
    openssl.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=origin"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
    let made = openssl.output().await.expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read_to_string(directory.join(format!("{name}.pem"))).expect("certificate")
}

/// OpenSSL's own server with such a certificate. It ends when dropped.
async fn s_server(directory: &Path, name: &str) -> (Child, u16) {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(directory).args(["s_server", "-accept", "127.0.0.1:0", "-www"]);
    openssl.args(["-cert", &format!("{name}.pem"), "-key", &format!("{name}.key")]);
    openssl.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = openssl.spawn().expect("openssl");
    let mut said = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let port = loop {
        let line = said.next_line().await.expect("line").expect("a port");
        if let Some(address) = line.strip_prefix("ACCEPT ") {
            break address.parse::<std::net::SocketAddr>().expect("address").port();
        }
    };
    // What it says of connections has to go somewhere.
    tokio::spawn(async move { while matches!(said.next_line().await, Ok(Some(_))) {} });
    (child, port)
}

/// C-1: a certificate that a file of `[[trust]]` holds is trusted itself, although it is an authority's. Another one
/// of the same name is not, and nothing is sent to it.
#[tokio::test(flavor = "multi_thread")]
async fn c_1_a_self_signed_certificate_in_the_file_is_trusted() {
    let directory = tempfile::tempdir().expect("directory");
    let trusted = self_signed(directory.path(), "trusted").await;
    let other = self_signed(directory.path(), "other").await;
    assert_ne!(trusted, other);
    let (_server, port) = s_server(directory.path(), "trusted").await;
    let home = world(directory.path(), &trusted, port).await;
    let answer = get(&home, port, "without").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let Some(PeerIdentity::Tls { name, leaf, .. }) =
        home.invocation(answer.id()).await.evidence().peer
    else {
        panic!("no TLS")
    };
    assert_eq!((name.as_str(), leaf), ("127.0.0.1", Digest::of(&der(&trusted))));

    let (_server, port) = s_server(directory.path(), "other").await;
    let home = world(directory.path(), &trusted, port).await;
    let answer = get(&home, port, "without").await;
    assert_eq!(answer.facts()[..3], ["TLS_CERTIFICATE_ERROR", "connection_setup", "not_attempted"]);
    assert!(answer.text().contains("CERT_IS_A_CA"), "{answer:?}");
}

/// Python's own server, which takes clients of the authority alone, over TLS 1.3.
const PYTHON: &str = r#"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.minimum_version = ssl.TLSVersion.TLSv1_3
context.load_cert_chain("server.pem")
context.load_verify_locations("authority.pem")
context.verify_mode = ssl.CERT_REQUIRED
context.set_alpn_protocols([sys.argv[1]])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    tcp, _ = listener.accept()
    try:
        with context.wrap_socket(tcp, server_side=True) as tls:
            tls.recv(4096)
            tls.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
    except OSError:
        tcp.close()
"#;

async fn python_server(directory: &Path, authority: &Authority, protocol: &str) -> (Child, u16) {
    std::fs::write(directory.join("authority.pem"), &authority.pem).expect("file");
    std::fs::write(directory.join("server.pem"), authority.leaf("127.0.0.1")).expect("file");
    let mut python = Command::new("python3");
    python.current_dir(directory).args(["-c", PYTHON, protocol]);
    python.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = python.spawn().expect("python3");
    let mut said = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let port = said.next_line().await.expect("line").expect("a port");
    (child, port.parse().expect("port"))
}

/// C-6, K-11: a client certificate that a TLS 1.3 origin refuses, and a missing one: the request was not
/// processed, the answer and the record say why, and the mended call is not held back.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_a_refused_client_certificate_is_no_doubt() {
    for protocol in ["http/1.1", "h2"] {
        let directory = tempfile::tempdir().expect("directory");
        let authority = Authority::new();
        let (_server, port) = python_server(directory.path(), &authority, protocol).await;
        let world = world(directory.path(), &authority.pem, port).await;
        let stranger = Secret::from(Authority::named("stranger").leaf("one"));
        world.policy.set_secret("one", &stranger).expect("secret");
        for (path, alert) in [("without", "certificate_required"), ("one", "unknown_ca")] {
            let answer = ask(&world, "POST", port, path).await;
            assert_eq!(answer.status, 502, "{protocol} {answer:?}");
            let late = ["REMOTE_NOT_PROCESSED", "remote_execution", "rejected", "after_correction"];
            // The alert may overtake the dispatch of a stream.
            let early =
                ["TLS_ALERT_RECEIVED", "connection_setup", "not_attempted", "after_correction"];
            let facts = answer.facts();
            assert!(facts == late || (protocol == "h2" && facts == early), "{protocol} {facts:?}");
            let said = answer.field("proxy-status");
            assert!(said.contains(&format!("alert-message=\"{alert}\"")), "{said}");
            let record = world.invocation(answer.id()).await;
            if facts == late {
                let note = record.note().expect("a note");
                assert!(note.contains("client certificate") && note.contains(alert), "{note}");
            }
        }
        if protocol == "http/1.1" {
            world.policy.set_secret("one", &Secret::from(authority.leaf("one"))).expect("secret");
            let answer = ask(&world, "POST", port, "one").await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "{answer:?}");
        }
    }
}
