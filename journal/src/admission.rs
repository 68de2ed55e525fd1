//! Admission: the look-up of earlier invocations and the first event, as one step.

use crate::append::{self, Reason};
use crate::call::{Call, EVENT_RESERVE};
use crate::contract::{Accepted, Body, Event, InvocationId, Outcome, Retry, Source};
use crate::core::Core;
use crate::enqueue::event_draft;
use crate::entry::Entry;
use crate::failpoint::{self, Stage};
use crate::guard::{self, Admission, Choice, Guard};
use crate::held;
use crate::index::Lookup;
use crate::key::{self, Own, Uses};
use crate::ledger::Counted;
use crate::log::Draft;
use crate::projection::{Invocation, State};
use crate::queue::Item;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        at_ms: core.clock.now_ms(),
        source: Source::TransportObserved,
        body: Body::ActionAccepted(accepted.into()),
    };
    failpoint::event(Stage::Queue, id, event.body.name());
    let draft = event_draft(&event)?;
    let Body::ActionAccepted(accepted) = &event.body else {
        return Err(append::Error::NotFound);
    };
    // Where the guard is off, equal requests are many and nobody asks for them.
    let request_hash = guard.window.and_then(|_| guard::request_hash(accepted));
    let mut recent = core.recent.lock();
    let uses = match earlier(core, &recent, id, accepted, guard, event.at_ms)? {
        Earlier::Answers(admission) => return Ok(admission),
        Earlier::Lets(uses) => uses,
    };
    let key_hash = guard.key.as_ref().map(|key| {
        let shared = uses.shared().unwrap_or(&key.key);
        guard::key_hash(&key.scope, shared)
    });
    let agent = accepted.agent.as_deref().unwrap_or_default();
    let counted = guard.budget.map(|budget| core.ledger.begin(agent, &budget, event.at_ms));
    let counted = match counted.transpose() {
        Ok(counted) => counted,
        Err(spent) => return Ok(Admission::Spent(spent)),
    };
    // Later events repeat parts of the first at most.
    let reserved = EVENT_RESERVE + 2 * draft.length() as u64;
    if let Err(error) = core.reserve(reserved) {
        give_back(core, counted);
        return Err(error);
    }
    let name = event.body.name();
    let admitted = enqueue_first(core, event, draft, request_hash, key_hash);
    let Ok((entry, epoch)) = admitted else {
        core.release(reserved);
        give_back(core, counted);
        return admitted.map(|_| Admission::Mismatch);
    };
    if let Some(hash) = request_hash {
        recent.requests.entry(hash).or_default().push(Arc::clone(&entry));
    }
    if let Some(hash) = key_hash {
        recent.keys.entry(hash).or_default().push(Arc::clone(&entry));
    }
    drop(recent);
    failpoint::event(Stage::Act, id, name);
    let call = Call::new(Arc::clone(core), entry, epoch, reserved, counted);
    Ok(Admission::New(call.with_uses(uses)))
}

fn give_back(core: &Core, counted: Option<Counted>) {
    if let Some(counted) = counted {
        counted.end(None, core.clock.now_ms());
    }
}

fn enqueue_first(
    core: &Core,
    event: Event,
    draft: Draft,
    request_hash: Option<[u8; 16]>,
    key_hash: Option<[u8; 16]>,
) -> Result<(Arc<Entry>, u64), append::Error> {
    let slot = core.overlay.entry(event.invocation);
    let mut queue = core.queue.lock();
    queue.check(None)?;
    let sequence = queue.next();
    let live = Invocation::start(sequence, &event)?;
    let entry = Arc::new(Entry::admitted(live, event, request_hash, key_hash));
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

/// What the past says of a submission.
enum Earlier {
    /// An earlier invocation answers instead.
    Answers(Admission),
    /// Nothing stands against it.
    Lets(Uses),
}

/// Looks for an earlier invocation that answers instead.
fn earlier(
    core: &Core,
    recent: &guard::Recent,
    id: InvocationId,
    accepted: &Accepted,
    guard: &Guard,
    now_ms: u64,
) -> Result<Earlier, append::Error> {
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
        return Ok(Earlier::Answers(match (same, known.is_held()) {
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
        return Ok(Earlier::Answers(Admission::Held(Box::new(held))));
    }
    let (window, uses) = match by_key(core, recent, accepted, guard)? {
        ByKey::Answers(admission) => return Ok(Earlier::Answers(admission)),
        ByKey::Lets { window, uses } => (window, uses),
    };
    // K-11: an equal request that may have had its effect.
    match (window, guard::request_hash(accepted), accepted.caller_id) {
        (Some(window), Some(hash), false) => {
            let is_within = |live: &Invocation| guard::is_within(live, window, now_ms);
            equal(core, recent, accepted, guard, &hash, is_within, uses)
        }
        (..) => Ok(Earlier::Lets(uses)),
    }
}

/// What the key of a request says of it.
enum ByKey {
    Answers(Admission),
    /// `window`: of the guard that is left.
    Lets {
        window: Option<Duration>,
        uses: Uses,
    },
}

/// Looks at the earlier uses of the key that a request carries (contract K-3, K-5).
fn by_key(
    core: &Core,
    recent: &guard::Recent,
    accepted: &Accepted,
    guard: &Guard,
) -> Result<ByKey, append::Error> {
    let window = guard.window;
    let Some(carried) = &guard.key else {
        return Ok(ByKey::Lets { window, uses: Uses::default() });
    };
    if matches!(carried.choice, Choice::Fresh { .. }) {
        return Ok(ByKey::Lets { window, uses: Uses::default() });
    }
    let Some(found) = uses_of(core, recent, accepted, &carried.scope, &carried.key)? else {
        return Ok(ByKey::Answers(Admission::Mismatch));
    };
    // K-5: the remote counts from the first use of a key, and no later use renews it.
    let uses = Uses::of(found.iter().map(|(live, _)| live));
    let is_off = carried.is_verified && uses.is_kept(&core.clock);
    Ok(match (carried.choice, found.into_iter().next()) {
        (Choice::Given { by_fingerprint: false }, Some((_, view))) => {
            ByKey::Answers(Admission::SameRequest(Box::new(view)))
        }
        (Choice::Given { .. }, _) => ByKey::Lets { window: window.filter(|_| !is_off), uses },
        (Choice::Recorded | Choice::Fresh { .. }, _) => ByKey::Lets { window, uses },
    })
}

/// Looks for an equal request that answers (contract K-11).
fn equal(
    core: &Core,
    recent: &guard::Recent,
    accepted: &Accepted,
    guard: &Guard,
    hash: &[u8; 16],
    is_within: impl Fn(&Invocation) -> bool,
    uses: Uses,
) -> Result<Earlier, append::Error> {
    if let Some(view) = outstanding(core, recent, hash, guard)? {
        return Ok(Earlier::Answers(Admission::InDoubt(Box::new(view))));
    }
    let limit = GUARD_LIMIT.saturating_add(guard.others.len());
    for (live, view) in candidates(core, recent.requests.get(hash), Lookup::Request(*hash), limit)?
    {
        if !is_within(&live) || guard.passes_over(&live) {
            continue;
        }
        let own = guard.key.as_ref().and_then(|key| Some((key, key::own(&live, &key.scope)?)));
        match own.map(|(key, own)| (key.choice, key, own)) {
            // The same key: no second effect.
            Some((Choice::Recorded, key, own)) if key.key == own => continue,
            Some((Choice::Fresh { .. }, key, own)) => {
                let found = uses_of(core, recent, accepted, &key.scope, own)?;
                match key::stands(&found.unwrap_or_default(), key, &core.clock) {
                    Own::Over => continue,
                    Own::Answers(view) => return Ok(Earlier::Answers(answered_by(*view))),
                    Own::Repeated(uses) => return Ok(Earlier::Lets(uses)),
                }
            }
            Some((Choice::Recorded | Choice::Given { .. }, ..)) | None => {}
        }
        if guard::may_guard(&live) {
            return Ok(Earlier::Answers(answered_by(view)));
        }
    }
    Ok(Earlier::Lets(uses))
}

/// How an equal request answers (contract K-11).
fn answered_by(view: Invocation) -> Admission {
    match view.state() {
        State::Committed(_) => Admission::Settled(Box::new(view)),
        State::Accepted
        | State::Validated
        | State::Authorized
        | State::Dispatched
        | State::Ended(_) => Admission::InDoubt(Box::new(view)),
    }
}

/// An equal request that the broker goes on with by itself, though its last attempt came to nothing.
fn outstanding(
    core: &Core,
    recent: &guard::Recent,
    hash: &[u8; 16],
    guard: &Guard,
) -> Result<Option<Invocation>, append::Error> {
    for id in recent.outstanding.get(hash).into_iter().flatten() {
        let Some(view) = core.view(*id).map_err(|_| index_failed())? else { continue };
        let verdict = view.verdict();
        let goes_on = match verdict.retry() {
            Retry::Backoff | Retry::SameIdempotencyKey => verdict.outcome() != Outcome::Committed,
            Retry::Never | Retry::AfterCorrection | Retry::Reconcile | Retry::FetchResult => false,
        };
        if goes_on && !guard.passes_over(&view) {
            return Ok(Some(view));
        }
    }
    Ok(None)
}

/// The invocations that bound the key with the same request; none if it stands for another request
/// or agent (contract K-3).
fn uses_of(
    core: &Core,
    recent: &guard::Recent,
    accepted: &Accepted,
    scope: &str,
    key: &str,
) -> Result<Option<Vec<(Invocation, Invocation)>>, append::Error> {
    let hash = guard::key_hash(scope, key);
    let mut uses = Vec::new();
    for (live, view) in candidates(core, recent.keys.get(&hash), Lookup::Key(hash), GUARD_LIMIT)? {
        let is_same = guard::is_same(live.accepted(), accepted);
        match guard::may_bind(&live) {
            true if is_same => uses.push((live, view)),
            true if !key::expired(&live, core.clock.latest_ms()) => return Ok(None),
            true | false => {}
        }
    }
    Ok(Some(uses))
}

/// Invocations that may guard, in memory and in the index: as they are, and as they may be
/// shown.
fn candidates(
    core: &Core,
    entries: Option<&Vec<Arc<Entry>>>,
    by: Lookup,
    stored_max: usize,
) -> Result<Vec<(Invocation, Invocation)>, append::Error> {
    let limit = core.durable();
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten().rev() {
        let mut state = entry.state.lock();
        let view = state.view(limit);
        found.push((Invocation::clone(&state.live), view));
    }
    let index = core.index.read();
    let stored = match index.as_ref() {
        Some(index) => index.guards(by, stored_max).map_err(|_| index_failed())?,
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
                (Invocation::clone(&state.live), view)
            }
            None => (invocation.clone(), invocation),
        });
    }
    Ok(found)
}

/// The index could not be asked.
pub(crate) fn index_failed() -> append::Error {
    append::Error::Unavailable(Reason::Index)
}
