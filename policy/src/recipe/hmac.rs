//! Requests signed by a message authentication code over a template.

use super::{Edits, Template, View, encode};
use crate::Secret;
use crate::credential::Error;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;

/// The digest under the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// SHA-1, for services that know nothing else.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

/// How the code is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Lower-case hexadecimal digits.
    Hex,
    /// Base64 with padding.
    Base64,
}

/// What is signed, and which header fields say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hmac {
    /// The digest.
    pub digest: Digest,
    /// How the code is written.
    pub encoding: Encoding,
    /// What is signed.
    pub sign: Template,
    /// The fields, by lower-case name.
    pub headers: BTreeMap<String, Template>,
}

impl Hmac {
    /// Whether the content is signed.
    pub(super) fn looks_at_content(&self) -> bool {
        self.sign.looks_at_content() || self.headers.values().any(Template::looks_at_content)
    }

    /// Signs a request.
    pub(super) fn edits(&self, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
        let algorithm = match self.digest {
            Digest::Sha1 => ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Digest::Sha256 => ring::hmac::HMAC_SHA256,
            Digest::Sha512 => ring::hmac::HMAC_SHA512,
        };
        let key = ring::hmac::Key::new(algorithm, secret.expose());
        let code = ring::hmac::sign(&key, &self.sign.fill(request, "")?);
        let signature = match self.encoding {
            Encoding::Hex => encode::hex(code.as_ref()),
            Encoding::Base64 => STANDARD.encode(code.as_ref()),
        };
        let mut edits = Edits { shown: vec![secret.clone()], ..Edits::default() };
        for (name, template) in &self.headers {
            let value = template.fill(request, &signature)?;
            let value = super::header_value(value.to_vec())?;
            if template.has_signature() {
                edits.shown.push(Secret::from(signature.as_str()));
            }
            edits.set.push((name.clone(), value));
        }
        Ok(edits)
    }
}
