//! Placeholders: the agent sends `affiant_ph_...` where the secret belongs, and never sees it.
//!
//! A placeholder that stays behind does not leave: the request is refused.

use super::{Content, Edits, View, encode, split};
use crate::Secret;
use crate::credential::Error;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// What every placeholder begins with.
pub const PREFIX: &str = "affiant_ph_";

/// Where a placeholder may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// In values of header fields, also inside of `Basic` credentials.
    pub headers: bool,
    /// In the path.
    pub path: bool,
    /// In the query.
    pub query: bool,
    /// In the content, where it is not compressed and short enough to be read ahead.
    pub content: bool,
}

/// A placeholder of one credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// The whole text, with the prefix.
    pub text: String,
    /// Where it may stand.
    pub places: Places,
}

/// How a secret is written where it is put.
#[derive(Clone, Copy)]
enum Written {
    Plain,
    Percent,
    Json,
}

/// Whether a placeholder stands in a text: nothing that holds one is to leave.
#[must_use]
pub fn is_stray(text: &[u8]) -> bool {
    let holds = |text: &[u8]| memchr::memmem::find(text, PREFIX.as_bytes()).is_some();
    holds(text) || memchr::memmem::find(text, b"\\u00").is_some() && holds(&unescaped(text))
}

/// With the escapes of ASCII that JSON has for it (RFC 8259 section 7) undone.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = rest.strip_prefix(b"\\u00").and_then(|digits| digits.first_chunk::<2>());
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() { rest.get(6..).unwrap_or_default() } else { after };
    }
    out
}

/// Whether a byte can go on a placeholder, so that a shorter one is not found in a longer.
fn goes_on(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)
}

impl Placeholder {
    /// Puts the secret where the placeholder stands.
    pub(super) fn edits(&self, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
        let mut edits = Edits { shown: vec![secret.clone()], ..Edits::default() };
        self.in_target(secret, request, &mut edits)?;
        self.in_headers(secret, request, &mut edits)?;
        self.in_content(secret, request, &mut edits)?;
        Ok(edits)
    }

    /// The text with the secret in it; none where the placeholder does not stand.
    fn put(&self, text: &[u8], secret: &Secret, how: Written) -> Result<Option<Vec<u8>>, Error> {
        let wanted = self.text.as_bytes();
        let mut written: Option<Zeroizing<Vec<u8>>> = None;
        let mut out = Zeroizing::new(Vec::new());
        let (mut rest, mut found) = (text, false);
        while let Some(at) = memchr::memmem::find(rest, wanted) {
            let (before, after) = rest.split_at_checked(at + wanted.len()).unwrap_or((rest, &[]));
            if after.first().is_some_and(|&c| goes_on(c)) {
                out.extend_from_slice(before);
            } else {
                let value = match &written {
                    Some(value) => value,
                    None => written.insert(how.write(secret)?),
                };
                if !found {
                    // Sized at once for what is likely; growing would leave copies behind.
                    let mut sized = Vec::with_capacity(text.len() + 8 * value.len());
                    sized.extend_from_slice(&out);
                    out = Zeroizing::new(sized);
                    found = true;
                }
                out.extend_from_slice(before.get(..at).unwrap_or_default());
                out.extend_from_slice(value);
            }
            rest = after;
        }
        if !found {
            return Ok(None);
        }
        out.extend_from_slice(rest);
        Ok(Some(std::mem::take(&mut *out)))
    }

    fn in_target(
        &self,
        secret: &Secret,
        request: &View<'_>,
        edits: &mut Edits,
    ) -> Result<(), Error> {
        let (path, query) = split(request.target);
        let put = |allowed: bool, part: &str| match allowed {
            true => self.put(part.as_bytes(), secret, Written::Percent),
            false => Ok(None),
        };
        let new_path = put(self.places.path, path)?;
        let new_query = query.map(|q| put(self.places.query, q)).transpose()?.flatten();
        let changed = new_path.is_some() || new_query.is_some();
        let mut target = Zeroizing::new(new_path.unwrap_or_else(|| path.as_bytes().to_vec()));
        if let Some(query) = query {
            let query = Zeroizing::new(new_query.unwrap_or_else(|| query.as_bytes().to_vec()));
            target.reserve_exact(query.len() + 1);
            target.push(b'?');
            target.extend_from_slice(&query);
        }
        if is_stray(&target) || is_stray(&encode::decoded(&target)) {
            return Err(Error::Stray);
        }
        if changed {
            edits.shown.push(Written::Percent.shown(secret)?);
            edits.target = Some(Secret::new(std::mem::take(&mut *target)));
        }
        Ok(())
    }

    fn in_headers(
        &self,
        secret: &Secret,
        request: &View<'_>,
        edits: &mut Edits,
    ) -> Result<(), Error> {
        for (index, (name, value)) in request.headers.iter().enumerate() {
            let basic = value.get(..6).filter(|s| s.eq_ignore_ascii_case(b"basic "));
            let pair = basic
                .and_then(|_| STANDARD.decode(value.get(6..)?.trim_ascii()).ok())
                .map(Zeroizing::new);
            let (text, scheme) = match &pair {
                Some(pair) => (pair.as_slice(), true),
                None => (*value, false),
            };
            let new = match self.places.headers {
                true => self.put(text, secret, Written::Plain)?,
                false => None,
            };
            if is_stray(new.as_deref().unwrap_or(text)) || is_stray(name) {
                return Err(Error::Stray);
            }
            let Some(new) = new.map(Zeroizing::new) else { continue };
            let new = if scheme {
                let encoded = Zeroizing::new(STANDARD.encode(&*new));
                let mut field = Vec::with_capacity(6 + encoded.len());
                field.extend_from_slice(b"Basic ");
                field.extend_from_slice(encoded.as_bytes());
                edits.shown.push(Secret::from(encoded.as_str()));
                field
            } else {
                new.to_vec()
            };
            edits.values.push((index, super::header_value(new)?));
        }
        Ok(())
    }

    fn in_content(
        &self,
        secret: &Secret,
        request: &View<'_>,
        edits: &mut Edits,
    ) -> Result<(), Error> {
        let Content::Whole(content) = request.content else {
            return match self.places.content {
                true => Err(Error::Unsupported(
                    "placeholders in content that is too long to be read ahead; leave \"body\" out \
                     of `in`, or send less",
                )),
                false => Ok(()),
            };
        };
        let header = |name: &str| {
            let named = |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
            request.headers.iter().find(named).map(|(_, value)| value.to_ascii_lowercase())
        };
        if !self.places.content {
            return if is_stray(content) { Err(Error::Stray) } else { Ok(()) };
        }
        if header("content-encoding").is_some_and(|coding| coding != b"identity") {
            return Err(Error::Unsupported("placeholders in compressed content"));
        }
        let kind = header("content-type").unwrap_or_default();
        let has = |part: &[u8]| memchr::memmem::find(&kind, part).is_some();
        let how = if has(b"json") {
            Written::Json
        } else if has(b"x-www-form-urlencoded") {
            Written::Percent
        } else {
            Written::Plain
        };
        let new = self.put(content, secret, how)?;
        if is_stray(new.as_deref().unwrap_or(content)) {
            return Err(Error::Stray);
        }
        if let Some(new) = new {
            edits.shown.push(how.shown(secret)?);
            edits.content = Some(Secret::new(new));
        }
        Ok(())
    }
}

impl Written {
    /// The secret as it goes on, which is how an origin may send it back (contract I-4).
    fn shown(self, secret: &Secret) -> Result<Secret, Error> {
        let mut written = self.write(secret)?;
        Ok(Secret::new(std::mem::take(&mut *written)))
    }

    fn write(self, secret: &Secret) -> Result<Zeroizing<Vec<u8>>, Error> {
        match self {
            Self::Plain => Ok(Zeroizing::new(secret.expose().to_vec())),
            Self::Percent => {
                let mut out = Zeroizing::new(Vec::with_capacity(3 * secret.len()));
                encode::push(&mut out, secret.expose());
                Ok(out)
            }
            Self::Json => {
                let text = secret.expose_text().ok_or(Error::Unreadable("it is not UTF-8 text"))?;
                let quoted = serde_json::to_vec(text).map(Zeroizing::new);
                let quoted = quoted.map_err(|_| Error::Unreadable("it can't stand in JSON"))?;
                let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
                Ok(Zeroizing::new(inner.to_vec()))
            }
        }
    }
}
