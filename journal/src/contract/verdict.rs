//! Phase, outcome, retry and code: the independent facts that every answer carries (contract M-1).

use super::Code;
use super::wire::wire_enum;
use serde::{Deserialize, Serialize};

wire_enum! {
    /// Where the broker stopped (contract section 1). For diagnosis: no retry decision reads it (M-4).
    "phase" enum Phase {
        /// It refused the action before it selected or used a secret.
        Validation = "validation",
        /// It could not obtain, authorise or attach the credential.
        CredentialInjection = "credential_injection",
        /// Name resolution, TCP, TLS, tunnel, SSH transport, host verification or remote
        /// authentication failed before dispatch.
        ConnectionSetup = "connection_setup",
        /// It dispatched the operation and waits for, or has received, the remote result.
        RemoteExecution = "remote_execution",
        /// It recorded the remote result but could not hand it over to the caller intact.
        ResultDelivery = "result_delivery",
    }
}

wire_enum! {
    /// What is known of remote execution (contract section 1). `Rejected` and `Committed` are never
    /// merged into one "known" value (M-5).
    "outcome" enum Outcome {
        /// Durable evidence shows that the operation did not cross the dispatch boundary.
        NotAttempted = "not_attempted",
        /// The remote returned a complete, authoritative refusal and claimed no success.
        Rejected = "rejected",
        /// The broker holds a complete, authoritative result, success or not.
        Committed = "committed",
        /// Dispatch may have happened and no complete, deciding result is held.
        Unknown = "unknown",
    }
}

wire_enum! {
    /// What automation may do now (contract section 1).
    "retry" enum Retry {
        /// Do not repeat this invocation.
        Never = "never",
        /// Repeat after the named field, credential or setting is corrected.
        AfterCorrection = "after_correction",
        /// Repeat later, as a new attempt, no sooner than the stated time.
        Backoff = "backoff",
        /// Repeat with the same key and an identical fingerprint, inside the retention window.
        SameIdempotencyKey = "same_idempotency_key",
        /// Find out the remote state first.
        Reconcile = "reconcile",
        /// Read the stored result by invocation id; do not submit again.
        FetchResult = "fetch_result",
    }
}

/// The facts of one answer. Built by [`Verdict::new`], so an impossible pair of phase and outcome
/// cannot be held.
///
/// Invariant: `not_attempted` never stands with `remote_execution` or `result_delivery`, and the
/// first three phases stand with no other outcome (contract D-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawVerdict")]
pub struct Verdict {
    phase: Phase,
    outcome: Outcome,
    retry: Retry,
    code: Code,
}

#[derive(Deserialize)]
struct RawVerdict {
    phase: Phase,
    outcome: Outcome,
    retry: Retry,
    code: Code,
}

impl TryFrom<RawVerdict> for Verdict {
    type Error = IllegalVerdict;
    fn try_from(raw: RawVerdict) -> Result<Self, IllegalVerdict> {
        Self::new(raw.phase, raw.outcome, raw.retry, raw.code)
    }
}

/// A phase and an outcome that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("phase {phase} cannot stand with outcome {outcome}")]
pub struct IllegalVerdict {
    /// The phase given.
    pub phase: Phase,
    /// The outcome given.
    pub outcome: Outcome,
}

impl Verdict {
    /// Joins the facts of one answer.
    ///
    /// # Errors
    /// [`IllegalVerdict`] when the phase rules the outcome out.
    pub const fn new(
        phase: Phase,
        outcome: Outcome,
        retry: Retry,
        code: Code,
    ) -> Result<Self, IllegalVerdict> {
        let before_dispatch = match phase {
            Phase::Validation | Phase::CredentialInjection | Phase::ConnectionSetup => true,
            Phase::RemoteExecution | Phase::ResultDelivery => false,
        };
        let not_attempted = matches!(outcome, Outcome::NotAttempted);
        if before_dispatch == not_attempted {
            Ok(Self { phase, outcome, retry, code })
        } else {
            Err(IllegalVerdict { phase, outcome })
        }
    }

    /// A refusal before any secret was selected (contract V-1).
    #[must_use]
    pub const fn refused(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::Validation, outcome: Outcome::NotAttempted, retry, code }
    }

    /// The credential could not be obtained or attached (contract I-1).
    #[must_use]
    pub const fn not_injected(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::CredentialInjection, outcome: Outcome::NotAttempted, retry, code }
    }

    /// A new connection could not be set up (contract C-1).
    #[must_use]
    pub const fn not_connected(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::ConnectionSetup, outcome: Outcome::NotAttempted, retry, code }
    }

    /// A complete, authoritative result (contract S-1).
    #[must_use]
    pub const fn committed(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::RemoteExecution, outcome: Outcome::Committed, retry, code }
    }

    /// A complete, authoritative refusal (contract S-3).
    #[must_use]
    pub const fn rejected(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::RemoteExecution, outcome: Outcome::Rejected, retry, code }
    }

    /// Dispatched, and no deciding result is held.
    #[must_use]
    pub const fn unknown(retry: Retry, code: Code) -> Self {
        Self { phase: Phase::RemoteExecution, outcome: Outcome::Unknown, retry, code }
    }

    /// The same settled outcome after a failed hand-over: phase `result_delivery`, and retry
    /// `fetch_result` where the result is `stored` (contract R-2). A verdict of `not_attempted` has
    /// no result and stays as it is.
    #[must_use]
    pub const fn undelivered(self, stored: bool) -> Self {
        match self.outcome {
            Outcome::NotAttempted => self,
            Outcome::Rejected | Outcome::Committed | Outcome::Unknown => Self {
                phase: Phase::ResultDelivery,
                outcome: self.outcome,
                retry: if stored { Retry::FetchResult } else { self.retry },
                code: Code::DeliveryFailed,
            },
        }
    }

    /// The same facts with another instruction.
    #[must_use]
    pub const fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Where the broker stopped.
    #[must_use]
    pub const fn phase(self) -> Phase {
        self.phase
    }

    /// What is known of remote execution.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        self.outcome
    }

    /// What automation may do now.
    #[must_use]
    pub const fn retry(self) -> Retry {
        self.retry
    }

    /// The stable reason.
    #[must_use]
    pub const fn code(self) -> Code {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-1: no phase after dispatch can be joined with `not_attempted`, and none before with
    /// anything else.
    #[test]
    fn d_1_phase_and_outcome_agree() {
        for &phase in Phase::ALL {
            for &outcome in Outcome::ALL {
                let after = matches!(phase, Phase::RemoteExecution | Phase::ResultDelivery);
                let legal = after != (outcome == Outcome::NotAttempted);
                let made = Verdict::new(phase, outcome, Retry::Never, Code::Ok);
                assert_eq!(made.is_ok(), legal, "{phase} {outcome}");
                let json = format!(
                    r#"{{"phase":"{phase}","outcome":"{outcome}","retry":"never","code":"OK"}}"#
                );
                assert_eq!(serde_json::from_str::<Verdict>(&json).is_ok(), legal, "{json}");
            }
        }
    }

    /// M-1, M-5: every verdict carries all of the facts, and no two outcomes share a name.
    #[test]
    fn m_1_m_5_the_facts_are_separate() {
        let verdict = Verdict::rejected(Retry::Never, Code::RemoteRejected);
        let json = serde_json::to_value(verdict).unwrap();
        let facts: Vec<&str> = ["phase", "outcome", "retry", "code"]
            .iter()
            .map(|name| json[name].as_str().unwrap())
            .collect();
        assert_eq!(facts, ["remote_execution", "rejected", "never", "REMOTE_REJECTED"]);
        let names: std::collections::HashSet<_> =
            Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
        assert_eq!(names.len(), 4);
    }

    /// M-2: the enumerations are closed, and an unknown name is an error.
    #[test]
    fn m_2_names_round_trip_and_unknown_names_fail() {
        for &retry in Retry::ALL {
            assert_eq!(retry.as_str().parse(), Ok(retry));
        }
        for &code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
        }
        assert!("transient".parse::<Outcome>().is_err());
    }
}
