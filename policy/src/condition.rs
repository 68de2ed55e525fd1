//! Conditions on header fields, query parameters and JSON content: met, or not, by what the request
//! says.
//!
//! A condition is met when its name occurs and every occurrence matches: a server that reads the
//! last of two values sees nothing that policy has not judged. Where some match and others don't, or
//! what is looked at can't be read, or a name or value is written so that only some servers take it for
//! the one that is looked at, nothing is said, and no wider rule is asked instead.

use crate::escape::{self, Next};
use crate::field::{is_same_field, is_same_member, is_same_parameter};
use crate::json::Content;
use crate::{Details, glob};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Patterns by name; any of them may match.
pub(crate) type Wanted = BTreeMap<String, Vec<String>>;

/// The conditions of one route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Conditions {
    /// By lower-case field name.
    pub headers: Wanted,
    /// By decoded parameter name.
    pub query: Wanted,
    /// By JSON pointer (RFC 6901).
    pub body: BTreeMap<String, Vec<Literal>>,
}

/// What a JSON value may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    /// A string that the pattern matches.
    Text(String),
    /// This truth value.
    Truth(bool),
    /// This whole number.
    Number(i64),
}

/// The first condition that is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet<'a> {
    /// On this field.
    Header(&'a str),
    /// On this parameter.
    Query(&'a str),
    /// On this pointer.
    Body(&'a str),
    /// One that can't be judged.
    Unjudged(Doubt),
}

/// Why a condition can't be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The part of the request that it looks at.
    pub(crate) field: &'static str,
    /// In words that follow a colon.
    pub(crate) why: &'static str,
}

impl Doubt {
    const HEADERS: Self = Self {
        field: "request.headers",
        why: "a header field that it looks at is there with different values, or written in another way",
    };
    const QUERY: Self = Self {
        field: "target.query",
        why: "a parameter that it looks at is there with different values, or written in another way",
    };
    const UNREADABLE: Self =
        Self { field: "target.query", why: "an escape in the query can't be read" };

    const MEMBER: Self = Self::body(
        "a name that it looks at is written in another way, which some readers take for it",
    );
    const TYPE: Self =
        Self::body("a value that it looks at is of another type, which some readers convert");

    /// Of a method.
    pub(crate) const METHOD: Self = Self {
        field: "method",
        why: "a server may take it for another one (small letters, X-HTTP-Method-Override, _method)",
    };

    /// Of a command.
    pub(crate) const COMMAND: Self = Self {
        field: "command",
        why: "it may be one that a person has to approve, spelt otherwise or beside others",
    };

    /// Of a path.
    pub(crate) const PATH: Self = Self {
        field: "target.path",
        why: "servers differ in how they read it (an escaped slash, a backslash, a semicolon, a \
              slash at the end, dot segments or empty ones, letters in another case)",
    };

    /// Of content.
    pub(crate) const fn body(why: &'static str) -> Self {
        Self { field: "request.body", why }
    }
}

/// How the values under one name meet a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    All,
    Some,
    None,
}

impl Met {
    /// What two readings come to.
    fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Some }
    }
}

/// How the conditions of two routes relate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// No request meets both, or one has more conditions and goes first.
    Ordered,
    /// The same conditions.
    Equal,
    /// As many, and a request may meet both.
    Crossing,
}

impl Conditions {
    /// What orders routes: more conditions are narrower.
    pub(crate) fn breadth(&self) -> Reverse<usize> {
        Reverse(self.headers.len() + self.query.len() + self.body.len())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.query.is_empty() && self.body.is_empty()
    }

    /// The conditions on content, for people.
    pub(crate) fn body_in_words(&self) -> String {
        let words = self.body.iter().map(|(pointer, literals)| {
            let values: Vec<_> = literals.iter().map(ToString::to_string).collect();
            format!("{pointer} = {}", values.join(" | "))
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Whether the content takes part.
    pub(crate) fn looks_at_body(&self) -> bool {
        !self.body.is_empty()
    }

    /// Judges a request. Only where all else is met does it matter that something can't be judged;
    /// the content is looked at last.
    pub(crate) fn unmet(&self, details: &Details<'_>, content: &Content) -> Option<Unmet<'_>> {
        let parts = [self.unmet_headers(details), self.unmet_query(details)];
        let mut doubt = None;
        for unmet in parts.into_iter().flatten() {
            match unmet {
                Unmet::Unjudged(_) => doubt = doubt.or(Some(unmet)),
                Unmet::Header(_) | Unmet::Query(_) | Unmet::Body(_) => return Some(unmet),
            }
        }
        match self.unmet_body(details, content) {
            unmet @ Some(Unmet::Header(_) | Unmet::Query(_) | Unmet::Body(_)) => unmet,
            unjudged @ (Some(Unmet::Unjudged(_)) | None) => doubt.or(unjudged),
        }
    }

    fn unmet_headers(&self, details: &Details<'_>) -> Option<Unmet<'_>> {
        let mut doubt = None;
        for (name, patterns) in &self.headers {
            let named = |field: &&(&[u8], &[u8])| is_same_field(field.0, name.as_bytes());
            let fields = details.headers.iter().filter(named);
            let exact = |sent: &[u8]| sent.eq_ignore_ascii_case(name.as_bytes());
            match met(fields.map(|(sent, value)| (exact(sent), value.trim_ascii())), patterns) {
                Met::All => {}
                Met::Some => doubt = Some(Unmet::Unjudged(Doubt::HEADERS)),
                Met::None => return Some(Unmet::Header(name)),
            }
        }
        doubt
    }

    fn unmet_query(&self, details: &Details<'_>) -> Option<Unmet<'_>> {
        if self.query.is_empty() {
            return None;
        }
        let query = details.query.unwrap_or_default();
        let mut readings = vec![parameters(query, &['&'])];
        if query.contains(';') {
            // As HTML 4.01 (appendix B.2.2) asked of servers; some still do.
            readings.push(parameters(query, &['&', ';']));
        }
        let Some(readings) = readings.into_iter().collect::<Option<Vec<_>>>() else {
            return Some(Unmet::Unjudged(Doubt::UNREADABLE));
        };
        let mut doubt = None;
        for (name, patterns) in &self.query {
            let in_reading = |parameters: &Vec<(Vec<u8>, Vec<u8>)>| {
                let named =
                    parameters.iter().filter(|(n, _)| is_same_parameter(n, name.as_bytes()));
                let exact = |sent: &[u8]| sent == name.as_bytes();
                met(named.map(|(sent, value)| (exact(sent), value.as_slice())), patterns)
            };
            match readings.iter().map(in_reading).reduce(Met::and).unwrap_or(Met::None) {
                Met::All => {}
                Met::Some => doubt = Some(Unmet::Unjudged(Doubt::QUERY)),
                Met::None => return Some(Unmet::Query(name)),
            }
        }
        doubt
    }

    fn unmet_body(&self, details: &Details<'_>, content: &Content) -> Option<Unmet<'_>> {
        let (first, _) = self.body.first_key_value()?;
        match content.of(details) {
            Err(why) => Some(Unmet::Unjudged(Doubt::body(why))),
            Ok(None) => Some(Unmet::Body(first)),
            Ok(Some(json)) => {
                let mut doubt = None;
                for (pointer, literals) in &self.body {
                    match in_content(json, pointer, literals) {
                        Ok(true) => {}
                        Ok(false) => return Some(Unmet::Body(pointer)),
                        Err(why) => doubt = Some(Unmet::Unjudged(why)),
                    }
                }
                doubt
            }
        }
    }

    /// Relates the conditions of two routes.
    pub(crate) fn relate(&self, other: &Self) -> Relation {
        if self == other {
            return Relation::Equal;
        }
        let apart = |a: &Wanted, b: &Wanted| {
            a.iter().any(|(name, one)| {
                let Some(two) = b.get(name) else { return false };
                !one.iter().any(|p| two.iter().any(|q| glob::meet(p.as_bytes(), q.as_bytes())))
            })
        };
        let apart_in_body = self.body.iter().any(|(pointer, one)| {
            let Some(two) = other.body.get(pointer) else { return false };
            !one.iter().any(|p| two.iter().any(|q| p.meets(q)))
        });
        let apart = apart(&self.headers, &other.headers)
            || apart(&self.query, &other.query)
            || apart_in_body;
        if apart || self.breadth() != other.breadth() {
            Relation::Ordered
        } else {
            Relation::Crossing
        }
    }
}

impl Literal {
    fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Text(pattern) => value
                .as_str()
                .is_some_and(|text| glob::matches(pattern.as_bytes(), text.as_bytes(), |_| true)),
            Self::Truth(truth) => value.as_bool() == Some(*truth),
            Self::Number(number) => {
                // 1.0 is 1 to most readers.
                let whole = |float: f64| float == *number as f64 && float.abs() < EXACT;
                value.as_i64() == Some(*number) || value.as_f64().is_some_and(whole)
            }
        }
    }

    /// Whether a reader that converts types may take the value for one that matches.
    fn nearly_matches(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Text(pattern), other @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => {
                let is =
                    |text: &String| glob::matches(pattern.as_bytes(), text.as_bytes(), |_| true);
                as_texts(other).iter().any(is)
            }
            // Any text that is not empty is true to some, and these words are false to others.
            (Self::Truth(true), Value::String(text)) => !text.is_empty(),
            (Self::Truth(false), Value::String(text)) => {
                let words = ["", "false", "f", "no", "n", "off", "0"];
                words.iter().any(|word| text.trim().eq_ignore_ascii_case(word))
            }
            (Self::Truth(truth), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (number != 0.0) == *truth)
            }
            // How far readers of numbers read (`0x64`, `1_00`, `100 pieces`) differs too much to be judged.
            (Self::Number(number), Value::String(text)) => {
                let begins = |byte: &u8| byte.is_ascii_digit() || b"+-.".contains(byte);
                text.trim().as_bytes().first().map_or(*number == 0, begins)
            }
            (Self::Number(number), Value::Bool(truth)) => *number == i64::from(*truth),
            (Self::Truth(truth), Value::Null) => !truth,
            (Self::Number(number), Value::Null) => *number == 0,
            // A list of one is that one to some.
            (_, Value::Array(members)) => match members.as_slice() {
                [member] => self.matches(member) || self.nearly_matches(member),
                _ => false,
            },
            (Self::Text(_), Value::String(_) | Value::Object(_))
            | (Self::Truth(_), Value::Bool(_) | Value::Object(_))
            | (Self::Number(_), Value::Number(_) | Value::Object(_)) => false,
        }
    }

    /// As a pattern that meets no pattern of a literal which this one does not meet.
    pub(crate) fn mark(&self) -> String {
        match self {
            Self::Text(pattern) => format!("t{pattern}"),
            Self::Truth(truth) => format!("b{truth}"),
            Self::Number(number) => format!("n{number}"),
        }
    }

    /// Whether some value matches both.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(p), Self::Text(q)) => glob::meet(p.as_bytes(), q.as_bytes()),
            (Self::Truth(p), Self::Truth(q)) => p == q,
            (Self::Number(p), Self::Number(q)) => p == q,
            (Self::Text(_) | Self::Truth(_) | Self::Number(_), _) => false,
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(pattern) => write!(f, "{pattern:?}"),
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Up to here a floating-point number is one whole number only.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// How readers write a value as text that is none.
fn as_texts(value: &Value) -> Vec<String> {
    match value {
        Value::Null => ["", "null", "None"].map(str::to_owned).into(),
        Value::Bool(true) => ["true", "True", "1"].map(str::to_owned).into(),
        Value::Bool(false) => ["false", "False", "0", ""].map(str::to_owned).into(),
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            vec![number.to_string(), format!("{float}"), format!("{float:?}")]
        }
        Value::String(_) | Value::Array(_) | Value::Object(_) => Vec::new(),
    }
}

/// How the values of the fields that may be taken for the named one meet its patterns; each says
/// whether it has exactly that name.
fn met<'v>(values: impl Iterator<Item = (bool, &'v [u8])>, patterns: &[String]) -> Met {
    let (mut is_named, mut some, mut others) = (false, false, false);
    for (exact, value) in values {
        if patterns.iter().any(|p| glob::matches(p.as_bytes(), value, |_| true)) {
            some = true;
            is_named |= exact;
        } else {
            others = true;
        }
    }
    match (some, others) {
        (false, _) => Met::None,
        (true, false) if is_named => Met::All,
        (true, _) => Met::Some,
    }
}

/// Whether the value that the pointer leads to is one of the literals.
fn in_content(json: &Value, pointer: &str, literals: &[Literal]) -> Result<bool, Doubt> {
    let mut node = Some(json);
    // A pointer that is no pointer was refused with the policy.
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        node = match node {
            Some(Value::Object(members)) => {
                let twin = |name: &String| *name != token && is_same_member(name, &token);
                if members.keys().any(twin) {
                    return Err(Doubt::MEMBER);
                }
                members.get(&token)
            }
            Some(Value::Array(members)) => {
                let is_index = token == "0" || !token.starts_with(['0', '+']);
                token.parse().ok().filter(|_| is_index).and_then(|index: usize| members.get(index))
            }
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => None,
        };
    }
    let Some(value) = node else { return Ok(false) };
    if literals.iter().any(|literal| literal.matches(value)) {
        Ok(true)
    } else if literals.iter().any(|literal| literal.nearly_matches(value)) {
        Err(Doubt::TYPE)
    } else {
        Ok(false)
    }
}

/// The parameters of a query, decoded as forms are; none if some escape can't be read.
pub(crate) fn parameters(query: &str, borders: &[char]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let pairs = query.split(borders).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decoded(name.as_bytes())?, decoded(value.as_bytes())?))
        })
        .collect()
}

/// Decodes what forms encode; none if some escape can't be read.
pub(crate) fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let byte = |next| match next {
        Next::Plain(b'+') => Some(b' '),
        Next::Plain(byte) | Next::Escaped(byte) => Some(byte),
        Next::Broken => None,
    };
    escape::read(text).map(byte).collect()
}

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
