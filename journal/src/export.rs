//! Reading of the log from outside, beside a running server: events as they were appended.
//!
//! No lock is taken, and nothing is changed. What is shown is durable: it is synced before.

use crate::contract::{Digest, Event, Sequence};
use crate::log::disk::{Directory, Disk};
use crate::log::recover::read_sealed;
use crate::log::walk::{walk, walk_good};
use crate::log::{Header, Kind, RecordView, file_name};
use crate::projection::Invocation;
use crate::verify::{self, Damage, Error, surveyed};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;

/// How often what changed under the reader's hands is read again.
const TRIES: usize = 5;

/// What one record says, without the content of results.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// An event of an invocation.
    Event(Box<Event>),
    /// The state of an invocation whose earlier records left with their segment.
    CarriedForward(Box<Invocation>),
    /// What recovery or an operator cut off the log.
    RecoveryNote(serde_json::Value),
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exported {
    /// Its place. Numbers are missing where results are stored.
    pub sequence: Sequence,
    /// The chain value with it.
    pub chain: Digest,
    /// What it says.
    #[serde(flatten)]
    pub fact: Fact,
}

/// Calls `visit` for every record from a sequence on, in order, up to what is durable now.
///
/// # Errors
/// [`Error`], or what `visit` gives.
pub fn export<E: From<Error>>(
    directory: &Path,
    since: Sequence,
    visit: &mut dyn FnMut(Exported) -> Result<(), E>,
) -> Result<(), E> {
    let disk = Directory::unlocked(directory);
    records(&disk, since, &mut |record| match exported(record).map_err(E::from)? {
        Some(exported) => visit(exported),
        None => Ok(()),
    })
}

/// What is shown of a record; nothing of a chunk.
pub(crate) fn exported(record: &RecordView<'_>) -> Result<Option<Exported>, Error> {
    let (sequence, chain) = (Sequence(record.sequence), Digest(record.chain));
    Ok(fact(record)?.map(|fact| Exported { sequence, chain, fact }))
}

fn fact(record: &RecordView<'_>) -> Result<Option<Fact>, Error> {
    let read = match record.kind {
        Kind::Chunk => return Ok(None),
        Kind::Event => serde_json::from_slice(record.payload).map(Fact::Event),
        Kind::CarriedForward => serde_json::from_slice(record.payload).map(Fact::CarriedForward),
        Kind::RecoveryNote => serde_json::from_slice(record.payload).map(Fact::RecoveryNote),
    };
    read.map(Some).map_err(|_| {
        let what = "a record can't be read";
        let sequence = Sequence(record.sequence.saturating_sub(1));
        Error::Damaged(Damage { segment: 0, offset: 0, frame: 0, sequence, what })
    })
}

/// The newest durable sequence and the chain value there.
pub(crate) fn end(directory: &Path) -> Result<(Sequence, Digest), Box<Error>> {
    let disk = Directory::unlocked(directory);
    let survey = surveyed(&disk)?;
    let Some(youngest) = survey.headers.last() else { return Ok((Sequence(0), Digest([0; 32]))) };
    let bytes = read_youngest(&disk, youngest)?;
    let end = walk_good(youngest, &bytes, &mut |_, _| Ok::<_, Error>(()))?;
    Ok((Sequence(end.last_sequence), Digest(end.chain)))
}

/// Every record from a sequence on.
pub(crate) fn records<E: From<Error>>(
    disk: &dyn Disk,
    since: Sequence,
    visit: &mut dyn FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let survey = surveyed(disk)?;
    let mut fault = None;
    let mut take = |record: &RecordView<'_>| {
        if record.sequence < since.0 {
            return Ok(());
        }
        visit(record).map_err(|error| {
            fault = Some(error);
            Error::Io { step: "go on", source: ErrorKind::Interrupted.into() }
        })
    };
    let mut walked = Ok(());
    for (n, header) in survey.headers.iter().enumerate() {
        let next = survey.headers.get(n + 1);
        if next.is_some_and(|next| next.first_sequence <= since.0) {
            continue;
        }
        walked = one(disk, header, next, &mut take);
        if walked.is_err() {
            break;
        }
    }
    match (fault, walked) {
        (Some(fault), _) => Err(fault),
        (None, walked) => walked.map_err(E::from),
    }
}

fn one(
    disk: &dyn Disk,
    header: &Header,
    next: Option<&Header>,
    take: &mut dyn FnMut(&RecordView<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    match next {
        Some(next) => {
            let bytes = read_sealed(disk, header, next).map_err(verify::from_open)?;
            walk(header, &bytes, &mut |_, record| take(record)).map(drop)
        }
        None => {
            let bytes = read_youngest(disk, header)?;
            walk_good(header, &bytes, &mut |_, record| take(record)).map(drop)
        }
    }
}

/// What was read is synced before it is shown: a power cut can't take it back then.
fn read_youngest(disk: &dyn Disk, header: &Header) -> Result<Vec<u8>, Error> {
    let io = |step| move |source| Error::Io { step, source };
    let file = disk.open(&file_name(header.segment)).map_err(io("open the youngest segment"))?;
    let mut bytes = Vec::new();
    for tried in 1..=TRIES {
        let length = file.length().map_err(io("read a segment's length"))?;
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        match file.read_at(&mut bytes, 0) {
            Ok(()) => break,
            // Sealed and cut in between.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && tried < TRIES => {}
            Err(source) => return Err(Error::Io { step: "read the youngest segment", source }),
        }
    }
    file.sync().map_err(io("sync the youngest segment"))?;
    Ok(bytes)
}
