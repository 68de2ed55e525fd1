//! Asks a source of secrets over HTTP. Bounded in time and length; nothing is followed, retried or
//! logged, and no proxy of the environment is used.

use super::Error;
use crate::Secret;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use ureq::http::{HeaderValue, Request};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use zeroize::Zeroizing;

/// How long a source may take, from its name to the end of its answer.
const TIME: Duration = Duration::from_secs(10);
/// How long its answer may be.
const LENGTH_BYTES: usize = 256 * 1024;

/// What is asked.
pub(super) struct Ask<'a> {
    pub(super) method: &'static str,
    pub(super) url: &'a str,
    /// Header fields; none of their values is shown anywhere.
    pub(super) fields: Vec<(&'static str, Secret)>,
    /// The content, with its type.
    pub(super) content: Option<(&'static str, Secret)>,
    /// Files with certificates that are trusted beside the system's.
    pub(super) trust: &'a [PathBuf],
}

/// The answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content: Secret,
}

impl Answer {
    /// Reads the content as JSON. What it holds is a secret.
    pub(super) fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(self.content.expose()).ok()
    }
}

static SYSTEM: LazyLock<Vec<Certificate<'static>>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
});

/// Asks once.
///
/// # Errors
/// [`Error::SourceFailed`] when there is no whole answer.
pub(super) fn ask(ask: Ask<'_>) -> Result<Answer, Error> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(TIME))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent("affiant")
        .accept_encoding("identity")
        // A connection of its own: one from before could have been closed meanwhile, and a refresh
        // token must not be lost to finding that out.
        .max_idle_connections(0)
        .tls_config(tls(ask.trust)?)
        .build()
        .new_agent();
    let mut request = Request::builder().method(ask.method).uri(ask.url);
    for (name, value) in &ask.fields {
        let mut value = HeaderValue::from_bytes(value.expose())
            .map_err(|_| Error::Unreadable("it holds a character that a header can't have"))?;
        value.set_sensitive(true);
        request = request.header(*name, value);
    }
    let unfit = |_| Error::SourceFailed("its address can't be used");
    let sent = match &ask.content {
        Some((kind, content)) => {
            let request = request.header("content-type", *kind).body(content.expose());
            agent.run(request.map_err(unfit)?)
        }
        None => agent.run(request.body(()).map_err(unfit)?),
    };
    let mut response = sent.map_err(|error| failed(&error))?;
    let status = response.status().as_u16();
    // Sized at once: growing would leave copies behind.
    let mut content = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + 1));
    let limit = u64::try_from(LENGTH_BYTES).unwrap_or(u64::MAX) + 1;
    let reader = response.body_mut().as_reader();
    reader
        .take(limit)
        .read_to_end(&mut content)
        .map_err(|_| Error::SourceFailed("its answer broke off"))?;
    if content.len() > LENGTH_BYTES {
        return Err(Error::SourceFailed("its answer is longer than 256 KiB"));
    }
    Ok(Answer { status, content: Secret::new(std::mem::take(&mut *content)) })
}

fn tls(trust: &[PathBuf]) -> Result<TlsConfig, Error> {
    let mut roots = SYSTEM.clone();
    for file in trust {
        let unread = |_| Error::SourceUnset("the certificates trusted for it can't be read");
        for certificate in CertificateDer::pem_file_iter(file).map_err(unread)? {
            roots.push(Certificate::from_der(&certificate.map_err(unread)?).to_owned());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// What went wrong, in words that hold nothing of the exchange.
fn failed(error: &ureq::Error) -> Error {
    Error::SourceFailed(if matches!(error, ureq::Error::Timeout(_)) {
        "it took too long"
    } else if matches!(error, ureq::Error::HostNotFound) {
        "its name can't be resolved"
    } else if matches!(error, ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_)) {
        "TLS with it failed"
    } else if matches!(error, ureq::Error::ConnectionFailed | ureq::Error::Io(_)) {
        "it can't be reached, or broke off"
    } else {
        "it gave no answer that can be read"
    })
}
