//! Text that has no structure that is known: `NAME=VALUE`, `NAME: VALUE`, and forms of credentials.

use super::leaf::{Leaf, Spans, byte, until};
use super::name::{self, Kind};
use super::tokens;

/// A longer value is shown from there on.
const LONGEST: usize = 1024;

/// What a dollar sign in front of a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dollar {
    /// A character like others.
    Plain,
    /// What a shell puts the variable in for.
    Expands,
}

/// Where credentials stand.
pub(super) fn find(text: &Leaf, dollar: Dollar) -> Spans {
    let mut found = tokens::find(text);
    found.extend(text.shown(assignments(text.bytes(), dollar)));
    found
}

/// The length of the value that a text begins with: it has no blanks, and nothing that could end it
/// for whoever reads the text, a shell included.
pub(super) fn value_length(text: &[u8], dollar: Dollar) -> usize {
    let text = text.get(..LONGEST).unwrap_or(text);
    let valid = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let ends = |(at, c): (usize, char)| {
        let next = valid.as_bytes().get(at + 1).copied().unwrap_or(b' ');
        let is_name = next.is_ascii_alphanumeric() || b"_@*#?!-$".contains(&next);
        let ends = match c {
            '$' => b"({[".contains(&next) || (dollar == Dollar::Expands && is_name),
            '"' | '\'' | '`' | '&' | ',' | ';' | '|' | '<' | '>' | '\\' => true,
            '(' | ')' | '{' | '}' | '[' | ']' => true,
            c => c.is_whitespace() || c.is_control(),
        };
        ends.then_some(at)
    };
    valid.char_indices().find_map(ends).unwrap_or(valid.len())
}

/// Values with their name and a sign in front of them, quoted or not.
fn assignments(text: &[u8], dollar: Dollar) -> Spans {
    let mut found: Spans = Vec::new();
    for sign in memchr::memchr2_iter(b'=', b':', text) {
        let from = found.last().map_or(0, |span| span.end);
        let Some(before) = text.get(from..sign) else { continue };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"_-.[]%".contains(&b);
        let is_between = |b: &u8| matches!(b, b'"' | b'\'' | b'\\' | b' ' | b'\t');
        let end = before.iter().rposition(|b| !is_between(b)).map_or(0, |at| at + 1);
        let named = before.get(..end).unwrap_or_default();
        let start = named.iter().rposition(|&b| !is_name(b)).map_or(0, |at| at + 1);
        let named = name::is_credential(named.get(start..).unwrap_or_default());
        if named == Kind::No {
            continue;
        }
        // In a command, what follows `NAME= ` is none of its value.
        let spaced = byte(text, sign) == Some(b':') || end < before.len();
        let start = behind_sign(text, sign + 1, spaced);
        let rest = text.get(start..).unwrap_or_default();
        let value = rest.get(..value_length(rest, dollar)).unwrap_or_default();
        // `==` compares, and `://` is no assignment.
        let odd = value.starts_with(b"=") || value.starts_with(b"//");
        if !odd && !matches!(value, b"null" | b"true" | b"false") && named.hides(value) {
            found.push(start..start + value.len());
        }
    }
    found
}

/// Where the value begins: behind blanks, its quote and the name of a scheme.
fn behind_sign(text: &[u8], sign: usize, spaced: bool) -> usize {
    let is_blank = |b: u8| matches!(b, b' ' | b'\t');
    let start = if spaced { until(text, sign, |b| !is_blank(b)) } else { sign };
    let start = until(text, start, |b| b != b'\\');
    let start = start + usize::from(matches!(byte(text, start), Some(b'"' | b'\'')));
    let end = until(text, start, |b| !b.is_ascii_alphabetic());
    let word = text.get(start..end).unwrap_or_default();
    let is_scheme = ["bearer", "basic", "token", "apikey"]
        .iter()
        .any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()));
    let next = until(text, end, |b| b != b' ');
    if is_scheme && next > end { next } else { start }
}
