//! The idempotency key of a request, wherever the service takes it (contract K-1 to K-4): found,
//! added, and left out.
//!
//! Pure: it looks at a request and answers positions in its query or its content. What a service
//! could read in another way is not read at all: a key that is there twice, content that is
//! compressed, JSON that gives a name twice.

mod json;
mod pairs;

use crate::field::is_same_field;
use crate::{Body, Details};
use journal::contract::{KeyPlace, RemoteContract};
use std::ops::Range;
use std::time::Duration;

/// Keys in queries and content are no longer than this, in bytes.
const LONGEST: usize = 1024;

/// Fields that carry a digest of the content: content that is changed under them is damaged.
const DIGESTS: &[&str] = &["content-digest", "content-md5", "digest", "repr-digest"];

/// The name by which the query protocols of AWS say what is to be done.
const ACTION: &str = "Action";

/// The declared idempotency contract of a remote endpoint (contract K-1, K-4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRule {
    /// Where the key stands.
    pub place: KeyPlace,
    /// The operations that take it, by the parameter or form field `Action`; empty: every call.
    pub actions: Vec<String>,
    /// The remote scope of the key.
    pub scope: String,
    /// How long the remote keeps the first result.
    pub retention: Duration,
    /// Whether the remote's promise was verified.
    pub contract: RemoteContract,
    /// Whether a request without a key gets one of the broker's (contract K-2).
    pub generate: bool,
}

/// A key, or the place of one, that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("The idempotency key in {field} can't be read or added: {why}")]
pub struct Unreadable {
    /// The path of the field.
    pub field: String,
    /// In words that follow a colon.
    pub why: &'static str,
}

/// The place of a key in one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The key that is there. An empty one is none.
    pub key: Option<String>,
    spot: Spot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Spot {
    /// A header field, which is set and left out by its name.
    Header,
    /// In the query or the content.
    Text(Splice),
    /// Nothing is there that could hold one.
    Nowhere(&'static str),
}

/// Where a text changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Splice {
    /// What a key of ours takes the place of.
    at: Range<usize>,
    /// What stands around the key then.
    around: (String, &'static str),
    /// What goes where the key is left out.
    cut: Range<usize>,
}

impl IdempotencyRule {
    /// Whether content has to be read to find the key.
    #[must_use]
    pub fn looks_at_content(&self) -> bool {
        self.place.is_in_content() || !self.actions.is_empty()
    }

    /// The place of the key in a request. `None`: the contract is not about this operation.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn find(&self, request: &Details<'_>) -> Result<Option<Slot>, Unreadable> {
        let covers = self.covers(request);
        if !covers.map_err(|why| Unreadable { field: self.place.field(), why })? {
            return Ok(None);
        }
        find(&self.place, request).map(Some)
    }

    fn covers(&self, request: &Details<'_>) -> Result<bool, &'static str> {
        if self.actions.is_empty() {
            return Ok(true);
        }
        let content = form(request)?.unwrap_or_default();
        let mut actions = Vec::new();
        for text in [request.query.unwrap_or_default().as_bytes(), content] {
            actions.extend(pairs::values(text, ACTION).ok_or(pairs::ESCAPE)?);
        }
        match actions.as_slice() {
            [] => Ok(false),
            [action] => Ok(self.actions.iter().any(|known| known.as_bytes() == action)),
            [_, _, ..] => Err("its operation is named twice"),
        }
    }
}

/// Whether a query names an `Action`, or can't be read.
pub(crate) fn names_an_action(query: &str) -> bool {
    pairs::values(query.as_bytes(), ACTION).is_none_or(|actions| !actions.is_empty())
}

/// The place of a key in a request.
///
/// # Errors
/// [`Unreadable`].
pub fn find(place: &KeyPlace, request: &Details<'_>) -> Result<Slot, Unreadable> {
    let found = match place {
        KeyPlace::Header(name) => in_header(name, request),
        KeyPlace::Query(name) => pairs::find(request.query.unwrap_or_default().as_bytes(), name),
        KeyPlace::Form(name) => form(request).and_then(|content| match content {
            Some(content) => pairs::find(content, name),
            None => Ok(Slot::nowhere("there is no content of the type of a form")),
        }),
        KeyPlace::Json(pointer) => json::find(request, pointer),
    };
    let unreadable = |why| Unreadable { field: place.field(), why };
    let slot = found.map_err(unreadable)?;
    let is_long = |key: &String| key.len() > LONGEST || key.chars().any(char::is_control);
    if !matches!(place, KeyPlace::Header(_)) && slot.key.as_ref().is_some_and(is_long) {
        return Err(unreadable("it is longer than 1,024 bytes or holds control characters"));
    }
    Ok(slot)
}

impl Slot {
    fn nowhere(why: &'static str) -> Self {
        Self { key: None, spot: Spot::Nowhere(why) }
    }

    /// Whether a key of ours can be added.
    ///
    /// # Errors
    /// [`Unreadable`], with the reason.
    pub fn check_open(&self, place: &KeyPlace, request: &Details<'_>) -> Result<(), Unreadable> {
        let digested = || DIGESTS.iter().any(|name| named(request, name).next().is_some());
        let why = match &self.spot {
            Spot::Header => return Ok(()),
            Spot::Text(_) if place.is_in_content() && digested() => {
                "a header field carries a digest of the content"
            }
            Spot::Text(_) => return Ok(()),
            Spot::Nowhere(why) => why,
        };
        Err(Unreadable { field: place.field(), why })
    }

    /// The query or content with a key of ours, which needs no escape. `None`: it is not in there.
    #[must_use]
    pub fn with(&self, text: &[u8], key: &str) -> Option<Vec<u8>> {
        let Spot::Text(Splice { at, around: (before, after), .. }) = &self.spot else {
            return None;
        };
        let (head, tail) = (text.get(..at.start)?, text.get(at.end..)?);
        Some([head, before.as_bytes(), key.as_bytes(), after.as_bytes(), tail].concat())
    }

    /// The query or content without the key. `None`: it is not in there.
    #[must_use]
    pub fn without(&self, text: &[u8]) -> Option<Vec<u8>> {
        let Spot::Text(Splice { cut, .. }) = &self.spot else { return None };
        Some([text.get(..cut.start)?, text.get(cut.end..)?].concat())
    }
}

/// The values of a header field.
fn named<'a>(request: &Details<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let is = move |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
    request.headers.iter().filter(is).map(|(_, value)| value.trim_ascii())
}

fn in_header(name: &str, request: &Details<'_>) -> Result<Slot, &'static str> {
    let alike = |field: &&[u8]| {
        is_same_field(field, name.as_bytes()) && !field.eq_ignore_ascii_case(name.as_bytes())
    };
    if request.headers.iter().any(|(field, _)| alike(field)) {
        return Err("a field that some servers take for it is there");
    }
    let mut values = named(request, name).filter(|value| !value.is_empty());
    let key = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => {
            Some(std::str::from_utf8(value).map_err(|_| "it is not UTF-8")?.to_owned())
        }
        (Some(_), Some(_)) => return Err("it is there twice"),
    };
    Ok(Slot { key, spot: Spot::Header })
}

/// Content of the type of a form.
fn form<'a>(request: &Details<'a>) -> Result<Option<&'a [u8]>, &'static str> {
    let bytes = match request.body {
        Body::Absent => return Ok(None),
        Body::Unreadable(why) => return Err(why),
        Body::Whole(bytes) => bytes,
    };
    let mut types = named(request, "content-type");
    let declared = types.next().unwrap_or_default();
    let media = declared.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if !media.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") || types.next().is_some() {
        return Ok(None);
    }
    if named(request, "content-encoding").any(|value| !value.eq_ignore_ascii_case(b"identity")) {
        return Err("the content is compressed");
    }
    Ok(Some(bytes))
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
