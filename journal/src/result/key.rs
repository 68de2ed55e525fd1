//! The keys that results are encrypted under, a generation for each change of the vault's key
//! (contract R-4). The newest encrypts; each opens what was encrypted under it.
//!
//! ```text
//! key of a generation ─ HKDF-Expand; info: purpose v2, salt, invocation ─► key of one thing
//! key of generation 0 ─ HKDF; salt; info: purpose v1, invocation ────────► the same, read only
//! ```

use crate::contract::InvocationId;
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use ring::hkdf;
use std::sync::Arc;
use zeroize::Zeroizing;

type Key = Zeroizing<[u8; 32]>;

/// The key that results are encrypted under, with those before it. Zeroed when dropped, never
/// printed.
#[derive(Clone)]
pub struct ResultKey(Arc<Generations>);

#[derive(Clone)]
struct Generations {
    /// Generation 0 first.
    earlier: Vec<Key>,
    newest: Key,
}

impl ResultKey {
    /// Takes 32 uniformly random or derived bytes from the vault, as generation 0.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Arc::new(Generations { earlier: Vec::new(), newest: Zeroizing::new(bytes) }))
    }

    /// The same with the next generation, which encrypts from now on.
    #[must_use]
    pub fn followed_by(self, bytes: [u8; 32]) -> Self {
        let mut generations = Arc::unwrap_or_clone(self.0);
        let former = std::mem::replace(&mut generations.newest, Zeroizing::new(bytes));
        generations.earlier.push(former);
        Self(Arc::new(generations))
    }

    /// The generation that encrypts now. None after 65,536.
    pub(crate) fn newest(&self) -> Option<u16> {
        u16::try_from(self.0.earlier.len()).ok()
    }

    /// The key of one thing: no two share one, so numbers can be nonces. None for a generation
    /// that is not here.
    pub(crate) fn derive(
        &self,
        made: Made,
        purpose: Purpose,
        salt: &[u8; 16],
        id: InvocationId,
    ) -> Option<LessSafeKey> {
        let id = id.to_bytes();
        let key = match made {
            Made::First => {
                let key = self.generation(0)?;
                let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&**key);
                UnboundKey::from(extracted.expand(&[purpose.first(), &id], &AES_256_GCM).ok()?)
            }
            Made::Under(generation) => {
                // Derived already, so extraction would add nothing (RFC 5869 section 3.3).
                let key = self.generation(generation)?;
                let key = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &**key);
                UnboundKey::from(key.expand(&[purpose.second(), salt, &id], &AES_256_GCM).ok()?)
            }
        };
        Some(LessSafeKey::new(key))
    }

    fn generation(&self, number: u16) -> Option<&Key> {
        let Generations { earlier, newest } = &*self.0;
        earlier.iter().chain([newest]).nth(usize::from(number))
    }
}

/// How a thing was encrypted; stands beside it in clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Made {
    /// Before there were generations: under generation 0, extracted with the salt.
    First,
    /// Under the key of a generation.
    Under(u16),
}

impl Made {
    /// As a chunk's description has it.
    pub(crate) const fn encode(self) -> [u8; 3] {
        match self {
            Self::First => [0; 3],
            Self::Under(generation) => {
                let [low, high] = generation.to_le_bytes();
                [1, low, high]
            }
        }
    }

    /// None for what a newer version made.
    pub(crate) const fn decode(bytes: [u8; 3]) -> Option<Self> {
        match bytes {
            [0, 0, 0] => Some(Self::First),
            [1, low, high] => Some(Self::Under(u16::from_le_bytes([low, high]))),
            _ => None,
        }
    }
}

/// What a key is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// The chunks of a result or of a stored request.
    Chunks,
    /// What a person is shown.
    Shown,
}

impl Purpose {
    const fn first(self) -> &'static [u8] {
        match self {
            Self::Chunks => b"affiant result v1",
            Self::Shown => b"affiant approval v1",
        }
    }

    const fn second(self) -> &'static [u8] {
        match self {
            Self::Chunks => b"affiant result v2",
            Self::Shown => b"affiant approval v2",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Opened, Sealer, Stream, open_chunk};

    const ID: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.chars().map(|c| c.to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
    }

    fn opened(key: &ResultKey, description: &str, cipher: &str) -> Option<Vec<u8>> {
        let id = InvocationId::from_bytes(ID);
        let Opened { stream, number, bytes } =
            open_chunk(key, id, &bytes(description), &bytes(cipher))?;
        assert_eq!((stream, number), (Stream::Content, 3));
        Some(bytes)
    }

    /// R-4: chunks of both versions are opened, each by the key of its generation alone. (Made by
    /// another implementation after FORMAT.md.)
    #[test]
    fn r_4_chunks_of_each_version_are_opened() {
        let (first, first_cipher) = (
            "01000000030000001b00000009090909090909090909090909090909",
            "55c49cdb90908e6d9f46391842f6c6a47147748e5fd0cff26d1f6685189b987935d39a325487ede1501faf",
        );
        let (third, third_cipher) = (
            "01010200030000001b00000009090909090909090909090909090909",
            "5840a0044425c8e4c8e7e6adf7b67b7d038765f2ebbcdcde321988c59301583fdc51b7d060289a52884a90",
        );
        let text = Some(b"stored by the first version".to_vec());
        let sevens = ResultKey::new([7; 32]);
        assert_eq!(opened(&sevens, first, first_cipher), text);
        assert_eq!(opened(&sevens, third, third_cipher), None);
        let later = sevens.followed_by([8; 32]).followed_by([7; 32]);
        assert_eq!(opened(&later, first, first_cipher), text);
        assert_eq!(opened(&later, third, third_cipher), text);
        let other = ResultKey::new([6; 32]).followed_by([7; 32]).followed_by([8; 32]);
        assert_eq!(opened(&other, first, first_cipher), None);
        assert_eq!(opened(&other, third, third_cipher), None);
        // The generation is authenticated with the rest, and other versions are not guessed at.
        let all = later.followed_by([7; 32]);
        assert_eq!(opened(&all, &third.replacen("010102", "010103", 1), third_cipher), None);
        assert_eq!(opened(&all, &third.replacen("010102", "010202", 1), third_cipher), None);
        assert_eq!(opened(&all, &first.replacen("0100", "0101", 1), first_cipher), None);
    }

    /// R-4: what is stored behind a change of the key is under the new one.
    #[test]
    fn r_4_the_newest_generation_encrypts() {
        let id = InvocationId::from_bytes(ID);
        let old = ResultKey::new([1; 32]);
        let chunk = |key: &ResultKey| {
            let mut sealer = Sealer::new(key, id).unwrap();
            assert!(sealer.push(Stream::Content, b"canary", 0).unwrap().is_empty());
            sealer.finish(0).unwrap().0.unwrap()
        };
        let open = |key: &ResultKey, chunk: &crate::log::Draft| {
            let cipher = &chunk.attachment.as_ref().unwrap().bytes;
            open_chunk(key, id, &chunk.payload, cipher).map(|opened| opened.bytes)
        };
        let before = chunk(&old);
        let both = old.clone().followed_by([2; 32]);
        let after = chunk(&both);
        assert_eq!(open(&both, &before), Some(b"canary".to_vec()));
        assert_eq!(open(&both, &after), Some(b"canary".to_vec()));
        assert_eq!(open(&old, &after), None);
    }
}
