//! The projection: what an invocation is, computed from its events and from nothing else.
//!
//! [`Invocation::apply`] is the one transition function. Live traffic and replay both go through
//! it, so they cannot disagree. There is no clock, lock, I/O or randomness in here.
//!
//! ```text
//!  Accepted ─► Validated ─► Authorized ─► Dispatched ─► Committed(rejected | committed)
//!      │           │            │             │              ▲
//!      └───────────┴────────────┤ withdrawn   │              │ late evidence (J-3)
//!                               ▼◄────────────▼              │
//!                 Ended(not_attempted)   Ended(unknown) ─────┘
//! ```
//!
//! Invariant: none but one path leads from `Dispatched` to `not_attempted`: `DISPATCH_WITHDRAWN`, of
//! a dispatch whose flush was never acknowledged, so that no proof of it exists and nothing can follow
//! it. None leads out of `Ended(not_attempted)` (contract D-1, J-3).

use crate::contract::{
    Accepted, Approval, BatchMembers, Body, Confirmation, Dispatch, Event, Fact, InvocationId,
    Member, Preflight, RequestSent, RequestStored, ResponseComplete, ResponseStarted,
    ResultCommitted, ResultRef, Sequence, SetupAttempt, Source, Verdict,
};
use serde::{Deserialize, Serialize};

mod answer;
mod held;
mod legal;
mod read;
mod standing;
pub use standing::Standing;
#[cfg(test)]
mod tests;

/// How far an invocation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// On record, nothing checked.
    Accepted,
    /// Policy allows it, and its snapshot is bound.
    Validated,
    /// The credential may be used, or none is needed.
    Authorized,
    /// Bytes may have reached the remote.
    Dispatched,
    /// Ended without a deciding result: `not_attempted` or `unknown`.
    Ended(Verdict),
    /// A deciding result is on record: `rejected` or `committed`.
    Committed(Verdict),
}

impl State {
    /// The state's name in messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Validated => "validated",
            Self::Authorized => "authorized",
            Self::Dispatched => "dispatched",
            Self::Ended(_) => "ended",
            Self::Committed(_) => "committed",
        }
    }
}

/// Whether the caller has the result (contract R-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Nothing is known of the hand-over.
    Pending,
    /// The hand-over failed.
    Failed,
    /// The hand-over was confirmed.
    Delivered(Confirmation),
}

/// An event that cannot follow what is on record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {event} is illegal in state {state}: {reason}")]
pub struct IllegalEvent {
    /// The state on record.
    pub state: &'static str,
    /// The event that was refused.
    pub event: &'static str,
    /// The rule that it breaks.
    pub reason: &'static str,
}

/// One invocation, projected from its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    id: InvocationId,
    state: State,
    delivery: Delivery,
    accepted: Fact<Accepted>,
    accepted_at_ms: u64,
    first_sequence: Sequence,
    last_sequence: Sequence,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    preflight: Option<Fact<Preflight>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    attempts: Vec<SetupAttempt>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    dispatch: Option<(Sequence, Fact<Dispatch>)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    dispatched_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    sent: Option<RequestSent>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    started: Option<ResponseStarted>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    complete: Option<ResponseComplete>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    result: Option<ResultRef>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    observed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    recording: Option<ResultRef>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    not_before_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ended_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<Source>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    expired_at_ms: Option<u64>,
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    observed_by: Option<InvocationId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    batch: Option<BatchMembers>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    judged: Vec<Member>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    job: Option<InvocationId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    request: Option<(Sequence, RequestStored)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    lease: Option<LeaseState>,
    /// What was dispatched under its leases, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    retries: Vec<InvocationId>,
}

/// The newest lease of an invocation, as far as the log knows (contract K-6). Whether its time is
/// over is known to its process alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    /// 1 for the first.
    pub generation: u64,
    /// The retry that was dispatched under it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry: Option<InvocationId>,
    /// Whether it was given back.
    #[serde(default)]
    pub is_released: bool,
}

impl Invocation {
    /// Begins an invocation with its first event.
    ///
    /// # Errors
    /// [`IllegalEvent`] for anything but `ACTION_ACCEPTED`.
    pub fn start(sequence: Sequence, event: &Event) -> Result<Self, IllegalEvent> {
        let Body::ActionAccepted(accepted) = &event.body else {
            return Err(IllegalEvent {
                state: "absent",
                event: event.body.name(),
                reason: "an invocation begins with ACTION_ACCEPTED",
            });
        };
        Ok(Self {
            id: event.invocation,
            state: State::Accepted,
            delivery: Delivery::Pending,
            accepted: accepted.clone(),
            accepted_at_ms: event.at_ms,
            first_sequence: sequence,
            last_sequence: sequence,
            preflight: None,
            approval: None,
            attempts: Vec::new(),
            dispatch: None,
            dispatched_at_ms: None,
            sent: None,
            started: None,
            complete: None,
            result: None,
            observed_bytes: None,
            recording: None,
            message: None,
            field: None,
            not_before_ms: None,
            ended_at_ms: None,
            source: None,
            expired_at_ms: None,
            note: None,
            observed_by: None,
            batch: None,
            judged: Vec::new(),
            job: None,
            request: None,
            lease: None,
            retries: Vec::new(),
        })
    }

    /// Takes the next event: the one transition function, for live traffic and for replay.
    ///
    /// # Errors
    /// [`IllegalEvent`] when [`Invocation::check`] refuses it, when it belongs to another
    /// invocation, or when its sequence is not above the last; the invocation is unchanged then.
    pub fn apply(&mut self, sequence: Sequence, event: &Event) -> Result<(), IllegalEvent> {
        if event.invocation != self.id {
            return Err(self.illegal(&event.body, "it belongs to another invocation"));
        }
        if sequence <= self.last_sequence {
            return Err(self.illegal(&event.body, "its sequence is not above the last one"));
        }
        self.check(&event.body, event.source)?;
        self.last_sequence = sequence;
        match &event.body {
            Body::ActionAccepted(_) | Body::RepeatAnswered(_) | Body::Noted(_) => {}
            Body::PreflightValidated(preflight) => {
                self.preflight = Some(preflight.clone());
                self.state = State::Validated;
            }
            Body::ApprovalRequested(requested) => self.ask(requested, event.at_ms),
            Body::ApprovalDecided(decided) => self.decide(decided),
            Body::CredentialAuthorized(_) => self.state = State::Authorized,
            Body::RequestStored(stored) => self.request = Some((sequence, *stored)),
            Body::SetupAttempted(attempt) => self.attempts.push(attempt.clone()),
            Body::DispatchStarted(dispatch) => {
                self.dispatch = Some((sequence, dispatch.clone()));
                self.dispatched_at_ms = self.accepted.counted.then_some(event.at_ms);
                self.state = State::Dispatched;
            }
            Body::DispatchWithdrawn(withdrawn) => {
                self.dispatch = None;
                self.state = State::Ended(withdrawn.verdict);
                self.message = Some(withdrawn.message.clone());
                self.ended_at_ms = Some(event.at_ms);
                self.source = Some(event.source);
            }
            Body::RequestSent(sent) => self.sent = Some(sent.clone()),
            Body::RemoteResponseStarted(started) => self.started = Some(started.clone()),
            Body::BatchMembers(batch) => self.batch = Some(batch.clone()),
            Body::MembersJudged(judged) => self.judged.clone_from(&judged.members),
            Body::JobTracked(tracked) => self.job = Some(tracked.job),
            Body::RemoteResponseComplete(complete) => self.complete = Some(complete.clone()),
            Body::ResultCommitted(committed) => self.commit(committed, event),
            Body::InvocationEnded(ended) => {
                self.state = State::Ended(ended.verdict);
                self.message = Some(ended.message.clone());
                self.field.clone_from(&ended.field);
                self.not_before_ms = ended.not_before_ms;
                self.observed_bytes = ended.observation.as_ref().map(|seen| seen.length_bytes);
                self.recording = ended.observation.as_ref().and_then(|seen| seen.recording);
                self.ended_at_ms = Some(event.at_ms);
                self.source = Some(event.source);
            }
            Body::ResultDelivered(delivered) => {
                self.delivery = Delivery::Delivered(delivered.confirmation);
            }
            Body::DeliveryFailed(_) => self.delivery = Delivery::Failed,
            Body::ResultExpired(_) => self.expired_at_ms = Some(event.at_ms),
            Body::LeaseAcquired(acquired) => {
                let generation = acquired.generation;
                self.lease = Some(LeaseState { generation, retry: None, is_released: false });
            }
            Body::LeaseRenewed(_) => {}
            Body::LeaseUsed(used) => {
                self.lease =
                    self.lease.map(|lease| LeaseState { retry: Some(used.retry), ..lease });
                self.retries.push(used.retry);
            }
            Body::LeaseReleased(_) => {
                self.lease = self.lease.map(|lease| LeaseState { is_released: true, ..lease });
            }
        }
        Ok(())
    }

    fn commit(&mut self, committed: &ResultCommitted, event: &Event) {
        self.state = State::Committed(committed.verdict);
        self.result.clone_from(&committed.result);
        self.not_before_ms = committed.not_before_ms;
        self.message = None;
        self.field = None;
        self.note.clone_from(&committed.note);
        self.observed_by = committed.observed_by;
        self.ended_at_ms = Some(event.at_ms);
        self.source = Some(event.source);
    }
}
