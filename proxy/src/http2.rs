//! HTTP/2 towards callers. Each stream is a transport that the rest of the crate writes HTTP/1.1 to
//! and reads content from, so that one engine serves both; what goes on the wire are frames.

pub(crate) mod caller;
pub(crate) mod frames;
pub(crate) mod progress;
pub(crate) mod raw;
pub(crate) mod stream;

use crate::head::{self, Fields};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// Bytes of fields that the library reads, so that what is over the limit of a head can be told from what
/// is malformed. What it leaves out beyond that was a literal, and so a long block on the wire: Huffman
/// coding makes five bits of a byte at least (RFC 7541 appendix B).
pub(crate) const READ_BYTES: usize = 3 * head::MAX_BYTES;

/// Fields of HTTP/1.1 that have no place in HTTP/2 (RFC 9113 section 8.2.2).
const CONNECTION_SPECIFIC: &[&str] =
    &["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A field section as frames carry it: names in lower case.
pub(crate) fn to_map(fields: &Fields) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in fields.iter() {
        let is = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
        if !CONNECTION_SPECIFIC.iter().any(is) {
            let name = HeaderName::from_bytes(name).ok()?;
            map.append(name, HeaderValue::from_bytes(value).ok()?);
        }
    }
    Some(map)
}

/// A field section of frames as the rest of the crate reads it.
pub(crate) fn from_map(map: &HeaderMap) -> Fields {
    map.iter().map(|(name, value)| (name.as_str().into(), value.as_bytes().to_vec())).collect()
}
