//! Recovery: what the log holds, decided from the disk alone (rules 1 to 8).
//!
//! Reads only. A damaged log is left as it is.

use super::disk::{Disk, File, UNFINISHED};
use super::format::{BLOCK, Header, Position, RecordView, genesis, has_frames};
use super::tail::Start;
use super::walk::{End, walk};
use super::{file_name, file_number, random};
use crate::checkpoint::Checkpoint;
use crate::contract::Sequence;
use crate::open::Error;
use crate::verify::Damage;
use std::io;

/// Bytes of a file without a good header that are searched for frames: the first frame and, as no
/// frame is longer than half of it, at least one more.
const UNUSED_CHECK: u64 = 2 << 20;

/// The segments of a store by their headers.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Oldest first; every one links to the one before.
    pub(crate) headers: Vec<Header>,
    /// Files that hold nothing: spares, also torn ones, and what was being written.
    pub(crate) unused: Vec<String>,
    /// Where the part of the log ended that retention has removed.
    pub(crate) anchor: Option<Anchor>,
}

/// The end of the removed part of the log. Its signature is checked by who knows the key.
#[derive(Debug, Clone)]
pub(crate) struct Anchor {
    pub(crate) sequence: u64,
    pub(crate) chain: [u8; 32],
    pub(crate) note: String,
}

/// The file with the anchor, a signed checkpoint.
pub(crate) const ANCHOR_FILE: &str = "anchor";

/// What the index has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) store: [u8; 16],
    pub(crate) sequence: u64,
    pub(crate) chain: [u8; 32],
}

fn io(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { step, source }
}

fn damage(segment: u64, sequence: u64, what: &'static str) -> Damage {
    Damage { segment, offset: 0, frame: 0, sequence: Sequence(sequence), what }
}

/// Reads the headers and checks that they belong together (rule 1).
///
/// # Errors
/// [`Error::Damaged`] when a header is bad anywhere but behind the youngest segment, or a segment
/// is missing.
pub(crate) fn survey(disk: &dyn Disk) -> Result<Survey, Error> {
    let names = disk.list().map_err(io("list the directory"))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file_number(name)).collect();
    numbers.sort_unstable();
    let anchor =
        if names.iter().any(|name| name == ANCHOR_FILE) { Some(read_anchor(disk)?) } else { None };
    let mut survey = Survey { headers: Vec::new(), unused: Vec::new(), anchor };
    for number in numbers {
        match read_header(disk, number)? {
            Some(header) => {
                check_link(&survey, number, &header)?;
                survey.headers.push(header);
            }
            None => survey.unused.push(file_name(number)),
        }
    }
    drop_phantom(disk, &mut survey)?;
    check_anchor(&survey)?;
    survey.unused.extend(names.into_iter().filter(|name| name.ends_with(UNFINISHED)));
    Ok(survey)
}

fn read_anchor(disk: &dyn Disk) -> Result<Anchor, Error> {
    let file = disk.open(ANCHOR_FILE).map_err(io("open the anchor"))?;
    let length = file.length().map_err(io("read the anchor"))?;
    let mut bytes = vec![0; length.min(BLOCK as u64) as usize];
    file.read_at(&mut bytes, 0).map_err(io("read the anchor"))?;
    let bad = damage(0, 0, "the anchor of the removed part can't be read");
    let note = String::from_utf8(bytes).map_err(|_| bad.clone())?;
    let checkpoint = Checkpoint::unverified(&note).map_err(|_| bad)?;
    Ok(Anchor { sequence: checkpoint.sequence.0, chain: checkpoint.chain.0, note })
}

/// A log that does not begin at its beginning has an anchor that says why, at or behind the place
/// where it begins (behind: retention stopped between the anchor and the removal).
fn check_anchor(survey: &Survey) -> Result<(), Damage> {
    let Some(first) = survey.headers.first() else {
        return match &survey.anchor {
            None => Ok(()),
            Some(anchor) => Err(damage(
                0,
                anchor.sequence,
                "the log is gone, its anchor says that it was there",
            )),
        };
    };
    let before = first.first_sequence.saturating_sub(1);
    let bad = |what| Err(damage(first.segment, before, what));
    match &survey.anchor {
        None if first.previous == 0 => Ok(()),
        None => bad("the beginning of the log is missing, and no anchor says that it was removed"),
        Some(anchor) if anchor.sequence < before => {
            bad("more of the log is missing than its anchor says")
        }
        Some(anchor) if anchor.sequence == before && anchor.chain != first.chain_in => {
            bad("the log does not follow its anchor")
        }
        Some(_) => Ok(()),
    }
}

/// Drops a youngest segment whose header the page cache shows and the device does not have: its
/// sync failed. No frame was written to it then.
fn drop_phantom(disk: &dyn Disk, survey: &mut Survey) -> Result<(), Error> {
    let Some(youngest) = survey.headers.last() else { return Ok(()) };
    let name = file_name(youngest.segment);
    let file = disk.open(&name).map_err(io("open the youngest segment"))?;
    file.sync().map_err(io("sync the youngest segment"))?;
    let block = file.read_stable(BLOCK as u64).map_err(io("read the youngest segment"))?;
    if Header::decode(&block).as_ref() == Some(youngest) {
        return Ok(());
    }
    check_unused(&*file, youngest.segment)?;
    survey.headers.pop();
    survey.unused.push(name);
    Ok(())
}

/// The header of a file, or `None` if it holds no frames.
fn read_header(disk: &dyn Disk, number: u64) -> Result<Option<Header>, Error> {
    let file = disk.open(&file_name(number)).map_err(io("open a segment"))?;
    let length = file.length().map_err(io("read a segment's length"))?;
    let mut block = vec![0; length.min(BLOCK as u64) as usize];
    file.read_at(&mut block, 0).map_err(io("read a segment's header"))?;
    if let Some(header) = Header::decode(&block) {
        return Ok(Some(header));
    }
    check_unused(&*file, number)?;
    Ok(None)
}

/// A header is synced before the first frame is written, so a file with a torn header has no frame.
/// It can hold anything else: a spare that was being zeroed when the power went.
fn check_unused(file: &dyn File, number: u64) -> Result<(), Error> {
    let bytes = file.read_stable(UNUSED_CHECK).map_err(io("read an unused segment"))?;
    if has_frames(&bytes) {
        return Err(damage(number, 0, "the segment has frames but no good header").into());
    }
    Ok(())
}

fn check_link(survey: &Survey, number: u64, header: &Header) -> Result<(), Damage> {
    let bad = |what| Err(damage(number, header.previous_last, what));
    if header.segment != number {
        return bad("the header belongs to another segment");
    }
    let Some(before) = survey.headers.last() else {
        return if survey.unused.is_empty() {
            Ok(())
        } else {
            bad("a segment before it has no good header")
        };
    };
    if !survey.unused.is_empty()
        || header.previous != before.segment
        || before.segment + 1 != number
    {
        return bad("a segment before it is missing or has no good header");
    }
    if header.store != before.store {
        return bad("the segment belongs to another store");
    }
    if header.first_sequence != header.previous_last + 1
        || header.first_sequence < before.first_sequence
    {
        return bad("the segment's sequence does not follow");
    }
    Ok(())
}

/// Where the log ends.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Where the next segment begins.
    pub(crate) start: Start,
    /// Its number.
    pub(crate) next_segment: u64,
    /// Records visited.
    pub(crate) replayed: u64,
}

impl Found {
    /// The end of the log.
    pub(crate) const fn end(&self) -> Watermark {
        let Start { store, last_sequence: sequence, chain, .. } = self.start;
        Watermark { store, sequence, chain }
    }
}

/// Verifies the log from the watermark on and calls `visit` for every record above it, in order.
///
/// Without segments it gives the beginning of a new store.
///
/// # Errors
/// [`Error::Damaged`] for damage inside acknowledged data (rules 2, 4, 5) and for a log that does
/// not reach or contradicts the watermark (rule 6).
pub(crate) fn recover(
    disk: &dyn Disk,
    survey: &Survey,
    watermark: Option<&Watermark>,
    visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), Error>,
) -> Result<Found, Error> {
    let Some((youngest, sealed)) = survey.headers.split_last() else {
        if let Some(seen) = watermark.filter(|seen| seen.sequence > 0) {
            return Err(damage(0, seen.sequence, "the log is gone, the index has seen it").into());
        }
        let store = random().map_err(io("make a store id"))?;
        return Ok(Found {
            start: Start {
                store,
                previous: 0,
                previous_length: 0,
                last_sequence: 0,
                chain: genesis(&store),
                discarded: 0,
            },
            next_segment: 1,
            replayed: 0,
        });
    };
    let mut check = Check { watermark, replayed: 0 };
    // The youngest first: if it is damaged, nothing has been changed yet.
    let (youngest_bytes, end) = read_youngest(disk, youngest)?;
    if let Some(seen) = watermark
        && seen.sequence > end.last_sequence
    {
        let what = "the log ends before what the index has seen: acknowledged events are missing";
        return Err(Damage { what, ..damage(youngest.segment, end.last_sequence, "") }.into());
    }
    let seen = watermark.map_or(0, |seen| seen.sequence);
    let successors = survey.headers.iter().skip(1);
    for (header, next) in sealed.iter().zip(successors) {
        // Everything in it was seen already, and the next one begins above what was seen.
        if next.first_sequence <= seen {
            continue;
        }
        check.begin(header)?;
        let bytes = read_sealed(disk, header, next)?;
        let end = walk(header, &bytes, &mut |position, record| {
            check.record(header, position, record, visit)
        })?;
        check_sealed(header, next, &end)?;
    }
    check.begin(youngest)?;
    walk(youngest, &youngest_bytes, &mut |position, record| {
        check.record(youngest, position, record, visit)
    })?;
    Ok(Found {
        start: Start {
            store: youngest.store,
            previous: youngest.segment,
            previous_length: end.length,
            last_sequence: end.last_sequence,
            chain: end.chain,
            discarded: end.torn_bytes,
        },
        next_segment: youngest.segment + 1,
        replayed: check.replayed,
    })
}

struct Check<'a> {
    watermark: Option<&'a Watermark>,
    replayed: u64,
}

impl Check<'_> {
    /// Rule 6 where the watermark lies right before a segment.
    fn begin(&self, header: &Header) -> Result<(), Damage> {
        match self.watermark {
            Some(seen)
                if seen.sequence + 1 == header.first_sequence && seen.chain != header.chain_in =>
            {
                Err(damage(header.segment, seen.sequence, "log and index are of different times"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn record(
        &mut self,
        header: &Header,
        position: Position,
        record: &RecordView<'_>,
        visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(seen) = self.watermark {
            if record.sequence == seen.sequence && record.chain != seen.chain {
                let what = "log and index are of different times";
                return Err(damage(header.segment, seen.sequence, what).into());
            }
            if record.sequence <= seen.sequence {
                return Ok(());
            }
        }
        self.replayed += 1;
        visit(position, record)
    }
}

/// Rule 3: sync first, then read past the page cache.
fn read_youngest(disk: &dyn Disk, header: &Header) -> Result<(Vec<u8>, End), Error> {
    let file = disk.open(&file_name(header.segment)).map_err(io("open the youngest segment"))?;
    file.sync().map_err(io("sync the youngest segment"))?;
    let bytes = file.read_stable(u64::MAX / 2).map_err(io("read the youngest segment"))?;
    if Header::decode(&bytes).as_ref() != Some(header) {
        return Err(damage(header.segment, 0, "the header changed while it was read").into());
    }
    let end = walk(header, &bytes, &mut |_, _| Ok::<_, Error>(()))?;
    Ok((bytes, end))
}

pub(crate) fn read_sealed(
    disk: &dyn Disk,
    header: &Header,
    next: &Header,
) -> Result<Vec<u8>, Error> {
    let file = disk.open(&file_name(header.segment)).map_err(io("open a segment"))?;
    let length = file.length().map_err(io("read a segment's length"))?;
    if length < next.previous_length {
        return Err(
            damage(header.segment, 0, "the segment is shorter than its successor says").into()
        );
    }
    let mut bytes = vec![0; next.previous_length as usize];
    file.read_at(&mut bytes, 0).map_err(io("read a segment"))?;
    Ok(bytes)
}

/// Rule 2: the successor says where a segment ends.
pub(crate) fn check_sealed(header: &Header, next: &Header, end: &End) -> Result<(), Damage> {
    let bad = |what| Damage {
        segment: header.segment,
        offset: end.length,
        frame: end.frames + 1,
        sequence: Sequence(end.last_sequence),
        what,
    };
    if end.length != next.previous_length || end.last_sequence != next.previous_last {
        return Err(bad("the segment ends before its successor says"));
    }
    if end.chain != next.chain_in {
        return Err(bad("the chain does not lead to the next segment"));
    }
    Ok(())
}
