//! Packets and their fields (RFC 4251 section 5, RFC 4253 section 6, RFC 5647).

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::SecureRandom as _;
use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest packet that is taken.
const LONGEST: usize = 256 * 1024;
const TAG: usize = 16;

/// Numbers of messages (RFC 4250 section 4.1.2).
pub(super) mod message {
    pub(in crate::ssh) const DISCONNECT: u8 = 1;
    pub(in crate::ssh) const SERVICE_REQUEST: u8 = 5;
    pub(in crate::ssh) const SERVICE_ACCEPT: u8 = 6;
    pub(in crate::ssh) const KEXINIT: u8 = 20;
    pub(in crate::ssh) const NEWKEYS: u8 = 21;
    pub(in crate::ssh) const KEX_INIT: u8 = 30;
    pub(in crate::ssh) const KEX_REPLY: u8 = 31;
    pub(in crate::ssh) const LOGIN: u8 = 50;
    pub(in crate::ssh) const LOGIN_FAILURE: u8 = 51;
    pub(in crate::ssh) const LOGIN_SUCCESS: u8 = 52;
    pub(in crate::ssh) const LOGIN_KEY_OK: u8 = 60;
    pub(in crate::ssh) const GLOBAL: u8 = 80;
    pub(in crate::ssh) const GLOBAL_SUCCESS: u8 = 81;
    pub(in crate::ssh) const GLOBAL_FAILURE: u8 = 82;
    pub(in crate::ssh) const OPEN: u8 = 90;
    pub(in crate::ssh) const OPENED: u8 = 91;
    pub(in crate::ssh) const OPEN_FAILURE: u8 = 92;
    pub(in crate::ssh) const ADJUST: u8 = 93;
    pub(in crate::ssh) const DATA: u8 = 94;
    pub(in crate::ssh) const EXTENDED: u8 = 95;
    pub(in crate::ssh) const EOF: u8 = 96;
    pub(in crate::ssh) const CLOSE: u8 = 97;
    pub(in crate::ssh) const REQUEST: u8 = 98;
    pub(in crate::ssh) const SUCCESS: u8 = 99;
    pub(in crate::ssh) const FAILURE: u8 = 100;
}

pub(super) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A payload under construction.
pub(super) struct Text(pub(super) Vec<u8>);

impl Text {
    pub(super) fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub(super) fn string(mut self, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.0.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend_from_slice(value);
        self
    }

    /// A positive number of any length.
    pub(super) fn mpint(self, value: &[u8]) -> Self {
        let start = value.iter().position(|byte| *byte != 0).unwrap_or(value.len());
        let digits = value.get(start..).unwrap_or_default();
        let sign = digits.first().is_some_and(|first| first & 0x80 != 0);
        let sign: &[u8] = if sign { &[0] } else { &[] };
        self.string([sign, digits].concat())
    }
}

/// A payload that is read.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u32(&mut self) -> io::Result<u32> {
        let (value, rest) = self.0.split_first_chunk().ok_or_else(|| malformed("a number"))?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*value))
    }

    pub(super) fn bool(&mut self) -> io::Result<bool> {
        let (value, rest) = self.0.split_first().ok_or_else(|| malformed("a truth"))?;
        self.0 = rest;
        Ok(*value != 0)
    }

    pub(super) fn string(&mut self) -> io::Result<&'a [u8]> {
        let length = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        let (value, rest) = self.0.split_at_checked(length).ok_or_else(|| malformed("a string"))?;
        self.0 = rest;
        Ok(value)
    }
}

/// One direction's cipher.
pub(super) struct Cipher {
    key: LessSafeKey,
    fixed: [u8; 4],
    counter: u64,
}

impl Cipher {
    pub(super) fn new(key: &[u8], iv: &[u8]) -> io::Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| malformed("a key"))?;
        let (fixed, counter) = iv.split_first_chunk().ok_or_else(|| malformed("an IV"))?;
        let counter = counter.first_chunk().ok_or_else(|| malformed("an IV"))?;
        let counter = u64::from_be_bytes(*counter);
        Ok(Self { key: LessSafeKey::new(key), fixed: *fixed, counter })
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        let parts = [&self.fixed[..], &self.counter.to_be_bytes()].concat();
        nonce.copy_from_slice(&parts);
        self.counter = self.counter.wrapping_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// A connection as packets.
pub(super) struct Packets {
    pub(super) stream: TcpStream,
    pub(super) sealing: Option<Cipher>,
    pub(super) opening: Option<Cipher>,
}

impl Packets {
    /// Reads one payload.
    pub(super) async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut start = [0; 4];
        self.stream.read_exact(&mut start).await?;
        let length = usize::try_from(u32::from_be_bytes(start)).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(malformed("the packet is too long"));
        }
        let tag = if self.opening.is_some() { TAG } else { 0 };
        let mut packet = vec![0; length + tag];
        self.stream.read_exact(&mut packet).await?;
        if let Some(cipher) = &mut self.opening {
            let nonce = cipher.nonce();
            let opened = cipher.key.open_in_place(nonce, Aad::from(start), &mut packet);
            opened.map_err(|_| malformed("the packet is forged"))?;
            packet.truncate(length);
        }
        let padding = packet.first().copied().unwrap_or_default();
        let end = length.saturating_sub(usize::from(padding));
        packet.get(1..end).map(<[u8]>::to_vec).ok_or_else(|| malformed("the padding is too long"))
    }

    /// Sends one payload.
    pub(super) async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        // What is encrypted with the length in the clear is a multiple of the block size without it.
        let (block, clear) = if self.sealing.is_some() { (16, 0) } else { (8, 4) };
        let mut padding = block - (clear + 1 + payload.len()) % block;
        if padding < 4 {
            padding += block;
        }
        let mut packet = vec![u8::try_from(padding).unwrap_or_default()];
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + padding, 0);
        let start = u32::try_from(packet.len()).unwrap_or(u32::MAX).to_be_bytes();
        if let Some(cipher) = &mut self.sealing {
            let nonce = cipher.nonce();
            let sealed = cipher.key.seal_in_place_append_tag(nonce, Aad::from(start), &mut packet);
            sealed.map_err(|_| malformed("the packet can't be sealed"))?;
        }
        self.stream.write_all(&[&start[..], &packet].concat()).await
    }
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| io::Error::other("no random numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4251 section 5: its own examples.
    #[test]
    fn numbers_of_any_length_are_written_as_the_rfc_shows() {
        let of = |value: &[u8]| Text(Vec::new()).mpint(value).0;
        assert_eq!(of(&[0]), [0, 0, 0, 0]);
        assert_eq!(of(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        let long = [0x09, 0xa3, 0x78, 0xf9, 0xb2, 0xe3, 0x32, 0xa7];
        assert_eq!(of(&long), [&[0, 0, 0, 8][..], &long].concat());
    }
}
