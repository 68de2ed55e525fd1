//! Secrets in the store: sealed versions under a name.

use crate::document::value;
use crate::handle::now_ms;
use crate::seal::Sealed;
use crate::store::{self, number_key};
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
    /// The versions that are remembered, oldest first. Stores of before tags have none.
    #[serde(default)]
    pub(crate) versions: Vec<Version>,
}

/// So many versions are remembered; of older ones only their number was ever used.
const VERSIONS_REMEMBERED: usize = 100;

/// How many tags a version may have.
const TAGS: usize = 8;

/// One version of a secret, as far as it is no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// 1 for the first.
    pub version: u64,
    /// When it was set, milliseconds since 1970.
    pub set_at_ms: u64,
    /// Who set it.
    pub by: String,
    /// Words that whoever set it put on it.
    pub tags: Vec<String>,
}

/// What is written beside a new version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Label {
    /// Who sets it.
    pub by: String,
    /// Words for people: a ticket, a key's id at its service. No secrets.
    pub tags: Vec<String>,
}

impl Label {
    fn is_good(&self) -> bool {
        let plain = |c: u8| c.is_ascii_alphanumeric() || b"._:=/@+-".contains(&c);
        let tag = |tag: &String| (1..=64).contains(&tag.len()) && tag.bytes().all(plain);
        let by = self.by.len() <= 100 && !self.by.chars().any(char::is_control);
        by && self.tags.len() <= TAGS && self.tags.iter().all(tag)
    }
}

/// What has become of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is what calls are bound to.
    Current,
    /// It is kept for calls that are bound to it already.
    Kept,
    /// It is gone.
    Gone,
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
    /// A tag, or who sets it, has a form that is not kept.
    #[error("a tag has 1 to 64 letters, digits and . _ : = / @ + -, and a version has 8 at most")]
    Tag,
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
        self.set_secret_as(name, value, &Label::default())
    }

    /// The same, with what is written beside the version.
    ///
    /// # Errors
    /// [`Error`].
    pub fn set_secret_as(&self, name: &str, value: &Secret, label: &Label) -> Result<u64, Error> {
        if !label.is_good() {
            return Err(Error::Tag);
        }
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
        let (before, mut versions) = newest.map(|n| (n.version, n.versions)).unwrap_or_default();
        let version = before.saturating_add(1);
        let sealed = self.vault_in(&txn)?.seal(name, version, value)?;
        store.put_record(&store.sealed, &mut txn, &sealed_key(name, version), &sealed)?;
        if let Some(old) = version.checked_sub(VERSIONS_KEPT) {
            store.delete(&store.sealed, &mut txn, &sealed_key(name, old))?;
            store.delete(&store.sealed, &mut txn, &sealed_key(&rotated_name(name), old))?;
        }
        let (set_at_ms, Label { by, tags }) = (now_ms(), label.clone());
        versions.push(Version { version, set_at_ms, by, tags });
        versions.drain(..versions.len().saturating_sub(VERSIONS_REMEMBERED));
        let newest = Newest { version, set_at_ms, removed: false, versions };
        store.put_record(&store.names, &mut txn, name, &newest)?;
        store.commit(txn)?;
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

    /// The versions of a secret that are remembered, newest first; also of one that was removed.
    ///
    /// # Errors
    /// [`Error::Unknown`] and failures of the store.
    pub fn secret_versions(&self, name: &str) -> Result<Vec<(Version, Standing)>, Error> {
        if !value::is_name(name, 128, b"/") {
            return Err(Error::Unknown);
        }
        let txn = self.store.read()?;
        let newest: Option<Newest> =
            self.store.record(&self.store.names, &txn, name, "a secret's name")?;
        let newest = newest.ok_or(Error::Unknown)?;
        let standing = |version: u64| match newest.version.saturating_sub(version) {
            _ if newest.removed => Standing::Gone,
            0 => Standing::Current,
            back if back < VERSIONS_KEPT => Standing::Kept,
            _ => Standing::Gone,
        };
        let versions = newest.versions.iter().rev();
        Ok(versions.map(|version| (version.clone(), standing(version.version))).collect())
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
        Ok(store.commit(txn)?)
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
        Ok(store.commit(txn)?)
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
