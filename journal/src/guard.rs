//! What makes an earlier invocation answer instead of a new one (contract K-3, K-10, K-11).

use crate::call::Call;
use crate::projection::Invocation;
use std::time::Duration;

/// What makes an earlier invocation answer instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guard {
    /// How far back an equal request counts (K-11). `None` switches the guard off.
    pub window: Option<Duration>,
    /// Remote scope and idempotency key of the request (K-3).
    pub key: Option<(String, String)>,
}

/// What became of a submission. Everything but `New` dispatches nothing and records nothing.
#[must_use]
pub enum Admission {
    /// It is on record, and under way.
    New(Call),
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
