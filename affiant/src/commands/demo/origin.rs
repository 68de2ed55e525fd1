//! The demo's origin: a TLS server inside the process that counts the effects it applies.

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What the origin saw and what it waits for.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    effects: Mutex<HashMap<String, u32>>,
    /// The origin holds the request of `/slow`.
    pub(super) slow_arrived: Notify,
    /// The origin may answer `/slow`.
    pub(super) slow_release: Notify,
}

impl Ledger {
    /// How many effects were applied at a path.
    pub(super) fn effects(&self, path: &str) -> u32 {
        let effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
        effects.get(path).copied().unwrap_or_default()
    }

    fn apply(&self, path: &str) -> u32 {
        let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
        let count = effects.entry(path.to_owned()).or_default();
        *count += 1;
        *count
    }
}

/// A running origin on a loopback port.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    /// The certificate authority that the policy has to trust.
    pub(super) ca_pem: String,
    pub(super) ledger: Arc<Ledger>,
    task: JoinHandle<()>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Origin {
    /// Starts an origin that takes `token` as its bearer token.
    pub(super) async fn start(token: &str) -> anyhow::Result<Self> {
        let (config, ca_pem) = identity().context("make the origin's certificate")?;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let ledger = Arc::new(Ledger::default());
        let expected: Arc<str> = format!("Bearer {token}").into();
        let shared = Arc::clone(&ledger);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, ledger) = (acceptor.clone(), Arc::clone(&shared));
                let expected = Arc::clone(&expected);
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request| {
                        answer(request, Arc::clone(&ledger), Arc::clone(&expected))
                    });
                    let served = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    if let Err(error) = served.await {
                        tracing::debug!("the demo's origin closed a connection: {error}");
                    }
                });
            }
        });
        Ok(Self { address, ca_pem, ledger, task })
    }
}

/// Closes the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("the origin closes without a response")]
struct Close;

async fn answer(
    request: Request<Incoming>,
    ledger: Arc<Ledger>,
    expected: Arc<str>,
) -> Result<Response<Full<Bytes>>, Close> {
    let path = request.uri().path().to_owned();
    let authorized = request
        .headers()
        .get(header::AUTHORIZATION)
        .is_some_and(|value| value.as_bytes() == expected.as_bytes());
    if request.into_body().collect().await.is_err() {
        return Err(Close);
    }
    if !authorized {
        return Ok(json(StatusCode::UNAUTHORIZED, r#"{"error":"no credential"}"#.to_owned()));
    }
    match path.as_str() {
        "/invalid" => {
            Ok(json(StatusCode::UNPROCESSABLE_ENTITY, r#"{"error":"amount missing"}"#.to_owned()))
        }
        "/close" => {
            ledger.apply(&path);
            Err(Close)
        }
        "/slow" => {
            ledger.slow_arrived.notify_one();
            ledger.slow_release.notified().await;
            let count = ledger.apply(&path);
            Ok(json(StatusCode::CREATED, format!(r#"{{"id":"slow_{count}"}}"#)))
        }
        _ => {
            let count = ledger.apply(&path);
            Ok(json(StatusCode::CREATED, format!(r#"{{"id":"ch_{count}"}}"#)))
        }
    }
}

fn json(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// A private CA and a leaf for 127.0.0.1.
fn identity() -> anyhow::Result<(rustls::ServerConfig, String)> {
    let mut ca = rcgen::CertificateParams::new(Vec::new())?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    ca.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    ca.distinguished_name.push(rcgen::DnType::CommonName, "Affiant demo origin CA");
    let ca_key = rcgen::KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let leaf_key = rcgen::KeyPair::generate()?;
    let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])?
        .signed_by(&leaf_key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)?;
    Ok((config, ca_pem))
}
