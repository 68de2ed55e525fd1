//! What the journal is opened with, and what it tells about itself.

use crate::contract::{Code, Gateway, InvocationId, Outcome, Phase, Sequence};
use crate::projection::Invocation;
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
    /// How far back an earlier invocation can guard (K-3, K-11), unless
    /// [`crate::Journal::guard_for`] asks for more. A key guards for as long as the remote keeps it.
    pub guard_horizon: Duration,
    /// What leaves the log, and when.
    pub retention: Retention,
}

/// What leaves the log, segment by segment, oldest first. Nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Segments whose newest record is older leave.
    pub max_age: Option<Duration>,
    /// The oldest segments leave while all of them together are longer.
    pub max_bytes: Option<u64>,
}

/// What one pass of [`crate::Journal::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Segments that left.
    pub removed_segments: u64,
    /// Invocations that left with them.
    pub removed_invocations: u64,
    /// Invocations that were re-stated in the newest segment first.
    pub carried_forward: u64,
    /// Results that are over because their route keeps no more bytes.
    pub expired_results: u64,
    /// Segments that were rewritten without expired results.
    pub rewritten_segments: u64,
    /// Chunks of results that were dropped.
    pub dropped_chunks: u64,
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
            retention: Retention::default(),
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
    /// With this code.
    pub code: Option<Code>,
    /// Not with this one.
    pub not_code: Option<Code>,
    /// Taken by this gateway.
    pub gateway: Option<Gateway>,
    /// Only those that policy would have refused, but observed.
    pub would_be_denied: bool,
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
    /// Frames that a caller wrote itself, because it was alone.
    pub led: u64,
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
    /// The most bytes that were ever queued.
    pub peak_queued_bytes: u64,
    /// Invocations in memory: under way, or not in the index yet.
    pub held_invocations: u64,
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
