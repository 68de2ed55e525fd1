//! Parameters of forms (URL standard, `application/x-www-form-urlencoded`) and of queries.

use super::content::{self, Declared};
use super::leaf::{Leaf, Spans, byte, until};
use super::{name, tokens};

/// A URL, or the first line of a request: what stands in front of the query, and its parameters.
pub(super) fn target(text: &Leaf) -> Spans {
    let bytes = text.bytes();
    let mark = until(bytes, 0, |b| b == b'?');
    let mut found = tokens::find(&text.part(0..mark));
    found.extend(find(text, mark + 1, 0));
    found
}

/// The parameters from there on.
pub(super) fn find(text: &Leaf, mut at: usize, depth: usize) -> Spans {
    let bytes = text.bytes();
    let mut found = Vec::new();
    while at < bytes.len() {
        let end = until(bytes, at, |b| {
            matches!(b, b'&' | b';' | b'#') || b.is_ascii_whitespace() || b.is_ascii_control()
        });
        let pair = bytes.get(at..end).unwrap_or_default();
        let equals = memchr::memchr(b'=', pair).map(|equals| at + equals);
        let name = at..equals.unwrap_or(at);
        let value = equals.map_or(at, |equals| equals + 1)..end;
        let written = bytes.get(value.clone()).unwrap_or_default();
        let said = name::is_credential(bytes.get(name.clone()).unwrap_or_default());
        if said.hides(written) {
            found.push(text.place(value));
        } else {
            found.extend(content::find(
                &decoded(text, value.start, end),
                &Declared::Unknown,
                depth + 1,
            ));
        }
        found.extend(tokens::find(&decoded(text, name.start, name.end)));
        at = end + 1;
    }
    found
}

/// Without its escapes.
fn decoded(text: &Leaf, start: usize, end: usize) -> Leaf {
    let bytes = text.bytes();
    let mut value = Leaf::default();
    let mut at = start;
    while let Some(b) = byte(bytes, at).filter(|_| at < end) {
        let digits = bytes.get(at + 1..(at + 3).min(end)).filter(|_| b == b'%');
        let digits = digits.filter(|d| d.len() == 2 && d.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        let (b, length) = match code {
            Some(code) => (code, 3),
            None => (if b == b'+' { b' ' } else { b }, 1),
        };
        value.push(b, text.place(at..at + length));
        at += length;
    }
    value
}
