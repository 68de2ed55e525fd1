//! The projector: brings the index up to date, in batches, behind the writer.
//!
//! Until a state is in the index, it is served from memory. A failing index makes the projector
//! lag; it does not stop the log until memory is at its bound.

use crate::contract::Sequence;
use crate::core::Core;
use crate::entry::Entry;
use crate::index::Update;
use crate::log::recover::Watermark;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(250);
/// How many are gathered at most.
pub(crate) const GATHER_LIMIT: usize = 20_000;
/// How long it waits after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The thread's body.
pub(crate) fn run(core: &Arc<Core>) {
    let mut backlog: Vec<Arc<Entry>> = Vec::new();
    let mut mark: Option<Watermark> = None;
    loop {
        let closing = gather(core, &mut backlog, &mut mark);
        let done = project(core, &mut backlog, mark.as_ref());
        if closing {
            break;
        }
        if !done {
            std::thread::sleep(PAUSE);
        }
    }
    if let Some(index) = core.index.write().take() {
        index.close();
    }
    core.lock.lock().take();
    core.closed.send_replace(true);
}

/// Waits for changes and a little longer, and takes them. True at the end.
fn gather(core: &Core, backlog: &mut Vec<Arc<Entry>>, mark: &mut Option<Watermark>) -> bool {
    let mut feed = core.feed.lock();
    while feed.dirty.is_empty() && backlog.is_empty() && !feed.closing {
        core.feed_work.wait(&mut feed);
    }
    let until = Instant::now() + GATHER;
    while !feed.closing && feed.dirty.len() < GATHER_LIMIT {
        if core.feed_work.wait_until(&mut feed, until).timed_out() {
            break;
        }
    }
    feed.dirty.iter().for_each(|entry| entry.delist());
    backlog.append(&mut feed.dirty);
    if let Some(newest) = feed.watermark.take() {
        *mark = Some(newest);
    }
    feed.closing
}

/// Writes the changes up to the watermark and drops from memory what is not needed there any more.
fn project(core: &Core, backlog: &mut Vec<Arc<Entry>>, mark: Option<&Watermark>) -> bool {
    let mut seen = HashSet::new();
    backlog.retain(|entry| seen.insert(Arc::as_ptr(entry)));
    let Some(mark) = mark else {
        backlog.drain(..).for_each(|entry| drop_unused(core, &entry, Sequence(0)));
        return true;
    };
    let limit = Sequence(mark.sequence);
    let updates: Vec<Update> = backlog.iter().filter_map(|entry| update(entry, limit)).collect();
    let applied = match core.index.read().as_ref() {
        Some(index) => index.apply(&updates, mark),
        None => Ok(()),
    };
    if let Err(error) = applied {
        tracing::error!(%error, "the index can't be written; it lags behind the log");
        return false;
    }
    core.counters.indexed.store(mark.sequence, Ordering::Relaxed);
    backlog.drain(..).for_each(|entry| drop_unused(core, &entry, limit));
    true
}

fn update(entry: &Arc<Entry>, limit: Sequence) -> Option<Update> {
    let mut state = entry.state.lock();
    let records: Vec<_> =
        state.records.iter().filter(|(sequence, _, _)| *sequence <= limit).copied().collect();
    if records.is_empty() {
        return None;
    }
    let invocation = Arc::clone(state.catch_up(limit)?);
    Some(Update { invocation, records })
}

fn drop_unused(core: &Core, entry: &Arc<Entry>, limit: Sequence) {
    let mut recent = core.recent.lock();
    // Under the shard's lock, so that nobody takes up the entry while it goes.
    let gone = core.overlay.remove_if(&entry.id, |_, held| {
        if !Arc::ptr_eq(held, entry) {
            return false;
        }
        let mut state = entry.state.lock();
        state.records.retain(|(sequence, _, _)| *sequence > limit);
        // What a failure left open is ended by the recovery, which looks for it here.
        let is_over = state.live.is_settled() || state.live.is_held();
        state.users == 0 && is_over && state.events.is_empty() && state.records.is_empty()
    });
    if gone.is_some() {
        recent.remove(entry);
    }
}
