//! Where an action stands: its first attempt and all retries taken together.
//!
//! Pure, and the only place where budgets and expiries meet rule T-2. An instruction is only ever
//! narrowed in here, never widened (contract T-1).

use super::Invocation;
use crate::contract::{Decision, InvocationId, Outcome, Retry, Verdict, decide};

/// What all attempts of an action prove together, and what may be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The attempt whose evidence decides.
    pub by: InvocationId,
    /// What holds of the action.
    pub verdict: Verdict,
    /// The decision of rule T-2, inside of budget and expiry.
    pub decision: Decision,
    /// When a repeat may follow, in milliseconds since 1970.
    pub not_before_ms: Option<u64>,
    /// When the permission ends, because it rests on a key that may be forgotten then, in milliseconds
    /// since 1970.
    pub not_after_ms: Option<u64>,
    /// Attempts that count against the budget: the first one, and each lease.
    pub attempts: u64,
    /// Attempts in all that policy gave the action; none: its request is not stored.
    pub max_attempts: Option<u32>,
}

impl Standing {
    /// Takes the first attempt and its dispatched retries together.
    ///
    /// One complete result decides. Else one attempt in doubt leaves the action in doubt, whatever a
    /// later attempt was told, and though a later one failed. When the budget is spent, or the key may be forgotten, the
    /// instruction is `reconcile` (contract K-5, T-3).
    #[must_use]
    pub fn of(first: &Invocation, retries: &[Invocation], now_ms: u64) -> Self {
        let leases = first.lease().map_or(0, |lease| lease.generation);
        Self::after(first, retries, now_ms, 1 + leases)
    }

    /// [`Standing::of`] for the holder of the newest lease, whose attempt is still to be made.
    #[must_use]
    pub fn of_leased(first: &Invocation, retries: &[Invocation], now_ms: u64) -> Self {
        let leases = first.lease().map_or(0, |lease| lease.generation);
        Self::after(first, retries, now_ms, leases.max(1))
    }

    fn after(first: &Invocation, retries: &[Invocation], now_ms: u64, attempts: u64) -> Self {
        let all = || std::iter::once(first).chain(retries);
        let has = |outcome| move |attempt: &&Invocation| attempt.verdict().outcome() == outcome;
        let newest = retries.last().unwrap_or(first);
        // Where a retry brought the result, the retry holds it.
        let own = |attempt: &&Invocation| attempt.observed_by().is_none();
        let decides =
            |attempt: &&Invocation| has(Outcome::Committed)(attempt) && !attempt.has_failed();
        let by = all()
            .filter(own)
            .find(decides)
            .or_else(|| all().find(decides))
            .or_else(|| all().find(|attempt| !attempt.is_settled()))
            .or_else(|| retries.iter().rev().find(has(Outcome::Unknown)))
            .or_else(|| Some(first).filter(has(Outcome::Unknown)))
            .or_else(|| all().find(has(Outcome::Committed)))
            .unwrap_or(newest);
        let max_attempts = first.request().map(|(_, stored)| stored.max_attempts);
        let spent = max_attempts.is_some_and(|most| attempts >= u64::from(most));
        let operation = first.operation();
        let given = by.verdict();
        let rests_on_key = match given.retry() {
            Retry::SameIdempotencyKey => true,
            // S-3: where the key alone makes a refused operation repeatable, it does so no longer
            // than it lasts. What was not attempted or not processed needs no key.
            Retry::Backoff => given.outcome() == Outcome::Rejected && !by.was_not_processed(),
            Retry::Never | Retry::AfterCorrection | Retry::Reconcile | Retry::FetchResult => false,
        };
        let key = operation.idempotency.as_ref().filter(|_| rests_on_key && !operation.idempotent);
        let not_after_ms = key.map(|key| key.expires_at_ms);
        let forgotten = not_after_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let narrowed = match given.retry() {
            Retry::Backoff | Retry::SameIdempotencyKey => spent || forgotten,
            Retry::Never | Retry::AfterCorrection | Retry::Reconcile | Retry::FetchResult => false,
        };
        let verdict = if narrowed { given.with_retry(Retry::Reconcile) } else { given };
        // T-2 repeats what is known to be idempotent without asking for the instruction.
        let decision = decide(verdict, operation.idempotent && !spent, true);
        Self {
            by: by.id(),
            verdict,
            decision,
            not_before_ms: newest.not_before_ms(),
            not_after_ms,
            attempts,
            max_attempts,
        }
    }
}
