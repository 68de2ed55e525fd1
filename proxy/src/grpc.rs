//! What settles a gRPC call: its status, in the trailers or alone in the head, never the 200 of HTTP
//! (contract S-9); and what an answer of the broker's own says to a call of gRPC (contract E-1).

use crate::fingerprint::WHOLE_BYTES;
use crate::head::{Fields, Request, Response};
use crate::respond::may_repeat;
use bytes::Bytes;
use journal::contract::{Outcome, Verdict};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// A gRPC response that ended without a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoStatus;

/// Bytes before a message: a flag and its length.
const PREFIX_BYTES: usize = 5;

fn is_kind(fields: &Fields) -> bool {
    let kind = fields.first("content-type").unwrap_or_default().to_ascii_lowercase();
    kind.starts_with("application/grpc") && !kind.starts_with("application/grpc-web")
}

/// Whether a request is a call of gRPC.
pub(crate) fn is_call(head: &Request) -> bool {
    is_kind(&head.fields)
}

/// How long the first message of a call is with its prefix (gRPC over HTTP/2, Length-Prefixed-Message); of a
/// longer one, what a fingerprint covers and one byte.
fn first_length(pieces: &[Bytes]) -> Option<usize> {
    let mut bytes = pieces.iter().flatten();
    let mut prefix = [0; PREFIX_BYTES];
    for byte in &mut prefix {
        *byte = *bytes.next()?;
    }
    let [_, length @ ..] = prefix;
    let limit = usize::try_from(WHOLE_BYTES).unwrap_or(usize::MAX).saturating_add(1);
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    Some(length.saturating_add(PREFIX_BYTES).min(limit))
}

/// Whether the first message is in the pieces, so many bytes in all.
pub(crate) fn has_first_message(pieces: &[Bytes], length_bytes: u64) -> bool {
    first_length(pieces).is_some_and(|length| length_bytes >= length as u64)
}

/// The first message of a call, once it is there. The same however it is cut into pieces and whatever
/// follows.
pub(crate) fn first_message(pieces: &[Bytes]) -> Option<Vec<Bytes>> {
    let mut left = first_length(pieces)?;
    let mut first = Vec::new();
    for piece in pieces {
        let taken = piece.slice(..left.min(piece.len()));
        left -= taken.len();
        first.push(taken);
    }
    (left == 0).then_some(first)
}

fn is_grpc(head: &Response) -> bool {
    head.status == 200 && is_kind(&head.fields)
}

/// Whether the head says all that the response has to say (Trailers-Only): a caller reads the status from
/// the last section, so that none of ours may follow.
pub(crate) fn is_status_alone(head: &Response) -> bool {
    is_grpc(head) && head.fields.has("grpc-status")
}

/// Whether the response is passed on as it comes. A status in the head is all there is.
pub(crate) fn streams(head: &Response) -> bool {
    is_grpc(head) && !head.fields.has("grpc-status")
}

fn status<'a>(head: &'a Response, trailers: &'a Fields) -> Option<&'a str> {
    trailers.first("grpc-status").or_else(|| head.fields.first("grpc-status"))
}

/// Whether a gRPC response came to its own end: its status, which nothing but the service's side knows.
pub(crate) fn has_status(head: &Response, trailers: &Fields) -> bool {
    is_grpc(head) && status(head, trailers).is_some()
}

/// The status of HTTP that says the same as what settles the response.
pub(crate) fn settling_status(head: &Response, trailers: &Fields) -> Result<u16, NoStatus> {
    if !is_grpc(head) {
        return Ok(head.status);
    }
    match status(head, trailers).and_then(|status| status.parse::<u8>().ok()) {
        None => Err(NoStatus),
        Some(0) => Ok(200),
        // INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION,
        // OUT_OF_RANGE, UNIMPLEMENTED, UNAUTHENTICATED: the service refused.
        Some(3 | 5 | 6 | 7 | 9 | 11 | 12 | 16) => Ok(400),
        // CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL,
        // UNAVAILABLE, DATA_LOSS: it failed, and says nothing of what it did before.
        Some(_) => Ok(500),
    }
}

/// A status of gRPC that an answer of the broker's own has, by its number (gRPC's statuscodes.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// It is not known what the service did, and the call may not be repeated.
    Unknown = 2,
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    /// Repeat after something is corrected, or not at all.
    FailedPrecondition = 9,
    Unimplemented = 12,
    /// The one code that stands for "repeat the call".
    Unavailable = 14,
    /// The service did it, and its answer can't be shown.
    DataLoss = 15,
    Unauthenticated = 16,
}

/// What an answer that would have this status of HTTP says to a call of gRPC. Clients repeat what is
/// UNAVAILABLE, so that is said of calls alone that may be repeated.
pub(crate) const fn code_of(status: u16, verdict: Verdict) -> Code {
    if matches!(status, 413 | 429) && matches!(verdict.outcome(), Outcome::NotAttempted) {
        return Code::ResourceExhausted;
    }
    if may_repeat(verdict) {
        return Code::Unavailable;
    }
    match (verdict.outcome(), status) {
        (Outcome::Unknown, _) => Code::Unknown,
        (Outcome::Committed, _) => Code::DataLoss,
        (Outcome::NotAttempted, 400 | 417 | 421 | 422) => Code::InvalidArgument,
        (Outcome::NotAttempted, 403) => Code::PermissionDenied,
        (Outcome::NotAttempted, 407) => Code::Unauthenticated,
        (Outcome::NotAttempted, 501) => Code::Unimplemented,
        (Outcome::NotAttempted | Outcome::Rejected, _) => Code::FailedPrecondition,
    }
}

/// What `grpc-retry-pushback-ms` says (gRPC's proposal A6): how long a repeat waits, or -1 of a call that may
/// not be repeated.
pub(crate) fn pushback(verdict: Verdict, wait_ms: Option<u64>) -> Option<i32> {
    match (may_repeat(verdict), wait_ms) {
        (false, _) => Some(-1),
        (true, Some(wait_ms)) => Some(i32::try_from(wait_ms).unwrap_or(i32::MAX)),
        (true, None) => None,
    }
}

/// Text as `grpc-message` has it (gRPC over HTTP/2, Status-Message).
pub(crate) fn message(text: &str) -> String {
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;
    use bytes::Bytes;

    fn check(kind: &str, in_head: &str, in_trailers: &str, expected: Result<u16, NoStatus>) {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{in_head}\r\n");
        let head = head::response(&Bytes::from(text)).expect("head");
        let trailers = Bytes::from(format!("{in_trailers}\r\n"));
        let trailers = head::fields(&trailers, 0, head::OF_PEERS).expect("fields");
        assert_eq!(settling_status(&head, &trailers), expected, "{kind} {in_head} {in_trailers}");
    }

    /// S-9: the status settles; without one nothing does.
    #[test]
    fn s_9_the_status_settles() {
        let status = |code: u8| format!("grpc-status: {code}\r\n");
        check("text/plain", "", "", Ok(200));
        check("application/grpc-web", "", "", Ok(200));
        check("application/grpc+proto", "", "", Err(NoStatus));
        check("application/grpc", "", "grpc-status: x\r\n", Err(NoStatus));
        check("application/grpc", "", &status(0), Ok(200));
        check("application/grpc", &status(12), "", Ok(400));
        for refused in [3, 5, 6, 7, 9, 11, 12, 16] {
            check("application/grpc", "", &status(refused), Ok(400));
        }
        for failed in [1, 2, 4, 8, 10, 13, 14, 15, 99] {
            check("application/grpc", "", &status(failed), Ok(500));
        }
    }

    /// K-11: what a fingerprint sees of a call is its first message, whatever comes with it.
    #[test]
    fn k_11_the_first_message_of_a_call() {
        let text = Bytes::from_static(b"\x00\x00\x00\x00\x02ab\x00\x00\x00\x00\x01c");
        let joined = |pieces: &[Bytes]| first_message(pieces).map(|first| first.concat());
        assert_eq!(joined(&[]), None);
        assert_eq!(joined(&[text.slice(..4)]), None);
        assert_eq!(joined(&[text.slice(..6)]), None);
        let expected = Some(text.slice(..7).to_vec());
        assert_eq!(joined(&[text.slice(..7)]), expected);
        assert_eq!(joined(std::slice::from_ref(&text)), expected);
        let cut: Vec<Bytes> = text.chunks(1).map(Bytes::copy_from_slice).collect();
        assert_eq!(joined(&cut), expected);
        let long = Bytes::from(vec![0xff; 2 << 20]);
        assert_eq!(joined(&[long]).map(|first| first.len() as u64), Some(WHOLE_BYTES + 1));
    }

    /// E-1, K-11: UNAVAILABLE, which clients repeat, is said of what may be repeated, and of nothing else.
    #[test]
    fn e_1_only_what_may_be_repeated_is_unavailable() {
        use journal::contract::{Code as Ours, Phase, Retry};
        let verdict = |outcome, retry| {
            let phase = match outcome {
                Outcome::NotAttempted => Phase::Validation,
                Outcome::Rejected | Outcome::Committed | Outcome::Unknown => Phase::RemoteExecution,
            };
            Verdict::new(phase, outcome, retry, Ours::InternalError).expect("a verdict")
        };
        let (never, later) = (Retry::Never, Retry::Backoff);
        for (outcome, retry, status, expected, pushback_ms) in [
            (Outcome::NotAttempted, never, 403, Code::PermissionDenied, Some(-1)),
            (Outcome::NotAttempted, Retry::AfterCorrection, 407, Code::Unauthenticated, Some(-1)),
            (Outcome::NotAttempted, Retry::AfterCorrection, 422, Code::InvalidArgument, Some(-1)),
            (Outcome::NotAttempted, Retry::AfterCorrection, 413, Code::ResourceExhausted, Some(-1)),
            (Outcome::NotAttempted, later, 429, Code::ResourceExhausted, Some(1500)),
            (Outcome::NotAttempted, never, 501, Code::Unimplemented, Some(-1)),
            (Outcome::NotAttempted, Retry::Reconcile, 424, Code::FailedPrecondition, Some(-1)),
            (Outcome::NotAttempted, later, 502, Code::Unavailable, Some(1500)),
            (Outcome::Rejected, later, 503, Code::Unavailable, Some(1500)),
            (Outcome::Rejected, Retry::AfterCorrection, 502, Code::FailedPrecondition, Some(-1)),
            (Outcome::Unknown, Retry::Reconcile, 502, Code::Unknown, Some(-1)),
            (Outcome::Unknown, Retry::Reconcile, 413, Code::Unknown, Some(-1)),
            (Outcome::Unknown, Retry::SameIdempotencyKey, 504, Code::Unavailable, Some(1500)),
            (Outcome::Committed, Retry::FetchResult, 502, Code::DataLoss, Some(-1)),
        ] {
            let verdict = verdict(outcome, retry);
            assert_eq!(code_of(status, verdict), expected, "{outcome:?} {retry:?} {status}");
            assert_eq!(pushback(verdict, Some(1500)), pushback_ms, "{outcome:?} {retry:?}");
        }
        assert_eq!(pushback(verdict(Outcome::Unknown, later), None), None);
        assert_eq!(pushback(verdict(Outcome::Unknown, later), Some(u64::MAX)), Some(i32::MAX));
        assert_eq!(message("100 % of \u{e9}\n"), "100 %25 of %C3%A9%0A");
    }
}
