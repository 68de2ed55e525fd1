//! Batches: one outcome for each member, with an instruction of its own (contract D-5).

use super::{Code, Operation, Outcome, Retry, Verdict, after_unknown, settle_http};
use serde::{Deserialize, Serialize};

/// One member of a batch, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What the request calls it: its id, else its place (`#0`).
    pub id: String,
    /// What is known of it.
    pub verdict: Verdict,
}

/// What a complete response says of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// A status of its own.
    Status(u16),
    /// It was carried out.
    Done,
    /// It failed while it was carried out.
    Failed,
    /// It was not taken up.
    Refused,
}

/// What is known of a member while only the whole is.
#[must_use]
pub fn member_of(whole: Verdict, is_atomic: bool) -> Verdict {
    match whole.outcome() {
        // An atomic batch is reconciled as a whole.
        Outcome::Unknown if is_atomic => whole.with_retry(Retry::Reconcile),
        Outcome::Unknown | Outcome::NotAttempted | Outcome::Rejected | Outcome::Committed => whole,
    }
}

/// Judges the members of a batch whose response is complete; `said` is in the order of `ids`.
///
/// A member of which nothing is said is in doubt. Where the remote applies the batch atomically, what
/// is said has to agree, else the whole is in doubt and is reconciled.
#[must_use]
pub fn judge_members(
    ids: &[String],
    said: &[Option<Said>],
    whole: Verdict,
    is_atomic: bool,
    operation: &Operation,
    at_ms: u64,
) -> Vec<Member> {
    let doubt = Verdict::unknown(after_unknown(operation, at_ms), Code::RemoteResultIncomplete);
    let judge = |said: Option<Said>| match said {
        Some(Said::Status(status)) => settle_http(status, None, operation, at_ms),
        Some(Said::Done) => Verdict::committed(Retry::Never, Code::Ok),
        Some(Said::Failed) => settle_http(500, None, operation, at_ms),
        Some(Said::Refused) => Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected),
        None => doubt,
    };
    let verdicts: Vec<Verdict> = match whole.outcome() {
        Outcome::Committed => {
            let each = ids.iter().enumerate();
            each.map(|(n, _)| judge(said.get(n).copied().flatten())).collect()
        }
        Outcome::Rejected | Outcome::Unknown | Outcome::NotAttempted => {
            vec![member_of(whole, is_atomic); ids.len()]
        }
    };
    let same = |pair: &[Verdict]| matches!(pair, [a, b] if a.outcome() == b.outcome());
    let torn = is_atomic && !verdicts.windows(2).all(same);
    let judged = verdicts.into_iter().map(|verdict| match (torn, is_atomic) {
        (true, _) => Verdict::unknown(Retry::Reconcile, Code::RemoteResultIncomplete),
        (false, true) => member_of(verdict, true),
        (false, false) => verdict,
    });
    ids.iter().cloned().zip(judged).map(|(id, verdict)| Member { id, verdict }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(said: &[Option<Said>], whole: Verdict, is_atomic: bool) -> Vec<(Outcome, Retry)> {
        let ids: Vec<String> = (0..said.len()).map(|n| format!("#{n}")).collect();
        let members = judge_members(&ids, said, whole, is_atomic, &Operation::default(), 10);
        members.iter().map(|member| (member.verdict.outcome(), member.verdict.retry())).collect()
    }

    const DONE: (Outcome, Retry) = (Outcome::Committed, Retry::Never);
    const DOUBT: (Outcome, Retry) = (Outcome::Unknown, Retry::Reconcile);
    const REFUSED: (Outcome, Retry) = (Outcome::Rejected, Retry::AfterCorrection);

    /// D-5: each member has its own outcome; what is not said is in doubt.
    #[test]
    fn d_5_each_member_has_its_own_outcome() {
        let ok = Verdict::committed(Retry::Never, Code::Ok);
        let said = [
            Some(Said::Done),
            Some(Said::Status(404)),
            Some(Said::Status(500)),
            Some(Said::Refused),
            None,
        ];
        assert_eq!(judged(&said, ok, false), [DONE, REFUSED, DONE, REFUSED, DOUBT]);
    }

    /// D-5: an atomic batch stands or falls as one; what does not agree is reconciled whole.
    #[test]
    fn d_5_an_atomic_batch_is_reconciled_whole() {
        let ok = Verdict::committed(Retry::Never, Code::Ok);
        assert_eq!(judged(&[Some(Said::Done), Some(Said::Done)], ok, true), [DONE, DONE]);
        assert_eq!(judged(&[Some(Said::Done), None], ok, true), [DOUBT, DOUBT]);
        assert_eq!(judged(&[Some(Said::Done), Some(Said::Refused)], ok, true), [DOUBT, DOUBT]);
        assert_eq!(judged(&[Some(Said::Refused); 2], ok, true), [REFUSED, REFUSED]);
        let refused = Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected);
        assert_eq!(judged(&[None, None], refused, true), [REFUSED, REFUSED]);
        let unknown = Verdict::unknown(Retry::Backoff, Code::RemoteOutcomeUnknown);
        assert_eq!(member_of(unknown, true).retry(), Retry::Reconcile);
        assert_eq!(member_of(unknown, false).retry(), Retry::Backoff);
    }
}
