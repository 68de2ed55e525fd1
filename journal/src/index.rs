//! The derived index in LMDB: what can be computed from the log, kept so that it can be found.
//!
//! It lives in an environment of its own and can be deleted at any time. One database, keys by a
//! first byte:
//!
//! ```text
//! m                                  store id, applied sequence, chain value there
//! i  invocation id                   the projected invocation, JSON
//! r  invocation id, sequence         records of one update: sequence, kind, position in the log
//! o  first sequence                  invocation id (the order of lists)
//! u  invocation id                   nothing (not settled, or settled and not known delivered)
//! g  agent and fingerprint, sequence invocation id (may guard an equal request, K-11)
//! k  scope and key, sequence         invocation id (binds an idempotency key, K-3)
//! x  end of its retention, id        nothing (holds chunks of a result)
//! t  route, first sequence           invocation id, bytes of its result, end of its retention
//! d  first sequence                  invocation id (in doubt: settled as unknown)
//! ```

use crate::contract::{InvocationId, Sequence};
use crate::guard;
use crate::log::recover::Watermark;
use crate::log::{Kind, Position};
use crate::projection::{Delivery, Invocation, State};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};
use std::path::Path;
use std::sync::Arc;

/// Changes with any change of what is stored; another value rebuilds the index.
const SCHEMA: u32 = 5;
/// Address space that the index may grow into.
const MAP_BYTES: usize = 1 << 36;

mod totals;

pub(crate) use totals::Surplus;

type Table = Database<'static, Bytes, Bytes>;
type Reader<'a> = RoTxn<'a, WithoutTls>;

/// Why the index failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("LMDB")]
    Lmdb(#[from] heed::Error),
    #[error("could not use the directory of the index")]
    Io(#[from] std::io::Error),
    #[error("a stored invocation can't be read")]
    Decode(#[from] serde_json::Error),
    #[error("the index holds a malformed entry")]
    Malformed,
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

/// The index of one journal.
pub(crate) struct Index {
    env: Env<WithoutTls>,
    table: Table,
}

fn key<const A: usize>(tag: u8, first: [u8; A], second: Option<Sequence>) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + A + 8);
    key.push(tag);
    key.extend_from_slice(&first);
    if let Some(sequence) = second {
        key.extend_from_slice(&sequence.0.to_be_bytes());
    }
    key
}

fn expiry_key(expiry_ms: u64, id: [u8; 16]) -> Vec<u8> {
    let mut key = vec![b'x'];
    key.extend_from_slice(&expiry_ms.to_be_bytes());
    key.extend_from_slice(&id);
    key
}

fn id_of(bytes: &[u8]) -> Result<InvocationId, Error> {
    bytes.first_chunk::<16>().copied().map(InvocationId::from_bytes).ok_or(Error::Malformed)
}

/// The big-endian sequence at the end of a key.
fn sequence_of(key: &[u8]) -> Result<Sequence, Error> {
    let bytes = key.last_chunk::<8>().ok_or(Error::Malformed)?;
    Ok(Sequence(u64::from_be_bytes(*bytes)))
}

fn parse_mark(bytes: &[u8]) -> Option<Watermark> {
    let (schema, rest) = bytes.split_first_chunk::<4>()?;
    let (store, rest) = rest.split_first_chunk::<16>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (chain, _) = rest.split_first_chunk::<32>()?;
    (u32::from_le_bytes(*schema) == SCHEMA).then(|| Watermark {
        store: *store,
        sequence: u64::from_le_bytes(*sequence),
        chain: *chain,
    })
}

impl Index {
    /// Opens or makes the index.
    pub(crate) fn open(path: &Path, durable: bool) -> Result<Self, Error> {
        std::fs::create_dir_all(path)?;
        restrict(path, 0o700)?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(1024).max_dbs(0);
        let env = open_env(&mut options, path, durable)?;
        for name in ["data.mdb", "lock.mdb"] {
            restrict(&path.join(name), 0o600)?;
        }
        let writer = env.write_txn()?;
        let table: Table = env
            .create_databases_and_commit(writer, |opener, writer| {
                opener.create_database(writer, None).map(CommitOrAbort::<_, ()>::Commit)
            })?
            .unwrap_commit();
        Ok(Self { env, table })
    }

    /// Where the index of a directory stands, read beside whatever writes it. `None` when there is
    /// none, or it can't be read from here (this process has it open, say).
    pub(crate) fn peek(path: &Path) -> Option<Watermark> {
        if !path.join("data.mdb").exists() {
            return None;
        }
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(1024).max_dbs(0);
        let env = open_to_read(&mut options, path).ok()?;
        let reader = env.read_txn().ok()?;
        let looked = env.open_databases_and_commit(reader, |opener, reader| {
            let table = opener.open_database::<Bytes, Bytes>(reader, None)?;
            let mark = match &table {
                Some(table) => table.get(reader, b"m")?.and_then(parse_mark),
                None => None,
            };
            Ok::<_, heed::Error>(CommitOrAbort::<Database<'_, Bytes, Bytes>, _>::Abort(mark))
        });
        match looked.ok()? {
            CommitOrAbort::Abort(mark) => mark,
            CommitOrAbort::Commit(_) => None,
        }
    }

    /// Where the index stands; `None` when it is empty or of another schema.
    pub(crate) fn watermark(&self) -> Result<Option<Watermark>, Error> {
        let reader = self.env.read_txn()?;
        Ok(self.table.get(&reader, b"m")?.and_then(parse_mark))
    }

    /// Removes everything.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        self.table.clear(&mut writer)?;
        writer.commit()?;
        Ok(())
    }

    /// Takes updates and the watermark that they lead to, in one transaction.
    pub(crate) fn apply(&self, updates: &[Update], watermark: &Watermark) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for update in updates {
            self.put(&mut writer, update)?;
        }
        let mut bytes = SCHEMA.to_le_bytes().to_vec();
        bytes.extend_from_slice(&watermark.store);
        bytes.extend_from_slice(&watermark.sequence.to_le_bytes());
        bytes.extend_from_slice(&watermark.chain);
        self.table.put(&mut writer, b"m", &bytes)?;
        writer.commit()?;
        Ok(())
    }

    fn put(&self, writer: &mut RwTxn<'_>, update: &Update) -> Result<(), Error> {
        let invocation = &*update.invocation;
        let id = invocation.id().to_bytes();
        let first = invocation.first_sequence();
        let stored = serde_json::to_vec(invocation)?;
        self.table.put(writer, &key(b'i', id, None), &stored)?;
        self.table.put(writer, &key(b'o', first.0.to_be_bytes(), None), &id)?;
        if let Some((lowest, _, _)) = update.records.first() {
            let mut places = Vec::with_capacity(update.records.len() * RECORD);
            for record in &update.records {
                encode_record(record, &mut places);
            }
            self.table.put(writer, &key(b'r', id, Some(*lowest)), &places)?;
        }
        let open = match invocation.state() {
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => true,
            State::Ended(_) => false,
            State::Committed(_) => invocation.delivery() == Delivery::Pending,
        };
        self.toggle(writer, &key(b'u', id, None), open, &[])?;
        let doubt = key(b'd', first.0.to_be_bytes(), None);
        self.toggle(writer, &doubt, invocation.is_in_doubt(), &id)?;
        if let Some(expiry) = invocation.result_expires_ms() {
            self.toggle(writer, &expiry_key(expiry, id), true, &[])?;
        }
        if let Some(at_ms) = invocation.dispatched_at_ms().filter(|_| invocation.accepted().counted)
        {
            let mut value = at_ms.to_be_bytes().to_vec();
            value.extend_from_slice(&invocation.moved_bytes().to_be_bytes());
            let agent = invocation.accepted().agent.as_deref().unwrap_or_default();
            value.extend_from_slice(agent.as_bytes());
            self.table.put(writer, &key(b'b', first.0.to_be_bytes(), None), &value)?;
        }
        self.put_total(writer, invocation)?;
        if let Some(hash) = guard::request_hash(invocation.accepted()) {
            let idempotent = invocation.preflight().is_some_and(|bound| bound.idempotent);
            let guards = !idempotent && guard::may_guard(invocation);
            self.toggle(writer, &key(b'g', hash, Some(first)), guards, &id)?;
        }
        if let Some(bound) = invocation.preflight().and_then(|bound| bound.idempotency.as_ref()) {
            let hash = guard::key_hash(&bound.scope, &bound.key);
            let binds = guard::may_bind(invocation);
            self.toggle(writer, &key(b'k', hash, Some(first)), binds, &id)?;
        }
        Ok(())
    }

    fn toggle(
        &self,
        writer: &mut RwTxn<'_>,
        key: &[u8],
        present: bool,
        value: &[u8],
    ) -> Result<(), Error> {
        if present {
            self.table.put(writer, key, value)?;
        } else {
            self.table.delete(writer, key)?;
        }
        Ok(())
    }

    /// The invocation as of the watermark.
    pub(crate) fn invocation(&self, id: InvocationId) -> Result<Option<Invocation>, Error> {
        let reader = self.env.read_txn()?;
        self.read(&reader, id)
    }

    fn read(&self, reader: &Reader<'_>, id: InvocationId) -> Result<Option<Invocation>, Error> {
        match self.table.get(reader, &key(b'i', id.to_bytes(), None))? {
            Some(bytes) => Ok(Some(serde_json::from_slice(bytes)?)),
            None => Ok(None),
        }
    }

    /// The records of an invocation, in order.
    pub(crate) fn records(
        &self,
        id: InvocationId,
    ) -> Result<Vec<(Sequence, Kind, Position)>, Error> {
        let reader = self.env.read_txn()?;
        let mut records = Vec::new();
        for entry in self.table.prefix_iter(&reader, &key(b'r', id.to_bytes(), None))? {
            let (_, places) = entry?;
            for place in places.chunks(RECORD) {
                records.push(decode_record(place).ok_or(Error::Malformed)?);
            }
        }
        // A replay after a crash can have written some of them again, in other groups.
        records.sort_unstable_by_key(|(sequence, _, _)| *sequence);
        records.dedup_by_key(|(sequence, _, _)| *sequence);
        Ok(records)
    }

    /// Invocations that are not settled, or settled and not known to be delivered.
    pub(crate) fn open_invocations(&self) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        let mut ids = Vec::new();
        for entry in self.table.prefix_iter(&reader, b"u")? {
            let (key, _) = entry?;
            ids.push(id_of(key.get(1..).unwrap_or_default())?);
        }
        Ok(ids)
    }

    /// Invocations that are settled as unknown, newest first.
    pub(crate) fn in_doubt(&self) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        let mut ids = Vec::new();
        for entry in self.table.rev_prefix_iter(&reader, b"d")? {
            let (_, id) = entry?;
            ids.push(id_of(id)?);
        }
        Ok(ids)
    }

    /// Invocations below a sequence, newest first, until `visit` says stop.
    pub(crate) fn newest(
        &self,
        below: Sequence,
        visit: &mut dyn FnMut(Sequence, Invocation) -> bool,
    ) -> Result<(), Error> {
        let reader = self.env.read_txn()?;
        let end = key(b'o', below.0.to_be_bytes(), None);
        let start = key(b'o', [0; 8], None);
        let range = (
            std::ops::Bound::Included(start.as_slice()),
            std::ops::Bound::Excluded(end.as_slice()),
        );
        for entry in self.table.rev_range(&reader, &range)? {
            let (key, id) = entry?;
            let sequence = sequence_of(key)?;
            if let Some(invocation) = self.read(&reader, id_of(id)?)?
                && !visit(sequence, invocation)
            {
                break;
            }
        }
        Ok(())
    }

    /// Invocations that may guard (`g`) or bind a key (`k`), newest first, at most `limit`.
    pub(crate) fn guards(
        &self,
        tag: u8,
        hash: [u8; 16],
        limit: usize,
    ) -> Result<Vec<Invocation>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in self.table.rev_prefix_iter(&reader, &key(tag, hash, None))?.take(limit) {
            let (_, id) = entry?;
            found.extend(self.read(&reader, id_of(id)?)?);
        }
        Ok(found)
    }

    /// Invocations that began at or before a sequence, oldest first.
    pub(crate) fn begun_by(&self, cut: Sequence) -> Result<Vec<InvocationId>, Error> {
        let reader = self.env.read_txn()?;
        let start = key(b'o', [0; 8], None);
        let end = key(b'o', cut.0.to_be_bytes(), None);
        let range = (
            std::ops::Bound::Included(start.as_slice()),
            std::ops::Bound::Included(end.as_slice()),
        );
        let mut ids = Vec::new();
        for entry in self.table.range(&reader, &range)? {
            let (_, id) = entry?;
            ids.push(id_of(id)?);
        }
        Ok(ids)
    }

    /// Removes invocations whose records have left the log.
    pub(crate) fn remove(&self, invocations: &[Invocation]) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for invocation in invocations {
            let id = invocation.id().to_bytes();
            let first = invocation.first_sequence();
            let mut keys = vec![
                key(b'i', id, None),
                key(b'o', first.0.to_be_bytes(), None),
                key(b'u', id, None),
                key(b'd', first.0.to_be_bytes(), None),
            ];
            for entry in self.table.prefix_iter(&writer, &key(b'r', id, None))? {
                keys.push(entry?.0.to_vec());
            }
            keys.extend(invocation.result_expires_ms().map(|expiry| expiry_key(expiry, id)));
            keys.extend(totals::total_key(invocation));
            let guard = guard::request_hash(invocation.accepted());
            keys.extend(guard.map(|hash| key(b'g', hash, Some(first))));
            let bound = invocation.preflight().and_then(|bound| bound.idempotency.as_ref());
            keys.extend(
                bound
                    .map(|bound| key(b'k', guard::key_hash(&bound.scope, &bound.key), Some(first))),
            );
            for key in &keys {
                self.table.delete(&mut writer, key)?;
            }
        }
        writer.commit()?;
        Ok(())
    }

    /// Results whose retention ended before a time: its key and the invocation, oldest first.
    pub(crate) fn expired(&self, now_ms: u64) -> Result<Vec<(u64, InvocationId)>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in self.table.prefix_iter(&reader, b"x")? {
            let (key, _) = entry?;
            let rest = key.get(1..).unwrap_or_default();
            let (expiry, id) = rest.split_first_chunk::<8>().ok_or(Error::Malformed)?;
            let expiry = u64::from_be_bytes(*expiry);
            if expiry > now_ms {
                break;
            }
            found.push((expiry, id_of(id)?));
        }
        Ok(found)
    }

    /// Forgets that these hold chunks.
    pub(crate) fn forget_results(&self, results: &[(u64, InvocationId)]) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for (expiry, id) in results {
            self.table.delete(&mut writer, &expiry_key(*expiry, id.to_bytes()))?;
            let stored = self.table.get(&writer, &key(b'i', id.to_bytes(), None))?;
            let invocation = stored.map(serde_json::from_slice::<Invocation>).transpose()?;
            if let Some(key) = invocation.as_ref().and_then(totals::total_key) {
                self.table.delete(&mut writer, &key)?;
            }
        }
        writer.commit()?;
        Ok(())
    }

    /// Calls that count for a budget and were dispatched at or after a time: agent, time, bytes.
    pub(crate) fn counted(&self, since_ms: u64) -> Result<Vec<(String, u64, u64)>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in self.table.prefix_iter(&reader, b"b")? {
            let (at_ms, rest) = entry?.1.split_first_chunk::<8>().ok_or(Error::Malformed)?;
            let (bytes, agent) = rest.split_first_chunk::<8>().ok_or(Error::Malformed)?;
            let at_ms = u64::from_be_bytes(*at_ms);
            if at_ms >= since_ms {
                let agent = std::str::from_utf8(agent).map_err(|_| Error::Malformed)?;
                found.push((agent.to_owned(), at_ms, u64::from_be_bytes(*bytes)));
            }
        }
        Ok(found)
    }

    /// Forgets calls that count for no budget any more.
    pub(crate) fn prune_counted(&self, before_ms: u64) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        let mut old = Vec::new();
        for entry in self.table.prefix_iter(&writer, b"b")? {
            let (key, value) = entry?;
            let at_ms = value.first_chunk::<8>().ok_or(Error::Malformed)?;
            if u64::from_be_bytes(*at_ms) < before_ms {
                old.push(key.to_vec());
            }
        }
        for key in &old {
            self.table.delete(&mut writer, key)?;
        }
        writer.commit()?;
        Ok(())
    }

    /// Forgets guards of invocations that ended before a time, and their keys once they are over.
    pub(crate) fn prune_guards(&self, before_ms: u64, now_ms: u64) -> Result<(), Error> {
        let mut old = Vec::new();
        {
            let reader = self.env.read_txn()?;
            for tag in [b"g", b"k"] {
                for entry in self.table.prefix_iter(&reader, tag)? {
                    let (key, id) = entry?;
                    let invocation = self.read(&reader, id_of(id)?)?;
                    let is_over = invocation.is_none_or(|old| {
                        let is_kept = tag == b"k" && !crate::key::expired(&old, now_ms);
                        old.ended_at_ms().is_some_and(|ended| ended < before_ms) && !is_kept
                    });
                    if is_over {
                        old.push(key.to_vec());
                    }
                }
            }
        }
        if old.is_empty() {
            return Ok(());
        }
        let mut writer = self.env.write_txn()?;
        for key in &old {
            self.table.delete(&mut writer, key)?;
        }
        writer.commit()?;
        Ok(())
    }

    /// Waits until no handle is left, so that the same process can open it again.
    pub(crate) fn close(self) {
        self.env.prepare_for_closing().wait();
    }
}

#[expect(unsafe_code, reason = "LMDB maps a file; nobody else may change it while it is mapped")]
fn open_env(
    options: &mut EnvOpenOptions<WithoutTls>,
    path: &Path,
    durable: bool,
) -> Result<Env<WithoutTls>, heed::Error> {
    if !durable {
        // SAFETY: an index that a crash corrupts is rebuilt; only benches and tests ask for it.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: the directory lock of the journal is held, and only this module touches the files.
    unsafe { options.open(path) }
}

#[expect(unsafe_code, reason = "LMDB maps a file, here to read it")]
fn open_to_read(
    options: &mut EnvOpenOptions<WithoutTls>,
    path: &Path,
) -> Result<Env<WithoutTls>, heed::Error> {
    // SAFETY: a read-only map; whoever writes the index does so through LMDB and its lock file.
    unsafe { options.flags(EnvFlags::READ_ONLY).open(path) }
}

fn restrict(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Bytes of one record's place.
const RECORD: usize = 37;

fn encode_record((sequence, kind, position): &(Sequence, Kind, Position), out: &mut Vec<u8>) {
    out.extend_from_slice(&sequence.0.to_le_bytes());
    out.push(kind.code());
    out.extend_from_slice(&position.segment.to_le_bytes());
    out.extend_from_slice(&position.frame.to_le_bytes());
    out.extend_from_slice(&position.frame_length.to_le_bytes());
    out.extend_from_slice(&position.offset.to_le_bytes());
    out.extend_from_slice(&position.length.to_le_bytes());
}

fn decode_record(bytes: &[u8]) -> Option<(Sequence, Kind, Position)> {
    let (sequence, rest) = bytes.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first()?;
    let (segment, rest) = rest.split_first_chunk::<8>()?;
    let (frame, rest) = rest.split_first_chunk::<8>()?;
    let (frame_length, rest) = rest.split_first_chunk::<4>()?;
    let (offset, rest) = rest.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<4>()?;
    let position = Position {
        segment: u64::from_le_bytes(*segment),
        frame: u64::from_le_bytes(*frame),
        frame_length: u32::from_le_bytes(*frame_length),
        offset: u32::from_le_bytes(*offset),
        length: u32::from_le_bytes(*length),
    };
    Some((Sequence(u64::from_le_bytes(*sequence)), Kind::from_code(*kind)?, position))
}
