//! The canonical form of a request, as AWS Signature Version 4 signs it.

use super::encode;

/// The path. S3 encodes each segment once; the other services resolve dots and encode what is on
/// the wire once more.
pub(super) fn path(path: &str, s3: bool) -> String {
    if s3 {
        let segments: Vec<_> =
            path.split('/').map(|s| encode::encoded(&encode::decoded(s.as_bytes()))).collect();
        return segments.join("/");
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').filter(|s| !s.is_empty() && *s != ".") {
        if segment == ".." {
            segments.pop();
        } else {
            segments.push(segment);
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(&encode::encoded(segment.as_bytes()));
    }
    let folder = ["/", "/.", "/.."].iter().any(|end| path.ends_with(end));
    if out.is_empty() || folder {
        out.push('/');
    }
    out
}

/// The query: parameters encoded anew and sorted by name and value.
pub(super) fn query(query: &str) -> String {
    let anew = |text: &str| encode::encoded(&encode::decoded(text.as_bytes()));
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (anew(name), anew(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// The header fields that are signed, by lower-case name and in order: their lines, and their names.
pub(super) fn headers<'a>(
    fields: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>,
) -> (Vec<u8>, String) {
    let (mut lines, mut names) = (Vec::new(), Vec::new());
    for (name, value) in fields {
        lines.extend_from_slice(name.as_bytes());
        lines.push(b':');
        let words = value.split(|&c| c == b' ' || c == b'\t').filter(|word| !word.is_empty());
        for (at, word) in words.enumerate() {
            if at > 0 {
                lines.push(b' ');
            }
            lines.extend_from_slice(word);
        }
        lines.push(b'\n');
        names.push(name.as_str());
    }
    (lines, names.join(";"))
}
