//! The secret as a parameter of the query, or as a cookie.

use super::{Edits, View, encode, split};
use crate::Secret;
use crate::credential::Error;

/// The parameter of that name, in place of those that the agent sent.
pub(super) fn query(name: &str, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
    let (path, query) = split(request.target);
    let value = secret.expose();
    let room = request.target.len() + 3 * (name.len() + value.len()) + 2;
    let mut target = Vec::with_capacity(room);
    target.extend_from_slice(path.as_bytes());
    let mut mark = b'?';
    let mut begin = |target: &mut Vec<u8>| {
        target.push(mark);
        mark = b'&';
    };
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let written = pair.split_once('=').map_or(pair, |(name, _)| name).replace('+', " ");
        if encode::decoded(written.as_bytes()) != name.as_bytes() {
            begin(&mut target);
            target.extend_from_slice(pair.as_bytes());
        }
    }
    begin(&mut target);
    encode::push(&mut target, name.as_bytes());
    target.push(b'=');
    let start = target.len();
    encode::push(&mut target, value);
    let shown = Secret::new(target.get(start..).unwrap_or_default().to_vec());
    Ok(Edits {
        target: Some(Secret::new(target)),
        shown: vec![shown, secret.clone()],
        ..Edits::default()
    })
}

/// The cookie of that name beside the agent's others, all in one field (RFC 6265 section 5.4).
pub(super) fn cookie(name: &str, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
    let value = secret.expose();
    // RFC 6265 section 4.1.1: what a cookie's value may hold.
    let allowed = |&c: &u8| c.is_ascii_graphic() && !b"\",;\\".contains(&c);
    if !value.iter().all(allowed) {
        return Err(Error::Unreadable("it holds a character that a cookie can't have"));
    }
    let sent = request.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(b"cookie"));
    let sent: Vec<&[u8]> = sent.map(|(_, value)| *value).collect();
    let room = sent.iter().map(|v| v.len() + 2).sum::<usize>() + name.len() + value.len() + 1;
    let mut field = Vec::with_capacity(room);
    for pair in sent.iter().flat_map(|v| v.split(|&c| c == b';')).map(<[u8]>::trim_ascii) {
        let written = pair.split(|&c| c == b'=').next().unwrap_or_default().trim_ascii();
        if !pair.is_empty() && written != name.as_bytes() {
            field.extend_from_slice(pair);
            field.extend_from_slice(b"; ");
        }
    }
    field.extend_from_slice(name.as_bytes());
    field.push(b'=');
    field.extend_from_slice(value);
    let set = vec![("cookie".to_owned(), super::header_value(field)?)];
    Ok(Edits { set, shown: vec![secret.clone()], ..Edits::default() })
}
