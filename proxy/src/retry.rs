//! The retry engine's hands: one more attempt of a stored request, under a lease (contract T-1 to
//! T-3, K-6).
//!
//! ```text
//!  stands? ─► lease (durable) ─► stands still? ─► policy ─► credential ─► connect
//!                                                 ─► LEASE_USED + DISPATCH_STARTED ─► relay
//!                                                 ─► late evidence for the first attempt ─► release
//! ```
//!
//! Whether anything may be sent is decided by [`journal::Standing`] alone; nothing in here widens
//! it. An attempt is an invocation of its own, linked to the first. A stop anywhere leaves what the
//! log says: a lease that counts against the budget, and an attempt that recovery ends.

use crate::deliver::Outbound;
use crate::engine::{self, Job, Known, Prepared, dispatch_record, now_ms};
use crate::incoming::Incoming;
use crate::proxy::Shared;
use crate::respond::Refusal;
use crate::stored;
use bytes::Bytes;
use journal::contract::{
    Body, Decision, DeliveryFailed, InvocationId, Outcome, RemoteContract, ResultCommitted, Source,
};
use journal::{
    Admission, Call, Guard, Invocation, Lease, Standing, State, append, lease, read, result,
};
use std::sync::Arc;
use std::time::Duration;

/// Why no further attempt was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Caller: the instruction allows none.
    #[error("the instruction is {}, so nothing is sent", .0.decision)]
    NotAllowed(Box<Standing>),
    /// Caller: it is too early.
    #[error("the next attempt may begin at {not_before_ms} ms since 1970, not sooner")]
    TooEarly {
        /// When, in milliseconds since 1970.
        not_before_ms: u64,
    },
    /// Caller: an attempt is under way.
    #[error("the attempt {0} is under way; wait for it")]
    UnderWay(InvocationId),
    /// Caller: another worker holds the right to the next attempt.
    #[error("{holder} holds the right to the next attempt")]
    Held {
        /// Who.
        holder: String,
    },
    /// Caller: the call is not on record.
    #[error("the invocation is not on record")]
    NotFound,
    /// Caller: there is no stored request.
    #[error("its request is not stored: the route has no `retry`, or the request can't be kept")]
    NotStored,
    /// Caller: policy does not let it be sent again any more.
    #[error("policy does not let the stored request be sent again")]
    PolicyChanged,
    /// Local: the stored request can't be read.
    #[error("the stored request can't be read: {0}")]
    Stored(#[source] result::Error),
    /// Local: the journal failed.
    #[error("the journal takes no attempt now: {0}")]
    Journal(#[from] append::Error),
    /// Local: the journal can't be read.
    #[error(transparent)]
    Read(#[from] read::Error),
}

impl From<lease::Error> for Error {
    fn from(error: lease::Error) -> Self {
        match error {
            lease::Error::Held { holder, .. } => Self::Held { holder },
            lease::Error::Over(_) => Self::Held { holder: "another worker".to_owned() },
            lease::Error::Append(error) => Self::Journal(error),
        }
    }
}

/// An action and where it stands.
pub(crate) struct Action {
    pub(crate) first: Invocation,
    pub(crate) retries: Vec<Invocation>,
    /// What expiries are judged by.
    latest_ms: u64,
}

impl Action {
    pub(crate) fn load(shared: &Shared, id: InvocationId) -> Result<Self, Error> {
        let found = shared.journal.invocation(id)?.ok_or(Error::NotFound)?;
        let first = shared.journal.first_attempt(found)?;
        let retries = shared.journal.retries(&first)?;
        Ok(Self { first, retries, latest_ms: shared.journal.latest_ms() })
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing::of(&self.first, &self.retries, self.latest_ms)
    }

    /// Whether one more attempt may be made now. `held`: by who holds the newest lease.
    pub(crate) fn check(&self, held: bool) -> Result<Standing, Error> {
        let now_ms = now_ms();
        let under_way = std::iter::once(&self.first).chain(&self.retries);
        if let Some(attempt) = under_way.into_iter().find(|attempt| !attempt.is_settled()) {
            return Err(Error::UnderWay(attempt.id()));
        }
        let standing = if held {
            Standing::of_leased(&self.first, &self.retries, self.latest_ms)
        } else {
            Standing::of(&self.first, &self.retries, self.latest_ms)
        };
        match standing.decision {
            Decision::RetryNewAttempt | Decision::RetrySameKey | Decision::RetryWhenAllowed => {}
            Decision::Fetch
            | Decision::StopForCorrection
            | Decision::Reconcile
            | Decision::ReturnRecordedResult => {
                return Err(Error::NotAllowed(Box::new(standing)));
            }
        }
        match standing.not_before_ms {
            Some(not_before_ms) if not_before_ms > now_ms => Err(Error::TooEarly { not_before_ms }),
            Some(_) | None => Ok(standing),
        }
    }
}

/// Makes one more attempt of the action that the invocation belongs to. Gives the attempt, settled.
pub(crate) async fn once(
    shared: &Arc<Shared>,
    id: InvocationId,
    holder: &str,
) -> Result<Invocation, Error> {
    let action = Action::load(shared, id)?;
    settle_first(shared, &action).await?;
    action.check(false)?;
    if action.first.request().is_none() {
        return Err(Error::NotStored);
    }
    let ttl = ttl(shared, &action.first).ok_or(Error::PolicyChanged)?;
    let lease = shared.journal.lease(action.first.id(), holder, ttl).await?;
    let made = under_lease(shared, &lease, ttl).await;
    let made_at = action.first.id();
    if let Err(error) = lease.release().await {
        tracing::info!(%error, id = %made_at, "a lease was over before its attempt ended");
    }
    made
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

/// How long a worker may hold the right, by the route as it is now.
fn ttl(shared: &Shared, first: &Invocation) -> Option<Duration> {
    let snapshot = shared.policy.snapshot();
    let route = first.preflight()?.route.as_ref()?;
    let grant = snapshot.http_route(
        route,
        first.accepted().agent.as_deref()?,
        &crate::reconcile::host_of(first)?,
    )?;
    grant.retry.map(|rule| rule.lease)
}

/// The attempt itself. Between the lease and here another worker may have finished: all is looked at
/// again.
async fn under_lease(
    shared: &Arc<Shared>,
    lease: &Lease,
    ttl: Duration,
) -> Result<Invocation, Error> {
    let action = Action::load(shared, lease.id())?;
    let standing = action.check(true)?;
    let journal = shared.journal.clone();
    let id = action.first.id();
    let stored = tokio::task::spawn_blocking(move || journal.request(id))
        .await
        .map_err(|_| Error::Stored(result::Error::Damaged))?
        .map_err(Error::Stored)?;
    let damaged = || Error::Stored(result::Error::Damaged);
    let head = stored::restore(&stored.head).ok_or_else(damaged)?;
    let framing = engine::framing(&head).map_err(|_| damaged())?;
    let mut out = Outbound::nobody();
    let mut job = Job {
        shared,
        tunnel: None,
        head,
        framing,
        incoming: Incoming::stored(Bytes::copy_from_slice(&stored.content)),
        out: &mut out,
        keep_alive: false,
        known: Known { retries: Some(id), ..Known::default() },
        again: None,
    };
    drop(stored);
    let attempt = job.attempt(&action, standing, lease, ttl).await?;
    let retried = shared.journal.invocation(attempt)?.ok_or(Error::NotFound)?;
    settle_first(shared, &Action::load(shared, id)?).await?;
    Ok(retried)
}

/// The complete result of a retry settles a first attempt in doubt, as evidence of a second
/// observer (contract J-3). Nothing else of the first attempt changes.
async fn settle_first(shared: &Shared, action: &Action) -> Result<(), Error> {
    let State::Ended(ended) = action.first.state() else { return Ok(()) };
    let result = action.retries.iter().find_map(|retry| match retry.state() {
        State::Committed(verdict) if verdict.outcome() == Outcome::Committed => {
            Some((retry.id(), verdict))
        }
        State::Committed(_)
        | State::Accepted
        | State::Validated
        | State::Authorized
        | State::Dispatched
        | State::Ended(_) => None,
    });
    let (Outcome::Unknown, Some((by, verdict))) = (ended.outcome(), result) else { return Ok(()) };
    let late = ResultCommitted { observed_by: Some(by), ..ResultCommitted::of(verdict) };
    let body = Body::ResultCommitted(Box::new(late));
    match shared.journal.record(action.first.id(), Source::RemoteQuery, body) {
        Ok(ticket) => ticket.durable().await.map(drop).map_err(Error::Journal),
        // Somebody else's evidence came first, and is as good.
        Err(append::Error::Illegal(_)) => Ok(()),
        Err(error) => Err(Error::Journal(error)),
    }
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
    async fn attempt(
        &mut self,
        action: &Action,
        standing: Standing,
        lease: &Lease,
        ttl: Duration,
    ) -> Result<InvocationId, Error> {
        let (mut call, mut prepared) = match self.admit_attempt(&action.first, standing).await {
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
        let number = u32::try_from(standing.attempts + 1).unwrap_or(u32::MAX);
        let record = dispatch_record(&ready.idle, prepared.fingerprint, number);
        // K-6, X-5: checked and queued in one step with the dispatch.
        let proof = match call.dispatch_under(lease, record).await {
            Ok(proof) => proof,
            Err(lease::Error::Append(error)) => {
                return self.ended_before_dispatch(Some(call), &Refusal::Journal(error)).await;
            }
            Err(lease::Error::Over(_) | lease::Error::Held { .. }) => {
                let earlier = Box::new(action.first.clone());
                return self.ended_before_dispatch(Some(call), &Refusal::InDoubt(earlier)).await;
            }
        };
        let exchange = self.exchange(call, &prepared, ready, ahead, proof);
        // Nobody took the result yet; it is fetched by its id.
        drop(renewing(exchange, lease, ttl, id).await);
        Ok(id)
    }

    /// Judges the stored request as policy is now, and takes the attempt on record.
    async fn admit_attempt(
        &mut self,
        first: &Invocation,
        standing: Standing,
    ) -> Result<(Call, Prepared), Stopped> {
        let agent = first.accepted().agent.clone().ok_or(Error::PolicyChanged)?;
        let mut prepared = self.prepare_for(agent).await?;
        if !still_allows(&prepared, first, standing) {
            return Err(Error::PolicyChanged.into());
        }
        // K-3: the same key, and an identical request.
        if first.accepted().fingerprint != Some(prepared.fingerprint) {
            return Err(Refusal::Mismatch.into());
        }
        // K-5: a retry neither extends nor resets the expiry of its key.
        prepared.operation.idempotency = first.operation().idempotency;
        let key = prepared.operation.idempotency.as_ref();
        let guard = Guard {
            key: key.map(|k| (k.scope.clone(), k.key.clone())),
            budget: prepared.budget,
            ..Guard::default()
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
            | Admission::Settled(earlier) => Err(Error::UnderWay(earlier.id()).into()),
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

/// Renews the lease for as long as the exchange lasts.
async fn renewing<T>(
    exchange: impl Future<Output = T>,
    lease: &Lease,
    ttl: Duration,
    id: InvocationId,
) -> T {
    tokio::pin!(exchange);
    let mut renew = tokio::time::interval(ttl.max(Duration::from_millis(30)) / 3);
    renew.tick().await;
    loop {
        tokio::select! {
            finished = &mut exchange => return finished,
            _ = renew.tick() => {
                if let Err(error) = lease.renew(ttl).await {
                    // What is dispatched stays on record and bars others until it settles.
                    tracing::info!(%error, %id, "a lease could not be renewed");
                }
            }
        }
    }
}

/// Whether policy, as it is now, still stands behind what allowed the retry (contract T-1).
fn still_allows(prepared: &Prepared, first: &Invocation, standing: Standing) -> bool {
    // V-6: an approval is for one dispatch, and nobody is asked here.
    if prepared.grant.retry.is_none() || prepared.grant.approval.is_some() {
        return false;
    }
    let before = first.operation().idempotency;
    let key =
        prepared.operation.idempotency.as_ref().zip(before.as_ref()).is_some_and(|(now, was)| {
            now.remote_contract == RemoteContract::Verified
                && now.key == was.key
                && now.scope == was.scope
        });
    match standing.decision {
        Decision::RetryNewAttempt if standing.verdict.outcome() == Outcome::Unknown => {
            prepared.operation.idempotent
        }
        Decision::RetrySameKey => key,
        // Nothing was done: what the remote or our own record says, not policy.
        Decision::RetryNewAttempt | Decision::RetryWhenAllowed => true,
        Decision::Fetch
        | Decision::StopForCorrection
        | Decision::Reconcile
        | Decision::ReturnRecordedResult => false,
    }
}
