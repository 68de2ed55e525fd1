//! When an idempotency key is over: with its earliest use, which no later use renews (contract K-5).

use crate::call::Call;
use crate::contract::{Operation, Preflight};
use crate::projection::Invocation;

/// When the remote may forget the key that an invocation bound.
pub(crate) fn expires_at_ms(invocation: &Invocation) -> Option<u64> {
    let bound = invocation.preflight().and_then(|bound| bound.idempotency.as_ref());
    bound.map(|key| key.expires_at_ms)
}

/// Whether it may have forgotten it.
pub(crate) fn expired(invocation: &Invocation, now_ms: u64) -> bool {
    expires_at_ms(invocation).is_some_and(|at_ms| at_ms <= now_ms)
}

/// Has a key expire no later than its earliest use.
pub(crate) fn limit(preflight: &mut Preflight, earliest_ms: Option<u64>) {
    if let (Some(key), Some(at_ms)) = (&mut preflight.idempotency, earliest_ms) {
        key.expires_at_ms = key.expires_at_ms.min(at_ms);
    }
}

impl Call {
    /// Has `operation` expire with the key as the call is bound to it, so that what is judged by it
    /// agrees with the record. To be asked once the call is bound.
    pub fn limit_key(&self, operation: &mut Operation) {
        let Some(key) = &mut operation.idempotency else { return };
        if let Some(at_ms) = expires_at_ms(&self.entry.state.lock().live) {
            key.expires_at_ms = key.expires_at_ms.min(at_ms);
        }
    }
}
