//! What a walk holds every record against: all the records before it.

use super::{Damage, Error};
use crate::contract::{Body, Digest, Event, InvocationId, ResultRef, Sequence};
use crate::log::walk::{End, walk};
use crate::log::{Header, Kind, Position, RecordView};
use crate::projection::Invocation;
use crate::result::{ResultKey, open_chunk};
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};

const NO_BEGINNING: &str = "an invocation has no beginning";
/// Invocations whose whole state is kept during a walk.
const KEEP: usize = 100_000;

/// An invocation as far as the walk has come.
struct Seen {
    invocation: Invocation,
    chunks: u32,
    /// Of the content so far; `None` when it can't be known.
    digest: Option<Sha256>,
    /// Whether its beginning is in the removed part.
    is_restated: bool,
}

/// What a walk over the records knows so far.
#[derive(Default)]
pub(crate) struct Check {
    pub(super) segments: u64,
    pub(super) frames: u64,
    pub(super) events: u64,
    pub(super) chunks: u64,
    pub(super) invocations: u64,
    seen: HashMap<InvocationId, Seen>,
    /// Settled ones whose state was dropped to bound memory.
    settled: HashSet<InvocationId>,
    /// Begun in the removed part and not re-stated yet, with the place of the first record.
    orphans: HashMap<InvocationId, Damage>,
    key: Option<ResultKey>,
    pub(super) results: u64,
    /// The last sequence that left.
    removed: Sequence,
    /// Chain values that must hold at their sequence; whether the anchor says so.
    pub(super) marks: Vec<(u64, [u8; 32], bool)>,
}

impl Check {
    /// Of a log whose results are decrypted with that key, and that begins behind this sequence.
    pub(super) fn new(key: Option<ResultKey>, removed: Sequence) -> Self {
        Self { key, removed, ..Self::default() }
    }

    /// Of a log that begins behind this sequence.
    pub(crate) fn behind(removed: Sequence) -> Self {
        Self { removed, ..Self::default() }
    }

    pub(super) fn mark(&self, sequence: u64, chain: &[u8; 32]) -> Result<(), Error> {
        for (at, value, is_anchor) in &self.marks {
            if *at == sequence && value != chain {
                return if *is_anchor {
                    let what = "the log does not follow its anchor";
                    let sequence = Sequence(sequence);
                    Err(Damage { segment: 0, offset: 0, frame: 0, sequence, what }.into())
                } else {
                    Err(Error::Replaced(Sequence(sequence)))
                };
            }
        }
        Ok(())
    }

    /// What began in the removed part must have been re-stated.
    pub(super) fn finish(&self) -> Result<(), Damage> {
        match self.orphans.values().min_by_key(|damage| damage.sequence) {
            Some(first) => Err(first.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn segment(&mut self, header: &Header, bytes: &[u8]) -> Result<End, Error> {
        walk(header, bytes, &mut |position, record| self.record(position, record))
    }

    /// Checks the next record against everything before it.
    pub(crate) fn record(
        &mut self,
        position: Position,
        record: &RecordView<'_>,
    ) -> Result<(), Error> {
        self.mark(record.sequence, &record.chain)?;
        let place = |what| Damage {
            segment: position.segment,
            offset: position.frame + u64::from(position.offset),
            frame: 0,
            sequence: Sequence(record.sequence.saturating_sub(1)),
            what,
        };
        let id = InvocationId::from_bytes(record.invocation);
        let known = self.seen.contains_key(&id) || self.settled.contains(&id);
        let checked = match record.kind {
            Kind::RecoveryNote => Ok(()),
            Kind::CarriedForward => self.restated(id, record),
            Kind::Chunk => match self.chunk(id, record) {
                Err(_) if !known && self.removed.0 > 0 => {
                    let what = "a result chunk belongs to no open call";
                    self.orphans.entry(id).or_insert_with(|| place(what));
                    Ok(())
                }
                checked => checked,
            },
            Kind::Event => match self.event(record) {
                Err(what @ NO_BEGINNING) if !known && self.removed.0 > 0 => {
                    self.orphans.entry(id).or_insert_with(|| place(what));
                    Ok(())
                }
                checked => checked,
            },
        };
        checked.map_err(|what| Error::Damaged(place(what)))
    }

    /// A re-statement says what the events before it said; it is the beginning of an invocation
    /// whose own is gone.
    fn restated(&mut self, id: InvocationId, record: &RecordView<'_>) -> Result<(), &'static str> {
        let invocation: Invocation = serde_json::from_slice(record.payload)
            .map_err(|_| "a re-stated invocation can't be read")?;
        if invocation.id() != id || invocation.last_sequence().0 >= record.sequence {
            return Err("a re-stated invocation belongs to another record");
        }
        if let Some(seen) = self.seen.get(&id) {
            return if seen.invocation == invocation {
                Ok(())
            } else {
                Err("a re-stated invocation is not what its events say")
            };
        }
        if self.settled.contains(&id) {
            return Ok(());
        }
        if invocation.first_sequence() > self.removed {
            return Err("a re-stated invocation has no beginning");
        }
        self.orphans.remove(&id);
        self.invocations += 1;
        self.seen.insert(id, Seen { invocation, chunks: 0, digest: None, is_restated: true });
        Ok(())
    }

    fn chunk(&mut self, id: InvocationId, record: &RecordView<'_>) -> Result<(), &'static str> {
        self.chunks += 1;
        if record.attachment.is_some() && record.sound_attachment().is_none() {
            return Err("a result chunk is not what was written");
        }
        let seen = self.seen.get_mut(&id).ok_or("a result chunk belongs to no open call")?;
        let number = seen.chunks;
        seen.chunks += 1;
        let (Some(key), Some(attachment)) = (&self.key, record.attachment) else {
            seen.digest = None;
            return Ok(());
        };
        let opened = open_chunk(key, id, record.payload, attachment)
            .filter(|opened| opened.number == number || seen.is_restated)
            .ok_or("a result chunk can't be decrypted")?;
        if let Some(digest) = seen.digest.as_mut().filter(|_| opened.stream.is_content()) {
            digest.update(&opened.bytes);
        }
        Ok(())
    }

    fn event(&mut self, record: &RecordView<'_>) -> Result<(), &'static str> {
        self.events += 1;
        let event: Event =
            serde_json::from_slice(record.payload).map_err(|_| "an event can't be read")?;
        if event.invocation.to_bytes() != record.invocation || event.at_ms != record.at_ms {
            return Err("an event belongs to another record");
        }
        let sequence = Sequence(record.sequence);
        if let Some(seen) = self.seen.get_mut(&event.invocation) {
            if let Some(reference) = reference(&event.body) {
                if reference.chunks != seen.chunks && !seen.is_restated {
                    return Err("a committed result has not all of its chunks");
                }
                if let Some(digest) = seen.digest.take() {
                    if Digest(digest.finalize().into()) != reference.digest {
                        return Err("a result has not the digest on record");
                    }
                    self.results += 1;
                }
                // A stored request comes before the result: both have chunks of their own.
                seen.chunks = 0;
                seen.digest = self.key.as_ref().map(|_| Sha256::new());
            }
            return seen.invocation.apply(sequence, &event).map_err(|_| "an event is illegal");
        }
        if self.settled.contains(&event.invocation) {
            return Ok(());
        }
        let invocation = Invocation::start(sequence, &event).map_err(|_| NO_BEGINNING)?;
        self.invocations += 1;
        let digest = self.key.as_ref().map(|_| Sha256::new());
        let seen = Seen { invocation, chunks: 0, digest, is_restated: false };
        self.seen.insert(event.invocation, seen);
        self.bound();
        Ok(())
    }

    fn bound(&mut self) {
        if self.seen.len() < KEEP {
            return;
        }
        let settled = &mut self.settled;
        self.seen.retain(|id, seen| {
            let done = seen.invocation.is_settled();
            if done {
                settled.insert(*id);
            }
            !done
        });
    }
}

fn reference(body: &Body) -> Option<&ResultRef> {
    match body {
        Body::RequestStored(stored) => Some(&stored.request),
        Body::ResultCommitted(committed) => committed.result.as_ref(),
        Body::InvocationEnded(ended) => {
            ended.observation.as_ref().and_then(|seen| seen.recording.as_ref())
        }
        Body::ActionAccepted(_)
        | Body::PreflightValidated(_)
        | Body::ApprovalRequested(_)
        | Body::ApprovalDecided(_)
        | Body::CredentialAuthorized(_)
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::DispatchWithdrawn(_)
        | Body::RequestSent(_)
        | Body::RemoteResponseStarted(_)
        | Body::BatchMembers(_)
        | Body::MembersJudged(_)
        | Body::JobTracked(_)
        | Body::RemoteResponseComplete(_)
        | Body::ResultDelivered(_)
        | Body::DeliveryFailed(_)
        | Body::ResultExpired(_)
        | Body::RepeatAnswered(_)
        | Body::Noted(_)
        | Body::LeaseAcquired(_)
        | Body::LeaseRenewed(_)
        | Body::LeaseUsed(_)
        | Body::LeaseReleased(_) => None,
    }
}
