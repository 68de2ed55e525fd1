//! The vault: holds the master key while unlocked, seals and opens secrets, derives keys.
//!
//! ```text
//! key file ─────────────────────────► master key ─┬─ HKDF "wrap"  ─► wraps a data key per secret version
//! passphrase ─ argon2id ─► unwraps ──►            ├─ HKDF "check" ─► recognises the right master key
//!                                                 └─ HKDF purpose ─► keys of other parts (results)
//! ```

use crate::Secret;
use crate::seal::{self, Sealed};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Whether secrets can be opened now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The master key is not in memory.
    Locked,
    /// It is.
    Unlocked,
}

/// Where the master key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A key file of mode 0600 in the home: unlocked as soon as the home is opened.
    KeyFile,
    /// A passphrase (argon2id): locked until someone gives it.
    Passphrase,
}

/// Why the vault refused. Holds no secret bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The master key is not in memory.
    #[error("the vault is locked; `affiant vault unlock` unlocks it")]
    Locked,
    /// The vault needs a passphrase and none was given.
    #[error("the vault is locked by a passphrase; give it to unlock the vault")]
    PassphraseNeeded,
    /// The passphrase is not the right one.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// The passphrase has no bytes.
    #[error("the passphrase is empty")]
    EmptyPassphrase,
    /// Others than the owner may read the key file.
    #[error(
        "{path} can be read by others (mode {mode:04o}); fix it with `chmod 600 {path}`, and rotate the secrets if others had access"
    )]
    KeyFileMode {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key file can't be read or written.
    #[error("cannot use the key file {path}")]
    KeyFile {
        /// The key file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The key file does not hold the key of this vault.
    #[error("{path} does not hold the key of this vault")]
    WrongKeyFile {
        /// The key file.
        path: PathBuf,
    },
    /// The vault's parameters can't be read.
    #[error("the parameters of the vault are damaged")]
    Damaged,
    /// The system gives no randomness, or a primitive failed.
    #[error("cryptography failed: {0}")]
    Crypto(&'static str),
}

/// A key of 256 bits.
pub(crate) type Key = Zeroizing<[u8; 32]>;

/// What the store keeps of the vault. Nothing in it opens anything without key file or passphrase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    mode: Mode,
    /// Tells the right master key from others.
    check: String,
    /// The passphrase's parameters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    passphrase: Option<Passphrase>,
}

/// How the master key follows from a passphrase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Passphrase {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
    /// The master key under the passphrase's key.
    wrapped: String,
}

const KEY_FILE: &str = "vault.key";
const KEY_FILE_HEAD: &str = "affiant-vault-key-1 ";
const CHECKED: &[u8] = b"affiant vault check 1";
const PASSPHRASE_AAD: &[u8] = b"affiant vault passphrase 1";

/// The vault. Unlocking is per process; a key file unlocks it on opening.
pub struct Vault {
    header: Header,
    key_file: PathBuf,
    master: RwLock<Option<Key>>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault")
            .field("mode", &self.header.mode)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Vault {
    /// Makes the vault of a home that has none: a key file, or a key wrapped by the passphrase.
    pub(crate) fn create(home: &Path, passphrase: Option<&Secret>) -> Result<Header, Error> {
        let key_file = home.join(KEY_FILE);
        let Some(passphrase) = passphrase else {
            let master = match read_key_file(&key_file) {
                Ok(master) => master,
                Err(Error::KeyFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    let master = seal::random_key().map_err(Error::Crypto)?;
                    write_key_file(home, &key_file, &master)
                        .map_err(|source| Error::KeyFile { path: key_file.clone(), source })?;
                    master
                }
                Err(error) => return Err(error),
            };
            return Ok(Header { mode: Mode::KeyFile, check: check_of(&master)?, passphrase: None });
        };
        if passphrase.is_empty() {
            return Err(Error::EmptyPassphrase);
        }
        let master = seal::random_key().map_err(Error::Crypto)?;
        let salt = seal::random_key().map_err(Error::Crypto)?;
        let mut made = Passphrase {
            memory_kib: 64 * 1024,
            passes: 3,
            lanes: 1,
            salt: seal::encode(&*salt),
            wrapped: String::new(),
        };
        let key = made.key(passphrase)?;
        made.wrapped = seal::seal(&key, PASSPHRASE_AAD, &*master)
            .map(|sealed| seal::encode(&sealed))
            .map_err(Error::Crypto)?;
        let check = check_of(&master)?;
        Ok(Header { mode: Mode::Passphrase, check, passphrase: Some(made) })
    }

    /// Opens the vault of a home; a key file unlocks it.
    pub(crate) fn open(home: &Path, header: Header) -> Result<Self, Error> {
        let vault = Self { header, key_file: home.join(KEY_FILE), master: RwLock::new(None) };
        match vault.header.mode {
            Mode::KeyFile => vault.unlock(None)?,
            Mode::Passphrase => {}
        }
        Ok(vault)
    }

    /// Whether secrets can be opened now.
    #[must_use]
    pub fn status(&self) -> Status {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        if master.is_some() { Status::Unlocked } else { Status::Locked }
    }

    /// Where the master key comes from.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.header.mode
    }

    /// Brings the master key into memory; a vault with a key file takes no passphrase.
    ///
    /// # Errors
    /// [`Error::WrongPassphrase`], [`Error::PassphraseNeeded`], or a key file that can't be used.
    pub fn unlock(&self, passphrase: Option<&Secret>) -> Result<(), Error> {
        let master = match (self.header.mode, passphrase) {
            (Mode::KeyFile, _) => read_key_file(&self.key_file)?,
            (Mode::Passphrase, None) => return Err(Error::PassphraseNeeded),
            (Mode::Passphrase, Some(given)) => {
                let kept = self.header.passphrase.as_ref().ok_or(Error::Damaged)?;
                let wrapped = seal::decode(&kept.wrapped).ok_or(Error::Damaged)?;
                let key = kept.key(given)?;
                let opened = seal::open(&key, PASSPHRASE_AAD, &wrapped);
                let opened = opened.ok_or(Error::WrongPassphrase)?;
                let bytes = opened.expose().try_into().map_err(|_| Error::Damaged)?;
                Zeroizing::new(bytes)
            }
        };
        let check = check_of(&master)?;
        if !bool::from(check.as_bytes().ct_eq(self.header.check.as_bytes())) {
            return Err(match self.header.mode {
                Mode::KeyFile => Error::WrongKeyFile { path: self.key_file.clone() },
                Mode::Passphrase => Error::WrongPassphrase,
            });
        }
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = Some(master);
        Ok(())
    }

    /// Drops the master key from memory.
    pub fn lock(&self) {
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Derives a key for one purpose (HKDF-SHA256); the same purpose always gives the same key.
    ///
    /// # Errors
    /// [`Error::Locked`].
    pub fn derive(&self, purpose: &str) -> Result<Zeroizing<[u8; 32]>, Error> {
        self.derive_labelled(b"purpose ", purpose)
    }

    fn derive_labelled(&self, label: &[u8], purpose: &str) -> Result<Key, Error> {
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner);
        let master = master.as_ref().ok_or(Error::Locked)?;
        seal::derive(master, &[label, purpose.as_bytes()]).map_err(Error::Crypto)
    }

    /// Seals a secret: a fresh data key under the master key, the secret under the data key, both
    /// bound to name and version.
    pub(crate) fn seal(&self, name: &str, version: u64, value: &Secret) -> Result<Sealed, Error> {
        let wrapping = self.derive_labelled(b"wrap", "")?;
        seal::envelope(&wrapping, name, version, value).map_err(Error::Crypto)
    }

    /// Opens a sealed secret; none if it does not belong to this key, name and version.
    pub(crate) fn open_sealed(
        &self,
        name: &str,
        version: u64,
        sealed: &Sealed,
    ) -> Result<Option<Secret>, Error> {
        let wrapping = self.derive_labelled(b"wrap", "")?;
        Ok(seal::open_envelope(&wrapping, name, version, sealed))
    }
}

impl Passphrase {
    /// The key that the passphrase gives. Bounds what a damaged header can make it cost.
    fn key(&self, passphrase: &Secret) -> Result<Key, Error> {
        if self.memory_kib > 4 << 20 || self.passes > 64 || self.lanes > 64 {
            return Err(Error::Damaged);
        }
        let salt = seal::decode(&self.salt).ok_or(Error::Damaged)?;
        let params = argon2::Params::new(self.memory_kib, self.passes, self.lanes, Some(32))
            .map_err(|_| Error::Damaged)?;
        let argon =
            argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let mut key = Zeroizing::new([0; 32]);
        argon
            .hash_password_into(passphrase.expose(), &salt, &mut *key)
            .map_err(|_| Error::Crypto("argon2id"))?;
        Ok(key)
    }
}

fn check_of(master: &Key) -> Result<String, Error> {
    let key = seal::derive(master, &[b"check"]).map_err(Error::Crypto)?;
    Ok(seal::encode(seal::mac(&key, CHECKED).as_ref()))
}

fn read_key_file(path: &Path) -> Result<Key, Error> {
    let failed = |source| Error::KeyFile { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::KeyFileMode { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(String::with_capacity(256));
    file.take(256).read_to_string(&mut text).map_err(failed)?;
    let wrong = || Error::WrongKeyFile { path: path.to_owned() };
    let encoded = text.trim_end().strip_prefix(KEY_FILE_HEAD).ok_or_else(wrong)?;
    let bytes = Zeroizing::new(seal::decode(encoded).ok_or_else(wrong)?);
    Ok(Zeroizing::new(bytes.as_slice().try_into().map_err(|_| wrong())?))
}

/// Writes the key file so that it is there whole, or not at all, and durable before it is used.
fn write_key_file(home: &Path, path: &Path, master: &Key) -> io::Result<()> {
    let fresh = path.with_extension("key.new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    let text = Zeroizing::new(format!("{KEY_FILE_HEAD}{}\n", seal::encode(&**master)));
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(home)?.sync_all()
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
