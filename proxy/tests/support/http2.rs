//! An origin and a caller that speak HTTP/2.

use super::{Client, World};
use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use journal::contract::InvocationId;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// What reached the origin.
#[derive(Default)]
pub struct Seen {
    pub effects: HashMap<String, usize>,
    pub heads: Vec<http::request::Parts>,
    /// Trailers of requests that had any.
    pub trailers: Vec<HeaderMap>,
    pub connections: usize,
}

/// An origin that speaks HTTP/2 and does what the path says.
pub struct Http2Origin {
    pub address: SocketAddr,
    pub ca_file: PathBuf,
    pub seen: Arc<Mutex<Seen>>,
    /// What reached it over HTTP/1.1.
    pub http11: Arc<super::Origin>,
}

impl Http2Origin {
    /// An origin for `127.0.0.1` that speaks these protocols; `http/1.1` as [`super::Origin`] does.
    pub async fn start(directory: &Path, protocols: &[&[u8]]) -> Self {
        Self::with(directory, protocols, false).await
    }

    /// As [`Self::start`]; `connects`: it takes an extended CONNECT.
    pub async fn with(directory: &Path, protocols: &[&[u8]], connects: bool) -> Self {
        let mut builder = h2::server::Builder::new();
        if connects {
            builder.enable_connect_protocol();
        }
        Self::built(directory, protocols, builder).await
    }

    /// As [`Self::start`], with so many streams at a time on a connection.
    pub async fn narrow(directory: &Path, streams: u32) -> Self {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(streams);
        Self::built(directory, &[b"h2"], builder).await
    }

    async fn built(directory: &Path, protocols: &[&[u8]], builder: h2::server::Builder) -> Self {
        let (config, ca_file) = identity(directory, protocols);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let (seen, http11) = (Arc::default(), Arc::new(super::Origin::plain()));
        tokio::spawn(accept(listener, config, builder, Arc::clone(&seen), Arc::clone(&http11)));
        Self { address, ca_file, seen, http11 }
    }

    pub fn effects(&self, path: &str) -> usize {
        self.seen.lock().expect("lock").effects.get(path).copied().unwrap_or(0)
    }

    /// Routes of the agent to this origin, with and without the credential.
    pub fn routes(&self) -> String {
        let port = self.address.port();
        format!(
            "[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n\
             [[route]]\nname = \"h2\"\nagents = [\"coder\"]\n\
             match = {{ host = \"127.0.0.1\", port = {port} }}\nprivate_addresses = \"allow\"\n\
             [[route]]\nname = \"h2-credential\"\nagents = [\"coder\"]\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/with-credential/**\" }}\n\
             private_addresses = \"allow\"\ncredential = \"pay\"\n",
            self.ca_file.display()
        )
    }
}

/// TLS settings with a leaf for `127.0.0.1`, and the file of the authority behind it.
pub fn identity(directory: &Path, protocols: &[&[u8]]) -> (Arc<rustls::ServerConfig>, PathBuf) {
    let file = directory.join("h2-ca.pem");
    (super::origin::identity(&file, &["127.0.0.1"], protocols), file)
}

async fn accept(
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    builder: h2::server::Builder,
    shared: Arc<Mutex<Seen>>,
    http11: Arc<super::Origin>,
) {
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    loop {
        let (tcp, _) = listener.accept().await.expect("accept");
        let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
        let builder = builder.clone();
        let http11 = Arc::clone(&http11);
        tokio::spawn(async move {
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
                return drop(http11.peer.serve_tls(tls).await);
            }
            seen.lock().expect("lock").connections += 1;
            let Ok(mut connection) = builder.handshake(tls).await else { return };
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
}

/// Answers before the content has ended, whatever is still to come.
async fn early(status: &str, mut content: h2::RecvStream, mut respond: SendResponse<Bytes>) {
    let response = Response::builder().header("content-type", "application/grpc");
    let response = response.header("grpc-status", status).body(()).expect("response");
    drop(respond.send_response(response, true));
    while let Some(Ok(_)) = content.data().await {}
}

async fn stream(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: Arc<Mutex<Seen>>,
) {
    let (parts, mut body) = request.into_parts();
    let path = parts.uri.path().trim_start_matches("/with-credential");
    let path = path.trim_start_matches("/again").to_owned();
    let times = seen.lock().expect("lock").effects[parts.uri.path()];
    if path == "/hang" {
        return std::future::pending().await;
    }
    if path == "/refuse" || (path == "/refuse-twice" && times < 3) {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    if path == "/http11" {
        return respond.send_reset(Reason::HTTP_1_1_REQUIRED);
    }
    if parts.extensions.get::<h2::ext::Protocol>().is_some() {
        let with_credential = parts.uri.path() != path;
        seen.lock().expect("lock").heads.push(parts);
        return websocket(&path, with_credential, body, respond).await;
    }
    if let Some(status) = path.strip_prefix("/grpc/early/") {
        return early(status, body, respond).await;
    }
    let mut content = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        drop(body.flow_control().release_capacity(piece.len()));
        content.extend_from_slice(&piece);
    }
    if let Ok(Some(trailers)) = body.trailers().await {
        seen.lock().expect("lock").trailers.push(trailers);
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
    let Err(mut respond) = of_sections(&path, respond) else { return };
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

/// Answers whose field sections are the point; the stream back where the path asks for none of them.
fn of_sections(path: &str, mut respond: SendResponse<Bytes>) -> Result<(), SendResponse<Bytes>> {
    let field = |length: &str| "x".repeat(length.parse().expect("a length"));
    let (fields, content, trailers) = match path {
        "/sized-trailer" => {
            (vec![("content-length", "5".into())], "hello", vec![("x-sum", "1".into())])
        }
        "/two-lengths" => (vec![("content-length", "5".to_owned()); 2], "hello", vec![]),
        "/padded" => (vec![("x-padded", " v".into())], "hello", vec![]),
        _ => {
            if let Some(length) = path.strip_prefix("/long-head/") {
                (vec![("x-long", field(length))], "", vec![])
            } else if let Some(length) = path.strip_prefix("/long-trailer/") {
                let around = |name| (name, "1".to_owned());
                let trailers = [around("x-first"), ("x-long", field(length)), around("x-last")];
                (vec![], "", trailers.into())
            } else {
                return Err(respond);
            }
        }
    };
    let map = |fields: Vec<(&'static str, String)>| -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name, value.parse().expect("value"));
        }
        map
    };
    let mut response = Response::new(());
    *response.headers_mut() = map(fields);
    let mut sending = respond.send_response(response, false).expect("sent");
    sending.send_data(content.into(), trailers.is_empty()).expect("data");
    if !trailers.is_empty() {
        sending.send_trailers(map(trailers)).expect("trailers");
    }
    Ok(())
}

/// Opens, says "early" and echoes; `/status/...` refuses, `/websocket-reset` breaks off at the first
/// piece.
async fn websocket(
    path: &str,
    with_credential: bool,
    mut body: h2::RecvStream,
    mut respond: SendResponse<Bytes>,
) {
    let status: u16 = path.strip_prefix("/status/").map_or(200, |code| code.parse().expect("code"));
    let mut response = Response::builder().status(status);
    if path == "/websocket-extension" {
        response = response.header("sec-websocket-extensions", "permessage-deflate; x=1");
    }
    let response = response.body(()).expect("response");
    let mut sending = respond.send_response(response, false).expect("sent");
    if status != 200 {
        return sending.send_data(Bytes::from_static(b"body"), true).expect("data");
    }
    // What is sent with a credential has to be frames.
    let early: &[u8] = if with_credential { b"\x81\x05early" } else { b"early" };
    sending.send_data(Bytes::from_static(early), false).expect("data");
    while let Some(Ok(mut piece)) = body.data().await {
        body.flow_control().release_capacity(piece.len()).expect("release");
        if path == "/websocket-reset" {
            return sending.send_reset(Reason::CANCEL);
        }
        while !piece.is_empty() {
            sending.reserve_capacity(piece.len());
            let room = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
            let Some(Ok(room)) = room else { return };
            drop(sending.send_data(piece.split_to(room.min(piece.len())), false));
        }
    }
    drop(sending.send_data(Bytes::new(), true));
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: HeaderMap,
    pub content: Vec<u8>,
    pub trailers: HeaderMap,
    pub whole: bool,
}

impl Answer {
    pub fn field(&self, name: &str) -> &str {
        self.head.get(name).map(|v| v.to_str().expect("text")).unwrap_or_default()
    }

    pub fn id(&self) -> InvocationId {
        let (_, rest) = self.field("affiant-outcome").split_once("invocation=\"").expect("an id");
        rest[..30].parse().expect("an id")
    }
}

/// A caller's connection that negotiated HTTP/2 inside of its tunnel.
pub struct Http2Client {
    pub sender: SendRequest<Bytes>,
    pub authority: String,
}

impl Http2Client {
    /// Opens the tunnel to a port of `127.0.0.1`.
    pub async fn open(world: &World, port: u16) -> Self {
        Self::open_to(world, "127.0.0.1", port).await
    }

    pub async fn open_to(world: &World, host: &'static str, port: u16) -> Self {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        let connect = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        client.send(&connect).await;
        assert_eq!(client.response("CONNECT").await.status, 200);
        let tls = client.into_h2(world.ca.certificate_pem(), host).await;
        let (sender, connection) = h2::client::handshake(tls).await.expect("handshake");
        tokio::spawn(connection);
        Self { sender, authority: format!("{host}:{port}") }
    }

    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let uri = format!("https://{}{path}", self.authority);
        Request::builder().method(method).uri(uri).header("te", "trailers")
    }

    pub async fn call(&self, method: &str, path: &str, content: &'static [u8]) -> Answer {
        self.exchange(self.request(method, path), content).await
    }

    pub async fn exchange(
        &self,
        request: http::request::Builder,
        content: &'static [u8],
    ) -> Answer {
        self.asked(request, content, true).await
    }

    /// As [`Http2Client::exchange`]; without `ends` more content may come, until the answer is there.
    pub async fn asked(
        &self,
        request: http::request::Builder,
        content: &'static [u8],
        ends: bool,
    ) -> Answer {
        let request = request.body(()).expect("request");
        let mut sender = self.sender.clone().ready().await.expect("ready");
        let (response, mut sending) = sender.send_request(request, false).expect("sent");
        sending.send_data(Bytes::from_static(content), ends).expect("data");
        let response = tokio::time::timeout(Duration::from_secs(20), response).await;
        let (parts, mut body) = response.expect("in time").expect("a response").into_parts();
        let (mut content, mut whole) = (Vec::new(), true);
        while let Some(piece) = body.data().await {
            match piece {
                Ok(piece) => {
                    drop(body.flow_control().release_capacity(piece.len()));
                    content.extend_from_slice(&piece);
                }
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
}
