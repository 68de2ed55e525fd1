//! Certificates for peers: a private authority and leaves signed by it.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;

/// A private certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A leaf certificate with its key, in both forms.
pub struct Leaf {
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// The key, PEM.
    pub key_pem: String,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not make a certificate")]
pub struct Error(#[from] rcgen::Error);

impl Authority {
    /// Makes an authority of the given name.
    ///
    /// # Errors
    /// [`Error`] when the crypto provider fails.
    pub fn new(name: &str) -> Result<Self, Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's certificate, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The authority's key, PEM, for a proxy that signs with it.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a leaf for host names and IP addresses.
    ///
    /// # Errors
    /// [`Error`] when a name is malformed.
    pub fn leaf(&self, names: &[&str]) -> Result<Leaf, Error> {
        self.sign(names, |_| ())
    }

    /// As [`Authority::leaf`], but expired long ago.
    ///
    /// # Errors
    /// [`Error`] when a name is malformed.
    pub fn expired_leaf(&self, names: &[&str]) -> Result<Leaf, Error> {
        self.sign(names, |params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        })
    }

    fn sign(
        &self,
        names: &[&str],
        adjust: impl FnOnce(&mut CertificateParams),
    ) -> Result<Leaf, Error> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        adjust(&mut params);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Leaf {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        })
    }
}

impl Leaf {
    /// A TLS server configuration with this identity and ALPN `http/1.1`.
    ///
    /// # Errors
    /// [`rustls::Error`] when the key does not fit the certificate.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Offered, so that whoever would send early data does.
        config.max_early_data_size = 16 * 1024;
        Ok(Arc::new(config))
    }

    /// The same with ALPN `h2` alone.
    ///
    /// # Errors
    /// [`rustls::Error`] when the key does not fit the certificate.
    pub fn http2_config(&self) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
        let mut config = rustls::ServerConfig::clone(&*self.server_config()?);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}
