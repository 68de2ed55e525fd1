//! What makes two requests the same request (contract V-5, K-10, K-11).

use crate::head::Request;
use crate::target::Target;
use bytes::Bytes;
use journal::contract::{Digest, Fingerprint};
use sha2::{Digest as _, Sha256};

/// Fields that a client or its libraries change per try, or that belong to the hop.
const VOLATILE: &[&str] = &[
    "b3",
    "baggage",
    "connection",
    "content-length",
    "date",
    "expect",
    "host",
    "keep-alive",
    "newrelic",
    "proxy-authorization",
    "proxy-connection",
    "retry-attempt",
    "sentry-trace",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-amz-date",
    "x-amz-security-token",
    "x-amzn-trace-id",
    "x-client-request-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-request-id",
    "x-retry-count",
];

const VOLATILE_PREFIXES: &[&str] =
    &["affiant-", "amz-sdk-", "x-b3-", "x-datadog-", "x-retry-", "x-stainless-"];

fn is_meaningful(name: &str, replaced: Option<&str>) -> bool {
    replaced != Some(name)
        && VOLATILE.binary_search(&name).is_err()
        && !VOLATILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Digests the request: method, target with query, the fields that mean something, and as much of
/// the content as is known before dispatch. `replaced` is the field that injection sets.
pub(crate) fn fingerprint(
    head: &Request,
    target: &Target,
    replaced: Option<&str>,
    content: &[Bytes],
    declared: Option<u64>,
) -> Fingerprint {
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    part(b"affiant http request 1");
    part(head.method.as_bytes());
    part(target.scheme.as_str().as_bytes());
    part(target.authority.to_string().as_bytes());
    part(target.path_and_query.as_bytes());
    let mut fields: Vec<(String, &[u8])> = head
        .fields
        .iter()
        .map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value))
        .filter(|(name, value)| {
            // A signature covers its own date.
            let signed = name == "authorization" && value.starts_with(b"AWS4-HMAC-SHA256");
            is_meaningful(name, replaced) && !signed
        })
        .collect();
    // Stable: duplicates keep their order.
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, value) in &fields {
        part(name.as_bytes());
        part(value);
    }
    part(&declared.map_or([0xff; 8], u64::to_be_bytes));
    let mut body = Sha256::new();
    content.iter().for_each(|piece| body.update(piece));
    part(&body.finalize());
    Digest(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;

    fn of(fields: &str, body: &'static str) -> Fingerprint {
        let text = format!("POST http://h/x?q=1 HTTP/1.1\r\n{fields}\r\n");
        let head = head::request(&Bytes::from(text)).expect("head");
        let target = Target::absolute(&head.target).expect("target");
        fingerprint(&head, &target, None, &[Bytes::from(body)], Some(body.len() as u64))
    }

    /// K-11: what a client changes per try does not make another request; what means something
    /// does.
    #[test]
    fn k_11_tries_of_one_request_are_equal() {
        let base = of("Content-Type: a\r\n", "x");
        for same in [
            "content-type: a\r\nDate: now\r\n",
            "X-Stainless-Retry-Count: 2\r\nContent-Type: a\r\nUser-Agent: y\r\n",
            "amz-sdk-request: attempt=2\r\nContent-Type: a\r\nTraceparent: 1\r\n",
        ] {
            assert_eq!(of(same, "x"), base, "{same}");
        }
        for other in [
            "Content-Type: b\r\n",
            "Content-Type: a\r\nCookie: c\r\n",
            "Content-Type: a\r\nIdempotency-Key: k\r\n",
            "Content-Type: a\r\nAuthorization: Bearer t\r\n",
            "",
        ] {
            assert_ne!(of(other, "x"), base, "{other}");
        }
        assert_ne!(of("Content-Type: a\r\n", "y"), base);
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(VOLATILE.is_sorted());
    }
}
