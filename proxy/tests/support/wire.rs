//! A client that shows the bytes.

use journal::contract::InvocationId;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

pub struct Client {
    stream: Box<dyn Transport>,
    buffer: Vec<u8>,
    reset: bool,
}

/// A response as it came.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub content: Vec<u8>,
    pub trailers: String,
    /// Heads of interim responses before it.
    pub interim: Vec<String>,
    /// Whether the framing proved the end.
    pub complete: bool,
}

impl Response {
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
            .collect()
    }

    pub fn field(&self, name: &str) -> &str {
        self.all(name).first().copied().unwrap_or_default()
    }

    pub fn outcome(&self) -> &str {
        self.field("affiant-outcome")
    }

    pub fn id(&self) -> InvocationId {
        let (_, rest) = self.outcome().split_once("invocation=\"").expect("an id");
        rest[..30].parse().expect("an id")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.content).expect("JSON")
    }

    /// The facts of the envelope: code, phase, outcome, retry.
    pub fn facts(&self) -> [String; 4] {
        let json = self.json();
        ["code", "phase", "outcome", "retry"]
            .map(|name| json["error"][name].as_str().unwrap_or_default().to_owned())
    }
}

const LIMIT: Duration = Duration::from_secs(20);

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).await.expect("connect");
        tcp.set_nodelay(true).expect("nodelay");
        Self { stream: Box::new(tcp), buffer: Vec::new(), reset: false }
    }

    /// A client on any transport.
    pub fn on(stream: impl Transport + 'static) -> Self {
        Self { stream: Box::new(stream), buffer: Vec::new(), reset: false }
    }

    /// A client that only reads.
    pub fn over(reading: tokio::net::tcp::OwnedReadHalf) -> Self {
        let stream = tokio::io::join(reading, tokio::io::sink());
        Self { stream: Box::new(stream), buffer: Vec::new(), reset: false }
    }

    pub async fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes()).await;
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("write");
        self.stream.flush().await.expect("flush");
    }

    /// Ends the writing direction; answers are still read.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.expect("shutdown");
    }

    /// Says goodbye and closes, without waiting for the other side to do so.
    pub async fn close(mut self) {
        self.finish().await;
    }

    /// Sends, unless the other side takes no more.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok() && self.stream.flush().await.is_ok()
    }

    pub fn was_reset(&self) -> bool {
        self.reset
    }

    pub async fn into_tls(self, ca: &str, name: &'static str) -> Self {
        Self { stream: self.tls(ca, name, &[]).await, buffer: Vec::new(), reset: false }
    }

    /// TLS that agreed on HTTP/2.
    pub async fn into_h2(self, ca: &str, name: &'static str) -> Box<dyn Transport> {
        self.tls(ca, name, &[b"h2"]).await
    }

    async fn tls(self, ca: &str, name: &'static str, protocols: &[&[u8]]) -> Box<dyn Transport> {
        assert!(self.buffer.is_empty(), "bytes after the tunnel's head");
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.expect("PEM")).expect("root");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(name).expect("name");
        let tls = connector.connect(name, self.stream).await.expect("handshake");
        if let Some(protocol) = protocols.first() {
            assert_eq!(tls.get_ref().1.alpn_protocol(), Some(*protocol));
        }
        Box::new(tls)
    }

    /// TLS without looking at the certificate, as a hostile client does.
    pub async fn into_any_tls(self, name: &'static str) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anything(provider)))
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(name).expect("name");
        let tls = connector.connect(name, self.stream).await.expect("handshake");
        Self { stream: Box::new(tls), buffer: Vec::new(), reset: false }
    }

    /// Reads once; false at the end or on an error.
    pub async fn fill(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match tokio::time::timeout(LIMIT, self.stream.read(&mut piece)).await.expect("in time") {
            Ok(0) => false,
            Err(error) => {
                self.reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                false
            }
            Ok(length) => {
                self.buffer.extend_from_slice(&piece[..length]);
                true
            }
        }
    }

    /// Whether the connection ends without another byte.
    pub async fn ends(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill().await
    }

    pub async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Some(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Takes exactly so many bytes, or fewer at the end.
    pub async fn take(&mut self, length: usize) -> Vec<u8> {
        let mut content = Vec::new();
        self.exact(length, &mut content).await;
        content
    }

    async fn exact(&mut self, length: usize, content: &mut Vec<u8>) -> bool {
        while self.buffer.len() < length {
            if !self.fill().await {
                content.append(&mut self.buffer);
                return false;
            }
        }
        content.extend(self.buffer.drain(..length));
        true
    }

    /// Reads a head; empty when the connection ended.
    pub async fn head(&mut self) -> String {
        let mut head = String::new();
        loop {
            match self.line().await {
                None => return String::new(),
                Some(line) if line.is_empty() => return head,
                Some(line) => {
                    head.push_str(&line);
                    head.push('\n');
                }
            }
        }
    }

    pub async fn response(&mut self, method: &str) -> Response {
        let mut interim = Vec::new();
        let (head, status) = loop {
            let head = self.head().await;
            let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
            if !matches!(status, 102..=199) {
                break (head, status);
            }
            interim.push(head);
        };
        let mut response = Response {
            status,
            head,
            content: Vec::new(),
            trailers: String::new(),
            interim,
            complete: true,
        };
        let mut content = Vec::new();
        if status == 0 {
            response.complete = false;
        } else if method == "HEAD"
            || matches!(status, 100 | 101 | 204 | 304)
            || (method == "CONNECT" && status == 200)
        {
        } else if response.field("transfer-encoding") == "chunked" {
            response.complete = self.chunks(&mut content, &mut response.trailers).await;
        } else if let Ok(length) = response.field("content-length").parse() {
            response.complete = self.exact(length, &mut content).await;
        } else {
            while self.fill().await {}
            content.append(&mut self.buffer);
        }
        response.content = content;
        response
    }

    async fn chunks(&mut self, content: &mut Vec<u8>, trailers: &mut String) -> bool {
        loop {
            let Some(size) = self.line().await else { return false };
            let size = usize::from_str_radix(&size, 16).expect("chunk size");
            if size == 0 {
                *trailers = self.head().await;
                return true;
            }
            if !self.exact(size, content).await || self.line().await.as_deref() != Some("") {
                return false;
            }
        }
    }
}

#[derive(Debug)]
struct Anything(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
