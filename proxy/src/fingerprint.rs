//! What makes two requests the same request (contract V-5, K-10, K-11).
//!
//! The target is taken as it goes to the origin: two spellings of one path (`/a/./b`, `/%61/b`) are
//! two actions, because only the origin knows whether it takes them for one. Clients that repeat
//! keep their spelling. How the content arrives, in which pieces and when, has no part in it.

use crate::head::{Fields, Request};
use crate::target::Target;
use bytes::Bytes;
use journal::contract::{Digest, Fingerprint};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::ops::Range;

/// Fields that a client or its libraries change per try, or that belong to the hop.
const VOLATILE: &[&str] = &[
    "b3",
    "baggage",
    "connection",
    "content-length",
    "date",
    "expect",
    "grpc-previous-rpc-attempts",
    "grpc-timeout",
    "host",
    "keep-alive",
    "newrelic",
    "proxy-authorization",
    "proxy-connection",
    "retry-attempt",
    "sec-websocket-key",
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

/// Whether a field, named in lower case, is part of the fingerprint.
pub(crate) fn is_meaningful(name: &str, replaced: &[Option<&str>]) -> bool {
    !replaced.contains(&Some(name))
        && VOLATILE.binary_search(&name).is_err()
        && !VOLATILE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Content up to this length is part of the fingerprint as a whole; of longer content, exactly this
/// much of its beginning.
pub(crate) const WHOLE_BYTES: u64 = 1 << 20;

/// As much of the content as a fingerprint covers.
pub(crate) enum Content<'a> {
    /// All of it, with its trailers.
    Whole(&'a [Bytes], &'a Fields),
    /// It is longer than [`WHOLE_BYTES`]: the pieces hold at least that much of it.
    Partial(&'a [Bytes], Option<u64>),
    /// None of it was read: no guard looks at this call.
    Unread(Option<u64>),
}

/// Digests the request: method, target with query, the fields that mean something, and the content
/// as far as it is covered. `replaced` are the fields that the broker sets.
pub(crate) fn fingerprint(
    head: &Request,
    target: &Target,
    replaced: &[Option<&str>],
    content: &Content<'_>,
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
    let mut fields: Vec<(String, Cow<'_, [u8]>)> = head
        .fields
        .iter()
        .map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value))
        .filter(|(name, _)| is_meaningful(name, replaced))
        .map(|(name, value)| {
            let signer = if name == "authorization" { signer(value) } else { None };
            let value = signer.map_or(Cow::Borrowed(value), Cow::Owned);
            (name, value)
        })
        .collect();
    // Stable: duplicates keep their order.
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, value) in &fields {
        part(name.as_bytes());
        part(value);
    }
    let (domain, declared, pieces): (&[u8], _, &[Bytes]) = match content {
        Content::Whole(pieces, _) => (b"whole", None, pieces),
        Content::Partial(pieces, declared) => (b"partial", *declared, pieces),
        Content::Unread(declared) => (b"unread", *declared, &[]),
    };
    part(domain);
    part(&declared.map_or([0xff; 8], u64::to_be_bytes));
    if is_signed_in_chunks(head) {
        part(&Sha256::digest(without_signatures(pieces)));
    } else {
        part(&digest_of_beginning(pieces));
    }
    if let Content::Whole(_, trailers) = content {
        for (name, value) in trailers.iter() {
            part(&name.to_ascii_lowercase());
            part(value);
        }
    }
    Digest(digest.finalize().into())
}

/// Who signed, and for what, by an `Authorization` of AWS Signature Version 4: the access key's id, and
/// the scope without its date. The signature covers the time of the try. A session that was renewed
/// between two tries counts as another signer.
///
/// It begins with a byte that no field has, so it is no request's that has the same text for a value. The tag
/// of all fingerprints stays what it was before signers counted: to every other request it means the same, and a
/// call in doubt from before has to be met by its repeat (contract K-11). A signed one from then is not met; by
/// its id it is, as one that differs (K-10).
fn signer(value: &[u8]) -> Option<Vec<u8>> {
    let value = value.strip_prefix(b"AWS4-")?;
    let name = b"Credential=";
    let at = memchr::memmem::find(value, name)? + name.len();
    let scope = value.get(at..)?.split(|byte| matches!(byte, b',' | b' ')).next()?;
    let mut parts: Vec<&[u8]> = scope.split(|byte| *byte == b'/').collect();
    // Anything else is no scope, and counts as it is.
    if parts.len() < 4 {
        return None;
    }
    parts.remove(1);
    Some([b"\0", parts.join(&b'/').as_slice()].concat())
}

/// Whether some of a field, named in lower case, has no part in the fingerprint although it is meaningful.
pub(crate) fn is_covered_in_part(name: &str, value: &[u8]) -> bool {
    name == "authorization" && signer(value).is_some()
}

/// Digests up to [`WHOLE_BYTES`], however they are cut into pieces.
fn digest_of_beginning(pieces: &[Bytes]) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut left = usize::try_from(WHOLE_BYTES).unwrap_or(usize::MAX);
    for piece in pieces {
        let taken = piece.get(..left.min(piece.len())).unwrap_or_default();
        digest.update(taken);
        left -= taken.len();
    }
    digest.finalize().into()
}

/// Whether the content is signed chunk by chunk (AWS Signature Version 4, streaming). The signatures
/// cover the time of the try.
fn is_signed_in_chunks(head: &Request) -> bool {
    let digest = head.fields.first("x-amz-content-sha256");
    digest.is_some_and(|value| value.starts_with("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"))
}

/// Up to [`WHOLE_BYTES`] of content in signed chunks, with zeros for the signatures. What is no such
/// chunk, and all that follows it, stays as it is.
fn without_signatures(pieces: &[Bytes]) -> Vec<u8> {
    let mut text = pieces.concat();
    text.truncate(usize::try_from(WHOLE_BYTES).unwrap_or(usize::MAX));
    let mut at = 0;
    while let Some((size, signature)) = signed_chunk(&text, at) {
        let end = signature.end + 2;
        zero(&mut text, signature);
        if size == 0 {
            let name = b"x-amz-trailer-signature:";
            let rest = text.get(end..).unwrap_or_default();
            if let Some(found) = memchr::memmem::find(rest, name) {
                let from = end + found + name.len();
                zero(&mut text, from..from + SIGNATURE_DIGITS);
            }
            break;
        }
        at = end.saturating_add(size).saturating_add(2);
    }
    text
}

const SIGNATURE_DIGITS: usize = 64;

/// Size and place of the signature of the chunk that begins there.
fn signed_chunk(text: &[u8], at: usize) -> Option<(usize, Range<usize>)> {
    const NAME: &[u8] = b";chunk-signature=";
    let rest = text.get(at..)?;
    let name = memchr::memchr(b';', rest).filter(|end| *end <= 16)?;
    let size = std::str::from_utf8(rest.get(..name)?).ok()?;
    let size = usize::from_str_radix(size, 16).ok()?;
    let from = name + NAME.len();
    let line = rest.get(name..from + SIGNATURE_DIGITS + 2)?;
    let digits = line.strip_prefix(NAME)?.strip_suffix(b"\r\n")?;
    let signature = at + from..at + from + SIGNATURE_DIGITS;
    digits.iter().all(u8::is_ascii_hexdigit).then_some((size, signature))
}

fn zero(text: &mut [u8], place: Range<usize>) {
    if let Some(place) = text.get_mut(place) {
        place.fill(b'0');
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use crate::head;

    fn of(fields: &str, body: &'static str) -> Fingerprint {
        let text = format!("POST http://h/x?q=1 HTTP/1.1\r\n{fields}\r\n");
        let head = head::request(&Bytes::from(text)).expect("head");
        let target = Target::absolute(&head.target).expect("target");
        fingerprint(&head, &target, &[], &Content::Whole(&[Bytes::from(body)], &Fields::default()))
    }

    /// K-10, K-11: neither read sizes nor what comes after the first MiB change a fingerprint; a
    /// partial one is never equal to a whole one.
    #[test]
    fn k_11_pieces_do_not_matter() {
        let head = Bytes::from_static(b"POST http://h/x HTTP/1.1\r\n\r\n");
        let head = head::request(&head).expect("head");
        let target = Target::absolute(&head.target).expect("target");
        let of = |content: &Content<'_>| fingerprint(&head, &target, &[], content);
        let text: Bytes = (0..1_500_000_u32).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
        let pieces = |until: usize, size: usize| -> Vec<Bytes> {
            text[..until].chunks(size).map(Bytes::copy_from_slice).collect()
        };
        let none = Fields::default();
        let (one, two) = (pieces(1 << 20, 1 << 20), pieces(1 << 20, 777));
        assert_eq!(of(&Content::Whole(&one, &none)), of(&Content::Whole(&two, &none)));
        let (more, most) = (pieces((1 << 20) + 1, 4096), pieces(1_500_000, 60_001));
        let partial = of(&Content::Partial(&more, None));
        assert_eq!(partial, of(&Content::Partial(&most, None)));
        assert_ne!(partial, of(&Content::Partial(&most, Some(1_500_000))));
        assert_ne!(partial, of(&Content::Whole(&one, &none)));
        assert_ne!(of(&Content::Unread(None)), of(&Content::Whole(&[], &none)));
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

    /// V-6, K-11: of a signature that the client makes anew per try its date has no part in it; whose
    /// key signed has.
    #[test]
    fn v_6_another_account_is_another_request() {
        let signed = |key: &str, date: &str, service: &str, signature: &str| {
            let scope = format!("{key}/{date}/eu-west-1/{service}/aws4_request");
            let field = format!(
                "Authorization: AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, \
                 Signature={signature}\r\nX-Amz-Date: {date}T000000Z\r\n"
            );
            of(&field, "x")
        };
        let base = signed("AKIASTAGING", "20261130", "ec2", "aa");
        assert_eq!(signed("AKIASTAGING", "20261201", "ec2", "bb"), base);
        assert_ne!(signed("AKIAPRODUCTION", "20261130", "ec2", "aa"), base);
        assert_ne!(signed("AKIASTAGING", "20261130", "s3", "aa"), base);
        // The same text that signs nothing.
        let text = "Authorization: AKIASTAGING/eu-west-1/ec2/aws4_request\r\n";
        assert_ne!(of(text, "x"), base);
        // What has no scope counts as it is.
        let odd = |rest: &str| of(&format!("Authorization: AWS4-HMAC-SHA256 {rest}\r\n"), "x");
        assert_ne!(odd("Credential=a, Signature=b"), odd("Credential=a, Signature=c"));
        assert!(is_covered_in_part("authorization", b"AWS4-X Credential=a/b/c/d"));
        assert!(!is_covered_in_part("authorization", b"Bearer x"));
    }

    /// K-11: content that is signed in chunks is signed anew per try; only its data means something.
    #[test]
    fn k_11_signatures_of_chunks_do_not_matter() {
        let kind = "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\n";
        let content = |data: &str, digit: &str, trailer: &str| {
            let signature = digit.repeat(64);
            let text = format!(
                "5;chunk-signature={signature}\r\n{data}\r\n0;chunk-signature={signature}\r\n\
                 {trailer}\r\nx-amz-trailer-signature:{signature}\r\n\r\n"
            );
            &*Box::leak(text.into_boxed_str())
        };
        let base = of(kind, content("hello", "a", "x-amz-checksum-crc32:1"));
        assert_eq!(of(kind, content("hello", "b", "x-amz-checksum-crc32:1")), base);
        assert_ne!(of(kind, content("hullo", "a", "x-amz-checksum-crc32:1")), base);
        assert_ne!(of(kind, content("hello", "a", "x-amz-checksum-crc32:2")), base);
        // A signature of another form is no signature, and without the declaration nothing is.
        let other = content("hello", "x", "x-amz-checksum-crc32:1");
        assert_ne!(of(kind, other), of(kind, content("hello", "y", "x-amz-checksum-crc32:1")));
        let (a, b) = (content("hello", "a", ""), content("hello", "b", ""));
        assert_ne!(of("", a), of("", b));
        // Data that looks like a chunk stays data.
        let inner = format!("0;chunk-signature={}\r\n", "c".repeat(64));
        let held = format!("{:x};chunk-signature={}\r\n{inner}\r\n", inner.len(), "a".repeat(64));
        let pieces = [Bytes::from(held[..40].to_owned()), Bytes::from(held[40..].to_owned())];
        let masked = without_signatures(&pieces);
        assert_eq!(masked.iter().filter(|byte| **byte == b'c').count(), 64 + 2, "{masked:?}");
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(VOLATILE.is_sorted());
    }
}
