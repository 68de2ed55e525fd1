//! Finding out later: one query command about a command in doubt (contract K-7, K-9).
//!
//! The question is an invocation of its own, linked to the command; it goes to the command's own target
//! and user, with the credential of its route. What the whole answer shows by the route's conditions is
//! appended to the command as evidence of a second observer, and the command's own record stays as it is
//! (contract J-3). An answer that shows nothing is noted, and changes nothing.

use super::refusal::{end_refused, not_recorded};
use super::retry::{destination_of, grant_of};
use super::{Job, Side, bound, go_on};
use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::request::{Preparation, Request};
use crate::spool::Spool;
use bytes::Bytes;
use journal::action::{Action, QueryError, Reconciled};
use journal::contract::{InvocationId, KeepResult, Outcome, SshEnd};
use journal::{Admission, Guard, Invocation, State};
use policy::SshGrant;
use policy::command::CommandQuery;
use policy::repeat::Names;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Output of an answer that is looked at.
const ANSWER_BYTES: u64 = 1 << 20;
/// The time for an answer at most.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// The grant of a command's route as it is now, with its rule.
pub(crate) fn rule_of(shared: &Shared, first: &Invocation) -> Option<(SshGrant, CommandQuery)> {
    if first.accepted().action != "exec" {
        return None;
    }
    let grant = grant_of(shared, first)?;
    let rule = grant.reconcile.clone()?;
    Some((grant, rule))
}

/// Asks once about the action that the invocation belongs to.
pub(crate) async fn ask(shared: &Arc<Shared>, id: InvocationId) -> Result<Reconciled, QueryError> {
    let action = Action::load(&shared.journal, id)?;
    action.check_askable()?;
    let first = &action.first;
    let (grant, rule) = rule_of(shared, first).ok_or(QueryError::NoRule)?;
    let names = Names {
        idempotency_key: first.operation().idempotency.map(|key| key.key),
        invocation_id: first.id().to_string(),
        request_id: None,
    };
    let line = rule.line(&names).map_err(|error| QueryError::Nameless(error.to_string()))?;
    let destination = destination_of(shared, first).ok_or(QueryError::NoRule)?;
    let job = Job {
        shared: Arc::clone(shared),
        destination: Arc::new(destination),
        request: Request::Exec(line.into_bytes()),
        preparation: Preparation::default(),
    };
    let (query, stdout) = run(&job, first, grant).await?;
    let shows = match (query.state(), &query.evidence().ssh_end) {
        (State::Committed(_), Some(SshEnd::ExitStatus(status))) => rule.shows(*status, &stdout),
        (
            State::Committed(_)
            | State::Accepted
            | State::Validated
            | State::Authorized
            | State::Dispatched
            | State::Ended(_),
            Some(SshEnd::ExitStatus(_) | SshEnd::ExitSignal(_)) | None,
        ) => None,
    };
    let shows = shows.map(|done| if done { Outcome::Committed } else { Outcome::Rejected });
    action.settle_by_query(&shared.journal, &query, shows).await?;
    Ok(Reconciled { query, shows })
}

/// Runs the query command. Gives it back settled, whatever came of it, with its stdout.
async fn run(
    job: &Job,
    first: &Invocation,
    grant: SshGrant,
) -> Result<(Invocation, Vec<u8>), QueryError> {
    let shared = &job.shared;
    let mut grant = SshGrant {
        idempotent: true,
        release: None,
        refused_status: None,
        retry: None,
        reconcile: None,
        completion: None,
        repeat_window: None,
        // The question is policy's own, not the agent's: nobody is asked, and it counts for nothing.
        approval: None,
        // The agent may not be allowed to ask this by itself, so it does not get to read the answer.
        keep: KeepResult::Digest,
        output_bytes: Some(ANSWER_BYTES),
        ..grant
    };
    grant.limits.response_timeout = grant.limits.response_timeout.min(ANSWER_TIME);
    let id = shared.journal.new_id();
    let accepted = job.accepted(Some(first.id()));
    let mut call = match shared.journal.admit(id, accepted, Guard::default())? {
        Admission::New(call) => call,
        Admission::Mismatch
        | Admission::SameRequest(_)
        | Admission::Held(_)
        | Admission::Spent(_)
        | Admission::InDoubt(_)
        | Admission::Settled(_) => return Err(QueryError::Malformed),
    };
    let (downstream, stdout) = Downstream::kept();
    let version = shared.policy.snapshot().version();
    match call.preflight(bound(job, &grant, version)) {
        Ok(()) => {
            let side = Side { downstream, spool: Spool::stored(Bytes::new()) };
            go_on(job, side, call, &grant, None).await;
        }
        Err(error) => end_refused(call, downstream, not_recorded(&error)).await,
    }
    let query = shared.journal.invocation(id)?.ok_or(QueryError::NotFound)?;
    let stdout = std::mem::take(&mut *stdout.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((query, stdout))
}
