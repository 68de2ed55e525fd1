//! One call under way, and the proofs that its records are durable.

use crate::append;
use crate::contract::{
    Confirmation, CredentialUse, Dispatch, Ended, InvocationId, Preflight, RequestSent,
    ResponseComplete, ResponseStarted, Sequence, SetupAttempt, Verdict,
};
use crate::projection::Invocation;
use crate::result::Stream;

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
    _private: (),
}

impl Call {
    /// The invocation's id.
    #[must_use]
    pub fn id(&self) -> InvocationId {
        todo!()
    }

    /// A copy of the invocation as this call has made it so far, durable or not.
    #[must_use]
    pub fn invocation(&self) -> Invocation {
        todo!()
    }

    /// Reserves room for a result of that length (contract R-6), on top of what every call has for
    /// its events. Before dispatch; without it a long result may find no room later.
    ///
    /// # Errors
    /// [`append::Error::Unavailable`] without room.
    pub fn reserve(&mut self, _result_bytes: u64) -> Result<(), append::Error> {
        todo!()
    }

    /// Appends `PREFLIGHT_VALIDATED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn preflight(&mut self, _preflight: Preflight) -> Result<(), append::Error> {
        todo!()
    }

    /// Appends `CREDENTIAL_AUTHORIZED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn authorize(&mut self, _credential: Option<CredentialUse>) -> Result<(), append::Error> {
        todo!()
    }

    /// Appends `SETUP_ATTEMPTED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn setup_attempted(&mut self, _attempt: SetupAttempt) -> Result<(), append::Error> {
        todo!()
    }

    /// Appends `DISPATCH_STARTED` and waits until it is durable (contract D-1).
    ///
    /// # Errors
    /// [`append::Error`]; nothing may be sent then.
    pub async fn dispatch(&mut self, _dispatch: Dispatch) -> Result<Dispatched, append::Error> {
        todo!()
    }

    /// Appends `REQUEST_SENT`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn request_sent(&mut self, _sent: RequestSent) -> Result<(), append::Error> {
        todo!()
    }

    /// Appends `REMOTE_RESPONSE_STARTED`; does not wait.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn response_started(&mut self, _started: ResponseStarted) -> Result<(), append::Error> {
        todo!()
    }

    /// Stores bytes of the result, encrypted. Waits only while too much of this call is not yet
    /// durable. [`Stream::Head`] goes first, in one piece.
    ///
    /// # Errors
    /// [`append::Error`]; the result is not kept then, and [`Call::commit`] records none.
    pub async fn store(&mut self, _stream: Stream, _bytes: &[u8]) -> Result<(), append::Error> {
        todo!()
    }

    /// Forgets what was stored: [`Call::commit`] records no result. For a result that passed the
    /// route's bound.
    pub fn discard_result(&mut self) {
        todo!()
    }

    /// Appends `REMOTE_RESPONSE_COMPLETE` and `RESULT_COMMITTED` in one flush and waits until they
    /// are durable (contract R-1). The reference to the stored result is filled in here.
    ///
    /// # Errors
    /// [`append::Error`]; the result may not be delivered as recorded then.
    pub async fn commit(
        &mut self,
        _complete: ResponseComplete,
        _verdict: Verdict,
        _not_before_ms: Option<u64>,
    ) -> Result<Settled, append::Error> {
        todo!()
    }

    /// Appends `RESULT_COMMITTED` alone, for a refusal that the protocol itself proves
    /// (`REMOTE_NOT_PROCESSED`, `REQUEST_REFUSED`), and waits until it is durable (contract C-6).
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn reject(
        &mut self,
        _verdict: Verdict,
        _not_before_ms: Option<u64>,
    ) -> Result<Settled, append::Error> {
        todo!()
    }

    /// Appends `INVOCATION_ENDED` and waits until it is durable.
    ///
    /// # Errors
    /// [`append::Error`].
    pub async fn end(&mut self, _ended: Ended) -> Result<Settled, append::Error> {
        todo!()
    }

    /// Appends `RESULT_DELIVERED`; does not wait. Nothing happens when it is on record already.
    pub fn delivered(&mut self, _confirmation: Confirmation) {
        todo!()
    }

    /// Appends `DELIVERY_FAILED`; does not wait. Nothing happens when the delivery is confirmed.
    pub fn delivery_failed(&mut self, _length_bytes: u64) {
        todo!()
    }

    /// Appends `NOTED`; does not wait.
    pub fn note(&mut self, _name: &str, _detail: &str) {
        todo!()
    }
}
