//! Keys in members of JSON content.
//!
//! The content is checked by the reader of conditions first, so what is walked through here is JSON
//! without a name twice; only positions are looked for.

use super::{Slot, Splice, Spot};
use crate::Details;
use crate::field::is_same_member;
use crate::json::{self, Content, UNDECLARED};
use serde_json::Value;
use std::ops::Range;

/// One member of an object.
struct Member {
    name: Range<usize>,
    value: Range<usize>,
    /// Where the next member begins, if there is one.
    next: Option<usize>,
}

/// The place of the key that a pointer names.
pub(super) fn find(request: &Details<'_>, pointer: &str) -> Result<Slot, &'static str> {
    let content = Content::default();
    let text = match (content.of(request), json::content(request)) {
        (Ok(Some(_)), Some(text)) => text,
        (Ok(_), _) => return Ok(Slot::nowhere("there is no content")),
        (Err(why), _) if *why == UNDECLARED => return Ok(Slot::nowhere(why)),
        (Err(why), _) => return Err(why),
    };
    let mut segments: Vec<String> = pointer
        .split('/')
        .skip(1)
        .map(|segment| segment.replace("~1", "/").replace("~0", "~"))
        .collect();
    let name = segments.pop().unwrap_or_default();
    let mut at = space(text, 0);
    for segment in segments {
        let parent = members(text, at)
            .and_then(|all| all.into_iter().find(|member| is_named(text, member, &segment)));
        match parent {
            Some(member) => at = member.value.start,
            None => return Ok(Slot::nowhere("the object that it belongs in is not there")),
        }
    }
    let Some(all) = members(text, at) else {
        return Ok(Slot::nowhere("what it belongs in is no object"));
    };
    let is_twin = |member: &Member| {
        !is_named(text, member, &name)
            && named(text, member).is_some_and(|known| is_same_member(&known, &name))
    };
    if all.iter().any(is_twin) {
        return Err("it is there in another spelling, which some services take for it");
    }
    let quoted = |text: &str| Value::from(text).to_string();
    let Some(index) = all.iter().position(|member| is_named(text, member, &name)) else {
        let after = if all.is_empty() { "\"" } else { "\"," };
        let splice = Splice {
            at: at + 1..at + 1,
            around: (format!("{}:\"", quoted(&name)), after),
            cut: at + 1..at + 1,
        };
        return Ok(Slot { key: None, spot: Spot::Text(splice) });
    };
    let before = index.checked_sub(1).and_then(|before| all.get(before));
    let Some(Member { name, value, next }) = all.get(index) else {
        return Err("it is not JSON");
    };
    let read = serde_json::from_slice(text.get(value.clone()).unwrap_or_default());
    let key = match read.map_err(|_| "it is not JSON")? {
        Value::String(key) => Some(key).filter(|key| !key.is_empty()),
        Value::Null => None,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err("it is no text");
        }
    };
    let cut = match (next, before) {
        (Some(next), _) => name.start..*next,
        (None, Some(before)) => before.value.end..value.end,
        (None, None) => name.start..value.end,
    };
    let splice = Splice { at: value.clone(), around: ("\"".to_owned(), "\""), cut };
    Ok(Slot { key, spot: Spot::Text(splice) })
}

fn named(text: &[u8], member: &Member) -> Option<String> {
    serde_json::from_slice(text.get(member.name.clone()).unwrap_or_default()).ok()
}

fn is_named(text: &[u8], member: &Member, name: &str) -> bool {
    named(text, member).is_some_and(|known| known == name)
}

/// The members of the object that begins there; none if no object does.
fn members(text: &[u8], at: usize) -> Option<Vec<Member>> {
    if text.get(at) != Some(&b'{') {
        return None;
    }
    let mut all: Vec<Member> = Vec::new();
    let mut at = space(text, at + 1);
    while text.get(at) == Some(&b'"') {
        if let Some(last) = all.last_mut() {
            last.next = Some(at);
        }
        let name = at..end(text, at)?;
        let colon = space(text, name.end);
        let from = space(text, colon + 1);
        let value = from..end(text, from)?;
        at = space(text, value.end);
        all.push(Member { name, value, next: None });
        if text.get(at) == Some(&b',') {
            at = space(text, at + 1);
        }
    }
    Some(all)
}

/// The next place that is no white space.
fn space(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| b" \t\r\n".contains(byte)).count()
}

/// The end of the value that begins there.
fn end(text: &[u8], from: usize) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.iter().enumerate().skip(from) {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            if !in_text && depth == 0 {
                return Some(at + 1);
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            // The end of what holds a number or a word.
            b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    (depth == 0 && !in_text).then_some(text.len())
}
