//! Tokens that are signed for each request (RFC 7515, RFC 7519).

use super::{Edits, View};
use crate::Secret;
use crate::credential::Error;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use std::collections::BTreeMap;
use std::time::Duration;
use zeroize::Zeroizing;

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// A token, and the header field that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jwt {
    /// How it is signed; the secret is the private key, PEM.
    pub algorithm: Algorithm,
    /// `kid`.
    pub key_id: Option<String>,
    /// The claims beside `iat` and `exp`, each a JSON text.
    pub claims: BTreeMap<String, serde_json::Value>,
    /// How long it is valid.
    pub lifetime: Duration,
    /// The header field, lower case.
    pub name: String,
    /// Its value, with `{secret}` for the token.
    pub format: String,
}

/// How far the clock of a service may lag behind ours.
const SKEW_SECONDS: u64 = 60;

impl Algorithm {
    /// The name in the token's header.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl Jwt {
    /// Mints a token for a request.
    pub(super) fn edits(&self, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
        let token = self.mint(secret, request.now_ms)?;
        let (before, after) = self.format.split_once("{secret}").unwrap_or(("", ""));
        let value = [before.as_bytes(), token.expose(), after.as_bytes()].concat();
        let mut edits = Edits::field(&self.name, super::header_value(value)?);
        edits.shown.extend([token, secret.clone()]);
        Ok(edits)
    }

    /// Mints a token.
    pub(crate) fn mint(&self, secret: &Secret, now_ms: u64) -> Result<Secret, Error> {
        let now = now_ms / 1000;
        let mut head = serde_json::json!({ "alg": self.algorithm.name(), "typ": "JWT" });
        if let (Some(head), Some(id)) = (head.as_object_mut(), &self.key_id) {
            head.insert("kid".to_owned(), id.as_str().into());
        }
        let mut claims: serde_json::Map<_, _> =
            self.claims.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        claims.insert("iat".to_owned(), now.saturating_sub(SKEW_SECONDS).into());
        claims.insert("exp".to_owned(), now.saturating_add(self.lifetime.as_secs()).into());
        let claims = serde_json::Value::Object(claims);
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&head), part(&claims));
        let signature = self.sign(secret, signed.as_bytes())?;
        Ok(Secret::from(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))))
    }

    fn sign(&self, secret: &Secret, message: &[u8]) -> Result<Vec<u8>, Error> {
        let unfit = || Error::Unreadable("it is not a private key, PEM, that fits the algorithm");
        let (label, key) = pem(secret).ok_or_else(unfit)?;
        let random = SystemRandom::new();
        match (self.algorithm, label) {
            (Algorithm::Rs256, Label::Pkcs8 | Label::Rsa) => {
                let pair = match label {
                    Label::Pkcs8 => RsaKeyPair::from_pkcs8(&key),
                    Label::Rsa | Label::Ec => RsaKeyPair::from_der(&key),
                };
                let pair = pair.map_err(|_| unfit())?;
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .map_err(|_| unfit())?;
                Ok(signature)
            }
            (Algorithm::Es256, Label::Pkcs8) => {
                let pair =
                    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key, &random);
                let signature = pair.map_err(|_| unfit())?.sign(&random, message);
                Ok(signature.map_err(|_| unfit())?.as_ref().to_vec())
            }
            (Algorithm::EdDsa, Label::Pkcs8) => {
                // Keys of OpenSSL hold no public part to compare with.
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key).map_err(|_| unfit())?;
                Ok(pair.sign(message).as_ref().to_vec())
            }
            (Algorithm::Es256, Label::Ec) => Err(Error::Unreadable(
                "it is a key in SEC 1 form; `openssl pkcs8 -topk8 -nocrypt` makes one that is read",
            )),
            (Algorithm::Rs256, Label::Ec)
            | (Algorithm::Es256, Label::Rsa)
            | (Algorithm::EdDsa, Label::Rsa | Label::Ec) => Err(unfit()),
        }
    }
}

/// The kinds of private keys by the label of their PEM text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Pkcs8,
    Rsa,
    Ec,
}

/// The first private key of a PEM text (RFC 7468).
fn pem(secret: &Secret) -> Option<(Label, Zeroizing<Vec<u8>>)> {
    let text = secret.expose_text()?;
    [("PRIVATE KEY", Label::Pkcs8), ("RSA PRIVATE KEY", Label::Rsa), ("EC PRIVATE KEY", Label::Ec)]
        .into_iter()
        .find_map(|(name, label)| {
            let (_, after) = text.split_once(&format!("-----BEGIN {name}-----"))?;
            let (inner, _) = after.split_once(&format!("-----END {name}-----"))?;
            let mut joined = Zeroizing::new(String::with_capacity(inner.len()));
            joined.extend(inner.split_ascii_whitespace());
            Some((label, Zeroizing::new(STANDARD.decode(joined.as_bytes()).ok()?)))
        })
}
