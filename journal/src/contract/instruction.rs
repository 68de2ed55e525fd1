//! The one place that turns evidence into an outcome and a retry instruction (contract M-6, S-3).

use super::{Code, Idempotency, RemoteContract, Retry, SshEnd, Verdict};

/// What policy knows of the operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Operation {
    /// Whether it is known to be idempotent (contract S-4).
    pub idempotent: bool,
    /// The idempotency key and its contract, if both are there.
    pub idempotency: Option<Idempotency>,
}

impl Operation {
    fn has_usable_key(&self, at_ms: u64) -> bool {
        self.idempotency.as_ref().is_some_and(|key| {
            key.remote_contract == RemoteContract::Verified && at_ms < key.expires_at_ms
        })
    }
}

/// A usable `Retry-After` (RFC 9110 section 10.2.3), already bounded: milliseconds since 1970.
pub type RetryAfter = Option<u64>;

/// The instruction after dispatch when no deciding result is held (contract K-1, K-7).
#[must_use]
pub fn after_unknown(operation: &Operation, at_ms: u64) -> Retry {
    if operation.idempotent {
        Retry::Backoff
    } else if operation.has_usable_key(at_ms) {
        Retry::SameIdempotencyKey
    } else {
        Retry::Reconcile
    }
}

/// The verdict that a complete, authentic HTTP response gives (contract S-3).
///
/// `status` is a final status; `at_ms` is the time of completion.
#[must_use]
pub fn settle_http(
    status: u16,
    retry_after: RetryAfter,
    operation: &Operation,
    at_ms: u64,
) -> Verdict {
    match status {
        429 | 503 => {
            let repeatable = operation.idempotent || operation.has_usable_key(at_ms);
            let retry =
                if repeatable && retry_after.is_some() { Retry::Backoff } else { Retry::Reconcile };
            Verdict::rejected(retry, Code::RemoteRejected)
        }
        // The remote's protocol says that nothing was processed (RFC 9110 section 15.5.20, RFC 8470).
        421 | 425 => Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed),
        400..=499 => Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected),
        500..=599 if operation.idempotent => Verdict::committed(Retry::Backoff, Code::RemoteFailed),
        500..=599 if operation.has_usable_key(at_ms) => {
            Verdict::committed(Retry::SameIdempotencyKey, Code::RemoteFailed)
        }
        500..=599 => Verdict::committed(Retry::Never, Code::RemoteFailed),
        _ => Verdict::committed(Retry::Never, Code::Ok),
    }
}

/// The verdict of an SSH command that ended with status or signal, both streams complete
/// (contract S-1, D-6). A failed command is a committed result of the process.
#[must_use]
pub const fn settle_ssh(end: &SshEnd) -> Verdict {
    match end {
        SshEnd::ExitStatus(0) => Verdict::committed(Retry::Never, Code::Ok),
        SshEnd::ExitStatus(_) | SshEnd::ExitSignal(_) => {
            Verdict::committed(Retry::Never, Code::RemoteFailed)
        }
    }
}

/// The verdict of an SSH command whose atomic compare found another state than it was told to change:
/// complete, and nothing was changed (contract K-9).
#[must_use]
pub const fn settle_ssh_compare() -> Verdict {
    Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Digest, Outcome};

    fn keyed(contract: RemoteContract) -> Operation {
        Operation {
            idempotent: false,
            idempotency: Some(Idempotency {
                key: "k".into(),
                scope: "s".into(),
                fingerprint: Digest::of(b""),
                expires_at_ms: 1000,
                remote_contract: contract,
                added_as: None,
            }),
        }
    }

    fn check(status: u16, after: RetryAfter, operation: &Operation, expected: (Outcome, Retry)) {
        let verdict = settle_http(status, after, operation, 10);
        assert_eq!((verdict.outcome(), verdict.retry()), expected, "{status} {operation:?}");
    }

    /// S-3: the table of the contract, row by row.
    #[test]
    fn s_3_status_gives_outcome_and_instruction() {
        let plain = Operation::default();
        let idempotent = Operation { idempotent: true, idempotency: None };
        for status in [400, 401, 403, 404, 405, 407, 409, 410, 412, 413, 415, 422, 428, 431] {
            check(status, None, &plain, (Outcome::Rejected, Retry::AfterCorrection));
        }
        for status in [429, 503] {
            check(status, Some(99), &plain, (Outcome::Rejected, Retry::Reconcile));
            check(status, None, &idempotent, (Outcome::Rejected, Retry::Reconcile));
            check(status, Some(99), &idempotent, (Outcome::Rejected, Retry::Backoff));
            check(
                status,
                Some(99),
                &keyed(RemoteContract::Verified),
                (Outcome::Rejected, Retry::Backoff),
            );
        }
        check(500, None, &plain, (Outcome::Committed, Retry::Never));
        check(502, None, &idempotent, (Outcome::Committed, Retry::Backoff));
        for status in [200, 201, 202, 204, 301, 304] {
            check(status, None, &plain, (Outcome::Committed, Retry::Never));
        }
    }

    /// K-1 and K-5: a key counts only under a verified contract and before its expiry.
    #[test]
    fn k_1_key_needs_a_verified_contract_and_k_5_time() {
        assert_eq!(after_unknown(&keyed(RemoteContract::Verified), 999), Retry::SameIdempotencyKey);
        assert_eq!(after_unknown(&keyed(RemoteContract::Verified), 1000), Retry::Reconcile);
        assert_eq!(after_unknown(&keyed(RemoteContract::Unverified), 1), Retry::Reconcile);
        assert_eq!(after_unknown(&Operation::default(), 1), Retry::Reconcile);
        assert_eq!(
            after_unknown(&Operation { idempotent: true, idempotency: None }, 1),
            Retry::Backoff
        );
    }
}
