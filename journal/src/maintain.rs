//! Retention: whole segments leave, oldest first, and expired results are dropped from the rest.
//!
//! ```text
//!  index synced beyond the segment ─► what must stay is re-stated (CARRIED_FORWARD), durably
//!      ─► anchor: signed checkpoint of where the removed part ends ─► index ─► unlink ─► directory
//! ```
//!
//! A pass may stop anywhere: until the unlink the log is whole, and after it everything that stays
//! is in it. Single records never leave. The youngest segment is never touched.

use crate::append::{self, Reason};
use crate::contract::{Body, InvocationId, ResultExpired, Sequence, Source};
use crate::core::{Core, closed};
use crate::enqueue::{Part, Wait};
use crate::guard;
use crate::index::Surplus;
use crate::key;
use crate::log::disk::replace;
use crate::log::file_name;
use crate::log::recover::{ANCHOR_FILE, Survey, survey};
use crate::log::rewrite::remove_attachments;
use crate::log::{Header, Kind, Position, RecordView};
use crate::options::Maintained;
use crate::projection::Invocation;
use crate::queue::Outcome;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Room for re-statements that must be there before a segment leaves.
const CARRY_RESERVE: u64 = 1 << 20;

/// Why a pass stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: the log could not be read, or is damaged; nothing of it leaves then.
    #[error(transparent)]
    Log(#[from] crate::open::Error),
    /// Local: an invocation could not be re-stated.
    #[error("could not re-state an invocation")]
    Append(#[from] append::Error),
    /// Local: the index could not be used.
    #[error(transparent)]
    Read(#[from] crate::read::Error),
    /// Local: the sealed copy can't be read.
    #[error(transparent)]
    Seal(#[from] crate::seal::Error),
    /// Local: a file could not be written or removed.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl From<crate::index::Error> for Error {
    fn from(error: crate::index::Error) -> Self {
        Self::Read(error.into())
    }
}

fn io(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { step, source }
}

/// One pass.
pub(crate) fn pass(core: &Arc<Core>, now_ms: u64) -> Result<Maintained, Error> {
    let _files = core.files.lock();
    let mut done = Maintained::default();
    let removed = loop {
        match remove_oldest(core, now_ms, &mut done) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            // What expires, expires all the same.
            Err(error) => break Err(error),
        }
    };
    expire_surplus(core, now_ms, &mut done)?;
    drop_expired(core, now_ms, &mut done)?;
    let index = core.index.read();
    let index = index.as_ref().ok_or_else(closed)?;
    let before_ms = now_ms.saturating_sub(core.guard_horizon_ms.load(Ordering::Relaxed));
    index.prune_guards(before_ms, core.clock.now_ms())?;
    index.prune_counted(crate::ledger::oldest_ms(now_ms))?;
    removed.map(|()| done)
}

/// Whether the first segment may leave by age or size.
fn is_due(core: &Core, survey: &Survey, now_ms: u64) -> Result<bool, Error> {
    let Some([_, next, ..]) = survey.headers.get(..) else { return Ok(false) };
    let aged = core.retention.max_age.is_some_and(|age| {
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        next.created_ms.saturating_add(age) <= now_ms
    });
    let Some(limit) = core.retention.max_bytes else { return Ok(aged) };
    let mut total = 0_u64;
    for header in &survey.headers {
        let file = core.disk.open(&file_name(header.segment)).map_err(io("open a segment"))?;
        total += file.length().map_err(io("read a segment's length"))?;
    }
    Ok(aged || total > limit)
}

/// Removes the oldest segment if it may leave. True when it did.
fn remove_oldest(core: &Arc<Core>, now_ms: u64, done: &mut Maintained) -> Result<bool, Error> {
    let survey = survey(&*core.disk)?;
    if !is_due(core, &survey, now_ms)? {
        return Ok(false);
    }
    let Some([oldest, next, ..]) = survey.headers.get(..) else { return Ok(false) };
    let cut = Sequence(next.previous_last);
    if core.counters.indexed.load(Ordering::Acquire) < cut.0 {
        return Ok(false);
    }
    // What the sealed copy has not seen yet stays.
    if crate::seal::copied(&core.directory)?.is_some_and(|copied| copied < cut) {
        return Ok(false);
    }
    if core.available() < CARRY_RESERVE {
        return Err(append::Error::Unavailable(Reason::NoCapacity).into());
    }
    let retiring = core.retiring.write();
    let leaving = carry_forward(core, cut, now_ms, done)?;
    let note = core.signer.sign(cut.0, next.chain_in);
    replace(&*core.disk, ANCHOR_FILE, note.as_bytes()).map_err(io("write the anchor"))?;
    {
        let index = core.index.read();
        index.as_ref().ok_or_else(closed)?.remove(&leaving)?;
    }
    core.first_segment.store(next.segment, Ordering::Release);
    core.segments.forget(oldest.segment);
    core.disk.remove(&file_name(oldest.segment)).map_err(io("remove a segment"))?;
    core.disk.sync_directory().map_err(io("sync the directory"))?;
    drop(retiring);
    done.removed_segments += 1;
    done.removed_invocations += leaving.len() as u64;
    tracing::info!(segment = oldest.segment, sequence = cut.0, "a segment left the journal");
    Ok(true)
}

/// Re-states what must outlive the records up to `cut`, durably. Gives what leaves with them.
fn carry_forward(
    core: &Arc<Core>,
    cut: Sequence,
    now_ms: u64,
    done: &mut Maintained,
) -> Result<Vec<Invocation>, Error> {
    let mut ids: HashSet<InvocationId> = HashSet::new();
    {
        let index = core.index.read();
        ids.extend(index.as_ref().ok_or_else(closed)?.begun_by(cut)?);
    }
    let mut leaving = Vec::new();
    let mut waiting = None;
    for id in ids {
        let held = core.overlay.get(&id).map(|entry| Arc::clone(&entry));
        let (invocation, records) = {
            let index = core.index.read();
            let index = index.as_ref().ok_or_else(closed)?;
            let Some(invocation) = index.invocation(id)? else { continue };
            let mut records = index.records(id)?;
            if let Some(held) = &held {
                records.extend(held.state.lock().records.iter().copied());
            }
            (invocation, records)
        };
        match fate(held.is_some(), &invocation, &records, cut, core, now_ms) {
            Fate::Leaves => leaving.push(invocation),
            Fate::IsRestated => {}
            Fate::Stays => {
                let Some(entry) = core.entry(id)? else { continue };
                let queued = core.carry_forward(&entry);
                core.release_entry(&entry);
                waiting = queued?.receiver;
                done.carried_forward += 1;
            }
        }
    }
    await_last(waiting)?;
    Ok(leaving)
}

enum Fate {
    /// All of its records leave, and nobody needs it.
    Leaves,
    /// It must be re-stated first.
    Stays,
    /// It was re-stated behind the cut before.
    IsRestated,
}

fn fate(
    held: bool,
    invocation: &Invocation,
    records: &[(Sequence, Kind, Position)],
    cut: Sequence,
    core: &Core,
    now_ms: u64,
) -> Fate {
    let behind = |record: &&(Sequence, Kind, Position)| record.0 > cut;
    if records.iter().filter(behind).any(|(_, kind, _)| *kind == Kind::CarriedForward) {
        return Fate::IsRestated;
    }
    let more = records.iter().any(|record| behind(&record));
    // An equal request or key inside the horizon must still find it (K-3, K-11).
    let horizon_ms = core.guard_horizon_ms.load(Ordering::Relaxed);
    let recent =
        invocation.ended_at_ms().is_none_or(|ended| ended.saturating_add(horizon_ms) > now_ms);
    let bound = invocation.preflight();
    let idempotent = bound.is_some_and(|bound| bound.idempotent);
    let keyed = bound.is_some_and(|bound| bound.idempotency.is_some());
    // K-5: a key that the remote still keeps stays known, however long that is.
    let kept = !key::expired(invocation, now_ms);
    let guards = recent && !idempotent && guard::may_guard(invocation)
        || (recent || kept) && keyed && guard::may_bind(invocation);
    if held || more || guards || !invocation.is_settled() { Fate::Stays } else { Fate::Leaves }
}

/// Says of the oldest results of a route that keeps too many bytes that they are over. Their chunks
/// go with those of others that expired, once that is in the index.
fn expire_surplus(core: &Arc<Core>, now_ms: u64, done: &mut Maintained) -> Result<(), Error> {
    let surplus = {
        let index = core.index.read();
        index.as_ref().ok_or_else(closed)?.surplus(now_ms)?
    };
    let mut waiting = None;
    for Surplus { id, total_bytes, limit_bytes } in surplus {
        let Some(entry) = core.entry(id)? else { continue };
        // The index may not have seen it yet.
        let known = entry.state.lock().live.is_result_evicted();
        let expired = Body::ResultExpired(ResultExpired { total_bytes, limit_bytes });
        let part = Part::Event(Source::TransportObserved, expired);
        let appended = (!known).then(|| core.append(&entry, None, vec![part], Wait::Later));
        core.release_entry(&entry);
        if let Some(queued) = appended.transpose()? {
            waiting = queued.receiver;
            done.expired_results += 1;
        }
    }
    await_last(waiting)
}

/// Waits for the last of several appends, which is durable after all others.
fn await_last(waiting: Option<oneshot::Receiver<Outcome>>) -> Result<(), Error> {
    if let Some(receiver) = waiting {
        receiver.blocking_recv().unwrap_or(Err(append::Error::Closed))?;
    }
    Ok(())
}

/// Drops the chunks of expired results from sealed segments.
fn drop_expired(core: &Arc<Core>, now_ms: u64, done: &mut Maintained) -> Result<(), Error> {
    let (expired, places) = {
        let index = core.index.read();
        let index = index.as_ref().ok_or_else(closed)?;
        let expired = index.expired(now_ms)?;
        let mut places = Vec::new();
        for (_, id) in &expired {
            places.push(index.records(*id)?);
        }
        (expired, places)
    };
    if expired.is_empty() {
        return Ok(());
    }
    let survey = survey(&*core.disk)?;
    let sealed: BTreeSet<u64> =
        survey.headers.iter().rev().skip(1).map(|header| header.segment).collect();
    let youngest = survey.headers.last().map_or(0, |header| header.segment);
    let mut touched = BTreeSet::new();
    let mut finished = Vec::new();
    for (result, records) in expired.into_iter().zip(places) {
        let chunks = records.iter().filter(|(_, kind, _)| *kind == Kind::Chunk);
        let segments: BTreeSet<u64> = chunks.map(|(_, _, at)| at.segment).collect();
        // The youngest segment waits until it is sealed.
        if !segments.contains(&youngest) {
            touched.extend(segments.intersection(&sealed).copied());
            finished.push(result);
        }
    }
    for pair in survey.headers.windows(2) {
        let [header, next] = pair else { continue };
        if touched.contains(&header.segment) {
            rewrite(core, header, next, now_ms, done)?;
        }
    }
    let index = core.index.read();
    index.as_ref().ok_or_else(closed)?.forget_results(&finished)?;
    Ok(())
}

fn rewrite(
    core: &Core,
    header: &Header,
    next: &Header,
    now_ms: u64,
    done: &mut Maintained,
) -> Result<(), Error> {
    let mut unread = None;
    let mut may_go = |record: &RecordView<'_>| {
        let id = InvocationId::from_bytes(record.invocation);
        match core.view(id) {
            Ok(Some(invocation)) if invocation.is_settled() => {
                // Without a result they are left-overs of a call that ended otherwise.
                invocation.result_expires_ms().is_none_or(|expiry| expiry <= now_ms)
            }
            Ok(_) => false,
            Err(error) => {
                unread = Some(error);
                false
            }
        }
    };
    let dropped = remove_attachments(&*core.disk, header, next, &mut may_go)?;
    core.segments.forget(header.segment);
    if dropped > 0 {
        done.rewritten_segments += 1;
        done.dropped_chunks += dropped;
        tracing::info!(segment = header.segment, chunks = dropped, "expired results were dropped");
    }
    // What was kept for that stays listed as expired, and is looked at again.
    unread.map_or(Ok(()), |error| Err(error.into()))
}
