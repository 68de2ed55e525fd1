//! Recipes of injection beyond one header: what of a request is changed to carry a credential.
//!
//! A recipe is pure: it looks at the request as it would leave, at the secret, and at a time and a
//! nonce that it is given, and answers the changes. It sends nothing and keeps nothing.

mod canonical;
mod chunks;
pub(crate) mod encode;
mod hmac;
mod jwt;
mod pair;
mod placeholder;
mod sigv4;
mod template;
mod time;

use crate::credential::Error;
use crate::{ClientCertificate, Inject, Scheme, Secret, is_same_field};

pub use chunks::ChunkSigner;
pub use hmac::{Digest, Encoding, Hmac};
pub use jwt::{Algorithm, Jwt};
pub use placeholder::{PREFIX, Placeholder, Places, is_stray};
pub use sigv4::Sigv4;
pub use template::Template;

/// A mode of injection that looks at more of the request than one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipe {
    /// A parameter of the query.
    Query {
        /// Its name.
        name: String,
    },
    /// A cookie.
    Cookie {
        /// Its name.
        name: String,
    },
    /// A harmless text that the agent sends in the secret's place.
    Placeholder(Placeholder),
    /// AWS Signature Version 4.
    Sigv4(Sigv4),
    /// A message authentication code over a template.
    Hmac(Hmac),
    /// A token that is signed for each request.
    Jwt(Jwt),
}

/// A request as it would leave, before anything is injected.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The method.
    pub method: &'a str,
    /// The scheme.
    pub scheme: Scheme,
    /// The value of `Host`, or `:authority`.
    pub authority: &'a str,
    /// Path and query as they stand on the wire.
    pub target: &'a str,
    /// The header fields in their order.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The content.
    pub content: Content<'a>,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Bytes that are used for one request only.
    pub nonce: [u8; 16],
}

/// The content of a request, as far as it is known before the request leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// It is longer than what is read ahead, or still on its way.
    Streamed,
}

/// The changes that inject a credential. They are to be made all, or the request is not to leave.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    /// Path and query.
    pub target: Option<Secret>,
    /// Lower-case names of header fields that go.
    pub remove: Vec<&'static str>,
    /// Header fields by lower-case name: each takes the place of all fields of its name.
    pub set: Vec<(String, Secret)>,
    /// Values of single header fields, by their index in the view.
    pub values: Vec<(usize, Secret)>,
    /// The whole content; its length is to be declared anew.
    pub content: Option<Secret>,
    /// What changes content that is still on its way: all of it is to pass through this.
    pub chunks: Option<ChunkSigner>,
    /// What the remote learns and must not be seen in what it answers (contract I-4).
    pub shown: Vec<Secret>,
}

impl Edits {
    /// One header field.
    fn field(name: &str, value: Secret) -> Self {
        Self { shown: vec![value.clone()], set: vec![(name.to_owned(), value)], ..Self::default() }
    }
}

/// A header field: name and value.
pub type Field<'a> = (&'a [u8], &'a [u8]);

impl Edits {
    /// Whether the changes set a field of that name.
    #[must_use]
    pub fn sets(&self, name: &[u8]) -> bool {
        self.set.iter().any(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
    }

    /// Whether a service could take a field of that name for one that the changes set.
    fn rivals(&self, name: &[u8]) -> bool {
        self.set.iter().any(|(known, _)| is_same_field(name, known.as_bytes()))
    }

    /// The header fields after the changes: those of the view in their order, with our values in the
    /// place of the agent's, and those that the view has no place for. What a service could take for
    /// one of ours goes.
    #[must_use]
    pub fn fields<'a>(&'a self, headers: &[Field<'a>]) -> (Vec<Field<'a>>, Vec<Field<'a>>) {
        let mut open: Vec<_> = self.set.iter().map(Some).collect();
        let mut kept = Vec::with_capacity(headers.len() + self.set.len());
        for (index, &(name, value)) in headers.iter().enumerate() {
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            if self.sets(name) {
                let ours = open.iter_mut().find(|f| f.is_some_and(|(known, _)| is(known)));
                // The first of its name gives its place, the others go.
                if let Some((_, ours)) = ours.and_then(Option::take) {
                    kept.push((name, ours.expose()));
                }
            } else if !self.remove.iter().any(|known| is(known)) && !self.rivals(name) {
                let ours = self.values.iter().find(|(changed, _)| *changed == index);
                kept.push((name, ours.map_or(value, |(_, ours)| ours.expose())));
            }
        }
        let added = open.into_iter().flatten();
        (kept, added.map(|(name, value)| (name.as_bytes(), value.expose())).collect())
    }
}

/// Bytes for one request's nonce.
///
/// # Errors
/// [`Error::SourceFailed`] when the system gives no randomness.
pub fn nonce() -> Result<[u8; 16], Error> {
    let mut nonce = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut nonce)
        .map_err(|_| Error::SourceFailed("the system gives no randomness"))?;
    Ok(nonce)
}

impl Inject {
    /// What is changed in a request to inject the secret.
    ///
    /// # Errors
    /// [`Error`]; then the request is not to leave.
    pub fn edits(&self, secret: &Secret, request: &View<'_>) -> Result<Edits, Error> {
        if *self == Self::Mtls {
            // Nothing of it is in the request; the key itself never leaves.
            return ClientCertificate::of(secret).map(|_| Edits::default());
        }
        let Self::Recipe(recipe) = self else {
            let (name, value) = self.header(secret)?;
            let mut edits = Edits::field(&name, value);
            edits.shown.push(secret.clone());
            return Ok(edits);
        };
        if secret.is_empty() {
            return Err(Error::Unreadable("it is empty"));
        }
        match recipe.as_ref() {
            Recipe::Query { name } => pair::query(name, secret, request),
            Recipe::Cookie { name } => pair::cookie(name, secret, request),
            Recipe::Placeholder(recipe) => recipe.edits(secret, request),
            Recipe::Sigv4(recipe) => recipe.edits(secret, request),
            Recipe::Hmac(recipe) => recipe.edits(secret, request),
            Recipe::Jwt(recipe) => recipe.edits(secret, request),
        }
    }

    /// Whether the content is to be read before the request leaves, as far as that is possible.
    #[must_use]
    pub fn looks_at_content(&self) -> bool {
        let Self::Recipe(recipe) = self else { return false };
        match recipe.as_ref() {
            Recipe::Query { .. } | Recipe::Cookie { .. } | Recipe::Jwt(_) => false,
            Recipe::Placeholder(recipe) => recipe.places.content,
            Recipe::Sigv4(_) => true,
            Recipe::Hmac(recipe) => recipe.looks_at_content(),
        }
    }

    /// Lower-case names of the header fields that the mode sets itself.
    #[must_use]
    pub fn own_headers(&self) -> Vec<&str> {
        let Self::Recipe(recipe) = self else { return self.header_name().into_iter().collect() };
        match recipe.as_ref() {
            Recipe::Query { .. } | Recipe::Cookie { .. } | Recipe::Placeholder(_) => Vec::new(),
            Recipe::Sigv4(_) => vec!["authorization"],
            Recipe::Hmac(recipe) => recipe.headers.keys().map(String::as_str).collect(),
            Recipe::Jwt(recipe) => vec![&recipe.name],
        }
    }
}

impl Recipe {
    /// Whether it sets that parameter of the query.
    pub(crate) fn sets_parameter(&self, parameter: &str) -> bool {
        matches!(self, Self::Query { name } if name == parameter)
    }

    /// Its name in policy and records.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Query { .. } => "query",
            Self::Cookie { .. } => "cookie",
            Self::Placeholder(_) => "placeholder",
            Self::Sigv4(_) => "sigv4",
            Self::Hmac(_) => "hmac",
            Self::Jwt(_) => "jwt",
        }
    }
}

/// Refuses what can't stand in a header value (RFC 9110 section 5.5).
fn header_value(value: Vec<u8>) -> Result<Secret, Error> {
    let value = Secret::new(value);
    if value.expose().iter().any(|&c| (c < 0x20 && c != b'\t') || c == 0x7f) {
        return Err(Error::Unreadable("it holds a control character"));
    }
    Ok(value)
}

/// Splits a target into path and query.
fn split(target: &str) -> (&str, Option<&str>) {
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
