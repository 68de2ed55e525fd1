//! What settles a gRPC call: its status, in the trailers or alone in the head, never the 200 of HTTP
//! (contract S-9).

use crate::fingerprint::WHOLE_BYTES;
use crate::head::{Fields, Request, Response};
use bytes::Bytes;

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

/// The status of HTTP that says the same as what settles the response.
pub(crate) fn settling_status(head: &Response, trailers: &Fields) -> Result<u16, NoStatus> {
    if !is_grpc(head) {
        return Ok(head.status);
    }
    let status = trailers.first("grpc-status").or_else(|| head.fields.first("grpc-status"));
    match status.and_then(|status| status.parse::<u8>().ok()) {
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
}
