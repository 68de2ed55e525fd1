//! From what was seen to a durable outcome, and from there to the client (contract R-1, S-1, S-8).

use crate::delivery::Deliveries;
use crate::downstream::{Absence, Downstream, End};
use crate::respond;
use crate::seen::{Seen, Stop};
use journal::Call;
use journal::contract::{
    Code, Completion, Ended, Envelope, Observation, Outcome, Phase, ResponseComplete, Retry,
    SshEnd, Verdict, after_unknown, settle_ssh, settle_ssh_compare,
};

/// The note on both streams and on what ended them.
const STREAMS: &str = "SSH_STREAMS";

/// What everything that was seen adds up to.
enum Conclusion {
    /// A complete result (contract S-1).
    Complete(End),
    /// The target refused to start it.
    Refused,
    /// No deciding result is held.
    Incomplete(Code, String),
}

impl Seen {
    /// Judges by evidence alone (contract S-1, S-8).
    ///
    /// An orderly close stands for the end of both streams where the target sends no end-of-file
    /// message (RFC 4254 section 5.3 allows that). After output that followed the exit status it
    /// does not: such a target had the stream open on its own, and cut it.
    fn conclude(&self) -> Conclusion {
        // A complete refusal stands, whatever ended the reading after it.
        if self.accepted == Some(false) && self.violation.is_none() {
            return Conclusion::Refused;
        }
        if let Some(stop) = self.stop {
            return stopped(stop);
        }
        if let Some(violation) = self.violation {
            let message = format!("The target broke the protocol: {violation}.");
            return Conclusion::Incomplete(Code::RemoteProtocolError, message);
        }
        let incomplete = |message: &str| {
            Conclusion::Incomplete(Code::RemoteResultIncomplete, message.to_owned())
        };
        match (self.accepted, &self.end) {
            (Some(false), _) => Conclusion::Refused,
            (Some(true), None) if self.closed && self.is_forwarding => {
                Conclusion::Complete(End::Closed)
            }
            // The route's own contract says that the command is done (contract S-8).
            (Some(true), None) if self.closed && self.completed == Some(true) => {
                Conclusion::Complete(End::Closed)
            }
            (None, _) if self.closed => {
                incomplete("The target closed the channel without an answer to the request.")
            }
            (None, _) => Conclusion::Incomplete(
                Code::RemoteOutcomeUnknown,
                "The connection ended before the target answered the request.".to_owned(),
            ),
            (Some(true), None) if self.closed => incomplete(
                "The target closed the channel without an exit status; the command may still run.",
            ),
            (Some(true), None) => incomplete(
                "The connection ended before an exit status came; the command may still run.",
            ),
            (Some(true), Some(_)) if !self.closed => incomplete(
                "The connection broke after the exit status, before the output was complete.",
            ),
            (Some(true), Some(_)) if !self.eof && self.output_after_end => {
                incomplete("The target cut its output off after the exit status.")
            }
            (Some(true), Some(end)) => Conclusion::Complete(end.clone()),
        }
    }
}

fn stopped(stop: Stop) -> Conclusion {
    let (code, message) = match stop {
        Stop::OutputLimit => (
            Code::ResultLimit,
            "The output passed the route's bound and was cut off; the command may still run.",
        ),
        Stop::InputLimit => (
            Code::RemoteOutcomeUnknown,
            "The input passed the route's bound and was cut off; the command may still run.",
        ),
        Stop::InputStalled => (
            Code::RemoteOutcomeUnknown,
            "The target took no input for the route's idle time, and the space for waiting input is \
             used up; the command may still run.",
        ),
        Stop::InputOverflow => (
            Code::RemoteOutcomeUnknown,
            "More input came than waits for a target at most; the command may still run.",
        ),
        Stop::InputPoolFull => (
            Code::RemoteOutcomeUnknown,
            "The gateway holds as much waiting input of all its clients as it may; the command may \
             still run.",
        ),
        Stop::Deadline => (
            Code::ReadTimeout,
            "The command did not end in the time that the route gives it; it may still run.",
        ),
        Stop::ClientGone(Absence::Left) => {
            (Code::CallerCancelled, "The client left, and the session was ended.")
        }
        Stop::ClientGone(Absence::Stalled) => (
            Code::CallerCancelled,
            "The client took no output for too long, and the session was ended.",
        ),
        Stop::ClientGone(Absence::LoginOver) => (
            Code::RemoteOutcomeUnknown,
            "The agent was removed, has a new token, or its access ended, so the session was ended; \
             what it began may still run.",
        ),
        Stop::NotOpened => (
            Code::ReadTimeout,
            "The target did not say in the route's time to connect whether it opened the forwarding.",
        ),
        Stop::GatewayEnds => (
            Code::BrokerRestarted,
            "The gateway was stopped before the command ended; it may still run.",
        ),
        Stop::ReadOnOver => (
            Code::CallerCancelled,
            "The client left, and the command did not end within what is read on, in time or output; it \
             may still run.",
        ),
    };
    Conclusion::Incomplete(code, message.to_owned())
}

/// Makes the outcome durable, then lets the client know it (contract R-1).
pub(super) async fn settle(
    deliveries: &Deliveries,
    mut call: Call,
    mut downstream: Downstream,
    seen: Seen,
    cause: &str,
) {
    if seen.accepted == Some(true) {
        call.note(STREAMS, &seen.streams());
    }
    let settled = match seen.conclude() {
        Conclusion::Complete(end) => {
            let record = end.to_record();
            let verdict = match &record {
                // The compare found another state: the whole answer says that nothing was changed.
                Some(_) if seen.is_refusal => settle_ssh_compare(),
                Some(record) => settle_ssh(record),
                None => Verdict::committed(Retry::Never, Code::Ok),
            };
            match call.commit(complete(&seen, record), verdict, None).await {
                Ok(_settled) => {
                    if seen.is_refusal {
                        downstream.explain(&respond::lines(&call.invocation().envelope())).await;
                    }
                    return deliver(deliveries, call, downstream, &end).await;
                }
                Err(error) => Err(error),
            }
        }
        Conclusion::Refused => {
            let verdict = Verdict::rejected(Retry::AfterCorrection, Code::RequestRefused);
            call.reject(verdict, None, None).await
        }
        Conclusion::Incomplete(code, message) => {
            let operation = call.invocation().operation();
            let ended = Ended {
                verdict: Verdict::unknown(after_unknown(&operation, call.latest_ms()), code),
                message,
                field: None,
                not_before_ms: None,
                observation: Some(Observation {
                    length_bytes: seen.tally.whole().length_bytes(),
                    cause: cause.to_owned(),
                    recording: None,
                }),
            };
            match call.invocation().accepted().action.as_str() {
                "shell" | "subsystem:sftp" => call.end_recorded(ended).await,
                _ => call.end(ended).await,
            }
        }
    };
    let envelope = match settled {
        Ok(_settled) => call.invocation().envelope(),
        Err(error) => not_stored(&call, &error),
    };
    downstream.fail(&envelope).await;
}

fn complete(seen: &Seen, end: Option<SshEnd>) -> ResponseComplete {
    ResponseComplete {
        completion: match &end {
            Some(SshEnd::ExitStatus(_)) => Completion::ExitStatus,
            Some(SshEnd::ExitSignal(_)) => Completion::ExitSignal,
            None => Completion::CloseDelimited,
        },
        length_bytes: seen.tally.whole().length_bytes(),
        digest: seen.tally.whole().digest(),
        ssh_end: end,
        redacted: seen.redacted,
    }
}

/// The journal failed after dispatch (contract R-6): no claim without a record.
fn not_stored(call: &Call, error: &journal::append::Error) -> Envelope {
    tracing::error!(id = %call.id(), %error, "ALERT: an outcome can't be recorded");
    let invocation = call.invocation();
    let retry = after_unknown(&invocation.operation(), call.latest_ms());
    let code = Code::ResultNotStored;
    let verdict = Verdict::new(Phase::ResultDelivery, Outcome::Unknown, retry, code)
        .unwrap_or(Verdict::unknown(retry, code));
    let message = "The journal failed after the command was sent; its result is not kept.";
    respond::unrecorded(call.id(), verdict, message, invocation.evidence())
}

/// Hands a committed result over, unchanged, and records whether it arrived (contract ).
///
/// The channel is closed only then: whatever the client does next finds the hand-over on record.
async fn deliver(deliveries: &Deliveries, mut call: Call, mut downstream: Downstream, end: &End) {
    let delivery = deliveries.begin(call.id());
    match downstream.end(end).await {
        Some(confirmation) => {
            call.delivered(confirmation);
        }
        None => call.delivery_failed(downstream.sent_bytes()),
    }
    drop(delivery);
    downstream.close().await;
}

#[cfg(test)]
mod tests;
