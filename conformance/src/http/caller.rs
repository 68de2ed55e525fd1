//! A caller of HTTP/1.1 through a proxy that reads responses by the letter of RFC 9112: what ends
//! without its framing's own end is cut, whatever it looks like.

use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// The proxy closes its side of a connection within that time, or the caller just goes.
const ORDERLY_END: Duration = Duration::from_secs(1);

/// Who calls: the proxy, the identity there, and the trust in what the proxy presents.
#[derive(Clone)]
pub struct Caller {
    /// Where the proxy listens.
    pub proxy: SocketAddr,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<String>,
    /// For `https`: what the caller trusts.
    pub trust: Option<Arc<rustls::ClientConfig>>,
    /// A response takes so long at most.
    pub patience: Duration,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// Whether the scheme is `https`.
    pub tls: bool,
    /// Host and port.
    pub authority: String,
    /// The path, with its query.
    pub path: String,
    /// Further field lines.
    pub fields: Vec<(String, String)>,
    /// The content, sent with `Content-Length`.
    pub content: Option<Vec<u8>>,
    /// Bytes inside of the WebSocket that is asked for, sent without waiting until it is open. Over
    /// HTTP/2 it is asked for by an extended CONNECT.
    pub early: Option<Vec<u8>>,
}

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By its framing.
    Whole,
    /// The connection ended first.
    Cut,
    /// The caller lost patience first.
    Late,
}

/// A response, as far as it came.
#[derive(Debug, Clone)]
pub struct Received {
    /// The status.
    pub status: u16,
    /// The field lines.
    pub fields: Vec<(String, String)>,
    /// The content, decoded from its framing.
    pub content: Vec<u8>,
    /// The trailer section.
    pub trailers: Vec<(String, String)>,
    /// How it ended.
    pub end: End,
}

/// What came back.
#[derive(Debug, Clone)]
pub enum Answer {
    /// A response to the request, or to its CONNECT when that was refused.
    Response(Received),
    /// No response head: why.
    Nothing(String),
}

impl Received {
    /// The value of the first field of that name, whatever its case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        find(&self.fields, name)
    }

    /// The value of the first trailer of that name, whatever its case.
    #[must_use]
    pub fn trailer(&self, name: &str) -> Option<&str> {
        find(&self.trailers, name)
    }
}

fn find<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

impl Caller {
    /// One request over a connection of its own.
    pub async fn call(&self, request: &Request) -> Answer {
        match timeout(self.patience * 2, self.exchange(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Nothing(error.to_string()),
            Err(_) => Answer::Nothing("the caller lost patience".to_owned()),
        }
    }

    async fn exchange(&self, request: &Request) -> io::Result<Answer> {
        let stream = TcpStream::connect(self.proxy).await?;
        stream.set_nodelay(true)?;
        if !request.tls {
            let target = format!("http://{}{}", request.authority, request.path);
            let head = head(request, &target, self.authorization.as_deref());
            return self.converse(stream, &head, request).await;
        }
        match self.tunnel(request, None, stream).await? {
            Ok(stream) => {
                let head = head(request, &request.path, None);
                self.converse(stream, &head, request).await
            }
            Err(refused) => Ok(refused),
        }
    }

    /// One request by HTTP/2 inside of a tunnel of its own.
    pub async fn call_h2(&self, request: &Request) -> Answer {
        let exchange = async {
            let stream = TcpStream::connect(self.proxy).await?;
            match self.tunnel(request, Some(b"h2"), stream).await? {
                Ok(stream) => super::caller_h2::converse(stream, request, self.patience).await,
                Err(refused) => Ok(refused),
            }
        };
        match timeout(self.patience * 2, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Nothing(error.to_string()),
            Err(_) => Answer::Nothing("the caller lost patience".to_owned()),
        }
    }

    /// TLS through CONNECT; or the answer that refused the tunnel.
    async fn tunnel(
        &self,
        request: &Request,
        protocol: Option<&[u8]>,
        mut stream: TcpStream,
    ) -> io::Result<Result<TlsStream<TcpStream>, Answer>> {
        let trust = self.trust.clone().ok_or_else(|| io::Error::other("no trust for https"))?;
        let trust = match protocol {
            None => trust,
            Some(protocol) => {
                let mut trust = rustls::ClientConfig::clone(&trust);
                trust.alpn_protocols = vec![protocol.to_vec()];
                Arc::new(trust)
            }
        };
        let mut connect = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n", request.authority);
        if let Some(authorization) = &self.authorization {
            connect.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        connect.push_str("\r\n");
        stream.write_all(connect.as_bytes()).await?;
        match self.receive(&mut stream, "CONNECT").await? {
            Answer::Response(answer) if answer.status == 200 => {}
            refused @ (Answer::Response(_) | Answer::Nothing(_)) => return Ok(Err(refused)),
        }
        let host = request.authority.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(trust).connect(name, stream).await?;
        if protocol.is_some() && stream.get_ref().1.alpn_protocol() != protocol {
            return Err(io::Error::other("the proxy did not take the protocol"));
        }
        Ok(Ok(stream))
    }

    async fn converse<S: AsyncRead + AsyncWrite>(
        &self,
        stream: S,
        head: &str,
        request: &Request,
    ) -> io::Result<Answer> {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let content = request.content.as_deref().unwrap_or_default();
        let early = request.early.as_deref().unwrap_or_default();
        let bytes = [head.as_bytes(), content, early].concat();
        // A peer may answer early; whether all of the request was taken shows in its answer.
        let sending = async {
            let sent = async {
                writer.write_all(&bytes).await?;
                writer.flush().await
            };
            if sent.await.is_err() {
                tracing::debug!("the request was not taken in full");
            }
            std::future::pending::<()>().await;
        };
        let answer = tokio::select! {
            biased;
            answer = self.receive(&mut reader, request.method) => answer,
            () = sending => Err(io::Error::other("unreachable")),
        };
        // An orderly end: a reset would say that the answer may not have been read.
        let end = async {
            writer.shutdown().await?;
            tokio::io::copy(&mut reader, &mut tokio::io::sink()).await
        };
        if !matches!(timeout(ORDERLY_END, end).await, Ok(Ok(_))) {
            tracing::debug!("the connection did not end in order");
        }
        answer
    }

    /// Reads one final response.
    async fn receive<S: AsyncRead + Unpin>(
        &self,
        stream: &mut S,
        method: &str,
    ) -> io::Result<Answer> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let end = loop {
            if let Some(whole) = parse(&bytes, method, None) {
                return Ok(Answer::Response(whole));
            }
            match timeout(self.patience, stream.read(&mut buffer)).await {
                Err(_) => break End::Late,
                Ok(Ok(0)) => {
                    // An orderly end ends a close-delimited response.
                    if let Some(whole) = parse(&bytes, method, Some(End::Whole)) {
                        return Ok(Answer::Response(whole));
                    }
                    break End::Cut;
                }
                Ok(Ok(read)) => bytes.extend_from_slice(buffer.get(..read).unwrap_or_default()),
                Ok(Err(_)) => break End::Cut,
            }
        };
        Ok(match parse(&bytes, method, Some(end)) {
            Some(received) => Answer::Response(received),
            None if end == End::Late => Answer::Nothing("no response in time".to_owned()),
            None => Answer::Nothing("the connection ended without a response".to_owned()),
        })
    }
}

fn head(request: &Request, target: &str, authorization: Option<&str>) -> String {
    let mut head =
        format!("{} {target} HTTP/1.1\r\nHost: {}\r\n", request.method, request.authority);
    if let Some(authorization) = authorization {
        head.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
    }
    for (name, value) in &request.fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(content) = &request.content {
        head.push_str(&format!("Content-Length: {}\r\n", content.len()));
    }
    head.push_str("\r\n");
    head
}

/// Content as it was found, and how far it goes.
enum Content {
    Whole(Vec<u8>, Vec<(String, String)>),
    Partial(Vec<u8>),
    /// Only the end of the connection can end it.
    Delimited(Vec<u8>),
}

/// The final response in `bytes`. Without `end` only a whole one is given.
fn parse(bytes: &[u8], method: &str, end: Option<End>) -> Option<Received> {
    let mut rest = bytes;
    let (status, fields) = loop {
        let at = rest.windows(4).position(|window| window == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(rest.get(..at)?).into_owned();
        rest = rest.get(at + 4..)?;
        let status: u16 = text.get(9..12)?.parse().ok()?;
        if !(100..200).contains(&status) || status == 101 {
            break (status, lines(text.split("\r\n").skip(1)));
        }
    };
    let bodiless =
        method == "HEAD" || matches!(status, 204 | 304) || (method == "CONNECT" && status == 200);
    let content = if bodiless {
        Content::Whole(Vec::new(), Vec::new())
    } else if find(&fields, "transfer-encoding").is_some() {
        chunks(rest)
    } else if let Some(length) = find(&fields, "content-length") {
        let length: usize = length.parse().ok()?;
        rest.get(..length).map_or_else(
            || Content::Partial(rest.to_vec()),
            |whole| Content::Whole(whole.to_vec(), Vec::new()),
        )
    } else {
        Content::Delimited(rest.to_vec())
    };
    let received = |content, trailers, end| Received { status, fields, content, trailers, end };
    match (content, end) {
        (Content::Whole(content, trailers), _) => Some(received(content, trailers, End::Whole)),
        (Content::Delimited(content), Some(end)) => Some(received(content, Vec::new(), end)),
        (Content::Partial(content), Some(End::Late)) => {
            Some(received(content, Vec::new(), End::Late))
        }
        (Content::Partial(content), Some(End::Cut)) => {
            Some(received(content, Vec::new(), End::Cut))
        }
        (Content::Partial(_), Some(End::Whole) | None) | (Content::Delimited(_), None) => None,
    }
}

fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// Decodes chunked content.
fn chunks(mut rest: &[u8]) -> Content {
    let mut content = Vec::new();
    loop {
        let Some(at) = rest.windows(2).position(|window| window == b"\r\n") else {
            return Content::Partial(content);
        };
        let line = String::from_utf8_lossy(rest.get(..at).unwrap_or_default()).into_owned();
        rest = rest.get(at + 2..).unwrap_or_default();
        let digits = line.split(';').next().unwrap_or_default().trim();
        let Ok(size) = usize::from_str_radix(digits, 16) else {
            return Content::Partial(content);
        };
        if size == 0 {
            let text = String::from_utf8_lossy(rest).into_owned();
            let section = text.strip_prefix("\r\n").map(|_| "");
            let section = section.or_else(|| text.split_once("\r\n\r\n").map(|(lines, _)| lines));
            return match section {
                Some(section) => Content::Whole(content, lines(section.split("\r\n"))),
                None => Content::Partial(content),
            };
        }
        let Some(chunk) = rest.get(..size) else {
            content.extend_from_slice(rest);
            return Content::Partial(content);
        };
        content.extend_from_slice(chunk);
        let Some(after) = rest.get(size..).and_then(|rest| rest.strip_prefix(b"\r\n")) else {
            return Content::Partial(content);
        };
        rest = after;
    }
}
