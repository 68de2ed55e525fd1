//! Whether an answer reached its caller (contract R-5): confirmed, failed, or taken back.
//!
//! ```text
//!  Pending ──asked for the next──► confirmed, for good
//!     ├─────acknowledged────► HandedOver ──reset before it asked for more──► taken back
//!     └─────reset, too late──► failed
//! ```
//!
//! What the caller's host acknowledged may lie there unread. A host that throws unread bytes away says
//! so by a reset (RFC 2525 section 2.17); one whose program read them ends the connection in order.

use journal::contract::{Body, Confirmation, Delivered, DeliveryFailed, InvocationId, Source};
use journal::{Call, Journal};
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
    /// The embedder wants to know.
    Told(OnDelivered),
}

/// What is called once the caller's host acknowledged a whole answer of the control API, and not
/// otherwise; in the extensions of its `http::Response`.
#[derive(Clone)]
pub struct OnDelivered(pub Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for OnDelivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDelivered(..)")
    }
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

    /// A delivery that the embedder wants to know of.
    pub(crate) const fn told(told: OnDelivered, sent: u64) -> Self {
        Self { record: Record::Told(told), sent }
    }

    /// The caller asked for more after it could have the answer.
    pub(crate) fn confirm(self) {
        drop(self.record_as(Confirmation::Protocol));
    }

    /// The caller's host acknowledged all of it.
    pub(crate) fn arrived(self) -> Option<HandedOver> {
        self.record_as(Confirmation::Transport)
    }

    fn record_as(self, confirmation: Confirmation) -> Option<HandedOver> {
        let body = Body::ResultDelivered(Delivered { confirmation });
        let (ids, journal) = match self.record {
            Record::Call(mut call, journal) => {
                let id = call.delivered(confirmation).then(|| call.id());
                ([id, None], journal)
            }
            Record::Earlier([asked, held], journal) | Record::Retried([asked, held], journal) => {
                let held_too = record(&journal, held, body.clone()).then_some(held);
                let asked_too = (asked != held && record(&journal, asked, body)).then_some(asked);
                ([asked_too, held_too], journal)
            }
            Record::Told(OnDelivered(tell)) => {
                tell();
                return None;
            }
        };
        let is_any = ids.iter().any(Option::is_some);
        is_any.then_some(HandedOver { ids, journal, sent: self.sent })
    }

    /// The caller does not have it.
    pub(crate) fn fail(self) {
        match self.record {
            Record::Call(mut call, _) => call.delivery_failed(self.sent),
            // The first delivery stands as it is; the repeat can be repeated.
            Record::Earlier(..) | Record::Told(_) => {}
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
    journal: Journal,
    sent: u64,
}

impl HandedOver {
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
