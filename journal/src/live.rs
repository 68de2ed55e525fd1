//! The live journal: admission, look-ups, late facts.

use crate::append::Reason;
use crate::call::{Call, EVENT_RESERVE, durable};
use crate::contract::{
    Accepted, Body, Event, Gateway, InvocationId, Outcome, Phase, Sequence, Source,
};
use crate::core::{Core, Part, event_draft, now_ms};
use crate::entry::Entry;
use crate::guard::{self, Admission, Guard};
use crate::log::{Kind, Position, random};
use crate::projection::{IllegalEvent, Invocation, State};
use crate::queue::{Item, Outcome as Told};
use crate::result::{self, ResultKey, StoredResult};
use crate::{append, list, open, read, startup};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Bytes that a late fact needs.
const LATE_RESERVE: u64 = 16 << 10;
/// Guarding invocations looked at for one submission.
const GUARD_LIMIT: usize = 64;

/// How a journal is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of the journal; made if it is not there.
    pub directory: PathBuf,
    /// Length of a segment file. At least 256 KiB.
    pub segment_bytes: u64,
    /// Whether appends are synced. False only in benches: a crash then loses what was acknowledged.
    pub durable: bool,
    /// How far back an earlier invocation can guard (K-3, K-11). At least the longest window.
    pub guard_horizon: Duration,
}

impl Options {
    /// The defaults: 16 MiB, durable, one day.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            segment_bytes: 16 << 20,
            durable: true,
            guard_horizon: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// What opening found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The newest sequence found.
    pub last_sequence: Sequence,
    /// Bytes of a torn last batch that were cut off; nobody was told of them.
    pub discarded_bytes: u64,
    /// Records that the index had not seen.
    pub replayed: u64,
    /// Whether the index was rebuilt from nothing.
    pub rebuilt: bool,
    /// Calls ended as `not_attempted`.
    pub not_attempted: Vec<InvocationId>,
    /// Calls ended as `unknown`: in doubt, never repeated by the broker.
    pub unknown: Vec<InvocationId>,
    /// Committed calls of which nobody knows whether the result was handed over.
    pub undelivered: Vec<InvocationId>,
}

/// Which invocations a list shows. Default: all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of this agent.
    pub agent: Option<String>,
    /// With this outcome.
    pub outcome: Option<Outcome>,
    /// In this phase.
    pub phase: Option<Phase>,
    /// Taken by this gateway.
    pub gateway: Option<Gateway>,
    /// Taken at or after this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// At most so many; 0 means 50.
    pub limit: usize,
    /// Where the page before ended: [`Page::next`].
    pub cursor: Option<String>,
}

/// One page of a list, newest first.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The invocations.
    pub invocations: Vec<Invocation>,
    /// The cursor of the next page; `None` at the end. A page can be short, even empty, and still
    /// have a next one: a list looks at a bounded number of records per page.
    pub next: Option<String>,
}

/// Counters since the journal was opened, and gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records appended.
    pub appends: u64,
    /// Frames written; one batch each.
    pub frames: u64,
    /// Syncs of frames.
    pub syncs: u64,
    /// Bytes of frames, padding included.
    pub written_bytes: u64,
    /// Bytes of payload and results in them.
    pub payload_bytes: u64,
    /// Time that records waited for their batch, in microseconds, added up.
    pub queue_wait_us: u64,
    /// Time spent in writes and syncs, in microseconds, added up.
    pub sync_us: u64,
    /// Bytes queued now.
    pub queued_bytes: u64,
    /// Bytes reserved by calls under way.
    pub reserved_bytes: u64,
    /// Bytes that can still be reserved.
    pub available_bytes: u64,
    /// Whether records are taken.
    pub healthy: bool,
    /// How often the log was recovered after a failure.
    pub reopened: u64,
    /// The newest durable sequence.
    pub durable_sequence: Sequence,
    /// The newest sequence in the index.
    pub indexed_sequence: Sequence,
}

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
        Ok((Self::from_core(core), recovery))
    }

    pub(crate) fn from_core(core: Arc<Core>) -> Self {
        Self { handle: Arc::new(Handle { core }) }
    }

    fn core(&self) -> &Arc<Core> {
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
        let random = random::<10>().unwrap_or_else(|_| {
            let mut bytes = [0; 10];
            let clock = Instant::now().elapsed().as_nanos().to_le_bytes();
            bytes.iter_mut().zip(clock).for_each(|(to, from)| *to = from);
            bytes
        });
        let random = random.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
        InvocationId::from_parts(now_ms(), random)
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
        let core = self.core();
        core.check_health()?;
        let event = Event {
            invocation: id,
            at_ms: now_ms(),
            source: Source::TransportObserved,
            body: Body::ActionAccepted(Box::new(accepted)),
        };
        let draft = event_draft(&event)?;
        let Body::ActionAccepted(accepted) = &event.body else {
            return Err(append::Error::NotFound);
        };
        let request_hash = guard::request_hash(accepted);
        let key_hash = guard.key.as_ref().map(|(scope, key)| guard::key_hash(scope, key));
        let mut recent = core.recent.lock();
        if let Some(earlier) = self.earlier(&recent, id, accepted, &guard, event.at_ms)? {
            return Ok(earlier);
        }
        core.reserve(EVENT_RESERVE)?;
        let event = Arc::new(event);
        let admitted = self.enqueue_first(&event, draft, request_hash, key_hash);
        let Ok((entry, epoch)) = admitted else {
            core.release(EVENT_RESERVE);
            return admitted.map(|_| Admission::Mismatch);
        };
        if let Some(hash) = request_hash {
            recent.requests.entry(hash).or_default().push(Arc::clone(&entry));
        }
        if let Some(hash) = key_hash {
            recent.keys.entry(hash).or_default().push(Arc::clone(&entry));
        }
        drop(recent);
        Ok(Admission::New(Call::new(Arc::clone(core), entry, epoch)))
    }

    fn enqueue_first(
        &self,
        event: &Arc<Event>,
        draft: crate::log::Draft,
        request_hash: Option<[u8; 16]>,
        key_hash: Option<[u8; 16]>,
    ) -> Result<(Arc<Entry>, u64), append::Error> {
        let core = self.core();
        let slot = core.overlay.entry(event.invocation);
        let mut queue = core.queue.lock();
        queue.check(None)?;
        let sequence = queue.next();
        let live = Invocation::start(sequence, event)?;
        let entry = Arc::new(Entry::admitted(live, Arc::clone(event), request_hash, key_hash));
        slot.insert(Arc::clone(&entry));
        let item = Item {
            draft,
            sequence,
            entry: Some(Arc::clone(&entry)),
            waiter: None,
            settles: false,
            queued: Instant::now(),
        };
        core.queue.push(&mut queue, item);
        let epoch = queue.epoch;
        drop(queue);
        core.queue.wake();
        Ok((entry, epoch))
    }

    /// The earlier invocation that answers instead, if any.
    fn earlier(
        &self,
        recent: &guard::Recent,
        id: InvocationId,
        accepted: &Accepted,
        guard: &Guard,
        now_ms: u64,
    ) -> Result<Option<Admission>, append::Error> {
        let core = self.core();
        let limit = core.durable();
        // K-10: an id of the broker's own is new; one of the caller's may be known.
        let held = core.overlay.get(&id).map(|entry| entry.state.lock().view(limit));
        let known = match held {
            Some(known) => Some(known),
            None if accepted.caller_id => core.indexed(id).map_err(|_| index_failed())?,
            None => None,
        };
        if let Some(known) = known {
            let same = guard::is_same(known.accepted(), accepted);
            return Ok(Some(if same {
                Admission::SameRequest(Box::new(known))
            } else {
                Admission::Mismatch
            }));
        }
        // K-3: a key stands for one request of one agent.
        if let Some((scope, key)) = &guard.key {
            let hash = guard::key_hash(scope, key);
            let bound = self.candidates(recent.keys.get(&hash), b'k', hash)?;
            let other = |known: &Invocation| !guard::is_same(known.accepted(), accepted);
            if bound
                .iter()
                .any(|(live, _)| guard::may_bind(live) && !expired(live, now_ms) && other(live))
            {
                return Ok(Some(Admission::Mismatch));
            }
        }
        // K-11: an equal request that may have had its effect.
        let (Some(window), Some(hash), false) =
            (guard.window, guard::request_hash(accepted), accepted.caller_id)
        else {
            return Ok(None);
        };
        let found = self
            .candidates(recent.requests.get(&hash), b'g', hash)?
            .into_iter()
            .find(|(live, _)| guard::may_guard(live) && guard::is_within(live, window, now_ms));
        Ok(found.map(|(_, view)| match view.state() {
            State::Committed(_) => Admission::Settled(Box::new(view)),
            State::Accepted
            | State::Validated
            | State::Authorized
            | State::Dispatched
            | State::Ended(_) => Admission::InDoubt(Box::new(view)),
        }))
    }

    /// Invocations that may guard, in memory and in the index: as they are, and as they may be
    /// shown.
    fn candidates(
        &self,
        entries: Option<&Vec<Arc<Entry>>>,
        tag: u8,
        hash: [u8; 16],
    ) -> Result<Vec<(Invocation, Invocation)>, append::Error> {
        let core = self.core();
        let limit = core.durable();
        let mut found = Vec::new();
        for entry in entries.into_iter().flatten().rev() {
            let mut state = entry.state.lock();
            let view = state.view(limit);
            found.push((state.live.clone(), view));
        }
        let index = core.index.read();
        let stored = match index.as_ref() {
            Some(index) => index.guards(tag, hash, GUARD_LIMIT).map_err(|_| index_failed())?,
            None => Vec::new(),
        };
        drop(index);
        for invocation in stored {
            if found.iter().any(|(live, _)| live.id() == invocation.id()) {
                continue;
            }
            // A late fact may be in memory while the index has the state before it.
            let held = core.overlay.get(&invocation.id()).map(|entry| Arc::clone(&entry));
            found.push(match held {
                Some(entry) => {
                    let mut state = entry.state.lock();
                    let view = state.view(limit);
                    (state.live.clone(), view)
                }
                None => (invocation.clone(), invocation),
            });
        }
        Ok(found)
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
        let limit = core.durable();
        let held = core.overlay.get(&id).map(|entry| entry.state.lock().durable_events(limit));
        let held = held.unwrap_or_default();
        let mut events = Vec::new();
        for (sequence, kind, position) in self.indexed_records(id)? {
            if kind != Kind::Event || held.first().is_some_and(|(first, _)| sequence >= *first) {
                continue;
            }
            let event = core.segments.checked(&position, sequence, |record| {
                serde_json::from_slice(record.payload).ok()
            })?;
            events.push((sequence, event));
        }
        events.extend(held);
        Ok(events)
    }

    fn indexed_records(
        &self,
        id: InvocationId,
    ) -> Result<Vec<(Sequence, Kind, Position)>, read::Error> {
        let index = self.core().index.read();
        Ok(index.as_ref().map(|index| index.records(id)).transpose()?.unwrap_or_default())
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
        let invocation = core.view(id)?.ok_or(Error::NotFound)?;
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
        let kept_ms = invocation.preflight().map_or(0, |bound| bound.keep_seconds) * 1000;
        if invocation.ended_at_ms().is_some_and(|ended| ended.saturating_add(kept_ms) <= now_ms()) {
            return Err(Error::Expired);
        }
        let key = core.key.read().clone().ok_or(Error::Locked)?;
        let held = core.overlay.get(&id).map(|entry| entry.state.lock().records.clone());
        let mut records = self.indexed_records(id)?;
        for record in held.into_iter().flatten() {
            if !records.iter().any(|(known, _, _)| *known == record.0) {
                records.push(record);
            }
        }
        records.sort_unstable_by_key(|(sequence, _, _)| *sequence);
        StoredResult::open(Arc::clone(core), id, reference, &records, key)
    }

    /// Appends a late fact to an invocation: `RESULT_DELIVERED` by ack, `REPEAT_ANSWERED`, `NOTED`,
    /// late evidence. The course of a call is appended by its [`Call`] alone.
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
        let core = self.core();
        core.check_health()?;
        if core.available() < LATE_RESERVE {
            return Err(append::Error::Unavailable(Reason::NoCapacity));
        }
        let entry = core.entry(id).map_err(|_| index_failed())?.ok_or(append::Error::NotFound)?;
        let queued = core.append(&entry, None, vec![Part::Event(source, body)], true);
        core.release_entry(&entry);
        Ok(Ticket { receiver: queued?.receiver })
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

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let counters = &core.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            appends: load(&counters.appends),
            frames: load(&counters.frames),
            syncs: load(&counters.frames),
            written_bytes: load(&counters.written_bytes),
            payload_bytes: load(&counters.payload_bytes),
            queue_wait_us: load(&counters.queue_wait_us),
            sync_us: load(&counters.sync_us),
            queued_bytes: core.queue.bytes(),
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

fn index_failed() -> append::Error {
    append::Error::Unavailable(Reason::Index)
}

/// Whether the remote may have forgotten the key that an invocation bound (contract K-5).
fn expired(invocation: &Invocation, now_ms: u64) -> bool {
    let bound = invocation.preflight().and_then(|bound| bound.idempotency.as_ref());
    bound.is_some_and(|key| key.expires_at_ms <= now_ms)
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
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::RequestSent(_)
        | Body::RemoteResponseStarted(_)
        | Body::RemoteResponseComplete(_)
        | Body::InvocationEnded(_) => illegal("only the call itself appends it"),
    }
}
