//! What is on record of an invocation, field by field.

use super::{Delivery, Invocation, LeaseState, State};
use crate::contract::{Accepted, InvocationId, Preflight, RequestStored, ResultRef, Sequence};

impl Invocation {
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
    pub fn accepted(&self) -> &Accepted {
        &self.accepted
    }

    /// What it is bound to, once validated.
    #[must_use]
    pub fn preflight(&self) -> Option<&Preflight> {
        self.preflight.as_deref()
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
    pub fn accepted_at_ms(&self) -> u64 {
        self.accepted_at_ms
    }

    /// What was recorded of a session that ended without a result.
    #[must_use]
    pub const fn recording(&self) -> Option<&ResultRef> {
        self.recording.as_ref()
    }

    /// What is kept: the result, or what was recorded until then.
    pub(crate) fn kept(&self) -> Option<&ResultRef> {
        self.result.as_ref().or(self.recording.as_ref())
    }

    /// When its stored request and result expire, in milliseconds since 1970: by their time, or when
    /// its route had no more room. `None` when it has neither.
    #[must_use]
    pub fn result_expires_ms(&self) -> Option<u64> {
        let stored = self.kept().is_some() || self.request.is_some();
        let ended = self.ended_at_ms.filter(|_| stored)?;
        let kept = self.preflight.as_ref().map_or(0, |bound| bound.keep_seconds);
        let by_time = ended.saturating_add(kept.saturating_mul(1000));
        Some(self.expired_at_ms.map_or(by_time, |expired| expired.min(by_time)))
    }

    /// Whether its result was taken away before its time.
    #[must_use]
    pub const fn is_result_evicted(&self) -> bool {
        self.expired_at_ms.is_some()
    }

    /// When it was settled, in milliseconds since 1970.
    #[must_use]
    pub const fn ended_at_ms(&self) -> Option<u64> {
        self.ended_at_ms
    }

    /// The sequence of its `DISPATCH_STARTED`, unless that was withdrawn.
    #[must_use]
    pub fn dispatch_sequence(&self) -> Option<Sequence> {
        self.dispatch.as_ref().map(|(sequence, _)| *sequence)
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

    /// When it was dispatched, in milliseconds since 1970, if it counts for a budget.
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

    /// The stored request with its budget, and the sequence behind which its chunks end.
    #[must_use]
    pub const fn request(&self) -> Option<(Sequence, RequestStored)> {
        self.request
    }

    /// The job that it started.
    #[must_use]
    pub const fn job(&self) -> Option<InvocationId> {
        self.job
    }

    /// The retries that were dispatched, in order.
    #[must_use]
    pub fn retries(&self) -> &[InvocationId] {
        &self.retries
    }

    /// Late evidence: the invocation that brought it.
    #[must_use]
    pub const fn observed_by(&self) -> Option<InvocationId> {
        self.observed_by
    }

    /// Late evidence: an operator's words.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The newest lease on it.
    #[must_use]
    pub const fn lease(&self) -> Option<LeaseState> {
        self.lease
    }
}
