//! The demo's caller: what an agent's HTTP client does behind `HTTPS_PROXY`.

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A response as the caller sees it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// An agent's client. It knows the proxy, its token and the CA; no credential of any service.
pub(super) struct Caller {
    proxy: SocketAddr,
    authorization: String,
    tls: Arc<rustls::ClientConfig>,
}

/// A connection that ends when it is dropped.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Caller {
    pub(super) fn new(
        proxy: SocketAddr,
        agent: &str,
        token: &policy::Secret,
        ca_pem: &str,
    ) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let pair = [agent.as_bytes(), b":", token.expose()].concat();
        let authorization = format!("Basic {}", STANDARD.encode(pair));
        Ok(Self { proxy, authorization, tls: Arc::new(tls) })
    }

    /// Opens a tunnel to an https origin, or gives the proxy's refusal.
    pub(super) async fn tunnel(&self, target: SocketAddr) -> anyhow::Result<Connection> {
        let mut stream = TcpStream::connect(self.proxy).await.context("connect to the proxy")?;
        let head = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {}\r\n\r\n",
            self.authorization
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let byte = stream.read_u8().await.context("the proxy closed during CONNECT")?;
            answer.push(byte);
        }
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            bail!("the proxy refused the tunnel: {}", String::from_utf8_lossy(&answer));
        }
        let name = ServerName::from(target.ip());
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
        connection(connector.connect(name, stream).await.context("TLS inside the tunnel")?).await
    }

    /// Opens a connection for absolute-form requests.
    pub(super) async fn plain(&self) -> anyhow::Result<Connection> {
        connection(TcpStream::connect(self.proxy).await.context("connect to the proxy")?).await
    }

    /// An absolute-form GET through the proxy.
    pub(super) async fn get(&self, url: &str) -> anyhow::Result<Answer> {
        let request = self.request(Method::GET, url, "")?;
        self.plain().await?.send(request).await
    }

    /// A request with the proxy's credential, for the plain leg.
    pub(super) fn request(
        &self,
        method: Method,
        url: &str,
        body: &str,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let uri: http::Uri = url.parse()?;
        let authority = uri.authority().context("a URL with a host")?.to_string();
        Ok(Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, authority)
            .header(header::PROXY_AUTHORIZATION, &self.authorization)
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?)
    }
}

/// A POST inside a tunnel.
pub(super) fn post(
    target: SocketAddr,
    path: &str,
    body: &str,
    invocation: Option<&str>,
) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, target.to_string())
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(invocation) = invocation {
        request = request.header("affiant-invocation", invocation);
    }
    Ok(request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?)
}

async fn connection<S>(stream: S) -> anyhow::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("the demo's caller lost a connection: {error}");
        }
    });
    Ok(Connection { sender, driver })
}

impl Connection {
    /// Sends, and reads the response to its end.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let (parts, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await.context("the response was cut")?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    /// Sends, and goes away once `arrived` says so.
    pub(super) async fn abandon(
        mut self,
        request: Request<Full<Bytes>>,
        arrived: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            response = self.sender.send_request(request) => {
                bail!("the origin answered before the caller went away: {response:?}")
            }
            () = arrived => Ok(()),
        }
    }
}
