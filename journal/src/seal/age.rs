//! The age file format, version 1, for one X25519 recipient: what the `age` tool reads and writes.
//!
//! ```text
//! age-encryption.org/v1
//! -> X25519 <ephemeral share>          wrap key = HKDF(shared secret; share, recipient)
//! <file key, ChaCha20-Poly1305>
//! --- <HMAC of the header>             by HKDF(file key; "header")
//! nonce (16), chunks of 64 KiB + tag   by HKDF(file key; nonce, "payload"); counter and last flag as nonce
//! ```
//!
//! Sealing needs the public key alone, and the file key is forgotten with the file.

use super::bech32;
use crate::log::random;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use curve25519_dalek::MontgomeryPoint;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use std::fmt;
use std::str::FromStr;
use zeroize::{Zeroize as _, Zeroizing};

const VERSION_LINE: &str = "age-encryption.org/v1";
const X25519_INFO: &[u8] = b"age-encryption.org/v1/X25519";
const CHUNK: usize = 64 << 10;
const TAG: usize = 16;

/// Why a sealed file can't be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Caller: the key is in no form that is known.
    #[error("this is no age X25519 key")]
    Key,
    /// Caller: it is sealed to another key.
    #[error("the file is sealed to another key")]
    Recipient,
    /// Caller: it is no sealed file.
    #[error("this is no sealed file")]
    Form,
    /// Caller: it was changed or cut off.
    #[error("the sealed file was changed or cut off")]
    Damaged,
    /// Local: the system gave no randomness, or the cipher failed.
    #[error("could not encrypt")]
    Cipher,
}

/// Who can open: `age1...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bech32::encode("age", &self.0))
    }
}

impl FromStr for Recipient {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = bech32::decode("age", text).ok_or(Error::Key)?;
        bytes.try_into().map(Self).map_err(|_| Error::Key)
    }
}

/// The private key, `AGE-SECRET-KEY-1...`. Never on the machine that writes. No Debug.
pub struct Identity(Zeroizing<[u8; 32]>);

impl Identity {
    /// Makes a new one.
    ///
    /// # Errors
    /// [`Error::Cipher`] without randomness.
    pub fn generate() -> Result<Self, Error> {
        random().map(|bytes| Self(Zeroizing::new(bytes))).map_err(|_| Error::Cipher)
    }

    /// Its public key.
    #[must_use]
    pub fn recipient(&self) -> Recipient {
        Recipient(MontgomeryPoint::mul_base_clamped(*self.0).to_bytes())
    }

    /// Its text, to be kept elsewhere.
    #[must_use]
    pub fn secret_text(&self) -> Zeroizing<String> {
        let mut text = bech32::encode("age-secret-key-", &*self.0);
        text.make_ascii_uppercase();
        Zeroizing::new(text)
    }
}

impl FromStr for Identity {
    type Err = Error;

    /// Reads the first key of an identity file: comments and empty lines are skipped.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines().map(str::trim);
        let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        let bytes = bech32::decode("age-secret-key-", line.ok_or(Error::Key)?).ok_or(Error::Key)?;
        let mut key = Zeroizing::new([0; 32]);
        let bytes = Zeroizing::new(bytes);
        let whole = <&[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| Error::Key)?;
        key.copy_from_slice(whole);
        Ok(Self(key))
    }
}

fn derive(secret: &[u8], salt: &[u8], info: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let mut out = Zeroizing::new([0; 32]);
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    extracted.expand(&[info], hkdf::HKDF_SHA256).ok()?.fill(&mut *out).ok()?;
    Some(out)
}

fn cipher(key: &[u8; 32]) -> Option<LessSafeKey> {
    UnboundKey::new(&CHACHA20_POLY1305, key).ok().map(LessSafeKey::new)
}

fn wrap_key(shared: &[u8; 32], share: &[u8; 32], to: &Recipient) -> Option<LessSafeKey> {
    // A share of low order gives a secret that everybody knows.
    if shared.iter().all(|byte| *byte == 0) {
        return None;
    }
    let salt: Vec<u8> = share.iter().chain(&to.0).copied().collect();
    cipher(&*derive(shared, &salt, X25519_INFO)?)
}

fn header_key(file_key: &[u8]) -> Option<hmac::Key> {
    Some(hmac::Key::new(hmac::HMAC_SHA256, &*derive(file_key, b"", b"header")?))
}

fn chunk_nonce(counter: u64, last: bool) -> Nonce {
    let mut nonce = [0; 12];
    let number = counter.to_be_bytes();
    for (to, from) in nonce.iter_mut().skip(3).zip(number) {
        *to = from;
    }
    nonce[11] = u8::from(last);
    Nonce::assume_unique_for_key(nonce)
}

/// Encrypts to a recipient.
pub(crate) fn seal(to: &Recipient, plain: &[u8]) -> Result<Vec<u8>, Error> {
    try_seal(to, plain).ok_or(Error::Cipher)
}

fn try_seal(to: &Recipient, plain: &[u8]) -> Option<Vec<u8>> {
    let file_key: Zeroizing<[u8; 16]> = Zeroizing::new(random().ok()?);
    let ephemeral: Zeroizing<[u8; 32]> = Zeroizing::new(random().ok()?);
    let share = MontgomeryPoint::mul_base_clamped(*ephemeral).to_bytes();
    let shared = Zeroizing::new(MontgomeryPoint(to.0).mul_clamped(*ephemeral).to_bytes());
    let mut wrapped = file_key.to_vec();
    wrap_key(&shared, &share, to)?
        .seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut wrapped)
        .ok()?;
    let mut out = format!(
        "{VERSION_LINE}\n-> X25519 {}\n{}\n---",
        BASE64.encode(share),
        BASE64.encode(wrapped)
    )
    .into_bytes();
    let mac = hmac::sign(&header_key(&*file_key)?, &out);
    out.extend_from_slice(format!(" {}\n", BASE64.encode(mac)).as_bytes());
    let nonce: [u8; 16] = random().ok()?;
    out.extend_from_slice(&nonce);
    let key = cipher(&*derive(&*file_key, &nonce, b"payload")?)?;
    let mut chunks = plain.chunks(CHUNK).peekable();
    let mut counter = 0;
    loop {
        let mut bytes = chunks.next().unwrap_or_default().to_vec();
        let last = chunks.peek().is_none();
        key.seal_in_place_append_tag(chunk_nonce(counter, last), Aad::empty(), &mut bytes).ok()?;
        out.extend_from_slice(&bytes);
        bytes.zeroize();
        counter += 1;
        if last {
            return Some(out);
        }
    }
}

/// Decrypts a file that was sealed to this identity alone.
///
/// # Errors
/// [`Error`].
pub fn open(identity: &Identity, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let (header, payload) = split_header(sealed).ok_or(Error::Form)?;
    let mut lines = header.split('\n');
    let mut next = || lines.next().ok_or(Error::Form);
    if next()? != VERSION_LINE {
        return Err(Error::Form);
    }
    let share = next()?.strip_prefix("-> X25519 ").ok_or(Error::Form)?;
    let share: [u8; 32] = decode(share)?;
    let wrapped: [u8; 32] = decode(next()?)?;
    let said: [u8; 32] = decode(next()?.strip_prefix("--- ").ok_or(Error::Form)?)?;
    let me = identity.recipient();
    let shared = Zeroizing::new(MontgomeryPoint(share).mul_clamped(*identity.0).to_bytes());
    let key = wrap_key(&shared, &share, &me).ok_or(Error::Damaged)?;
    let mut wrapped = Zeroizing::new(wrapped);
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let file_key = key
        .open_in_place(nonce, Aad::empty(), wrapped.as_mut_slice())
        .map_err(|_| Error::Recipient)?;
    let signed = header.rsplit_once(' ').map(|(before, _)| before).ok_or(Error::Form)?;
    let mac = header_key(file_key).ok_or(Error::Cipher)?;
    hmac::verify(&mac, signed.as_bytes(), &said).map_err(|_| Error::Damaged)?;
    let (nonce, chunks) = payload.split_first_chunk::<16>().ok_or(Error::Damaged)?;
    let key = derive(file_key, nonce, b"payload").ok_or(Error::Cipher)?;
    open_chunks(&cipher(&key).ok_or(Error::Cipher)?, chunks)
}

/// The header without its last line feed, and what follows.
fn split_header(sealed: &[u8]) -> Option<(&str, &[u8])> {
    let marker = b"\n--- ";
    let start = sealed.windows(marker.len()).take(4096).position(|part| part == marker)?;
    let rest = sealed.get(start + 1..)?;
    let end = start + 1 + rest.iter().position(|byte| *byte == b'\n')?;
    let header = std::str::from_utf8(sealed.get(..end)?).ok()?;
    Some((header, sealed.get(end + 1..)?))
}

fn decode<const N: usize>(text: &str) -> Result<[u8; N], Error> {
    let bytes = BASE64.decode(text).map_err(|_| Error::Form)?;
    bytes.try_into().map_err(|_| Error::Form)
}

fn open_chunks(key: &LessSafeKey, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(sealed.len());
    let mut chunks = sealed.chunks(CHUNK + TAG).peekable();
    let mut counter = 0;
    loop {
        let mut bytes = chunks.next().ok_or(Error::Damaged)?.to_vec();
        let last = chunks.peek().is_none();
        let plain = key
            .open_in_place(chunk_nonce(counter, last), Aad::empty(), &mut bytes)
            .map_err(|_| Error::Damaged)?;
        out.extend_from_slice(plain);
        counter += 1;
        if last {
            return Ok(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-6: whoever seals has the public key alone, and only the other one opens.
    #[test]
    fn j_6_only_the_identity_opens_what_is_sealed() {
        let identity = Identity::generate().unwrap();
        let to: Recipient = identity.recipient().to_string().parse().unwrap();
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let plain = vec![7; length];
            let sealed = seal(&to, &plain).unwrap();
            assert_ne!(sealed, seal(&to, &plain).unwrap(), "no two are alike");
            let again: Identity = identity.secret_text().parse().unwrap();
            assert_eq!(open(&again, &sealed).unwrap(), plain);
            let other = Identity::generate().unwrap();
            assert_eq!(open(&other, &sealed), Err(Error::Recipient));
            for cut in [1, 16, sealed.len() / 2] {
                assert!(open(&identity, &sealed[..sealed.len() - cut]).is_err(), "{length} {cut}");
            }
            for n in (0..sealed.len()).step_by(1 + sealed.len() / 300) {
                let mut changed = sealed.clone();
                changed[n] ^= 4;
                assert!(open(&identity, &changed).is_err(), "{length}: byte {n}");
            }
        }
    }

    /// The `age` tool opens what we seal, and we open what it seals.
    #[test]
    fn the_age_tool_agrees() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        if Command::new("age").arg("--version").output().is_err() {
            // Its package is in the list of `./dev test`; elsewhere the rest of the tests runs.
            return;
        }
        let identity = Identity::generate().unwrap();
        let home = tempfile::tempdir().unwrap();
        let key = home.path().join("key");
        std::fs::write(&key, format!("# ours\n{}\n", *identity.secret_text())).unwrap();
        let plain: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let run = |arguments: &[&std::ffi::OsStr], input: &[u8]| {
            let mut child = Command::new("age")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let input = input.to_vec();
            let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap();
            assert!(output.status.success());
            output.stdout
        };
        let sealed = seal(&identity.recipient(), &plain).unwrap();
        assert_eq!(run(&["-d".as_ref(), "-i".as_ref(), key.as_ref()], &sealed), plain);
        let to = identity.recipient().to_string();
        let theirs = run(&["-r".as_ref(), to.as_ref()], &plain);
        assert_eq!(open(&identity, &theirs).unwrap(), plain);
    }
}
