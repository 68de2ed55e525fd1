//! The projection: what an invocation is, computed from its events and from nothing else.
//!
//! [`Invocation::apply`] is the one transition function. Live traffic and replay both go through
//! it, so they cannot disagree. There is no clock, lock, I/O or randomness in here.
//!
//! ```text
//!  Accepted ─► Validated ─► Authorized ─► Dispatched ─► Committed(rejected | committed)
//!      │           │            │             │              ▲
//!      └───────────┴────────────┤             │              │ late evidence (J-3)
//!                               ▼             ▼              │
//!                 Ended(not_attempted)   Ended(unknown) ─────┘
//! ```
//!
//! Invariant: no path leads from `Dispatched` to `not_attempted`, and none out of
//! `Ended(not_attempted)` (contract D-1, J-3).

use crate::contract::{
    Accepted, Approval, Body, Code, Confirmation, Dispatch, Envelope, Event, Evidence, InvocationId,
    LeaseReleased, LeaseRenewed, Operation, Outcome, Preflight, Problem, RequestSent,
    ResponseComplete, ResponseStarted, ResultCommitted, ResultRef, Retry, Sequence, SetupAttempt,
    Source, Verdict, after_unknown,
};
use serde::{Deserialize, Serialize};

mod held;
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
    accepted: Accepted,
    accepted_at_ms: u64,
    first_sequence: Sequence,
    last_sequence: Sequence,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    preflight: Option<Preflight>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    approval: Option<Approval>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    attempts: Vec<SetupAttempt>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    dispatch: Option<(Sequence, Dispatch)>,
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
    lease: Option<LeaseState>,
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
            accepted: (**accepted).clone(),
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
            message: None,
            field: None,
            not_before_ms: None,
            ended_at_ms: None,
            source: None,
            lease: None,
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
                self.preflight = Some((**preflight).clone());
                self.state = State::Validated;
            }
            Body::ApprovalRequested(requested) => self.ask(requested, event.at_ms),
            Body::ApprovalDecided(decided) => self.decide(decided),
            Body::CredentialAuthorized(_) => self.state = State::Authorized,
            Body::SetupAttempted(attempt) => self.attempts.push(attempt.clone()),
            Body::DispatchStarted(dispatch) => {
                self.dispatch = Some((sequence, (**dispatch).clone()));
                self.dispatched_at_ms = Some(event.at_ms);
                self.state = State::Dispatched;
            }
            Body::RequestSent(sent) => self.sent = Some(sent.clone()),
            Body::RemoteResponseStarted(started) => self.started = Some(started.clone()),
            Body::RemoteResponseComplete(complete) => self.complete = Some(complete.clone()),
            Body::ResultCommitted(committed) => self.commit(committed, event),
            Body::InvocationEnded(ended) => {
                self.state = State::Ended(ended.verdict);
                self.message = Some(ended.message.clone());
                self.field.clone_from(&ended.field);
                self.not_before_ms = ended.not_before_ms;
                self.observed_bytes = ended.observation.as_ref().map(|seen| seen.length_bytes);
                self.ended_at_ms = Some(event.at_ms);
                self.source = Some(event.source);
            }
            Body::ResultDelivered(delivered) => {
                self.delivery = Delivery::Delivered(delivered.confirmation);
            }
            Body::DeliveryFailed(_) => self.delivery = Delivery::Failed,
            Body::LeaseAcquired(acquired) => {
                let generation = acquired.generation;
                self.lease = Some(LeaseState { generation, retry: None, is_released: false });
            }
            Body::LeaseRenewed(_) => {}
            Body::LeaseUsed(used) => {
                self.lease =
                    self.lease.map(|lease| LeaseState { retry: Some(used.retry), ..lease });
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
        self.ended_at_ms = Some(event.at_ms);
        self.source = Some(event.source);
    }

    /// Says whether an event may follow.
    ///
    /// # Errors
    /// [`IllegalEvent`] with the rule that it breaks.
    pub fn check(&self, body: &Body, source: Source) -> Result<(), IllegalEvent> {
        let require = |holds: bool, reason: &'static str| {
            if holds { Ok(()) } else { Err(self.illegal(body, reason)) }
        };
        match body {
            Body::Noted(_) | Body::RepeatAnswered(_) => Ok(()),
            Body::ActionAccepted(_) => require(false, "the invocation is on record already"),
            Body::PreflightValidated(_) => {
                require(matches!(self.state, State::Accepted), "it follows ACTION_ACCEPTED alone")
            }
            Body::ApprovalRequested(_) => self.check_asking(body),
            Body::ApprovalDecided(_) => self.check_deciding(body, source),
            Body::CredentialAuthorized(_) => self.check_authorizing(body),
            Body::SetupAttempted(_) => self.check_connecting(body),
            Body::DispatchStarted(dispatch) => {
                self.check_connecting(body)?;
                self.check_approved(body, dispatch)
            }
            Body::RequestSent(_) => {
                require(self.is_executing(), "the call is not under way at the remote")?;
                require(self.sent.is_none(), "it is on record already")
            }
            Body::RemoteResponseStarted(_) => {
                require(self.is_executing(), "the call is not under way at the remote")?;
                require(self.started.is_none(), "it is on record already")
            }
            Body::RemoteResponseComplete(_) => {
                require(self.is_executing(), "the call is not under way at the remote")?;
                require(self.started.is_some(), "no response has begun")?;
                require(self.complete.is_none(), "it is on record already")
            }
            Body::ResultCommitted(committed) => self.check_committing(body, committed, source),
            Body::InvocationEnded(ended) => self.check_ending(body, ended.verdict.outcome()),
            Body::ResultDelivered(_) | Body::DeliveryFailed(_) => {
                require(matches!(self.state, State::Committed(_)), "no result is on record")?;
                let delivered = matches!(self.delivery, Delivery::Delivered(_));
                require(!delivered, "the delivery is confirmed already")
            }
            Body::LeaseAcquired(acquired) => {
                require(self.is_retryable(), "there is nothing to retry")?;
                let next = self.lease.map_or(1, |lease| lease.generation + 1);
                require(acquired.generation == next, "the generation does not follow")
            }
            Body::LeaseRenewed(LeaseRenewed { generation, .. })
            | Body::LeaseReleased(LeaseReleased { generation }) => {
                require(self.holds(*generation), "the lease is not the newest, or given back")
            }
            Body::LeaseUsed(used) => {
                require(self.is_retryable(), "there is nothing to retry")?;
                require(self.holds(used.generation), "the lease is not the newest, or given back")?;
                let unused = self.lease.is_some_and(|lease| lease.retry.is_none());
                require(unused, "a retry was dispatched under the lease")
            }
        }
    }

    fn check_connecting(&self, body: &Body) -> Result<(), IllegalEvent> {
        match self.state {
            State::Authorized => Ok(()),
            State::Accepted
            | State::Validated
            | State::Dispatched
            | State::Ended(_)
            | State::Committed(_) => {
                Err(self.illegal(body, "it follows CREDENTIAL_AUTHORIZED and precedes dispatch"))
            }
        }
    }

    /// Whether a retry can make sense: the outcome leaves something to try.
    const fn is_retryable(&self) -> bool {
        match self.state {
            State::Ended(_) => true,
            State::Committed(verdict) => matches!(verdict.outcome(), Outcome::Rejected),
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => false,
        }
    }

    fn holds(&self, generation: u64) -> bool {
        self.lease.is_some_and(|lease| lease.generation == generation && !lease.is_released)
    }

    /// The newest lease on it.
    #[must_use]
    pub const fn lease(&self) -> Option<LeaseState> {
        self.lease
    }

    const fn is_executing(&self) -> bool {
        matches!(self.state, State::Dispatched)
    }

    fn check_ending(&self, body: &Body, outcome: Outcome) -> Result<(), IllegalEvent> {
        match self.state {
            State::Accepted | State::Validated | State::Authorized => match outcome {
                Outcome::NotAttempted => Ok(()),
                Outcome::Rejected | Outcome::Committed | Outcome::Unknown => {
                    Err(self.illegal(body, "before dispatch a call ends not_attempted"))
                }
            },
            State::Dispatched => match outcome {
                Outcome::Unknown => Ok(()),
                Outcome::NotAttempted | Outcome::Rejected | Outcome::Committed => {
                    Err(self.illegal(body, "after dispatch a call without a result ends unknown"))
                }
            },
            State::Ended(_) | State::Committed(_) => {
                Err(self.illegal(body, "an outcome is on record already"))
            }
        }
    }

    fn check_committing(
        &self,
        body: &Body,
        committed: &ResultCommitted,
        source: Source,
    ) -> Result<(), IllegalEvent> {
        let verdict = committed.verdict;
        match verdict.outcome() {
            Outcome::Rejected | Outcome::Committed => {}
            Outcome::NotAttempted | Outcome::Unknown => {
                return Err(self.illegal(body, "a deciding result is rejected or committed"));
            }
        }
        let late = match source {
            Source::RemoteQuery | Source::OperatorAttested => true,
            Source::TransportObserved | Source::RemoteResponse => false,
            Source::Recovered => {
                return Err(self.illegal(body, "a restart proves no result of the remote"));
            }
        };
        match self.state {
            State::Accepted | State::Validated | State::Authorized => {
                Err(self.illegal(body, "the call is not dispatched"))
            }
            State::Dispatched => {
                let by_refusal =
                    matches!(verdict.code(), Code::RemoteNotProcessed | Code::RequestRefused);
                if late || by_refusal || self.complete.is_some() {
                    return Ok(());
                }
                Err(self.illegal(body, "no complete response is on record"))
            }
            State::Ended(ended) if ended.outcome() == Outcome::Unknown && late => Ok(()),
            State::Ended(ended) if ended.outcome() == Outcome::Unknown => {
                Err(self.illegal(body, "late evidence comes from a query or an operator"))
            }
            State::Ended(_) => Err(self.illegal(body, "not_attempted is final")),
            State::Committed(_) => Err(self.illegal(body, "an outcome is on record already")),
        }
    }

    fn illegal(&self, body: &Body, reason: &'static str) -> IllegalEvent {
        IllegalEvent { state: self.state.name(), event: body.name(), reason }
    }

    /// The invocation's id.
    #[must_use]
    pub const fn id(&self) -> InvocationId {
        self.id
    }

    /// How far it has come.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What the caller asked for.
    #[must_use]
    pub const fn accepted(&self) -> &Accepted {
        &self.accepted
    }

    /// What it is bound to, once validated.
    #[must_use]
    pub const fn preflight(&self) -> Option<&Preflight> {
        self.preflight.as_ref()
    }

    /// The stored result, if one is kept.
    #[must_use]
    pub const fn result(&self) -> Option<&ResultRef> {
        self.result.as_ref()
    }

    /// HTTP: the status of the remote's response, once read.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.started.as_ref().and_then(|started| started.status)
    }

    /// Whether the caller has the result.
    #[must_use]
    pub const fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// When it was taken on record, in milliseconds since 1970.
    #[must_use]
    pub const fn accepted_at_ms(&self) -> u64 {
        self.accepted_at_ms
    }

    /// When its stored result expires, in milliseconds since 1970; `None` when it has none.
    #[must_use]
    pub fn result_expires_ms(&self) -> Option<u64> {
        let ended = self.ended_at_ms.filter(|_| self.result.is_some())?;
        let kept = self.preflight.as_ref().map_or(0, |bound| bound.keep_seconds);
        Some(ended.saturating_add(kept.saturating_mul(1000)))
    }

    /// When it was settled, in milliseconds since 1970.
    #[must_use]
    pub const fn ended_at_ms(&self) -> Option<u64> {
        self.ended_at_ms
    }

    /// The sequence of its first event.
    #[must_use]
    pub const fn first_sequence(&self) -> Sequence {
        self.first_sequence
    }

    /// The sequence of its newest event.
    #[must_use]
    pub const fn last_sequence(&self) -> Sequence {
        self.last_sequence
    }

    /// The path of the field that the caller can correct.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// When a repeat may follow, in milliseconds since 1970.
    #[must_use]
    pub const fn not_before_ms(&self) -> Option<u64> {
        self.not_before_ms
    }

    /// One sentence for people, free of secrets.
    #[must_use]
    pub fn message(&self) -> &str {
        if let State::Committed(verdict) = self.state {
            if self.delivery == Delivery::Failed {
                return if self.result.is_some() {
                    "The result is recorded but did not reach the caller; fetch it by its id."
                } else {
                    "The outcome is recorded but the result did not reach the caller, and no copy \
                     is kept."
                };
            }
            return match verdict.outcome() {
                Outcome::Committed => "A complete result is recorded.",
                Outcome::Rejected => "The remote refused the request; its answer is recorded.",
                Outcome::NotAttempted | Outcome::Unknown => "",
            };
        }
        let under_way = "The call is under way; wait for it by its id.";
        self.message.as_deref().or(self.held_message()).unwrap_or(under_way)
    }

    /// What policy knew of the operation when it was validated.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.preflight.as_ref().map_or_else(Operation::default, |preflight| Operation {
            idempotent: preflight.idempotent,
            idempotency: preflight.idempotency.clone(),
        })
    }

    /// The verdict that holds now. A call that is still under way counts as `unknown` with
    /// `IN_FLIGHT`: nobody may act on it as if it had not happened. One that is held for a person
    /// is `not_attempted`, which it stays until its dispatch.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.state {
            State::Ended(verdict) => verdict,
            State::Committed(verdict) if self.delivery == Delivery::Failed => {
                verdict.undelivered(self.result.is_some())
            }
            State::Committed(verdict) => verdict,
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => {
                self.held_verdict().unwrap_or_else(|| {
                    let retry = after_unknown(&self.operation(), self.accepted_at_ms);
                    Verdict::unknown(retry, Code::InFlight)
                })
            }
        }
    }

    /// Whether an outcome is on record.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self.state, State::Ended(_) | State::Committed(_))
    }

    /// When it was dispatched, in milliseconds since 1970.
    #[must_use]
    pub const fn dispatched_at_ms(&self) -> Option<u64> {
        self.dispatched_at_ms
    }

    /// Content bytes that passed, sent and received, as far as they are on record.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        let sent = self.sent.as_ref().map_or(0, |sent| sent.length_bytes);
        let complete = self.complete.as_ref().map(|complete| complete.length_bytes);
        sent.saturating_add(complete.or(self.observed_bytes).unwrap_or_default())
    }

    /// Whether `DISPATCH_STARTED` is on record.
    #[must_use]
    pub const fn is_dispatched(&self) -> bool {
        self.dispatch.is_some()
    }

    /// What a restart concludes (contract J-7): `None` once settled, `not_attempted` before
    /// dispatch, `unknown` after it. A call that is held goes on after the restart.
    #[must_use]
    pub fn interrupted(&self, at_ms: u64) -> Option<Verdict> {
        self.conclude(at_ms, Code::BrokerRestarted, Code::BrokerRestarted)
    }

    /// [`Invocation::interrupted`] with other codes for an end before and after dispatch.
    pub(crate) fn conclude(&self, at_ms: u64, before: Code, after: Code) -> Option<Verdict> {
        if self.is_held() {
            return None;
        }
        match self.state {
            State::Accepted => Some(Verdict::refused(Retry::Backoff, before)),
            State::Validated => Some(Verdict::not_injected(Retry::Backoff, before)),
            State::Authorized => Some(Verdict::not_connected(Retry::Backoff, before)),
            State::Dispatched => {
                Some(Verdict::unknown(after_unknown(&self.operation(), at_ms), after))
            }
            State::Ended(_) | State::Committed(_) => None,
        }
    }

    /// How the broker knows.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        let dispatch = self.dispatch.as_ref().map(|(_, dispatch)| dispatch);
        let complete = self.complete.as_ref();
        Evidence {
            dispatch_started: dispatch.is_some(),
            request_complete: self.sent.is_some(),
            response_headers_received: self.started.is_some(),
            response_complete: complete.is_some(),
            attempt: dispatch.map_or(0, |dispatch| dispatch.attempt),
            attempts: self.attempts.clone(),
            dispatch_sequence: self.dispatch.as_ref().map(|(sequence, _)| *sequence),
            connection: dispatch.map(|dispatch| dispatch.connection),
            connection_reused: dispatch.map(|dispatch| dispatch.reused),
            peer: dispatch.map(|dispatch| dispatch.peer.clone()),
            fingerprint: self.accepted.fingerprint,
            completion: complete.map(|complete| complete.completion),
            status: self.started.as_ref().and_then(|started| started.status),
            ssh_end: complete.and_then(|complete| complete.ssh_end.clone()),
            remote_request_id: self
                .started
                .as_ref()
                .and_then(|started| started.remote_request_id.clone()),
            response_digest: complete.map(|complete| complete.digest),
            response_bytes: complete.map(|complete| complete.length_bytes).or(self.observed_bytes),
            redacted: complete.is_some_and(|complete| complete.redacted),
            result_stored: self.result.is_some(),
            idempotency: self.preflight.as_ref().and_then(|bound| bound.idempotency.clone()),
            source: self.source,
        }
    }

    /// The answer that errors of the broker's own carry (contract E-1).
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        let verdict = self.verdict();
        let follow =
            if verdict.code() == Code::InDoubtDuplicate { self.accepted.link } else { None };
        Envelope {
            invocation_id: self.id,
            error: Problem {
                verdict,
                message: self.message().to_owned(),
                field: self.field.clone().or_else(|| self.held_field()),
                not_before_ms: self.not_before_ms,
                follow,
            },
            evidence: self.evidence(),
        }
    }
}
