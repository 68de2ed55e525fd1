//! The offline walk over everything in a journal.

use crate::contract::{Body, Digest, Event, InvocationId, ResultRef, Sequence};
use crate::log::disk::{Directory, Disk};
use crate::log::file_name;
use crate::log::recover::{check_sealed, survey};
use crate::log::walk::{End, walk};
use crate::log::{Header, Kind, Position, RecordView};
use crate::projection::Invocation;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

/// Invocations whose whole state is kept during a walk.
const KEEP: usize = 100_000;
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
pub fn verify(directory: &Path) -> Result<Verified, Error> {
    verify_on(&Directory::unlocked(directory))
}

pub(crate) fn verify_on(disk: &dyn Disk) -> Result<Verified, Error> {
    let survey = survey(disk).map_err(|error| match error {
        crate::open::Error::Damaged(damage) => Error::Damaged(damage),
        crate::open::Error::Io { step, source } => Error::Io { step, source },
        other @ (crate::open::Error::InUse(_)
        | crate::open::Error::Options(_)
        | crate::open::Error::Index { .. }
        | crate::open::Error::Thread(_)
        | crate::open::Error::Append(_)) => {
            Error::Io { step: "read the segments", source: io::Error::other(other) }
        }
    })?;
    let mut check = Check::default();
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
    Ok(Verified {
        segments: check.segments,
        frames: check.frames,
        events: check.events,
        chunks: check.chunks,
        invocations: check.invocations,
        last_sequence: Sequence(end.map_or(0, |end| end.last_sequence)),
        chain: Digest(end.map_or([0; 32], |end| end.chain)),
        torn_bytes: end.map_or(0, |end| end.torn_bytes),
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

/// An invocation as far as the walk has come.
struct Seen {
    invocation: Invocation,
    chunks: u32,
}

#[derive(Default)]
struct Check {
    segments: u64,
    frames: u64,
    events: u64,
    chunks: u64,
    invocations: u64,
    seen: HashMap<InvocationId, Seen>,
    /// Settled ones whose state was dropped to bound memory.
    settled: HashSet<InvocationId>,
}

impl Check {
    fn segment(&mut self, header: &Header, bytes: &[u8]) -> Result<End, Error> {
        walk(header, bytes, &mut |position, record| self.record(position, record))
    }

    fn record(&mut self, position: Position, record: &RecordView<'_>) -> Result<(), Error> {
        let checked = match record.kind {
            Kind::RecoveryNote => Ok(()),
            Kind::Chunk => self.chunk(record),
            Kind::Event => self.event(record),
        };
        checked.map_err(|what| {
            Error::Damaged(Damage {
                segment: position.segment,
                offset: position.frame + u64::from(position.offset),
                frame: 0,
                sequence: Sequence(record.sequence.saturating_sub(1)),
                what,
            })
        })
    }

    fn chunk(&mut self, record: &RecordView<'_>) -> Result<(), &'static str> {
        self.chunks += 1;
        if record.attachment.is_some() && record.sound_attachment().is_none() {
            return Err("a result chunk is not what was written");
        }
        let id = InvocationId::from_bytes(record.invocation);
        let seen = self.seen.get_mut(&id).ok_or("a result chunk belongs to no open call")?;
        seen.chunks += 1;
        Ok(())
    }

    fn event(&mut self, record: &RecordView<'_>) -> Result<(), &'static str> {
        self.events += 1;
        let event: Event =
            serde_json::from_slice(record.payload).map_err(|_| "an event can't be read")?;
        if event.invocation.to_bytes() != record.invocation || event.at_ms != record.at_ms {
            return Err("an event belongs to another record");
        }
        let sequence = Sequence(record.sequence);
        if let Some(seen) = self.seen.get_mut(&event.invocation) {
            if let Some(reference) = reference(&event.body)
                && reference.chunks != seen.chunks
            {
                return Err("a committed result has not all of its chunks");
            }
            return seen.invocation.apply(sequence, &event).map_err(|_| "an event is illegal");
        }
        if self.settled.contains(&event.invocation) {
            return Ok(());
        }
        let invocation =
            Invocation::start(sequence, &event).map_err(|_| "an invocation has no beginning")?;
        self.invocations += 1;
        self.seen.insert(event.invocation, Seen { invocation, chunks: 0 });
        self.bound();
        Ok(())
    }

    fn bound(&mut self) {
        if self.seen.len() < KEEP {
            return;
        }
        let settled = &mut self.settled;
        self.seen.retain(|id, seen| {
            let done = seen.invocation.is_settled();
            if done {
                settled.insert(*id);
            }
            !done
        });
    }
}

const fn reference(body: &Body) -> Option<&ResultRef> {
    match body {
        Body::ResultCommitted(committed) => committed.result.as_ref(),
        Body::ActionAccepted(_)
        | Body::PreflightValidated(_)
        | Body::CredentialAuthorized(_)
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::RequestSent(_)
        | Body::RemoteResponseStarted(_)
        | Body::RemoteResponseComplete(_)
        | Body::InvocationEnded(_)
        | Body::ResultDelivered(_)
        | Body::DeliveryFailed(_)
        | Body::RepeatAnswered(_)
        | Body::Noted(_) => None,
    }
}
