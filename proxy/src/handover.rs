//! Whether an answer reached its caller (contract R-5): confirmed, failed, or taken back.
//!
//! ```text
//!  Pending ──asked for the next──► confirmed, for good      ┌──asked for more──► confirmed, for good
//!     ├─────acknowledged─────────► HandedOver ──────────────┴──────reset───────► taken back
//!     └─────reset, too late──────► failed
//! ```
//!
//! What the caller's host acknowledged may lie there unread. A host that throws unread bytes away says
//! so by a reset (RFC 2525 section 2.17); one whose program read them ends the connection in order.

use crate::unread::{Connection, Listed, Unread};
use journal::contract::{
    Body, Confirmation, Delivered, DeliveryFailed, Fingerprint, InvocationId, Source,
};
use journal::{Call, Invocation, Journal};
use std::sync::Arc;

/// A delivery that is not confirmed yet (contract R-5).
pub(crate) struct Pending {
    record: Record,
    sent: u64,
}

enum Record {
    Call(Box<Call>, Journal),
    /// The invocation that the caller knows, and the attempt that holds its result.
    Earlier([InvocationId; 2], Journal),
    /// The same, of an attempt that the broker made for this caller.
    Retried([InvocationId; 2], Journal),
    /// The same, read by way of the control API.
    Fetched([InvocationId; 2], Journal),
}

/// An answer of the control API is a whole stored result; in the extensions of its `http::Response`. That
/// the caller has it is recorded as it is of any other answer (contract R-5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// The invocation that the caller asked for.
    pub asked: InvocationId,
    /// The attempt that holds its result; often the same.
    pub held: InvocationId,
}

impl Pending {
    pub(crate) fn new(call: Call, journal: Journal, sent: u64) -> Self {
        Self { record: Record::Call(Box::new(call), journal), sent }
    }

    /// The delivery of a recorded result: of an earlier call, or of an attempt made for this caller.
    pub(crate) const fn of_record(
        ids: [InvocationId; 2],
        replayed: bool,
        journal: Journal,
        sent: u64,
    ) -> Self {
        let record =
            if replayed { Record::Earlier(ids, journal) } else { Record::Retried(ids, journal) };
        Self { record, sent }
    }

    /// The delivery of a result that was read by way of the control API.
    pub(crate) const fn fetched(fetched: Fetched, journal: Journal, sent: u64) -> Self {
        Self { record: Record::Fetched([fetched.asked, fetched.held], journal), sent }
    }

    /// The caller asked for more after it could have the answer.
    pub(crate) fn confirm(self) {
        let confirmation = match self.record {
            Record::Call(..) | Record::Earlier(..) | Record::Retried(..) => Confirmation::Protocol,
            Record::Fetched(..) => Confirmation::Fetched,
        };
        drop(self.record_as(confirmation));
    }

    /// The caller's host acknowledged all of it.
    pub(crate) fn arrived(self) -> Option<HandedOver> {
        self.record_as(Confirmation::Transport)
    }

    fn record_as(self, confirmation: Confirmation) -> Option<HandedOver> {
        let body = Body::ResultDelivered(Delivered { confirmation });
        let is_fetched = matches!(self.record, Record::Fetched(..));
        let (ids, guarded, journal) = match self.record {
            Record::Call(mut call, journal) => {
                let id = call.delivered(confirmation).then(|| call.id());
                ([id, None], guarded(&call.invocation()), journal)
            }
            Record::Earlier([asked, held], journal)
            | Record::Retried([asked, held], journal)
            | Record::Fetched([asked, held], journal) => {
                let held_too = record(&journal, held, body.clone()).then_some(held);
                let asked_too = (asked != held && record(&journal, asked, body)).then_some(asked);
                let invocation = journal.invocation(asked).ok().flatten();
                ([asked_too, held_too], invocation.as_ref().and_then(guarded), journal)
            }
        };
        let is_any = ids.iter().any(Option::is_some);
        let sent = self.sent;
        is_any.then_some(HandedOver { ids, guarded, listed: None, is_fetched, journal, sent })
    }

    /// The caller does not have it.
    pub(crate) fn fail(self) {
        match self.record {
            Record::Call(mut call, _) => call.delivery_failed(self.sent),
            // The first delivery stands as it is; the repeat can be repeated.
            Record::Earlier(..) | Record::Fetched(..) => {}
            Record::Retried([_, held], journal) => {
                let body = Body::DeliveryFailed(DeliveryFailed { length_bytes: self.sent });
                record(&journal, held, body);
            }
        }
    }
}

/// An answer that the caller's host acknowledged, and whose caller has not asked for more.
pub(crate) struct HandedOver {
    /// Whose delivery this connection confirmed.
    ids: [Option<InvocationId>; 2],
    /// What an equal request would be, where one is guarded against (contract K-11).
    guarded: Option<Fingerprint>,
    /// Equal requests ask for the end of the connection.
    listed: Option<Listed>,
    /// It was read by way of the control API.
    is_fetched: bool,
    journal: Journal,
    sent: u64,
}

/// What an equal request would be, unless it may be dispatched in any case.
fn guarded(invocation: &Invocation) -> Option<Fingerprint> {
    let idempotent = invocation.preflight().is_some_and(|bound| bound.idempotent);
    invocation.accepted().fingerprint.filter(|_| !idempotent)
}

impl HandedOver {
    /// Has equal requests ask for the end of the connection that the answer went to.
    pub(crate) fn list(&mut self, unread: &Arc<Unread>, connection: Connection) {
        self.listed = self.guarded.map(|fingerprint| unread.list(fingerprint, connection));
    }

    /// The caller asked for more, so it has this. That adds nothing to the delivery of a call that it made on
    /// this connection; that it read a result of another one is a fact of its own.
    pub(crate) fn asked_for_more(self) {
        if self.is_fetched {
            for id in self.ids.into_iter().flatten() {
                let confirmation = Confirmation::Fetched;
                record(&self.journal, id, Body::ResultDelivered(Delivered { confirmation }));
            }
        }
    }

    /// The connection was reset: nobody read it.
    pub(crate) fn take_back(self) {
        for id in self.ids.into_iter().flatten() {
            let body = Body::DeliveryFailed(DeliveryFailed { length_bytes: self.sent });
            record(&self.journal, id, body);
        }
    }
}

impl std::fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandedOver").field("ids", &self.ids).finish_non_exhaustive()
    }
}

/// Records a late fact; whether it is on record now.
pub(crate) fn record(journal: &Journal, id: InvocationId, body: Body) -> bool {
    match journal.record(id, Source::TransportObserved, body) {
        Ok(ticket) => {
            drop(ticket);
            true
        }
        Err(error) => {
            tracing::debug!(%error, %id, "a late fact was not recorded");
            false
        }
    }
}
