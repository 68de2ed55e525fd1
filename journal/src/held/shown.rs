//! What a person is shown of a held call, sealed: base64 of salt and AES-256-GCM cipher text with its
//! tag. The key is derived for this one text, so the nonce is constant.

use crate::contract::InvocationId;
use crate::log::random;
use crate::result::ResultKey;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, Nonce};

const INFO: &[u8] = b"affiant approval v1";

/// Seals a text for the invocation.
pub(super) fn seal(key: &ResultKey, id: InvocationId, text: &[u8]) -> Option<String> {
    let salt = random::<16>().ok()?;
    let mut sealed = text.to_vec();
    key.derive_for(INFO, &salt, id)?
        .seal_in_place_append_tag(nonce(), Aad::from(id.to_bytes()), &mut sealed)
        .ok()?;
    Some(STANDARD_NO_PAD.encode([&salt[..], &sealed].concat()))
}

/// Opens what [`seal`] made.
pub(super) fn open(key: &ResultKey, id: InvocationId, sealed: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD_NO_PAD.decode(sealed).ok()?;
    let (salt, cipher) = bytes.split_first_chunk::<16>()?;
    let mut cipher = cipher.to_vec();
    let key = key.derive_for(INFO, salt, id)?;
    let text = key.open_in_place(nonce(), Aad::from(id.to_bytes()), &mut cipher).ok()?;
    Some(text.to_vec())
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-2: without the key, and for another invocation, nothing can be read.
    #[test]
    fn i_2_what_is_shown_is_sealed_to_its_invocation() {
        let (key, other) = (ResultKey::new([7; 32]), ResultKey::new([8; 32]));
        let (id, next) = (InvocationId::from_parts(1, 1), InvocationId::from_parts(1, 2));
        let sealed = seal(&key, id, b"POST /v1/charges").unwrap();
        assert_eq!(open(&key, id, &sealed).as_deref(), Some(&b"POST /v1/charges"[..]));
        assert_eq!(open(&other, id, &sealed), None);
        assert_eq!(open(&key, next, &sealed), None);
        assert_eq!(open(&key, id, &sealed[1..]), None);
        assert_ne!(seal(&key, id, b"POST /v1/charges").unwrap(), sealed);
    }
}
