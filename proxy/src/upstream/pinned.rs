//! Origins whose own certificate is trusted, because a file of `[[trust]]` holds it byte for byte.
//!
//! Whoever named such a certificate vouched for its key, so no authority is asked: it may be its own issuer, be
//! an authority itself (what `openssl req -x509` makes), or be of an authority that nobody here knows. Its name,
//! time and purpose are judged as ever, and the handshake proves that the origin has the key. Every other
//! certificate is judged by the authorities alone.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Judges an origin by the certificates that are trusted themselves, and by authorities.
#[derive(Debug)]
pub(super) struct Verifier {
    trusted: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    pub(super) const fn new(
        trusted: Vec<CertificateDer<'static>>,
        authorities: Arc<WebPkiServerVerifier>,
    ) -> Self {
        Self { trusted, authorities }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.trusted.iter().any(|trusted| trusted.as_ref() == end_entity.as_ref()) {
            may_serve(end_entity, now)?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let authorities = &self.authorities;
        authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Whether it is a server's certificate, at this time (RFC 5280 sections 4.1.2.5 and 4.2.1.12).
fn may_serve(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let (_, read) =
        X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < read.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet);
    }
    if now > read.validity().not_after.timestamp() {
        return Err(CertificateError::Expired);
    }
    let purposes = read.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    match purposes {
        Some(purposes) if !purposes.value.server_auth && !purposes.value.any => {
            Err(CertificateError::InvalidPurpose)
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
    };
    use rustls::RootCertStore;
    use std::time::Duration;

    /// The start of 2026.
    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_767_225_600));

    fn params() -> CertificateParams {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2025, 6, 1);
        params.not_after = date_time_ymd(2026, 6, 1);
        params
    }

    /// What is said of `served` where only `trusted` is.
    fn judged(
        trusted: &CertificateDer<'static>,
        served: &CertificateDer<'static>,
    ) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = Verifier::new(vec![trusted.clone()], authorities.build().unwrap());
        let name = ServerName::try_from("localhost").unwrap();
        verifier.verify_server_cert(served, &[], &name, &[], NOW).map(|_| ())
    }

    /// C-1: a trusted certificate is still judged by its name, its time and its purpose, whoever issued it.
    #[test]
    fn c_1_a_trusted_certificate_is_judged_by_name_time_and_purpose() {
        let key = KeyPair::generate().unwrap();
        let own = |change: fn(&mut CertificateParams)| {
            let mut params = params();
            change(&mut params);
            let served = params.self_signed(&key).unwrap().der().clone();
            judged(&served, &served)
        };
        assert_eq!(own(|_| ()), Ok(()));
        assert_eq!(own(|p| p.is_ca = IsCa::NoCa), Ok(()));
        let server = |p: &mut CertificateParams| {
            p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        };
        assert_eq!(own(server), Ok(()));
        let client = |p: &mut CertificateParams| {
            p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        };
        let refused = |cause: CertificateError| Err(Error::InvalidCertificate(cause));
        assert_eq!(own(client), refused(CertificateError::InvalidPurpose));
        let expired = own(|p| p.not_after = date_time_ymd(2025, 12, 31));
        assert_eq!(expired, refused(CertificateError::Expired));
        let early = own(|p| p.not_before = date_time_ymd(2026, 1, 2));
        assert_eq!(early, refused(CertificateError::NotValidYet));
        let named = own(|p| {
            p.subject_alt_names =
                CertificateParams::new(vec!["other.example".to_owned()]).unwrap().subject_alt_names;
        });
        assert!(matches!(
            named,
            Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }))
        ));
    }

    /// C-1: the same key and names in another certificate are another certificate.
    #[test]
    fn c_1_only_the_very_certificate_is_trusted_itself() {
        let key = KeyPair::generate().unwrap();
        let trusted = params().self_signed(&key).unwrap().der().clone();
        let mut later = params();
        later.not_after = date_time_ymd(2026, 6, 2);
        let served = later.self_signed(&key).unwrap().der().clone();
        let refused = judged(&trusted, &served).unwrap_err();
        let Error::InvalidCertificate(CertificateError::Other(cause)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(cause.0.downcast_ref(), Some(&webpki::Error::CaUsedAsEndEntity));
        // What an authority of the file signed is trusted as before.
        let issuer = rcgen::Issuer::new(params(), &key);
        let mut leaf = params();
        leaf.is_ca = IsCa::NoCa;
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
        assert_eq!(judged(&trusted, &leaf), Ok(()));
        // Trusted itself, a leaf needs no authority that is known.
        assert_eq!(judged(&leaf, &leaf), Ok(()));
    }
}
