//! Puts a command on record, or finds the earlier one that answers (contract K-3, K-10, K-11).

use super::refusal::{Refusal, refuse, unavailable};
use super::{Job, carry_out, held, operation};
use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::repeat::{self, Match};
use crate::replay;
use crate::request::Request;
use crate::spool::Spool;
use journal::contract::{Accepted, InvocationId, Operation, Outcome, Verdict};
use journal::{Admission, Guard, Invocation, Key, Standing, append};
use policy::{Denial, Snapshot, SshGrant};
use std::sync::Arc;
use std::time::Duration;

/// Puts the call on record, or finds the earlier one that answers (contract K-10, K-11).
pub(super) async fn admit(
    mut job: Job,
    downstream: Downstream,
    mut spool: Spool,
    mut accepted: Accepted,
    caller_id: Option<InvocationId>,
) {
    let shared = Arc::clone(&job.shared);
    let snapshot = shared.policy.snapshot();
    let decision = snapshot.ssh(&job.request.to_action(&job.destination));
    if let Ok(grant) = &decision {
        job.preparation.pass(grant);
        accepted.fingerprint = Some(job.fingerprint());
    }
    accepted.caller_id = caller_id.is_some();
    let id = caller_id.unwrap_or_else(|| shared.journal.new_id());
    let guard = guard(&job, &snapshot, &decision);
    let admitted = admit_guarded(&shared, (&downstream, &mut spool), &accepted, id, guard).await;
    match admitted {
        Ok(Admission::New(call)) => {
            carry_out(job, downstream, spool, call, decision, snapshot.version()).await;
        }
        Ok(Admission::Held(held)) => {
            let side = held::Caller { job, downstream, spool, accepted };
            held::join(side, &held, decision).await;
        }
        Ok(Admission::Spent(spent)) => {
            // The caller's id is for the call that comes when there is room again.
            accepted.caller_id = false;
            refuse(&shared, downstream, accepted, spent.into()).await;
        }
        Ok(Admission::SameRequest(earlier)) => {
            same_id(&shared, downstream, spool, accepted, *earlier).await;
        }
        Ok(Admission::Settled(earlier)) => {
            replay::answer(&shared, downstream, *earlier, false).await;
        }
        Ok(Admission::InDoubt(earlier)) => in_doubt(&shared, downstream, accepted, &earlier).await,
        Ok(Admission::Mismatch) => {
            mismatch(&shared, downstream, accepted, caller_id.is_some()).await;
        }
        Err(error) => unavailable(downstream, id, &error).await,
    }
}

/// As [`journal::Journal::admit`], stdin included (contract K-11): `Settled` is an equal command with
/// equal input that has the result, `InDoubt` one that had, or may have had, equal input, and may have
/// had its effect.
///
/// Each that had other input is named to the journal, which looks for the next one: so of any number
/// of equal commands that come at once, the one step of the admission lets one through.
async fn admit_guarded(
    shared: &Shared,
    (downstream, spool): (&Downstream, &mut Spool),
    accepted: &Accepted,
    id: InvocationId,
    mut guard: Guard,
) -> Result<Admission, append::Error> {
    loop {
        let admitted = shared.journal.admit(id, accepted.clone(), guard.clone());
        let earlier = match admitted {
            Ok(Admission::Settled(earlier)) if shared.deliveries.decided(earlier.id()).await => {
                continue;
            }
            Ok(Admission::Settled(earlier) | Admission::InDoubt(earlier)) => earlier,
            Ok(
                Admission::New(_)
                | Admission::Held(_)
                | Admission::Spent(_)
                | Admission::SameRequest(_)
                | Admission::Mismatch,
            )
            | Err(_) => return admitted,
        };
        let (earlier, found) = repeat::judge(shared, downstream, spool, *earlier).await;
        match found {
            Match::Same if earlier.verdict().outcome() == Outcome::Committed => {
                return Ok(Admission::Settled(Box::new(earlier)));
            }
            Match::Same | Match::Unclear => return Ok(Admission::InDoubt(Box::new(earlier))),
            Match::Other => guard.others.push(earlier.id()),
        }
    }
}

/// A repeat that names the invocation (contract K-10): answered from the record if its input is
/// the same as well.
pub(super) async fn same_id(
    shared: &Shared,
    mut downstream: Downstream,
    mut spool: Spool,
    accepted: Accepted,
    earlier: Invocation,
) {
    let earlier = replay::settled(shared, &mut downstream, earlier).await;
    let claims = matches!(earlier.verdict().outcome(), Outcome::Committed | Outcome::Rejected);
    match repeat::compare(&shared.journal, &mut spool, &earlier).await {
        Match::Other => mismatch(shared, downstream, accepted, true).await,
        Match::Unclear if claims => in_doubt(shared, downstream, accepted, &earlier).await,
        Match::Same | Match::Unclear => replay::answer(shared, downstream, earlier, true).await,
    }
}

/// The same name for another request (contract K-3, K-10). `by_id`: the name is the caller's id.
async fn mismatch(shared: &Shared, downstream: Downstream, mut accepted: Accepted, by_id: bool) {
    let verdict = Verdict::key_mismatch();
    let (message, field) = if by_id {
        let message = "This invocation id stands for another request, or for other input; use a \
                       new id.";
        (message, "request.env.AFFIANT_INVOCATION")
    } else {
        ("This release id stands for another call; use a new one.", "command")
    };
    let refusal = Refusal::new(verdict, message, Some(field));
    accepted.caller_id = false;
    refuse(shared, downstream, accepted, refusal).await;
}

async fn in_doubt(
    shared: &Shared,
    downstream: Downstream,
    mut accepted: Accepted,
    earlier: &Invocation,
) {
    // K-5: what its key allowed is over with the key.
    let standing = Standing::of(earlier, &[], shared.journal.latest_ms());
    let verdict = Verdict::in_doubt_duplicate(standing.verdict.retry());
    let state = match (earlier.is_settled(), earlier.verdict().outcome()) {
        (false, _) => "is under way",
        (true, Outcome::Unknown) => "is in doubt",
        (true, Outcome::Committed | Outcome::Rejected | Outcome::NotAttempted) => {
            "was carried out, and whether its input was the same can't be told"
        }
    };
    let message = format!(
        "An equal command {state}: follow {}. A second effect that is meant takes a new \
         AFFIANT_INVOCATION.",
        earlier.id()
    );
    accepted.link = Some(earlier.id());
    accepted.caller_id = false;
    refuse(shared, downstream, accepted, Refusal::new(verdict, message, None)).await;
}

/// What of the past stands against the call.
fn guard(job: &Job, snapshot: &Snapshot, decision: &Result<SshGrant, Denial>) -> Guard {
    let operation = decision.as_ref().map(|grant| operation(job, grant)).unwrap_or_default();
    Guard {
        window: guard_window(&job.request, decision, &operation),
        key: operation.idempotency.as_ref().map(Key::from),
        join: decision.as_ref().is_ok_and(|grant| grant.approval.is_some()),
        others: Vec::new(),
        action: None,
        budget: decision.is_ok().then(|| snapshot.budget(&job.destination.agent.name)).flatten(),
    }
}

/// The window of the guard against hidden repeats. A shell or a subsystem is a conversation, not an
/// action that a client repeats.
fn guard_window(
    request: &Request,
    decision: &Result<SshGrant, Denial>,
    operation: &Operation,
) -> Option<Duration> {
    match (request, decision) {
        (Request::Exec(_), Ok(grant)) if !operation.idempotent => grant.repeat_window,
        (
            Request::Exec(_) | Request::Shell | Request::Subsystem(_) | Request::Forward { .. },
            Ok(_) | Err(_),
        ) => None,
    }
}
