//! An origin that does what its path says and counts what reached it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// What reached the origin.
#[derive(Default)]
pub struct Seen {
    /// Complete requests by path.
    pub effects: HashMap<String, usize>,
    /// Heads in order.
    pub heads: Vec<String>,
    pub contents: Vec<Vec<u8>>,
    /// Trailer sections of chunked requests, with their empty line.
    pub trailers: Vec<String>,
    pub connections: usize,
}

pub struct Origin {
    pub address: SocketAddr,
    pub ca_file: Option<PathBuf>,
    pub seen: Arc<Mutex<Seen>>,
    /// Held until released: paths that begin with `/gate`.
    pub gate: Arc<tokio::sync::Semaphore>,
}

impl Origin {
    pub async fn plain() -> Self {
        Self::serve(None, None).await
    }

    /// A TLS origin for `localhost`, its CA written to `directory`.
    pub async fn tls(directory: &Path) -> Self {
        let ca_key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).expect("ca");
        let file = directory.join("origin-ca.pem");
        std::fs::write(&file, ca.pem()).expect("file");
        let issuer = rcgen::Issuer::new(params, ca_key);
        let key = rcgen::KeyPair::generate().expect("key");
        let names = vec!["localhost".to_owned()];
        let leaf = rcgen::CertificateParams::new(names).expect("names");
        let leaf = leaf.signed_by(&key, &issuer).expect("leaf");
        let der = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], der.into())
            .expect("config");
        Self::serve(Some(Arc::new(config)), Some(file)).await
    }

    async fn serve(tls: Option<Arc<rustls::ServerConfig>>, ca_file: Option<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let (shared, shared_gate) = (Arc::clone(&seen), Arc::clone(&gate));
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("accept");
                tcp.set_nodelay(true).expect("nodelay");
                shared.lock().expect("lock").connections += 1;
                let (seen, gate) = (Arc::clone(&shared), Arc::clone(&shared_gate));
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => connection(tcp, &seen, &gate).await,
                        Some(config) => {
                            let acceptor = tokio_rustls::TlsAcceptor::from(config);
                            if let Ok(tls) = acceptor.accept(tcp).await {
                                connection(tls, &seen, &gate).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, ca_file, seen, gate }
    }

    pub fn effects(&self, path: &str) -> usize {
        self.seen.lock().expect("lock").effects.get(path).copied().unwrap_or(0)
    }

    pub fn all_effects(&self) -> usize {
        self.seen.lock().expect("lock").effects.values().sum()
    }

    pub fn last_head(&self) -> String {
        self.seen.lock().expect("lock").heads.last().cloned().unwrap_or_default()
    }

    pub fn last_content(&self) -> Vec<u8> {
        self.seen.lock().expect("lock").contents.last().cloned().unwrap_or_default()
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().expect("lock").connections
    }

    /// Lets one `/gate` request go on.
    pub fn open_gate(&self) {
        self.gate.add_permits(1);
    }

    /// Waits until the path was reached so many times.
    pub async fn reached(&self, path: &str, times: usize) {
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        while self.effects(path) < times {
            assert!(tokio::time::Instant::now() < until, "{path} was not reached");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub async fn connection(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Seen>,
    gate: &tokio::sync::Semaphore,
) {
    let mut buffer = Vec::new();
    while let Some((head, content)) = request(&mut stream, &mut buffer, seen).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        {
            let mut seen = seen.lock().expect("lock");
            *seen.effects.entry(path.clone()).or_default() += 1;
            seen.heads.push(head.clone());
            seen.contents.push(content.clone());
        }
        let path = path.trim_start_matches("/with-credential").to_owned();
        // `/sdk/close/v1/messages` does what `/close` does.
        let path = match path.strip_prefix("/sdk/").and_then(|rest| rest.split_once("/v1/")) {
            Some((what, _)) => format!("/{what}"),
            None => path,
        };
        if path == "/websocket" || path == "/websocket-lie" {
            let accept = if path == "/websocket" { accept(&head) } else { "bGll".to_owned() };
            let start = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\nearly"
            );
            // In one write: what follows a 101 may come with it.
            drop(stream.write_all(start.as_bytes()).await);
            loop {
                drop(stream.write_all(&buffer).await);
                drop(stream.flush().await);
                buffer.clear();
                if !matches!(stream.read_buf(&mut buffer).await, Ok(1..)) {
                    drop(stream.shutdown().await);
                    return;
                }
            }
        }
        if path == "/gate" {
            gate.acquire().await.expect("gate").forget();
        }
        if !answer(&mut stream, &path, &head, &content).await {
            return;
        }
    }
}

/// The answer to the key of an upgrade (RFC 6455 section 4.2.2).
fn accept(head: &str) -> String {
    use base64::Engine as _;
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("sec-websocket-key").then_some(value.trim())
    });
    let text = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.unwrap_or_default());
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(digest)
}

async fn request(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut Vec<u8>,
    seen: &Mutex<Seen>,
) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head: Vec<u8> = buffer.drain(..end).collect();
    let head = String::from_utf8_lossy(&head).into_owned();
    let lower = head.to_ascii_lowercase();
    if lower.contains(" /early ") {
        seen.lock().expect("lock").heads.push(head.clone());
        let text = "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
        stream.write_all(text.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        return None;
    }
    if lower.contains(" /duplex ") {
        // Answers with what comes, while it comes.
        let length: usize = lower.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
        let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(start.as_bytes()).await.ok()?;
        let mut left = length;
        while left > 0 {
            if buffer.is_empty() && stream.read_buf(buffer).await.ok()? == 0 {
                return None;
            }
            left -= buffer.len();
            stream.write_all(buffer).await.ok()?;
            stream.flush().await.ok()?;
            buffer.clear();
        }
        return Some((head, Vec::new()));
    }
    let mut content = Vec::new();
    if lower.contains("transfer-encoding: chunked") {
        loop {
            let at = loop {
                if let Some(at) = buffer.windows(2).position(|w| w == b"\r\n") {
                    break at;
                }
                if stream.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            };
            let line: Vec<u8> = buffer.drain(..at + 2).collect();
            let size = usize::from_str_radix(std::str::from_utf8(&line[..at]).ok()?, 16).ok()?;
            while size > 0 && buffer.len() < size + 2 {
                if stream.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            }
            if size == 0 {
                // The trailer section ends in an empty line.
                while !(buffer.starts_with(b"\r\n") || buffer.windows(4).any(|w| w == b"\r\n\r\n"))
                {
                    if stream.read_buf(buffer).await.ok()? == 0 {
                        return None;
                    }
                }
                let end = if buffer.starts_with(b"\r\n") {
                    2
                } else {
                    buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4
                };
                let trailers = String::from_utf8_lossy(&buffer[..end]).into_owned();
                seen.lock().expect("lock").trailers.push(trailers);
                buffer.drain(..end);
                break;
            }
            content.extend(buffer.drain(..size));
            buffer.drain(..2);
        }
    } else if let Some(rest) = lower.split("content-length: ").nth(1) {
        let length = rest.lines().next()?.trim().parse().ok()?;
        while buffer.len() < length {
            if stream.read_buf(buffer).await.ok()? == 0 {
                return None;
            }
        }
        content.extend(buffer.drain(..length));
    }
    Some((head, content))
}

/// Answers by the path; false closes the connection.
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    head: &str,
    content: &[u8],
) -> bool {
    let is_head = head.starts_with("HEAD ");
    let (path, argument) = path.split_once('?').unwrap_or((path, ""));
    let (text, keep): (Vec<u8>, bool) = match path {
        "/duplex" => (Vec::new(), true),
        "/ok" | "/gate" => (
            b"HTTP/1.1 200 Fine\r\nDate: Thu, 01 Jan 1970 00:00:01 GMT\r\nX-b: 1\r\nx-A: 2\r\nX-B: 3\r\nSet-Cookie: a\r\nAffiant-Outcome: lie\r\nAffiant-Other: lie\r\nProxy-Status: far; error=dns_error\r\nConnection: x-hop\r\nX-Hop: 1\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\n".iter().chain(if is_head { b"".iter() } else { b"ok".iter() }).copied().collect(),
            true,
        ),
        "/echo" => {
            let all = [head.as_bytes(), content].concat();
            let mut out = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Echo: {}\r\nContent-Length: {}\r\n\r\n",
                head.lines().find(|l| l.to_ascii_lowercase().starts_with("authorization:")).unwrap_or(""), all.len()).into_bytes();
            out.extend_from_slice(&all);
            (out, true)
        }
        "/encoded" => (super::encoded::response(argument, head), true),
        "/echo-split" => {
            let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with("authorization:")).unwrap_or("");
            let start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            drop(stream.write_all(start.as_bytes()).await);
            for piece in line.as_bytes().chunks(3) {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                drop(stream.write_all(&chunk).await);
                drop(stream.flush().await);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (b"0\r\n\r\n".to_vec(), true)
        }
        "/echo-reason" | "/echo-name" | "/echo-id" | "/echo-trailer" | "/echo-gzip" => {
            let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with("authorization:"));
            let token = line.and_then(|line| line.split(' ').nth(2)).unwrap_or("none");
            let text = match path {
                "/echo-reason" => format!("HTTP/1.1 200 Bearer {token}\r\nContent-Length: 0\r\n\r\n"),
                "/echo-name" => format!(
                    "HTTP/1.1 200 OK\r\nX-{}-a: v\r\nContent-Length: 0\r\n\r\n", token.to_uppercase()),
                "/echo-id" => format!(
                    "HTTP/1.1 200 OK\r\nX-Request-Id: Bearer {token}\r\nContent-Length: 0\r\n\r\n"),
                "/echo-trailer" => format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-{token}: {token}\r\n\r\n"),
                _ => "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 16\r\n\r\nzzzzzzzzzzzzzzzz".to_owned(),
            };
            (text.into_bytes(), true)
        }
        "/close" => (Vec::new(), false),
        "/half-head" => (b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), false),
        "/cut" => (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"plausible\":1}".to_vec(), false),
        "/cut-chunked" => (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec(), false),
        "/cut-stream" => (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec(), false),
        "/chunked" => (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec(), true),
        "/trailers" => (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n".to_vec(), true),
        "/no-length" => (b"HTTP/1.1 200 OK\r\n\r\nall there is".to_vec(), false),
        "/interim" => (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(), true),
        "/until-close" => {
            let length: usize = argument.parse().unwrap_or(0);
            let mut out = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
            out.extend((0..length).map(|i| u8::try_from(i % 251).unwrap_or(0)));
            (out, false)
        }
        "/framed-interim" => (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(), true),
        "/bad-head" => (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok".to_vec(), false),
        "/bare-lf" => (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok".to_vec(), false),
        "/long-head" => (format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(70_000)).into_bytes(), false),
        "/cut-begin" => (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), false),
        "/bad-coding" => (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".to_vec(), false),
        "/long-trailer" => (format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: {}\r\n\r\n", "a".repeat(70_000)).into_bytes(), false),
        "/many-interim" => ("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(40).into_bytes(), false),
        "/abrupt" => (b"HTTP/1.1 200 OK\r\n\r\nall there is".to_vec(), false),
        "/switch" => (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".to_vec(), false),
        "/gate-stall" => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok").await);
            drop(stream.flush().await);
            tokio::time::sleep(Duration::from_secs(5)).await;
            (Vec::new(), false)
        }
        "/204" => (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), true),
        "/204-framed" => (
            b"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            true,
        ),
        "/304" => (b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 10\r\n\r\n".to_vec(), true),
        "/close-after" => (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(), false),
        "/big" => {
            let length: usize = argument.parse().unwrap_or(3 << 20);
            let mut out = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
            out.extend((0..length).map(|i| u8::try_from(i % 251).unwrap_or(0)));
            (out, true)
        }
        "/events" => {
            let start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            drop(stream.write_all(start.as_bytes()).await);
            drop(stream.flush().await);
            for n in 0..argument.parse().unwrap_or(3) {
                let event = format!("data: {n}\n\n");
                drop(stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await);
                drop(stream.flush().await);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (b"0\r\n\r\n".to_vec(), true)
        }
        other => {
            let status = other.strip_prefix("/status/").and_then(|s| s.parse().ok()).unwrap_or(404);
            let retry = if argument.is_empty() { String::new() } else { format!("Retry-After: {argument}\r\n") };
            (format!("HTTP/1.1 {status} X\r\nX-Should-Retry: true\r\n{retry}Content-Length: 4\r\n\r\nbody").into_bytes(), true)
        }
    };
    let written = stream.write_all(&text).await.is_ok() && stream.flush().await.is_ok();
    if !keep && path != "/abrupt" {
        drop(stream.shutdown().await);
    }
    written && keep
}
