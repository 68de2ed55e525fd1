//! The parts of `multipart/form-data` (RFC 7578).

use super::content::{self, Declared};
use super::leaf::{Leaf, Spans};
use super::name::{self, Kind};
use super::{text, tokens};
use memchr::memmem;
use std::ops::Range;

/// `None` if it has no parts. Where the boundary is not known, each line that could be one is.
pub(super) fn find(whole: &Leaf, boundary: Option<&[u8]>, depth: usize) -> Option<Spans> {
    let bytes = whole.bytes();
    let delimiter = [b"\n--", boundary.unwrap_or_default()].concat();
    let opened = bytes.starts_with(delimiter.get(1..)?).then_some(0);
    // The line end in front of a delimiter is a part of it.
    let later = memmem::find_iter(bytes, &delimiter).map(|at| at + 1);
    let starts: Vec<usize> = opened.into_iter().chain(later).collect();
    if boundary.is_none() && opened.is_none() {
        return None;
    }
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    // A key has lines that may look like delimiters.
    let mut found = whole.shown(tokens::private_keys(bytes));
    let before = whole.part(0..starts.first().copied().unwrap_or(0));
    found.extend(text::find(&before, text::Dollar::Plain));
    let mut any = false;
    for (&start, end) in starts.iter().zip(ends) {
        let Some((head, value)) = part(bytes, start, end) else {
            found.extend(text::find(&whole.part(start..end), text::Dollar::Plain));
            continue;
        };
        any = true;
        found.extend(tokens::find(&whole.part(start..value.start)));
        if is_named_like_credential(head) {
            found.push(whole.place(value));
        } else {
            let declared = Declared::of(field(head, "content-type"));
            found.extend(content::find(&whole.part(value), &declared, depth + 1));
        }
    }
    any.then_some(found)
}

/// Head and content of the part whose delimiter begins there.
fn part(text: &[u8], start: usize, end: usize) -> Option<(&[u8], Range<usize>)> {
    let whole = text.get(start..end)?;
    let head = memchr::memchr(b'\n', whole)? + 1;
    let rest = whole.get(head..)?;
    let blank = [&b"\r\n\r\n"[..], b"\n\n"];
    let found = blank.iter().filter_map(|blank| Some((memmem::find(rest, blank)?, blank.len())));
    let (length, blank) = found.min()?;
    let from = start + head + length + blank;
    let content = text.get(from..end)?;
    let last = end < text.len();
    let content = content.strip_suffix(b"\n").filter(|_| last).unwrap_or(content);
    let content = content.strip_suffix(b"\r").filter(|_| last).unwrap_or(content);
    Some((rest.get(..length)?, from..from + content.len()))
}

fn field<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|&b| b == b'\n').find_map(|line| {
        let (field, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        field.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
    })
}

/// Whether each name that the part gives itself says that it holds a credential.
fn is_named_like_credential(head: &[u8]) -> bool {
    let head = head.to_ascii_lowercase();
    let mut names = memmem::find_iter(&head, b"name").filter_map(|at| {
        let is_file = head.get(..at)?.ends_with(b"file");
        let rest = head.get(at + 4..)?.trim_ascii_start();
        let rest = rest.strip_prefix(b"*").unwrap_or(rest).trim_ascii_start();
        let value = rest.strip_prefix(b"=").filter(|_| !is_file)?;
        let end = value.iter().position(|b| matches!(b, b';' | b'\r' | b'\n'));
        value.get(..end.unwrap_or(value.len()))
    });
    let is_credential = |name: &[u8]| name::is_credential(name) == Kind::Yes;
    names.next().is_some_and(is_credential) && names.all(is_credential)
}
