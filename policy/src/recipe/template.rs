//! Templates of what is signed and sent: text with names in braces.

use super::{Content, View, encode, split};
use crate::credential::Error;
use crate::recipe::time::Civil;
use zeroize::Zeroizing;

/// A checked template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(Name),
}

/// What a name in braces stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Method,
    Scheme,
    Host,
    Path,
    Query,
    Target,
    Body,
    BodySha256,
    Timestamp,
    TimestampMs,
    Time,
    Nonce,
    Signature,
}

/// The names by their words.
const NAMES: [(&str, Name); 13] = [
    ("method", Name::Method),
    ("scheme", Name::Scheme),
    ("host", Name::Host),
    ("path", Name::Path),
    ("query", Name::Query),
    ("target", Name::Target),
    ("body", Name::Body),
    ("body_sha256", Name::BodySha256),
    ("timestamp", Name::Timestamp),
    ("timestamp_ms", Name::TimestampMs),
    ("time", Name::Time),
    ("nonce", Name::Nonce),
    ("signature", Name::Signature),
];

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without its subject.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (word, tail) = after.split_once('}').ok_or("has a brace that is not closed")?;
            let name = NAMES.iter().find(|(known, _)| *known == word).map(|(_, name)| *name);
            let name = name.ok_or_else(|| {
                let known: Vec<_> = NAMES.iter().map(|(word, _)| *word).collect();
                format!("names {{{word}}}; known are {}", known.join(", "))
            })?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Name(name));
            rest = tail;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// Whether a name stands in it.
    fn has(&self, name: Name) -> bool {
        self.0.contains(&Part::Name(name))
    }

    /// Whether the signature stands in it.
    #[must_use]
    pub fn has_signature(&self) -> bool {
        self.has(Name::Signature)
    }

    /// Whether it needs the content.
    pub(super) fn looks_at_content(&self) -> bool {
        self.has(Name::Body) || self.has(Name::BodySha256)
    }

    /// The text for a request.
    pub(super) fn fill(
        &self,
        request: &View<'_>,
        signature: &str,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let (path, query) = split(request.target);
        let mut out = Zeroizing::new(Vec::new());
        for part in &self.0 {
            let name = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text.as_bytes());
                    continue;
                }
                Part::Name(name) => *name,
            };
            match name {
                Name::Method => out.extend_from_slice(request.method.as_bytes()),
                Name::Scheme => out.extend_from_slice(request.scheme.as_str().as_bytes()),
                Name::Host => out.extend_from_slice(request.authority.as_bytes()),
                Name::Path => out.extend_from_slice(path.as_bytes()),
                Name::Query => out.extend_from_slice(query.unwrap_or_default().as_bytes()),
                Name::Target => out.extend_from_slice(request.target.as_bytes()),
                Name::Body => out.extend_from_slice(whole(request)?),
                Name::BodySha256 => {
                    let digest = ring::digest::digest(&ring::digest::SHA256, whole(request)?);
                    out.extend_from_slice(encode::hex(digest.as_ref()).as_bytes());
                }
                Name::Timestamp => {
                    out.extend_from_slice((request.now_ms / 1000).to_string().as_bytes());
                }
                Name::TimestampMs => out.extend_from_slice(request.now_ms.to_string().as_bytes()),
                Name::Time => {
                    out.extend_from_slice(Civil::of(request.now_ms).extended().as_bytes());
                }
                Name::Nonce => out.extend_from_slice(encode::hex(&request.nonce).as_bytes()),
                Name::Signature => out.extend_from_slice(signature.as_bytes()),
            }
        }
        Ok(out)
    }
}

fn whole<'a>(request: &View<'a>) -> Result<&'a [u8], Error> {
    match request.content {
        Content::Whole(content) => Ok(content),
        Content::Streamed => {
            Err(Error::Unsupported("signing content that is too long to be read ahead"))
        }
    }
}
