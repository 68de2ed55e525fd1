//! The idempotency key of a request: the caller's, or one of the broker's own (contract K-1 to K-4).

use crate::head::Request;
use crate::outgoing::stays;
use journal::contract::{Idempotency, Operation};
use policy::IdempotencyRule;

/// The key that the caller sent, if it goes on: what a nomination in `Connection` keeps on this hop
/// reaches no origin.
pub(crate) fn sent<'h>(head: &'h Request, header: &str) -> Option<&'h str> {
    let key = head.fields.first(header).filter(|key| !key.is_empty())?;
    (!stays(header.as_bytes(), &head.fields)).then_some(key)
}

/// The field by which the caller names a key of the broker's own, as a record showed it. It has no
/// part in the fingerprint: the request is the one that the key was made for (contract K-3).
pub(crate) fn named<'r>(head: &Request, rule: Option<&'r IdempotencyRule>) -> Option<&'r str> {
    let rule = rule.filter(|rule| rule.generate)?;
    sent(head, &rule.header).filter(|key| Idempotency::is_own_key(key))?;
    Some(&rule.header)
}

/// The field that the broker adds: a key of its own, on a route that says so (contract K-4).
pub(crate) fn added(operation: &Operation) -> Option<(&str, &str)> {
    let bound = operation.idempotency.as_ref()?;
    Some((bound.added_as.as_deref()?, &bound.key))
}
