//! The queue in front of the writer. Sequence numbers are given here, under its lock.

use crate::append::{Error, Reason};
use crate::contract::{InvocationId, Sequence};
use crate::entry::Entry;
use crate::log::Draft;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Bytes that may wait for the writer.
pub(crate) const LIMIT: u64 = 64 << 20;
/// How often recovery is tried at most.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// How long records that nobody waits for may wait for one that somebody does.
const LINGER: Duration = Duration::from_millis(20);

/// After so many waited-for appends without another call in between, the next one counts as alone: a
/// busy journal has such a few now and then, and a caller that writes keeps others from gathering.
const CALM: u8 = 8;

/// Told to who waits for an append.
pub(crate) type Outcome = Result<Sequence, Error>;

/// One record that waits for the writer.
pub(crate) struct Item {
    pub(crate) draft: Draft,
    pub(crate) sequence: Sequence,
    pub(crate) entry: Option<Arc<Entry>>,
    pub(crate) waiter: Option<oneshot::Sender<Outcome>>,
    /// Whether it may settle its invocation.
    pub(crate) settles: bool,
    /// Whether it is written without waiting for others.
    pub(crate) urgent: bool,
    pub(crate) queued: Instant,
}

/// Whether records are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    /// A write failed; the writer waits for a reason to recover.
    Failed,
    Closing,
}

pub(crate) struct Inner {
    items: VecDeque<Item>,
    next: u64,
    pub(crate) mode: Mode,
    /// How many of the items are urgent.
    urgent: usize,
    /// The call that an urgent item was queued for last, unless that one settled it.
    under_way: Option<InvocationId>,
    /// How many urgent items in a row were queued with no other call under way.
    calm: u8,
    /// Whether the writer thread waits for the oldest item to have lingered.
    lingers: bool,
    /// Counts recoveries: a call of an earlier one can't append any more.
    pub(crate) epoch: u64,
    reopen: bool,
    tried: Option<Instant>,
}

impl Inner {
    /// Checks that a call of that epoch (`None`: no call) can append now.
    pub(crate) fn check(&self, epoch: Option<u64>) -> Result<(), Error> {
        match self.mode {
            Mode::Open if epoch.is_none_or(|epoch| epoch == self.epoch) => Ok(()),
            Mode::Open => Err(Error::Unavailable(Reason::Superseded)),
            Mode::Failed => Err(Error::Unavailable(Reason::Recovering)),
            Mode::Closing => Err(Error::Closed),
        }
    }

    /// The sequence that the next record gets.
    pub(crate) const fn next(&self) -> Sequence {
        Sequence(self.next)
    }

    /// Whether whoever has just queued an item is alone with it: then it loses nothing by writing
    /// the batch itself. With others about, a batch gathers while the writer thread syncs. What is
    /// queued at the moment does not show that: the others may be at their origins.
    pub(crate) const fn is_calm(&self) -> bool {
        self.calm >= CALM && self.urgent <= 1
    }

    /// Takes note of an urgent item. A call that lasts, and appends nothing, counts once.
    fn note(&mut self, call: InvocationId, settles: bool) {
        let alone = self.under_way.is_none_or(|other| other == call);
        self.calm = if alone { self.calm.saturating_add(1) } else { 0 };
        self.under_way = (!settles).then_some(call);
    }
}

/// The queue.
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    work: Condvar,
    bytes: AtomicU64,
    peak: AtomicU64,
    /// Woken when the writer took something.
    pub(crate) drained: Notify,
}

/// What the writer thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Something waits that is due.
    Batch,
    /// A write failed before, and somebody asks for service.
    Recover,
    /// The journal is closing, and nothing waits.
    End,
}

impl Queue {
    pub(crate) fn new(next: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                items: VecDeque::new(),
                next,
                mode: Mode::Open,
                urgent: 0,
                under_way: None,
                calm: CALM,
                lingers: false,
                epoch: 1,
                reopen: false,
                tried: None,
            }),
            work: Condvar::new(),
            bytes: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            drained: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that ever waited.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Puts a record at the end; its sequence must be [`Inner::next`].
    pub(crate) fn push(&self, inner: &mut Inner, item: Item) {
        let length = item.draft.length() as u64;
        let waiting = self.bytes.fetch_add(length, Ordering::Relaxed) + length;
        self.peak.fetch_max(waiting, Ordering::Relaxed);
        inner.next = item.sequence.0 + 1;
        if item.urgent {
            inner.urgent += 1;
            if let Some(entry) = &item.entry {
                inner.note(entry.id, item.settles);
            }
        }
        inner.items.push_back(item);
    }

    /// Ends a push: wakes the writer thread if it must know.
    pub(crate) fn wake(&self, inner: MutexGuard<'_, Inner>) {
        // What nobody waits for is found when the oldest item has lingered.
        let needed = inner.urgent > 0 || !inner.lingers;
        drop(inner);
        if needed {
            self.work.notify_one();
        }
    }

    /// Wakes the writer thread if somebody waits for what is queued.
    pub(crate) fn hand_over(&self) {
        let urgent = self.inner.lock().urgent > 0;
        if urgent {
            self.work.notify_one();
        }
    }

    /// Waits until the writer thread has something to do.
    pub(crate) fn wait(&self) -> Work {
        let mut inner = self.inner.lock();
        loop {
            match inner.mode {
                Mode::Closing if inner.items.is_empty() => return Work::End,
                Mode::Closing => return Work::Batch,
                Mode::Failed if inner.reopen => {
                    inner.reopen = false;
                    inner.tried = Some(Instant::now());
                    return Work::Recover;
                }
                Mode::Failed => self.work.wait(&mut inner),
                Mode::Open if inner.urgent > 0 => return Work::Batch,
                Mode::Open => match inner.items.front().map(|item| item.queued + LINGER) {
                    None => self.work.wait(&mut inner),
                    // A call's first events ride with its dispatch, its last with the next call.
                    Some(due) if Instant::now() < due => {
                        inner.lingers = true;
                        self.work.wait_until(&mut inner, due);
                        inner.lingers = false;
                    }
                    Some(_) => return Work::Batch,
                },
            }
        }
    }

    /// Takes up to `limit` bytes of what is queued, at least one item if there is one. Only for the
    /// one writer.
    pub(crate) fn take(&self, limit: u64, batch: &mut Vec<Item>) {
        batch.clear();
        let mut inner = self.inner.lock();
        let mut bytes = 0;
        while let Some(item) = inner.items.front() {
            let length = item.draft.length() as u64;
            if bytes > 0 && bytes + length > limit {
                break;
            }
            bytes += length;
            batch.extend(inner.items.pop_front());
        }
        let urgent = batch.iter().filter(|item| item.urgent).count();
        inner.urgent = inner.urgent.saturating_sub(urgent);
        drop(inner);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.drained.notify_waiters();
    }

    /// Takes no more records and gives back those that wait.
    pub(crate) fn fail(&self) -> VecDeque<Item> {
        let mut inner = self.inner.lock();
        if inner.mode == Mode::Open {
            inner.mode = Mode::Failed;
        }
        inner.reopen = false;
        inner.urgent = 0;
        self.bytes.store(0, Ordering::Relaxed);
        self.drained.notify_waiters();
        std::mem::take(&mut inner.items)
    }

    /// Asks the writer to recover, at most once a second.
    pub(crate) fn request_reopen(&self) {
        let mut inner = self.inner.lock();
        let due = inner.tried.is_none_or(|tried| tried.elapsed() >= REOPEN_EVERY);
        if inner.mode == Mode::Failed && due && !inner.reopen {
            inner.reopen = true;
            self.work.notify_one();
        }
    }

    /// Sets the first sequence, before anybody appends.
    pub(crate) fn begin(&self, next: u64) {
        self.inner.lock().next = next;
    }

    /// Takes records again, from this sequence on.
    pub(crate) fn reopen(&self, next: u64) {
        let mut inner = self.inner.lock();
        inner.next = next;
        inner.epoch += 1;
        if inner.mode == Mode::Failed {
            inner.mode = Mode::Open;
        }
    }

    /// Takes no more records; the writer ends when it has written what waits.
    pub(crate) fn close(&self) {
        self.inner.lock().mode = Mode::Closing;
        self.work.notify_all();
    }
}
