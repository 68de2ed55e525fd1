//! Appends: records get their sequence, are applied to memory and queued, as one step.

use crate::append::Error;
use crate::contract::{Body, Event, InvocationId, Sequence, Source};
use crate::core::Core;
use crate::entry::{Entry, settles};
use crate::log::format::MAX_PART;
use crate::log::{Draft, Kind};
use crate::projection::Invocation;
use crate::queue::{Item, Outcome};
use crate::writer;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

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

/// Who waits for an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nobody: it rides along with the next one that somebody waits for.
    No,
    /// Somebody who does not need it yet: it rides along too.
    Ride,
    /// Somebody, later or elsewhere, or under a lock: the writer thread is woken.
    Later,
    /// The caller, at once and without a lock: it writes the batch itself when it is alone.
    Now,
}

/// What an invocation with its members may have as one record: the rest is for the events that follow.
const RESTATED: usize = MAX_PART - (24 << 10);

/// An append that is queued.
pub(crate) struct Queued {
    pub(crate) sequence: Sequence,
    pub(crate) receiver: Option<oneshot::Receiver<Outcome>>,
}

impl Core {
    /// Queues the parts as neighbours, with one sequence each, and applies them to the entry. All
    /// or none. The last one tells who waits for it when it is durable.
    pub(crate) fn append(
        &self,
        entry: &Arc<Entry>,
        epoch: Option<u64>,
        parts: Vec<Part>,
        wait: Wait,
    ) -> Result<Queued, Error> {
        let at_ms = self.clock.now_ms();
        let prepared = prepare(entry.id, at_ms, parts)?;
        let mut state = entry.state.lock();
        let mut queue = self.queue.lock();
        queue.check(epoch)?;
        check_restated(&state.live, &prepared)?;
        apply_all(&mut state.live, queue.next(), &prepared)?;
        let last = prepared.len().saturating_sub(1);
        let queued = Instant::now();
        let mut result = Queued { sequence: queue.next(), receiver: None };
        for (n, (draft, event)) in prepared.into_iter().enumerate() {
            let sequence = queue.next();
            let mut settling = false;
            if let Some(event) = event {
                settling = settles(&event.body);
                if settling {
                    self.tally.settled(&state.live, event.source);
                }
                state.events.push_back((sequence, event));
            }
            let waiter = (wait != Wait::No && n == last).then(|| {
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
                urgent: settling || n == last && matches!(wait, Wait::Later | Wait::Now),
                queued,
            };
            self.queue.push(&mut queue, item);
        }
        drop(state);
        match wait {
            Wait::Now if queue.is_calm() => {
                drop(queue);
                writer::lead(self);
            }
            Wait::Now | Wait::Later | Wait::Ride | Wait::No => self.queue.wake(queue),
        }
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
        let at_ms = self.clock.now_ms();
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
        Arc::make_mut(&mut held.live).apply(first, &used)?;
        held.events.push_back((first, used));
        let entry = Some(Arc::clone(subject));
        let (waiter, settles, urgent) = (None, false, false);
        let draft = used_draft;
        let item = Item { draft, sequence: first, entry, waiter, settles, urgent, queued };
        self.queue.push(&mut queue, item);
        let sequence = queue.next();
        Arc::make_mut(&mut calling.live).apply(sequence, &dispatch)?;
        calling.events.push_back((sequence, dispatch));
        let (sender, receiver) = oneshot::channel();
        let (entry, waiter, urgent) = (Some(Arc::clone(call)), Some(sender), true);
        let draft = dispatch_draft;
        let item = Item { draft, sequence, entry, waiter, settles, urgent, queued };
        self.queue.push(&mut queue, item);
        drop((calling, held));
        self.queue.wake(queue);
        Ok(Queued { sequence, receiver: Some(receiver) })
    }

    /// Queues a record of the whole state of an invocation, for when its earlier ones leave.
    pub(crate) fn carry_forward(&self, entry: &Arc<Entry>) -> Result<Queued, Error> {
        let state = entry.state.lock();
        let payload = restated(&state.live, MAX_PART)?;
        let draft = Draft {
            kind: Kind::CarriedForward,
            invocation: entry.id.to_bytes(),
            at_ms: self.clock.now_ms(),
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
            urgent: true,
            queued: Instant::now(),
        };
        self.queue.push(&mut queue, item);
        drop(state);
        self.queue.wake(queue);
        Ok(Queued { sequence, receiver: Some(receiver) })
    }
}

/// Applies the events of an append: all of them, or none.
fn apply_all(
    live: &mut Arc<Invocation>,
    first: Sequence,
    prepared: &[(Draft, Option<Event>)],
) -> Result<(), Error> {
    let events = || {
        let numbered = (first.0..).map(Sequence).zip(prepared);
        numbered.filter_map(|(sequence, (_, event))| Some((sequence, event.as_ref()?)))
    };
    // One that is refused has changed nothing; the first of several could have.
    let mut trial = events().nth(1).is_some().then(|| Arc::clone(live));
    for (sequence, event) in events() {
        Arc::make_mut(trial.as_mut().unwrap_or(live)).apply(sequence, event)?;
    }
    if let Some(next) = trial {
        *live = next;
    }
    Ok(())
}

/// The whole state of an invocation as one record, of so many bytes at most.
fn restated(live: &Invocation, limit_bytes: usize) -> Result<Vec<u8>, Error> {
    let too_large = |length_bytes| Error::TooLarge { length_bytes, limit_bytes };
    let payload = serde_json::to_vec(live).map_err(|_| too_large(0))?;
    if payload.len() > limit_bytes { Err(too_large(payload.len())) } else { Ok(payload) }
}

/// Refuses what would add so much to an invocation that it could not be re-stated any more: of the members of
/// a batch there may be too many.
fn check_restated(live: &Invocation, parts: &[(Draft, Option<Event>)]) -> Result<(), Error> {
    for (draft, event) in parts {
        let body = event.as_ref().map(|event| &event.body);
        if matches!(body, Some(Body::BatchMembers(_) | Body::MembersJudged(_))) {
            restated(live, RESTATED.saturating_sub(draft.payload.len()))?;
        }
    }
    Ok(())
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
