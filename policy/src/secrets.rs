//! Secrets in the store: sealed versions under a name.

use crate::document::value;
use crate::handle::now_ms;
use crate::seal::Sealed;
use crate::store::{self, Store, number_key};
use crate::{Policy, Secret, vault};
use serde::{Deserialize, Serialize};

/// How many bytes a secret may have.
const LENGTH_BYTES: usize = 1 << 20;

/// The newest version stays, and the one before it for calls that are bound to it already (V-5).
const VERSIONS_KEPT: u64 = 2;

/// What is known of a name. A removed secret leaves it behind, so that no version is used twice.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Newest {
    pub(crate) version: u64,
    pub(crate) set_at_ms: u64,
    #[serde(default)]
    pub(crate) removed: bool,
}

/// What is known of a secret without opening it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The name.
    pub name: String,
    /// The newest version, 1 for the first.
    pub version: u64,
    /// When it was set, milliseconds since 1970.
    pub set_at_ms: u64,
}

/// Why a change of secrets failed. Holds no secret bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name can't be a secret's name.
    #[error(
        "a secret's name has 1 to 128 letters, digits, '.', '_', '-' or '/', and starts with a letter or digit"
    )]
    Name,
    /// There is no such secret.
    #[error("there is no secret of that name")]
    Unknown,
    /// The value has no bytes.
    #[error("the value is empty")]
    Empty,
    /// The value is too long.
    #[error("the value is longer than 1 MiB")]
    TooLong,
    /// The vault refused.
    #[error(transparent)]
    Vault(#[from] vault::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Policy {
    /// Seals a secret as a new version; answers the version.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_secret(&self, name: &str, value: &Secret) -> Result<u64, Error> {
        if !value::is_name(name, 128, b"/") {
            return Err(Error::Name);
        }
        if value.is_empty() {
            return Err(Error::Empty);
        }
        if value.len() > LENGTH_BYTES {
            return Err(Error::TooLong);
        }
        let store = &self.store;
        let mut txn = store.write()?;
        let newest: Option<Newest> = store.record(&store.names, &txn, name, "a secret's name")?;
        let version = newest.map_or(0, |n| n.version).saturating_add(1);
        let sealed = self.vault_in(&txn)?.seal(name, version, value)?;
        store.put_record(&store.sealed, &mut txn, &sealed_key(name, version), &sealed)?;
        if let Some(old) = version.checked_sub(VERSIONS_KEPT) {
            store.delete(&store.sealed, &mut txn, &sealed_key(name, old))?;
            store.delete(&store.sealed, &mut txn, &sealed_key(&rotated_name(name), old))?;
        }
        let newest = Newest { version, set_at_ms: now_ms(), removed: false };
        store.put_record(&store.names, &mut txn, name, &newest)?;
        Store::commit(txn)?;
        Ok(version)
    }

    /// All secrets by name, without their values.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn list_secrets(&self) -> Result<Vec<Info>, store::Error> {
        let txn = self.store.read()?;
        let records = self.store.records::<Newest>(&self.store.names, &txn, "a secret's name")?;
        let present = records.into_iter().filter(|(_, newest)| !newest.removed);
        let info = |(name, newest): (String, Newest)| Info {
            name,
            version: newest.version,
            set_at_ms: newest.set_at_ms,
        };
        Ok(present.map(info).collect())
    }

    /// Removes a secret with all its versions. Its version numbers are not used again.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_secret(&self, name: &str) -> Result<(), Error> {
        if !value::is_name(name, 128, b"/") {
            return Err(Error::Unknown);
        }
        let store = &self.store;
        let mut txn = store.write()?;
        let newest: Option<Newest> = store.record(&store.names, &txn, name, "a secret's name")?;
        let mut newest = newest.filter(|n| !n.removed).ok_or(Error::Unknown)?;
        newest.removed = true;
        for back in 0..VERSIONS_KEPT {
            if let Some(version) = newest.version.checked_sub(back) {
                store.delete(&store.sealed, &mut txn, &sealed_key(name, version))?;
                store.delete(&store.sealed, &mut txn, &sealed_key(&rotated_name(name), version))?;
            }
        }
        store.put_record(&store.names, &mut txn, name, &newest)?;
        Ok(Store::commit(txn)?)
    }

    /// Keeps what a service gave in the place of a version of a secret (a rotated refresh token). The
    /// version stays the same: whoever is bound to it goes on with what takes its place. Durable when
    /// it returns.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn store_rotated(
        &self,
        name: &str,
        version: u64,
        value: &Secret,
    ) -> Result<(), Error> {
        let store = &self.store;
        let mut txn = store.write()?;
        let newest: Option<Newest> = store.record(&store.names, &txn, name, "a secret's name")?;
        let kept = |newest: &Newest| newest.version < version.saturating_add(VERSIONS_KEPT);
        if !newest.is_some_and(|newest| !newest.removed && kept(&newest)) {
            return Err(Error::Unknown);
        }
        let rotated = rotated_name(name);
        let sealed = self.vault_in(&txn)?.seal(&rotated, version, value)?;
        store.put_record(&store.sealed, &mut txn, &sealed_key(&rotated, version), &sealed)?;
        Ok(Store::commit(txn)?)
    }

    /// What the vault holds, each kept version of it; nothing while it is locked, and without what
    /// can't be read.
    pub(crate) fn known_secrets(&self) -> Vec<Secret> {
        let records = self.store.read().and_then(|txn| {
            self.store.records::<Sealed>(&self.store.sealed, &txn, "a sealed secret")
        });
        let records = records.unwrap_or_else(|error| {
            tracing::error!(%error, "the secrets to look for can't be read");
            Vec::new()
        });
        let vault = self.vault();
        let open = |(key, sealed): (String, Sealed)| {
            let (name, version) = sealed_parts(&key)?;
            vault.open_sealed(name, version, &sealed).ok().flatten()
        };
        records.into_iter().filter_map(open).collect()
    }

    /// The sealed record of a version.
    pub(crate) fn sealed(&self, name: &str, version: u64) -> Result<Option<Sealed>, store::Error> {
        let (store, key) = (&self.store, sealed_key(name, version));
        let txn = store.read()?;
        store.record(&store.sealed, &txn, &key, "a sealed secret")
    }
}

/// Name and version of a sealed record's key.
pub(crate) fn sealed_parts(key: &str) -> Option<(&str, u64)> {
    let (name, version) = key.split_once('\0')?;
    Some((name, version.parse().ok()?))
}

/// Where what took the place of a secret is kept. No secret can have this name.
pub(crate) fn rotated_name(name: &str) -> String {
    format!("rotated:{name}")
}

fn sealed_key(name: &str, version: u64) -> String {
    format!("{name}\0{}", number_key(version))
}
