//! The proxy over TLS: callers whose proxy URL says `https`.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::Body;
use proxy::{ListenerIdentity, Options, Proxy};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Client, World};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;

/// What a control API would answer; none is asked here.
struct Nothing;

#[async_trait::async_trait]
impl proxy::Control for Nothing {
    async fn call(
        &self,
        _agent: &str,
        _request: http::Request<bytes::Bytes>,
    ) -> http::Response<bytes::Bytes> {
        http::Response::new(bytes::Bytes::new())
    }
}

/// A second listener beside the world's own.
async fn listen(world: &World, identity: ListenerIdentity) -> (SocketAddr, watch::Sender<bool>) {
    let proxy = Proxy::new(
        world.journal.clone(),
        Arc::clone(&world.policy),
        Arc::clone(&world.ca),
        Arc::new(Nothing),
        Options::default(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let address = listener.local_addr().expect("address");
    let (shutdown, watching) = watch::channel(false);
    tokio::spawn(proxy.expect("proxy").serve_tls(listener, identity, watching));
    (address, shutdown)
}

async fn curl(arguments: &[&str]) -> (String, String, bool) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "", "-m", "20"]).args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output());
    let output = output.await.expect("in time").expect("curl");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr), output.status.success())
}

/// curl, in clear text and in tunnels, with the certificate of the home's authority and with one of
/// its own; a wrong name is refused by the client.
#[tokio::test(flavor = "multi_thread")]
async fn curl_speaks_tls_with_the_proxy() {
    let world = World::new().await;
    let own = own_files(world.home.path());
    let home = world.ca_file().display().to_string();
    let by_ca = ListenerIdentity::from_ca(&world.ca, &["localhost", "127.0.0.1"]);
    let by_files = ListenerIdentity::from_files(&own.join("cert.pem"), &own.join("key.pem"));
    let own_ca = own.join("cert.pem").display().to_string();
    for (identity, ca) in [(by_ca, home.clone()), (by_files, own_ca)] {
        let (address, _shutdown) = listen(&world, identity.expect("identity")).await;
        let url = format!("https://coder:{}@localhost:{}", world.token, address.port());
        // The home's authority names the address as well; the other certificate does not.
        let by_address = url.replace("localhost", "127.0.0.1");
        for (url, named) in [(&url, true), (&by_address, ca == home)] {
            for target in [world.plain_url("/echo"), world.secure_url("/echo")] {
                let trust = ["--proxy-cacert", &ca, "--cacert", &home];
                let arguments = [&["-x", url][..], &trust, &["-d", "content", &target]].concat();
                let (out, err, ok) = curl(&arguments).await;
                assert_eq!(ok && out.ends_with("content"), named, "{url} {target} {err}");
            }
        }
        let other = url.replace("localhost", "localhost.localdomain");
        let resolve = format!("localhost.localdomain:{}:127.0.0.1", address.port());
        let target = world.plain_url("/echo");
        let (_, err, ok) =
            curl(&["-x", &other, "--resolve", &resolve, "--proxy-cacert", &ca, &target]).await;
        assert!(!ok && err.contains("subject name"), "{err}");
    }
}

/// A certificate that signs itself, for `localhost`.
fn own_files(directory: &Path) -> std::path::PathBuf {
    let key = rcgen::KeyPair::generate().expect("key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("name");
    let certificate = params.self_signed(&key).expect("certificate");
    std::fs::write(directory.join("cert.pem"), certificate.pem()).expect("file");
    std::fs::write(directory.join("key.pem"), key.serialize_pem()).expect("file");
    directory.to_owned()
}

/// TLS in TLS, with HTTP/1.1 and HTTP/2 inside: answered, recorded, and confirmed once the
/// caller's host has it. Someone without TLS gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_tunnels_inside_of_tls() {
    let world = World::new().await;
    let identity = ListenerIdentity::from_ca(&world.ca, &["localhost"]).expect("identity");
    let (address, _shutdown) = listen(&world, identity).await;
    let port = world.secure.address.port();
    let tunnel = || async {
        let client = Client::connect(address).await;
        let mut client = client.into_tls(world.ca.certificate_pem(), "localhost").await;
        let credentials = world.credentials();
        client
            .send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
            .await;
        assert_eq!(client.response("CONNECT").await.status, 200);
        client
    };
    let mut client = tunnel().await.into_tls(world.ca.certificate_pem(), "localhost").await;
    for path in ["/ok", "/big?3000000"] {
        client.send(&world.secure_request("GET", path, "", "")).await;
        let answer = client.response("GET").await;
        assert!(answer.complete && answer.status == 200);
        world.events(answer.id(), "RESULT_DELIVERED").await;
    }
    let tls = tunnel().await.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
    tokio::spawn(connection);
    let request = http::Request::builder().uri(format!("https://localhost:{port}/ok"));
    let mut sender = sender.ready().await.expect("ready");
    let sent = sender.send_request(request.body(()).expect("request"), true).expect("sent");
    let response = sent.0.await.expect("response");
    let said = response.headers()["affiant-outcome"].to_str().expect("text").to_owned();
    let (_, rest) = said.split_once("invocation=\"").expect("an id");
    world.events(rest[..30].parse().expect("an id"), "RESULT_DELIVERED").await;
    let mut plain = Client::connect(address).await;
    plain.send("GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n").await;
    // At most a TLS alert comes back.
    let mut answer = Vec::new();
    while plain.fill().await {
        answer = plain.take(1).await;
    }
    assert!(!answer.starts_with(b"H"));
}

/// A request of HTTP/2 to the proxy itself.
fn ask(world: &World, method: &str, uri: &str) -> http::request::Builder {
    let (name, value) = world.credentials().trim().split_once(": ").map(owned).expect("a field");
    http::Request::builder().method(method).uri(uri).header(name.to_lowercase(), value)
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Opens a tunnel on a stream; what passes in it, as a transport.
async fn tunnel_on(
    sender: &h2::client::SendRequest<bytes::Bytes>,
    asked: http::request::Builder,
) -> Result<tokio::io::DuplexStream, http::Response<h2::RecvStream>> {
    let mut sender = sender.clone().ready().await.expect("ready");
    let request = asked.body(()).expect("request");
    let (response, mut sending) = sender.send_request(request, false).expect("sent");
    let response = tokio::time::timeout(Duration::from_secs(20), response).await;
    let response = response.expect("in time").expect("a response");
    if response.status() != 200 {
        return Err(response);
    }
    let mut content = response.into_body();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (mut reads, mut writes) = tokio::io::split(far);
    tokio::spawn(async move {
        while let Some(Ok(piece)) = content.data().await {
            content.flow_control().release_capacity(piece.len()).expect("release");
            if writes.write_all(&piece).await.is_err() {
                return;
            }
        }
        drop(writes.shutdown().await);
    });
    tokio::spawn(async move {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = reads.read(&mut piece).await {
            let mut left = bytes::Bytes::copy_from_slice(&piece[..length]);
            while !left.is_empty() {
                sending.reserve_capacity(left.len());
                let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
                let Some(Ok(room)) = room else { return };
                let room = room.min(left.len());
                if sending.send_data(left.split_to(room), false).is_err() {
                    return;
                }
            }
        }
        drop(sending.send_data(bytes::Bytes::new(), true));
    });
    Ok(near)
}

/// R-5, K-11: HTTP/2 with the proxy itself: tunnels on streams, with HTTP/1.1 and HTTP/2 inside, and
/// requests without a tunnel. What arrived is followed through both connections, so that an equal POST
/// after it is a new action.
#[tokio::test(flavor = "multi_thread")]
async fn r_5_http2_with_the_proxy_itself() {
    let world = World::new().await;
    let identity = ListenerIdentity::from_ca(&world.ca, &["localhost"]).expect("identity");
    let (address, _shutdown) = listen(&world, identity).await;
    let tls = Client::connect(address).await;
    let tls = tls.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
    tokio::spawn(connection);
    let authority = format!("localhost:{}", world.secure.address.port());

    // Nobody, and somebody that policy does not let there.
    let nobody = http::Request::builder().method("CONNECT").uri(&authority);
    let refused = tunnel_on(&sender, nobody).await.expect_err("refused");
    assert_eq!(refused.status(), 407);
    assert!(refused.headers().contains_key("proxy-authenticate"));
    let denied = ask(&world, "CONNECT", "denied.example:443");
    assert_eq!(tunnel_on(&sender, denied).await.expect_err("denied").status(), 403);

    // E-4: a tunnel that is opened is no call, so it has no outcome.
    let request = ask(&world, "CONNECT", &authority).body(()).expect("request");
    let (opened, _sending) = sender.clone().send_request(request, false).expect("sent");
    let opened = opened.await.expect("a response");
    assert_eq!(
        (opened.status().as_u16(), &opened.headers()["proxy-status"]),
        (200, &"affiant".parse().expect("value"))
    );
    assert_eq!(opened.headers().get("affiant-outcome"), None);

    let open = async || {
        let near = tunnel_on(&sender, ask(&world, "CONNECT", &authority)).await;
        Client::on(near.unwrap_or_else(|refused| unreachable!("{refused:?}")))
    };
    let mut client = open().await.into_tls(world.ca.certificate_pem(), "localhost").await;
    for n in 1..=5 {
        client.send(&world.secure_request("POST", "/ok", "", "same")).await;
        let answer = client.response("POST").await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
        assert!(!answer.outcome().contains("replayed"), "{n}: {}", answer.outcome());
        world.events(answer.id(), "RESULT_DELIVERED").await;
        assert_eq!(world.secure.effects("/ok"), n);
    }
    client.send(&world.secure_request("GET", "/big?3000000", "", "")).await;
    let answer = client.response("GET").await;
    assert!(answer.complete && answer.content.len() == 3_000_000);
    world.events(answer.id(), "RESULT_DELIVERED").await;

    let inner = open().await.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (inner, connection) = h2::client::handshake(inner).await.expect("handshake");
    tokio::spawn(connection);
    for n in 6..=8 {
        let request = http::Request::post(format!("https://{authority}/ok"));
        let mut inner = inner.clone().ready().await.expect("ready");
        let (response, mut sending) =
            inner.send_request(request.body(()).expect("request"), false).expect("sent");
        sending.send_data(bytes::Bytes::from_static(b"same"), true).expect("data");
        let response = response.await.expect("a response");
        let said = response.headers()["affiant-outcome"].to_str().expect("text").to_owned();
        assert!(!said.contains("replayed"), "{n}: {said}");
        let (_, rest) = said.split_once("invocation=\"").expect("an id");
        world.events(rest[..30].parse().expect("an id"), "RESULT_DELIVERED").await;
        assert_eq!(world.secure.effects("/ok"), n);
    }

    // Without a tunnel, in clear text from here on; and the control API.
    for (uri, effects) in
        [(world.plain_url("/ok"), 1), ("http://affiant.internal/v1/health".to_owned(), 1)]
    {
        let mut sender = sender.clone().ready().await.expect("ready");
        let request = ask(&world, "GET", &uri).body(()).expect("request");
        let (response, _) = sender.send_request(request, true).expect("sent");
        assert_eq!(response.await.expect("a response").status(), 200, "{uri}");
        assert_eq!(world.origin.effects("/ok"), effects);
    }
    assert!(!world.origin.last_head().to_lowercase().contains("proxy-authorization"));
}

/// The facts of a refusal on a stream: status, code, phase, outcome.
async fn refusal(response: http::Response<h2::RecvStream>) -> (u16, [String; 3]) {
    let status = response.status().as_u16();
    let mut content = response.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(piece)) = content.data().await {
        bytes.extend_from_slice(&piece);
    }
    let told: serde_json::Value = serde_json::from_slice(&bytes).expect("problem details");
    let text = |name: &str| told["error"][name].as_str().unwrap_or_default().to_owned();
    (status, [text("code"), text("phase"), text("outcome")])
}

/// D-1: a tunnel on a stream that policy leaves alone carries every byte both ways and shows the origin's
/// own certificate; on record are its opening, the bytes each way and its end. What can't be opened, and
/// what asks for a tunnel inside of one, is refused.
#[tokio::test(flavor = "multi_thread")]
async fn d_1_tunnels_on_streams_that_are_left_alone() {
    let echo = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let open = echo.local_addr().expect("address").port();
    let (_held, closed) = support::refusing();
    let alone = |port: u16| {
        format!(
            "[[route]]\nname = \"alone-{port}\"\nagents = [\"coder\"]\nintercept = false\n\
             match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n"
        )
    };
    let routes = alone(open) + &alone(closed.port());
    let world = World::with(|_, _| routes, Options::default()).await;
    let identity = ListenerIdentity::from_ca(&world.ca, &["localhost"]).expect("identity");
    let (address, _shutdown) = listen(&world, identity).await;
    let tls = Client::connect(address).await;
    let tls = tls.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
    tokio::spawn(connection);

    // The far end begins, then answers the caller's bytes until they end.
    let far = tokio::spawn(async move {
        let (mut tcp, _) = echo.accept().await.expect("accept");
        tcp.write_all(b"early").await.expect("written");
        let (mut reads, mut writes) = tcp.split();
        tokio::io::copy(&mut reads, &mut writes).await.expect("copied")
    });
    let asked = ask(&world, "CONNECT", &format!("127.0.0.1:{open}"));
    let near = tunnel_on(&sender, asked).await.unwrap_or_else(|said| unreachable!("{said:?}"));
    let (mut reads, mut writes) = tokio::io::split(near);
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
    let sent = content.clone();
    tokio::spawn(async move {
        writes.write_all(&sent).await.expect("sent");
        writes.shutdown().await.expect("ended");
    });
    let mut got = Vec::new();
    let all = tokio::time::timeout(Duration::from_secs(20), reads.read_to_end(&mut got)).await;
    all.expect("in time").expect("read");
    assert!(got == [b"early", content.as_slice()].concat(), "{} bytes came back", got.len());
    assert_eq!(far.await.expect("the far end"), 3_000_000);
    let invocation = world.invocation(world.newest().id()).await;
    assert_eq!(invocation.accepted().action, "CONNECT");
    let facts = (invocation.verdict().outcome().as_str(), invocation.verdict().retry().as_str());
    assert_eq!(facts, ("unknown", "reconcile"));
    let events = world.events(invocation.id(), "INVOCATION_ENDED").await;
    let note = |body| if let Body::Noted(n) = body { Some((n.name, n.detail)) } else { None };
    let notes: Vec<_> = events.into_iter().filter_map(|event| note(event.body)).collect();
    let passed = "3000000 bytes to the origin, 3000005 bytes to the caller";
    let hop = format!("127.0.0.1:{open}");
    assert_eq!(notes, [("tunnel_opened".into(), hop), ("passed".into(), passed.into())]);

    let asked = ask(&world, "CONNECT", &format!("127.0.0.1:{}", closed.port()));
    let refused = tunnel_on(&sender, asked).await.expect_err("refused");
    let facts = ["CONNECTION_REFUSED", "connection_setup", "not_attempted"].map(str::to_owned);
    assert_eq!(refusal(refused).await, (502, facts));

    // A tunnel inside of a tunnel is none that policy could judge.
    let authority = format!("localhost:{}", world.secure.address.port());
    let near = tunnel_on(&sender, ask(&world, "CONNECT", &authority)).await;
    let inner = Client::on(near.unwrap_or_else(|said| unreachable!("{said:?}")));
    let inner = inner.into_h2(world.ca.certificate_pem(), "localhost").await;
    let (inner, connection) = h2::client::handshake(inner).await.expect("handshake");
    tokio::spawn(connection);
    let refused = tunnel_on(&inner, ask(&world, "CONNECT", &authority)).await.expect_err("refused");
    let facts = ["UNSUPPORTED_ACTION", "validation", "not_attempted"].map(str::to_owned);
    assert_eq!(refusal(refused).await, (501, facts));
    assert_eq!(world.secure.all_effects(), 0);
}

#[test]
fn certificates_that_can_not_be_used() {
    let directory = tempfile::tempdir().expect("directory");
    let own = own_files(directory.path());
    let (certificate, key) = (own.join("cert.pem"), own.join("key.pem"));
    std::fs::write(own.join("other.pem"), rcgen::KeyPair::generate().expect("key").serialize_pem())
        .expect("file");
    for (certificate, key, why) in [
        (&own.join("absent.pem"), &key, "read certificate and key of the listener"),
        (&key, &key, "the file holds no certificate"),
        (&certificate, &certificate, "read certificate and key of the listener"),
        (&certificate, &own.join("other.pem"), "use certificate and key of the listener"),
    ] {
        let error = ListenerIdentity::from_files(certificate, key).expect_err("refused");
        assert_eq!(error.to_string(), why);
    }
}
