//! The tables of the index: their names, how they are opened, and where the index stands.

use super::{Error, Reader};
use crate::log::recover::Watermark;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RwTxn, WithoutTls};
use std::path::Path;

/// Changes with any change of what is stored; another value rebuilds the index.
pub(super) const SCHEMA: u32 = 6;
/// Address space that the index may grow into.
const MAP_BYTES: usize = 1 << 36;
/// Where the index stands.
const WATERMARK: &str = "watermark";
/// Schemas up to 5 had everything in the unnamed table, and this key.
const FORMER_WATERMARK: &[u8] = b"m";

pub(super) type Table = Database<'static, Bytes, Bytes>;

/// From one list of names: the tables, how they are made, and all of them.
macro_rules! tables {
    ($($name:ident,)+) => {
        /// All of them, by their names.
        pub(super) struct Tables {
            $(pub(super) $name: Table,)+
        }

        /// How many.
        const TABLES: usize = [$(stringify!($name)),+].len();

        impl Tables {
            fn create(env: &Env<WithoutTls>) -> Result<Self, heed::Error> {
                let writer = env.write_txn()?;
                let ($($name,)+) = env
                    .create_databases_and_commit(writer, |opener, writer| {
                        let mut create =
                            |name| opener.create_database::<Bytes, Bytes>(writer, Some(name));
                        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((
                            $(create(stringify!($name))?,)+
                        )))
                    })?
                    .unwrap_commit();
                Ok(Self { $($name,)+ })
            }

            pub(super) const fn all(&self) -> [&Table; TABLES] {
                [$(&self.$name,)+]
            }
        }
    };
}

tables! {
    watermark,
    invocations,
    ids,
    records,
    open,
    doubt,
    expiring,
    totals,
    counted,
    guards,
    keys,
}

/// Opens or makes the environment and its tables.
pub(super) fn open(path: &Path, durable: bool) -> Result<(Env<WithoutTls>, Tables), Error> {
    std::fs::create_dir_all(path)?;
    restrict(path, 0o700)?;
    let env = open_env(path, durable)?;
    match use_env(path, &env) {
        Ok(tables) => Ok((env, tables)),
        Err(error) => {
            // So that it can be removed, and another be made in its place.
            env.prepare_for_closing().wait();
            Err(error)
        }
    }
}

fn use_env(path: &Path, env: &Env<WithoutTls>) -> Result<Tables, Error> {
    for name in ["data.mdb", "lock.mdb"] {
        restrict(&path.join(name), 0o600)?;
    }
    let former =
        look(env, None, |table, reader| Ok(table.get(reader, FORMER_WATERMARK)?.is_some()));
    if former? == Some(true) {
        return Err(Error::Layout);
    }
    Ok(Tables::create(env)?)
}

/// Where the index of a directory stands, if it can be read.
pub(super) fn peek(path: &Path) -> Option<Watermark> {
    if !path.join("data.mdb").exists() {
        return None;
    }
    let env = open_to_read(path).ok()?;
    look(&env, Some(WATERMARK), read_watermark).ok()??
}

/// Reads in a table, if it exists, without keeping a handle of it.
fn look<T>(
    env: &Env<WithoutTls>,
    name: Option<&str>,
    read: impl FnOnce(&Database<'_, Bytes, Bytes>, &Reader<'_>) -> Result<T, heed::Error>,
) -> Result<Option<T>, heed::Error> {
    let looked = env.open_databases_and_commit(env.read_txn()?, |opener, reader| {
        let table = opener.open_database::<Bytes, Bytes>(reader, name)?;
        let found = table.map(|table| read(&table, reader)).transpose()?;
        Ok::<_, heed::Error>(CommitOrAbort::<(), _>::Abort(found))
    });
    match looked? {
        CommitOrAbort::Abort(found) => Ok(found),
        CommitOrAbort::Commit(()) => Ok(None),
    }
}

/// Where the index stands; `None` when it is empty or of another schema.
pub(super) fn read_watermark(
    table: &Database<'_, Bytes, Bytes>,
    reader: &Reader<'_>,
) -> Result<Option<Watermark>, heed::Error> {
    Ok(table.get(reader, &SCHEMA.to_be_bytes())?.and_then(parse))
}

fn parse(bytes: &[u8]) -> Option<Watermark> {
    let (store, rest) = bytes.split_first_chunk::<16>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (chain, _) = rest.split_first_chunk::<32>()?;
    Some(Watermark { store: *store, sequence: u64::from_le_bytes(*sequence), chain: *chain })
}

pub(super) fn write_watermark(
    table: &Table,
    writer: &mut RwTxn<'_>,
    watermark: &Watermark,
) -> Result<(), heed::Error> {
    let mut bytes = watermark.store.to_vec();
    bytes.extend_from_slice(&watermark.sequence.to_le_bytes());
    bytes.extend_from_slice(&watermark.chain);
    table.put(writer, &SCHEMA.to_be_bytes(), &bytes)
}

fn options() -> EnvOpenOptions<WithoutTls> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP_BYTES).max_readers(1024).max_dbs(TABLES as u32);
    options
}

#[expect(unsafe_code, reason = "LMDB maps a file; nobody else may change it while it is mapped")]
fn open_env(path: &Path, durable: bool) -> Result<Env<WithoutTls>, heed::Error> {
    let mut options = options();
    if !durable {
        // SAFETY: an index that a crash corrupts is rebuilt; only benches and tests ask for it.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the directory lock of the journal is held, and only this module touches the files.
    unsafe { options.open(path) }
}

#[expect(unsafe_code, reason = "LMDB maps a file, here to read it")]
fn open_to_read(path: &Path) -> Result<Env<WithoutTls>, heed::Error> {
    // SAFETY: a read-only map; whoever writes the index does so through LMDB and its lock file.
    unsafe { options().flags(EnvFlags::READ_ONLY).open(path) }
}

fn restrict(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
