//! What has the form of a credential: tokens of well-known services, what follows `Bearer` and
//! `Basic`, private keys in PEM, passwords in URLs.

use super::leaf::{Leaf, Spans, byte, until};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use memchr::memmem;
use std::ops::Range;

/// Beginnings of credentials that services hand out.
const PREFIXES: &[&str] = &[
    "AIza",
    "AKIA",
    "ASIA",
    "SG.",
    "afft_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hvs.",
    "npm_",
    "pypi-",
    "rk_live_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "xapp-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "ya29.",
];
/// Shorter words are none.
const SHORTEST_TOKEN: usize = 20;
/// Behind the name of a scheme they are.
const SHORTEST_BEARER: usize = 8;
/// No line of a key is shorter but the last.
const SHORTEST_LINE: usize = 32;
/// What is longer is no key.
const MOST_LINES: usize = 1024;
const LONGEST_PASSWORD: usize = 256;

/// Where such a thing stands.
pub(super) fn find(text: &Leaf) -> Spans {
    let bytes = text.bytes();
    let mut found = words(bytes);
    found.extend(behind_schemes(bytes));
    found.extend(private_keys(bytes));
    found.extend(passwords(bytes));
    text.shown(found)
}

/// Words that begin like tokens of well-known services, and JSON web tokens.
pub(super) fn words(text: &[u8]) -> Spans {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let start = until(text, at, is_token);
        let end = until(text, start, |b| !is_token(b));
        let word = text.get(start..end).unwrap_or_default();
        let begins = |word: &[u8]| PREFIXES.iter().any(|known| word.starts_with(known.as_bytes()));
        // Behind a dot one may begin as well.
        let dots = memchr::memchr_iter(b'.', word).map(|dot| dot + 1);
        let place = std::iter::once(0).chain(dots).find(|&place| {
            let word = word.get(place..).unwrap_or_default();
            word.len() >= SHORTEST_TOKEN && (begins(word) || is_web_token(word))
        });
        found.extend(place.map(|place| start + place..end));
        at = end.max(start + 1);
    }
    found
}

/// Whether it is a JSON web token (RFC 7519): other JSON may be in base64 as well.
fn is_web_token(word: &[u8]) -> bool {
    let mut parts = word.split(|&b| b == b'.');
    let head = parts.next().filter(|head| head.starts_with(b"eyJ"));
    let head = head.and_then(|head| URL_SAFE_NO_PAD.decode(head).ok());
    let head = head.and_then(|head| serde_json::from_slice::<serde_json::Value>(&head).ok());
    parts.count() >= 2 && head.is_some_and(|head| head.get("alg").is_some())
}

/// What follows `Bearer` and `Basic` (RFC 6750, RFC 7617) and is no word of a language.
fn behind_schemes(text: &[u8]) -> Spans {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"_-.+/~".contains(&b);
    let blanks = memchr::memchr_iter(b' ', text).filter_map(|blank| {
        let before = text.get(..blank)?;
        let basic = ends_with_word(before, b"basic");
        if !basic && !ends_with_word(before, b"bearer") {
            return None;
        }
        let start = blank + 1;
        let end = until(text, start, |b| !is_token(b));
        let padded = until(text, end, |b| b != b'=');
        let word = text.get(start..end)?;
        let random = word.iter().any(u8::is_ascii_digit)
            && word.iter().any(u8::is_ascii_alphabetic)
            && !word.starts_with(b"/");
        let pair = || STANDARD.decode(text.get(start..padded)?).ok().filter(|p| p.contains(&b':'));
        let is_one = if basic { pair().is_some() } else { random };
        (is_one && word.len() >= SHORTEST_BEARER).then_some(start..padded)
    });
    blanks.collect()
}

fn ends_with_word(text: &[u8], word: &[u8]) -> bool {
    let Some(start) = text.len().checked_sub(word.len()) else { return false };
    let is_apart = start == 0 || byte(text, start - 1).is_some_and(|b| !b.is_ascii_alphanumeric());
    is_apart && text.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(word))
}

/// Passwords in URLs (RFC 3986 section 3.2.1).
pub(super) fn passwords(text: &[u8]) -> Spans {
    let found = memmem::find_iter(text, b"://").filter_map(|at| {
        let start = at + 3;
        let end = until(text, start, |b| {
            b.is_ascii_whitespace() || b.is_ascii_control() || b"/?#&\"'`,;|<>()\\{}".contains(&b)
        });
        let authority = text.get(start..end)?;
        let host = authority.iter().rposition(|&b| b == b'@')?;
        let colon = authority.iter().position(|&b| b == b':').filter(|&colon| colon < host)?;
        let password = start + colon + 1..start + host;
        (password.len() <= LONGEST_PASSWORD).then_some(password)
    });
    found.collect()
}

/// Private keys in PEM (RFC 7468): the lines of base64. What is around them stays.
pub(super) fn private_keys(text: &[u8]) -> Spans {
    let begun = memmem::find_iter(text, b"-----BEGIN ");
    begun.filter_map(|at| key(text, at)).collect()
}

/// The key whose first line begins there, if one follows.
fn key(text: &[u8], start: usize) -> Option<Range<usize>> {
    let (first, mut at) = line(text, start);
    let label = text.get(first)?.strip_prefix(b"-----BEGIN ")?.strip_suffix(b"-----")?;
    if memmem::find(label, b"PRIVATE KEY").is_none() || memchr::memchr(b'-', label).is_some() {
        return None;
    }
    let is_base64 = |span: &Range<usize>| {
        let line = text.get(span.clone()).unwrap_or_default();
        !line.is_empty() && line.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(b))
    };
    // Fields (RFC 1421 section 4.6) may stand in front.
    let lines = std::iter::from_fn(|| {
        let (span, next) = line(text, at);
        let more = at < text.len();
        at = next.max(at + 1);
        more.then_some((span, next))
    });
    let mut lines = lines.take(MOST_LINES).skip_while(|(span, _)| {
        let line = text.get(span.clone()).unwrap_or_default();
        line.is_empty() || memmem::find(line, b": ").is_some()
    });
    let (begin, _) = lines.next().filter(|(span, _)| is_base64(span))?;
    if begin.len() < SHORTEST_LINE {
        return None;
    }
    let mut key = begin.clone();
    for (span, next) in lines.take_while(|(span, _)| is_base64(span) && span.len() <= begin.len()) {
        if span.len() < begin.len() {
            // The last one may be a word, too.
            let ends = text.get(next..).is_some_and(|rest| rest.starts_with(b"-----END "));
            key.end = if ends && span.len() % 4 == 0 { span.end } else { key.end };
            break;
        }
        key.end = span.end;
    }
    Some(key)
}

/// A line, and where the next one begins; an escape in a program may end it too.
fn line(text: &[u8], start: usize) -> (Range<usize>, usize) {
    let end = until(text, start, |b| matches!(b, b'\r' | b'\n' | b'\\'));
    let rest = text.get(end..).unwrap_or_default();
    let ends = [&b"\r\n"[..], b"\n", b"\\r\\n", b"\\n"];
    let length = ends.iter().find(|line_end| rest.starts_with(line_end)).map_or(0, |e| e.len());
    (start..end, end + length)
}
