//! An origin that does what its path says and counts what reached it.

use super::answers;
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
    /// Connections that this side ended.
    pub ended: usize,
    /// Server names of TLS handshakes.
    pub names: Vec<String>,
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
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
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
                                let name = tls.get_ref().1.server_name().unwrap_or_default();
                                seen.lock().expect("lock").names.push(name.to_owned());
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
        if let Some(half) = answers::first_half(&path) {
            drop(stream.write_all(half.as_bytes()).await);
            drop(stream.flush().await);
        }
        if path == "/gate" || path.starts_with("/half/") {
            gate.acquire().await.expect("gate").forget();
        }
        if !answer(&mut stream, &path, &head, &content).await {
            seen.lock().expect("lock").ended += 1;
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

/// Reads one request; none at the end, and where the path answers before the content is read.
async fn request(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut Vec<u8>,
    seen: &Mutex<Seen>,
) -> Option<(String, Vec<u8>)> {
    let end = through(stream, buffer, b"\r\n\r\n").await?;
    let head: Vec<u8> = buffer.drain(..end).collect();
    let head = String::from_utf8_lossy(&head).into_owned();
    let lower = head.to_ascii_lowercase();
    let length = lower.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.lines().next()?.trim().parse().ok()).unwrap_or(0);
    if lower.contains(" /early ") {
        seen.lock().expect("lock").heads.push(head.clone());
        let text = "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
        stream.write_all(text.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        return None;
    }
    if lower.contains(" /unread ") {
        // Takes nothing of its content, and never answers.
        return std::future::pending().await;
    }
    if lower.contains(" /duplex ") {
        duplex(stream, buffer, length).await?;
        return Some((head, Vec::new()));
    }
    let content = if lower.contains("transfer-encoding: chunked") {
        chunks(stream, buffer, seen).await?
    } else {
        more(stream, buffer, length).await?;
        buffer.drain(..length).collect()
    };
    Some((head, content))
}

/// Reads until the buffer holds so much.
async fn more(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
) -> Option<()> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(())
}

/// Reads until the buffer holds the mark; where it ends.
async fn through(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    mark: &[u8],
) -> Option<usize> {
    loop {
        if let Some(at) = buffer.windows(mark.len()).position(|window| window == mark) {
            return Some(at + mark.len());
        }
        more(stream, buffer, buffer.len() + 1).await?;
    }
}

/// Answers with what comes, while it comes.
async fn duplex(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut Vec<u8>,
    length: usize,
) -> Option<()> {
    let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(start.as_bytes()).await.ok()?;
    let mut left = length;
    while left > 0 {
        more(stream, buffer, 1).await?;
        left -= buffer.len();
        stream.write_all(buffer).await.ok()?;
        stream.flush().await.ok()?;
        buffer.clear();
    }
    Some(())
}

/// Reads content in chunks, and notes its trailers.
async fn chunks(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    seen: &Mutex<Seen>,
) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = through(stream, buffer, b"\r\n").await?;
        let line: Vec<u8> = buffer.drain(..end).collect();
        let size = std::str::from_utf8(&line).ok()?.trim_end();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            break;
        }
        more(stream, buffer, size + 2).await?;
        content.extend(buffer.drain(..size));
        buffer.drain(..2);
    }
    // The trailer section ends in an empty line.
    more(stream, buffer, 2).await?;
    let end = match buffer.as_slice() {
        [b'\r', b'\n', ..] => 2,
        _ => through(stream, buffer, b"\r\n\r\n").await?,
    };
    let trailers = String::from_utf8_lossy(&buffer[..end]).into_owned();
    seen.lock().expect("lock").trailers.push(trailers);
    buffer.drain(..end);
    Some(content)
}

/// Answers by the path; false closes the connection.
async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    path: &str,
    head: &str,
    content: &[u8],
) -> bool {
    let (path, argument) = path.split_once('?').unwrap_or((path, ""));
    let (text, keep) = match path {
        "/echo-split" => {
            let pieces = answers::authorization(head).as_bytes().chunks(3).map(<[u8]>::to_vec);
            in_chunks(stream, pieces, Duration::from_millis(1)).await
        }
        "/events" => {
            let events = 0..argument.parse().unwrap_or(3);
            let events = events.map(|n: u32| format!("data: {n}\n\n").into_bytes());
            in_chunks(stream, events, Duration::from_millis(20)).await
        }
        "/gate-stall" => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok").await);
            drop(stream.flush().await);
            tokio::time::sleep(Duration::from_secs(5)).await;
            (Vec::new(), false)
        }
        _ => answers::answer(path, argument, head, content),
    };
    let written = stream.write_all(&text).await.is_ok() && stream.flush().await.is_ok();
    if !keep && path != "/abrupt" {
        drop(stream.shutdown().await);
    }
    written && keep
}

/// An event stream, each piece in a chunk of its own, with a pause after it; its end is still to be sent.
async fn in_chunks(
    stream: &mut (impl AsyncWrite + Unpin),
    pieces: impl Iterator<Item = Vec<u8>>,
    pause: Duration,
) -> answers::Answer {
    let start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                 Transfer-Encoding: chunked\r\n\r\n";
    drop(stream.write_all(start.as_bytes()).await);
    drop(stream.flush().await);
    for piece in pieces {
        let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
        drop(stream.write_all(&chunk).await);
        drop(stream.flush().await);
        tokio::time::sleep(pause).await;
    }
    (b"0\r\n\r\n".to_vec(), true)
}
