//! The offline walk over everything in a journal.

use crate::contract::{Digest, Sequence};
use std::io;
use std::path::Path;

/// A place in the log that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("segment {segment}, offset {offset}, frame {frame}, sequence {sequence}: {what}")]
pub struct Damage {
    /// Number of the segment.
    pub segment: u64,
    /// Byte offset in its file.
    pub offset: u64,
    /// Number of the frame in the segment, 0 for the header.
    pub frame: u64,
    /// The last sequence before the place that is good.
    pub sequence: Sequence,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Why a journal could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: a file could not be read.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The first bad place.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

/// What a walk without a finding saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Segments.
    pub segments: u64,
    /// Frames.
    pub frames: u64,
    /// Events.
    pub events: u64,
    /// Result chunks.
    pub chunks: u64,
    /// Invocations.
    pub invocations: u64,
    /// The newest sequence.
    pub last_sequence: Sequence,
    /// The chain value at that sequence.
    pub chain: Digest,
    /// Bytes after the last good frame that are not zero: a torn last batch, never acknowledged.
    pub torn_bytes: u64,
}

/// Walks segments, checksums, chain, sequence, legality of events and completeness of results, and
/// names the first bad record. Needs no lock and changes nothing.
///
/// # Errors
/// [`Error::Damaged`] for the first finding.
pub fn verify(_directory: &Path) -> Result<Verified, Error> {
    todo!()
}
