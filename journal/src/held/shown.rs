//! What a person is shown of a held call, sealed: generation of the key, a dot, base64 of salt and
//! AES-256-GCM cipher text with its tag. The key is derived for this one text, so the nonce is
//! constant. Before keys had generations there was neither number nor dot.

use crate::contract::InvocationId;
use crate::log::random;
use crate::result::{Made, Purpose, ResultKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{Aad, Nonce};

/// Seals a text for the invocation.
pub(super) fn seal(key: &ResultKey, id: InvocationId, text: &[u8]) -> Option<String> {
    let salt = random::<16>().ok()?;
    let generation = key.newest()?;
    let mut sealed = text.to_vec();
    key.derive(Made::Under(generation), Purpose::Shown, &salt, id)?
        .seal_in_place_append_tag(nonce(), Aad::from(id.to_bytes()), &mut sealed)
        .ok()?;
    let encoded = STANDARD_NO_PAD.encode([&salt[..], &sealed].concat());
    Some(format!("{generation}.{encoded}"))
}

/// Opens what [`seal`] made.
pub(super) fn open(key: &ResultKey, id: InvocationId, sealed: &str) -> Option<Vec<u8>> {
    let (made, encoded) = match sealed.split_once('.') {
        None => (Made::First, sealed),
        Some((generation, encoded)) => (Made::Under(generation.parse().ok()?), encoded),
    };
    let bytes = STANDARD_NO_PAD.decode(encoded).ok()?;
    let (salt, cipher) = bytes.split_first_chunk::<16>()?;
    let mut cipher = cipher.to_vec();
    let key = key.derive(made, Purpose::Shown, salt, id)?;
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
    /// I-2: what each version sealed is opened, by the key of its generation alone.
    #[test]
    fn i_2_what_older_versions_sealed_is_opened() {
        let keys = ResultKey::new([7; 32]);
        let id = InvocationId::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let first = "CQkJCQkJCQkJCQkJCQkJCeK1uLI3Dg1/Wg1gPtPmYPGFHZ549IicsnEua7Dv1NVM";
        let third = "2.CQkJCQkJCQkJCQkJCQkJCfoh4r1jbG4/wGXsxJ1VTczU0Jy0spPLntOs4wVHsOq6";
        assert_eq!(open(&keys, id, first).as_deref(), Some(&b"POST /v1/charges"[..]));
        assert_eq!(open(&keys, id, third), None);
        let keys = ResultKey::new([6; 32]).followed_by([8; 32]).followed_by([7; 32]);
        assert_eq!(open(&keys, id, first), None);
        assert_eq!(open(&keys, id, third).as_deref(), Some(&b"POST /v1/charges"[..]));
        for odd in
            ["", ".", "2.", "x.AAAA", "-1.AAAA", &first[1..], &format!("65536{}", &third[1..])]
        {
            assert_eq!(open(&keys, id, odd), None, "{odd}");
        }
    }
}
