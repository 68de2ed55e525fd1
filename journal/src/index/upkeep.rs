//! What leaves the index: invocations, results, guards.

use super::{Error, Index, Table, expiring, hashed, id_of, order, sequence_of, stored, totals};
use crate::contract::InvocationId;
use crate::guard;
use crate::key;
use crate::projection::Invocation;
use heed::RwTxn;

impl Index {
    /// Removes invocations whose records have left the log.
    pub(crate) fn remove(&self, invocations: &[Invocation]) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for invocation in invocations {
            self.remove_one(&mut writer, invocation)?;
        }
        writer.commit()?;
        Ok(())
    }

    fn remove_one(&self, writer: &mut RwTxn<'_>, invocation: &Invocation) -> Result<(), Error> {
        let tables = &self.tables;
        let (id, first) = (invocation.id(), invocation.first_sequence());
        // What it counts for outlives it.
        tables.ids.delete(writer, &id.to_bytes())?;
        for table in [&tables.invocations, &tables.open, &tables.doubt] {
            table.delete(writer, &order(first))?;
        }
        let mut records = Vec::new();
        for entry in tables.records.prefix_iter(writer, &order(first))? {
            records.push(entry?.0.to_vec());
        }
        for key in &records {
            tables.records.delete(writer, key)?;
        }
        if let Some(expiry_ms) = invocation.result_expires_ms() {
            tables.expiring.delete(writer, &expiring(expiry_ms, id))?;
        }
        if let Some(key) = totals::total_key(invocation) {
            tables.totals.delete(writer, &key)?;
        }
        if let Some(hash) = guard::request_hash(invocation.accepted()) {
            tables.guards.delete(writer, &hashed(hash, first))?;
        }
        if let Some(bound) = invocation.preflight().and_then(|bound| bound.idempotency.as_ref()) {
            let key = hashed(guard::key_hash(&bound.scope, &bound.key), first);
            tables.keys.delete(writer, &key)?;
        }
        Ok(())
    }

    /// Results whose retention ended before a time: its key and the invocation, oldest first.
    pub(crate) fn expired(&self, now_ms: u64) -> Result<Vec<(u64, InvocationId)>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in self.tables.expiring.iter(&reader)? {
            let (expiry_ms, id) = entry?.0.split_first_chunk::<8>().ok_or(Error::Malformed)?;
            let expiry_ms = u64::from_be_bytes(*expiry_ms);
            if expiry_ms > now_ms {
                break;
            }
            found.push((expiry_ms, id_of(id)?));
        }
        Ok(found)
    }

    /// Forgets that these hold chunks.
    pub(crate) fn forget_results(&self, results: &[(u64, InvocationId)]) -> Result<(), Error> {
        let mut writer = self.env.write_txn()?;
        for (expiry_ms, id) in results {
            self.tables.expiring.delete(&mut writer, &expiring(*expiry_ms, *id))?;
            if let Some(first) = self.tables.ids.get(&writer, &id.to_bytes())?
                && let Some(entry) = self.tables.invocations.get(&writer, first)?
                && let Some(key) = totals::total_key(&stored::decode(entry)?)
            {
                self.tables.totals.delete(&mut writer, &key)?;
            }
        }
        writer.commit()?;
        Ok(())
    }

    /// Forgets guards of invocations that ended before a time, and their keys once they are over.
    pub(crate) fn prune_guards(&self, before_ms: u64, now_ms: u64) -> Result<(), Error> {
        let ended = |old: &Invocation| old.ended_at_ms().is_some_and(|ended| ended < before_ms);
        self.prune(&self.tables.guards, |old| ended(old))?;
        self.prune(&self.tables.keys, |old| ended(old) && key::expired(old, now_ms))
    }

    fn prune(&self, table: &Table, is_over: impl Fn(&Invocation) -> bool) -> Result<(), Error> {
        let mut old = Vec::new();
        {
            let reader = self.env.read_txn()?;
            for entry in table.iter(&reader)? {
                let key = entry?.0;
                let invocation = self.read(&reader, sequence_of(key)?)?;
                if invocation.is_none_or(|invocation| is_over(&invocation)) {
                    old.push(key.to_vec());
                }
            }
        }
        if old.is_empty() {
            return Ok(());
        }
        let mut writer = self.env.write_txn()?;
        for key in &old {
            table.delete(&mut writer, key)?;
        }
        writer.commit()?;
        Ok(())
    }
}
