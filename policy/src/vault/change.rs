//! Changing the master key, and where it comes from.

use super::{Error, Header, Keys, Mode, Passphrase, Vault, file, keyring, wrapping_of};
use crate::seal::{self, Sealed};
use crate::secrets::sealed_parts;
use crate::store::NotErased;
use crate::{Policy, Secret};
use std::io;
use std::sync::Arc;

/// Where the new master key is to come from.
#[derive(Clone, Copy)]
pub enum Protection<'a> {
    /// A key file in the home.
    KeyFile,
    /// A passphrase.
    Passphrase(&'a Secret),
    /// The keyring of the desktop.
    Keyring,
    /// Whoever starts the process. The text of the new key is handed to the function, which keeps
    /// it; only if it does is the key changed.
    Given(&'a dyn Fn(&Secret) -> io::Result<()>),
}

/// What a change did.
#[derive(Debug)]
pub struct Rotated {
    /// How many sealed secret versions were moved to the new key.
    pub secrets: usize,
    /// Why what the former key opens is still in the store's file, if it is: the next change of the store
    /// overwrites it, and so does the next start of a server.
    pub not_erased: Option<NotErased>,
}

/// Changing the master key.
pub mod rotate {
    /// Why the master key was not changed. Everything is as it was.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// The vault refused.
        #[error(transparent)]
        Vault(#[from] super::Error),
        /// The store failed.
        #[error(transparent)]
        Store(#[from] crate::store::Error),
        /// The new key could not be kept.
        #[error("the new key could not be kept")]
        NotKept(#[source] std::io::Error),
        /// A sealed secret does not open under the old key.
        #[error(
            "the secret {0:?} can't be opened under the old key; set it anew or remove it, then rotate"
        )]
        Unreadable(String),
    }
}

impl Policy {
    /// Changes the vault's master key: every sealed secret is moved to a fresh one, in one step.
    /// What other parts encrypted stays readable, by the former generations' keys.
    ///
    /// Other processes take the change over at their next look; without a key file they are locked
    /// until the new passphrase or key is given.
    ///
    /// # Errors
    /// [`rotate::Error`]; then nothing was changed.
    pub fn rotate_vault(&self, to: Protection<'_>) -> Result<Rotated, rotate::Error> {
        let store = &self.store;
        let mut txn = store.write()?;
        let vault = self.vault_in(&txn)?;
        let old = vault.wrapping()?;
        let mut generations = vault.generations()?;
        generations.push(seal::random_key().map_err(Error::Crypto)?);
        let master = seal::random_key().map_err(Error::Crypto)?;
        let new = wrapping_of(&master)?;
        let records = store.records::<Sealed>(&store.sealed, &txn, "a sealed secret")?;
        let secrets = records.len();
        for (key, sealed) in records {
            let unreadable =
                || rotate::Error::Unreadable(key.split('\0').next().unwrap_or_default().to_owned());
            let (name, version) = sealed_parts(&key).ok_or_else(unreadable)?;
            let moved = seal::rewrap(&old, &new, name, version, &sealed).map_err(Error::Crypto)?;
            store.put_record(&store.sealed, &mut txn, &key, &moved.ok_or_else(unreadable)?)?;
        }
        let (mode, passphrase) = match to {
            Protection::KeyFile => (Mode::KeyFile, None),
            Protection::Keyring => (Mode::Keyring, None),
            Protection::Passphrase(given) => {
                (Mode::Passphrase, Some(Passphrase::wrap(given, &master)?))
            }
            Protection::Given(keep) => {
                keep(&file::text(&master)).map_err(rotate::Error::NotKept)?;
                (Mode::Given, None)
            }
        };
        let header = Header::new(mode, &master, passphrase, &generations)?;
        store.mark_format(&mut txn)?;
        store.put_record(&store.meta, &mut txn, "vault", &header)?;
        match mode {
            Mode::KeyFile => file::prepare(&vault.home, &master)?,
            Mode::Keyring => keyring::keep(&header, &master)?,
            Mode::Passphrase | Mode::Given => {}
        }
        let not_erased = store.commit_and_tell(txn)?;
        let former = vault.header();
        vault.take(header, Keys::new(&master, &generations)?);
        // The key is changed: what is left is tidied now or at the next opening.
        let tidied = match mode {
            Mode::KeyFile => file::finish(&vault.home),
            Mode::Passphrase | Mode::Keyring | Mode::Given => file::remove(&vault.home),
        };
        if let Err(error) = tidied {
            tracing::warn!(%error, "the former key file is still there");
        }
        if former.mode == Mode::Keyring {
            keyring::remove(&former);
        }
        Ok(Rotated { secrets, not_erased })
    }
}

impl Policy {
    /// Overwrites what a change that was cut off left in the store's file. For the start of a server;
    /// each change does it for itself and for those before it.
    pub fn erase_unused(&self) {
        // The log says why, if it can't be.
        drop(self.store.erase_unused());
    }

    /// Removes a key file that the vault's protection has no use for: a change away from it was cut off
    /// before its last step, and the file still opens what was encrypted before.
    pub(crate) fn remove_stale_key_file(&self) -> Result<(), crate::store::Error> {
        if self.vault.mode() == Mode::KeyFile || !file::path(&self.vault.home).exists() {
            return Ok(());
        }
        // A change puts its key file into place after its commit, so what this sees is settled.
        let txn = self.store.write()?;
        if self.vault_in(&txn)?.mode() != Mode::KeyFile {
            file::remove_stale(&self.vault.home);
        }
        Ok(())
    }
}

impl Vault {
    /// What keys of other parts are derived from, the newest last.
    fn generations(&self) -> Result<Vec<super::Key>, Error> {
        self.with_generations(|generations| {
            let pinned = generations.ok_or(Error::Locked)?.0.iter();
            Ok(pinned.map(|generation| generation.key().clone()).collect())
        })
    }

    /// Goes over to a key that was just made.
    fn take(&self, header: Header, keys: Keys) {
        let mut open = self.writing();
        open.header = Arc::new(header);
        open.set(Some(keys));
    }
}
