//! Admission: the look-up of earlier invocations and the first event, as one step.

use crate::append::{self, Reason};
use crate::call::{Call, EVENT_RESERVE};
use crate::contract::{Accepted, Body, Event, InvocationId, Source};
use crate::core::{Core, now_ms};
use crate::enqueue::event_draft;
use crate::entry::Entry;
use crate::failpoint::{self, Stage};
use crate::guard::{self, Admission, Guard};
use crate::held;
use crate::ledger::Counted;
use crate::log::Draft;
use crate::projection::{Invocation, State};
use crate::queue::Item;
use std::sync::Arc;
use std::time::Instant;

/// Guarding invocations looked at for one submission, those known as others not counted.
const GUARD_LIMIT: usize = 64;

/// Takes a call on record; see [`crate::Journal::admit`].
pub(crate) fn admit(
    core: &Arc<Core>,
    id: InvocationId,
    mut accepted: Accepted,
    guard: &Guard,
) -> Result<Admission, append::Error> {
    core.check_health()?;
    accepted.counted = guard.budget.is_some();
    let event = Event {
        invocation: id,
        at_ms: now_ms(),
        source: Source::TransportObserved,
        body: Body::ActionAccepted(Box::new(accepted)),
    };
    failpoint::event(Stage::Queue, id, event.body.name());
    let draft = event_draft(&event)?;
    let Body::ActionAccepted(accepted) = &event.body else {
        return Err(append::Error::NotFound);
    };
    // Where the guard is off, equal requests are many and nobody asks for them.
    let request_hash = guard.window.and_then(|_| guard::request_hash(accepted));
    let key_hash = guard.key.as_ref().map(|(scope, key)| guard::key_hash(scope, key));
    let mut recent = core.recent.lock();
    if let Some(earlier) = earlier(core, &recent, id, accepted, guard, event.at_ms)? {
        return Ok(earlier);
    }
    let agent = accepted.agent.as_deref().unwrap_or_default();
    let counted = guard.budget.map(|budget| core.ledger.begin(agent, &budget, event.at_ms));
    let counted = match counted.transpose() {
        Ok(counted) => counted,
        Err(spent) => return Ok(Admission::Spent(spent)),
    };
    // Later events repeat parts of the first at most.
    let reserved = EVENT_RESERVE + 2 * draft.length() as u64;
    if let Err(error) = core.reserve(reserved) {
        give_back(counted);
        return Err(error);
    }
    let event = Arc::new(event);
    let admitted = enqueue_first(core, &event, draft, request_hash, key_hash);
    let Ok((entry, epoch)) = admitted else {
        core.release(reserved);
        give_back(counted);
        return admitted.map(|_| Admission::Mismatch);
    };
    if let Some(hash) = request_hash {
        recent.requests.entry(hash).or_default().push(Arc::clone(&entry));
    }
    if let Some(hash) = key_hash {
        recent.keys.entry(hash).or_default().push(Arc::clone(&entry));
    }
    drop(recent);
    failpoint::event(Stage::Act, id, event.body.name());
    Ok(Admission::New(Call::new(Arc::clone(core), entry, epoch, reserved, counted)))
}

fn give_back(counted: Option<Counted>) {
    if let Some(counted) = counted {
        counted.end(None, now_ms());
    }
}

fn enqueue_first(
    core: &Core,
    event: &Arc<Event>,
    draft: Draft,
    request_hash: Option<[u8; 16]>,
    key_hash: Option<[u8; 16]>,
) -> Result<(Arc<Entry>, u64), append::Error> {
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
        urgent: false,
        queued: Instant::now(),
    };
    core.queue.push(&mut queue, item);
    let epoch = queue.epoch;
    core.queue.wake(queue);
    Ok((entry, epoch))
}

/// The earlier invocation that answers instead, if any.
fn earlier(
    core: &Core,
    recent: &guard::Recent,
    id: InvocationId,
    accepted: &Accepted,
    guard: &Guard,
    now_ms: u64,
) -> Result<Option<Admission>, append::Error> {
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
        return Ok(Some(match (same, known.is_held()) {
            (true, true) => Admission::Held(Box::new(known)),
            (true, false) => Admission::SameRequest(Box::new(known)),
            (false, _) => Admission::Mismatch,
        }));
    }
    // V-6: who repeats a call that waits means that call, unless it says otherwise by an id.
    if guard.join
        && !accepted.caller_id
        && let Some(held) = held::joined(core, accepted)
    {
        return Ok(Some(Admission::Held(Box::new(held))));
    }
    // K-3: a key stands for one request of one agent.
    if let Some((scope, key)) = &guard.key {
        let hash = guard::key_hash(scope, key);
        let bound = candidates(core, recent.keys.get(&hash), (b'k', hash), GUARD_LIMIT)?;
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
    let limit = GUARD_LIMIT.saturating_add(guard.others.len());
    let found = candidates(core, recent.requests.get(&hash), (b'g', hash), limit)?
        .into_iter()
        .find(|(live, _)| {
            guard::may_guard(live)
                && guard::is_within(live, window, now_ms)
                && !guard.others.contains(&live.id())
        });
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
    core: &Core,
    entries: Option<&Vec<Arc<Entry>>>,
    (tag, hash): (u8, [u8; 16]),
    stored_max: usize,
) -> Result<Vec<(Invocation, Invocation)>, append::Error> {
    let limit = core.durable();
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten().rev() {
        let mut state = entry.state.lock();
        let view = state.view(limit);
        found.push((state.live.clone(), view));
    }
    let index = core.index.read();
    let stored = match index.as_ref() {
        Some(index) => index.guards(tag, hash, stored_max).map_err(|_| index_failed())?,
        None => return Err(append::Error::Closed),
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

/// Whether the remote may have forgotten the key that an invocation bound (contract K-5).
fn expired(invocation: &Invocation, now_ms: u64) -> bool {
    let bound = invocation.preflight().and_then(|bound| bound.idempotency.as_ref());
    bound.is_some_and(|key| key.expires_at_ms <= now_ms)
}

/// The index could not be asked.
pub(crate) fn index_failed() -> append::Error {
    append::Error::Unavailable(Reason::Index)
}
