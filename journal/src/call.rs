//! One call under way, and the proofs that its records are durable.

mod result;

use crate::append;
use crate::contract::{
    Body, Code, Confirmation, CredentialUse, Delivered, DeliveryFailed, Dispatch, Ended,
    InvocationId, Noted, Outcome, Preflight, RequestSent, ResponseComplete, ResponseStarted,
    ResultCommitted, Sequence, SetupAttempt, Source, Verdict,
};
use crate::core::Core;
use crate::enqueue::{Part, Wait};
use crate::entry::Entry;
use crate::failpoint::{self, Stage};
use crate::key;
use crate::ledger::Counted;
use crate::projection::{Delivery, Invocation, State};
use crate::queue::Outcome as Told;
use result::Keep;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Bytes reserved for the events of a call: every one of them in a frame of its own.
pub(crate) const EVENT_RESERVE: u64 = 48 << 10;
/// Proof that `DISPATCH_STARTED` is durable (contract D-1). What releases bytes to an upstream
/// takes it by value; it can't be made or copied outside of this module.
#[derive(Debug)]
#[must_use]
pub struct Dispatched {
    id: InvocationId,
    sequence: Sequence,
}

impl Dispatched {
    /// The invocation.
    #[must_use]
    pub const fn id(&self) -> InvocationId {
        self.id
    }

    /// The sequence of the dispatch.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        self.sequence
    }
}

/// Proof that the outcome is durable (contract R-1). What delivers a held response takes it by
/// value.
#[derive(Debug)]
#[must_use]
pub struct Settled {
    id: InvocationId,
    sequence: Sequence,
    verdict: Verdict,
}

impl Settled {
    /// The invocation.
    #[must_use]
    pub const fn id(&self) -> InvocationId {
        self.id
    }

    /// The sequence of the deciding event.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// The outcome on record.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }
}

/// One call under way. The only way to append its course of events.
///
/// Dropped without an end, it records one: `INTERNAL_ERROR` before dispatch,
/// `REMOTE_OUTCOME_UNKNOWN` after it.
#[must_use]
pub struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) epoch: u64,
    keep: Keep,
    outstanding: VecDeque<oneshot::Receiver<Told>>,
    reserved_events: u64,
    reserved_result: u64,
    counted: Option<Counted>,
    /// What earlier uses of its key say of it.
    uses: key::Uses,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Call {
    /// A call on record; `reserved_events` is its room, to be given back at its end.
    pub(crate) fn new(
        core: Arc<Core>,
        entry: Arc<Entry>,
        epoch: u64,
        reserved_events: u64,
        counted: Option<Counted>,
    ) -> Self {
        Self {
            core,
            entry,
            epoch,
            keep: Keep::Nothing,
            outstanding: VecDeque::new(),
            reserved_events,
            reserved_result: 0,
            counted,
            uses: key::Uses::default(),
        }
    }

    /// Its key was used before: what it binds agrees with that (contract K-2, K-5).
    pub(crate) fn with_uses(mut self, uses: key::Uses) -> Self {
        self.uses = uses;
        self
    }

    /// The invocation's id.
    #[must_use]
    pub fn id(&self) -> InvocationId {
        self.entry.id
    }

    /// The invocation as this call has made it so far, durable or not.
    #[must_use]
    pub fn invocation(&self) -> Arc<Invocation> {
        Arc::clone(&self.entry.state.lock().live)
    }

    /// The credential that it is bound to (contract V-5).
    #[must_use]
    pub fn bound_credential(&self) -> Option<CredentialUse> {
        let state = self.entry.state.lock();
        state.live.preflight().and_then(|bound| bound.credential.clone())
    }

    fn append(&self, source: Source, body: Body) -> Result<(), append::Error> {
        let name = body.name();
        failpoint::event(Stage::Queue, self.entry.id, name);
        let parts = vec![Part::Event(source, body)];
        self.core.append(&self.entry, Some(self.epoch), parts, Wait::No)?;
        failpoint::event(Stage::Act, self.entry.id, name);
        Ok(())
    }

    /// Reserves more room for events of unusual length.
    pub(crate) fn reserve_events(&mut self, bytes: u64) -> Result<(), append::Error> {
        self.core.reserve(bytes)?;
        self.reserved_events += bytes;
        Ok(())
    }

    /// What parks the call.
    pub(crate) fn shared(&self) -> (Arc<Core>, Arc<Entry>) {
        (Arc::clone(&self.core), Arc::clone(&self.entry))
    }

    /// Appends and waits until it is durable.
    pub(crate) async fn append_waited(&self, body: Body) -> Result<Sequence, append::Error> {
        self.append_durable(vec![Part::Event(Source::TransportObserved, body)]).await
    }

    async fn append_durable(&self, parts: Vec<Part>) -> Result<Sequence, append::Error> {
        let name = parts.last().and_then(Part::name).unwrap_or_default();
        failpoint::event(Stage::Queue, self.entry.id, name);
        let queued = self.core.append(&self.entry, Some(self.epoch), parts, Wait::Now)?;
        let sequence = durable(queued.receiver).await?;
        failpoint::event(Stage::Act, self.entry.id, name);
        Ok(sequence)
    }

    /// Appends `PREFLIGHT_VALIDATED`; does not wait. The key does not expire later than with its
    /// earliest use on record (contract K-5).
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn preflight(&mut self, mut preflight: Preflight) -> Result<(), append::Error> {
        self.uses.bind(&mut preflight);
        let body = Body::PreflightValidated(preflight.into());
        self.append(Source::TransportObserved, body)
    }

    /// Appends `CREDENTIAL_AUTHORIZED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn authorize(&mut self, credential: Option<CredentialUse>) -> Result<(), append::Error> {
        self.append(Source::TransportObserved, Body::CredentialAuthorized(credential))
    }

    /// Appends `SETUP_ATTEMPTED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn setup_attempted(&mut self, attempt: SetupAttempt) -> Result<(), append::Error> {
        self.append(Source::TransportObserved, Body::SetupAttempted(attempt))
    }

    /// Appends `DISPATCH_STARTED` and waits until it is durable (contract D-1).
    ///
    /// # Errors
    /// [`append::Error`]; nothing may be sent then.
    pub async fn dispatch(&mut self, dispatch: Dispatch) -> Result<Dispatched, append::Error> {
        let body = Body::DispatchStarted(dispatch.into());
        let parts = vec![Part::Event(Source::TransportObserved, body)];
        let sequence = self.append_durable(parts).await?;
        Ok(Dispatched { id: self.entry.id, sequence })
    }

    /// [`Call::dispatch`] of a retry: under the lease of the invocation that it retries (contract
    /// K-6). A worker whose lease is over is stopped here, before anything is sent; so is one
    /// that was slow until its permission ended, `not_after_ms` (contract K-5).
    ///
    /// # Errors
    /// [`crate::lease::Error`]; nothing may be sent then.
    pub async fn dispatch_under(
        &mut self,
        lease: &crate::Lease,
        not_after_ms: Option<u64>,
        dispatch: Dispatch,
    ) -> Result<Dispatched, crate::lease::Error> {
        let body = Body::DispatchStarted(dispatch.into());
        let queued = lease.queue_dispatch(not_after_ms, (&self.entry, self.epoch), body)?;
        let sequence = durable(queued.receiver).await?;
        Ok(Dispatched { id: self.entry.id, sequence })
    }

    /// Appends `REQUEST_SENT`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn request_sent(&mut self, sent: RequestSent) -> Result<(), append::Error> {
        self.append(Source::TransportObserved, Body::RequestSent(sent))
    }

    /// Appends `REMOTE_RESPONSE_STARTED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn response_started(&mut self, started: ResponseStarted) -> Result<(), append::Error> {
        self.append(Source::RemoteResponse, Body::RemoteResponseStarted(started))
    }

    /// Appends `REMOTE_RESPONSE_COMPLETE` and `RESULT_COMMITTED` in one flush and waits until they
    /// are durable (contract R-1). The reference to the stored result is filled in here.
    ///
    /// # Errors
    /// [`append::Error`]; the result may not be delivered as recorded then.
    pub async fn commit(
        &mut self,
        complete: ResponseComplete,
        verdict: Verdict,
        not_before_ms: Option<u64>,
    ) -> Result<Settled, append::Error> {
        let (last, result) = self.finish_result();
        let committed = ResultCommitted { result, not_before_ms, ..ResultCommitted::of(verdict) };
        let source = Source::RemoteResponse;
        let mut parts: Vec<Part> = last.map(Part::Chunk).into_iter().collect();
        parts.push(Part::Event(source, Body::RemoteResponseComplete(complete)));
        parts.push(Part::Event(source, Body::ResultCommitted(Box::new(committed))));
        let appended = self.append_durable(parts).await;
        self.wind_up();
        let sequence = appended?;
        key::settle_repeated(&self.core, self.entry.id, &self.uses, verdict);
        Ok(Settled { id: self.entry.id, sequence, verdict })
    }

    /// Appends `RESULT_COMMITTED` alone, for a refusal that the protocol itself proves
    /// (`REMOTE_NOT_PROCESSED`, `REQUEST_REFUSED`), and waits until it is durable (contract C-6). The
    /// `note` says which.
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn reject(
        &mut self,
        verdict: Verdict,
        not_before_ms: Option<u64>,
        note: Option<&str>,
    ) -> Result<Settled, append::Error> {
        let note = note.map(str::to_owned);
        let committed = ResultCommitted { not_before_ms, note, ..ResultCommitted::of(verdict) };
        let body = Body::ResultCommitted(Box::new(committed));
        let parts = vec![Part::Event(Source::TransportObserved, body)];
        let appended = self.append_durable(parts).await;
        self.wind_up();
        Ok(Settled { id: self.entry.id, sequence: appended?, verdict })
    }

    /// Appends `INVOCATION_ENDED` and waits until it is durable.
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn end(&mut self, ended: Ended) -> Result<Settled, append::Error> {
        let verdict = ended.verdict;
        let body = Body::InvocationEnded(Box::new(ended));
        let parts = vec![Part::Event(Source::TransportObserved, body)];
        let appended = self.append_durable(parts).await;
        self.wind_up();
        Ok(Settled { id: self.entry.id, sequence: appended?, verdict })
    }

    /// [`Call::end`] of a session that was recorded: what is stored of it can be read, and is no
    /// result (contract S-2).
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn end_recorded(&mut self, mut ended: Ended) -> Result<Settled, append::Error> {
        let verdict = ended.verdict;
        let (last, recording) = self.finish_result();
        if let Some(seen) = &mut ended.observation {
            seen.recording = recording;
        }
        let mut parts: Vec<Part> = last.map(Part::Chunk).into_iter().collect();
        let body = Body::InvocationEnded(Box::new(ended));
        parts.push(Part::Event(Source::TransportObserved, body));
        let appended = self.append_durable(parts).await;
        self.wind_up();
        Ok(Settled { id: self.entry.id, sequence: appended?, verdict })
    }

    /// Ends the count of a budget: bytes are known, and another call may begin. The events of a
    /// settled call go out of memory here, on the thread that made them.
    fn wind_up(&mut self) {
        let mut state = self.entry.state.lock();
        state.catch_up(self.core.durable());
        let Some(counted) = self.counted.take() else { return };
        let used = state.live.is_dispatched().then(|| state.live.moved_bytes());
        drop(state);
        counted.end(used, self.core.clock.now_ms());
    }

    /// Appends `RESULT_DELIVERED`; does not wait. Says whether it did: nothing happens when it is on
    /// record already.
    pub fn delivered(&mut self, confirmation: Confirmation) -> bool {
        self.append_delivery(Body::ResultDelivered(Delivered { confirmation }))
    }

    /// Appends `DELIVERY_FAILED`; does not wait. Nothing happens when the delivery is confirmed.
    pub fn delivery_failed(&mut self, length_bytes: u64) {
        self.append_delivery(Body::DeliveryFailed(DeliveryFailed { length_bytes }));
    }

    fn append_delivery(&self, body: Body) -> bool {
        {
            let state = self.entry.state.lock();
            let committed = matches!(state.live.state(), State::Committed(_));
            if !committed || matches!(state.live.delivery(), Delivery::Delivered(_)) {
                return false;
            }
        }
        let appended = self.append(Source::TransportObserved, body);
        if let Err(error) = &appended {
            tracing::warn!(%error, id = %self.entry.id, "a delivery could not be recorded");
        }
        appended.is_ok()
    }

    /// Appends `NOTED`; does not wait.
    pub fn note(&mut self, name: &str, detail: &str) {
        let noted = Noted { name: name.to_owned(), detail: detail.to_owned() };
        if let Err(error) = self.append(Source::TransportObserved, Body::Noted(noted)) {
            tracing::warn!(%error, id = %self.entry.id, "a note could not be recorded");
        }
    }

    /// Records the end of a call that was given up.
    fn give_up(&self) {
        let verdict = self.entry.state.lock().live.conclude(
            self.core.clock.latest_ms(),
            Code::InternalError,
            Code::RemoteOutcomeUnknown,
        );
        let Some(verdict) = verdict else { return };
        let message = match verdict.outcome() {
            Outcome::NotAttempted => "The call was given up before dispatch; nothing was sent.",
            Outcome::Unknown | Outcome::Rejected | Outcome::Committed => {
                "The call was given up after dispatch, and no complete result was recorded."
            }
        };
        let ended = Ended {
            verdict,
            message: message.to_owned(),
            field: None,
            not_before_ms: None,
            observation: None,
        };
        let body = Body::InvocationEnded(Box::new(ended));
        if let Err(error) = self.append(Source::TransportObserved, body) {
            tracing::warn!(%error, id = %self.entry.id, "the end of a call was not recorded");
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.give_up();
        self.wind_up();
        self.core.release(self.reserved_events + self.reserved_result);
        let was_taken = std::mem::take(&mut self.entry.state.lock().is_taken);
        if was_taken {
            // Given up before dispatch, it waits again, and somebody may wait for that.
            crate::held::unpin_if_over(&self.core, &self.entry);
            self.entry.settled.notify_waiters();
        }
        self.core.release_entry(&self.entry);
    }
}

/// Waits for what the writer says of an append.
pub(crate) async fn durable(receiver: Option<oneshot::Receiver<Told>>) -> Told {
    match receiver {
        // A writer that is gone can't say more.
        Some(receiver) => receiver.await.unwrap_or(Err(append::Error::Indeterminate)),
        None => Err(append::Error::Indeterminate),
    }
}
