//! Signed checkpoints: a statement of where the log ended, for keeping outside of the machine.
//!
//! The form is the C2SP `tlog-checkpoint` inside a C2SP `signed-note`, signed with Ed25519. The log
//! is a chain and no tree: the size is a sequence, the root is the chain value at it. A checkpoint
//! proves nothing about events that were never appended.

use crate::contract::{Digest, Sequence};
use crate::whole_file;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;
use zeroize::Zeroizing;

/// The name of the file with the signing key, in the journal's directory.
const KEY_FILE: &str = "checkpoint.key";
/// The name of the file with the verifying key.
const PUBLIC_FILE: &str = "checkpoint.pub";
/// The signed-note type of a plain Ed25519 signature.
const ED25519_TYPE: u8 = 1;
const NAME_PREFIX: &str = "affiant-journal/";

/// Why a checkpoint could not be made or does not verify.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: the key could not be read or made.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Local: the key file holds no key.
    #[error("the checkpoint key can't be used")]
    Key,
    /// Caller: the text is no checkpoint in the form of this journal.
    #[error("this is no checkpoint: {0}")]
    Form(&'static str),
    /// Caller: no signature of the key verifies.
    #[error("the checkpoint is not signed by {0}")]
    Signature(String),
    /// Local: the log could not be read.
    #[error(transparent)]
    Log(#[from] Box<crate::verify::Error>),
}

/// Where the log ended at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log: the name of its key.
    pub origin: String,
    /// The last sequence covered.
    pub sequence: Sequence,
    /// The chain value at that sequence.
    pub chain: Digest,
}

/// The key that checkpoints verify with; its text form is the `vkey` of signed-note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    name: String,
    public: [u8; 32],
}

impl VerifyingKey {
    /// The key of a journal, as its directory says.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Key`].
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(directory.join(PUBLIC_FILE))
            .map_err(|source| Error::Io { step: "read the checkpoint key", source })?;
        text.trim().parse()
    }

    fn hash(&self) -> [u8; 4] {
        let mut hash = Sha256::new();
        hash.update(self.name.as_bytes());
        hash.update([b'\n', ED25519_TYPE]);
        hash.update(self.public);
        let digest: [u8; 32] = hash.finalize().into();
        digest.first_chunk::<4>().copied().unwrap_or_default()
    }

    /// Reads a signed note and checks its signature.
    ///
    /// # Errors
    /// [`Error::Form`], [`Error::Signature`].
    pub fn open(&self, note: &str) -> Result<Checkpoint, Error> {
        let (text, signatures) =
            note.split_once("\n\n").ok_or(Error::Form("there is no signature"))?;
        let text = format!("{text}\n");
        let signed = signatures.lines().any(|line| self.signed(text.as_bytes(), line));
        if !signed {
            return Err(Error::Signature(self.name.clone()));
        }
        let checkpoint = Checkpoint::parse(&text)?;
        if checkpoint.origin == self.name {
            Ok(checkpoint)
        } else {
            Err(Error::Form("it belongs to another log"))
        }
    }

    fn signed(&self, text: &[u8], line: &str) -> bool {
        let parts = line.strip_prefix("\u{2014} ").and_then(|rest| rest.split_once(' '));
        let Some((name, encoded)) = parts else { return false };
        let Ok(bytes) = BASE64.decode(encoded) else { return false };
        let Some((hash, signature)) = bytes.split_first_chunk::<4>() else { return false };
        name == self.name
            && *hash == self.hash()
            && UnparsedPublicKey::new(&ED25519, self.public).verify(text, signature).is_ok()
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+", self.name)?;
        self.hash().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        let mut key = vec![ED25519_TYPE];
        key.extend_from_slice(&self.public);
        write!(f, "+{}", BASE64.encode(key))
    }
}

impl FromStr for VerifyingKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, rest) = text.split_once('+').ok_or(Error::Key)?;
        let (hash, key) = rest.split_once('+').ok_or(Error::Key)?;
        let bytes = BASE64.decode(key).map_err(|_| Error::Key)?;
        let (kind, public) = bytes.split_first().ok_or(Error::Key)?;
        let public = <[u8; 32]>::try_from(public).map_err(|_| Error::Key)?;
        let key = Self { name: name.to_owned(), public };
        let said: String = key.hash().iter().map(|byte| format!("{byte:02x}")).collect();
        if *kind == ED25519_TYPE && said == hash { Ok(key) } else { Err(Error::Key) }
    }
}

impl Checkpoint {
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.sequence, BASE64.encode(self.chain.0))
    }

    /// What a note says, whoever signed it.
    pub(crate) fn unverified(note: &str) -> Result<Self, Error> {
        let (text, _) = note.split_once("\n\n").ok_or(Error::Form("there is no signature"))?;
        Self::parse(text)
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines();
        let mut next = |what| lines.next().filter(|line| !line.is_empty()).ok_or(Error::Form(what));
        let origin = next("there is no origin")?.to_owned();
        let size = next("there is no size")?;
        let root = next("there is no root")?;
        let sequence: u64 = size.parse().map_err(|_| Error::Form("the size is no number"))?;
        if sequence.to_string() != size {
            return Err(Error::Form("the size is not in its shortest form"));
        }
        let root = BASE64.decode(root).map_err(|_| Error::Form("the root is no base64"))?;
        let root = <[u8; 32]>::try_from(root).map_err(|_| Error::Form("the root has 32 bytes"))?;
        Ok(Self { origin, sequence: Sequence(sequence), chain: Digest(root) })
    }
}

/// Signs checkpoints of one journal.
pub(crate) struct Signer {
    pair: Ed25519KeyPair,
    verifying: VerifyingKey,
}

impl Signer {
    /// Reads the key of a journal, or makes it.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let io = |step| move |source| Error::Io { step, source };
        let path = directory.join(KEY_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new())
                    .map_err(|_| Error::Key)?;
                whole_file::write(&path, 0o600, made.as_ref())
                    .map_err(io("write the checkpoint key"))?;
                Zeroizing::new(made.as_ref().to_vec())
            }
            Err(source) => return Err(Error::Io { step: "read the checkpoint key", source }),
        };
        let pair = Ed25519KeyPair::from_pkcs8(&bytes).map_err(|_| Error::Key)?;
        let public = <[u8; 32]>::try_from(pair.public_key().as_ref()).map_err(|_| Error::Key)?;
        let digest: [u8; 32] = Sha256::digest(public).into();
        let name = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        let verifying = VerifyingKey { name: format!("{NAME_PREFIX}{name}"), public };
        let path = directory.join(PUBLIC_FILE);
        if !path.exists() {
            let line = format!("{verifying}\n");
            whole_file::write(&path, 0o644, line.as_bytes())
                .map_err(io("write the verifying key"))?;
        }
        Ok(Self { pair, verifying })
    }

    /// A signed note about the end of the log.
    pub(crate) fn sign(&self, sequence: u64, chain: [u8; 32]) -> String {
        let origin = self.verifying.name.clone();
        let checkpoint = Checkpoint { origin, sequence: Sequence(sequence), chain: Digest(chain) };
        let text = checkpoint.text();
        let mut signed = self.verifying.hash().to_vec();
        signed.extend_from_slice(self.pair.sign(text.as_bytes()).as_ref());
        format!("{text}\n\u{2014} {} {}\n", self.verifying.name, BASE64.encode(signed))
    }

    /// The key that its checkpoints verify with.
    pub(crate) const fn verifying(&self) -> &VerifyingKey {
        &self.verifying
    }
}

/// Makes a checkpoint of where the log ends now. Works beside a running server: what it covers is
/// synced first.
///
/// # Errors
/// [`Error`].
pub fn checkpoint(directory: &Path) -> Result<String, Error> {
    let signer = Signer::open(directory)?;
    let (sequence, chain) = crate::export::end(directory)?;
    Ok(signer.sign(sequence.0, chain.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint verifies, and any change of it does not.
    #[test]
    fn a_changed_checkpoint_does_not_verify() {
        let home = tempfile::tempdir().unwrap();
        let signer = Signer::open(home.path()).unwrap();
        let note = signer.sign(42, [7; 32]);
        let key = VerifyingKey::read(home.path()).unwrap();
        let opened = key.open(&note).unwrap();
        assert_eq!((opened.sequence, opened.chain), (Sequence(42), Digest([7; 32])));
        assert!(opened.origin.starts_with("affiant-journal/"), "{}", opened.origin);
        assert_eq!(key.to_string().parse::<VerifyingKey>().unwrap(), key);
        for (n, byte) in note.bytes().enumerate() {
            let mut changed = note.clone().into_bytes();
            changed[n] = if byte == b'A' { b'B' } else { b'A' };
            let Ok(changed) = String::from_utf8(changed) else { continue };
            assert!(key.open(&changed).is_err(), "byte {n}");
        }
        assert!(key.open("").is_err());
        assert!(Signer::open(home.path()).unwrap().sign(42, [7; 32]) == note, "the key is kept");
    }
}
