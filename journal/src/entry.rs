//! An invocation in memory: from admission until its last event is in the index.

use crate::contract::{Body, Event, InvocationId, Sequence};
use crate::guard;
use crate::log::{Kind, Position};
use crate::projection::Invocation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Records that most calls stay below.
const RECORDS: usize = 12;

/// An invocation in memory.
pub(crate) struct Entry {
    pub(crate) id: InvocationId,
    /// What it guards against (K-11), if it has a fingerprint.
    pub(crate) request_hash: Option<[u8; 16]>,
    /// The idempotency key that it binds (K-3).
    pub(crate) key_hash: Option<[u8; 16]>,
    /// Woken when an outcome became durable.
    pub(crate) settled: Notify,
    /// Whether the projector's list has it already. Changes under the lock of that list only.
    is_listed: AtomicBool,
    pub(crate) state: Mutex<EntryState>,
}

/// The part that changes.
///
/// Invariant: `live` is `durable` plus all of `events`. What others are shown comes from `durable`,
/// so nobody sees what a crash could take back.
pub(crate) struct EntryState {
    /// With everything that was queued.
    pub(crate) live: Arc<Invocation>,
    /// With what is known to be durable; `None` before its first event is.
    durable: Option<Arc<Invocation>>,
    /// Events that `durable` lacks, in order; the later ones may not be on the disk yet.
    pub(crate) events: VecDeque<(Sequence, Event)>,
    /// Positions of durable records that the index does not hold.
    pub(crate) records: Vec<(Sequence, Kind, Position)>,
    /// Calls and look-ups that hold it; it stays in memory while there are any.
    pub(crate) users: u32,
    /// Whether a call goes on with it after an approval.
    pub(crate) is_taken: bool,
    /// Whether recovery found its dispatch on the disk although no proof of it was handed out.
    pub(crate) unproven: bool,
}

impl Entry {
    /// A call that was just taken on record.
    pub(crate) fn admitted(
        live: Invocation,
        event: Event,
        request_hash: Option<[u8; 16]>,
        key_hash: Option<[u8; 16]>,
    ) -> Self {
        let mut events = VecDeque::with_capacity(RECORDS);
        events.push_back((live.first_sequence(), event));
        Self {
            id: live.id(),
            request_hash,
            key_hash,
            settled: Notify::new(),
            is_listed: AtomicBool::new(false),
            state: Mutex::new(EntryState {
                live: Arc::new(live),
                durable: None,
                events,
                records: Vec::with_capacity(RECORDS),
                users: 1,
                is_taken: false,
                unproven: false,
            }),
        }
    }

    /// An invocation that the index holds.
    pub(crate) fn loaded(invocation: Invocation) -> Self {
        let live = Arc::new(invocation);
        Self {
            id: live.id(),
            request_hash: guard::request_hash(live.accepted()),
            key_hash: None,
            settled: Notify::new(),
            is_listed: AtomicBool::new(false),
            state: Mutex::new(EntryState {
                durable: Some(Arc::clone(&live)),
                live,
                events: VecDeque::new(),
                records: Vec::new(),
                users: 0,
                is_taken: false,
                unproven: false,
            }),
        }
    }
}

impl Entry {
    /// Says whether it still has to go on the projector's list, whose lock the caller holds.
    pub(crate) fn enlist(&self) -> bool {
        !self.is_listed.swap(true, Ordering::Relaxed)
    }

    /// It was taken off that list, under the same lock: what changes from here on lists it again.
    pub(crate) fn delist(&self) {
        self.is_listed.store(false, Ordering::Relaxed);
    }
}

impl EntryState {
    /// Applies what has become durable since, and keeps its events no longer.
    pub(crate) fn catch_up(&mut self, limit: Sequence) -> Option<&Arc<Invocation>> {
        if self.live.last_sequence() <= limit {
            // Nothing is open, so the two are the same.
            self.durable = Some(Arc::clone(&self.live));
            self.events.clear();
            return self.durable.as_ref();
        }
        while let Some((sequence, event)) =
            self.events.pop_front_if(|(sequence, _)| *sequence <= limit)
        {
            let applied = match &mut self.durable {
                None => Invocation::start(sequence, &event).map(|started| {
                    self.durable = Some(Arc::new(started));
                }),
                Some(durable) => Arc::make_mut(durable).apply(sequence, &event),
            };
            if let Err(error) = applied {
                // Every event went through the same function before it was queued.
                tracing::error!(%error, %sequence, "an appended event does not project");
            }
        }
        self.durable.as_ref()
    }

    /// What may be shown: the durable state, or the bare admission while nothing is durable.
    pub(crate) fn view(&mut self, limit: Sequence) -> Invocation {
        if let Some(durable) = self.catch_up(limit) {
            return Invocation::clone(durable);
        }
        let first = self.events.front();
        first
            .and_then(|(sequence, event)| Invocation::start(*sequence, event).ok())
            .unwrap_or_else(|| Invocation::clone(&self.live))
    }

    /// Forgets what did not become durable. False when nothing is left.
    pub(crate) fn roll_back(&mut self, limit: Sequence) -> bool {
        self.catch_up(limit);
        self.events.clear();
        self.records.retain(|(sequence, _, _)| *sequence <= limit);
        match &self.durable {
            Some(durable) => {
                self.live = Arc::clone(durable);
                true
            }
            None => false,
        }
    }
}

/// Whether somebody may wait for an event without having appended it: outcomes and decisions.
pub(crate) const fn settles(body: &Body) -> bool {
    match body {
        Body::ResultCommitted(_)
        | Body::InvocationEnded(_)
        | Body::DispatchWithdrawn(_)
        | Body::ApprovalDecided(_) => true,
        Body::ActionAccepted(_)
        | Body::PreflightValidated(_)
        | Body::ApprovalRequested(_)
        | Body::CredentialAuthorized(_)
        | Body::RequestStored(_)
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::RequestSent(_)
        | Body::RemoteResponseStarted(_)
        | Body::BatchMembers(_)
        | Body::MembersJudged(_)
        | Body::JobTracked(_)
        | Body::RemoteResponseComplete(_)
        | Body::ResultDelivered(_)
        | Body::DeliveryFailed(_)
        | Body::ResultExpired(_)
        | Body::RepeatAnswered(_)
        | Body::Noted(_)
        | Body::LeaseAcquired(_)
        | Body::LeaseRenewed(_)
        | Body::LeaseUsed(_)
        | Body::LeaseReleased(_) => false,
    }
}
