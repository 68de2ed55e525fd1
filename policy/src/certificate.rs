//! Client certificates as secrets (`inject = "mtls"`): PEM text to what a TLS handshake needs.

use crate::credential::Error;
use crate::{Inject, Secret};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroize as _;

/// A certificate with its key, for one connection's handshake. The key is zeroed when dropped and
/// mute in `Debug`.
#[derive(Debug)]
pub struct ClientCertificate {
    /// The certificate, then those that lead to its root.
    pub chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// Reads PEM text: at least one certificate, and one private key (PKCS #8, PKCS #1 or SEC 1), in
    /// any order.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub(crate) fn of(secret: &Secret) -> Result<Self, Error> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(secret.expose())
            .collect::<Result<_, _>>()
            .map_err(|_| Error::Unreadable("it is not PEM text"))?;
        if chain.is_empty() {
            return Err(Error::Unreadable("it holds no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(secret.expose())
            .map_err(|_| Error::Unreadable("it holds no private key"))?;
        Ok(Self { chain, key })
    }

    /// A copy of the private key, for a TLS library. Whoever asks answers for where it goes.
    #[must_use]
    pub fn expose_key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

impl Drop for ClientCertificate {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl Inject {
    /// The certificate that the connection is to be opened with; none for every other mode. A
    /// connection that showed a certificate is not to be shared with calls of another credential.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn client_certificate(&self, secret: &Secret) -> Result<Option<ClientCertificate>, Error> {
        if *self == Self::Mtls { ClientCertificate::of(secret).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----\n";
    const ONE: &str = "-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\ndHdv\n-----END CERTIFICATE-----\n";

    /// I-1: what is no certificate with its key is unreadable.
    #[test]
    fn i_1_chain_and_key_are_read_in_any_order() {
        for text in [format!("{ONE}{TWO}{KEY}"), format!("{KEY}{ONE}{TWO}")] {
            let made = Inject::Mtls.client_certificate(&Secret::from(text)).unwrap().unwrap();
            assert_eq!(made.chain.iter().map(AsRef::as_ref).collect::<Vec<_>>(), [b"one", b"two"]);
            assert_eq!(made.expose_key().secret_der(), b"not a key");
            assert!(!format!("{made:?}").contains("not a key"), "{made:?}");
        }
        for (text, why) in [
            ("", "it holds no certificate"),
            (KEY, "it holds no certificate"),
            (ONE, "it holds no private key"),
            ("-----BEGIN CERTIFICATE-----\n####\n-----END CERTIFICATE-----", "it is not PEM text"),
        ] {
            let made = Inject::Mtls.client_certificate(&Secret::from(text));
            assert_eq!(made.unwrap_err(), Error::Unreadable(why), "{text}");
        }
        assert!(Inject::Bearer.client_certificate(&Secret::from("x")).unwrap().is_none());
    }
}
