//! What content is made of: JSON, a form, several parts, XML, or else a text.
//!
//! What is hidden never goes past the end of one value: of what the content is, and of what its
//! receiver may as well take it for. JSON in which a reader of forms would find several parameters
//! is therefore JSON only if the request says so.

use super::leaf::{Leaf, Spans};
use super::{form, json, parts, text, xml};

/// Values in values that are looked into.
const DEEPEST: usize = 4;

/// What `Content-Type` says (RFC 9110 section 8.3).
pub(super) enum Declared {
    Form,
    /// With the boundary, if it is clear.
    Parts(Option<Vec<u8>>),
    /// JSON or XML.
    Structured,
    /// Nothing that helps.
    Unknown,
}

impl Declared {
    pub(super) fn of(content_type: Option<&[u8]>) -> Self {
        let value = String::from_utf8_lossy(content_type.unwrap_or_default());
        let (essence, parameters) = value.split_once(';').unwrap_or((&value, ""));
        let essence = essence.to_ascii_lowercase();
        if essence.contains("form-urlencoded") {
            Self::Form
        } else if essence.contains("multipart/") {
            Self::Parts(boundary(parameters))
        } else if essence.contains(',') {
            Self::Unknown
        } else if essence.contains("json") || essence.contains("xml") {
            Self::Structured
        } else {
            Self::Unknown
        }
    }
}

/// The one boundary (RFC 2046 section 5.1.1).
fn boundary(parameters: &str) -> Option<Vec<u8>> {
    let mut all = parameters.split(';').filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        let is_name = name.trim().eq_ignore_ascii_case("boundary");
        is_name.then(|| value.as_bytes().to_vec())
    });
    let first = all.next().filter(|first| !first.is_empty() && !first.contains(&b'"'));
    first.filter(|_| all.next().is_none())
}

/// Where credentials stand in content; `depth` values around it are looked into.
pub(super) fn find(content: &Leaf, declared: &Declared, depth: usize) -> Spans {
    if depth >= DEEPEST {
        return text::find(content, text::Dollar::Plain);
    }
    let bytes = content.bytes();
    let many = bytes.iter().any(|b| matches!(b, b'&' | b';'));
    let structure = || json::find(content, depth).or_else(|| xml::find(content, depth));
    let found = match declared {
        Declared::Structured => structure(),
        Declared::Form if many => Some(form::find(content, 0, depth)),
        Declared::Form => structure().or_else(|| Some(form::find(content, 0, depth))),
        Declared::Parts(boundary) => parts::find(content, boundary.as_deref(), depth),
        Declared::Unknown if many => None,
        Declared::Unknown => structure(),
    };
    found.unwrap_or_else(|| text::find(content, text::Dollar::Plain))
}
