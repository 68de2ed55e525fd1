//! The vault: holds the master key while unlocked, seals and opens secrets, derives keys.

use crate::Secret;
use std::path::PathBuf;
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

/// The vault. Unlocking is per process; a key file unlocks it on opening.
#[derive(Debug)]
pub struct Vault {}

impl Vault {
    /// Whether secrets can be opened now.
    #[must_use]
    pub fn status(&self) -> Status {
        todo!()
    }

    /// Where the master key comes from.
    #[must_use]
    pub fn mode(&self) -> Mode {
        todo!()
    }

    /// Brings the master key into memory; a vault with a key file takes no passphrase.
    ///
    /// # Errors
    /// [`Error::WrongPassphrase`], [`Error::PassphraseNeeded`], or a key file that can't be used.
    pub fn unlock(&self, passphrase: Option<&Secret>) -> Result<(), Error> {
        let _ = passphrase;
        todo!()
    }

    /// Drops the master key from memory.
    pub fn lock(&self) {
        todo!()
    }

    /// Derives a key for one purpose (HKDF-SHA256); the same purpose always gives the same key.
    ///
    /// # Errors
    /// [`Error::Locked`].
    pub fn derive(&self, purpose: &str) -> Result<Zeroizing<[u8; 32]>, Error> {
        let _ = purpose;
        todo!()
    }
}
