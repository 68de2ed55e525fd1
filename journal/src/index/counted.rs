//! Calls that count for a budget of their agent.

use super::{Error, Index, order};
use crate::projection::Invocation;
use heed::RwTxn;

impl Index {
    /// Notes what a call has used, once it is dispatched.
    pub(super) fn put_counted(
        &self,
        writer: &mut RwTxn<'_>,
        invocation: &Invocation,
    ) -> Result<(), Error> {
        let counts = invocation.dispatched_at_ms().filter(|_| invocation.accepted().counted);
        let Some(at_ms) = counts else { return Ok(()) };
        let mut value = at_ms.to_be_bytes().to_vec();
        value.extend_from_slice(&invocation.moved_bytes().to_be_bytes());
        let agent = invocation.accepted().agent.as_deref().unwrap_or_default();
        value.extend_from_slice(agent.as_bytes());
        self.tables.counted.put(writer, &order(invocation.first_sequence()), &value)?;
        Ok(())
    }

    /// Calls that count for a budget and were dispatched at or after a time: agent, time, bytes.
    pub(crate) fn counted(&self, since_ms: u64) -> Result<Vec<(String, u64, u64)>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        for entry in self.tables.counted.iter(&reader)? {
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
        for entry in self.tables.counted.iter(&writer)? {
            let (key, value) = entry?;
            let at_ms = value.first_chunk::<8>().ok_or(Error::Malformed)?;
            if u64::from_be_bytes(*at_ms) < before_ms {
                old.push(key.to_vec());
            }
        }
        for key in &old {
            self.tables.counted.delete(&mut writer, key)?;
        }
        writer.commit()?;
        Ok(())
    }
}
