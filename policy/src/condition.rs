//! Conditions on header fields and query parameters: met, or not, by what the request says.
//!
//! A condition is met when its name occurs and every occurrence matches: a server that reads the
//! last of two values sees nothing that policy has not judged. What can't be read meets nothing.

use crate::Details;
use crate::glob;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Patterns by name; any of them may match.
pub(crate) type Wanted = BTreeMap<String, Vec<String>>;

/// The conditions of one route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Conditions {
    /// By lower-case field name.
    pub headers: Wanted,
    /// By decoded parameter name.
    pub query: Wanted,
}

/// The first condition that is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet<'a> {
    /// On this field.
    Header(&'a str),
    /// On this parameter.
    Query(&'a str),
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
        Reverse(self.headers.len() + self.query.len())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.query.is_empty()
    }

    /// Judges a request.
    pub(crate) fn unmet(&self, details: &Details<'_>) -> Option<Unmet<'_>> {
        let header = self.headers.iter().find(|(name, patterns)| {
            let named = |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
            let fields = details.headers.iter().filter(named);
            !every(fields.map(|(_, value)| value.trim_ascii().to_vec()), patterns)
        });
        if let Some((name, _)) = header {
            return Some(Unmet::Header(name));
        }
        if self.query.is_empty() {
            return None;
        }
        let parameters = parameters(details.query.unwrap_or_default());
        let query = self.query.iter().find(|(name, patterns)| {
            let Some(parameters) = &parameters else { return true };
            let values = parameters.iter().filter(|(n, _)| n == name.as_bytes());
            !every(values.map(|(_, value)| value.clone()), patterns)
        });
        query.map(|(name, _)| Unmet::Query(name))
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
        let apart = apart(&self.headers, &other.headers) || apart(&self.query, &other.query);
        if apart || self.breadth() != other.breadth() {
            Relation::Ordered
        } else {
            Relation::Crossing
        }
    }
}

/// Whether there are values, and each matches one of the patterns.
fn every(values: impl Iterator<Item = Vec<u8>>, patterns: &[String]) -> bool {
    let mut values = values.peekable();
    values.peek().is_some()
        && values
            .all(|value| patterns.iter().any(|p| glob::matches(p.as_bytes(), &value, |_| true)))
}

/// The parameters of a query, decoded as forms are; none if some escape can't be read.
fn parameters(query: &str) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decoded(name)?, decoded(value)?))
        })
        .collect()
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(headers: &[(&str, &[&str])], query: &[(&str, &[&str])]) -> Conditions {
        let wanted = |list: &[(&str, &[&str])]| {
            let owned = |p: &[&str]| p.iter().map(|&p| p.to_owned()).collect::<Vec<_>>();
            list.iter().map(|&(name, patterns)| (name.to_owned(), owned(patterns))).collect()
        };
        Conditions { headers: wanted(headers), query: wanted(query) }
    }

    #[test]
    fn every_occurrence_has_to_match() {
        let action = conditions(&[], &[("Action", &["Describe*", "List*"])]);
        let met = |query: &str| action.unmet(&Details { query: Some(query), headers: &[] });
        assert_eq!(met("Action=DescribeInstances&Version=1"), None);
        assert_eq!(met("&&Action=ListUsers"), None);
        assert_eq!(met("%41ction=Describe%49mages"), None);
        let unmet = Some(Unmet::Query("Action"));
        for query in [
            "",
            "Action",
            "Action=RunInstances",
            "action=DescribeInstances",
            "Action=DescribeInstances&Action=RunInstances",
            "Action=DescribeInstances&%41ction=RunInstances",
            "Action=Describe%zz",
            "Action=DescribeX&x=%4",
        ] {
            assert_eq!(met(query), unmet, "{query}");
        }
        assert_eq!(action.unmet(&Details::default()), unmet);
    }

    #[test]
    fn header_names_have_no_case_and_values_have() {
        let target = conditions(&[("x-amz-target", &["DynamoDB_20120810.Get*"])], &[]);
        let met = |fields: &[(&[u8], &[u8])]| {
            target.unmet(&Details { query: None, headers: fields }).is_none()
        };
        assert!(met(&[(b"X-Amz-Target", b" DynamoDB_20120810.GetItem ")]));
        assert!(!met(&[(b"X-Amz-Target", b"dynamodb_20120810.getitem")]));
        assert!(!met(&[]));
        let put = (&b"x-amz-target"[..], &b"DynamoDB_20120810.PutItem"[..]);
        assert!(!met(&[(b"X-Amz-Target", b"DynamoDB_20120810.GetItem"), put]));
    }

    #[test]
    fn conditions_relate() {
        let get = conditions(&[("a", &["x*"])], &[]);
        let put = conditions(&[("a", &["y*"])], &[]);
        let other = conditions(&[("b", &["x"])], &[]);
        let both = conditions(&[("a", &["x*"]), ("b", &["x"])], &[]);
        assert_eq!(get.relate(&get), Relation::Equal);
        assert_eq!(get.relate(&put), Relation::Ordered);
        assert_eq!(get.relate(&other), Relation::Crossing);
        assert_eq!(get.relate(&both), Relation::Ordered);
        assert_eq!(get.relate(&Conditions::default()), Relation::Ordered);
        assert!(both.breadth() < get.breadth());
    }
}
