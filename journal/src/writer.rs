//! The writer: one batch at a time, one write and one sync per batch of whatever has queued up.
//!
//! Whoever holds [`Core::writer`] is the writer. That is a thread of its own while several callers
//! wait: what arrives during one sync is the next batch. A caller that waits alone writes its batch
//! itself and saves two changes of threads. There is no timer. After a failure the log handle is never
//! used again; the thread waits until somebody asks for service and then takes the same way as a
//! restart, through recovery ([`crate::reopen`]).

use crate::append::{Error, Reason};
use crate::core::Core;
use crate::failpoint::{self, Stage};
use crate::log::recover::Watermark;
use crate::log::tail::Tail;
use crate::log::{Draft, Position};
use crate::queue::{Item, Work};
use crate::reopen;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};

/// A sync that takes longer is reported.
const SLOW: Duration = Duration::from_secs(1);

/// The end of the log.
pub(crate) enum Log {
    /// It takes frames.
    Live { tail: Box<Tail>, store: [u8; 16] },
    /// Nothing was begun yet, or a write failed; up to where it is durable.
    Dead(Watermark),
}

/// What only the writer touches.
pub(crate) struct Writer {
    pub(crate) log: Log,
    batch: Vec<Item>,
    positions: Vec<Position>,
}

impl Writer {
    /// A writer of a log that is not begun.
    pub(crate) const fn new(durable: Watermark) -> Self {
        Self { log: Log::Dead(durable), batch: Vec::new(), positions: Vec::new() }
    }
}

/// The body of the writer thread.
pub(crate) fn run(core: &Arc<Core>) {
    loop {
        match core.queue.wait() {
            Work::Batch => write(core, &mut core.writer.lock()),
            Work::Recover => reopen::recover(core),
            Work::End => break,
        }
    }
    // A caller may still be writing the last batch.
    drop(core.writer.lock());
    core.spares.stop();
    let mut feed = core.feed.lock();
    feed.closing = true;
    core.feed_work.notify_all();
}

/// Writes the caller's batch on the caller's thread, where nobody else is writing and the thread may
/// block; otherwise wakes the writer thread. The caller holds no lock.
pub(crate) fn lead(core: &Core) {
    let led = may_block()
        && core.writer.try_lock().is_some_and(|mut writer| {
            tokio::task::block_in_place(|| write(core, &mut writer));
            true
        });
    if led {
        core.counters.led.fetch_add(1, Ordering::Relaxed);
    }
    core.queue.hand_over();
}

/// Whether the runtime gives this thread's other tasks to another thread meanwhile. With a single
/// worker that change of threads costs what the one to the writer thread does.
fn may_block() -> bool {
    Handle::try_current().is_ok_and(|runtime| {
        matches!(runtime.runtime_flavor(), RuntimeFlavor::MultiThread)
            && runtime.metrics().num_workers() > 1
    })
}

/// One batch: written, synced, made known.
fn write(core: &Core, writer: &mut Writer) {
    let Writer { log, batch, positions } = writer;
    core.queue.take(core.frame_limit, batch);
    if batch.is_empty() {
        return;
    }
    let begun = Instant::now();
    let failed = match log {
        Log::Live { tail, store } => {
            failpoint::batch(Stage::Write, batch);
            let drafts = batch.iter().map(|item| &item.draft);
            match tail.append(drafts, core.clock.now_ms(), positions) {
                Ok(written) => {
                    failpoint::batch(Stage::Tell, batch);
                    count(core, batch, begun, written);
                    return publish(core, batch, positions, tail.watermark(*store));
                }
                Err(error) => {
                    tracing::error!(%error, segment = tail.segment(), "the log failed");
                    Some(tail.watermark(*store))
                }
            }
        }
        Log::Dead(_) => None,
    };
    if let Some(durable) = failed {
        *log = Log::Dead(durable);
    }
    fail(core, batch);
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn count(core: &Core, batch: &[Item], begun: Instant, written: u64) {
    let took = begun.elapsed();
    if took > SLOW {
        tracing::warn!(ms = took.as_millis(), "a sync of the journal was slow");
    }
    let add = |counter: &std::sync::atomic::AtomicU64, n| {
        counter.fetch_add(n, Ordering::Relaxed);
    };
    let payload = |draft: &Draft| {
        draft.payload.len() + draft.attachment.as_ref().map_or(0, |part| part.bytes.len())
    };
    let counters = &core.counters;
    add(&counters.frames, 1);
    add(&counters.appends, batch.len() as u64);
    add(&counters.written_bytes, written);
    add(&counters.payload_bytes, batch.iter().map(|item| payload(&item.draft) as u64).sum());
    add(&counters.sync_us, micros(took));
    let waits = batch.iter().map(|item| micros(begun.saturating_duration_since(item.queued)));
    add(&counters.queue_wait_us, waits.sum());
}

/// Makes a durable batch known: positions, then the sequence, then the projector and the waiters.
fn publish(core: &Core, batch: &mut Vec<Item>, positions: &[Position], mark: Watermark) {
    for (item, position) in batch.iter().zip(positions) {
        if let Some(entry) = &item.entry {
            entry.state.lock().records.push((item.sequence, item.draft.kind, *position));
        }
    }
    core.durable.store(mark.sequence, Ordering::Release);
    let mut feed = core.feed.lock();
    let was_empty = feed.dirty.is_empty();
    let changed = batch.iter().filter_map(|item| item.entry.as_ref());
    feed.dirty.extend(changed.filter(|entry| entry.enlist()).cloned());
    feed.watermark = Some(mark);
    // While the projector gathers, it is woken only by its clock or its bound.
    let wake = was_empty || feed.dirty.len() >= crate::projector::GATHER_LIMIT;
    drop(feed);
    if wake {
        core.feed_work.notify_one();
    }
    for item in batch.drain(..) {
        if let Some(waiter) = item.waiter {
            // Whoever waited may have gone away.
            drop(waiter.send(Ok(item.sequence)));
        }
        if let Some(entry) = item.entry.filter(|_| item.settles) {
            entry.settled.notify_waiters();
        }
    }
}

/// Tells the batch that its fate is open, and those behind it that they are not on record.
fn fail(core: &Core, batch: &mut Vec<Item>) {
    let waiting = core.queue.fail();
    for item in batch.drain(..) {
        if let Some(waiter) = item.waiter {
            drop(waiter.send(Err(Error::Indeterminate)));
        }
    }
    for item in waiting {
        if let Some(waiter) = item.waiter {
            drop(waiter.send(Err(Error::Unavailable(Reason::Recovering))));
        }
    }
}
