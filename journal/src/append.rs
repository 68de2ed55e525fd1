//! Why an event could not be appended.

use crate::projection::IllegalEvent;

/// Why an event could not be appended. Nothing was recorded, except for [`Error::Indeterminate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Local: the log takes nothing now. It re-opens by itself; later calls can succeed.
    #[error("the journal takes no records now: {0}")]
    Unavailable(Reason),
    /// Local: a write or a sync failed, and whether the event is on disk is decided by recovery.
    #[error("the journal failed while the event was written; recovery decides whether it holds")]
    Indeterminate,
    /// Caller: the event can't follow what is on record.
    #[error(transparent)]
    Illegal(#[from] IllegalEvent),
    /// Caller: the record is longer than one record may be.
    #[error("a record of {length_bytes} bytes is longer than {limit_bytes}")]
    TooLarge {
        /// Its length.
        length_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// Caller: the invocation is not on record.
    #[error("the invocation is not on record")]
    NotFound,
    /// Local: no key is there to encrypt a result with (the vault is locked).
    #[error("the result key is not available")]
    Locked,
    /// Local: the journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// What keeps the log from taking records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The reserved space is used up.
    #[error("there is no reserved space left; free the disk")]
    NoCapacity,
    /// The queue is full.
    #[error("the queue is full")]
    QueueFull,
    /// A write or a sync failed before; recovery has not succeeded since.
    #[error("a write failed, and the log is being recovered")]
    Recovering,
    /// The call began before the log was recovered; recovery ended it.
    #[error("the log was recovered while the call was under way")]
    Superseded,
    /// Reading the state of the invocation failed.
    #[error("the index can't be read")]
    Index,
}
