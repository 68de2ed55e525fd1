//! Tells people of calls that wait for them: one POST per question to the URL that policy names.
//!
//! It says who wants what, with the request as a person is shown it, which is without secrets. What
//! can't be told is logged and noted on the invocation; the call waits all the same.

use crate::control::{State, approvals};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use journal::Invocation;
use journal::contract::{Body, InvocationId, Noted, Source};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often one question is posted.
const TRIES: u32 = 3;
/// How long one try may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// Posts questions until the server goes down. What an earlier process left waiting is told again.
pub(crate) async fn run(state: Arc<State>, mut shutdown: watch::Receiver<bool>) {
    let mut asked = state.journal.asked();
    let mut told: HashSet<InvocationId> = HashSet::new();
    let mut posting = JoinSet::new();
    loop {
        asked.mark_unchanged();
        let held = state.journal.held();
        told.retain(|id| held.iter().any(|held| held.id() == *id));
        for held in held {
            let url = state.policy.snapshot().webhook().map(str::to_owned);
            if let Some(url) = url.filter(|_| is_pending(&held) && told.insert(held.id())) {
                posting.spawn(tell(Arc::clone(&state), url, held));
            }
        }
        tokio::select! {
            changed = asked.changed() => if changed.is_err() { break },
            Some(done) = posting.join_next() => {
                if let Err(error) = done {
                    tracing::error!("a webhook ended badly: {error}");
                }
            }
            _ = shutdown.wait_for(|down| *down) => break,
        }
    }
}

fn is_pending(held: &Invocation) -> bool {
    held.approval().is_some_and(|approval| approval.decided.is_none())
}

async fn tell(state: Arc<State>, url: String, held: Invocation) {
    let Some(mut question) = approvals::describe_whole(&state, &held) else { return };
    if let Some(members) = question.as_object_mut() {
        members.insert("event".to_owned(), "approval_requested".into());
        let id = held.id();
        members.insert("approve".to_owned(), format!("affiant approval approve {id}").into());
    }
    let body = Bytes::from(question.to_string());
    let mut outcome = String::new();
    for n in 1..=TRIES {
        let post = post(&state, &url, body.clone());
        outcome = match tokio::time::timeout(PATIENCE, post).await {
            Ok(Ok(())) => return note(&state, held.id(), "webhook_told", &format!("try {n}")),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("no answer in {} s", PATIENCE.as_secs()),
        };
        tokio::time::sleep(PAUSE).await;
    }
    tracing::warn!(id = %held.id(), "the webhook for approvals was not reached: {outcome}");
    note(&state, held.id(), "webhook_failed", &outcome);
}

fn note(state: &State, id: InvocationId, name: &str, detail: &str) {
    let noted = Body::Noted(Noted { name: name.to_owned(), detail: detail.to_owned() });
    if let Err(error) = state.journal.record(id, Source::TransportObserved, noted) {
        tracing::debug!(%id, "what became of a webhook is not on record: {error}");
    }
}

async fn post(state: &State, url: &str, body: Bytes) -> anyhow::Result<()> {
    let uri: Uri = url.parse().context("read the URL of the webhook")?;
    let host = uri.host().context("the URL of the webhook names no host")?;
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let tcp = TcpStream::connect((name.as_str(), port)).await.context("connect")?;
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let request = Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("affiant/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(body))?;
    if !secure {
        return send(tcp, request).await;
    }
    let config = tls(&state.policy.snapshot().trust_for(&name))?;
    let server = ServerName::try_from(name).context("the webhook's host is no name for TLS")?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    send(connector.connect(server, tcp).await.context("TLS handshake")?, request).await
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> anyhow::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    drop(sender);
    let status = match response {
        Ok(response) => {
            let status = response.status();
            // Read, so that the other side sees an orderly end; what it says is of no use.
            drop(response.into_body().collect().await);
            status
        }
        Err(error) => {
            driver.abort();
            return Err(error).context("no answer");
        }
    };
    driver.abort();
    if !status.is_success() {
        bail!("the answer was {status}");
    }
    Ok(())
}

/// The system's roots, and those of policy's `[[trust]]` for the host.
fn tls(files: &[PathBuf]) -> anyhow::Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for file in files {
        for certificate in CertificateDer::pem_file_iter(file).context("read trusted roots")? {
            roots.add(certificate.context("read trusted roots")?)?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
