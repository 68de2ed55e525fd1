//! One more attempt of a stored command, under a lease: what is the SSH gateway's of it (contract T-1
//! to T-3, K-6, K-9). The course of it is [`journal::action`]'s.

use super::refusal::{Refusal, end_refused, not_recorded, record_refusal};
use super::{Job, Side, bound, go_on, operation};
use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::request::Destination;
use crate::spool::Spool;
use crate::stored;
use bytes::Bytes;
use journal::action::{Error, Leave, Repeat};
use journal::contract::{InvocationId, Verdict};
use journal::{Admission, Guard, Invocation, result};
use policy::SshGrant;
use std::sync::Arc;
use std::time::Duration;

/// The gateway as what sends again.
pub(crate) struct Repeater<'a>(pub(crate) &'a Arc<Shared>);

impl Repeat for Repeater<'_> {
    fn lease_time(&self, first: &Invocation) -> Option<Duration> {
        grant_of(self.0, first)?.retry.map(|rule| rule.lease)
    }

    async fn attempt(&self, leave: Leave<'_>) -> Result<InvocationId, Error> {
        let (mut job, spool) = self.restore(&leave).await?;
        let first = &leave.action.first;
        let shared = self.0;
        let snapshot = shared.policy.snapshot();
        let decision = snapshot.ssh(&job.request.to_action(&job.destination));
        if let Ok(grant) = &decision {
            job.preparation.pass(grant);
        }
        let accepted = job.accepted(Some(first.id()));
        let refused = async |refusal: Refusal| {
            Ok(record_refusal(shared, accepted.clone(), refusal.into_ended()).await.invocation_id)
        };
        let grant = match decision {
            Ok(grant) => grant,
            Err(denial) => return refused(denial.into()).await,
        };
        // V-6: an approval is for one dispatch, and nobody is asked here.
        let lets = grant.retry.is_some() && grant.approval.is_none();
        let mut operation = operation(&job, &grant);
        if !lets || !leave.is_backed_by(&operation) {
            return Err(Error::PolicyChanged);
        }
        // K-3: the same key, and an identical request.
        if first.accepted().fingerprint != accepted.fingerprint {
            return refused(other_request()).await;
        }
        // K-5: a retry neither extends nor resets the expiry of its key.
        operation.idempotency = first.operation().idempotency;
        let guard = Guard {
            budget: snapshot.budget(&job.destination.agent.name),
            ..leave.action.guard(grant.repeat_window, &operation)
        };
        let id = shared.journal.new_id();
        let mut call = match shared.journal.admit(id, accepted.clone(), guard)? {
            Admission::New(call) => call,
            Admission::Mismatch => return refused(other_request()).await,
            Admission::Spent(spent) => return refused(spent.into()).await,
            Admission::SameRequest(earlier)
            | Admission::Held(earlier)
            | Admission::InDoubt(earlier)
            | Admission::Settled(earlier) => return Err(Error::Repeated(earlier.id())),
        };
        let mut now = bound(&job, &grant, snapshot.version());
        now.idempotency = operation.idempotency;
        let side = Side { downstream: Downstream::nobody(), spool };
        if let Err(error) = call.preflight(now) {
            end_refused(call, side.downstream, not_recorded(&error)).await;
            return Ok(id);
        }
        leave.renewing(go_on(&job, side, call, &grant, Some(leave))).await;
        Ok(id)
    }
}

impl Repeater<'_> {
    /// The stored command of the action, for the same agent as it is now.
    async fn restore(&self, leave: &Leave<'_>) -> Result<(Job, Spool), Error> {
        let shared = self.0;
        let kept = leave.stored(&shared.journal).await?;
        let damaged = || Error::Stored(result::Error::Damaged);
        let (request, preparation) = stored::restore(&kept.head).ok_or_else(damaged)?;
        let spool = Spool::stored(Bytes::copy_from_slice(&kept.content));
        let destination =
            destination_of(shared, &leave.action.first).ok_or(Error::PolicyChanged)?;
        let destination = Arc::new(destination);
        Ok((Job { shared: Arc::clone(shared), destination, request, preparation }, spool))
    }
}

/// Where a call went, for its agent as it is now; none if that agent has no access any more.
pub(super) fn destination_of(shared: &Shared, first: &Invocation) -> Option<Destination> {
    let agent = shared.agent(first.accepted().agent.as_deref()?)?;
    Destination::of_record(agent, &first.accepted().target)
}

/// The grant of a command's route as it is now, where the route still leads to the command's target.
pub(super) fn grant_of(shared: &Shared, first: &Invocation) -> Option<SshGrant> {
    let route = first.preflight()?.route.as_ref()?;
    let Destination { agent, host, port, user } = destination_of(shared, first)?;
    shared.policy.snapshot().ssh_route(route, &agent.name, (&user, &host, port))
}

fn other_request() -> Refusal {
    let verdict = Verdict::key_mismatch();
    Refusal::new(verdict, "What would be sent is not what was sent first.", None)
}
