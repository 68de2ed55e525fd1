//! What is read out of a response for its record, and the stored form of its head.

use crate::deliver::{reason, trailing};
use crate::head::{self, Fields, Response};
use crate::outgoing::stays;
use bytes::Bytes;
use journal::contract::RetryAfter;

/// A stated time to wait counts up to this.
const MAX_RETRY_AFTER_SECONDS: u64 = 24 * 60 * 60;

/// Whether the response is to be passed on event by event.
pub(crate) fn is_event_stream(head: &Response) -> bool {
    head.fields.first("content-type").is_some_and(|value| {
        value.get(..17).is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"))
    })
}

/// The response head as it is stored. Each byte of a value is one character, so that every value
/// can be written again as it was. The reason is there where it is not the status's own.
pub(crate) fn stored_head(head: &Response) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(512);
    let mut text = String::new();
    out.extend_from_slice(b"{\"headers\":");
    list(&mut out, &mut text, head.fields.iter().filter(|(name, _)| !stays(name, &head.fields)))?;
    if head.reason != reason(head.status).as_bytes() {
        out.extend_from_slice(b",\"reason\":");
        quoted(&mut out, &mut text, &head.reason)?;
    }
    out.extend_from_slice(format!(",\"status\":{}}}", head.status).as_bytes());
    Ok(out)
}

/// The trailer section as it is stored: the fields that go on to the caller, in the form of the head's.
pub(crate) fn stored_trailers(trailers: &Fields) -> serde_json::Result<Option<Vec<u8>>> {
    let mut kept = trailing(trailers).peekable();
    if kept.peek().is_none() {
        return Ok(None);
    }
    let mut out = Vec::new();
    list(&mut out, &mut String::new(), kept)?;
    Ok(Some(out))
}

fn list<'a>(
    out: &mut Vec<u8>,
    text: &mut String,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> serde_json::Result<()> {
    out.push(b'[');
    for (number, (name, value)) in fields.enumerate() {
        out.extend_from_slice(if number == 0 { b"[" } else { b",[" });
        quoted(out, text, name)?;
        out.push(b',');
        quoted(out, text, value)?;
        out.push(b']');
    }
    out.push(b']');
    Ok(())
}

/// Writes bytes as text of JSON. `text` is room that is used again.
fn quoted(out: &mut Vec<u8>, text: &mut String, bytes: &[u8]) -> serde_json::Result<()> {
    text.clear();
    text.extend(bytes.iter().map(|byte| char::from(*byte)));
    serde_json::to_writer(out, text)
}

/// The remote's own id of the request.
pub(crate) fn remote_request_id(fields: &Fields) -> Option<String> {
    ["x-request-id", "request-id", "x-amzn-requestid", "x-amz-request-id", "cf-ray"]
        .iter()
        .find_map(|name| fields.first(name))
        .map(|id| id.chars().take(128).collect())
}

/// A usable `Retry-After` (RFC 9110 section 10.2.3): seconds, or a date.
pub(crate) fn retry_after(fields: &Fields, at_ms: u64) -> RetryAfter {
    let mut values = fields.all("retry-after");
    let value = std::str::from_utf8(values.next()?).ok()?;
    if values.any(|other| other != value.as_bytes()) {
        return None;
    }
    let seconds = if value.bytes().all(|c| c.is_ascii_digit()) {
        value.parse().ok()?
    } else {
        let format = time::format_description::well_known::Rfc2822;
        let text = value.strip_suffix("GMT").map(|start| format!("{start}+0000"))?;
        let date = time::OffsetDateTime::parse(&text, &format).ok()?;
        let until = u64::try_from(date.unix_timestamp()).ok()?;
        until.saturating_sub(at_ms / 1000)
    };
    (seconds <= MAX_RETRY_AFTER_SECONDS).then(|| at_ms.saturating_add(seconds * 1000))
}

/// Reads a stored trailer section back; one that was not stored is empty.
pub(crate) fn restore_trailers(text: Option<&[u8]>) -> Option<Fields> {
    let Some(text) = text else { return Some(Fields::default()) };
    let fields: Vec<(String, String)> = serde_json::from_slice(text).ok()?;
    let mut lines = Vec::new();
    for (name, value) in &fields {
        lines.extend_from_slice(&bytes_of(name)?);
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(&bytes_of(value)?);
        lines.extend_from_slice(b"\r\n");
    }
    lines.extend_from_slice(b"\r\n");
    head::fields(&Bytes::from(lines), 0, head::OF_OURS).ok()
}

/// The bytes of a stored text: each is one character.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(character).ok()).collect()
}

/// Reads the stored form back.
pub(crate) fn restore_head(text: &[u8]) -> Option<Response> {
    let value: serde_json::Value = serde_json::from_slice(text).ok()?;
    let status = u16::try_from(value.get("status")?.as_u64()?).ok()?;
    let own = match value.get("reason") {
        Some(own) => bytes_of(own.as_str()?)?,
        None => reason(status).as_bytes().to_vec(),
    };
    let mut lines = format!("HTTP/1.1 {status} ").into_bytes();
    lines.extend_from_slice(&own);
    lines.extend_from_slice(b"\r\n");
    for field in value.get("headers")?.as_array()? {
        lines.extend_from_slice(&bytes_of(field.get(0)?.as_str()?)?);
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(&bytes_of(field.get(1)?.as_str()?)?);
        lines.extend_from_slice(b"\r\n");
    }
    lines.extend_from_slice(b"\r\n");
    head::response_within(&Bytes::from(lines), head::OF_OURS).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(fields: &'static str) -> Response {
        let text = [b"HTTP/1.1 200 OK\r\n", fields.as_bytes(), b"\r\n"].concat();
        head::response(&Bytes::from(text)).expect("head")
    }

    /// S-3: seconds or a date, bounded; anything else is no usable time.
    #[test]
    fn s_3_retry_after_is_bounded() {
        let at_ms = 784_111_767_000;
        for (value, expected) in [
            ("Retry-After: 5\r\n", Some(at_ms + 5000)),
            ("Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", Some(at_ms + 10_000)),
            ("Retry-After: Sun, 06 Nov 1994 08:49:00 GMT\r\n", Some(at_ms)),
            ("Retry-After: 86401\r\n", None),
            ("Retry-After: -1\r\n", None),
            ("Retry-After: soon\r\n", None),
            ("Retry-After: 5\r\nRetry-After: 5\r\n", Some(at_ms + 5000)),
            ("Retry-After: 5\r\nRetry-After: 2000\r\n", None),
            ("Retry-After: \r\n", None),
            ("", None),
        ] {
            assert_eq!(retry_after(&response(value).fields, at_ms), expected, "{value}");
        }
    }

    /// R-4: stored trailers come back as they were, without those that have no place there; what was
    /// stored without any has none.
    #[test]
    fn r_4_stored_trailers_come_back_as_they_were() {
        let lines = Bytes::from_static(b"X-Sum: \xe91\r\nAge: 5\r\nx-sum: 2\r\n\r\n");
        let trailers = head::fields(&lines, 0, head::OF_PEERS).expect("fields");
        let stored = stored_trailers(&trailers).expect("stored").expect("some");
        assert_eq!(stored, r#"[["X-Sum","é1"],["x-sum","2"]]"#.as_bytes());
        let restored = restore_trailers(Some(&stored)).expect("restored");
        let fields: Vec<_> = restored.iter().collect();
        let expected: [(&[u8], &[u8]); 2] = [(b"X-Sum", b"\xe91"), (b"x-sum", b"2")];
        assert_eq!(fields, expected);
        assert_eq!(restore_trailers(None).expect("none").iter().count(), 0);
        assert!(restore_trailers(Some(b"{}")).is_none());
        assert_eq!(stored_trailers(&Fields::default()).expect("stored"), None);
    }

    /// R-4: a stored head comes back as it was, duplicates and odd bytes included.
    #[test]
    fn r_4_a_stored_head_comes_back_as_it_was() {
        let text =
            b"HTTP/1.1 203 Any\r\nX-b: 1\r\nConnection: x-c\r\nX-C: 2\r\nx-B: \xe9\xff\r\n\r\n";
        let head = head::response(&Bytes::from_static(text)).expect("head");
        let stored = stored_head(&head).expect("stored");
        let expected = r#"{"headers":[["X-b","1"],["x-B","éÿ"]],"reason":"Any","status":203}"#;
        assert_eq!(stored, expected.as_bytes());
        let restored = restore_head(&stored).expect("restored");
        assert_eq!((restored.status, restored.reason.as_slice()), (203, &b"Any"[..]));
        let former = restore_head(br#"{"headers":[],"status":404}"#).expect("without a reason");
        assert_eq!(former.reason, b"Not Found");
        let fields: Vec<_> = restored.fields.iter().collect();
        let expected: [(&[u8], &[u8]); 2] = [(b"X-b", b"1"), (b"x-B", b"\xe9\xff")];
        assert_eq!(fields, expected);
    }
}
