//! The decision of the retry engine, exactly rule T-2.

use super::wire::wire_enum;
use super::{Outcome, Retry, Verdict};

wire_enum! {
    /// What the retry engine does with an invocation (contract T-2).
    "decision" enum Decision {
        /// Fetch the stored result by invocation id.
        Fetch = "FETCH",
        /// Repeat as a new attempt.
        RetryNewAttempt = "RETRY_NEW_ATTEMPT",
        /// Stop: something has to be corrected.
        StopForCorrection = "STOP_FOR_CORRECTION",
        /// Repeat with the same key and an identical fingerprint.
        RetrySameKey = "RETRY_SAME_KEY",
        /// Find out the remote state first.
        Reconcile = "RECONCILE",
        /// Repeat no sooner than the stated time.
        RetryWhenAllowed = "RETRY_WHEN_ALLOWED",
        /// Hand out what is on record.
        ReturnRecordedResult = "RETURN_RECORDED_RESULT",
    }
}

/// Decides by outcome and instruction (contract T-2); the phase is not read (M-4).
///
/// `idempotent` is the policy's word on the operation (S-4); `fingerprints_equal` compares the
/// stored request with the one that would be sent.
#[must_use]
pub fn decide(verdict: Verdict, idempotent: bool, fingerprints_equal: bool) -> Decision {
    if verdict.retry() == Retry::FetchResult {
        return Decision::Fetch;
    }
    match verdict.outcome() {
        Outcome::NotAttempted if verdict.retry() == Retry::Backoff => Decision::RetryNewAttempt,
        Outcome::NotAttempted => Decision::StopForCorrection,
        Outcome::Unknown if idempotent => Decision::RetryNewAttempt,
        Outcome::Unknown if verdict.retry() == Retry::SameIdempotencyKey && fingerprints_equal => {
            Decision::RetrySameKey
        }
        Outcome::Unknown => Decision::Reconcile,
        Outcome::Rejected if verdict.retry() == Retry::Backoff => Decision::RetryWhenAllowed,
        Outcome::Rejected | Outcome::Committed => Decision::ReturnRecordedResult,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Code, Phase};

    /// T-2 and M-4 over the whole input space: the decision is the table's, whatever the phase.
    #[test]
    fn t_2_decides_by_the_table_and_m_4_never_by_the_phase() {
        for &phase in Phase::ALL {
            for &outcome in Outcome::ALL {
                for &retry in Retry::ALL {
                    let Ok(verdict) = Verdict::new(phase, outcome, retry, Code::Ok) else {
                        continue;
                    };
                    for (idempotent, equal) in
                        [(false, false), (false, true), (true, false), (true, true)]
                    {
                        let expected = match (retry.as_str(), outcome.as_str()) {
                            ("fetch_result", _) => "FETCH",
                            ("backoff", "not_attempted") => "RETRY_NEW_ATTEMPT",
                            (_, "not_attempted") => "STOP_FOR_CORRECTION",
                            (_, "unknown") if idempotent => "RETRY_NEW_ATTEMPT",
                            ("same_idempotency_key", "unknown") if equal => "RETRY_SAME_KEY",
                            (_, "unknown") => "RECONCILE",
                            ("backoff", "rejected") => "RETRY_WHEN_ALLOWED",
                            _ => "RETURN_RECORDED_RESULT",
                        };
                        assert_eq!(
                            decide(verdict, idempotent, equal).as_str(),
                            expected,
                            "{verdict:?}"
                        );
                    }
                }
            }
        }
    }
}
