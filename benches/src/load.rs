//! A closed-loop HTTP/1.1 load generator over TLS, direct or through a proxy.
//!
//! TLS sessions are not resumed: a new connection is a whole handshake, for every proxy alike.

use crate::process;
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A connection that takes one request after the other.
pub(crate) type Connection = SendRequest<Empty<Bytes>>;

/// How the origin is reached.
#[derive(Clone)]
pub(crate) struct Path {
    /// The proxy and the value of `Proxy-Authorization`.
    proxy: Option<(SocketAddr, Option<String>)>,
    tls: Arc<rustls::ClientConfig>,
}

impl Path {
    /// Without a proxy.
    pub(crate) fn direct(ca_pem: &str) -> anyhow::Result<Self> {
        Ok(Self { proxy: None, tls: tls(ca_pem)? })
    }

    /// Through a proxy, with the value of `Proxy-Authorization`.
    pub(crate) fn proxied(
        proxy: SocketAddr,
        authorization: Option<String>,
        ca_pem: &str,
    ) -> anyhow::Result<Self> {
        Ok(Self { proxy: Some((proxy, authorization)), tls: tls(ca_pem)? })
    }
}

fn tls(ca_pem: &str) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    /// Content length that every response must have.
    pub(crate) length: usize,
}

/// What one run measured.
pub(crate) struct Measured {
    latencies_us: Vec<u32>,
    elapsed: Duration,
    cpu: Duration,
}

impl Measured {
    pub(crate) fn rate(&self) -> f64 {
        self.latencies_us.len() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn percentile_us(&self, part: f64) -> f64 {
        let at = (self.latencies_us.len() as f64 * part) as usize;
        self.latencies_us.get(at).copied().map_or(f64::NAN, f64::from)
    }

    pub(crate) fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.latencies_us.len() as f64
    }

    /// Requests for each second of the processor that the proxy took.
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.latencies_us.len() as f64 / self.cpu.as_secs_f64()
    }
}

/// Runs `concurrency` connections for `length`; every response is checked, one failure fails all.
pub(crate) async fn run(
    path: &Path,
    target: &Target,
    concurrency: usize,
    length: Duration,
    pid: Option<u32>,
) -> anyhow::Result<Measured> {
    let mut connections = Vec::new();
    for _ in 0..concurrency {
        connections.push(connect(path, target.port).await?);
    }
    let target = *target;
    let end = Instant::now() + length;
    let tasks = connections.into_iter().map(|connection| requests(connection, target, end));
    measure(tasks, pid).await
}

/// As [`run`], but each request has a connection of its own: tunnel, handshake, request.
pub(crate) async fn run_new(
    path: &Path,
    target: &Target,
    concurrency: usize,
    length: Duration,
    pid: Option<u32>,
) -> anyhow::Result<Measured> {
    let end = Instant::now() + length;
    let tasks = (0..concurrency).map(|_| {
        let (path, target) = (path.clone(), *target);
        async move {
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                let mut connection = connect(&path, target.port).await?;
                request(&mut connection, &target).await?;
                latencies.push(micros(begin));
            }
            Ok(latencies)
        }
    });
    measure(tasks, pid).await
}

async fn measure(
    work: impl Iterator<Item = impl Future<Output = anyhow::Result<Vec<u32>>> + Send + 'static>,
    pid: Option<u32>,
) -> anyhow::Result<Measured> {
    let cpu_before = pid.map(process::cpu).transpose()?.unwrap_or_default();
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for task in work {
        tasks.spawn(task);
    }
    let mut latencies_us = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies_us.extend(done??);
    }
    let elapsed = begin.elapsed();
    let cpu_after = pid.map(process::cpu).transpose()?.unwrap_or_default();
    latencies_us.sort_unstable();
    ensure!(!latencies_us.is_empty(), "no request was answered");
    Ok(Measured { latencies_us, elapsed, cpu: cpu_after - cpu_before })
}

async fn requests(
    mut connection: Connection,
    target: Target,
    end: Instant,
) -> anyhow::Result<Vec<u32>> {
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let begin = Instant::now();
        request(&mut connection, &target).await?;
        latencies.push(micros(begin));
    }
    Ok(latencies)
}

fn micros(begin: Instant) -> u32 {
    u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX)
}

/// One request; reads the content to its end.
pub(crate) async fn request(connection: &mut Connection, target: &Target) -> anyhow::Result<()> {
    let request = Request::get(target.path)
        .header(http::header::HOST, format!("localhost:{}", target.port))
        .body(Empty::new())?;
    connection.ready().await?;
    let response = connection.send_request(request).await?;
    ensure!(response.status() == 200, "status {}", response.status());
    let mut body = response.into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    ensure!(length == target.length, "{length} bytes of content");
    Ok(())
}

/// Opens a connection, the handshakes included.
pub(crate) async fn connect(path: &Path, port: u16) -> anyhow::Result<Connection> {
    let stream = match &path.proxy {
        None => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?,
        Some((proxy, authorization)) => {
            let mut stream = TcpStream::connect(proxy).await?;
            let identity = authorization
                .as_ref()
                .map_or_else(String::new, |value| format!("Proxy-Authorization: {value}\r\n"));
            let head = format!(
                "CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n{identity}\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                answer.push(stream.read_u8().await.context("CONNECT")?);
            }
            if !answer.starts_with(b"HTTP/1.1 200") {
                bail!("the proxy refused: {}", String::from_utf8_lossy(&answer));
            }
            stream
        }
    };
    stream.set_nodelay(true)?;
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&path.tls));
    let stream = connector.connect(ServerName::try_from("localhost")?, stream).await?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
