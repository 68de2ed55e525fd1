//! Idempotency keys over several calls: when one is over (contract K-5), and which call a key of the
//! broker's own goes out with again (contract K-2, K-11).
//!
//! A key of the broker's own stands for one action: the call that it was made for, its retries, and
//! the repeats that a client hides. The action is over once a deciding result was handed over; an
//! equal request is a new action then, with a new key.

use crate::append;
use crate::call::Call;
use crate::clock::Clock;
use crate::contract::{
    Body, Code, InvocationId, Operation, Outcome, Preflight, RemoteContract, ResultCommitted,
    Retry, Source, Verdict,
};
use crate::core::Core;
use crate::enqueue::Wait;
use crate::guard::{self, Choice, Key};
use crate::live::append_late;
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

/// The key of the broker's own that an invocation bound in that scope.
pub(crate) fn own<'i>(invocation: &'i Invocation, scope: &str) -> Option<&'i str> {
    let bound = invocation.preflight()?.idempotency.as_ref()?;
    (bound.added_as.is_some() && bound.scope == scope).then_some(bound.key.as_str())
}

/// What earlier uses of its key say of a call.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// When the remote may forget the earliest of them (contract K-5).
    expires_ms: Option<u64>,
    /// The key of the broker's own that it goes out with again.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    key: String,
    /// Calls in doubt that it repeats.
    in_doubt: Vec<InvocationId>,
}

impl Uses {
    pub(crate) fn of<'i>(uses: impl Iterator<Item = &'i Invocation>) -> Self {
        Self { expires_ms: uses.filter_map(expires_at_ms).min(), shared: None }
    }

    /// Whether the remote still keeps the earliest use.
    pub(crate) fn is_kept(&self, clock: &Clock) -> bool {
        self.expires_ms.is_none_or(|at_ms| clock.latest_ms() < at_ms)
    }

    pub(crate) fn shared(&self) -> Option<&String> {
        self.shared.as_ref().map(|shared| &shared.key)
    }

    /// The calls in doubt that it repeats: under that key its result is theirs (contract K-1).
    pub(crate) fn in_doubt(&self) -> &[InvocationId] {
        self.shared.as_ref().map_or(&[], |shared| &shared.in_doubt)
    }

    /// Has a key be the shared one, and expire no later than its earliest use.
    pub(crate) fn bind(&self, preflight: &mut Preflight) {
        let Some(bound) = &mut preflight.idempotency else { return };
        if let Some(Shared { key, .. }) = &self.shared {
            bound.key.clone_from(key);
        }
        if let Some(at_ms) = self.expires_ms {
            bound.expires_at_ms = bound.expires_at_ms.min(at_ms);
        }
    }
}

/// What the uses of a key of the broker's own say of an equal request.
pub(crate) enum Own {
    /// The action of that key is over.
    Over,
    /// This use of it answers.
    Answers(Box<Invocation>),
    /// The request goes out as a repeat, under that key.
    Repeated(Uses),
}

/// Where the action of a key of the broker's own stands. `uses`: what bound the key, as it is and as
/// it may be shown.
pub(crate) fn stands(uses: &[(Invocation, Invocation)], fresh: &Key, clock: &Clock) -> Own {
    let answers = |view: &Invocation| Own::Answers(Box::new(view.clone()));
    // K-6: one active attempt at a time.
    if let Some((_, view)) = uses.iter().find(|(live, _)| !live.is_settled()) {
        return answers(view);
    }
    let decided = |(live, _): &&(Invocation, Invocation)| {
        live.verdict().outcome() == Outcome::Committed && !is_open(live)
    };
    // Where a repeat brought the result, the repeat holds it.
    let own_result = |pair: &&(Invocation, Invocation)| pair.0.observed_by().is_none();
    let held = uses.iter().filter(decided).find(own_result);
    if let Some((live, view)) = held.or_else(|| uses.iter().find(decided)) {
        return if guard::may_guard(live) { answers(view) } else { Own::Over };
    }
    let Some((live, view)) = uses.iter().find(|(live, _)| is_open(live)) else {
        // Refused; K-11 has the refusal answer until it was handed over.
        return match uses.iter().find(|(live, _)| guard::may_guard(live)) {
            Some((_, view)) => answers(view),
            None => Own::Over,
        };
    };
    let earlier = Uses::of(uses.iter().map(|(live, _)| live));
    let bound = live.preflight().and_then(|bound| bound.idempotency.as_ref());
    match bound {
        Some(bound)
            if fresh.choice == Choice::Fresh { by_fingerprint: true }
                && fresh.is_verified
                && bound.remote_contract == RemoteContract::Verified
                && earlier.is_kept(clock) =>
        {
            let in_doubt = uses.iter().filter(|(live, _)| live.is_in_doubt());
            let in_doubt = in_doubt.map(|(live, _)| live.id()).collect();
            Own::Repeated(Uses {
                shared: Some(Shared { key: bound.key.clone(), in_doubt }),
                ..earlier
            })
        }
        Some(_) | None if guard::may_guard(live) => answers(view),
        Some(_) | None => Own::Over,
    }
}

/// Whether the action may still have to be repeated, or its outcome found out.
fn is_open(live: &Invocation) -> bool {
    let verdict = live.verdict();
    match verdict.outcome() {
        Outcome::NotAttempted => false,
        Outcome::Unknown => true,
        Outcome::Rejected | Outcome::Committed => match verdict.retry() {
            Retry::Backoff | Retry::SameIdempotencyKey | Retry::Reconcile => true,
            Retry::Never | Retry::AfterCorrection | Retry::FetchResult => false,
        },
    }
}

/// A deciding result under a key of the broker's own is that of the calls in doubt which went out
/// under it before, as a second observer has it (contract J-3, K-1). What can't be recorded now
/// leaves them in doubt.
pub(crate) fn settle_repeated(core: &Core, by: InvocationId, uses: &Uses, verdict: Verdict) {
    if (verdict.outcome(), verdict.code()) != (Outcome::Committed, Code::Ok) {
        return;
    }
    for &id in uses.in_doubt() {
        let late = ResultCommitted { observed_by: Some(by), ..ResultCommitted::of(verdict) };
        let body = Body::ResultCommitted(Box::new(late));
        match append_late(core, id, Source::RemoteQuery, body, Wait::No) {
            // Other evidence may have come first, and is as good.
            Ok(_) | Err(append::Error::Illegal(_)) => {}
            Err(error) => tracing::warn!(%error, %id, "the result of a repeat was not recorded"),
        }
    }
}

impl Call {
    /// Has `operation` carry the key as the call is bound to it, so that what is sent and judged by
    /// it agrees with the record. To be asked once the call is bound.
    pub fn bind_key(&self, operation: &mut Operation) {
        let Some(key) = &mut operation.idempotency else { return };
        let state = self.entry.state.lock();
        let bound = state.live.preflight().and_then(|bound| bound.idempotency.as_ref());
        let Some(bound) = bound else { return };
        key.expires_at_ms = key.expires_at_ms.min(bound.expires_at_ms);
        if key.is_same_key(bound) {
            key.key.clone_from(&bound.key);
        }
    }
}
