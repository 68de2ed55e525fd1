//! The result of a call, stored while it comes.

use super::{Call, durable};
use crate::append::{self, Reason};
use crate::contract::ResultRef;
use crate::enqueue::{Part, Wait};
use crate::log::Draft;
use crate::queue;
use crate::result::{Sealer, Stream};

/// Chunks of one call that may be on their way to the disk: with two, a long result waits for a sync
/// every 128 KiB. The queue's own bound keeps the memory of many such calls small.
const WINDOW: usize = 64;

/// What becomes of the result.
pub(super) enum Keep {
    /// Nothing was stored yet.
    Nothing,
    /// It is being stored.
    Some(Box<Sealer>),
    /// It was given up.
    Lost,
}

impl Call {
    /// Reserves room for a result of that length (contract R-6), on top of what every call has for
    /// its events. Before dispatch; without it a long result may find no room later.
    ///
    /// # Errors
    /// [`append::Error::Unavailable`] without room.
    pub fn reserve(&mut self, result_bytes: u64) -> Result<(), append::Error> {
        // Descriptions, tags and padding: a block per chunk is enough.
        let bytes = result_bytes + (result_bytes >> 4) + (4 << 10);
        self.core.reserve(bytes)?;
        self.reserved_result += bytes;
        Ok(())
    }

    /// Stores bytes of the result, encrypted. Waits only while too much of this call is not yet
    /// durable. [`Stream::Head`] goes first, [`Stream::Trailers`] last.
    ///
    /// # Errors
    /// [`append::Error`]; the result is not kept then, and [`Call::commit`] records none.
    pub async fn store(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), append::Error> {
        // Whoever drops this future in the middle leaves no result behind, never half of one.
        let mut sealer = match std::mem::replace(&mut self.keep, Keep::Lost) {
            Keep::Lost => return Ok(()),
            Keep::Some(sealer) => sealer,
            Keep::Nothing => {
                let key = self.core.key.read().clone();
                let sealer = key.and_then(|key| Sealer::new(&key, self.entry.id));
                Box::new(sealer.ok_or(append::Error::Locked)?)
            }
        };
        let full =
            sealer.push(stream, bytes, self.core.clock.now_ms()).ok_or(append::Error::Locked)?;
        for draft in full {
            self.store_chunk(draft).await?;
        }
        self.keep = Keep::Some(sealer);
        Ok(())
    }

    async fn store_chunk(&mut self, draft: Draft) -> Result<(), append::Error> {
        while self.outstanding.len() >= WINDOW {
            durable(self.outstanding.pop_front()).await?;
        }
        loop {
            let drained = self.core.queue.drained.notified();
            if self.core.queue.bytes() <= queue::LIMIT / 2 {
                break;
            }
            drained.await;
        }
        self.take_room(&draft)?;
        let parts = vec![Part::Chunk(draft)];
        // The first one, mostly the head, rides with the result when that is short.
        let wait = if self.outstanding.is_empty() { Wait::Ride } else { Wait::Later };
        let queued = self.core.append(&self.entry, Some(self.epoch), parts, wait)?;
        self.outstanding.extend(queued.receiver);
        Ok(())
    }

    /// Pays for a chunk from what was reserved, or from what nobody reserved.
    pub(crate) fn take_room(&mut self, draft: &Draft) -> Result<(), append::Error> {
        let length = draft.length() as u64;
        if self.reserved_result >= length {
            self.reserved_result -= length;
            self.core.release(length);
            return Ok(());
        }
        if self.core.available() < length {
            return Err(append::Error::Unavailable(Reason::NoCapacity));
        }
        Ok(())
    }

    /// Forgets what was stored: [`Call::commit`] records no result. For a result that passed the
    /// route's bound.
    pub fn discard_result(&mut self) {
        self.keep = Keep::Lost;
    }

    /// The last chunk and the reference, if a result is kept.
    pub(super) fn finish_result(&mut self) -> (Option<Draft>, Option<ResultRef>) {
        let Keep::Some(sealer) = std::mem::replace(&mut self.keep, Keep::Lost) else {
            return (None, None);
        };
        let Some((last, reference)) = sealer.finish(self.core.clock.now_ms()) else {
            return (None, None);
        };
        if last.as_ref().is_some_and(|draft| self.take_room(draft).is_err()) {
            return (None, None);
        }
        (last, Some(reference))
    }
}
