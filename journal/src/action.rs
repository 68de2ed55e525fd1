//! An action with all its attempts: whether one more may be made, and what late evidence settles
//! (contract T-1 to T-3, J-3, K-6, K-7).
//!
//! ```text
//!  stands? ─► lease (durable) ─► stands still? ─► the gateway's attempt ─► late evidence for the
//!                                                                          first attempt ─► release
//! ```
//!
//! Whether anything may be sent is decided by [`Standing`] alone; nothing in here widens it. An
//! attempt is an invocation of its own, linked to the first. A stop anywhere leaves what the log
//! says: a lease that counts against the budget, and an attempt that recovery ends. How a request
//! is sent is the gateway's: see [`Repeat`].

use crate::contract::{
    Body, Code, Decision, InvocationId, Noted, Operation, Outcome, RemoteContract, ResultCommitted,
    Retry, Source, Verdict,
};
use crate::{
    Guard, Invocation, Journal, Key, Lease, Standing, State, StoredRequest, append, lease, read,
    result,
};
use std::time::Duration;

/// The name of the note that a question leaves when its answer decides nothing.
pub const INCONCLUSIVE: &str = "reconcile_inconclusive";

/// The name of the note that a question leaves which no complete answer came to.
pub const UNANSWERED: &str = "reconcile_unanswered";

/// The name of the note that says that no question can be asked.
pub const NOT_ASKABLE: &str = "reconcile_not_askable";

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
    /// Caller: an equal request stands in the way (contract K-11).
    #[error("an equal request, {0}, is in flight, in doubt or not handed over yet")]
    Repeated(InvocationId),
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

/// Why nothing was asked about a call in doubt.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// Caller: nothing is in doubt.
    #[error("the outcome of this call is not in doubt")]
    NotInDoubt,
    /// Caller: an attempt is under way, and an answer could be older than its effect.
    #[error("the attempt {0} is under way; wait for it")]
    UnderWay(InvocationId),
    /// Caller: the route says nothing of how to ask.
    #[error("the route of this call has no `reconcile`, or lets this agent use it no more")]
    NoRule,
    /// Caller: the call lacks the name that the route asks by.
    #[error("{0}")]
    Nameless(String),
    /// Caller: the call is not on record.
    #[error("the invocation is not on record")]
    NotFound,
    /// Local: the question can't be put as a request.
    #[error("the route's `reconcile` makes no valid request of this call")]
    Malformed,
    /// Local: what is stored of the call can't be read.
    #[error("what is stored of the call can't be read: {0}")]
    Stored(#[source] result::Error),
    /// Local: the journal failed.
    #[error("the journal takes no record now: {0}")]
    Journal(#[from] append::Error),
    /// Local: the journal can't be read.
    #[error(transparent)]
    Read(#[from] read::Error),
}

impl QueryError {
    /// Whether it stays so: no later question about the call would get further.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        match self {
            Self::NoRule | Self::Nameless(_) | Self::Malformed => true,
            Self::Stored(error) => match error {
                result::Error::NotFound
                | result::Error::NotKept
                | result::Error::Incomplete
                | result::Error::Expired
                | result::Error::Damaged => true,
                // The vault is unlocked, and the log read, some other time.
                result::Error::Locked | result::Error::Read(_) => false,
            },
            Self::NotInDoubt
            | Self::UnderWay(_)
            | Self::NotFound
            | Self::Journal(_)
            | Self::Read(_) => false,
        }
    }
}

impl From<Error> for QueryError {
    fn from(error: Error) -> Self {
        match error {
            Error::Journal(error) => Self::Journal(error),
            Error::Read(error) => Self::Read(error),
            Error::NotAllowed(_)
            | Error::TooEarly { .. }
            | Error::UnderWay(_)
            | Error::Repeated(_)
            | Error::Held { .. }
            | Error::NotFound
            | Error::NotStored
            | Error::PolicyChanged
            | Error::Stored(_) => Self::NotFound,
        }
    }
}

/// What a question about a call in doubt brought.
#[derive(Debug)]
pub struct Reconciled {
    /// The question, as an invocation.
    pub query: Invocation,
    /// What its answer shows of the call: carried out, or not; none: nothing.
    pub shows: Option<Outcome>,
}

/// An action and where it stands.
pub struct Action {
    /// Its first attempt.
    pub first: Invocation,
    /// Its dispatched retries, in order.
    pub retries: Vec<Invocation>,
    /// What expiries are judged by.
    latest_ms: u64,
    now_ms: u64,
}

/// A gateway that can send a stored request again.
pub trait Repeat: Sync {
    /// How long a worker may hold the right to the next attempt, by the route as it is now; none:
    /// policy lets nothing be sent again.
    fn lease_time(&self, first: &Invocation) -> Option<Duration>;

    /// Makes the attempt that `leave` is for. Gives its id; its outcome is on record.
    fn attempt(&self, leave: Leave<'_>)
    -> impl Future<Output = Result<InvocationId, Error>> + Send;
}

/// Leave to make one more attempt.
#[derive(Clone, Copy)]
pub struct Leave<'a> {
    /// The action.
    pub action: &'a Action,
    /// Where it stands.
    pub standing: Standing,
    /// The right to it, which the dispatch uses up.
    pub lease: &'a Lease,
    /// How long the right holds each time.
    pub ttl: Duration,
}

impl Leave<'_> {
    /// The number of the attempt, 2 for the first retry.
    #[must_use]
    pub fn number(&self) -> u32 {
        u32::try_from(self.standing.attempts + 1).unwrap_or(u32::MAX)
    }

    /// Whether policy, as it is now, still stands behind what allowed the retry (contract T-1).
    ///
    /// `operation` is what policy says of the request now. Whether the route still lets requests be
    /// sent again at all is the caller's to check.
    #[must_use]
    pub fn is_backed_by(&self, operation: &Operation) -> bool {
        let before = self.action.first.operation().idempotency;
        let key = operation.idempotency.as_ref().zip(before.as_ref()).is_some_and(|(now, was)| {
            now.remote_contract == RemoteContract::Verified && now.is_same_key(was)
        });
        match self.standing.decision {
            Decision::RetryNewAttempt if self.standing.verdict.outcome() == Outcome::Unknown => {
                operation.idempotent
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

    /// The request as it was stored before the first dispatch.
    ///
    /// # Errors
    /// [`Error::Stored`].
    pub async fn stored(&self, journal: &Journal) -> Result<StoredRequest, Error> {
        stored(journal, self.action.first.id()).await.map_err(Error::Stored)
    }

    /// Renews the lease for as long as the exchange lasts.
    pub async fn renewing<T>(&self, exchange: impl Future<Output = T>) -> T {
        tokio::pin!(exchange);
        let mut renew = tokio::time::interval(self.ttl.max(Duration::from_millis(30)) / 3);
        renew.tick().await;
        loop {
            tokio::select! {
                finished = &mut exchange => return finished,
                _ = renew.tick() => {
                    if let Err(error) = self.lease.renew(self.ttl).await {
                        // What is dispatched stays on record and bars others until it settles.
                        tracing::info!(%error, id = %self.lease.id(), "a lease could not be renewed");
                    }
                }
            }
        }
    }
}

/// A stored request, read apart from the threads that serve calls.
///
/// # Errors
/// [`result::Error`].
pub async fn stored(journal: &Journal, id: InvocationId) -> Result<StoredRequest, result::Error> {
    let journal = journal.clone();
    let read = tokio::task::spawn_blocking(move || journal.request(id)).await;
    read.map_err(|_| result::Error::Damaged)?
}

impl Action {
    /// The action that an invocation belongs to.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Read`].
    pub fn load(journal: &Journal, id: InvocationId) -> Result<Self, Error> {
        let found = journal.invocation(id)?.ok_or(Error::NotFound)?;
        let first = journal.first_attempt(found)?;
        let retries = journal.retries(&first)?;
        Ok(Self { first, retries, latest_ms: journal.latest_ms(), now_ms: journal.now_ms() })
    }

    /// The first attempt and its retries.
    pub fn attempts(&self) -> impl Iterator<Item = &Invocation> {
        std::iter::once(&self.first).chain(&self.retries)
    }

    /// What guards an attempt (contract K-11): equal requests other than those of the action itself.
    #[must_use]
    pub fn guard(&self, window: Option<Duration>, operation: &Operation) -> Guard {
        Guard {
            window: window.filter(|_| !operation.idempotent),
            key: operation.idempotency.as_ref().map(Key::from),
            action: Some(self.first.id()),
            ..Guard::default()
        }
    }

    /// Whether there is anything to ask about: an attempt of it is in doubt (contract K-7).
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.attempts().any(Invocation::is_in_doubt)
    }

    /// Whether a question may be asked now: something is in doubt, and no attempt is under way whose
    /// effect the answer could miss (contract K-7).
    ///
    /// # Errors
    /// [`QueryError::NotInDoubt`], [`QueryError::UnderWay`].
    pub fn check_askable(&self) -> Result<(), QueryError> {
        if let Some(attempt) = self.attempts().find(|attempt| !attempt.is_settled()) {
            return Err(QueryError::UnderWay(attempt.id()));
        }
        if self.is_in_doubt() { Ok(()) } else { Err(QueryError::NotInDoubt) }
    }

    /// Where the action stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing::of(&self.first, &self.retries, self.latest_ms)
    }

    /// Whether one more attempt may be made now. `held`: by who holds the newest lease.
    ///
    /// # Errors
    /// [`Error`] that says why not.
    pub fn check(&self, held: bool) -> Result<Standing, Error> {
        if let Some(attempt) = self.attempts().find(|attempt| !attempt.is_settled()) {
            return Err(Error::UnderWay(attempt.id()));
        }
        let standing = if held {
            Standing::of_leased(&self.first, &self.retries, self.latest_ms)
        } else {
            self.standing()
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
            Some(not_before_ms) if not_before_ms > self.now_ms => {
                Err(Error::TooEarly { not_before_ms })
            }
            Some(_) | None => Ok(standing),
        }
    }

    /// The complete result of a retry settles a first attempt in doubt, as evidence of a second
    /// observer (contract J-3). Nothing else of the first attempt changes. That a retry failed says
    /// nothing of the attempts before it.
    async fn settle_first(&self, journal: &Journal) -> Result<(), Error> {
        let State::Ended(ended) = self.first.state() else { return Ok(()) };
        let result = self.retries.iter().find_map(|retry| match retry.state() {
            State::Committed(verdict)
                if verdict.outcome() == Outcome::Committed && !retry.has_failed() =>
            {
                Some((retry.id(), verdict))
            }
            State::Committed(_)
            | State::Accepted
            | State::Validated
            | State::Authorized
            | State::Dispatched
            | State::Ended(_) => None,
        });
        let (Outcome::Unknown, Some((by, verdict))) = (ended.outcome(), result) else {
            return Ok(());
        };
        let late = ResultCommitted { observed_by: Some(by), ..ResultCommitted::of(verdict) };
        let body = Body::ResultCommitted(Box::new(late));
        match journal.record(self.first.id(), Source::RemoteQuery, body) {
            Ok(ticket) => ticket.durable().await.map(drop).map_err(Error::Journal),
            // Somebody else's evidence came first, and is as good.
            Err(append::Error::Illegal(_)) => Ok(()),
            Err(error) => Err(Error::Journal(error)),
        }
    }

    /// Appends what the answer to a question shows, or that it shows nothing (contract K-7, J-5).
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn settle_by_query(
        &self,
        journal: &Journal,
        query: &Invocation,
        shows: Option<Outcome>,
    ) -> Result<(), append::Error> {
        let verdict = match shows {
            Some(Outcome::Committed) => Verdict::committed(Retry::Never, Code::Ok),
            // A job that failed is a complete result of the job.
            Some(Outcome::Rejected) if self.first.accepted().is_job() => {
                Verdict::committed(Retry::Never, Code::RemoteFailed)
            }
            Some(Outcome::Rejected) => {
                Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected)
            }
            Some(Outcome::Unknown | Outcome::NotAttempted) | None => {
                let name = match query.state() {
                    State::Committed(_) => INCONCLUSIVE,
                    State::Accepted
                    | State::Validated
                    | State::Authorized
                    | State::Dispatched
                    | State::Ended(_) => UNANSWERED,
                };
                let noted = Noted { name: name.to_owned(), detail: query.id().to_string() };
                let body = Body::Noted(noted);
                let ticket = journal.record(self.first.id(), Source::RemoteQuery, body)?;
                return ticket.durable().await.map(drop);
            }
        };
        let late =
            ResultCommitted { observed_by: Some(query.id()), ..ResultCommitted::of(verdict) };
        // Those that were in doubt before the question was asked: it can't speak of later ones.
        let attempts: Vec<_> = self.attempts().collect();
        journal.settle_doubt(&attempts, Source::RemoteQuery, &late).await.map(drop)
    }
}

/// Makes one more attempt of the action that the invocation belongs to. Gives the attempt, settled.
///
/// # Errors
/// [`Error`]; nothing was dispatched then.
pub async fn once(
    journal: &Journal,
    gateway: &impl Repeat,
    id: InvocationId,
    holder: &str,
) -> Result<Invocation, Error> {
    let action = Action::load(journal, id)?;
    action.settle_first(journal).await?;
    action.check(false)?;
    if action.first.request().is_none() {
        return Err(Error::NotStored);
    }
    let ttl = gateway.lease_time(&action.first).ok_or(Error::PolicyChanged)?;
    let lease = journal.lease(action.first.id(), holder, ttl).await?;
    let made = under_lease(journal, gateway, &lease, ttl).await;
    let made_at = action.first.id();
    if let Err(error) = lease.release().await {
        tracing::info!(%error, id = %made_at, "a lease was over before its attempt ended");
    }
    made
}

/// The attempt itself. Between the lease and here another worker may have finished: all is looked at
/// again.
async fn under_lease(
    journal: &Journal,
    gateway: &impl Repeat,
    lease: &Lease,
    ttl: Duration,
) -> Result<Invocation, Error> {
    let action = Action::load(journal, lease.id())?;
    let standing = action.check(true)?;
    let leave = Leave { action: &action, standing, lease, ttl };
    let attempt = gateway.attempt(leave).await?;
    let retried = journal.invocation(attempt)?.ok_or(Error::NotFound)?;
    Action::load(journal, lease.id())?.settle_first(journal).await?;
    Ok(retried)
}
