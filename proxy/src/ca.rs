//! The certificate authority of one home: mints a leaf per intercepted host.
//!
//! The authority's own name and key identifier follow from its key, so that nothing but the key and
//! the certificate has to be kept, and the certificate is never parsed back.

use crate::target::Host;
use dashmap::DashMap;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
/// Hosts whose leaf is kept ready.
const CACHE: usize = 1024;
const LEAF_DAYS: i64 = 30;
/// A listener's leaf is made when it starts and not renewed.
const LISTENER_DAYS: i64 = 397;

/// A failure to create or load the authority.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{step} {path}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Key or certificate could not be made or read.
    #[error("{step}")]
    Certificate {
        /// What was tried.
        step: &'static str,
        /// The library's answer.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS settings could not be built.
    #[error("build the TLS settings of a leaf")]
    Tls(#[source] rustls::Error),
    /// The system gave no random bytes.
    #[error("draw a serial number")]
    Random,
}

fn certificate(step: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate { step, source }
}

/// The certificate authority: `ca-cert.pem` and `ca-key.pem` (mode 0600) in its directory.
pub struct Ca {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    leaf_key: KeyPair,
    leaves: DashMap<Host, Leaf>,
    random: SystemRandom,
}

struct Leaf {
    config: Arc<ServerConfig>,
    renew_at: OffsetDateTime,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").finish_non_exhaustive()
    }
}

impl Ca {
    /// Creates the authority in `directory`.
    ///
    /// # Errors
    /// [`Error`] when a file is there already or cannot be written.
    pub fn create(directory: &Path) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(certificate("make the authority's key"))?;
        let mut params = authority(&key);
        params.serial_number = Some(serial(&SystemRandom::new())?);
        let now = OffsetDateTime::now_utc();
        params.not_before = now - Duration::days(1);
        params.not_after = now + Duration::days(3650);
        let pem = params.self_signed(&key).map_err(certificate("sign the authority"))?.pem();
        let key_pem = Zeroizing::new(key.serialize_pem());
        write_new(&directory.join(KEY), key_pem.as_bytes(), 0o600)?;
        write_new(&directory.join(CERTIFICATE), pem.as_bytes(), 0o644)?;
        Self::assemble(pem, key)
    }

    /// Loads the authority from `directory`.
    ///
    /// # Errors
    /// [`Error`] when a file is missing or does not hold what it should.
    pub fn load(directory: &Path) -> Result<Self, Error> {
        let key_pem = Zeroizing::new(read(&directory.join(KEY))?);
        let key = KeyPair::from_pem(&key_pem).map_err(certificate("read the authority's key"))?;
        Self::assemble(read(&directory.join(CERTIFICATE))?, key)
    }

    fn assemble(certificate_pem: String, key: KeyPair) -> Result<Self, Error> {
        Ok(Self {
            certificate_pem,
            issuer: Issuer::new(authority(&key), key),
            leaf_key: KeyPair::generate().map_err(certificate("make the leaf key"))?,
            leaves: DashMap::new(),
            random: SystemRandom::new(),
        })
    }

    /// The authority's certificate, for clients to trust.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The TLS settings that answer as `host`: from the cache, or with a fresh leaf.
    pub(crate) fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, Error> {
        let now = OffsetDateTime::now_utc();
        if let Some(leaf) = self.leaves.get(host)
            && leaf.renew_at > now
        {
            return Ok(Arc::clone(&leaf.config));
        }
        let config = self.mint(host, now)?;
        if self.leaves.len() >= CACHE {
            let evicted = self.leaves.iter().next().map(|entry| entry.key().clone());
            if let Some(evicted) = evicted {
                self.leaves.remove(&evicted);
            }
        }
        let leaf =
            Leaf { config: Arc::clone(&config), renew_at: now + Duration::days(LEAF_DAYS - 2) };
        self.leaves.insert(host.clone(), leaf);
        Ok(config)
    }

    fn mint(&self, host: &Host, now: OffsetDateTime) -> Result<Arc<ServerConfig>, Error> {
        let mut config = self.leaf_config(std::slice::from_ref(host), now, LEAF_DAYS)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// The TLS settings of a listener of this proxy under these names.
    pub(crate) fn listener_config(&self, hosts: &[Host]) -> Result<ServerConfig, Error> {
        self.leaf_config(hosts, OffsetDateTime::now_utc(), LISTENER_DAYS)
    }

    fn leaf_config(
        &self,
        hosts: &[Host],
        now: OffsetDateTime,
        days: i64,
    ) -> Result<ServerConfig, Error> {
        let mut params = CertificateParams::default();
        let names: Result<Vec<_>, Error> = hosts.iter().map(alternative_name).collect();
        params.subject_alt_names = names?;
        params.distinguished_name = DistinguishedName::new();
        // X.520 allows a common name of 64 characters; the alternative name is what counts.
        if let Some(name) = hosts.first().map(Host::to_string).filter(|name| name.len() <= 64) {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial(&self.random)?);
        params.not_before = now - Duration::days(1);
        params.not_after = now + Duration::days(days);
        let leaf =
            params.signed_by(&self.leaf_key, &self.issuer).map_err(certificate("sign a leaf"))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)
            .map_err(Error::Tls)
    }
}

fn alternative_name(host: &Host) -> Result<SanType, Error> {
    Ok(match host {
        Host::Address(address) => SanType::IpAddress(*address),
        Host::Name(name) => SanType::DnsName(
            name.as_ref().try_into().map_err(certificate("name the host in a leaf"))?,
        ),
    })
}

/// The authority's certificate without its dates and serial number: a function of its key.
fn authority(key: &KeyPair) -> CertificateParams {
    let digest = Sha256::digest(key.der_bytes());
    let tag: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Affiant");
    params.distinguished_name.push(DnType::CommonName, format!("Affiant CA {tag}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A positive number of at most 20 octets (RFC 5280 section 4.1.2.2), 126 random bits in 16.
fn serial(random: &SystemRandom) -> Result<SerialNumber, Error> {
    let mut bytes = [0; 16];
    random.fill(&mut bytes).map_err(|_| Error::Random)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Io {
        step: "read",
        path: path.to_owned(),
        source,
    })
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let failed = |source| Error::Io { step: "create", path: path.to_owned(), source };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5280 section 4.1.2.2: positive, at most 20 octets, no octet that DER forbids.
    #[test]
    fn serial_numbers_are_positive_and_short() {
        let random = SystemRandom::new();
        for _ in 0..1000 {
            let bytes = serial(&random).expect("serial").to_bytes();
            assert_eq!(bytes.len(), 16);
            assert!(matches!(bytes.first(), Some(0x40..=0x7f)), "{bytes:?}");
        }
    }
}
