//! Who the proxy is to callers that speak TLS with the proxy itself.

use crate::ca::{self, Ca};
use crate::target::Host;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::path::Path;
use std::sync::Arc;

/// A certificate that can't be used for the listener.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file holds no certificate or no key, or can't be read.
    #[error("read certificate and key of the listener")]
    File(#[source] rustls_pki_types::pem::Error),
    /// There is no certificate in the file.
    #[error("the file holds no certificate")]
    Empty,
    /// Certificate and key don't fit, or are of a kind that is not supported.
    #[error("use certificate and key of the listener")]
    Tls(#[source] rustls::Error),
    /// The home's authority could not sign.
    #[error("make a certificate for the listener")]
    Authority(#[source] ca::Error),
    /// Not a host.
    #[error("the listener's name is not a host")]
    Name,
}

/// Certificate and key of a listener.
#[derive(Debug, Clone)]
pub struct ListenerIdentity {
    pub(crate) config: Arc<ServerConfig>,
}

impl ListenerIdentity {
    /// A certificate chain and its key, as PEM files.
    ///
    /// # Errors
    /// [`Error`].
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let chain = CertificateDer::pem_file_iter(certificate).map_err(Error::File)?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(Error::File)?;
        let leaf = chain.first().ok_or(Error::Empty)?;
        if let Some(state) = out_of_time(leaf) {
            let file = certificate.display();
            tracing::warn!(
                "the certificate of the TLS listener {state}: callers refuse it ({file})"
            );
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(Error::File)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(Error::Tls)?;
        config.alpn_protocols = protocols();
        Ok(Self { config: Arc::new(config) })
    }

    /// A leaf of the home's authority for these names and addresses.
    ///
    /// # Errors
    /// [`Error`].
    pub fn from_ca(ca: &Ca, names: &[&str]) -> Result<Self, Error> {
        let hosts: Result<Vec<Host>, _> = names
            .iter()
            .map(|name| match name.parse() {
                Ok(address) => Ok(Host::Address(address)),
                Err(_) => name.parse().map_err(|_| Error::Name),
            })
            .collect();
        let mut config = ca.listener_config(&hosts?).map_err(Error::Authority)?;
        config.alpn_protocols = protocols();
        Ok(Self { config: Arc::new(config) })
    }
}

/// Whether a certificate is of the past or of the future, in words. Who signed it is not asked.
fn out_of_time(certificate: &CertificateDer<'_>) -> Option<&'static str> {
    let leaf = webpki::EndEntityCert::try_from(certificate).ok()?;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    let (now, usage) = (UnixTime::now(), webpki::KeyUsage::server_auth());
    // Without anchors every certificate is refused; its time is looked at first.
    let refused = leaf.verify_for_usage(algorithms, &[], &[], now, usage, None, None).err()?;
    let expired = matches!(refused, webpki::Error::CertExpired { .. });
    let early = matches!(refused, webpki::Error::CertNotValidYet { .. });
    expired.then_some("has expired").or(early.then_some("is not valid yet"))
}

/// What callers may speak with the proxy itself (RFC 7301).
fn protocols() -> Vec<Vec<u8>> {
    vec![b"h2".to_vec(), b"http/1.1".to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_out_of_its_time_is_told_of() {
        let (past, future) = (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2900, 1, 1));
        for (from, until, expected) in [
            (past, future, None),
            (past, rcgen::date_time_ymd(2002, 1, 1), Some("has expired")),
            (rcgen::date_time_ymd(2899, 1, 1), future, Some("is not valid yet")),
        ] {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            (params.not_before, params.not_after) = (from, until);
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(out_of_time(certificate.der()), expected);
        }
    }
}
