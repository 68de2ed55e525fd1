//! What routes keep of results in total, where they bound it.

use super::{Error, Index, hashed, id_of};
use crate::contract::InvocationId;
use crate::guard;
use crate::projection::Invocation;
use heed::RwTxn;

/// A result that its route has no room for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Surplus {
    pub(crate) id: InvocationId,
    /// What the route kept with it.
    pub(crate) total_bytes: u64,
    pub(crate) limit_bytes: u64,
}

/// The key of a result that counts, if it does.
pub(super) fn total_key(invocation: &Invocation) -> Option<[u8; 24]> {
    let bound = invocation.preflight()?;
    let (Some(_), Some(_)) = (bound.keep_total_bytes, invocation.kept()) else { return None };
    let route = guard::route_hash(invocation.accepted().gateway, bound.route.as_deref());
    Some(hashed(route, invocation.first_sequence()))
}

/// One result of a route.
struct Kept {
    id: InvocationId,
    length: u64,
    expiry_ms: u64,
}

fn kept_of(value: &[u8]) -> Result<Kept, Error> {
    let number = |bytes: &[u8]| bytes.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
    let length = value.get(16..).and_then(number).ok_or(Error::Malformed)?;
    let expiry_ms = value.get(24..).and_then(number).ok_or(Error::Malformed)?;
    Ok(Kept { id: id_of(value)?, length, expiry_ms })
}

impl Index {
    /// Notes a result that counts, or that it counts no longer.
    pub(super) fn put_total(
        &self,
        writer: &mut RwTxn<'_>,
        invocation: &Invocation,
    ) -> Result<(), Error> {
        let Some(key) = total_key(invocation) else { return Ok(()) };
        let mut value = invocation.id().to_bytes().to_vec();
        let length = invocation.kept().map_or(0, |kept| kept.length_bytes);
        value.extend_from_slice(&length.to_be_bytes());
        value.extend_from_slice(&invocation.result_expires_ms().unwrap_or(0).to_be_bytes());
        if invocation.is_result_evicted() {
            self.tables.totals.delete(writer, &key)?;
        } else {
            self.tables.totals.put(writer, &key, &value)?;
        }
        Ok(())
    }

    /// The oldest results of each route that keeps more than it may. The bound of a route is that
    /// of its newest call.
    pub(crate) fn surplus(&self, now_ms: u64) -> Result<Vec<Surplus>, Error> {
        let reader = self.env.read_txn()?;
        let mut found = Vec::new();
        let mut route = [0; 16];
        let mut kept: Vec<Kept> = Vec::new();
        for entry in self.tables.totals.iter(&reader)? {
            let (key, value) = entry?;
            let of = *key.first_chunk::<16>().ok_or(Error::Malformed)?;
            if of != route {
                self.oldest_above(&kept, &mut found)?;
                kept.clear();
                route = of;
            }
            let result = kept_of(value)?;
            if result.expiry_ms > now_ms {
                kept.push(result);
            }
        }
        self.oldest_above(&kept, &mut found)?;
        Ok(found)
    }

    fn oldest_above(&self, kept: &[Kept], found: &mut Vec<Surplus>) -> Result<(), Error> {
        let Some(newest) = kept.last() else { return Ok(()) };
        let newest = self.invocation(newest.id)?;
        let bound = newest.as_ref().and_then(Invocation::preflight);
        let Some(limit_bytes) = bound.and_then(|bound| bound.keep_total_bytes) else {
            return Ok(());
        };
        let mut total_bytes = kept.iter().map(|result| result.length).sum::<u64>();
        for result in kept {
            if total_bytes <= limit_bytes {
                break;
            }
            found.push(Surplus { id: result.id, total_bytes, limit_bytes });
            total_bytes -= result.length;
        }
        Ok(())
    }
}
