//! A field section in the order and spelling of the wire.

use super::{Fault, MAX_BYTES, MAX_FIELDS};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// Fields that no nomination takes away: what the meaning of the message rests on, and what this hop
/// itself reads and does not pass on.
const STAPLES: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Whether the name is in our own name space.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name.len() > 8 && name.get(..8).is_some_and(|prefix| prefix.eq_ignore_ascii_case(b"affiant-"))
}

fn is_staple(name: &[u8]) -> bool {
    is_ours(name) || STAPLES.iter().any(|staple| name.eq_ignore_ascii_case(staple.as_bytes()))
}

/// A field section in the order and spelling of the wire.
#[derive(Clone, Default)]
pub(crate) struct Fields {
    buffer: Bytes,
    spans: Vec<(Range<usize>, Range<usize>)>,
}

/// Values can be secrets, so only names are shown.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name.escape_ascii())).finish()
    }
}

impl Fields {
    /// Of a buffer, and where name and value of each field lie in it.
    pub(super) fn of(buffer: &Bytes, spans: Vec<(Range<usize>, Range<usize>)>) -> Self {
        Self { buffer: buffer.clone(), spans }
    }

    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().filter_map(|(name, value)| {
            Some((self.buffer.get(name.clone())?, self.buffer.get(value.clone())?))
        })
    }

    /// What is wrong with a section that came in frames, behind so many bytes of other kinds, and that the
    /// library lets pass: its size, and blanks around values (RFC 9113 section 8.2.1).
    pub(crate) fn fault_in_frames(&self, before: usize) -> Option<Fault> {
        let lines = self.iter().map(|(name, value)| name.len() + value.len() + 4);
        let is_padded = |(_, value): (&[u8], &[u8])| value.trim_ascii().len() < value.len();
        if self.spans.len() > MAX_FIELDS {
            Some(Fault::TooManyFields)
        } else if before + lines.sum::<usize>() > MAX_BYTES {
            Some(Fault::TooLong)
        } else {
            self.iter().any(is_padded).then_some(Fault::FieldValue)
        }
    }

    /// Takes fields away.
    pub(crate) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let buffer = self.buffer.clone();
        self.spans.retain(|(name, _)| buffer.get(name.clone()).is_some_and(&keep));
    }

    /// Takes away what `Connection` nominates (RFC 9110 section 7.6.1). It does not go on, so nothing
    /// may be decided, approved or recorded by it.
    pub(super) fn drop_nominated(&mut self) {
        let nominated: Vec<Vec<u8>> = self
            .members("connection")
            .filter(|name| !is_staple(name))
            .map(<[u8]>::to_vec)
            .collect();
        if !nominated.is_empty() {
            self.retain(|name| !nominated.iter().any(|gone| gone.eq_ignore_ascii_case(name)));
        }
    }

    /// The values of every field of the name.
    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter_map(move |(n, v)| n.eq_ignore_ascii_case(name.as_bytes()).then_some(v))
    }

    /// The first value of the name, if it is UTF-8.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Whether the name is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The comma-separated members of every field of the name, trimmed, empty ones left out.
    pub(crate) fn members<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name)
            .flat_map(|value| value.split(|c| *c == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|member| !member.is_empty())
    }

    /// Whether a member of the list-valued field equals the token, without regard to case.
    pub(crate) fn has_member(&self, name: &str, token: &str) -> bool {
        self.members(name).any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// From names and values that are well-formed already.
impl FromIterator<(Vec<u8>, Vec<u8>)> for Fields {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(lines: I) -> Self {
        let mut buffer = Vec::new();
        let mut put = |bytes: &[u8]| {
            let from = buffer.len();
            buffer.extend_from_slice(bytes);
            from..buffer.len()
        };
        let spans = lines.into_iter().map(|(name, value)| (put(&name), put(&value))).collect();
        Self { buffer: buffer.into(), spans }
    }
}
