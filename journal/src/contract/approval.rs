//! Approvals: what a person is asked before a call is dispatched, and what was said (contract V-6).
//!
//! ```text
//!  PREFLIGHT_VALIDATED ─► APPROVAL_REQUESTED ─► APPROVAL_DECIDED approved ─► CREDENTIAL_AUTHORIZED ...
//!                               │    │                    └─ not used in time ─┐
//!                               │    └──► APPROVAL_DECIDED denied ─► INVOCATION_ENDED (APPROVAL_DENIED)
//!                               └─ not decided in time ─► INVOCATION_ENDED (APPROVAL_EXPIRED)
//! ```

use super::{Fingerprint, Preflight};
use serde::{Deserialize, Serialize};

/// A person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequested {
    /// The fingerprint of the request that is shown, and of no other.
    pub fingerprint: Fingerprint,
    /// Until when it can be decided, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// How long an approval can be used once it is given, in milliseconds.
    pub lasts_ms: u64,
    /// What is shown, encrypted for who has the vault; absent when nothing could be sealed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub shown: Option<String>,
}

/// A person decided, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecided {
    /// Who, as far as the broker knows.
    pub by: String,
    /// What was said.
    #[serde(flatten)]
    pub ruling: Ruling,
}

/// What was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ruling", rename_all = "snake_case")]
pub enum Ruling {
    /// The call may be dispatched, once.
    Approved {
        /// Until when, in milliseconds since 1970.
        until_ms: u64,
    },
    /// It may not.
    Denied,
}

/// An approval on record: the question, and the answer once there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The question.
    pub requested: ApprovalRequested,
    /// When it was asked, in milliseconds since 1970.
    pub requested_at_ms: u64,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decided: Option<ApprovalDecided>,
}

/// What an approval is worth at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalState {
    /// Nobody decided yet.
    Pending,
    /// The call may be dispatched.
    Approved,
    /// A person refused.
    Denied,
    /// It was not decided, or not used, in time.
    Expired,
}

impl Approval {
    /// What it is worth at a time.
    #[must_use]
    pub fn state_at(&self, at_ms: u64) -> ApprovalState {
        match self.decided.as_ref().map(|decided| decided.ruling) {
            None if at_ms < self.requested.expires_at_ms => ApprovalState::Pending,
            Some(Ruling::Approved { until_ms }) if at_ms < until_ms => ApprovalState::Approved,
            None | Some(Ruling::Approved { .. }) => ApprovalState::Expired,
            Some(Ruling::Denied) => ApprovalState::Denied,
        }
    }

    /// Whether a request of that fingerprint may be dispatched, its time aside (contract V-6).
    #[must_use]
    pub fn covers(&self, fingerprint: Fingerprint) -> bool {
        let approved = self.decided.as_ref().is_some_and(|decided| match decided.ruling {
            Ruling::Approved { .. } => true,
            Ruling::Denied => false,
        });
        approved && self.requested.fingerprint == fingerprint
    }
}

/// Whether a call is still bound to what it was bound to when a person was asked (contract V-5).
/// How long an idempotency key holds depends on the time, and is not compared.
#[must_use]
pub fn is_bound_alike(asked: &Preflight, now: &Preflight) -> bool {
    let same_key = match (&asked.idempotency, &now.idempotency) {
        (Some(asked), Some(now)) => asked.is_same_key(now),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    asked.policy_version == now.policy_version
        && asked.route == now.route
        && asked.credential == now.credential
        && same_key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Digest;

    /// V-6: an approval holds for its fingerprint, between its decision and its end.
    #[test]
    fn v_6_its_state_follows_decision_and_time() {
        let requested = ApprovalRequested {
            fingerprint: Digest::of(b"asked"),
            expires_at_ms: 100,
            lasts_ms: 50,
            shown: None,
        };
        let with = |ruling: Option<Ruling>| Approval {
            requested: requested.clone(),
            requested_at_ms: 50,
            decided: ruling.map(|ruling| ApprovalDecided { by: "o".to_owned(), ruling }),
        };
        let approved = Some(Ruling::Approved { until_ms: 140 });
        for (ruling, at_ms, standing, covers) in [
            (None, 99, ApprovalState::Pending, false),
            (None, 100, ApprovalState::Expired, false),
            (approved, 139, ApprovalState::Approved, true),
            (approved, 140, ApprovalState::Expired, true),
            (Some(Ruling::Denied), 0, ApprovalState::Denied, false),
        ] {
            let approval = with(ruling);
            assert_eq!(approval.state_at(at_ms), standing, "{ruling:?} at {at_ms}");
            assert_eq!(approval.covers(Digest::of(b"asked")), covers, "{ruling:?}");
            assert!(!approval.covers(Digest::of(b"other")), "{ruling:?}");
        }
    }
}
