//! Verdicts of refusals that more than one part of the broker makes, each in one place (contract M-6).

use super::{Code, Retry, Verdict};

impl Verdict {
    /// An equal request is in flight, in doubt, or was not handed over (contract K-11). `earlier` is
    /// what its instruction is now.
    #[must_use]
    pub const fn in_doubt_duplicate(earlier: Retry) -> Self {
        let retry = match earlier {
            // Never a permission to submit again: that is what the guard is for.
            Retry::Backoff | Retry::AfterCorrection => Retry::Reconcile,
            Retry::Never | Retry::SameIdempotencyKey | Retry::Reconcile | Retry::FetchResult => {
                earlier
            }
        };
        Self::refused(retry, Code::InDoubtDuplicate)
    }

    /// The id or the key stands for another request (contract K-3, K-10).
    #[must_use]
    pub const fn key_mismatch() -> Self {
        Self::refused(Retry::AfterCorrection, Code::IdempotencyMismatch)
    }

    /// A budget of the agent leaves no room.
    #[must_use]
    pub const fn budget_spent() -> Self {
        Self::refused(Retry::Backoff, Code::BudgetSpent)
    }

    /// The call waits for a person, or was approved and not sent yet (contract V-6).
    #[must_use]
    pub const fn approval_pending(is_approved: bool) -> Self {
        let retry = if is_approved { Retry::Backoff } else { Retry::AfterCorrection };
        Self::refused(retry, Code::ApprovalPending)
    }

    /// A person refused the call (contract I-1).
    #[must_use]
    pub const fn approval_denied() -> Self {
        Self::not_injected(Retry::Never, Code::ApprovalDenied)
    }

    /// The approval was not given, or not used, in time.
    #[must_use]
    pub const fn approval_expired() -> Self {
        Self::refused(Retry::AfterCorrection, Code::ApprovalExpired)
    }

    /// What would be sent is not what was approved (contract V-6).
    #[must_use]
    pub const fn approval_mismatch() -> Self {
        Self::refused(Retry::AfterCorrection, Code::ApprovalMismatch)
    }
}
