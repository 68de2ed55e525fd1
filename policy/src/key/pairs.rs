//! Keys in pairs of name and value: queries and forms.

use super::{Slot, Splice, Spot};
use crate::condition::decoded;
use crate::field::is_same_parameter;
use crate::recipe::encode;
use std::ops::Range;

/// Why pairs are not read.
pub(super) const ESCAPE: &str = "an escape can't be read";

/// One pair: the decoded name, where the value stands, and where all of it does.
struct Pair {
    name: Vec<u8>,
    value: Range<usize>,
    whole: Range<usize>,
}

/// The pairs of a text; none if the escapes of some name can't be read.
fn pairs(text: &[u8]) -> Option<Vec<Pair>> {
    let mut from = 0;
    let mut all = Vec::new();
    for pair in text.split(|byte| *byte == b'&') {
        let whole = from..from + pair.len();
        from = whole.end + 1;
        if pair.is_empty() {
            continue;
        }
        let name = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let value = (whole.start + name + 1).min(whole.end)..whole.end;
        all.push(Pair { name: decoded(pair.get(..name)?)?, value, whole });
    }
    Some(all)
}

/// The values of a name; none if something can't be read.
pub(super) fn values(text: &[u8], name: &str) -> Option<Vec<Vec<u8>>> {
    let named = pairs(text)?.into_iter().filter(|pair| pair.name == name.as_bytes());
    named.map(|pair| decoded(text.get(pair.value)?)).collect()
}

/// The place of a key.
pub(super) fn find(text: &[u8], name: &str) -> Result<Slot, &'static str> {
    let all = pairs(text).ok_or(ESCAPE)?;
    let is_twin = |pair: &Pair| {
        pair.name != name.as_bytes() && is_same_parameter(&pair.name, name.as_bytes())
    };
    if all.iter().any(is_twin) {
        return Err("it is there in another spelling, which some services take for it");
    }
    let mut named = all.into_iter().filter(|pair| pair.name == name.as_bytes());
    let mut before = Vec::new();
    encode::push(&mut before, name.as_bytes());
    before.push(b'=');
    let before = String::from_utf8(before).map_err(|_| ESCAPE)?;
    let (pair, second) = (named.next(), named.next());
    if second.is_some() {
        return Err("it is there twice");
    }
    let Some(Pair { value, whole, .. }) = pair else {
        let joined = if text.is_empty() || text.ends_with(b"&") { "" } else { "&" };
        let at = text.len()..text.len();
        let splice = Splice { cut: at.clone(), at, around: (format!("{joined}{before}"), "") };
        return Ok(Slot { key: None, spot: Spot::Text(splice) });
    };
    let key = decoded(text.get(value).unwrap_or_default()).ok_or(ESCAPE)?;
    let key = String::from_utf8(key).map_err(|_| "it is not UTF-8")?;
    let cut = match (text.get(whole.end), whole.start) {
        (Some(_), start) => start..whole.end + 1,
        (None, 0) => whole.clone(),
        (None, start) => start - 1..whole.end,
    };
    let splice = Splice { at: whole, around: (before, ""), cut };
    Ok(Slot { key: Some(key).filter(|key| !key.is_empty()), spot: Spot::Text(splice) })
}
