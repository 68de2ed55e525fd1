//! What settles a gRPC call: its status, in the trailers or alone in the head, never the 200 of HTTP
//! (contract S-9).

use crate::head::{Fields, Response};

/// A gRPC response that ended without a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoStatus;

fn is_grpc(head: &Response) -> bool {
    let kind = head.fields.first("content-type").unwrap_or_default().to_ascii_lowercase();
    head.status == 200
        && kind.starts_with("application/grpc")
        && !kind.starts_with("application/grpc-web")
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
        let trailers = head::fields(&Bytes::from(format!("{in_trailers}\r\n")), 0).expect("fields");
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
}
