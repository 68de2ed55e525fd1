//! The offline walk over everything in a journal.

mod check;

pub(crate) use check::Check;

use crate::checkpoint::{Checkpoint, VerifyingKey};
use crate::contract::{Digest, Sequence};
use crate::index::Index;
use crate::log::Header;
use crate::log::disk::{Directory, Disk};
use crate::log::file_name;
use crate::log::recover::{Survey, check_sealed, survey};
use crate::log::walk::{End, walk};
use crate::result::ResultKey;
use std::io;
use std::path::Path;

/// How often the youngest segment is read again: a running writer may be in the middle of it.
const TRIES: usize = 5;

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
    /// The log ends before a checkpoint says that it went on.
    #[error(
        "the log was truncated: it ends at sequence {last}, and a checkpoint was made at {checkpoint}"
    )]
    Truncated {
        /// The newest sequence.
        last: Sequence,
        /// The sequence of the checkpoint.
        checkpoint: Sequence,
    },
    /// The log holds something else than what a checkpoint saw.
    #[error("the log was replaced: its chain value at sequence {0} is not that of the checkpoint")]
    Replaced(Sequence),
    /// The checkpoint is older than everything that retention has kept.
    #[error(
        "the checkpoint at sequence {checkpoint} lies before the kept part, which begins behind {kept}"
    )]
    Before {
        /// The sequence of the checkpoint.
        checkpoint: Sequence,
        /// The last sequence that left.
        kept: Sequence,
    },
    /// The removed part's anchor or the checkpoint is not signed as it should be.
    #[error(transparent)]
    Checkpoint(#[from] Box<crate::checkpoint::Error>),
}

/// What the log is checked against beside itself.
#[derive(Clone, Default)]
pub struct Against {
    /// The key of results: their content is decrypted and compared with its digest then.
    pub key: Option<ResultKey>,
    /// A checkpoint that was made earlier.
    pub checkpoint: Option<Checkpoint>,
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
    /// Results whose content was decrypted and has the digest on record.
    pub results: u64,
    /// The last sequence that retention removed, 0 for none.
    pub removed_sequence: Sequence,
    /// Bytes after the last good frame that are not zero: a torn last batch, never acknowledged.
    pub torn_bytes: u64,
    /// Where the index stood before the walk. `None`: it could not be compared.
    pub indexed: Option<Sequence>,
}

/// Walks segments, checksums, chain, sequence, legality of events and completeness of results, and
/// names the first bad record. Needs no lock and changes nothing.
///
/// # Errors
/// [`Error::Damaged`] for the first finding.
pub fn verify(directory: &Path) -> Result<Verified, Error> {
    verify_against(directory, Against::default())
}

/// [`verify`], and the log against what it did not make itself.
///
/// # Errors
/// The first finding.
pub fn verify_against(directory: &Path, against: Against) -> Result<Verified, Error> {
    let disk = Directory::unlocked(directory);
    // Read before the walk: a writer at work can only have gone on since.
    let indexed = Index::peek(&directory.join("index")).map(|mark| Sequence(mark.sequence));
    let survey = surveyed(&disk)?;
    if let Some(anchor) = &survey.anchor {
        VerifyingKey::read(directory).and_then(|key| key.open(&anchor.note)).map_err(Box::new)?;
    }
    let verified = walk_all(&disk, against)?;
    if indexed.is_some_and(|seen| seen > verified.last_sequence) {
        return Err(Error::Damaged(Damage {
            segment: survey.headers.last().map_or(0, |header| header.segment),
            offset: 0,
            frame: 0,
            sequence: verified.last_sequence,
            what: "the log ends before what the index has seen: acknowledged events are missing",
        }));
    }
    Ok(Verified { indexed, ..verified })
}

/// Walks checksums, numbers and chain alone, as recovery does. Gives the bytes read.
///
/// # Errors
/// [`Error`].
pub fn scan(directory: &Path) -> Result<u64, Error> {
    let disk = Directory::unlocked(directory);
    let survey = surveyed(&disk)?;
    let mut total = 0;
    for (n, header) in survey.headers.iter().enumerate() {
        let bytes = read(&disk, header)?;
        let limit = survey.headers.get(n + 1).map_or(u64::MAX, |next| next.previous_length);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let bytes = bytes.get(..limit).unwrap_or(&bytes);
        walk(header, bytes, &mut |_, _| Ok::<_, Damage>(()))?;
        total += bytes.len() as u64;
    }
    Ok(total)
}

#[cfg(test)]
pub(crate) fn verify_on(disk: &dyn Disk) -> Result<Verified, Error> {
    walk_all(disk, Against::default())
}

/// The segments, without what only a writer can meet.
pub(crate) fn surveyed(disk: &dyn Disk) -> Result<Survey, Error> {
    let mut found = survey(disk);
    for _ in 1..TRIES {
        // A segment can leave, and a spare become one, while they are looked at.
        if found.is_ok() {
            break;
        }
        found = survey(disk);
    }
    found.map_err(from_open)
}

/// What a reader can meet of what an opening can meet.
pub(crate) fn from_open(error: crate::open::Error) -> Error {
    match error {
        crate::open::Error::Damaged(damage) => Error::Damaged(damage),
        crate::open::Error::Io { step, source } => Error::Io { step, source },
        other @ (crate::open::Error::InUse(_)
        | crate::open::Error::Options(_)
        | crate::open::Error::Index { .. }
        | crate::open::Error::Thread(_)
        | crate::open::Error::Checkpoint(_)
        | crate::open::Error::Append(_)) => {
            Error::Io { step: "read the segments", source: io::Error::other(other) }
        }
    }
}

pub(crate) fn walk_all(disk: &dyn Disk, against: Against) -> Result<Verified, Error> {
    let survey = surveyed(disk)?;
    let first = survey.headers.first();
    let removed = Sequence(first.map_or(0, |first| first.first_sequence.saturating_sub(1)));
    let mut check = Check::new(against.key, removed);
    check.marks.extend(survey.anchor.iter().map(|anchor| (anchor.sequence, anchor.chain, true)));
    if let Some(checkpoint) = &against.checkpoint {
        check.marks.push((checkpoint.sequence.0, checkpoint.chain.0, false));
    }
    if let Some(first) = first {
        check.mark(first.first_sequence.saturating_sub(1), &first.chain_in)?;
    }
    let mut end = None;
    for (n, header) in survey.headers.iter().enumerate() {
        check.segments += 1;
        let walked = match survey.headers.get(n + 1) {
            Some(next) => {
                let bytes = read(disk, header)?;
                let limit = usize::try_from(next.previous_length).unwrap_or(usize::MAX);
                let walked = check.segment(header, bytes.get(..limit).unwrap_or(&bytes))?;
                check_sealed(header, next, &walked)?;
                walked
            }
            None => youngest(disk, header, &mut check)?,
        };
        check.frames += walked.frames;
        end = Some(walked);
    }
    check.finish()?;
    let last = Sequence(end.map_or(0, |end| end.last_sequence));
    if let Some(checkpoint) = against.checkpoint.map(|checkpoint| checkpoint.sequence) {
        if checkpoint < removed {
            return Err(Error::Before { checkpoint, kept: removed });
        }
        if checkpoint > last {
            return Err(Error::Truncated { last, checkpoint });
        }
    }
    Ok(Verified {
        results: check.results,
        removed_sequence: removed,
        segments: check.segments,
        frames: check.frames,
        events: check.events,
        chunks: check.chunks,
        invocations: check.invocations,
        last_sequence: last,
        chain: Digest(end.map_or([0; 32], |end| end.chain)),
        torn_bytes: end.map_or(0, |end| end.torn_bytes),
        indexed: None,
    })
}

fn read(disk: &dyn Disk, header: &Header) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io { step: "read a segment", source };
    disk.open(&file_name(header.segment)).map_err(io)?.read_stable(u64::MAX / 2).map_err(io)
}

/// A writer may be at work: what looks bad once and good later was being written.
fn youngest(disk: &dyn Disk, header: &Header, check: &mut Check) -> Result<End, Error> {
    let mut bytes = read(disk, header)?;
    for _ in 1..TRIES {
        match walk(header, &bytes, &mut |_, _| Ok::<_, Damage>(())) {
            Ok(_) => break,
            Err(_) => bytes = read(disk, header)?,
        }
    }
    check.segment(header, &bytes)
}
