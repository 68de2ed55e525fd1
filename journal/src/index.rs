//! The derived index in LMDB: what can be computed from the log, kept so that it can be found.
//!
//! It lives in an environment of its own and can be deleted at any time. One table per kind of key.
//! Inside the index an invocation goes by its first sequence, so that the tables that grow with every
//! call grow at their end: LMDB leaves the pages behind an end full, and those before it half full.
//!
//! ```text
//! watermark    schema                         store id, applied sequence, chain value there
//! invocations  first sequence                 the projected invocation, see `stored`
//! ids          invocation id                  first sequence
//! records      first sequence, lowest         places of the records of one update, see `place`
//! open         first sequence                 invocation id (not settled, or not known delivered)
//! doubt        first sequence                 invocation id (settled as unknown)
//! expiring     end of its retention, id       nothing (holds chunks of a result)
//! totals       route, first sequence          invocation id, bytes of its result, end of retention
//! counted      first sequence                 time of dispatch, bytes, agent (counts for a budget)
//! guards       agent, fingerprint; sequence   nothing (may guard an equal request, K-11)
//! keys         scope, key; first sequence     nothing (binds an idempotency key, K-3)
//! ```

use crate::contract::{InvocationId, Sequence};
use crate::guard;
use crate::log::recover::Watermark;
use crate::log::{Kind, Position};
use crate::projection::{Delivery, Invocation, State};
use heed::{Env, RoTxn, RwTxn, WithoutTls};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

mod counted;
mod place;
mod stored;
mod tables;
#[cfg(test)]
mod tests;
mod totals;
mod upkeep;

use tables::{Table, Tables};
pub(crate) use totals::Surplus;

type Reader<'a> = RoTxn<'a, WithoutTls>;

/// Why the index failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("LMDB")]
    Lmdb(#[from] heed::Error),
    #[error("could not use the directory of the index")]
    Io(#[from] std::io::Error),
    #[error("an invocation can't be encoded")]
    Encode(#[from] rmp_serde::encode::Error),
    #[error("a stored invocation can't be decompressed")]
    Decompress(#[from] lz4_flex::block::DecompressError),
    #[error("a stored invocation can't be read")]
    Decode(#[from] rmp_serde::decode::Error),
    #[error("the index holds a malformed entry")]
    Malformed,
    #[error("the index has the layout of an earlier version")]
    Layout,
}

impl From<Error> for crate::read::Error {
    fn from(error: Error) -> Self {
        Self::Index(Box::new(error))
    }
}

/// What one invocation adds to the index.
pub(crate) struct Update {
    pub(crate) invocation: Arc<Invocation>,
    pub(crate) records: Vec<(Sequence, Kind, Position)>,
}

/// What an equal submission is looked for by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its request: agent and fingerprint (K-11).
    Request([u8; 16]),
    /// Its idempotency key, in its scope (K-3).
    Key([u8; 16]),
}

/// The index of one journal.
pub(crate) struct Index {
    env: Env<WithoutTls>,
    tables: Tables,
}

fn id_of(bytes: &[u8]) -> Result<InvocationId, Error> {
    bytes.first_chunk::<16>().copied().map(InvocationId::from_bytes).ok_or(Error::Malformed)
}

/// A sequence as (the end of) a key, which must sort.
const fn order(sequence: Sequence) -> [u8; 8] {
    sequence.0.to_be_bytes()
}

/// The sequence at the end of a key or value.
fn sequence_of(bytes: &[u8]) -> Result<Sequence, Error> {
    let last = bytes.last_chunk::<8>().ok_or(Error::Malformed)?;
    Ok(Sequence(u64::from_be_bytes(*last)))
}

/// A key of two parts.
fn pair<const A: usize, const B: usize, const N: usize>(
    first: [u8; A],
    second: [u8; B],
) -> [u8; N] {
    const { assert!(A + B == N, "a key has the length of its parts") };
    let mut key = [0; N];
    for (to, from) in key.iter_mut().zip(first.into_iter().chain(second)) {
        *to = from;
    }
    key
}

/// The key of a hash that several invocations can have.
fn hashed(hash: [u8; 16], first: Sequence) -> [u8; 24] {
    pair(hash, order(first))
}

/// The key of a result.
fn expiring(expiry_ms: u64, id: InvocationId) -> [u8; 24] {
    pair(expiry_ms.to_be_bytes(), id.to_bytes())
}

/// The id alone of a stored invocation.
#[derive(Deserialize)]
struct Named {
    id: InvocationId,
}

impl Index {
    /// Opens or makes the index.
    pub(crate) fn open(path: &Path, durable: bool) -> Result<Self, Error> {
        let (env, tables) = tables::open(path, durable)?;
        Ok(Self { env, tables })
    }

    /// Where the index of a directory stands, read beside whatever writes it. `None` when there is
    /// none, or it can't be read from here (this process has it open, say).
    pub(crate) fn peek(path: &Path) -> Option<Watermark> {
        tables::peek(path)
    }

    /// Where the index stands; `None` when it is empty or of another schema.
    pub(crate) fn watermark(&self) -> Result<Option<Watermark>, Error> {
        let reader = self.env.read_txn()?;
        Ok(tables::read_watermark(&self.tables.watermark, &reader)?)
    }

    /// Removes everything.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for table in self.tables.all() {
            table.clear(&mut writer)?;
        }
        writer.commit()?;
        Ok(())
    }

    /// Takes updates and the watermark that they lead to, in one transaction.
    pub(crate) fn apply(&self, updates: &[Update], watermark: &Watermark) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        let mut sorted: Vec<&Update> = updates.iter().collect();
        sorted.sort_unstable_by_key(|update| update.invocation.first_sequence());
        let mut buffer = Vec::new();
        for update in &sorted {
            self.put(&mut writer, update, &mut buffer)?;
        }
        sorted.sort_unstable_by_key(|update| update.invocation.id());
        for invocation in sorted.iter().map(|update| &update.invocation) {
            let key = invocation.id().to_bytes();
            note(&self.tables.ids, &mut writer, &key, &order(invocation.first_sequence()))?;
        }
        let results = sorted.iter().filter_map(|update| {
            let expiry = update.invocation.result_expires_ms()?;
            Some(expiring(expiry, update.invocation.id()))
        });
        let mut results: Vec<[u8; 24]> = results.collect();
        results.sort_unstable();
        for key in &results {
            note(&self.tables.expiring, &mut writer, key, &[])?;
        }
        tables::write_watermark(&self.tables.watermark, &mut writer, watermark)?;
        writer.commit()?;
        Ok(())
    }

    /// What is found by the invocation's first sequence, or by a hash.
    fn put(
        &self,
        writer: &mut RwTxn<'_>,
        update: &Update,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let invocation = &*update.invocation;
        let first = invocation.first_sequence();
        let stored = stored::encode(invocation, buffer)?;
        self.tables.invocations.put(writer, &order(first), &stored)?;
        if let Some((lowest, _, _)) = update.records.first() {
            buffer.clear();
            place::encode(*lowest, &update.records, buffer);
            let key: [u8; 16] = pair(order(first), order(*lowest));
            self.tables.records.put(writer, &key, buffer)?;
        }
        let id = invocation.id().to_bytes();
        toggle(&self.tables.open, writer, &order(first), is_open(invocation), &id)?;
        toggle(&self.tables.doubt, writer, &order(first), invocation.is_in_doubt(), &id)?;
        self.put_counted(writer, invocation)?;
        self.put_total(writer, invocation)?;
        if let Some(hash) = guard::request_hash(invocation.accepted()) {
            let idempotent = invocation.preflight().is_some_and(|bound| bound.idempotent);
            let guards = !idempotent && guard::may_guard(invocation);
            toggle(&self.tables.guards, writer, &hashed(hash, first), guards, &[])?;
        }
        if let Some(bound) = invocation.preflight().and_then(|bound| bound.idempotency.as_ref()) {
            let key = hashed(guard::key_hash(&bound.scope, &bound.key), first);
            toggle(&self.tables.keys, writer, &key, guard::may_bind(invocation), &[])?;
        }
        Ok(())
    }

    /// The invocation as of the watermark.
    pub(crate) fn invocation(&self, id: InvocationId) -> Result<Option<Invocation>, Error> {
        let reader = self.env.read_txn()?;
        match self.first_of(&reader, id)? {
            Some(first) => self.read(&reader, first),
            None => Ok(None),
        }
    }

    fn first_of(&self, reader: &Reader<'_>, id: InvocationId) -> Result<Option<Sequence>, Error> {
        self.tables.ids.get(reader, &id.to_bytes())?.map(sequence_of).transpose()
    }

    fn read(&self, reader: &Reader<'_>, first: Sequence) -> Result<Option<Invocation>, Error> {
        self.tables.invocations.get(reader, &order(first))?.map(stored::decode).transpose()
    }

    /// The records of an invocation, in order.
    pub(crate) fn records(
        &self,
        id: InvocationId,
    ) -> Result<Vec<(Sequence, Kind, Position)>, Error> {
        let reader = self.env.read_txn()?;
        let mut records = Vec::new();
        let Some(first) = self.first_of(&reader, id)? else { return Ok(records) };
        for entry in self.tables.records.prefix_iter(&reader, &order(first))? {
            let (key, places) = entry?;
            place::decode(sequence_of(key)?, places, &mut records).ok_or(Error::Malformed)?;
        }
        // A replay after a crash can have written some of them again, in other groups.
        records.sort_unstable_by_key(|(sequence, _, _)| *sequence);
        records.dedup_by_key(|(sequence, _, _)| *sequence);
        Ok(records)
    }

    /// Invocations that are not settled, or settled and not known to be delivered.
    pub(crate) fn open_invocations(&self) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        self.tables.open.iter(&reader)?.map(|entry| id_of(entry?.1)).collect()
    }

    /// Invocations that are settled as unknown, newest first.
    pub(crate) fn in_doubt(&self) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        self.tables.doubt.rev_iter(&reader)?.map(|entry| id_of(entry?.1)).collect()
    }

    /// Invocations below a sequence, newest first, until `visit` says stop.
    pub(crate) fn newest(
        &self,
        below: Sequence,
        visit: &mut dyn FnMut(Sequence, Invocation) -> bool,
    ) -> Result<(), Error> {
        let reader = self.env.read_txn()?;
        let end = order(below);
        let range = (std::ops::Bound::Unbounded, std::ops::Bound::Excluded(&end[..]));
        for entry in self.tables.invocations.rev_range(&reader, &range)? {
            let (key, stored) = entry?;
            if !visit(sequence_of(key)?, stored::decode(stored)?) {
                break;
            }
        }
        Ok(())
    }

    /// Invocations that may guard or bind a key, newest first, at most `limit`.
    pub(crate) fn guards(&self, by: Lookup, limit: usize) -> Result<Vec<Invocation>, Error> {
        let (table, hash) = match by {
            Lookup::Request(hash) => (&self.tables.guards, hash),
            Lookup::Key(hash) => (&self.tables.keys, hash),
        };
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in table.rev_prefix_iter(&reader, &hash)?.take(limit) {
            found.extend(self.read(&reader, sequence_of(entry?.0)?)?);
        }
        Ok(found)
    }

    /// Invocations that began at or before a sequence, oldest first.
    pub(crate) fn begun_by(&self, cut: Sequence) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        let end = order(cut);
        let range = (std::ops::Bound::Unbounded, std::ops::Bound::Included(&end[..]));
        let mut ids = Vec::new();
        for entry in self.tables.invocations.range(&reader, &range)? {
            ids.push(stored::decode::<Named>(entry?.1)?.id);
        }
        Ok(ids)
    }

    /// Waits until no handle is left, so that the same process can open it again.
    pub(crate) fn close(self) {
        self.env.prepare_for_closing().wait();
    }
}

/// Whether a restart has to look at it.
fn is_open(invocation: &Invocation) -> bool {
    match invocation.state() {
        State::Accepted | State::Validated | State::Authorized | State::Dispatched => true,
        State::Ended(_) => false,
        State::Committed(_) => invocation.delivery() == Delivery::Pending,
    }
}

/// Puts an entry whose value never changes. One that is there already costs no page.
fn note(table: &Table, writer: &mut RwTxn<'_>, key: &[u8], value: &[u8]) -> Result<(), Error> {
    table.get_or_put(writer, key, value)?;
    Ok(())
}

/// The same of an entry that comes and goes.
fn toggle(
    table: &Table,
    writer: &mut RwTxn<'_>,
    key: &[u8],
    present: bool,
    value: &[u8],
) -> Result<(), Error> {
    if present {
        note(table, writer, key, value)
    } else {
        table.delete(writer, key)?;
        Ok(())
    }
}
