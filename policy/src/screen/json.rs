//! Values of JSON (RFC 8259): members by their names, and what stands in strings.

use super::content::{self, Declared};
use super::leaf::{Leaf, Spans, byte, until};
use super::name::{self, Kind};
use super::tokens;
use serde::de::IgnoredAny;

const MARK: &[u8] = "\u{feff}".as_bytes();

/// An object or array that is not closed yet.
struct Open {
    is_object: bool,
    /// A name was read whose value comes next.
    is_named: bool,
    /// What that name says.
    named: Kind,
    /// What the names around it say; that concerns strings alone.
    around: Kind,
}

/// `None` if it is no JSON; several documents, one behind the other, are.
pub(super) fn find(text: &Leaf, depth: usize) -> Option<Spans> {
    let bytes = text.bytes();
    let start = if bytes.starts_with(MARK) { MARK.len() } else { 0 };
    let json = std::str::from_utf8(bytes.get(start..)?).ok()?;
    let mut all = serde_json::Deserializer::from_str(json).into_iter::<IgnoredAny>().peekable();
    all.peek()?;
    all.all(|document| document.is_ok()).then(|| walk(text, start, depth))
}

/// Reads what is known to be JSON.
fn walk(text: &Leaf, mut at: usize, depth: usize) -> Spans {
    let bytes = text.bytes();
    let mut found = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    while let Some(b) = byte(bytes, at) {
        let inner = open.last();
        let (named, around) = inner.map_or((Kind::No, Kind::No), |open| (open.named, open.around));
        match b {
            b'{' | b'[' => {
                let around = if named == Kind::No { around } else { named };
                let is_object = b == b'{';
                open.push(Open { is_object, is_named: false, named: Kind::No, around });
                at += 1;
            }
            b'}' | b']' => {
                open.pop();
                at += 1;
            }
            b',' => {
                if let Some(open) = open.last_mut() {
                    (open.is_named, open.named) = (false, Kind::No);
                }
                at += 1;
            }
            b'"' => {
                let end = string_end(bytes, at);
                let value = string(text, at, end);
                at = end;
                match open.last_mut().filter(|open| open.is_object && !open.is_named) {
                    Some(open) => {
                        (open.is_named, open.named) = (true, name::is_credential(value.bytes()));
                        found.extend(tokens::find(&value));
                    }
                    None if named.hides(value.bytes()) || around.hides(value.bytes()) => {
                        found.push(value.place(0..value.bytes().len()));
                    }
                    None => found.extend(content::find(&value, &Declared::Unknown, depth + 1)),
                }
            }
            b if b.is_ascii_whitespace() || b == b':' => at += 1,
            _ => {
                let ends = |b: u8| b.is_ascii_whitespace() || b",]}".contains(&b);
                let end = until(bytes, at, ends);
                let value = bytes.get(at..end).unwrap_or_default();
                if !matches!(value, b"null" | b"true" | b"false") && named.hides(value) {
                    found.push(text.place(at..end));
                }
                at = end.max(at + 1);
            }
        }
    }
    found
}

/// Behind the closing quote of the string that begins there.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(b) = byte(text, at) {
        match b {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// What a string says, from quote to quote.
fn string(text: &Leaf, start: usize, end: usize) -> Leaf {
    let bytes = text.bytes();
    let mut value = Leaf::default();
    let mut at = start + 1;
    while at + 1 < end {
        let Some(b) = byte(bytes, at) else { break };
        if b != b'\\' {
            value.push(b, text.place(at..at + 1));
            at += 1;
            continue;
        }
        // A character beyond the first 65,536 is written as two.
        let unit = |at: usize| if byte(bytes, at + 1) == Some(b'u') { 6 } else { 2 };
        let first = at + unit(at);
        let pair = byte(bytes, first) == Some(b'\\') && first < end;
        let ends = [Some(first), pair.then(|| first + unit(first))];
        let decoded = ends.into_iter().flatten().find_map(|end| {
            let quoted = [b"\"", bytes.get(at..end)?, b"\""].concat();
            let text = serde_json::from_slice::<String>(&quoted).ok()?;
            Some((text, end))
        });
        let (characters, behind) = decoded.unwrap_or_else(|| ("\u{fffd}".to_owned(), first));
        characters.bytes().for_each(|b| value.push(b, text.place(at..behind)));
        at = behind;
    }
    value
}
