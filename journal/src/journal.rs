//! The live journal: admission, look-ups, late facts.

use crate::contract::{
    Accepted, Body, Event, Gateway, InvocationId, Outcome, Phase, Sequence, Source,
};
use crate::guard::{Admission, Guard};
use crate::projection::Invocation;
use crate::result::{self, ResultKey, StoredResult};
use crate::{append, open, read};
use std::path::PathBuf;
use std::time::Duration;

/// How a journal is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of the journal; made if it is not there.
    pub directory: PathBuf,
    /// Length of a segment file. At least 256 KiB.
    pub segment_bytes: u64,
    /// Whether appends are synced. False only in benches: a crash then loses what was acknowledged.
    pub durable: bool,
    /// How far back an earlier invocation can guard (K-3, K-11). At least the longest window.
    pub guard_horizon: Duration,
}

impl Options {
    /// The defaults: 16 MiB, durable, one day.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            segment_bytes: 16 << 20,
            durable: true,
            guard_horizon: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// What opening found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The newest sequence found.
    pub last_sequence: Sequence,
    /// Bytes of a torn last batch that were cut off; nobody was told of them.
    pub discarded_bytes: u64,
    /// Records that the index had not seen.
    pub replayed: u64,
    /// Whether the index was rebuilt from nothing.
    pub rebuilt: bool,
    /// Calls ended as `not_attempted`.
    pub not_attempted: Vec<InvocationId>,
    /// Calls ended as `unknown`: in doubt, never repeated by the broker.
    pub unknown: Vec<InvocationId>,
    /// Committed calls of which nobody knows whether the result was handed over.
    pub undelivered: Vec<InvocationId>,
}

/// Which invocations a list shows. Default: all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of this agent.
    pub agent: Option<String>,
    /// With this outcome.
    pub outcome: Option<Outcome>,
    /// In this phase.
    pub phase: Option<Phase>,
    /// Taken by this gateway.
    pub gateway: Option<Gateway>,
    /// Taken at or after this time, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// At most so many; 0 means 50.
    pub limit: usize,
    /// Where the page before ended: [`Page::next`].
    pub cursor: Option<String>,
}

/// One page of a list, newest first.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The invocations.
    pub invocations: Vec<Invocation>,
    /// The cursor of the next page; `None` at the end. A page can be short, even empty, and still
    /// have a next one: a list looks at a bounded number of records per page.
    pub next: Option<String>,
}

/// Counters since the journal was opened, and gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records appended.
    pub appends: u64,
    /// Frames written; one batch each.
    pub frames: u64,
    /// Syncs of frames.
    pub syncs: u64,
    /// Bytes of frames, padding included.
    pub written_bytes: u64,
    /// Bytes of payload and results in them.
    pub payload_bytes: u64,
    /// Time that records waited for their batch, in microseconds, added up.
    pub queue_wait_us: u64,
    /// Time spent in writes and syncs, in microseconds, added up.
    pub sync_us: u64,
    /// Bytes queued now.
    pub queued_bytes: u64,
    /// Bytes reserved by calls under way.
    pub reserved_bytes: u64,
    /// Bytes that can still be reserved.
    pub available_bytes: u64,
    /// Whether records are taken.
    pub healthy: bool,
    /// How often the log was recovered after a failure.
    pub reopened: u64,
    /// The newest durable sequence.
    pub durable_sequence: Sequence,
    /// The newest sequence in the index.
    pub indexed_sequence: Sequence,
}

/// An append that is on its way.
#[must_use = "an append is durable only after Ticket::durable"]
pub struct Ticket {
    _private: (),
}

impl Ticket {
    /// Waits until the event is durable.
    ///
    /// # Errors
    /// [`append::Error::Indeterminate`] when the write or the sync failed.
    pub async fn durable(self) -> Result<Sequence, append::Error> {
        todo!()
    }
}

/// The journal of one home. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    _private: (),
}

impl Journal {
    /// Locks the directory, recovers, ends the calls that the last run left open, durably.
    ///
    /// Blocks; not for an async worker.
    ///
    /// # Errors
    /// [`open::Error`]; with [`open::Error::Damaged`] nothing was changed.
    pub fn open(
        _options: Options,
        _key: Option<ResultKey>,
    ) -> Result<(Self, Recovery), open::Error> {
        todo!()
    }

    /// Gives or takes away the key of results (vault unlocked, vault locked).
    pub fn set_result_key(&self, _key: Option<ResultKey>) {
        todo!()
    }

    /// Makes an id.
    #[must_use]
    pub fn new_id(&self) -> InvocationId {
        todo!()
    }

    /// Takes a call on record, or says which earlier one answers instead. Atomic: of two equal
    /// submissions one is new. Room for the whole call is reserved first (contract R-6).
    ///
    /// `ACTION_ACCEPTED` is queued, not yet durable.
    ///
    /// # Errors
    /// [`append::Error`]; nothing is on record then.
    pub fn admit(
        &self,
        _id: InvocationId,
        _accepted: Accepted,
        _guard: Guard,
    ) -> Result<Admission, append::Error> {
        todo!()
    }

    /// Says whether a call could be admitted now.
    ///
    /// # Errors
    /// [`append::Error`] with what [`Journal::admit`] would say.
    pub fn ready(&self) -> Result<(), append::Error> {
        todo!()
    }

    /// The durable state of an invocation.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn invocation(&self, _id: InvocationId) -> Result<Option<Invocation>, read::Error> {
        todo!()
    }

    /// The durable events of an invocation, in order; empty when it is not on record.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn events(&self, _id: InvocationId) -> Result<Vec<(Sequence, Event)>, read::Error> {
        todo!()
    }

    /// Invocations, newest first.
    ///
    /// # Errors
    /// [`read::Error`].
    pub fn list(&self, _filter: &Filter) -> Result<Page, read::Error> {
        todo!()
    }

    /// The stored result of an invocation. A read, never a repeat (contract ).
    ///
    /// # Errors
    /// [`result::Error`].
    pub fn result(&self, _id: InvocationId) -> Result<StoredResult, result::Error> {
        todo!()
    }

    /// Appends a late fact to an invocation: `RESULT_DELIVERED` by ack, `REPEAT_ANSWERED`, `NOTED`,
    /// late evidence.
    ///
    /// # Errors
    /// [`append::Error`].
    pub fn record(
        &self,
        _id: InvocationId,
        _source: Source,
        _body: Body,
    ) -> Result<Ticket, append::Error> {
        todo!()
    }

    /// Waits until the invocation is settled and that is durable; at once when it is already, or
    /// is not on record.
    pub async fn changed(&self, _id: InvocationId) {
        todo!()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// Writes out what is queued, brings the index up to date and ends the threads. Calls that are
    /// still under way get [`append::Error::Closed`]; the next open ends them.
    pub async fn close(&self) {
        todo!()
    }
}
