//! TLS towards origins: who is trusted, and what went wrong in words that records can hold.

use super::pinned::Verifier;
use super::pool::Mark;
use super::versions::Offer;
use dashmap::DashMap;
use journal::contract::Code;
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// A trust set that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file of extra roots can't be read.
    #[error("read trusted certificates")]
    File(#[source] rustls_pki_types::pem::Error),
    /// A file of extra roots is something else.
    #[error("the file of trusted certificates holds no certificate")]
    Empty,
    /// The settings could not be built.
    #[error("build TLS settings")]
    Config(#[source] rustls::Error),
    /// What judges origins could not be built.
    #[error("build the judge of certificates")]
    Verifier(#[source] VerifierBuilderError),
}

/// A client certificate, its key inside.
pub(crate) struct Client(CertifiedKey);

impl Client {
    /// # Errors
    /// The key is of no supported kind, or not the certificate's.
    pub(crate) fn new(certificate: &policy::ClientCertificate) -> Result<Self, rustls::Error> {
        let provider = rustls::crypto::ring::default_provider();
        let chain = certificate.chain.clone();
        CertifiedKey::from_der(chain, certificate.expose_key(), &provider).map(Self)
    }

    /// Stands for the certificate in the pool's key.
    pub(crate) fn mark(&self) -> Mark {
        Mark::of(&self.0.cert)
    }
}

/// A file of extra roots, as it is now: a changed one is another trust.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TrustFile {
    path: PathBuf,
    /// The time of its last change; none when it can't be told.
    changed: Option<SystemTime>,
}

impl TrustFile {
    /// Looks at each file.
    pub(crate) fn all(paths: &[PathBuf]) -> Vec<Self> {
        let changed =
            |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        paths.iter().map(|path| Self { path: path.clone(), changed: changed(path) }).collect()
    }
}

type TrustKey = (Vec<TrustFile>, Offer);

/// The TLS settings towards origins, one per trust set.
pub(crate) struct Trust {
    roots: RootCertStore,
    configs: DashMap<TrustKey, Arc<ClientConfig>>,
}

impl Trust {
    /// Loads the system's roots. A system without any is fine: `[[trust]]` may name some.
    pub(crate) fn load() -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "some of the system's trusted certificates can't be read");
        }
        let (added, ignored) = roots.add_parsable_certificates(native.certs);
        tracing::debug!(added, ignored, "system roots loaded");
        let trust = Self { roots, configs: DashMap::new() };
        trust.build(&[], Offer::Http11, None).map(|_| trust).map_err(|error| match error {
            Error::Config(error) => error,
            Error::File(_) | Error::Empty | Error::Verifier(_) => {
                rustls::Error::General("no file was read".to_owned())
            }
        })
    }

    /// The settings that trust the system's roots and those of the files.
    pub(crate) fn config(
        &self,
        files: &[PathBuf],
        offer: Offer,
    ) -> Result<Arc<ClientConfig>, Error> {
        let key: TrustKey = (TrustFile::all(files), offer);
        if let Some(config) = self.configs.get(&key) {
            return Ok(Arc::clone(&config));
        }
        let config = Arc::new(self.build(files, offer, None)?);
        // A changed file leaves its old settings behind; there are few.
        if self.configs.len() > 256 {
            self.configs.clear();
        }
        self.configs.insert(key, Arc::clone(&config));
        Ok(config)
    }

    /// The same, with a client certificate. Not kept: the key lives as long as its connection.
    pub(crate) fn with_client(
        &self,
        files: &[PathBuf],
        offer: Offer,
        client: &Client,
    ) -> Result<Arc<ClientConfig>, Error> {
        self.build(files, offer, Some(client)).map(Arc::new)
    }

    fn build(
        &self,
        files: &[PathBuf],
        offer: Offer,
        client: Option<&Client>,
    ) -> Result<ClientConfig, Error> {
        let mut roots = self.roots.clone();
        let mut trusted = Vec::new();
        for file in files {
            let before = trusted.len();
            for certificate in CertificateDer::pem_file_iter(file).map_err(Error::File)? {
                let certificate = certificate.map_err(Error::File)?;
                roots.add(certificate.clone()).map_err(Error::Config)?;
                trusted.push(certificate);
            }
            if trusted.len() == before {
                return Err(Error::Empty);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(Error::Config)?;
        let builder = if trusted.is_empty() {
            // There may be no root at all, which the builder of a judge refuses.
            builder.with_root_certificates(roots)
        } else {
            let authorities =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
            let authorities = authorities.build().map_err(Error::Verifier)?;
            let verifier = Arc::new(Verifier::new(trusted, authorities));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        };
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(Client(key)) => {
                let shown = SingleCertAndKey::from(key.clone());
                builder.with_client_cert_resolver(Arc::new(shown))
            }
        };
        config.alpn_protocols = match offer {
            Offer::Http2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Offer::Http11 => vec![b"http/1.1".to_vec()],
        };
        // C-9: no request byte leaves as early data.
        config.enable_early_data = false;
        Ok(config)
    }
}

/// A TLS alert of the other side (RFC 8446 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alert {
    /// Its number.
    pub(crate) id: u8,
    /// Its name.
    pub(crate) name: &'static str,
}

impl Alert {
    /// The other side speaks none of the protocols that were offered (RFC 7301).
    pub(crate) const NO_PROTOCOL: Self = Self { id: 120, name: "no_application_protocol" };

    fn of(description: AlertDescription) -> Self {
        let id = u8::from(description);
        let known = ALERTS.iter().find(|(known, _)| *known == id);
        Self { id, name: known.map_or("unknown", |(_, name)| name) }
    }

    /// The alert behind an error of a connection, if there is one.
    #[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
    pub(crate) fn behind(error: &std::io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::AlertReceived(description) => Some(Self::of(*description)),
            _ => None,
        }
    }

    /// Whether it says that a certificate is not taken, or missing (RFC 8446 section 6.2).
    const fn is_of_certificate(self) -> bool {
        matches!(self.id, 42..=46 | 48 | 116)
    }

    /// The alert by which a server ends the handshake over the client's certificate, if the error is that.
    /// In TLS 1.3 the client's side of it is done before the server judges the certificate (RFC 8446
    /// section 4.4.2.4). A ticket would say that the server's was done, too. `access_denied` does not count:
    /// a server may say it of the request.
    pub(crate) fn of_refused_certificate(
        error: &std::io::Error,
        session: &rustls::ClientConnection,
    ) -> Option<Self> {
        let is_late = session.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
        let is_open = is_late && session.tls13_tickets_received() == 0;
        Self::behind(error).filter(|alert| is_open && alert.is_of_certificate())
    }

    /// The error that the alert was found behind.
    pub(super) fn into_error(self) -> std::io::Error {
        let error = rustls::Error::AlertReceived(AlertDescription::from(self.id));
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }

    /// The name of the cause in records.
    pub(crate) fn cause(self) -> String {
        format!("ALERT_{}", self.name.to_ascii_uppercase())
    }
}

/// The alerts of IANA's registry.
const ALERTS: &[(u8, &str)] = &[
    (0, "close_notify"),
    (10, "unexpected_message"),
    (20, "bad_record_mac"),
    (22, "record_overflow"),
    (40, "handshake_failure"),
    (42, "bad_certificate"),
    (43, "unsupported_certificate"),
    (44, "certificate_revoked"),
    (45, "certificate_expired"),
    (46, "certificate_unknown"),
    (47, "illegal_parameter"),
    (48, "unknown_ca"),
    (49, "access_denied"),
    (50, "decode_error"),
    (51, "decrypt_error"),
    (70, "protocol_version"),
    (71, "insufficient_security"),
    (80, "internal_error"),
    (86, "inappropriate_fallback"),
    (90, "user_canceled"),
    (109, "missing_extension"),
    (110, "unsupported_extension"),
    (112, "unrecognized_name"),
    (113, "bad_certificate_status_response"),
    (115, "unknown_psk_identity"),
    (116, "certificate_required"),
    (120, "no_application_protocol"),
];

/// A failed handshake.
pub(crate) fn failure(error: &rustls::Error) -> super::dial::Error {
    let refused = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    if *error == refused {
        return super::dial::Error::NoProtocol;
    }
    let (code, cause, alert) = classify(error);
    super::dial::Error::Tls { code, cause, alert }
}

/// A failed handshake in the words of records: our code, and a name of the cause.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn classify(error: &rustls::Error) -> (Code, String, Option<Alert>) {
    let protocol = |cause: &str| (Code::TlsProtocolError, cause.to_owned(), None);
    let untrusted = |cause: &str| (Code::TlsCertificateError, cause.to_owned(), None);
    match error {
        rustls::Error::InvalidCertificate(cause) => untrusted(certificate(cause)),
        rustls::Error::NoCertificatesPresented => untrusted("CERT_MISSING"),
        rustls::Error::AlertReceived(description) => {
            let alert = Alert::of(*description);
            (Code::TlsAlertReceived, alert.cause(), Some(alert))
        }
        rustls::Error::PeerIncompatible(_) => protocol("TLS_INCOMPATIBLE"),
        rustls::Error::PeerMisbehaved(_) => protocol("TLS_MISBEHAVED"),
        rustls::Error::NoApplicationProtocol => protocol("TLS_NO_PROTOCOL"),
        _ => protocol("TLS_PROTOCOL"),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn certificate(cause: &CertificateError) -> &'static str {
    match cause {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "CERT_EXPIRED",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "CERT_NOT_YET_VALID"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "CERT_WRONG_NAME"
        }
        CertificateError::UnknownIssuer => "CERT_UNKNOWN_ISSUER",
        CertificateError::Revoked => "CERT_REVOKED",
        CertificateError::BadSignature => "CERT_BAD_SIGNATURE",
        CertificateError::BadEncoding => "CERT_BAD_ENCODING",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "CERT_WRONG_PURPOSE"
        }
        CertificateError::Other(other) => {
            match other.0.downcast_ref::<webpki::Error>() {
                // What `openssl req -x509` makes unless it is told otherwise.
                Some(webpki::Error::CaUsedAsEndEntity) => "CERT_IS_A_CA",
                _ => "CERT_INVALID",
            }
        }
        _ => "CERT_INVALID",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls_pki_types::{ServerName, UnixTime};

    /// A self-signed certificate that may sign others is trusted to sign, not to serve (RFC 5280 section
    /// 4.2.1.9): the record says so.
    #[test]
    fn a_ca_that_serves_is_named() {
        for (is_ca, expected) in [(true, Some("CERT_IS_A_CA")), (false, None)] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            if is_ca {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
            let served = params.self_signed(&key).unwrap().der().clone();
            let mut roots = RootCertStore::empty();
            roots.add(served.clone()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
            let name = ServerName::try_from("localhost").unwrap();
            let judged = verifier.build().unwrap().verify_server_cert(
                &served,
                &[],
                &name,
                &[],
                UnixTime::now(),
            );
            let told = judged.err().map(|error| classify(&error));
            let expected =
                expected.map(|cause| (Code::TlsCertificateError, cause.to_owned(), None));
            assert_eq!(told, expected);
        }
    }

    /// A file that holds no certificate is not a trust in nobody.
    #[test]
    fn a_trust_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let trust = Trust::load().unwrap();
        let refused = trust.config(&[file.path().to_owned()], Offer::Http11);
        assert!(matches!(refused, Err(Error::Empty)));
    }
}
