//! One more attempt of a stored request, under a lease: what is the HTTP gateway's of it (contract T-1
//! to T-3, K-6). The course of it is [`journal::action`]'s.

use crate::deliver::Outbound;
use crate::engine::{self, Job, Known, Prepared, dispatch_record};
use crate::head::Framing;
use crate::incoming::Incoming;
use crate::proxy::Shared;
use crate::respond::Refusal;
use crate::stored;
use bytes::Bytes;
use journal::action::{self, Error, Leave, Repeat};
use journal::contract::{Body, DeliveryFailed, InvocationId, Preflight, Source};
use journal::{Admission, Call, Guard, Invocation, State, lease, result};
use std::sync::Arc;
use std::time::Duration;

/// The gateway as what sends again.
struct Gateway<'a>(&'a Arc<Shared>);

impl Repeat for Gateway<'_> {
    fn lease_time(&self, first: &Invocation) -> Option<Duration> {
        crate::reconcile::grant_of(self.0, first)?.retry.map(|rule| rule.lease)
    }

    async fn attempt(&self, leave: Leave<'_>) -> Result<InvocationId, Error> {
        let shared = self.0;
        let stored = leave.stored(&shared.journal).await?;
        let damaged = || Error::Stored(result::Error::Damaged);
        let head = stored::restore(&stored.head).ok_or_else(damaged)?;
        let framing = match engine::framing(&head).map_err(|_| damaged())? {
            // A stream need not say in its head that it has content.
            Framing::Empty if !stored.content.is_empty() => Framing::Chunked,
            framing @ (Framing::Empty | Framing::Length(_) | Framing::Chunked | Framing::Close) => {
                framing
            }
        };
        let mut out = Outbound::nobody();
        let mut job = Job {
            shared,
            tunnel: None,
            head,
            framing,
            incoming: Incoming::stored(Bytes::copy_from_slice(&stored.content)),
            out: &mut out,
            keep_alive: false,
            known: Known { retries: Some(leave.action.first.id()), ..Known::default() },
            again: None,
        };
        drop(stored);
        job.attempt(leave).await
    }
}

/// Makes one more attempt of the action that the invocation belongs to. Gives the attempt, settled.
pub(crate) async fn once(
    shared: &Arc<Shared>,
    id: InvocationId,
    holder: &str,
) -> Result<Invocation, Error> {
    action::once(&shared.journal, &Gateway(shared), id, holder).await
}

/// [`once`] without a caller that waits for the result: it is there to be fetched (contract R-2).
pub(crate) async fn unattended(
    shared: &Arc<Shared>,
    id: InvocationId,
    holder: &str,
) -> Result<Invocation, Error> {
    let attempt = once(shared, id, holder).await?;
    if !matches!(attempt.state(), State::Committed(_)) {
        return Ok(attempt);
    }
    let body = Body::DeliveryFailed(DeliveryFailed { length_bytes: 0 });
    let ticket = shared.journal.record(attempt.id(), Source::TransportObserved, body)?;
    ticket.durable().await?;
    shared.journal.invocation(attempt.id())?.ok_or(Error::NotFound)
}

/// Why an attempt was not taken on record.
enum Stopped {
    /// As any call would be; the refusal is recorded.
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Job<'_> {
    /// Takes the stored request through the same course as any other. Gives the attempt's id; its
    /// outcome is on record.
    async fn attempt(&mut self, leave: Leave<'_>) -> Result<InvocationId, Error> {
        let (mut call, mut prepared) = match self.admit_attempt(&leave).await {
            Ok(admitted) => admitted,
            Err(Stopped::Refused(refusal)) => {
                return self.ended_before_dispatch(None, &refusal).await;
            }
            Err(Stopped::Failed(error)) => return Err(error),
        };
        let id = call.id();
        if let Err(error) = call.preflight(self.bound(&prepared)) {
            return self.ended_before_dispatch(Some(call), &Refusal::Journal(error)).await;
        }
        let mut ready = match self.connect(&mut call, &prepared).await {
            Ok(ready) => ready,
            Err(refusal) => return self.ended_before_dispatch(Some(call), &refusal).await,
        };
        let ahead = std::mem::take(&mut prepared.ahead);
        let ahead = ready.content.take().map_or(ahead, |content| vec![content]);
        let record = dispatch_record(&ready.idle, prepared.fingerprint, leave.number());
        // K-5, K-6, X-5: checked and queued in one step with the dispatch.
        let not_after_ms = leave.standing.not_after_ms;
        let proof = match call.dispatch_under(leave.lease, not_after_ms, record).await {
            Ok(proof) => proof,
            Err(lease::Error::Append(error)) => {
                return self.ended_before_dispatch(Some(call), &Refusal::Journal(error)).await;
            }
            Err(lease::Error::Over(_) | lease::Error::Held { .. }) => {
                let earlier = Box::new(leave.action.first.clone());
                return self.ended_before_dispatch(Some(call), &Refusal::InDoubt(earlier)).await;
            }
        };
        let exchange = self.exchange(call, &prepared, ready, ahead, proof);
        // Nobody took the result yet; it is fetched by its id.
        drop(leave.renewing(exchange).await);
        Ok(id)
    }

    /// Judges the stored request as policy is now, and takes the attempt on record.
    async fn admit_attempt(&mut self, leave: &Leave<'_>) -> Result<(Call, Prepared), Stopped> {
        let first = &leave.action.first;
        let agent = first.accepted().agent.clone().ok_or(Error::PolicyChanged)?;
        // V-1: nothing is sent again for an agent that was removed meanwhile.
        if !self.shared.policy.is_current(&agent) {
            return Err(Error::PolicyChanged.into());
        }
        let mut prepared = self.prepare_for(agent).await?;
        // V-6: an approval is for one dispatch, and nobody is asked here.
        let lets = prepared.grant.retry.is_some() && prepared.grant.approval.is_none();
        if !lets || !leave.is_backed_by(&prepared.operation) {
            return Err(Error::PolicyChanged.into());
        }
        // Another route or credential may act on something else: in another account, on other terms.
        let bound = |preflight: &Preflight| {
            let credential = preflight.credential.as_ref().map(|credential| credential.id.clone());
            (preflight.route.clone(), credential)
        };
        if first.preflight().map(bound) != Some(bound(&self.bound(&prepared))) {
            return Err(Error::PolicyChanged.into());
        }
        // K-3: the same key, and an identical request.
        if first.accepted().fingerprint != Some(prepared.fingerprint) {
            return Err(Refusal::Mismatch.into());
        }
        // K-2, K-5: a retry carries the key on record, and neither extends nor resets its expiry.
        prepared.operation.idempotency = first.operation().idempotency;
        let guard = Guard {
            budget: prepared.budget,
            ..leave.action.guard(prepared.grant.repeat_window, &prepared.operation)
        };
        let accepted = self.accepted(false, Some(first.id()));
        let id = self.shared.journal.new_id();
        match self.shared.journal.admit(id, accepted, guard).map_err(Error::from)? {
            Admission::New(call) => Ok((call, prepared)),
            Admission::Mismatch => Err(Refusal::Mismatch.into()),
            Admission::Spent(spent) => Err(Refusal::Spent(spent).into()),
            Admission::SameRequest(earlier)
            | Admission::Held(earlier)
            | Admission::InDoubt(earlier)
            | Admission::Settled(earlier) => Err(Error::Repeated(earlier.id()).into()),
        }
    }

    /// Ends the attempt before dispatch, on record.
    async fn ended_before_dispatch(
        &mut self,
        call: Option<Call>,
        refusal: &Refusal,
    ) -> Result<InvocationId, Error> {
        let (id, _) = self.record_refusal(call, refusal).await;
        Ok(id)
    }
}
