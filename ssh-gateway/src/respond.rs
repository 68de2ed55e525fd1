//! The one place that turns outcomes into what an SSH user reads (contract E-5).

use journal::contract::{Code, Envelope, Evidence, InvocationId, Phase, Problem, Verdict};
use russh::ChannelOpenFailure;

/// One summary line and the envelope as one JSON line, for stderr.
pub(crate) fn lines(envelope: &Envelope) -> String {
    // An envelope is plain data: it always serialises.
    let json = serde_json::to_string(envelope).unwrap_or_default();
    format!("{}\n{json}\n", summary(envelope))
}

/// Why a channel is not opened (RFC 4254 section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// Policy, or this gateway, does not let it.
    Prohibited,
    /// What it leads to could not be reached.
    ConnectFailed,
    /// This gateway has no room for it.
    Shortage,
}

impl Unopened {
    /// By what is known of the call that the channel was for.
    pub(crate) fn of(verdict: Verdict) -> Self {
        if matches!(verdict.code(), Code::ResourcesExhausted | Code::JournalUnavailable) {
            return Self::Shortage;
        }
        match verdict.phase() {
            Phase::Validation | Phase::CredentialInjection => Self::Prohibited,
            Phase::ConnectionSetup | Phase::RemoteExecution | Phase::ResultDelivery => {
                Self::ConnectFailed
            }
        }
    }

    /// The refusal with its text, which is all that a user sees.
    pub(crate) fn saying(self, reason: String) -> ChannelOpenFailure {
        let code = match self {
            Self::Prohibited => 1,
            Self::ConnectFailed => 2,
            Self::Shortage => 4,
        };
        ChannelOpenFailure::Other { code, reason }
    }
}

/// One line for people.
pub(crate) fn summary(envelope: &Envelope) -> String {
    let Problem { verdict, message, follow, .. } = &envelope.error;
    let message: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let follow = follow.map(|id| format!("; see {id}")).unwrap_or_default();
    format!(
        "affiant: {} {}: {} ({}, retry {}, {}{follow})",
        verdict.outcome(),
        verdict.code(),
        message.trim_end(),
        verdict.phase(),
        verdict.retry(),
        envelope.invocation_id,
    )
}

/// An envelope for what the journal could not take.
pub(crate) fn unrecorded(
    id: InvocationId,
    verdict: Verdict,
    message: &str,
    evidence: Evidence,
) -> Envelope {
    Envelope {
        invocation_id: id,
        error: Problem {
            verdict,
            message: message.to_owned(),
            field: None,
            not_before_ms: None,
            follow: None,
        },
        evidence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::contract::Retry;

    /// RFC 4254 section 5.1: what is told of a channel that is not opened says whose fault it is.
    #[test]
    fn refusals_to_open_have_their_codes() {
        let setup = |code| Verdict::not_connected(Retry::Backoff, code);
        for (verdict, expected) in [
            (Verdict::refused(Retry::AfterCorrection, Code::TargetNotAllowed), 1),
            (Verdict::not_injected(Retry::AfterCorrection, Code::SecretMissing), 1),
            (setup(Code::ConnectionRefused), 2),
            (setup(Code::ConnectionTimeout), 2),
            (Verdict::rejected(Retry::AfterCorrection, Code::ChannelRefused), 2),
            (setup(Code::ResourcesExhausted), 4),
            (Verdict::refused(Retry::Backoff, Code::JournalUnavailable), 4),
        ] {
            let said = Unopened::of(verdict).saying("why".to_owned());
            let ChannelOpenFailure::Other { code, reason } = said else { unreachable!("{said:?}") };
            assert_eq!((code, reason.as_str()), (expected, "why"), "{verdict:?}");
        }
    }

    /// E-5: one line for people, one for programs, whatever the message holds.
    #[test]
    fn e_5_a_summary_line_and_one_json_line() {
        let id = InvocationId::from_parts(1_764_476_760_000, 42);
        let verdict = Verdict::refused(Retry::AfterCorrection, Code::TargetNotAllowed);
        let text = lines(&unrecorded(id, verdict, "no\nroute", Evidence::default()));
        let found: Vec<_> = text.lines().collect();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            format!(
                "affiant: not_attempted TARGET_NOT_ALLOWED: no route (validation, retry \
                 after_correction, {id})"
            )
        );
        let envelope: Envelope = serde_json::from_str(found[1]).unwrap();
        assert_eq!(envelope.error.verdict, verdict);
    }
}
