//! Ids, sequence numbers and digests as newtypes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt;
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
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "act_{}", self.0)
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
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InvocationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
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
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every event carries digests: one write, not one per byte.
        let hex = |digit: u8| char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in self.0 {
            text.push(hex(byte >> 4));
            text.push(hex(byte & 15));
        }
        f.write_str(&text)
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
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
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
}
