//! An action as the index looks at it, with what a server may read in it instead.

use super::denial::normal_host;
use crate::condition;
use crate::field::{is_same_field, is_same_parameter};
use crate::json::Content;
use crate::preset::Call;
use crate::{Denial, Details, HttpAction, Scheme, path};
use journal::contract::Code;

/// An action with its host and path in normal form.
pub(super) struct Target<'a> {
    pub(super) agent: &'a str,
    pub(super) scheme: Scheme,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) method: &'a str,
    pub(super) path: String,
    /// What a server may take the path for instead.
    pub(super) readings: Vec<String>,
    /// The same of one that takes the beginning for an authority: anything, whatever the path looks like.
    pub(super) behind_authority: Option<String>,
    /// What a server may take the method for instead.
    pub(super) methods: Vec<String>,
    pub(super) details: Details<'a>,
    pub(super) content: Content,
}

impl<'a> Target<'a> {
    /// Normalises an action.
    pub(super) fn of(action: &HttpAction<'a>, details: Details<'a>) -> Result<Self, Denial> {
        let HttpAction { agent, scheme, port, method, .. } = *action;
        let host = normal_host(action.host)?;
        let path = path::normalize(action.path).map_err(|error| Denial {
            code: Code::InvalidTarget,
            field: "target.path".to_owned(),
            message: format!("The path of the target can't be judged: {error}."),
            rule: super::EGRESS.to_owned(),
        })?;
        let (content, readings) = (Content::default(), path::readings(action.path));
        let behind_authority = path::behind_authority(action.path);
        let methods = methods(method, &details);
        Ok(Self {
            agent,
            scheme,
            host,
            port,
            method,
            path,
            readings,
            behind_authority,
            methods,
            details,
            content,
        })
    }

    /// As the lines of presets look at it.
    pub(super) fn call(&self) -> Call<'_> {
        let Self { method, host, path, details, .. } = self;
        Call { method, host, path, details }
    }
}

impl Target<'_> {
    /// What a server may take the method for instead.
    pub(super) fn other_methods(&self) -> impl Iterator<Item = &str> {
        self.methods.iter().map(String::as_str)
    }

    /// The method, and what a server may take it for instead.
    pub(super) fn every_method(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.method).chain(self.other_methods())
    }
}

/// Fields in which a client of a narrow way names the method that it means. Services that know them
/// (Google's and OData's, and those of Rails, Laravel, Symfony) go by them in a `POST`.
const OVERRIDES: &[&[u8]] = &[b"x-http-method-override", b"x-http-method", b"x-method-override"];

/// What a server may take a method for instead: many know no case (RFC 9110 section 9.1 does).
fn methods(method: &str, details: &Details<'_>) -> Vec<String> {
    let overrides = |name: &[u8]| OVERRIDES.iter().any(|known| is_same_field(name, known));
    let fields =
        details.headers.iter().filter(|(name, _)| overrides(name)).map(|(_, v)| v.to_vec());
    let pairs = details.query.unwrap_or_default().split(['&', ';']);
    // One by one: an escape that can't be read hides no other parameter.
    let parameters = pairs
        .filter(|pair| may_name_method(pair))
        .filter_map(|pair| condition::parameters(pair, &['&']))
        .flatten();
    let named = parameters.filter(|(name, _)| is_same_parameter(name.trim_ascii(), b"_method"));
    let mut methods: Vec<String> = fields
        .chain(named.map(|(_, value)| value))
        .map(|value| String::from_utf8_lossy(value.trim_ascii()).to_ascii_uppercase())
        .filter(|other| !other.is_empty())
        .collect();
    if method.bytes().any(|c| c.is_ascii_lowercase()) {
        methods.push(method.to_ascii_uppercase());
    }
    methods.retain(|other| other != method);
    methods
}

/// Whether the name of an encoded parameter may be one of a method; most need not be decoded to see that.
fn may_name_method(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or(pair).as_bytes();
    name.contains(&b'%') || name.windows(6).any(|part| part.eq_ignore_ascii_case(b"method"))
}
