//! Where credentials stand in a text: by the names in front of them, and by their own form.
//!
//! Each function finds too much rather than too little: what is hidden by mistake still shows its
//! length, what is shown by mistake is out.

use super::name::{self, Kind};
use memchr::memmem;
use std::ops::Range;

type Spans = Vec<Range<usize>>;

fn byte(text: &[u8], at: usize) -> Option<u8> {
    text.get(at).copied()
}

/// The first place from `at` on whose byte meets the test, else the end.
fn until(text: &[u8], at: usize, test: impl Fn(u8) -> bool) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.iter().position(|&b| test(b)).map_or(text.len(), |n| at + n)
}

fn hides(name: &[u8], value: &[u8]) -> bool {
    match name::is_credential(name) {
        Kind::No => false,
        Kind::Yes => true,
        Kind::UnlessNumber => !value.iter().all(|c| c.is_ascii_digit() || *c == b'.'),
    }
}

/// Parameters of a query, which is what follows the first `?`.
pub(super) fn query(target: &[u8]) -> Spans {
    let start = target.iter().position(|&b| b == b'?').map_or(target.len(), |mark| mark + 1);
    pairs(target, start)
}

/// Parameters of a form, or of the query that begins there.
pub(super) fn pairs(text: &[u8], mut at: usize) -> Spans {
    let mut found = Vec::new();
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = until(rest, 0, |b| matches!(b, b'&' | b';' | b'#' | b'\r' | b'\n'));
        let pair = rest.get(..length).unwrap_or_default();
        if let Some(equals) = memchr::memchr(b'=', pair)
            && let (Some(name), Some(value)) = (pair.get(..equals), pair.get(equals + 1..))
            && hides(name, value)
        {
            found.push(at + equals + 1..at + length);
        }
        at += length + 1;
    }
    found
}

/// Members of JSON objects, at any depth: the whole value. What is no JSON is looked through as well
/// as it goes.
pub(super) fn json(text: &[u8]) -> Spans {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(quote) = text.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let start = at + quote;
        let end = string_end(text, start);
        let colon = until(text, end, |b| !b.is_ascii_whitespace());
        let quoted = text.get(start..end).unwrap_or_default();
        at = end;
        if byte(text, colon) != Some(b':') {
            continue;
        }
        // A name may be written in escapes.
        let name = serde_json::from_slice::<String>(quoted)
            .unwrap_or_else(|_| String::from_utf8_lossy(quoted).into_owned());
        if name::is_credential(name.as_bytes()) == Kind::No {
            continue;
        }
        let start = until(text, colon + 1, |b| !b.is_ascii_whitespace());
        let end = value_end(text, start);
        let value = text.get(start..end).unwrap_or_default();
        if !is_nothing(value) && hides(name.as_bytes(), value) {
            // The quotes stay.
            let string = value.first() == Some(&b'"') && value.len() > 1 && value.ends_with(b"\"");
            found.push(if string { start + 1..end - 1 } else { start..end });
            at = end;
        }
    }
    found
}

/// Whether a value gives nothing away.
fn is_nothing(value: &[u8]) -> bool {
    matches!(value, b"null" | b"true" | b"false" | b"\"\"")
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

/// Behind the JSON value that begins there.
fn value_end(text: &[u8], start: usize) -> usize {
    match byte(text, start) {
        Some(b'"') => string_end(text, start),
        Some(b'{' | b'[') => {
            let (mut depth, mut at) = (0_usize, start);
            while let Some(b) = byte(text, at) {
                match b {
                    b'"' => {
                        at = string_end(text, at);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    break;
                }
            }
            at.min(text.len())
        }
        _ => until(text, start, |b| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace()),
    }
}

/// How far the name of a part may be from its content.
const PART_HEAD: usize = 4096;

/// Parts of `multipart/form-data` (RFC 7578): from the blank line to the next boundary.
pub(super) fn parts(text: &[u8]) -> Spans {
    let named = memmem::find_iter(text, b"name=").filter_map(|at| {
        let head = text.get(at + 5..)?;
        let head = head.get(..PART_HEAD.min(head.len()))?;
        let line = head.get(..until(head, 0, |b| matches!(b, b';' | b'\r' | b'\n')))?;
        let name = line.strip_prefix(b"\"").unwrap_or(line);
        if name::is_credential(name) == Kind::No {
            return None;
        }
        let start = at + 5 + memmem::find(head, b"\r\n\r\n")? + 4;
        let length = memmem::find(text.get(start..)?, b"\r\n--");
        Some(start..length.map_or(text.len(), |length| start + length))
    });
    named.collect()
}

/// Text of XML elements.
pub(super) fn elements(text: &[u8]) -> Spans {
    let opened = memchr::memchr_iter(b'<', text).filter_map(|at| {
        let close = until(text, at + 1, |b| matches!(b, b'<' | b'>'));
        let name_end = until(text, at + 1, |b| b.is_ascii_whitespace() || b == b'>');
        let name = text.get(at + 1..name_end.min(close))?;
        let start = close + 1;
        let value = start..until(text, start, |b| b == b'<');
        (byte(text, close) == Some(b'>') && hides(name, text.get(value.clone())?)).then_some(value)
    });
    opened.collect()
}

/// `NAME=VALUE` and `NAME: VALUE`, quoted or not, wherever they stand.
pub(super) fn assignments(text: &[u8]) -> Spans {
    let mut found: Spans = Vec::new();
    for sign in memchr::memchr2_iter(b'=', b':', text) {
        let from = found.last().map_or(0, |span| span.end);
        let Some(before) = text.get(from..sign) else { continue };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"_-.[]%".contains(&b);
        let is_between = |b: &u8| matches!(b, b'"' | b'\'' | b'\\' | b' ' | b'\t');
        let end = before.iter().rposition(|b| !is_between(b)).map_or(0, |at| at + 1);
        let named = before.get(..end).unwrap_or_default();
        let start = named.iter().rposition(|&b| !is_name(b)).map_or(0, |at| at + 1);
        let name = named.get(start..).unwrap_or_default();
        if name.is_empty() || name::is_credential(name) == Kind::No {
            continue;
        }
        let quoted = before.get(end).is_some_and(|b| matches!(b, b'"' | b'\'' | b'\\'));
        let value = assigned(text, sign, quoted);
        let content = text.get(value.clone()).unwrap_or_default();
        // `==` compares, and `://` is no assignment.
        let odd = content.starts_with(b"=") || (content.starts_with(b"//") && !quoted);
        if !odd && !is_nothing(content) && hides(name, content) {
            found.push(value);
        }
    }
    found
}

/// The value behind the sign of an assignment, without its quotes. `quoted`: its name is.
fn assigned(text: &[u8], sign: usize, quoted: bool) -> Range<usize> {
    let colon = byte(text, sign) == Some(b':');
    let blank = |b: u8| colon && matches!(b, b' ' | b'\t');
    let start = until(text, sign + 1, |b| !blank(b));
    // A quote that is itself escaped ends at the next one that is.
    let escaped = byte(text, start) == Some(b'\\');
    let open = if escaped { start + 1 } else { start };
    if let Some(quote @ (b'"' | b'\'')) = byte(text, open) {
        let mut at = open + 1;
        while let Some(b) = byte(text, at) {
            match b {
                b'\\' if !escaped => at += 1,
                b'\\' | b'\n' => break,
                b if b == quote => break,
                _ => {}
            }
            at += 1;
        }
        return open + 1..at.min(text.len());
    }
    if quoted {
        return start..value_end(text, start);
    }
    // A field of a message goes to the end of its line.
    let ends = |b: u8| match colon {
        true => matches!(b, b'\r' | b'\n' | b'"' | b'\''),
        false => b.is_ascii_whitespace() || matches!(b, b'&' | b';' | b'|' | b'"' | b'\'' | b'<'),
    };
    start..until(text, start, ends)
}

/// `--NAME VALUE` of a command line, and `-u USER:PASSWORD`.
pub(super) fn options(text: &[u8]) -> Spans {
    let mut found = Vec::new();
    let (mut at, mut secret_next) = (0, false);
    while at < text.len() {
        let start = until(text, at, |b| !b.is_ascii_whitespace());
        let quote = byte(text, start).filter(|b| matches!(b, b'"' | b'\''));
        let end = match quote {
            Some(quote) => until(text, start + 1, |b| b == quote),
            None => until(text, start, |b| b.is_ascii_whitespace()),
        };
        let inner = if quote.is_some() { start + 1..end } else { start..end };
        let word = text.get(inner.clone()).unwrap_or_default();
        if secret_next && !word.starts_with(b"-") {
            found.push(inner);
        }
        let is_option = word.starts_with(b"-") && !word.contains(&b'=');
        secret_next = is_option && (matches!(word, b"-u" | b"--user") || hides(word, b"x"));
        at = end + 1;
    }
    found
}

/// Beginnings of credentials that services hand out.
const PREFIXES: &[&str] = &[
    "AIza",
    "AKIA",
    "ASIA",
    "SG.",
    "afft_",
    "eyJ",
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

/// What has the form of a credential: tokens of well-known services, what follows `Bearer` and
/// `Basic`, private keys in PEM, passwords in URLs.
pub(super) fn forms(text: &[u8]) -> Spans {
    let mut found = words(text, true);
    found.extend(private_keys(text));
    found.extend(passwords(text));
    found
}

/// Words that begin like tokens of well-known services and, if asked for, those behind the name of a
/// scheme.
pub(super) fn words(text: &[u8], schemes: bool) -> Spans {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"_-.=+/~".contains(&b);
    let mut found = Vec::new();
    let mut at = 0;
    let mut scheme_before = false;
    while at < text.len() {
        let start = until(text, at, is_token);
        let end = until(text, start, |b| !is_token(b));
        let word = text.get(start..end).unwrap_or_default();
        let known = PREFIXES.iter().any(|prefix| word.starts_with(prefix.as_bytes()));
        let behind_scheme = schemes && scheme_before && word.len() >= 8;
        if (known && word.len() >= SHORTEST_TOKEN) || behind_scheme {
            found.push(start..end);
        } else {
            // Behind a `/` or a `=` a token may begin as well.
            let inner =
                PREFIXES.iter().flat_map(|prefix| memmem::find_iter(word, prefix.as_bytes()));
            let inner = inner.filter(|&at| {
                let border = at.checked_sub(1).and_then(|at| byte(word, at));
                border.is_some_and(|b| b"/=.+".contains(&b)) && word.len() - at >= SHORTEST_TOKEN
            });
            found.extend(inner.map(|at| start + at..end));
        }
        let scheme = [&b"bearer"[..], b"basic", b"token"];
        let last = word.rsplit(|&b| b == b'=').next().unwrap_or_default();
        scheme_before =
            scheme.iter().any(|s| last.eq_ignore_ascii_case(s)) && byte(text, end) == Some(b' ');
        at = end.max(start + 1);
    }
    found
}

/// Passwords in URLs.
pub(super) fn passwords(text: &[u8]) -> Spans {
    let found = memmem::find_iter(text, b"://").filter_map(|at| {
        let start = at + 3;
        let end = until(text, start, |b| {
            matches!(b, b'/' | b'?' | b'#' | b'"' | b'\'') || b.is_ascii_whitespace()
        });
        let authority = text.get(start..end)?;
        let host = authority.iter().rposition(|&b| b == b'@')?;
        let colon = authority.iter().position(|&b| b == b':').filter(|&colon| colon < host)?;
        Some(start + colon + 1..start + host)
    });
    found.collect()
}

/// Private keys in PEM.
pub(super) fn private_keys(text: &[u8]) -> Spans {
    let mut found: Spans = Vec::new();
    for at in memmem::find_iter(text, b"-----BEGIN ") {
        let rest = text.get(at..).unwrap_or_default();
        let line = rest.get(..64.min(rest.len())).unwrap_or_default();
        let known = found.last().is_some_and(|span| at < span.end);
        if !known && memmem::find(line, b"PRIVATE KEY").is_some() {
            let end = memmem::find(rest, b"-----END ").map_or(text.len(), |end| at + end);
            found.push(at..end);
        }
    }
    found
}
