//! What the handles, the writer and the projector share.

use crate::append::{Error, Reason};
use crate::checkpoint::Signer;
use crate::contract::{Body, Event, InvocationId, Sequence, Source};
use crate::entry::{Entry, settles};
use crate::guard::Recent;
use crate::held::Parked;
use crate::index::Index;
use crate::lease;
use crate::ledger::Ledger;
use crate::log::disk::Disk;
use crate::log::format::MAX_PART;
use crate::log::read::Segments;
use crate::log::recover::Watermark;
use crate::log::spares::Spares;
use crate::log::{Draft, Kind};
use crate::options::Retention;
use crate::projection::Invocation;
use crate::queue::{self, Item, Outcome, Queue};
use crate::read;
use crate::result::ResultKey;
use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{oneshot, watch};

/// Entries in memory above which no call is admitted: the index lags too far behind.
const OVERLAY_LIMIT: usize = 200_000;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Counters since the journal was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) appends: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) queue_wait_us: AtomicU64,
    pub(crate) sync_us: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) indexed: AtomicU64,
}

/// What the writer hands to the projector.
#[derive(Default)]
pub(crate) struct Feed {
    pub(crate) dirty: Vec<Arc<Entry>>,
    pub(crate) watermark: Option<Watermark>,
    pub(crate) closing: bool,
}

/// One record of an append.
pub(crate) enum Part {
    Event(Source, Body),
    Chunk(Draft),
}

impl Part {
    /// The name of the event.
    pub(crate) const fn name(&self) -> Option<&'static str> {
        match self {
            Self::Event(_, body) => Some(body.name()),
            Self::Chunk(_) => None,
        }
    }
}

/// An append that is queued.
pub(crate) struct Queued {
    pub(crate) sequence: Sequence,
    pub(crate) receiver: Option<oneshot::Receiver<Outcome>>,
}

/// The shared state. Locks are taken in this order: leases, recent, overlay, entry, queue. Of two
/// entries the one of a lease comes first: its invocation is settled, and a call's is not.
pub(crate) struct Core {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) segments: Segments,
    pub(crate) segment_bytes: u64,
    pub(crate) frame_limit: u64,
    pub(crate) spares: Arc<Spares>,
    pub(crate) room: Arc<AtomicU64>,
    pub(crate) queue: Queue,
    pub(crate) durable: AtomicU64,
    pub(crate) overlay: DashMap<InvocationId, Arc<Entry>>,
    pub(crate) recent: Mutex<Recent>,
    pub(crate) index: RwLock<Option<Index>>,
    /// Taken for writing while segments leave; before every other lock.
    pub(crate) retiring: RwLock<()>,
    /// Held by whoever rewrites or removes files: a pass of maintenance, or recovery.
    pub(crate) files: Mutex<()>,
    /// The oldest segment that is there.
    pub(crate) first_segment: AtomicU64,
    pub(crate) retention: Retention,
    pub(crate) guard_horizon_ms: u64,
    pub(crate) leases: Mutex<lease::Table>,
    /// Calls that wait for a person.
    pub(crate) parked: Parked,
    /// What agents used of their budgets.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) signer: Signer,
    /// Where keys and sealed copies lie.
    pub(crate) directory: PathBuf,
    pub(crate) feed: Mutex<Feed>,
    pub(crate) feed_work: Condvar,
    pub(crate) reserved: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) tally: crate::tally::Counter,
    pub(crate) clock: crate::clock::Clock,
    pub(crate) key: RwLock<Option<ResultKey>>,
    pub(crate) lock: Mutex<Option<fs::File>>,
    pub(crate) closed: watch::Sender<bool>,
}

impl Core {
    /// The newest durable sequence.
    pub(crate) fn durable(&self) -> Sequence {
        Sequence(self.durable.load(Ordering::Acquire))
    }

    /// Bytes that frames can take without a new allocation, or with one above the floor.
    pub(crate) fn capacity(&self) -> u64 {
        let room = self.room.load(Ordering::Relaxed).saturating_sub(self.frame_limit);
        room + self.spares.capacity(self.frame_limit)
    }

    /// Bytes that can still be reserved.
    pub(crate) fn available(&self) -> u64 {
        let used = self.reserved.load(Ordering::Relaxed) + self.queue.bytes();
        self.capacity().saturating_sub(used)
    }

    /// Reserves room (contract R-6).
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let limit = self.capacity().saturating_sub(self.queue.bytes());
        let taken = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            let next = reserved.saturating_add(bytes);
            (next <= limit).then_some(next)
        });
        taken.map(drop).map_err(|_| Error::Unavailable(Reason::NoCapacity))
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: u64) {
        let mut now = self.reserved.load(Ordering::Relaxed);
        while let Err(other) = self.reserved.compare_exchange_weak(
            now,
            now.saturating_sub(bytes),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            now = other;
        }
    }

    /// Whether a record that nobody reserved for can be taken.
    pub(crate) fn check_health(&self) -> Result<(), Error> {
        let health = self.queue.lock().check(None);
        if health == Err(Error::Unavailable(Reason::Recovering)) {
            self.queue.request_reopen();
        }
        health?;
        if self.queue.bytes() > queue::LIMIT || self.overlay.len() > OVERLAY_LIMIT {
            return Err(Error::Unavailable(Reason::QueueFull));
        }
        Ok(())
    }

    /// Queues the parts as neighbours, with one sequence each, and applies them to the entry. All
    /// or none. With `wait`, the last one tells when it is durable.
    pub(crate) fn append(
        &self,
        entry: &Arc<Entry>,
        epoch: Option<u64>,
        parts: Vec<Part>,
        wait: bool,
    ) -> Result<Queued, Error> {
        let at_ms = now_ms();
        let prepared = prepare(entry.id, at_ms, parts)?;
        let mut state = entry.state.lock();
        let mut queue = self.queue.lock();
        queue.check(epoch)?;
        check_all(&state.live, queue.next(), &prepared)?;
        let last = prepared.len().saturating_sub(1);
        let queued = Instant::now();
        let mut result = Queued { sequence: queue.next(), receiver: None };
        for (n, (draft, event)) in prepared.into_iter().enumerate() {
            let sequence = queue.next();
            let mut settling = false;
            if let Some(event) = event {
                state.live.apply(sequence, &event)?;
                settling = settles(&event.body);
                if settling {
                    self.tally.settled(&state.live, event.source);
                }
                state.events.push_back((sequence, Arc::new(event)));
            }
            let waiter = (wait && n == last).then(|| {
                let (sender, receiver) = oneshot::channel();
                result.receiver = Some(receiver);
                sender
            });
            result.sequence = sequence;
            let item = Item {
                draft,
                sequence,
                entry: Some(Arc::clone(entry)),
                waiter,
                settles: settling,
                queued,
            };
            self.queue.push(&mut queue, item);
        }
        drop(queue);
        drop(state);
        self.queue.wake();
        Ok(result)
    }

    /// Queues the use of a lease and the dispatch under it as neighbours: both or none.
    pub(crate) fn append_under(
        &self,
        subject: &Arc<Entry>,
        used: Body,
        call: &Arc<Entry>,
        epoch: u64,
        dispatch: Body,
    ) -> Result<Queued, Error> {
        let at_ms = now_ms();
        let source = Source::TransportObserved;
        let used = Event { invocation: subject.id, at_ms, source, body: used };
        let dispatch = Event { invocation: call.id, at_ms, source, body: dispatch };
        let (used_draft, dispatch_draft) = (event_draft(&used)?, event_draft(&dispatch)?);
        if Arc::ptr_eq(subject, call) {
            return Err(Error::NotFound);
        }
        let mut held = subject.state.lock();
        let mut calling = call.state.lock();
        let mut queue = self.queue.lock();
        queue.check(Some(epoch))?;
        held.live.check(&used.body, source)?;
        calling.live.check(&dispatch.body, source)?;
        let queued = Instant::now();
        let first = queue.next();
        held.live.apply(first, &used)?;
        held.events.push_back((first, Arc::new(used)));
        let entry = Some(Arc::clone(subject));
        let (waiter, settles) = (None, false);
        let item = Item { draft: used_draft, sequence: first, entry, waiter, settles, queued };
        self.queue.push(&mut queue, item);
        let sequence = queue.next();
        calling.live.apply(sequence, &dispatch)?;
        calling.events.push_back((sequence, Arc::new(dispatch)));
        let (sender, receiver) = oneshot::channel();
        let (entry, waiter) = (Some(Arc::clone(call)), Some(sender));
        let item = Item { draft: dispatch_draft, sequence, entry, waiter, settles, queued };
        self.queue.push(&mut queue, item);
        drop((queue, calling, held));
        self.queue.wake();
        Ok(Queued { sequence, receiver: Some(receiver) })
    }

    /// Queues a record of the whole state of an invocation, for when its earlier ones leave.
    pub(crate) fn carry_forward(&self, entry: &Arc<Entry>) -> Result<Queued, Error> {
        let state = entry.state.lock();
        let payload = serde_json::to_vec(&state.live)
            .ok()
            .filter(|payload| payload.len() <= MAX_PART)
            .ok_or(Error::TooLarge { length_bytes: 0, limit_bytes: MAX_PART })?;
        let draft = Draft {
            kind: Kind::CarriedForward,
            invocation: entry.id.to_bytes(),
            at_ms: now_ms(),
            payload,
            attachment: None,
        };
        let mut queue = self.queue.lock();
        queue.check(None)?;
        let (sender, receiver) = oneshot::channel();
        let sequence = queue.next();
        let item = Item {
            draft,
            sequence,
            entry: Some(Arc::clone(entry)),
            waiter: Some(sender),
            settles: false,
            queued: Instant::now(),
        };
        self.queue.push(&mut queue, item);
        drop(queue);
        drop(state);
        self.queue.wake();
        Ok(Queued { sequence, receiver: Some(receiver) })
    }

    /// Finds an invocation in memory, or takes it from the index into memory. It counts as used;
    /// see [`Core::release_entry`].
    pub(crate) fn entry(&self, id: InvocationId) -> Result<Option<Arc<Entry>>, read::Error> {
        use dashmap::mapref::entry::Entry as Slot;
        // The shard stays locked while the index is read, so that the projector can't drop a newer
        // state in between.
        let entry = match self.overlay.entry(id) {
            Slot::Occupied(slot) => Arc::clone(slot.get()),
            Slot::Vacant(slot) => {
                let Some(invocation) = self.indexed(id)? else { return Ok(None) };
                let entry = Arc::new(Entry::loaded(invocation));
                slot.insert(Arc::clone(&entry));
                entry
            }
        };
        entry.state.lock().users += 1;
        Ok(Some(entry))
    }

    /// Says that an entry is no longer used; the projector may drop it from memory.
    pub(crate) fn release_entry(&self, entry: &Arc<Entry>) {
        let mut state = entry.state.lock();
        state.users = state.users.saturating_sub(1);
        drop(state);
        let mut feed = self.feed.lock();
        let was_empty = feed.dirty.is_empty();
        feed.dirty.push(Arc::clone(entry));
        drop(feed);
        if was_empty {
            self.feed_work.notify_one();
        }
    }

    /// The invocation as the index has it.
    pub(crate) fn indexed(&self, id: InvocationId) -> Result<Option<Invocation>, read::Error> {
        let index = self.index.read();
        Ok(index.as_ref().ok_or_else(closed)?.invocation(id)?)
    }

    /// The durable state of an invocation.
    pub(crate) fn view(&self, id: InvocationId) -> Result<Option<Invocation>, read::Error> {
        let entry = self.overlay.get(&id).map(|entry| Arc::clone(&entry));
        match entry {
            Some(entry) => Ok(entry.state.lock().catch_up(self.durable()).cloned()),
            None => self.indexed(id),
        }
    }

    /// Begins the end: no more appends; the threads write out what is there.
    pub(crate) fn begin_close(&self) {
        self.queue.close();
    }
}

/// The index is gone because the journal was closed.
pub(crate) fn closed() -> read::Error {
    read::Error::Index("the journal is closed".into())
}

/// Checks that all events may follow one another, before any of them is applied.
fn check_all(
    live: &Invocation,
    next: Sequence,
    prepared: &[(Draft, Option<Event>)],
) -> Result<(), Error> {
    let mut events = prepared.iter().filter_map(|(_, event)| event.as_ref());
    match (events.next(), events.next()) {
        (None, _) => Ok(()),
        (Some(only), None) => Ok(live.check(&only.body, only.source)?),
        (Some(first), Some(second)) => {
            let mut trial = live.clone();
            let mut sequence = next;
            for event in [first, second].into_iter().chain(events) {
                trial.apply(sequence, event)?;
                sequence.0 += 1;
            }
            Ok(())
        }
    }
}

/// Encodes the parts, outside of every lock.
fn prepare(
    id: InvocationId,
    at_ms: u64,
    parts: Vec<Part>,
) -> Result<Vec<(Draft, Option<Event>)>, Error> {
    let encode = |part| match part {
        Part::Chunk(draft) => Ok((draft, None)),
        Part::Event(source, body) => {
            let event = Event { invocation: id, at_ms, source, body };
            Ok((event_draft(&event)?, Some(event)))
        }
    };
    parts.into_iter().map(encode).collect()
}

/// The record of an event.
pub(crate) fn event_draft(event: &Event) -> Result<Draft, Error> {
    let mut payload = Vec::with_capacity(512);
    serde_json::to_writer(&mut payload, event)
        .map_err(|_| Error::TooLarge { length_bytes: 0, limit_bytes: MAX_PART })?;
    if payload.len() > MAX_PART {
        return Err(Error::TooLarge { length_bytes: payload.len(), limit_bytes: MAX_PART });
    }
    Ok(Draft {
        kind: Kind::Event,
        invocation: event.invocation.to_bytes(),
        at_ms: event.at_ms,
        payload,
        attachment: None,
    })
}
