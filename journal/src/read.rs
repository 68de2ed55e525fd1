//! Why a record could not be read.

use std::io;

/// Why a record could not be read. The journal goes on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: a segment file could not be read.
    #[error("could not read the log")]
    Io(#[from] io::Error),
    /// Local: what was read is not what was written.
    #[error("the log is damaged: {0}")]
    Damaged(#[from] crate::verify::Damage),
    /// Local: the index could not be read.
    #[error("could not read the index")]
    Index(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Caller: the cursor is not one that a page gave.
    #[error("the cursor is not one that an earlier page gave")]
    Cursor,
}
