//! The writer: one thread, one write and one sync per batch of whatever has queued up.
//!
//! There is no timer: a batch is what arrived during the sync before. After a failure the log
//! handle is never used again; the writer waits until somebody asks for service and then takes the
//! same way as a restart, through recovery.

use crate::append::{Error, Reason};
use crate::contract::{Body, Code, Ended, InvocationId, Sequence, Source};
use crate::core::{Core, Part, now_ms};
use crate::failpoint::{self, Stage};
use crate::log::recover::{Watermark, recover, survey};
use crate::log::tail::Tail;
use crate::log::{Draft, Kind, Position};
use crate::open;
use crate::queue::{Item, Work};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A sync that takes longer is reported.
const SLOW: Duration = Duration::from_secs(1);

/// The thread's body.
pub(crate) fn run(core: &Arc<Core>, mut tail: Tail, store: [u8; 16]) {
    let mut batch = Vec::new();
    let mut positions = Vec::new();
    while let Work::Batch = core.queue.take(core.frame_limit, &mut batch) {
        let begun = Instant::now();
        failpoint::batch(Stage::Write, &batch);
        let drafts = batch.iter().map(|item| &item.draft);
        match tail.append(drafts, now_ms(), &mut positions) {
            Ok(written) => {
                failpoint::batch(Stage::Tell, &batch);
                count(core, &batch, begun, written);
                let mark = watermark(store, &tail);
                publish(core, &mut batch, &positions, mark);
            }
            Err(error) => {
                tracing::error!(%error, segment = tail.segment(), "the log failed");
                let durable = watermark(store, &tail);
                fail(core, &mut batch);
                match wait_for_recovery(core, &durable) {
                    Some(recovered) => tail = recovered,
                    None => break,
                }
            }
        }
    }
    core.spares.stop();
    let mut feed = core.feed.lock();
    feed.closing = true;
    core.feed_work.notify_all();
}

fn watermark(store: [u8; 16], tail: &Tail) -> Watermark {
    Watermark { store, sequence: tail.last_sequence(), chain: *tail.chain() }
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
    feed.dirty.extend(batch.iter().filter_map(|item| item.entry.clone()));
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

/// Recovers when somebody asks for service. `None` at the end.
fn wait_for_recovery(core: &Arc<Core>, durable: &Watermark) -> Option<Tail> {
    while core.queue.wait_reopen() {
        match reopen(core, durable) {
            Ok(tail) => return Some(tail),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "the log could not be recovered yet");
                core.spares.pause();
            }
        }
    }
    None
}

/// The way of a restart, within the process: what is on disk holds, the rest is forgotten, calls
/// under way are ended.
fn reopen(core: &Arc<Core>, durable: &Watermark) -> Result<Tail, open::Error> {
    let _files = core.files.lock();
    core.spares.pause();
    let survey = survey(&*core.disk)?;
    let mut found_records = Vec::new();
    let found = recover(&*core.disk, &survey, Some(durable), &mut |position, record| {
        let id = InvocationId::from_bytes(record.invocation);
        found_records.push((id, Sequence(record.sequence), record.kind, position));
        Ok(())
    })?;
    let tail = start(core, &survey.unused, &found)?;
    let last = Sequence(found.start.last_sequence);
    forget(core, last, found_records);
    core.durable.store(last.0, Ordering::Release);
    core.queue.reopen(tail.last_sequence() + 1);
    core.counters.reopened.fetch_add(1, Ordering::Relaxed);
    let mark = watermark(found.start.store, &tail);
    let dirty: Vec<_> = core.overlay.iter().map(|entry| Arc::clone(&entry)).collect();
    let open: Vec<_> =
        dirty.iter().filter(|entry| !entry.state.lock().live.is_settled()).cloned().collect();
    let mut feed = core.feed.lock();
    feed.dirty.extend(dirty);
    feed.watermark = Some(mark);
    drop(feed);
    for entry in open {
        if !crate::held::keep(core, &entry) {
            end_interrupted(core, &entry, Code::JournalUnavailable, Code::ResultNotStored);
        }
    }
    tracing::warn!(sequence = last.0, "the log was recovered; service resumes");
    Ok(tail)
}

/// Removes files that hold nothing and begins the next segment, with a note of what was cut off.
pub(crate) fn start(
    core: &Core,
    unused: &[String],
    found: &crate::log::recover::Found,
) -> Result<Tail, open::Error> {
    let io = |step| move |source| open::Error::Io { step, source };
    for name in unused {
        core.disk.remove(name).map_err(io("remove an unused segment"))?;
    }
    core.disk.sync_directory().map_err(io("sync the directory"))?;
    core.spares.resume(found.next_segment);
    let mut tail = Tail::begin(
        Arc::clone(&core.disk),
        Arc::clone(&core.spares),
        core.segment_bytes,
        &found.start,
        now_ms(),
        Arc::clone(&core.room),
    )
    .map_err(io("begin a segment"))?;
    if found.start.discarded > 0 {
        let note = format!(
            r#"{{"segment":{},"length":{},"last_sequence":{},"discarded_bytes":{}}}"#,
            found.start.previous,
            found.start.previous_length,
            found.start.last_sequence,
            found.start.discarded
        );
        let draft = Draft {
            kind: Kind::RecoveryNote,
            invocation: [0; 16],
            at_ms: now_ms(),
            payload: note.into_bytes(),
            attachment: None,
        };
        let mut positions = Vec::new();
        tail.append(std::iter::once(&draft), now_ms(), &mut positions)
            .map_err(io("write the recovery note"))?;
    }
    Ok(tail)
}

/// Takes back, in memory, what the disk does not hold.
fn forget(core: &Core, last: Sequence, found: Vec<(InvocationId, Sequence, Kind, Position)>) {
    for (id, sequence, kind, position) in found {
        if let Some(entry) = core.overlay.get(&id) {
            let mut state = entry.state.lock();
            if !state.records.iter().any(|(known, _, _)| *known == sequence) {
                state.records.push((sequence, kind, position));
            }
        }
    }
    let mut recent = core.recent.lock();
    core.overlay.retain(|_, entry| {
        let kept = entry.state.lock().roll_back(last);
        if !kept {
            recent.remove(entry);
            entry.settled.notify_waiters();
        }
        kept
    });
}

/// Ends a call whose course was interrupted.
pub(crate) fn end_interrupted(
    core: &Core,
    entry: &Arc<crate::entry::Entry>,
    before: Code,
    after: Code,
) {
    let verdict = entry.state.lock().live.conclude(now_ms(), before, after);
    let Some(verdict) = verdict else { return };
    let ended = interrupted(verdict);
    let part = Part::Event(Source::Recovered, Body::InvocationEnded(Box::new(ended)));
    if let Err(error) = core.append(entry, None, vec![part], false) {
        tracing::error!(%error, id = %entry.id, "an interrupted call could not be ended");
    }
}

/// The words for a call that the broker did not see to its end.
pub(crate) fn interrupted(verdict: crate::contract::Verdict) -> Ended {
    let message = match verdict.outcome() {
        crate::contract::Outcome::NotAttempted => {
            "The broker stopped before the request was dispatched; nothing was sent."
        }
        crate::contract::Outcome::Unknown
        | crate::contract::Outcome::Rejected
        | crate::contract::Outcome::Committed => {
            "The broker stopped after the request was dispatched and before a result was \
             recorded; find out the remote state first."
        }
    };
    Ended {
        verdict,
        message: message.to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    }
}
