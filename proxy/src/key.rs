//! The idempotency key of a request, the caller's or one of the broker's own (contract K-1 to K-4): what
//! of it goes into the record, into the fingerprint, and out.

use crate::engine::Job;
use crate::fingerprint::Content;
use crate::head::{Framing, Request};
use crate::outgoing::stays;
use crate::request::is_upgrade;
use crate::respond::Refusal;
use crate::target::Target;
use bytes::Bytes;
use journal::contract::{Fingerprint, Idempotency, KeyPlace, Operation};
use policy::key::{Slot, Unreadable, find};
use policy::{Body, Details, HttpGrant, IdempotencyRule};
use std::borrow::Cow;

/// Puts a question about a request. What stays on this hop reaches no origin, and is no part of it.
fn ask<R>(
    head: &Request,
    target: &Target,
    body: Body<'_>,
    question: impl FnOnce(&Details<'_>) -> R,
) -> R {
    let goes_on = |(name, _): &(&[u8], &[u8])| !stays(name, &head.fields);
    let headers: Vec<_> = head.fields.iter().filter(goes_on).collect();
    question(&Details { query: query(target), headers: &headers, body })
}

fn query(target: &Target) -> Option<&str> {
    target.path_and_query.split_once('?').map(|(_, query)| query)
}

/// Whether content is read to find the key.
pub(crate) fn key_in_content(grant: &HttpGrant) -> bool {
    grant.idempotency.as_ref().is_some_and(IdempotencyRule::looks_at_content)
}

impl Job<'_> {
    /// The place of the key where no content is read for it.
    pub(crate) fn key_in_head(
        &self,
        grant: &HttpGrant,
        target: &Target,
    ) -> Result<Option<Slot>, Refusal> {
        if key_in_content(grant) {
            return Ok(None);
        }
        self.key_slot(grant, target, Body::Absent)
    }

    /// The place of the key where content was read for it.
    pub(crate) fn key_in_content(
        &self,
        grant: &HttpGrant,
        target: &Target,
        ahead: &[Bytes],
    ) -> Result<Option<Slot>, Refusal> {
        if !key_in_content(grant) {
            return Ok(None);
        }
        if self.incoming.is_ended() {
            return self.key_slot(grant, target, Body::Whole(&ahead.concat()));
        }
        if !self.adds_keys(grant) {
            // Nothing rests on a key of content that is not compared as a whole.
            return Ok(None);
        }
        self.key_slot(grant, target, Body::Unreadable("the content is longer than 1 MiB"))
    }

    /// Whether a call without a key gets one of ours.
    fn adds_keys(&self, grant: &HttpGrant) -> bool {
        grant.idempotency.as_ref().is_some_and(|rule| rule.generate)
            && !grant.is_idempotent(&self.head.method)
            && !is_upgrade(&self.head)
    }

    /// The place of the key: with a key, or open to one of ours. `None`: no contract is about this
    /// request, or it has no key and gets none.
    fn key_slot(
        &self,
        grant: &HttpGrant,
        target: &Target,
        body: Body<'_>,
    ) -> Result<Option<Slot>, Refusal> {
        let Some(rule) = &grant.idempotency else { return Ok(None) };
        let ours = self.adds_keys(grant);
        let found = ask(&self.head, target, body, |request| {
            let Some(slot) = rule.find(request)? else { return Ok(None) };
            match (&slot.key, ours) {
                (Some(_), _) => Ok(Some(slot)),
                (None, true) => slot.check_open(&rule.place, request).map(|()| Some(slot)),
                (None, false) => Ok(None),
            }
        });
        found.map_err(Refusal::Key)
    }

    /// What policy and method say of repeating (contract S-4, K-1); the fingerprint follows later.
    pub(crate) fn operation(&self, grant: &HttpGrant, slot: Option<&Slot>) -> Operation {
        let idempotency = grant.idempotency.as_ref().zip(slot).map(|(rule, slot)| {
            let retention = u64::try_from(rule.retention.as_millis()).unwrap_or(u64::MAX);
            let fresh = || Idempotency::own_key(self.shared.journal.new_id(), &rule.place);
            Idempotency {
                key: slot.key.clone().unwrap_or_else(fresh),
                scope: rule.scope.clone(),
                fingerprint: Fingerprint::of(b""),
                expires_at_ms: self.shared.journal.now_ms().saturating_add(retention),
                remote_contract: rule.contract,
                added_as: slot.key.is_none().then(|| rule.place.clone()),
            }
        });
        Operation { idempotent: grant.is_idempotent(&self.head.method), idempotency }
    }
}

/// A request without the key of the broker's own by which the caller names it, as a record showed it:
/// the request that the key was made for (contract K-3).
#[derive(Default)]
pub(crate) struct Unnamed<'r> {
    pub(crate) header: Option<&'r str>,
    pub(crate) target: Option<Target>,
    pub(crate) content: Option<[Bytes; 1]>,
}

impl<'r> Unnamed<'r> {
    pub(crate) fn of(
        grant: &'r HttpGrant,
        slot: Option<&Slot>,
        target: &Target,
        content: &[Bytes],
    ) -> Self {
        let named = |slot: &&Slot| slot.key.as_deref().is_some_and(Idempotency::is_own_key);
        let rule = grant.idempotency.as_ref().filter(|rule| rule.generate);
        let Some((rule, slot)) = rule.zip(slot.filter(named)) else { return Self::default() };
        match &rule.place {
            KeyPlace::Header(name) => Self { header: Some(name), ..Self::default() },
            KeyPlace::Query(_) => {
                let query = slot.without(query(target).unwrap_or_default().as_bytes());
                Self { target: query.and_then(|q| with_query(target, &q)), ..Self::default() }
            }
            KeyPlace::Form(_) | KeyPlace::Json(_) => {
                let content = slot.without(&content.concat());
                Self { content: content.map(|c| [Bytes::from(c)]), ..Self::default() }
            }
        }
    }

    /// Whole content without the key.
    pub(crate) fn content<'c>(&'c self, content: Content<'c>) -> Content<'c> {
        match (&self.content, content) {
            (Some(pieces), Content::Whole(_, trailers)) => Content::Whole(pieces, trailers),
            (_, content) => content,
        }
    }
}

/// The target with another query.
fn with_query(target: &Target, query: &[u8]) -> Option<Target> {
    let query = std::str::from_utf8(query).ok()?;
    let path = target.path();
    let path_and_query = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    Some(Target { path_and_query, ..target.clone() })
}

/// A request with the key of the broker's own that its call is bound to, as it goes on to injection.
pub(crate) struct Keyed<'a> {
    pub(crate) head: Cow<'a, Request>,
    pub(crate) target: Cow<'a, Target>,
    pub(crate) framing: Framing,
    /// The whole content, if the key is in it.
    pub(crate) content: Option<[Bytes; 1]>,
    /// A field that is set in the head.
    pub(crate) field: Option<(&'a str, &'a str)>,
}

impl<'a> Keyed<'a> {
    /// Adds the key, if the call has one of the broker's own (contract K-4).
    pub(crate) fn new(
        head: &'a Request,
        target: &'a Target,
        framing: Framing,
        content: &[Bytes],
        operation: &'a Operation,
    ) -> Result<Self, Unreadable> {
        let (head, target) = (Cow::Borrowed(head), Cow::Borrowed(target));
        let mut keyed = Self { head, target, framing, content: None, field: None };
        let bound = operation.idempotency.as_ref();
        let Some((bound, place)) = bound.and_then(|b| Some((b, b.added_as.as_ref()?))) else {
            return Ok(keyed);
        };
        if let KeyPlace::Header(name) = place {
            keyed.field = Some((name, &bound.key));
            return Ok(keyed);
        }
        let whole = content.concat();
        let lost = || Unreadable { field: place.field(), why: "its place is not there any more" };
        let slot = ask(&keyed.head, &keyed.target, Body::Whole(&whole), |r| find(place, r))?;
        if place.is_in_content() {
            keyed.set_content(slot.with(&whole, &bound.key).ok_or_else(lost)?);
        } else {
            let old = query(&keyed.target).unwrap_or_default();
            let query = slot.with(old.as_bytes(), &bound.key).ok_or_else(lost)?;
            keyed.target = Cow::Owned(with_query(&keyed.target, &query).ok_or_else(lost)?);
        }
        Ok(keyed)
    }

    fn set_content(&mut self, content: Vec<u8>) {
        if let Framing::Length(length) = &mut self.framing {
            *length = u64::try_from(content.len()).unwrap_or(u64::MAX);
            let declared = length.to_string().into_bytes();
            let fields = self.head.fields.iter().map(|(name, value)| {
                let ours = name.eq_ignore_ascii_case(b"content-length");
                (name.to_vec(), if ours { declared.clone() } else { value.to_vec() })
            });
            let fields = fields.collect();
            self.head.to_mut().fields = fields;
        }
        self.content = Some([Bytes::from(content)]);
    }
}
