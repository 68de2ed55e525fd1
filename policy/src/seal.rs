//! The cryptography of the vault, in one place: AEAD, HKDF, HMAC, randomness (all by ring).

use crate::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{hkdf, hmac};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

type Key = Zeroizing<[u8; 32]>;

/// One sealed version of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sealed {
    /// The data key under the master key: nonce and ciphertext, base64.
    wrapped: String,
    /// The secret under the data key: nonce and ciphertext, base64.
    sealed: String,
}

/// A fresh key.
pub(crate) fn random_key() -> Result<Key, &'static str> {
    let mut key = Zeroizing::new([0; 32]);
    SystemRandom::new().fill(&mut *key).map_err(|_| "the system gives no randomness")?;
    Ok(key)
}

/// HKDF-SHA256 over a key, for one purpose.
pub(crate) fn derive(key: &Key, purpose: &[&[u8]]) -> Result<Key, &'static str> {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"affiant vault 1");
    let mut out = Zeroizing::new([0; 32]);
    salt.extract(&**key)
        .expand(purpose, hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut *out))
        .map_err(|_| "HKDF")?;
    Ok(out)
}

/// HMAC-SHA256.
pub(crate) fn mac(key: &[u8; 32], bytes: &[u8]) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes)
}

/// Encrypts and authenticates: nonce, ciphertext, tag.
pub(crate) fn seal(key: &Key, aad: &[u8], plain: &[u8]) -> Result<Vec<u8>, &'static str> {
    let aead = UnboundKey::new(&CHACHA20_POLY1305, &**key).map_err(|_| "AEAD key")?;
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| "the system gives no randomness")?;
    let mut buffer = Zeroizing::new(Vec::with_capacity(plain.len() + CHACHA20_POLY1305.tag_len()));
    buffer.extend_from_slice(plain);
    LessSafeKey::new(aead)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), &mut *buffer)
        .map_err(|_| "AEAD")?;
    let mut out = nonce.to_vec();
    out.extend_from_slice(&buffer);
    Ok(out)
}

/// Opens what [`seal`] made; none if key, data or associated data differ.
pub(crate) fn open(key: &Key, aad: &[u8], sealed: &[u8]) -> Option<Secret> {
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
    let aead = UnboundKey::new(&CHACHA20_POLY1305, &**key).ok()?;
    let mut buffer = Zeroizing::new(rest.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let length = {
        let aad = Aad::from(aad);
        LessSafeKey::new(aead).open_in_place(nonce, aad, &mut buffer).ok()?.len()
    };
    buffer.truncate(length);
    Some(Secret::new(std::mem::take(&mut *buffer)))
}

/// What both layers of an envelope are bound to: the layer, the name, the version.
fn bound_to(layer: &str, name: &str, version: u64) -> Vec<u8> {
    // A name holds no NUL, so the parts can't run into each other.
    format!("affiant secret 1\0{layer}\0{name}\0{version}").into_bytes()
}

/// Seals a secret under a fresh data key, and that key under the wrapping key.
pub(crate) fn envelope(
    wrapping: &Key,
    name: &str,
    version: u64,
    value: &Secret,
) -> Result<Sealed, &'static str> {
    let data = random_key()?;
    let wrapped = seal(wrapping, &bound_to("key", name, version), &*data)?;
    let sealed = seal(&data, &bound_to("value", name, version), value.expose())?;
    Ok(Sealed { wrapped: encode(&wrapped), sealed: encode(&sealed) })
}

/// Opens an envelope; none if it was made for another key, name or version, or was changed.
pub(crate) fn open_envelope(
    wrapping: &Key,
    name: &str,
    version: u64,
    envelope: &Sealed,
) -> Option<Secret> {
    let wrapped = decode(&envelope.wrapped)?;
    let data = open(wrapping, &bound_to("key", name, version), &wrapped)?;
    let data = Zeroizing::new(data.expose().try_into().ok()?);
    open(&data, &bound_to("value", name, version), &decode(&envelope.sealed)?)
}

/// Moves an envelope to another wrapping key; the secret itself is not opened. None if the old
/// key, name or version is not the envelope's.
pub(crate) fn rewrap(
    old: &Key,
    new: &Key,
    name: &str,
    version: u64,
    envelope: &Sealed,
) -> Result<Option<Sealed>, &'static str> {
    let aad = bound_to("key", name, version);
    let Some(data) = decode(&envelope.wrapped).and_then(|wrapped| open(old, &aad, &wrapped)) else {
        return Ok(None);
    };
    let wrapped = encode(&seal(new, &aad, data.expose())?);
    Ok(Some(Sealed { wrapped, sealed: envelope.sealed.clone() }))
}

/// Base64 for records.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Base64 from records.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-1: a sealed secret opens under its own key, name and version only.
    #[test]
    fn i_1_envelopes_are_bound_to_name_and_version() {
        let key = random_key().unwrap();
        let value = Secret::from("canary");
        let made = envelope(&key, "pay", 3, &value).unwrap();
        assert_eq!(open_envelope(&key, "pay", 3, &made).unwrap().expose(), b"canary");
        assert!(open_envelope(&key, "pay", 2, &made).is_none());
        assert!(open_envelope(&key, "pax", 3, &made).is_none());
        assert!(open_envelope(&random_key().unwrap(), "pay", 3, &made).is_none());
        let again = envelope(&key, "pay", 3, &value).unwrap();
        assert_ne!(made, again, "every sealing has its own data key");
        let mixed = Sealed { wrapped: again.wrapped, sealed: made.sealed };
        assert!(open_envelope(&key, "pay", 3, &mixed).is_none());
    }

    #[test]
    fn changed_bytes_do_not_open() {
        let key = random_key().unwrap();
        let sealed = seal(&key, b"aad", b"text").unwrap();
        for i in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[i] ^= 1;
            assert!(open(&key, b"aad", &changed).is_none(), "byte {i}");
        }
        assert!(open(&key, b"aae", &sealed).is_none());
        assert!(open(&key, b"aad", &[]).is_none());
    }
}
