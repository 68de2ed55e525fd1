//! The one place that turns outcomes into what an SSH user reads (contract E-5).

use journal::contract::{Envelope, Evidence, InvocationId, Problem, Verdict};

/// One summary line and the envelope as one JSON line, for stderr.
pub(crate) fn lines(envelope: &Envelope) -> String {
    // An envelope is plain data: it always serialises.
    let json = serde_json::to_string(envelope).unwrap_or_default();
    format!("{}\n{json}\n", summary(envelope))
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
    use journal::contract::{Code, Retry};

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
