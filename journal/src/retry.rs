//! What a retry needs of the journal: the stored request, and where an action stands.

use crate::append;
use crate::call::{Call, EVENT_RESERVE};
use crate::contract::{
    BatchMembers, Body, InvocationId, JobTracked, Member, MembersJudged, RequestStored,
    ResultCommitted, Source,
};
use crate::core::closed;
use crate::enqueue::{Part, Wait};
use crate::live::Journal;
use crate::log::Kind;
use crate::projection::{Invocation, Standing};
use crate::read;
use crate::result::{self, Sealer, Stream};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zeroize::Zeroizing;

/// A request as it was stored. It can hold what a caller took for a secret: zeroed when dropped.
pub struct StoredRequest {
    /// The head, as the gateway wrote it.
    pub head: Zeroizing<Vec<u8>>,
    /// The content.
    pub content: Zeroizing<Vec<u8>>,
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
}

impl std::fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredRequest").field("content_bytes", &self.content.len()).finish()
    }
}

impl Call {
    /// Stores the request, encrypted like a result, and appends `REQUEST_STORED`. Before dispatch;
    /// does not wait for durability, which the dispatch waits for.
    ///
    /// # Errors
    /// [`append::Error`]; the call can go on, and can't be retried then.
    pub fn store_request(
        &mut self,
        head: &[u8],
        content: &[&[u8]],
        max_attempts: u32,
    ) -> Result<(), append::Error> {
        let key = self.core.key.read().clone();
        let sealer = key.and_then(|key| Sealer::new(&key, self.id()));
        let mut sealer = sealer.ok_or(append::Error::Locked)?;
        let length = content.iter().map(|piece| piece.len() as u64).sum::<u64>();
        // A route that retries may try to connect more often than others.
        self.reserve(head.len() as u64 + length + EVENT_RESERVE)?;
        let at_ms = self.core.clock.now_ms();
        let mut drafts = sealer.push(Stream::Head, head, at_ms).ok_or(append::Error::Locked)?;
        for piece in content {
            drafts.extend(sealer.push(Stream::Content, piece, at_ms).ok_or(append::Error::Locked)?);
        }
        let (last, request) = sealer.finish(at_ms).ok_or(append::Error::Locked)?;
        drafts.extend(last);
        for draft in &drafts {
            self.take_room(draft)?;
        }
        let mut parts: Vec<Part> = drafts.into_iter().map(Part::Chunk).collect();
        let body = Body::RequestStored(RequestStored { request, max_attempts });
        parts.push(Part::Event(Source::TransportObserved, body));
        self.core.append(&self.entry, Some(self.epoch), parts, Wait::No).map(drop)
    }
}

impl Call {
    /// Appends `BATCH_MEMBERS`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn batch_members(&mut self, batch: BatchMembers) -> Result<(), append::Error> {
        let parts = vec![Part::Event(Source::TransportObserved, Body::BatchMembers(batch))];
        self.core.append(&self.entry, Some(self.epoch), parts, Wait::No).map(drop)
    }

    /// Appends `MEMBERS_JUDGED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn members_judged(&mut self, members: Vec<Member>) -> Result<(), append::Error> {
        let body = Body::MembersJudged(MembersJudged { members });
        let parts = vec![Part::Event(Source::RemoteResponse, body)];
        self.core.append(&self.entry, Some(self.epoch), parts, Wait::No).map(drop)
    }

    /// Appends `JOB_TRACKED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn job_tracked(&mut self, job: InvocationId) -> Result<(), append::Error> {
        let body = Body::JobTracked(JobTracked { job });
        let parts = vec![Part::Event(Source::RemoteResponse, body)];
        self.core.append(&self.entry, Some(self.epoch), parts, Wait::No).map(drop)
    }
}

impl Journal {
    /// The stored request of an invocation.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`result::Error`]; [`result::Error::NotKept`] when none was stored.
    pub fn request(&self, id: InvocationId) -> Result<StoredRequest, result::Error> {
        let invocation = self.invocation(id)?.ok_or(result::Error::NotFound)?;
        let (end, stored) = invocation.request().ok_or(result::Error::NotKept)?;
        if invocation.result_expires_ms().is_some_and(|expiry| expiry <= self.now_ms()) {
            return Err(result::Error::Expired);
        }
        let mut chunks = self.records(id, Kind::Chunk)?;
        chunks.retain(|(sequence, _, _)| *sequence < end);
        let mut opened = self.open_stored(id, stored.request, &chunks)?;
        let head = Zeroizing::new(opened.head().unwrap_or_default().to_vec());
        let content = Zeroizing::new(opened.read_to_end()?);
        Ok(StoredRequest { head, content, max_attempts: stored.max_attempts })
    }

    /// The first attempt of the action that an invocation belongs to: itself, or what it retries.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn first_attempt(&self, invocation: Invocation) -> Result<Invocation, read::Error> {
        let Some(link) = invocation.accepted().link else { return Ok(invocation) };
        let earlier = self.invocation(link)?;
        let id = invocation.id();
        Ok(earlier.filter(|earlier| earlier.retries().contains(&id)).unwrap_or(invocation))
    }

    /// Appends late evidence to those of the attempts that are in doubt, durably (contract J-3). An
    /// attempt that is not among them may be younger than the evidence. False when there was none.
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn settle_doubt(
        &self,
        attempts: &[&Invocation],
        source: Source,
        late: &ResultCommitted,
    ) -> Result<bool, append::Error> {
        let mut settled = false;
        for attempt in attempts {
            if !attempt.is_in_doubt() {
                continue;
            }
            let body = Body::ResultCommitted(Box::new(late.clone()));
            match self.record(attempt.id(), source, body) {
                Ok(ticket) => {
                    ticket.durable().await?;
                    settled = true;
                }
                // Other evidence came first.
                Err(append::Error::Illegal(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settled)
    }

    /// Visits the invocations that are settled as unknown, newest first, until `visit` breaks. One at a
    /// time is in memory, however many there are.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn in_doubt(
        &self,
        mut visit: impl FnMut(Invocation) -> Result<ControlFlow<()>, read::Error>,
    ) -> Result<(), read::Error> {
        let core = self.core();
        let indexed = {
            let index = core.index.read();
            index.as_ref().ok_or_else(closed)?.in_doubt()?
        };
        // What the index has not seen yet is in memory, and newer.
        let mut held: Vec<InvocationId> = core.overlay.iter().map(|entry| *entry.key()).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let mut seen = HashSet::new();
        for id in held.into_iter().chain(indexed) {
            if seen.insert(id)
                && let Some(invocation) = self.invocation(id)?
                && invocation.is_in_doubt()
                && visit(invocation)?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// The dispatched retries of a first attempt, in order.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn retries(&self, first: &Invocation) -> Result<Vec<Invocation>, read::Error> {
        let mut retries = Vec::with_capacity(first.retries().len());
        for id in first.retries() {
            retries.extend(self.invocation(*id)?);
        }
        Ok(retries)
    }

    /// Has earlier invocations guard for at least that long (contract K-11): the longest window of policy.
    pub fn guard_for(&self, window: Duration) {
        let window = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        self.core().guard_horizon_ms.fetch_max(window, Ordering::Relaxed);
    }

    /// The time now, in milliseconds since 1970: the wall clock when the journal was opened, and what
    /// passed since. A wall clock that jumps does not move it.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.core().clock.now_ms()
    }

    /// The time to judge the expiry of a key by, in milliseconds since 1970 (contract K-5): never
    /// earlier than [`Journal::now_ms`], nor than it was before, nor than the wall clock.
    #[must_use]
    pub fn latest_ms(&self) -> u64 {
        self.core().clock.latest_ms()
    }

    /// Where the action of a first attempt stands now.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn standing(&self, first: &Invocation) -> Result<Standing, read::Error> {
        Ok(Standing::of(first, &self.retries(first)?, self.latest_ms()))
    }

    /// The attempt that answers for an action: the one whose evidence decides.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn answering(&self, first: Invocation) -> Result<Invocation, read::Error> {
        let retries = self.retries(&first)?;
        let by = Standing::of(&first, &retries, self.latest_ms()).by;
        Ok(retries.into_iter().find(|retry| retry.id() == by).unwrap_or(first))
    }
}
