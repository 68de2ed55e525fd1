//! Recovery within the process, after a write or a sync has failed.

use crate::contract::{
    Body, Code, DispatchWithdrawn, Ended, InvocationId, Outcome, Retry, Sequence, Source, Verdict,
};
use crate::core::Core;
use crate::enqueue::{Part, Wait};
use crate::entry::Entry;
use crate::log::recover::{Watermark, survey};
use crate::log::tail::Tail;
use crate::log::{self, Draft, Kind, Position};
use crate::open;
use crate::writer::Log;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Recovers a log that failed. When it can't be done yet, the next caller asks for it again.
pub(crate) fn recover(core: &Arc<Core>) {
    let _files = core.files.lock();
    let mut writer = core.writer.lock();
    let Log::Dead(durable) = &writer.log else { return };
    match reopen(core, durable) {
        Ok(log) => writer.log = log,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::error!(%error, cause, "the log could not be recovered yet");
            core.spares.pause();
        }
    }
}

/// The way of a restart, within the process: what is on disk holds, the rest is forgotten, calls
/// under way are ended.
fn reopen(core: &Arc<Core>, durable: &Watermark) -> Result<Log, open::Error> {
    core.spares.pause();
    let survey = survey(&*core.disk)?;
    let mut found_records = Vec::new();
    let found =
        log::recover::recover(&*core.disk, &survey, Some(durable), &mut |position, record| {
            let id = InvocationId::from_bytes(record.invocation);
            found_records.push((id, Sequence(record.sequence), record.kind, position));
            Ok(())
        })?;
    let tail = start(core, &survey.unused, &found)?;
    let last = Sequence(found.start.last_sequence);
    forget(core, last, found_records);
    core.durable.store(last.0, Ordering::Release);
    // Before records are taken again: what is admitted from then on was not interrupted.
    let dirty: Vec<_> = core.overlay.iter().map(|entry| Arc::clone(&entry)).collect();
    let open: Vec<_> =
        dirty.iter().filter(|entry| !entry.state.lock().live.is_settled()).cloned().collect();
    core.queue.reopen(tail.last_sequence() + 1);
    core.counters.reopened.fetch_add(1, Ordering::Relaxed);
    let store = found.start.store;
    let mark = tail.watermark(store);
    let mut feed = core.feed.lock();
    feed.dirty.extend(dirty.into_iter().filter(|entry| entry.enlist()));
    feed.watermark = Some(mark);
    drop(feed);
    for entry in open {
        if !crate::held::keep(core, &entry) {
            end_interrupted(core, &entry, Sequence(durable.sequence));
        }
    }
    tracing::warn!(sequence = last.0, "the log was recovered; service resumes");
    Ok(Log::Live { tail: Box::new(tail), store })
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
        core.clock.now_ms(),
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
            at_ms: core.clock.now_ms(),
            payload: note.into_bytes(),
            attachment: None,
        };
        let mut positions = Vec::new();
        tail.append(std::iter::once(&draft), core.clock.now_ms(), &mut positions)
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

/// Ends a call whose course was interrupted. `durable` is what had been acknowledged.
fn end_interrupted(core: &Core, entry: &Arc<Entry>, durable: Sequence) {
    let (source, body) = {
        let mut state = entry.state.lock();
        let dispatch = state.live.dispatch_sequence();
        // Another failure may come before the withdrawal is durable.
        state.unproven |= dispatch.is_some_and(|dispatch| dispatch > durable);
        match dispatch.filter(|_| state.unproven) {
            Some(dispatch) => {
                let withdrawn = Box::new(withdrawn(dispatch));
                (Source::TransportObserved, Body::DispatchWithdrawn(withdrawn))
            }
            None => {
                let codes = (Code::JournalUnavailable, Code::ResultNotStored);
                let verdict = state.live.conclude(core.clock.latest_ms(), codes.0, codes.1);
                let Some(verdict) = verdict else { return };
                (Source::Recovered, Body::InvocationEnded(Box::new(interrupted(verdict))))
            }
        }
    };
    if let Err(error) = core.append(entry, None, vec![Part::Event(source, body)], Wait::No) {
        tracing::error!(%error, id = %entry.id, "an interrupted call could not be ended");
    }
}

/// A dispatch that is on the disk although its flush failed: whoever waited for the proof got none,
/// so nothing was sent, and this process knows it (contract D-1).
fn withdrawn(dispatch: Sequence) -> DispatchWithdrawn {
    DispatchWithdrawn {
        dispatch,
        verdict: Verdict::not_connected(Retry::Backoff, Code::JournalUnavailable),
        message: "The record of the dispatch could not be flushed; nothing was sent.".to_owned(),
    }
}

/// The words for a call that the broker did not see to its end.
pub(crate) fn interrupted(verdict: Verdict) -> Ended {
    let message = match verdict.outcome() {
        Outcome::NotAttempted => {
            "The broker stopped before the request was dispatched; nothing was sent."
        }
        Outcome::Unknown | Outcome::Rejected | Outcome::Committed => {
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
