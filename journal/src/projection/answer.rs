//! What the records of an invocation prove: verdict, evidence and the answer to its caller.

use super::{Delivery, Invocation, State};
use crate::contract::{
    Code, Envelope, Evidence, Member, Operation, Outcome, Problem, Retry, Source, Verdict,
    after_unknown, member_of,
};

impl Invocation {
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
            match self.source {
                Some(Source::RemoteQuery) => {
                    return "The remote, asked later, decided the outcome of this call.";
                }
                Some(Source::OperatorAttested) => {
                    return "An operator stated the outcome of this call.";
                }
                Some(Source::TransportObserved | Source::RemoteResponse | Source::Recovered)
                | None => {}
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

    /// What is known of each member of a batch; empty for a call that is none.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let Some(batch) = &self.batch else { return Vec::new() };
        let settled = matches!(self.state, State::Committed(_));
        if settled && !self.judged.is_empty() {
            return self.judged.clone();
        }
        // Of a refused, interrupted or undelivered whole no more is known than of the whole.
        let verdict = match self.state {
            State::Committed(verdict) | State::Ended(verdict) => verdict,
            State::Accepted | State::Validated | State::Authorized | State::Dispatched => {
                self.verdict()
            }
        };
        let member =
            |id: &String| Member { id: id.clone(), verdict: member_of(verdict, batch.is_atomic) };
        batch.ids.iter().map(member).collect()
    }

    /// Whether an outcome is on record.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self.state, State::Ended(_) | State::Committed(_))
    }

    /// Whether its complete result is a failure of the remote's own: of an earlier attempt that says
    /// nothing.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.state, State::Committed(verdict) if verdict.code() == Code::RemoteFailed)
    }

    /// Whether the protocol says that nothing of it was processed, handed over or not (contract C-6).
    #[must_use]
    pub fn was_not_processed(&self) -> bool {
        matches!(self.state, State::Committed(verdict)
            if verdict.code() == Code::RemoteNotProcessed)
    }

    /// Whether it is settled as unknown: late evidence can still decide it.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Ended(verdict) if verdict.outcome() == Outcome::Unknown)
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
