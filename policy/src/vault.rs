//! The vault: holds the master key while unlocked, seals and opens secrets, derives keys.
//!
//! ```text
//! key file ─────────────────────────► master key ─┬─ HKDF "wrap"  ─► wraps a data key per secret version
//! key given at start, or by a keyring ►             ├─ HKDF "check" ─► recognises the right master key
//! passphrase ─ argon2id ─► unwraps ─►             └─ opens the generations
//!                             a generation's key ─ HKDF purpose ─► keys of other parts (results)
//! ```
//!
//! A change of the master key begins a generation: what other parts encrypt from then on is under
//! its key, and the former ones open what was encrypted before. All are sealed under the master key
//! in force, so who has only a former one reads nothing of what came later.

mod change;
mod file;
mod header;
mod keyring;
mod pinned;

use crate::Secret;
use crate::seal::{self, Sealed};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zeroize::Zeroizing;

pub use change::{Protection, Rotated, rotate};
pub(crate) use header::Header;
use header::Passphrase;
use pinned::Pinned;

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
    /// The keyring of the desktop: unlocked by it, as long as it is.
    Keyring,
    /// A key that whoever starts the process hands in (a systemd credential): locked without it.
    Given,
}

/// Why the vault refused. Holds no secret bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The master key is not in memory.
    #[error("the vault is locked; `affiant vault unlock` unlocks it")]
    Locked,
    /// The vault needs a passphrase, or its key, and none was given.
    #[error("the vault is locked; give its passphrase or key to unlock it")]
    PassphraseNeeded,
    /// The passphrase is not the right one.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// The key that was given is not this vault's.
    #[error("the key that was given is not the key of this vault")]
    WrongKey,
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
    /// The desktop's keyring can't be used.
    #[error("cannot use the keyring: {0}")]
    Keyring(&'static str),
    /// The vault's parameters can't be read.
    #[error("the parameters of the vault are damaged")]
    Damaged,
    /// The system gives no randomness, or a primitive failed.
    #[error("cryptography failed: {0}")]
    Crypto(&'static str),
}

/// A key of 256 bits.
pub(crate) type Key = Zeroizing<[u8; 32]>;

/// The vault. Unlocking is per process; a key file unlocks it on opening.
pub struct Vault {
    home: PathBuf,
    open: RwLock<Open>,
}

/// What is known of the vault now.
struct Open {
    header: Arc<Header>,
    /// None while it is locked.
    keys: Option<Keys>,
    follower: Option<Follower>,
}

/// Told of the generations' keys as they come and go; called under the vault's lock.
type Follower = Box<dyn Fn(Option<&Generations>) + Send + Sync>;

/// What follows from the master key, which itself is not kept.
struct Keys {
    /// Wraps data keys.
    wrapping: Pinned,
    generations: Generations,
}

/// What keys of other parts are derived from: one for each master key that there was, the newest
/// last.
pub struct Generations(Vec<Pinned>);

impl Generations {
    /// Derives a key for one purpose (HKDF-SHA256) of each generation, the newest last.
    ///
    /// # Errors
    /// [`Error::Crypto`].
    pub fn derive(&self, purpose: &str) -> Result<Vec<Zeroizing<[u8; 32]>>, Error> {
        let of = |key: &Pinned| seal::derive(key.key(), &[b"purpose ", purpose.as_bytes()]);
        self.0.iter().map(|key| of(key).map_err(Error::Crypto)).collect()
    }
}

impl Keys {
    fn new(master: &Key, generations: &[Key]) -> Result<Self, Error> {
        Ok(Self {
            wrapping: Pinned::new(&wrapping_of(master)?),
            generations: Generations(generations.iter().map(Pinned::new).collect()),
        })
    }
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault")
            .field("mode", &self.mode())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl Vault {
    /// Makes the vault of a home that has none: a key file, or a key wrapped by the passphrase.
    pub(crate) fn create(home: &Path, passphrase: Option<&Secret>) -> Result<Header, Error> {
        let generations = [seal::random_key().map_err(Error::Crypto)?];
        let Some(passphrase) = passphrase else {
            let master = file::read_or_write(home)?;
            return Header::new(Mode::KeyFile, &master, None, &generations);
        };
        let master = seal::random_key().map_err(Error::Crypto)?;
        let passphrase = Passphrase::wrap(passphrase, &master)?;
        Header::new(Mode::Passphrase, &master, Some(passphrase), &generations)
    }

    /// Opens the vault of a home; a key file unlocks it, and so does the key that is given.
    pub(crate) fn open(home: &Path, header: Header, given: Option<&Secret>) -> Result<Self, Error> {
        let open = Open { header: Arc::new(header), keys: None, follower: None };
        let vault = Self { home: home.to_owned(), open: RwLock::new(open) };
        match (vault.mode(), given) {
            (Mode::KeyFile, _) => vault.unlock(None)?,
            (Mode::Given, Some(key)) => vault.unlock(Some(key))?,
            (Mode::Keyring, _) => {
                // What needs no secret goes on without the desktop.
                if let Err(error) = vault.unlock(None) {
                    tracing::warn!(%error, "the vault stays locked");
                }
            }
            (Mode::Given, None) | (Mode::Passphrase, _) => {}
        }
        Ok(vault)
    }

    /// Takes over a header that another process wrote. A key file unlocks the vault anew; else it
    /// is locked until its new passphrase or key is given.
    pub(crate) fn adopt(&self, header: Header) {
        if *self.reading().header == header {
            return;
        }
        let keys = match header.mode {
            Mode::KeyFile | Mode::Keyring => self.keys_of(&header, None).map_err(|error| {
                tracing::error!(%error, "the vault's key was changed, and the new one can't be read");
            }),
            Mode::Passphrase | Mode::Given => Err(()),
        };
        let mut open = self.writing();
        // Another thread may have done the same, and more since.
        if *open.header != header {
            open.header = Arc::new(header);
            open.set(keys.ok());
        }
    }

    /// Tells somebody of the generations' keys: now, and whenever the vault is locked, unlocked or
    /// gets another master key. The function must not ask the vault.
    pub fn follow(&self, follower: impl Fn(Option<&Generations>) + Send + Sync + 'static) {
        let mut open = self.writing();
        open.follower = Some(Box::new(follower));
        open.tell();
    }

    /// Reads the generations' keys as they are now; none while the vault is locked. The function
    /// must not ask the vault.
    pub fn with_generations<R>(&self, read: impl FnOnce(Option<&Generations>) -> R) -> R {
        read(self.reading().keys.as_ref().map(|keys| &keys.generations))
    }

    fn reading(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, Open> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn header(&self) -> Arc<Header> {
        Arc::clone(&self.reading().header)
    }

    /// Whether secrets can be opened now.
    #[must_use]
    pub fn status(&self) -> Status {
        if self.reading().keys.is_some() { Status::Unlocked } else { Status::Locked }
    }

    /// Where the master key comes from.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.header().mode
    }

    /// Brings the master key into memory: the passphrase, or the text of the key where the vault
    /// takes one; a vault with a key file or a keyring reads that.
    ///
    /// # Errors
    /// [`Error::WrongPassphrase`], [`Error::WrongKey`], [`Error::PassphraseNeeded`], or a key file
    /// or keyring that can't be used.
    pub fn unlock(&self, given: Option<&Secret>) -> Result<(), Error> {
        let header = self.header();
        let keys = self.keys_of(&header, given)?;
        let mut open = self.writing();
        if *open.header == *header {
            open.set(Some(keys));
        }
        Ok(())
    }

    /// What opens under a header with what was given, or with what the vault reads by itself.
    fn keys_of(&self, header: &Header, given: Option<&Secret>) -> Result<Keys, Error> {
        let master = match (header.mode, given) {
            (Mode::KeyFile, _) => file::read_matching(&self.home, header)?,
            (Mode::Keyring, _) => keyring::read(header)?,
            (Mode::Passphrase | Mode::Given, None) => return Err(Error::PassphraseNeeded),
            (Mode::Passphrase, Some(given)) => {
                let kept = header.passphrase.as_ref().ok_or(Error::Damaged)?;
                Some(kept.unwrap(given)?)
                    .filter(|m| header.is_of(m))
                    .ok_or(Error::WrongPassphrase)?
            }
            (Mode::Given, Some(given)) => {
                let key = file::parse(given.expose()).filter(|m| header.is_of(m));
                key.ok_or(Error::WrongKey)?
            }
        };
        Keys::new(&master, &header.generations_under(&master)?)
    }

    /// Drops all keys from memory.
    pub fn lock(&self) {
        self.writing().set(None);
    }

    /// Derives a key for one purpose from the newest generation; the same purpose gives the same key
    /// until the master key is changed.
    ///
    /// # Errors
    /// [`Error::Locked`].
    pub fn derive(&self, purpose: &str) -> Result<Zeroizing<[u8; 32]>, Error> {
        self.with_generations(|generations| {
            generations.ok_or(Error::Locked)?.derive(purpose)?.pop().ok_or(Error::Damaged)
        })
    }

    fn wrapping(&self) -> Result<Key, Error> {
        let open = self.reading();
        Ok(open.keys.as_ref().ok_or(Error::Locked)?.wrapping.key().clone())
    }

    /// Seals a secret: a fresh data key under the master key, the secret under the data key, both
    /// bound to name and version.
    pub(crate) fn seal(&self, name: &str, version: u64, value: &Secret) -> Result<Sealed, Error> {
        seal::envelope(&self.wrapping()?, name, version, value).map_err(Error::Crypto)
    }

    /// Opens a sealed secret; none if it does not belong to this key, name and version.
    pub(crate) fn open_sealed(
        &self,
        name: &str,
        version: u64,
        sealed: &Sealed,
    ) -> Result<Option<Secret>, Error> {
        Ok(seal::open_envelope(&self.wrapping()?, name, version, sealed))
    }
}

impl Open {
    fn set(&mut self, keys: Option<Keys>) {
        self.keys = keys;
        self.tell();
    }

    fn tell(&self) {
        if let Some(follower) = &self.follower {
            follower(self.keys.as_ref().map(|keys| &keys.generations));
        }
    }
}

/// The key that wraps data keys.
fn wrapping_of(master: &Key) -> Result<Key, Error> {
    // The two labels are one run of bytes to HKDF; this is the label of the first version.
    seal::derive(master, &[b"wrap", b""]).map_err(Error::Crypto)
}

#[cfg(test)]
#[path = "vault_tests.rs"]
mod tests;
