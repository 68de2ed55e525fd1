//! The handle on a home's policy: newest snapshot, history, agents, secrets, vault.

use crate::store::{self, Store, number_key};
use crate::{Diagnostic, Secret, Snapshot, Vault, agent, credential, secrets, vault};
use arc_swap::ArcSwap;
use heed::RoTxn;
use journal::contract::Digest;
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The handle on a home's policy. Several processes may hold one; every look sees what was
/// committed last, at the price of one read of mapped memory.
pub struct Policy {
    pub(crate) store: Arc<Store>,
    /// As this process knows it; [`Policy::vault`] looks whether another has changed its key.
    pub(crate) vault: Vault,
    state: ArcSwap<State>,
    reload: Mutex<()>,
    /// A text that was compiled before it is applied, so that no call waits for that.
    prepared: Mutex<Option<(Digest, Snapshot)>>,
    /// Tokens at hand.
    pub(crate) minted: credential::Minted,
    /// Values at hand, with their leases.
    pub(crate) leased: credential::Leased,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = self.state.load().snapshot.version();
        f.debug_struct("Policy").field("version", &version).finish_non_exhaustive()
    }
}

/// What the store held after one of its transactions.
#[derive(Default)]
pub(crate) struct State {
    change: usize,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) agents: agent::Book,
    pub(crate) secrets: HashMap<String, secrets::Newest>,
    /// What the store keeps of the vault; another process may have changed its key.
    header: Option<vault::Header>,
}

/// One version in the history.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct VersionInfo {
    /// 1 for the first.
    pub version: u64,
    /// When it was applied, milliseconds since 1970.
    pub applied_at_ms: u64,
    /// Who applied it.
    pub who: String,
    /// The file it came from, as named then.
    pub file: String,
    /// `sha256:` of the text.
    pub digest: journal::contract::Digest,
    /// The version whose text this one brought back.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rollback_of: Option<u64>,
}

/// Opening a home's policy.
pub mod open {
    use std::path::PathBuf;

    /// Why a home's policy can't be opened or created.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// There is no policy store in this home.
        #[error("{0} holds no policy store; `affiant init` makes one")]
        NotInitialised(PathBuf),
        /// A file or directory can't be used.
        #[error("cannot use {path}")]
        Io {
            /// The path.
            path: PathBuf,
            /// The cause.
            #[source]
            source: std::io::Error,
        },
        /// The vault refused.
        #[error(transparent)]
        Vault(#[from] crate::vault::Error),
        /// The store failed.
        #[error(transparent)]
        Store(#[from] crate::store::Error),
    }
}

/// Applying a policy text.
pub mod apply {
    use crate::Diagnostic;

    /// Why a policy text was not applied. The version in force stays.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// The text has errors, in the order of the text.
        #[error("the policy has {} error(s); the version in force stays", .0.len())]
        Refused(Vec<Diagnostic>),
        /// The store failed.
        #[error(transparent)]
        Store(#[from] crate::store::Error),
    }
}

/// Bringing an old policy text back.
pub mod rollback {
    /// Why an old text was not brought back.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// There is no such version.
        #[error("there is no policy version {0}; `affiant policy history` lists them")]
        Unknown(u64),
        /// The old text is no longer a valid policy, or the store failed.
        #[error(transparent)]
        Apply(#[from] super::apply::Error),
    }
}

/// The directory of the store in a home.
const DIRECTORY: &str = "policy";

impl Policy {
    /// Opens the policy of a home. A vault with a key file is unlocked by it.
    ///
    /// # Errors
    /// [`open::Error`].
    pub fn open(home: &Path) -> Result<Self, open::Error> {
        Self::open_with_key(home, None)
    }

    /// As [`Policy::open`], with the text of the vault's key for a vault that takes one.
    ///
    /// # Errors
    /// [`open::Error`].
    pub fn open_with_key(home: &Path, key: Option<&Secret>) -> Result<Self, open::Error> {
        let directory = home.join(DIRECTORY);
        let file = directory.join("data.mdb");
        match file.metadata() {
            Ok(found) if found.is_file() && found.len() > 0 => {}
            Ok(found) if found.is_file() => {
                let source = store::FileError::Cut { has: 0, needs: 1 };
                return Err(store::Error::File { path: file, source }.into());
            }
            Ok(_) | Err(_) => return Err(open::Error::NotInitialised(home.to_owned())),
        }
        let store = Store::open(&directory)?;
        let header = {
            let txn = store.read()?;
            store.record(&store.meta, &txn, "vault", "the vault")?
        };
        let header = header.ok_or_else(|| open::Error::NotInitialised(home.to_owned()))?;
        let vault = Vault::open(home, header, key)?;
        let state = State::load(&store, None, &Mutex::default())?;
        let state = ArcSwap::from_pointee(state);
        let (minted, leased, reload, prepared) = Default::default();
        let policy = Self { store, vault, state, reload, prepared, minted, leased };
        policy.remove_stale_key_file()?;
        Ok(policy)
    }

    /// Creates store and vault key where they are missing, and opens them. With a passphrase the
    /// vault's key is derived from it, else a key file is made. Changes nothing that exists.
    ///
    /// # Errors
    /// [`open::Error`].
    pub fn init(home: &Path, passphrase: Option<&Secret>) -> Result<Self, open::Error> {
        let directory = home.join(DIRECTORY);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|source| open::Error::Io { path: directory.clone(), source })?;
        let store = Store::open(&directory)?;
        // Within the write transaction no other process can make a second key.
        let mut txn = store.write()?;
        let present = store.bytes(&store.meta, &txn, "vault")?.is_some();
        if present {
            drop(txn);
        } else {
            store.found(&mut txn)?;
            let header = Vault::create(home, passphrase)?;
            store.put_record(&store.meta, &mut txn, "vault", &header)?;
            store.commit(txn)?;
        }
        Self::open(home)
    }

    /// The snapshot in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.state().snapshot)
    }

    /// What the store holds now; read anew only if some process changed it.
    pub(crate) fn state(&self) -> Arc<State> {
        let state = self.state.load_full();
        if state.change == self.store.last_change() {
            return state;
        }
        let _guard = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state.load_full();
        if state.change == self.store.last_change() {
            return state;
        }
        match State::load(&self.store, Some(&state), &self.prepared) {
            Ok(fresh) => {
                if let Some(header) = fresh.header.clone() {
                    self.vault.adopt(header);
                }
                let fresh = Arc::new(fresh);
                self.state.store(Arc::clone(&fresh));
                fresh
            }
            // What can't be read can't be trusted to be unchanged: nothing is allowed until it can.
            Err(error) => {
                tracing::error!(%error, "the policy store can't be read; every call is refused");
                Arc::default()
            }
        }
    }

    /// Checks a text without applying it.
    ///
    /// # Errors
    /// All findings, in the order of the text.
    pub fn check(text: &str, file: &str) -> Result<Snapshot, Vec<Diagnostic>> {
        Snapshot::compile(text, file, 0)
    }

    /// Compiles a text that is going to be applied, by this process or another: the first call after
    /// that finds it ready.
    ///
    /// # Errors
    /// All findings, in the order of the text.
    pub fn prepare(&self, text: &str, file: &str) -> Result<(), Vec<Diagnostic>> {
        let prepared = (Digest::of(text.as_bytes()), Self::check(text, file)?);
        *self.prepared.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared);
        Ok(())
    }

    /// Checks a text and makes it the version in force; answers its number.
    ///
    /// # Errors
    /// [`apply::Error`]; the version in force stays.
    pub fn apply(&self, text: &str, file: &str, who: &str) -> Result<u64, apply::Error> {
        self.append(text, file, who, None)
    }

    fn append(
        &self,
        text: &str,
        file: &str,
        who: &str,
        rollback_of: Option<u64>,
    ) -> Result<u64, apply::Error> {
        self.prepare(text, file).map_err(apply::Error::Refused)?;
        let store = &self.store;
        let mut txn = store.write()?;
        let version = newest_version(store, &txn)?.saturating_add(1);
        let info = VersionInfo {
            version,
            applied_at_ms: now_ms(),
            who: who.to_owned(),
            file: file.to_owned(),
            digest: Digest::of(text.as_bytes()),
            rollback_of,
        };
        let key = number_key(version);
        store.put(&store.texts, &mut txn, &key, text.as_bytes())?;
        store.put_record(&store.versions, &mut txn, &key, &info)?;
        store.commit(txn)?;
        Ok(version)
    }

    /// All versions, newest first.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn history(&self) -> Result<Vec<VersionInfo>, store::Error> {
        let txn = self.store.read()?;
        let records = self.store.records(&self.store.versions, &txn, "a policy version")?;
        Ok(records.into_iter().rev().map(|(_, info)| info).collect())
    }

    /// The text of a version, byte for byte; none if there is no such version.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn source_text(&self, version: u64) -> Result<Option<String>, store::Error> {
        let txn = self.store.read()?;
        let text = self.store.bytes(&self.store.texts, &txn, &number_key(version))?;
        let text = text.map(String::from_utf8).transpose();
        text.map_err(|_| store::Error::Damaged("a policy text"))
    }

    /// Applies the text of an old version as a new one; answers the new number.
    ///
    /// # Errors
    /// [`rollback::Error`]; the version in force stays.
    pub fn rollback(&self, version: u64, who: &str) -> Result<u64, rollback::Error> {
        let text = self.source_text(version).map_err(apply::Error::Store)?;
        let text = text.ok_or(rollback::Error::Unknown(version))?;
        let history = self.history().map_err(apply::Error::Store)?;
        let file = history.into_iter().find(|info| info.version == version).map(|info| info.file);
        Ok(self.append(&text, &file.unwrap_or_default(), who, Some(version))?)
    }

    /// The vault, under the key that the store has now.
    #[must_use]
    pub fn vault(&self) -> &Vault {
        drop(self.state());
        &self.vault
    }

    /// The vault as a write transaction finds it: no other process changes its key meanwhile.
    pub(crate) fn vault_in(&self, txn: &RoTxn<'_>) -> Result<&Vault, store::Error> {
        if let Some(header) = self.store.record(&self.store.meta, txn, "vault", "the vault")? {
            self.vault.adopt(header);
        }
        Ok(&self.vault)
    }
}

impl State {
    /// Reads the store; a snapshot of the same version is taken over from the state before.
    fn load(
        store: &Store,
        before: Option<&Self>,
        prepared: &Mutex<Option<(Digest, Snapshot)>>,
    ) -> Result<Self, store::Error> {
        let txn = store.read()?;
        // The id of what is read here, not of the newest change: LMDB publishes a commit in two
        // steps, and between them the newest change is known but not yet what a reader gets.
        let change = txn.id();
        let version = newest_version(store, &txn)?;
        let snapshot = match before {
            Some(state) if state.snapshot.version() == version => Arc::clone(&state.snapshot),
            Some(_) | None => Arc::new(load_snapshot(store, &txn, version, prepared)?),
        };
        let agents = agent::Book::load(store, &txn)?;
        let secrets = store.records(&store.names, &txn, "a secret's name")?.into_iter().collect();
        let header = store.record(&store.meta, &txn, "vault", "the vault")?;
        Ok(Self { change, snapshot, agents, secrets, header })
    }
}

fn load_snapshot(
    store: &Store,
    txn: &heed::RoTxn<'_>,
    version: u64,
    prepared: &Mutex<Option<(Digest, Snapshot)>>,
) -> Result<Snapshot, store::Error> {
    if version == 0 {
        return Ok(Snapshot::default());
    }
    let text = store.bytes(&store.texts, txn, &number_key(version))?;
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.ok_or(store::Error::Damaged("a policy text"))?;
    let ready = prepared.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((digest, snapshot)) = ready
        && digest == Digest::of(text.as_bytes())
    {
        return Ok(snapshot.at_version(version));
    }
    let compiled = Snapshot::compile_in_force(&text, version);
    Ok(compiled.unwrap_or_else(|findings| {
        // The text was sound when it was applied, by another version of the program.
        let finding = findings.first().map(ToString::to_string).unwrap_or_default();
        tracing::error!(version, finding, "policy not understood; every call is refused");
        Snapshot::default().at_version(version)
    }))
}

fn newest_version(store: &Store, txn: &heed::RoTxn<'_>) -> Result<u64, store::Error> {
    let last = store.versions.last(txn).map_err(store::failed("read the newest version"))?;
    let number = last.map(|(key, _)| key.parse()).transpose();
    Ok(number.map_err(|_| store::Error::Damaged("a policy version"))?.unwrap_or(0))
}

/// The wall clock, milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
