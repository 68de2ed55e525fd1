//! Ids, sequence numbers and digests as newtypes.

use serde::de::{self, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// One action the caller asked for: `act_` and a ULID (26 characters of Crockford's base 32).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InvocationId(ulid::Ulid);

/// A text that is not an invocation id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an invocation id is \"act_\" and a ULID, for example act_01ARZ3NDEKTSV4RRFFQ69G5FAV")]
pub struct ParseIdError;

impl InvocationId {
    /// Makes an id from a wall-clock time in milliseconds and 80 bits of randomness (the low bits
    /// of `random`).
    #[must_use]
    pub const fn from_parts(at_ms: u64, random: u128) -> Self {
        Self(ulid::Ulid::from_parts(at_ms, random))
    }

    /// The 16 bytes that stand in record headers.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_bytes()
    }

    /// Reads the 16 bytes of a record header.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(ulid::Ulid::from_bytes(bytes))
    }

    fn text(self) -> [u8; 30] {
        let mut text = *b"act_00000000000000000000000000";
        if let Some(digits) = text.last_chunk_mut() {
            self.0.array_to_str(digits);
        }
        text
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ascii(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for InvocationId {
    type Err = ParseIdError;
    fn from_str(s: &str) -> Result<Self, ParseIdError> {
        let text = s.strip_prefix("act_").ok_or(ParseIdError)?;
        // A ULID has 128 bits in 130: a first character above 7 would wrap.
        if text.len() != 26 || !text.starts_with(|c: char| ('0'..='7').contains(&c)) {
            return Err(ParseIdError);
        }
        ulid::Ulid::from_string(text).map(Self).map_err(|_| ParseIdError)
    }
}

impl Serialize for InvocationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(ascii(&self.text()).map_err(S::Error::custom)?)
        } else {
            serializer.serialize_bytes(&self.to_bytes())
        }
    }
}

impl Raw for InvocationId {
    const EXPECTED: &'static str = "an invocation id, or its 16 bytes";

    fn from_raw(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_bytes)
    }
}

impl<'de> Deserialize<'de> for InvocationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_raw(deserializer)
    }
}

/// The position of an event in the log: 1, 2, 3 ... without gaps (contract J-4).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A SHA-256 digest, written `sha256:` and 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// The digest of everything that makes two requests the same request (contract V-5, K-11).
pub type Fingerprint = Digest;

impl Digest {
    /// Hashes the bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    fn text(&self) -> [u8; 71] {
        // Every event carries digests: no allocation, and one write instead of one per byte.
        let hex = |digit: u8| if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
        let mut text = [0; 71];
        let (name, digits) = text.split_at_mut(7);
        name.copy_from_slice(b"sha256:");
        for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *pair = [hex(byte >> 4), hex(byte & 15)];
        }
        text
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ascii(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = super::UnknownName;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let unknown = || super::UnknownName { kind: "digest", name: s.to_owned() };
        let hex = s.strip_prefix("sha256:").ok_or_else(unknown)?;
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(unknown());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(pairs) {
            let digit = |c: u8| match c {
                b'0'..=b'9' => Some(c - b'0'),
                b'a'..=b'f' => Some(c - b'a' + 10),
                _ => None,
            };
            let [high, low] = *pair;
            let (high, low) = digit(high).zip(digit(low)).ok_or_else(unknown)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(ascii(&self.text()).map_err(S::Error::custom)?)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl Raw for Digest {
    const EXPECTED: &'static str = "a digest, or its 32 bytes";

    fn from_raw(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_raw(deserializer)
    }
}

fn ascii(text: &[u8]) -> Result<&str, std::str::Utf8Error> {
    std::str::from_utf8(text)
}

/// What is text where people read it and raw bytes elsewhere.
trait Raw: FromStr<Err: fmt::Display> {
    const EXPECTED: &'static str;

    fn from_raw(bytes: &[u8]) -> Option<Self>;
}

fn text_or_raw<'de, T: Raw, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let visitor = RawVisitor(PhantomData);
    if deserializer.is_human_readable() {
        deserializer.deserialize_str(visitor)
    } else {
        deserializer.deserialize_bytes(visitor)
    }
}

/// Takes both from every format: what serde has buffered, for the tag of an enum, claims to be
/// readable by people whatever it was read from.
struct RawVisitor<T>(PhantomData<T>);

impl<T: Raw> Visitor<'_> for RawVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        T::from_raw(bytes).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_and_bad_ones_are_refused() {
        let id = InvocationId::from_parts(1_764_476_760_000, 42);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(InvocationId::from_bytes(id.to_bytes()), id);
        for bad in [
            "",
            "act_",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "act_81ARZ3NDEKTSV4RRFFQ69G5FAV",
            "act_01ARZ3NDEKTSV4RRFFQ69G5FAU!",
            "act_01ARZ3NDEKTSV4RRFFQ69G5FA",
        ] {
            assert_eq!(bad.parse::<InvocationId>(), Err(ParseIdError), "{bad}");
        }
    }

    #[test]
    fn digests_round_trip() {
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!("sha256:00".parse::<Digest>().is_err());
        assert!("sha256:ZZ".parse::<Digest>().is_err());
    }

    /// Something tagged inside: serde buffers it, and what it buffers claims to be text.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    enum Tagged {
        Both { id: InvocationId, digest: Digest },
    }

    const ID_TEXT: &str = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    const DIGEST_TEXT: &str =
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn both() -> Tagged {
        Tagged::Both { id: ID_TEXT.parse().unwrap(), digest: Digest::of(b"abc") }
    }

    /// J-1: the log has them as text, byte for byte.
    #[test]
    fn json_has_text() {
        let json = format!(r#"{{"kind":"both","id":"{ID_TEXT}","digest":"{DIGEST_TEXT}"}}"#);
        assert_eq!(serde_json::to_string(&both()).unwrap(), json);
        assert_eq!(serde_json::from_str::<Tagged>(&json).unwrap(), both());
        let escaped = json.replace('b', "\\u0062");
        assert_eq!(serde_json::from_str::<Tagged>(&escaped).unwrap(), both());
        for bad in ["[1,2]", "null", "1", "\"\"", "\"act_\"", "\"sha256:00\""] {
            assert!(serde_json::from_str::<InvocationId>(bad).is_err(), "{bad}");
            assert!(serde_json::from_str::<Digest>(bad).is_err(), "{bad}");
        }
    }

    /// The index has them as bytes, and takes text as well.
    #[test]
    fn message_pack_has_bytes() {
        let (id, digest) = (ID_TEXT.parse::<InvocationId>().unwrap(), Digest::of(b"abc"));
        let raw = rmp_serde::to_vec(&(id, digest)).unwrap();
        let expected = [&[0x92, 0xc4, 16][..], &id.to_bytes(), &[0xc4, 32], &digest.0].concat();
        assert_eq!(raw, expected);
        assert_eq!(rmp_serde::from_slice::<(InvocationId, Digest)>(&raw).unwrap(), (id, digest));
        let text = rmp_serde::to_vec(&(ID_TEXT, DIGEST_TEXT)).unwrap();
        assert_eq!(rmp_serde::from_slice::<(InvocationId, Digest)>(&text).unwrap(), (id, digest));
        let tagged = rmp_serde::to_vec_named(&both()).unwrap();
        assert_eq!(rmp_serde::from_slice::<Tagged>(&tagged).unwrap(), both());
        for length in [0, 15, 17, 31, 33] {
            let bytes = rmp_serde::to_vec(&Octets(&[7; 33][..length])).unwrap();
            assert!(rmp_serde::from_slice::<InvocationId>(&bytes).is_err(), "{length}");
            assert!(rmp_serde::from_slice::<Digest>(&bytes).is_err(), "{length}");
        }
    }

    /// Bytes as such.
    struct Octets<'a>(&'a [u8]);

    impl Serialize for Octets<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
}
