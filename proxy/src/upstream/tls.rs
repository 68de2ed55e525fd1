//! TLS towards origins: who is trusted, and what went wrong in words that records can hold.

use super::versions::Offer;
use dashmap::DashMap;
use journal::contract::Code;
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
    /// The settings could not be built.
    #[error("build TLS settings")]
    Config(#[source] rustls::Error),
}

/// Extra roots by file, with the time of each file's last change.
type TrustKey = (Vec<(PathBuf, Option<SystemTime>)>, Offer);

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
        trust.build(&[], Offer::Http11).map(|_| trust).map_err(|error| match error {
            Error::Config(error) => error,
            Error::File(_) => rustls::Error::General("no file was read".to_owned()),
        })
    }

    /// The settings that trust the system's roots and those of the files.
    pub(crate) fn config(
        &self,
        files: &[PathBuf],
        offer: Offer,
    ) -> Result<Arc<ClientConfig>, Error> {
        let changed =
            |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        let files_as_they_are = files.iter().map(|path| (path.clone(), changed(path))).collect();
        let key: TrustKey = (files_as_they_are, offer);
        if let Some(config) = self.configs.get(&key) {
            return Ok(Arc::clone(&config));
        }
        let config = Arc::new(self.build(files, offer)?);
        // A changed file leaves its old settings behind; there are few.
        if self.configs.len() > 256 {
            self.configs.clear();
        }
        self.configs.insert(key, Arc::clone(&config));
        Ok(config)
    }

    fn build(&self, files: &[PathBuf], offer: Offer) -> Result<ClientConfig, Error> {
        let mut roots = self.roots.clone();
        for file in files {
            for certificate in CertificateDer::pem_file_iter(file).map_err(Error::File)? {
                let certificate = certificate.map_err(Error::File)?;
                roots.add(certificate).map_err(Error::Config)?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Config)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = match offer {
            Offer::Http2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Offer::Http11 => vec![b"http/1.1".to_vec()],
        };
        // C-9: no request byte leaves as early data.
        config.enable_early_data = false;
        Ok(config)
    }
}

/// A failed handshake in the words of records: our code, and a name of the cause.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
pub(crate) fn classify(error: &rustls::Error) -> (Code, &'static str) {
    match error {
        rustls::Error::InvalidCertificate(cause) => (Code::TlsCertificateError, certificate(cause)),
        rustls::Error::NoCertificatesPresented => (Code::TlsCertificateError, "CERT_MISSING"),
        rustls::Error::AlertReceived(alert) => (Code::TlsAlertReceived, alert_name(*alert)),
        rustls::Error::PeerIncompatible(_) => (Code::TlsProtocolError, "TLS_INCOMPATIBLE"),
        rustls::Error::PeerMisbehaved(_) => (Code::TlsProtocolError, "TLS_MISBEHAVED"),
        rustls::Error::NoApplicationProtocol => (Code::TlsProtocolError, "TLS_NO_PROTOCOL"),
        _ => (Code::TlsProtocolError, "TLS_PROTOCOL"),
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
        _ => "CERT_INVALID",
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn alert_name(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::HandshakeFailure => "ALERT_HANDSHAKE_FAILURE",
        AlertDescription::BadCertificate => "ALERT_BAD_CERTIFICATE",
        AlertDescription::CertificateRequired => "ALERT_CERTIFICATE_REQUIRED",
        AlertDescription::UnrecognisedName => "ALERT_UNRECOGNISED_NAME",
        AlertDescription::ProtocolVersion => "ALERT_PROTOCOL_VERSION",
        AlertDescription::AccessDenied => "ALERT_ACCESS_DENIED",
        AlertDescription::InternalError => "ALERT_INTERNAL_ERROR",
        AlertDescription::NoApplicationProtocol => "ALERT_NO_APPLICATION_PROTOCOL",
        _ => "ALERT",
    }
}
