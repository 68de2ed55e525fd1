//! What makes an earlier invocation answer instead of a new one (contract K-3, K-10, K-11).

use crate::call::Call;
use crate::contract::{
    Accepted, Budget, Code, Fingerprint, Gateway, Idempotency, InvocationId, Outcome,
    RemoteContract, Spent,
};
use crate::core::Core;
use crate::entry::Entry;
use crate::projection::{Delivery, Invocation, State};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// What makes an earlier invocation answer instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// How far back an equal request counts (K-11), from its end. `None` switches the guard off.
    pub window: Option<Duration>,
    /// The idempotency key of the request (K-3).
    pub key: Option<Key>,
    /// Whether an equal request that is held for a person is joined (V-6).
    pub join: bool,
    /// Equal requests that do not guard (K-11), because the caller knows of a difference that their
    /// fingerprints do not show.
    pub others: Vec<InvocationId>,
    /// The first attempt of the action that this is an attempt of. Neither it nor another attempt of
    /// it guards: the lease does (K-6).
    pub action: Option<InvocationId>,
    /// What bounds the agent. `None`: it is not counted.
    pub budget: Option<Budget>,
}

/// An idempotency key that a request carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The remote scope in which it stands for one request.
    pub scope: String,
    /// The key.
    pub key: String,
    /// Whether it makes a repeat safe for as long as the remote keeps it: the window is off then
    /// (K-11), and on again once its earliest use may be forgotten (K-5).
    pub is_verified: bool,
    /// Who chose it.
    pub choice: Choice,
}

/// Who chose an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The caller: it is this key and no other, and equal requests carry it too.
    Given {
        /// Whether the fingerprint covers the whole request. Where it does not, a second use is
        /// answered from the record of the first, like one by id (K-3, K-10).
        by_fingerprint: bool,
    },
    /// The broker, for an earlier attempt of the same action. Equal requests can carry another one.
    Recorded,
    /// The broker, for this call. A repeat that the client hides goes out under the key of what it
    /// repeats instead (K-2, K-11), where `by_fingerprint` says that equal fingerprints mean equal
    /// requests.
    Fresh {
        /// Whether the fingerprint covers the whole request.
        by_fingerprint: bool,
    },
}

impl From<&Idempotency> for Key {
    fn from(bound: &Idempotency) -> Self {
        Self {
            scope: bound.scope.clone(),
            key: bound.key.clone(),
            is_verified: bound.remote_contract == RemoteContract::Verified,
            choice: match bound.added_as {
                Some(_) => Choice::Recorded,
                None => Choice::Given { by_fingerprint: true },
            },
        }
    }
}

impl Guard {
    /// Whether an equal invocation has no say, because it is known to be none of the same action's
    /// repeats, or is another attempt of the same action under its lease.
    pub(crate) fn passes_over(&self, earlier: &Invocation) -> bool {
        self.others.contains(&earlier.id())
            || self.action.is_some_and(|first| {
                earlier.id() == first || earlier.accepted().link == Some(first)
            })
    }
}

/// What became of a submission. Everything but `New` dispatches nothing and records nothing.
#[must_use]
pub enum Admission {
    /// It is on record, and under way.
    New(Call),
    /// A budget of the agent leaves no room for it.
    Spent(Spent),
    /// V-6: the same request is held for a person, or approved and not sent yet.
    Held(Box<Invocation>),
    /// K-10: the id is known, with the same agent and an equal fingerprint.
    SameRequest(Box<Invocation>),
    /// The id (K-10) or the key in its scope (K-3) is known with another fingerprint or agent.
    /// Nothing of the other record is told.
    Mismatch,
    /// K-11: an equal request of this agent, inside the window, is in flight or unknown.
    InDoubt(Box<Invocation>),
    /// K-11: an equal request of this agent, inside the window, is settled by a 5xx, or settled and
    /// not known to be handed over. It answers from the record.
    Settled(Box<Invocation>),
}

/// Calls under way, and those that the index has not seen yet, by what they guard.
#[derive(Default)]
pub(crate) struct Recent {
    pub(crate) requests: HashMap<[u8; 16], Vec<Arc<Entry>>>,
    pub(crate) keys: HashMap<[u8; 16], Vec<Arc<Entry>>>,
    /// Actions that the broker goes on with, whatever their last attempt came to.
    pub(crate) outstanding: HashMap<[u8; 16], Vec<InvocationId>>,
}

/// The broker goes on with an action by itself: until this is dropped, an equal request counts as one
/// of a call in flight (contract K-11), though nothing was dispatched so far.
#[must_use]
pub struct Outstanding {
    core: Arc<Core>,
    hash: [u8; 16],
    id: InvocationId,
}

impl std::fmt::Debug for Outstanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outstanding").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Call {
    /// Says that the broker goes on with the call if it comes to nothing. `None`: the guard does not
    /// look at it.
    #[must_use]
    pub fn outstanding(&self) -> Option<Outstanding> {
        let hash = self.entry.request_hash?;
        let core = Arc::clone(&self.core);
        core.recent.lock().outstanding.entry(hash).or_default().push(self.id());
        Some(Outstanding { core, hash, id: self.id() })
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let mut recent = self.core.recent.lock();
        if let Some(ids) = recent.outstanding.get_mut(&self.hash) {
            ids.retain(|id| *id != self.id);
            if ids.is_empty() {
                recent.outstanding.remove(&self.hash);
            }
        }
    }
}

impl Recent {
    /// Adds an entry that guards from now on.
    pub(crate) fn add_request(&mut self, entry: &Arc<Entry>) {
        let Some(hash) = entry.request_hash else { return };
        let idempotent = entry.state.lock().live.preflight().is_some_and(|bound| bound.idempotent);
        if idempotent {
            return;
        }
        let entries = self.requests.entry(hash).or_default();
        if !entries.iter().any(|known| Arc::ptr_eq(known, entry)) {
            entries.push(Arc::clone(entry));
        }
    }

    /// Forgets an entry.
    pub(crate) fn remove(&mut self, entry: &Arc<Entry>) {
        let remove = |map: &mut HashMap<[u8; 16], Vec<Arc<Entry>>>, hash: Option<[u8; 16]>| {
            let Some(hash) = hash else { return };
            if let Some(entries) = map.get_mut(&hash) {
                entries.retain(|other| !Arc::ptr_eq(other, entry));
                if entries.is_empty() {
                    map.remove(&hash);
                }
            }
        };
        remove(&mut self.requests, entry.request_hash);
        remove(&mut self.keys, entry.key_hash);
    }
}

fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk::<16>().copied().unwrap_or_default()
}

/// What makes two requests of one agent the same request.
pub(crate) fn request_hash(accepted: &Accepted) -> Option<[u8; 16]> {
    let fingerprint = accepted.fingerprint.as_ref()?;
    let agent = accepted.agent.as_deref().map_or(&b""[..], str::as_bytes);
    Some(hash(&[b"request", agent, &fingerprint.0]))
}

/// An idempotency key in its scope.
pub(crate) fn key_hash(scope: &str, key: &str) -> [u8; 16] {
    hash(&[b"key", scope.as_bytes(), key.as_bytes()])
}

/// A route of a gateway.
pub(crate) fn route_hash(gateway: Gateway, route: Option<&str>) -> [u8; 16] {
    hash(&[b"route", gateway.as_str().as_bytes(), route.unwrap_or_default().as_bytes()])
}

/// Whether two submissions are the same request of the same agent.
pub(crate) fn is_same(earlier: &Accepted, later: &Accepted) -> bool {
    let equal = |a: Option<Fingerprint>, b: Option<Fingerprint>| a.is_some() && a == b;
    earlier.agent == later.agent && equal(earlier.fingerprint, later.fingerprint)
}

/// Whether an equal request would be guarded against, the window aside (contract K-11).
pub(crate) fn may_guard(invocation: &Invocation) -> bool {
    match invocation.state() {
        State::Accepted | State::Validated | State::Authorized | State::Dispatched => true,
        State::Ended(verdict) => verdict.outcome() == Outcome::Unknown,
        // Nothing was processed, so an equal request is no second effect (contract C-6).
        State::Committed(verdict) if verdict.code() == Code::RemoteNotProcessed => false,
        State::Committed(_) => {
            let failed = invocation.status().is_some_and(|status| (500..600).contains(&status));
            failed || !matches!(invocation.delivery(), Delivery::Delivered(_))
        }
    }
}

/// Whether an invocation binds its idempotency key: the remote may have seen it (contract K-3).
pub(crate) fn may_bind(invocation: &Invocation) -> bool {
    match invocation.state() {
        State::Ended(verdict) => verdict.outcome() != Outcome::NotAttempted,
        State::Accepted
        | State::Validated
        | State::Authorized
        | State::Dispatched
        | State::Committed(_) => true,
    }
}

/// Whether an invocation counts inside a window that ends now. One under way always does.
pub(crate) fn is_within(invocation: &Invocation, window: Duration, now_ms: u64) -> bool {
    invocation.ended_at_ms().is_none_or(|ended| {
        let window = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        now_ms.saturating_sub(ended) < window
    })
}
