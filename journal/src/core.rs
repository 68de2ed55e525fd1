//! What the handles, the writer and the projector share.

use crate::append::{Error, Reason};
use crate::checkpoint::Signer;
use crate::contract::{InvocationId, Sequence};
use crate::entry::Entry;
use crate::guard::Recent;
use crate::held::Parked;
use crate::index::Index;
use crate::lease;
use crate::ledger::Ledger;
use crate::log::disk::Disk;
use crate::log::read::Segments;
use crate::log::recover::Watermark;
use crate::log::spares::Spares;
use crate::options::Retention;
use crate::projection::Invocation;
use crate::queue::{self, Queue};
use crate::read;
use crate::result::ResultKey;
use crate::writer::Writer;
use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;

/// Entries in memory above which no call is admitted: the index lags too far behind.
const OVERLAY_LIMIT: usize = 100_000;

/// Counters since the journal was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) appends: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) led: AtomicU64,
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

/// The shared state. Locks are taken in this order: files, writer, leases, recent, overlay, entry,
/// queue. Of two entries the one of a lease comes first: its invocation is settled, and a call's is
/// not. Who appends only tries the writer, and holds nothing then.
pub(crate) struct Core {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) segments: Segments,
    pub(crate) segment_bytes: u64,
    pub(crate) frame_limit: u64,
    pub(crate) spares: Arc<Spares>,
    pub(crate) room: Arc<AtomicU64>,
    pub(crate) queue: Queue,
    /// Whoever holds it is the one writer.
    pub(crate) writer: Mutex<Writer>,
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
    pub(crate) guard_horizon_ms: AtomicU64,
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
        if entry.enlist() {
            feed.dirty.push(Arc::clone(entry));
        }
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
            Some(entry) => {
                Ok(entry.state.lock().catch_up(self.durable()).map(|view| Invocation::clone(view)))
            }
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
