//! The LMDB environment that holds snapshots, agents and secrets.
//!
//! ```text
//! meta      format, vault, agent-key
//! versions  20 digits ─► VersionInfo (JSON)      texts     20 digits ─► policy text
//! agents    name ─► agent record (JSON)          names     secret's name ─► newest version (JSON)
//! sealed    name NUL 20 digits ─► sealed secret (JSON)
//! ```
//!
//! One write transaction per change: a change is there whole or not at all. Several processes may
//! hold the environment; within one process all handles share it, as LMDB demands, and it is opened anew
//! only once all of the one before is closed: closing any handle on LMDB's lock file gives up the locks that
//! this process has on it (fcntl(2)). What a change takes out of use is overwritten behind it.

mod erase;
mod pages;

use erase::Readers;
use heed::types::{Bytes, Str};
use heed::{Database, Env, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// LMDB failed.
    #[error("policy store: cannot {step}")]
    Lmdb {
        /// What was tried.
        step: &'static str,
        /// LMDB's error.
        #[source]
        source: heed::Error,
    },
    /// A record in the store can't be read.
    #[error("policy store: the record of {0} is damaged")]
    Damaged(&'static str),
    /// The file can't be used as it is, and LMDB is not let near it: it would end the process.
    #[error("policy store: {path} is damaged; put the home's policy directory back from a backup")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: FileError,
    },
    /// The store was made by a newer version.
    #[error("policy store: format {0} is newer than this version reads")]
    Format(String),
    /// The system gives no randomness.
    #[error("policy store: {0}")]
    Random(&'static str),
}

/// The address space reserved for the map; the file grows as needed.
const MAP_BYTES: usize = 1 << 30;
/// Format 2 knows generations of the vault. A store of format 1 is read as it is, and marked as 2 when
/// its vault gets a second generation.
const FORMAT: &str = "2";
const FORMATS: [&str; 2] = ["1", FORMAT];

pub use erase::Error as NotErased;
pub use pages::Error as FileError;

/// One table of the store.
pub(crate) type Table = Database<'static, Str, Bytes>;

/// The open environment.
#[derive(Debug)]
pub(crate) struct Store {
    env: Env<WithoutTls>,
    /// None where the lock file can't be opened. Closed behind the environment.
    readers: Option<Readers>,
    pub(crate) meta: Table,
    pub(crate) versions: Table,
    pub(crate) texts: Table,
    pub(crate) agents: Table,
    pub(crate) names: Table,
    pub(crate) sealed: Table,
    /// Goes last, behind the files.
    _whole: Arc<()>,
}

/// A store that this process has open, or is closing.
struct Known {
    store: Weak<Store>,
    whole: Weak<()>,
}

/// How long a store may take to close.
const CLOSING: Duration = Duration::from_secs(5);

const NOT_ERASED: &str =
    "what was taken out of use stays readable in the policy store's file until the next change";

static OPEN: LazyLock<Mutex<HashMap<PathBuf, Known>>> = LazyLock::new(Mutex::default);

/// Turns LMDB's error into ours.
pub(crate) fn failed(step: &'static str) -> impl FnOnce(heed::Error) -> Error {
    move |source| Error::Lmdb { step, source }
}

impl Store {
    /// Opens the environment in a directory that exists.
    pub(crate) fn open(directory: &Path) -> Result<Arc<Self>, Error> {
        let io =
            |source| Error::Lmdb { step: "find its directory", source: heed::Error::Io(source) };
        let path = directory.canonicalize().map_err(io)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = open.get(&path) {
            if let Some(store) = known.store.upgrade() {
                return Ok(store);
            }
            known.wait_until_closed()?;
        }
        let store = Arc::new(Self::open_new(&path)?);
        open.retain(|_, known| known.whole.strong_count() > 0);
        let whole = Arc::downgrade(&store._whole);
        open.insert(path, Known { store: Arc::downgrade(&store), whole });
        Ok(store)
    }

    fn open_new(path: &Path) -> Result<Self, Error> {
        Self::check(&path.join("data.mdb"))?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_dbs(8).max_readers(512);
        #[expect(unsafe_code, reason = "LMDB maps the file; nothing but LMDB writes to it")]
        // SAFETY: the directory is the store's own (mode 0700), all processes go through LMDB's
        // lock file, and no flag that weakens it is set.
        let env = unsafe { options.open(path) }.map_err(failed("open the environment"))?;
        env.clear_stale_readers().map_err(failed("clear stale readers"))?;
        let txn = env.write_txn().map_err(failed("begin a write"))?;
        let tables = env
            .create_databases_and_commit(txn, |opener, txn| -> Result<_, heed::Error> {
                let mut table = |name| opener.create_database::<Str, Bytes>(txn, Some(name));
                let first = (table("meta")?, table("versions")?, table("texts")?);
                let second = (table("agents")?, table("names")?, table("sealed")?);
                Ok(heed::CommitOrAbort::<_, ()>::Commit((first, second)))
            })
            .map_err(failed("create its tables"))?;
        let Some(((meta, versions, texts), (agents, names, sealed))) = tables.commit() else {
            return Err(Error::Damaged("the tables"));
        };
        let readers = Readers::open(path, env.max_readers())
            .inspect_err(|error| tracing::warn!(%error, "{NOT_ERASED}"))
            .ok();
        let _whole = Arc::new(());
        let store = Self { env, readers, meta, versions, texts, agents, names, sealed, _whole };
        let txn = store.read()?;
        match store.bytes(&store.meta, &txn, "format")? {
            Some(format) if FORMATS.iter().all(|known| format != known.as_bytes()) => {
                return Err(Error::Format(String::from_utf8_lossy(&format).into_owned()));
            }
            Some(_) | None => {}
        }
        drop(txn);
        Ok(store)
    }

    /// Looks whether a file is whole, before it is mapped. One without bytes was not begun yet.
    fn check(path: &Path) -> Result<(), Error> {
        let checked = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => Err(error.into()),
            Ok(file) => match file.metadata() {
                Ok(metadata) if metadata.len() == 0 => return Ok(()),
                Ok(_) => pages::check(&file),
                Err(error) => Err(error.into()),
            },
        };
        checked.map_err(|source| Error::File { path: path.to_owned(), source })
    }

    /// The id of the transaction that committed last, in whatever process. One read of the map.
    pub(crate) fn last_change(&self) -> usize {
        self.env.info().last_txn_id
    }

    /// Begins a read.
    pub(crate) fn read(&self) -> Result<RoTxn<'_, WithoutTls>, Error> {
        self.env.read_txn().map_err(failed("begin a read"))
    }

    /// Begins a write; waits for writers of other processes.
    pub(crate) fn write(&self) -> Result<RwTxn<'_>, Error> {
        self.env.write_txn().map_err(failed("begin a write"))
    }

    /// Commits a write; durable when it returns. What it took out of use is overwritten, or the log says why
    /// not.
    pub(crate) fn commit(&self, txn: RwTxn<'_>) -> Result<(), Error> {
        drop(self.commit_and_tell(txn)?);
        Ok(())
    }

    /// [`Store::commit`], which answers why what the write took out of use was not overwritten.
    pub(crate) fn commit_and_tell(&self, txn: RwTxn<'_>) -> Result<Option<NotErased>, Error> {
        txn.commit().map_err(failed("commit a write"))?;
        Ok(self.erase_unused())
    }

    /// Overwrites what is not in use. The change before it stands, whatever becomes of this.
    pub(crate) fn erase_unused(&self) -> Option<NotErased> {
        let error = self.try_to_erase().err()?;
        let told: &dyn std::error::Error = &error;
        tracing::warn!(error = told, "{NOT_ERASED}");
        Some(error)
    }

    fn try_to_erase(&self) -> Result<(), erase::Error> {
        let lmdb = |error| erase::Error::Io(io::Error::other(error));
        // Nobody else writes meanwhile.
        let txn = self.env.write_txn().map_err(lmdb)?;
        self.env.clear_stale_readers().map_err(lmdb)?;
        let readers = self.readers.as_ref().ok_or(erase::Error::Lock)?;
        let places = usize::try_from(self.env.info().number_of_readers).unwrap_or(usize::MAX);
        erase::erase(&self.env.try_clone_inner_file().map_err(lmdb)?, readers, places)?;
        txn.abort();
        Ok(())
    }

    /// Writes the format and a fresh key for token hashes where they are missing.
    pub(crate) fn found(&self, txn: &mut RwTxn<'_>) -> Result<(), Error> {
        if self.bytes(&self.meta, txn, "format")?.is_none() {
            self.mark_format(txn)?;
        }
        if self.bytes(&self.meta, txn, "agent-key")?.is_none() {
            let key = crate::seal::random_key().map_err(Error::Random)?;
            self.put(&self.meta, txn, "agent-key", &*key)?;
        }
        Ok(())
    }

    /// Says that only versions which know the newest format may use the store from now on.
    pub(crate) fn mark_format(&self, txn: &mut RwTxn<'_>) -> Result<(), Error> {
        self.put(&self.meta, txn, "format", FORMAT.as_bytes())
    }

    /// The bytes under a key.
    pub(crate) fn bytes(
        &self,
        table: &Table,
        txn: &RoTxn<'_>,
        key: &str,
    ) -> Result<Option<Vec<u8>>, Error> {
        let found = table.get(txn, key).map_err(failed("read a record"))?;
        Ok(found.map(<[u8]>::to_vec))
    }

    /// The JSON record under a key.
    pub(crate) fn record<R: DeserializeOwned>(
        &self,
        table: &Table,
        txn: &RoTxn<'_>,
        key: &str,
        what: &'static str,
    ) -> Result<Option<R>, Error> {
        let found = table.get(txn, key).map_err(failed("read a record"))?;
        let parse = |bytes| serde_json::from_slice(bytes).map_err(|_| Error::Damaged(what));
        found.map(parse).transpose()
    }

    /// All JSON records of a table, by key.
    pub(crate) fn records<R: DeserializeOwned>(
        &self,
        table: &Table,
        txn: &RoTxn<'_>,
        what: &'static str,
    ) -> Result<Vec<(String, R)>, Error> {
        let mut records = Vec::new();
        for entry in table.iter(txn).map_err(failed("read its records"))? {
            let (key, bytes) = entry.map_err(failed("read its records"))?;
            let record = serde_json::from_slice(bytes).map_err(|_| Error::Damaged(what))?;
            records.push((key.to_owned(), record));
        }
        Ok(records)
    }

    /// Puts bytes under a key.
    pub(crate) fn put(
        &self,
        table: &Table,
        txn: &mut RwTxn<'_>,
        key: &str,
        bytes: &[u8],
    ) -> Result<(), Error> {
        table.put(txn, key, bytes).map_err(failed("write a record"))
    }

    /// Puts a JSON record under a key.
    pub(crate) fn put_record<R: Serialize>(
        &self,
        table: &Table,
        txn: &mut RwTxn<'_>,
        key: &str,
        record: &R,
    ) -> Result<(), Error> {
        let bytes = serde_json::to_vec(record).map_err(|_| Error::Damaged("a new entry"))?;
        self.put(table, txn, key, &bytes)
    }

    /// Removes a key; answers whether it was there.
    pub(crate) fn delete(
        &self,
        table: &Table,
        txn: &mut RwTxn<'_>,
        key: &str,
    ) -> Result<bool, Error> {
        table.delete(txn, key).map_err(failed("remove a record"))
    }
}

impl Known {
    /// Waits until the last handle has gone, in whatever thread.
    fn wait_until_closed(&self) -> Result<(), Error> {
        let until = Instant::now() + CLOSING;
        while self.whole.strong_count() > 0 {
            if Instant::now() > until {
                let source = heed::Error::Io(io::ErrorKind::TimedOut.into());
                return Err(Error::Lmdb { step: "open it beside a handle that closes", source });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A number as a key that sorts.
pub(crate) fn number_key(number: u64) -> String {
    format!("{number:020}")
}

#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
