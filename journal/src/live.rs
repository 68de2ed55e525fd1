//! The live journal: admission, look-ups, late facts.

use crate::append::Reason;
use crate::call::{EVENT_RESERVE, durable};
use crate::contract::{Accepted, Body, Event, InvocationId, Outcome, ResultRef, Sequence, Source};
use crate::core::{Core, closed};
use crate::enqueue::{Part, Queued, Wait};
use crate::guard::{Admission, Guard};
use crate::log::{Kind, Position, unique};
use crate::options::{Filter, Maintained, Options, Page, Recovery, Stats};
use crate::projection::{IllegalEvent, Invocation, State};
use crate::queue::Outcome as Told;
use crate::result::{self, ResultKey, StoredResult};
use crate::{admission, append, list, open, read, startup};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::oneshot;

/// Bytes that a late fact needs.
const LATE_RESERVE: u64 = 16 << 10;
/// An append that is on its way.
#[must_use = "an append is durable only after Ticket::durable"]
pub struct Ticket {
    receiver: Option<oneshot::Receiver<Told>>,
}

impl Ticket {
    /// Waits until the event is durable.
    ///
    /// # Errors
    /// [`append::Error::Indeterminate`] when the write or the sync failed.
    pub async fn durable(self) -> Result<Sequence, append::Error> {
        durable(self.receiver).await
    }
}

/// The journal of one home. Cheap to clone; the last clone that goes closes it.
#[derive(Clone)]
pub struct Journal {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.begin_close();
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

impl Journal {
    /// Locks the directory, recovers, ends the calls that the last run left open, durably.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`open::Error`]; with [`open::Error::Damaged`] nothing was changed.
    pub fn open(options: Options, key: Option<ResultKey>) -> Result<(Self, Recovery), open::Error> {
        let (core, recovery) = startup::open(&options, key)?;
        let journal = Self::from_core(core);
        journal.hold_clock();
        Ok((journal, recovery))
    }

    pub(crate) fn from_core(core: Arc<Core>) -> Self {
        Self { handle: Arc::new(Handle { core }) }
    }

    /// Holds the wall clock against the newest invocation on record.
    fn hold_clock(&self) {
        let newest = self.list(&Filter { limit: 1, ..Filter::default() });
        let newest = newest.ok().and_then(|page| page.invocations.into_iter().next());
        if let Some(newest) = newest {
            let ended = newest.ended_at_ms().unwrap_or_default();
            self.core().clock.hold_against(newest.accepted_at_ms().max(ended));
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Gives or takes away the key of results (vault unlocked, vault locked).
    pub fn set_result_key(&self, key: Option<ResultKey>) {
        *self.core().key.write() = key;
    }

    /// Makes an id.
    #[must_use]
    pub fn new_id(&self) -> InvocationId {
        // Without randomness the time and a counter still make an id of this process unique.
        let random = unique::<10>().unwrap_or_else(|_| {
            let mut bytes = [0; 10];
            let clock = Instant::now().elapsed().as_nanos().to_le_bytes();
            bytes.iter_mut().zip(clock).for_each(|(to, from)| *to = from);
            bytes
        });
        let random = random.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
        InvocationId::from_parts(self.now_ms(), random)
    }

    /// Takes a call on record, or says which earlier one answers instead. Atomic: of two equal
    /// submissions one is new. Room for the whole call is reserved first (contract R-6).
    ///
    /// `ACTION_ACCEPTED` is queued, not yet durable.
    ///
    /// # Errors
    /// [`append::Error`]; nothing is on record then.
    pub fn admit(
        &self,
        id: InvocationId,
        accepted: Accepted,
        guard: Guard,
    ) -> Result<Admission, append::Error> {
        admission::admit(self.core(), id, accepted, &guard)
    }

    /// Says whether a call could be admitted now.
    ///
    /// # Errors
    /// [`append::Error`] with what [`Journal::admit`] would say.
    pub fn ready(&self) -> Result<(), append::Error> {
        self.core().check_health()?;
        if self.core().available() < EVENT_RESERVE {
            return Err(append::Error::Unavailable(Reason::NoCapacity));
        }
        Ok(())
    }

    /// The durable state of an invocation.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn invocation(&self, id: InvocationId) -> Result<Option<Invocation>, read::Error> {
        self.core().view(id)
    }

    /// The durable events of an invocation, in order; empty when it is not on record.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn events(&self, id: InvocationId) -> Result<Vec<(Sequence, Event)>, read::Error> {
        let core = self.core();
        let first = core.first_segment.load(Ordering::Acquire);
        let mut events = Vec::new();
        for (sequence, _, position) in self.records(id, Kind::Event)? {
            if position.segment >= first {
                let event = core.segments.checked(&position, sequence, |record| {
                    serde_json::from_slice(record.payload).ok()
                })?;
                events.push((sequence, event));
            }
        }
        Ok(events)
    }

    /// Invocations, newest first.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn list(&self, filter: &Filter) -> Result<Page, read::Error> {
        list::page(self.core(), filter)
    }

    /// The stored result of an invocation. A read, never a repeat (contract ).
    ///
    /// # Errors
    /// [`result::Error`].
    pub fn result(&self, id: InvocationId) -> Result<StoredResult, result::Error> {
        use result::Error;
        let core = self.core();
        let mut invocation = core.view(id)?.ok_or(Error::NotFound)?;
        if !invocation.retries().is_empty() {
            invocation = self.answering(invocation)?;
        }
        // The answer that ended a job is its result.
        if let Some(query) = invocation.observed_by().filter(|_| invocation.accepted().is_job()) {
            invocation = core.view(query)?.ok_or(Error::NotFound)?;
        }
        let reference = match invocation.state() {
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => {
                return Err(Error::Incomplete);
            }
            State::Ended(verdict) if verdict.outcome() == Outcome::Unknown => {
                return Err(Error::Incomplete);
            }
            State::Ended(_) => return Err(Error::NotKept),
            State::Committed(_) => invocation.result().cloned().ok_or(Error::NotKept)?,
        };
        self.open_kept(&invocation, reference)
    }

    /// What was recorded of a session: of one with a result that, and else what there was until its
    /// end.
    ///
    /// # Errors
    /// [`result::Error`].
    pub fn recording(&self, id: InvocationId) -> Result<StoredResult, result::Error> {
        let invocation = self.core().view(id)?.ok_or(result::Error::NotFound)?;
        match invocation.recording().copied() {
            Some(reference) => self.open_kept(&invocation, reference),
            None => self.result(id),
        }
    }

    fn open_kept(
        &self,
        invocation: &Invocation,
        reference: ResultRef,
    ) -> Result<StoredResult, result::Error> {
        if invocation.result_expires_ms().is_some_and(|expiry| expiry <= self.now_ms()) {
            return Err(result::Error::Expired);
        }
        // The chunks of a stored request come before those of the result.
        let request_end = invocation.request().map(|(sequence, _)| sequence);
        let mut records = self.records(invocation.id(), Kind::Chunk)?;
        records.retain(|(sequence, _, _)| request_end.is_none_or(|end| *sequence > end));
        self.open_stored(invocation.id(), reference, &records)
    }

    pub(crate) fn open_stored(
        &self,
        id: InvocationId,
        reference: ResultRef,
        chunks: &[(Sequence, Kind, Position)],
    ) -> Result<StoredResult, result::Error> {
        let core = self.core();
        let key = core.key.read().clone().ok_or(result::Error::Locked)?;
        let first = core.first_segment.load(Ordering::Acquire);
        if chunks.iter().any(|(_, _, at)| at.segment < first) {
            return Err(result::Error::Expired);
        }
        StoredResult::open(Arc::clone(core), id, reference, chunks, key)
    }

    /// All durable records of a kind of an invocation, in order.
    pub(crate) fn records(
        &self,
        id: InvocationId,
        kind: Kind,
    ) -> Result<Vec<(Sequence, Kind, Position)>, read::Error> {
        // Memory first: what leaves it meanwhile is in the index by then.
        let held = self.core().overlay.get(&id).map(|entry| entry.state.lock().records.clone());
        let index = self.core().index.read();
        let mut records = index.as_ref().ok_or_else(closed)?.records(id)?;
        drop(index);
        for record in held.into_iter().flatten() {
            if !records.iter().any(|(known, _, _)| *known == record.0) {
                records.push(record);
            }
        }
        records.retain(|(_, of, _)| *of == kind);
        records.sort_unstable_by_key(|(sequence, _, _)| *sequence);
        Ok(records)
    }

    /// Appends a late fact to an invocation: `RESULT_DELIVERED` by ack, `REPEAT_ANSWERED`, `NOTED`,
    /// late evidence. The course of a call is appended by its [`crate::Call`] alone.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn record(
        &self,
        id: InvocationId,
        source: Source,
        body: Body,
    ) -> Result<Ticket, append::Error> {
        check_late(source, &body)?;
        let queued = append_late(self.core(), id, source, body, Wait::Later)?;
        Ok(Ticket { receiver: queued.receiver })
    }

    /// Waits until the invocation is settled and that is durable; at once when it is already, or
    /// is not on record.
    pub async fn changed(&self, id: InvocationId) {
        loop {
            let entry = self.core().overlay.get(&id).map(|entry| Arc::clone(&entry));
            // What is not in memory has nothing under way.
            let Some(entry) = entry else { return };
            let woken = entry.settled.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if entry.state.lock().view(self.core().durable()).is_settled() {
                return;
            }
            if !self.core().overlay.contains_key(&id) {
                return;
            }
            woken.await;
        }
    }

    /// One pass of retention: segments leave as [`crate::Retention`] says, and results whose route
    /// keeps them no longer are dropped from the segments.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`crate::maintain::Error`]; what was not done is done by a later pass.
    pub fn maintain(&self) -> Result<Maintained, crate::maintain::Error> {
        crate::maintain::pass(self.core(), self.now_ms())
    }

    /// Copies new events to the sealed files, when sealed mode is on ([`crate::seal`]). Also works
    /// once the journal is closed. Gives up to where the log is copied.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`crate::seal::Error`]; the next pass goes on at the same place.
    pub fn seal(&self) -> Result<Option<Sequence>, crate::seal::Error> {
        crate::seal::pass(&self.core().directory, self.core().durable())
    }

    /// Takes the lease of a retry of a settled invocation (contract K-6). Durable when it returns.
    ///
    /// # Errors
    /// [`crate::lease::Error`].
    pub async fn lease(
        &self,
        id: InvocationId,
        holder: &str,
        ttl: std::time::Duration,
    ) -> Result<crate::Lease, crate::lease::Error> {
        crate::lease::acquire(self.core(), id, holder, ttl).await
    }

    /// Settled invocations since the journal was opened, counted.
    #[must_use]
    pub fn tally(&self) -> crate::tally::Tally {
        self.core().tally.all()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let counters = &core.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            appends: load(&counters.appends),
            frames: load(&counters.frames),
            led: load(&counters.led),
            syncs: load(&counters.frames),
            written_bytes: load(&counters.written_bytes),
            payload_bytes: load(&counters.payload_bytes),
            queue_wait_us: load(&counters.queue_wait_us),
            sync_us: load(&counters.sync_us),
            queued_bytes: core.queue.bytes(),
            peak_queued_bytes: core.queue.peak(),
            held_invocations: core.overlay.len() as u64,
            reserved_bytes: load(&core.reserved),
            available_bytes: core.available(),
            healthy: core.queue.lock().check(None).is_ok(),
            reopened: load(&counters.reopened),
            durable_sequence: core.durable(),
            indexed_sequence: Sequence(load(&counters.indexed)),
        }
    }

    /// Writes out what is queued, brings the index up to date and ends the threads. Calls that are
    /// still under way get [`append::Error::Closed`]; the next open ends them.
    pub async fn close(&self) {
        let mut closed = self.core().closed.subscribe();
        self.core().begin_close();
        // The sender lives as long as the core.
        drop(closed.wait_for(|closed| *closed).await);
    }
}

/// Queues a late fact about an invocation.
pub(crate) fn append_late(
    core: &Core,
    id: InvocationId,
    source: Source,
    body: Body,
    wait: Wait,
) -> Result<Queued, append::Error> {
    core.check_health()?;
    if core.available() < LATE_RESERVE {
        return Err(append::Error::Unavailable(Reason::NoCapacity));
    }
    // While segments leave, nobody appends to an invocation that may leave with them.
    let _retiring = core.retiring.read();
    let entry = core.entry(id).map_err(|_| admission::index_failed())?;
    let entry = entry.ok_or(append::Error::NotFound)?;
    if matches!(body, Body::DeliveryFailed(_)) {
        // An equal request has to find it from now on (K-11), and the index lags behind.
        core.recent.lock().add_request(&entry);
    }
    let queued = core.append(&entry, None, vec![Part::Event(source, body)], wait);
    core.release_entry(&entry);
    queued
}

/// Late facts only: everything else belongs to the course of a call.
fn check_late(source: Source, body: &Body) -> Result<(), IllegalEvent> {
    let illegal = |reason| Err(IllegalEvent { state: "late", event: body.name(), reason });
    match body {
        Body::ResultCommitted(_) => match source {
            Source::RemoteQuery | Source::OperatorAttested => Ok(()),
            Source::TransportObserved | Source::RemoteResponse | Source::Recovered => {
                illegal("late evidence comes from a query or an operator")
            }
        },
        Body::ResultDelivered(_)
        | Body::DeliveryFailed(_)
        | Body::RepeatAnswered(_)
        | Body::Noted(_) => Ok(()),
        Body::ActionAccepted(_)
        | Body::PreflightValidated(_)
        | Body::CredentialAuthorized(_)
        | Body::RequestStored(_)
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::DispatchWithdrawn(_)
        | Body::RequestSent(_)
        | Body::RemoteResponseStarted(_)
        | Body::BatchMembers(_)
        | Body::MembersJudged(_)
        | Body::JobTracked(_)
        | Body::RemoteResponseComplete(_)
        | Body::InvocationEnded(_) => illegal("only the call itself appends it"),
        Body::ApprovalRequested(_) | Body::ApprovalDecided(_) => {
            illegal("a call is held by its gateway and decided by an operator")
        }
        Body::ResultExpired(_) => illegal("only retention appends it"),
        Body::LeaseAcquired(_)
        | Body::LeaseRenewed(_)
        | Body::LeaseUsed(_)
        | Body::LeaseReleased(_) => illegal("only a lease appends it"),
    }
}
