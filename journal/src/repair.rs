//! The cut of a damaged log, for an operator: the server never does it (rule 10).
//!
//! Everything up to the last good frame stays. What lies behind is moved beside the log, not
//! destroyed, and a record says what was done. The index is moved away with it and rebuilt.

use crate::contract::Sequence;
use crate::index::Index;
use crate::log::disk::{Directory, Disk};
use crate::log::recover::{check_sealed, recover, survey};
use crate::log::spares::Spares;
use crate::log::tail::{Start, Tail};
use crate::log::walk::{End, look_ahead, walk_frames};
use crate::log::{BLOCK, Draft, Header, Kind, file_name, file_number};
use crate::open;
use crate::verify::{self, Check, Damage};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Why a log could not be repaired.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: it could not be locked or read.
    #[error(transparent)]
    Open(#[from] open::Error),
    /// Local: a file could not be moved or written.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Local: what is missing can't be cut away.
    #[error("a cut does not help: {0}")]
    Hopeless(Damage),
}

/// What a repair keeps and cuts off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The first bad place.
    pub damage: Damage,
    /// The last sequence that is kept.
    pub kept: Sequence,
    /// The segment that is kept in part; 0 when nothing is kept.
    pub segment: u64,
    /// Its length up to the last good frame.
    pub length: u64,
    /// Segments behind it, that are moved away as a whole.
    pub moved_segments: u64,
    /// Where what was cut off lies now; `None` while nothing was done.
    pub removed_to: Option<PathBuf>,
}

fn io(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { step, source }
}

/// Looks for damage and, with `apply`, cuts it off. `None`: there is nothing to repair.
///
/// # Errors
/// [`Error`]; with [`open::Error::InUse`] a server runs.
pub fn repair(directory: &Path, apply: bool) -> Result<Option<Repair>, Error> {
    let (disk, lock) = Directory::lock(directory, true)?;
    let Some(damage) = find(&disk, directory)? else { return Ok(None) };
    let good = good_part(&disk, &damage)?;
    let numbers = numbers(&disk)?;
    let behind: Vec<u64> = numbers.into_iter().filter(|n| *n > good.segment).collect();
    let mut plan = Repair {
        damage,
        kept: Sequence(good.end.last_sequence),
        segment: good.segment,
        length: good.end.length,
        moved_segments: behind.len() as u64,
        removed_to: None,
    };
    if apply {
        let name = format!("removed-{}", crate::clock::wall_ms());
        let target = directory.join(&name);
        move_away(directory, &target, &good, &behind)?;
        plan.removed_to = Some(target);
        begin_again(Arc::new(disk), &good, &plan, &name)?;
    }
    drop(lock);
    Ok(Some(plan))
}

/// What opening or verifying would refuse.
fn find(disk: &Directory, directory: &Path) -> Result<Option<Damage>, Error> {
    let damaged = |error| match error {
        open::Error::Damaged(damage) => Ok(Some(damage)),
        other @ (open::Error::InUse(_)
        | open::Error::Options(_)
        | open::Error::Io { .. }
        | open::Error::Index { .. }
        | open::Error::Thread(_)
        | open::Error::Checkpoint(_)
        | open::Error::Append(_)) => Err(Error::Open(other)),
    };
    let survey = match survey(disk) {
        Ok(survey) => survey,
        Err(error) => return damaged(error),
    };
    let index = directory.join("index");
    let seen = if index.exists() {
        Index::open(&index, true).ok().and_then(|index| {
            let seen = index.watermark().ok().flatten();
            index.close();
            seen
        })
    } else {
        None
    };
    let store = survey.headers.first().map(|header| header.store);
    let seen = seen.filter(|seen| store.is_none_or(|store| store == seen.store));
    if let Err(error) = recover(disk, &survey, seen.as_ref(), &mut |_, _| Ok(())) {
        return damaged(error);
    }
    match verify::walk_all(disk, verify::Against::default()) {
        Ok(_) => Ok(None),
        Err(verify::Error::Damaged(damage)) => Ok(Some(damage)),
        Err(other) => Err(Error::Io { step: "read the log", source: io::Error::other(other) }),
    }
}

/// Where the good part ends.
struct Good {
    segment: u64,
    end: End,
    header: Option<Header>,
    file_length: u64,
}

fn numbers(disk: &Directory) -> Result<Vec<u64>, Error> {
    let names = disk.list().map_err(io("list the directory"))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| file_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn read(disk: &Directory, number: u64) -> Result<Vec<u8>, Error> {
    let file = disk.open(&file_name(number)).map_err(io("open a segment"))?;
    file.read_stable(u64::MAX / 2).map_err(io("read a segment"))
}

/// Follows the segments as long as each is what its successor says.
fn good_part(disk: &Directory, damage: &Damage) -> Result<Good, Error> {
    let nothing = End { length: 0, frames: 0, last_sequence: 0, chain: [0; 32], torn_bytes: 0 };
    let mut good = Good { segment: 0, end: nothing, header: None, file_length: 0 };
    let mut check: Option<Check> = None;
    for number in numbers(disk)? {
        let bytes = read(disk, number)?;
        let header = bytes.get(..BLOCK).and_then(Header::decode);
        let Some(header) = header.filter(|header| header.segment == number) else { break };
        match &good.header {
            Some(before) => {
                let follows = header.previous == before.segment
                    && header.store == before.store
                    && check_sealed(before, &header, &good.end).is_ok();
                if !follows {
                    break;
                }
            }
            None if header.previous != 0 && !disk.list().is_ok_and(has_anchor) => {
                return Err(Error::Hopeless(damage.clone()));
            }
            None => {}
        }
        let removed = Sequence(header.first_sequence.saturating_sub(1));
        let check = check.get_or_insert_with(|| Check::behind(removed));
        let mut end = End::of_empty(&header);
        let walked = walk_frames(
            &header,
            &bytes,
            &mut |position, record| check.record(position, record),
            &mut end,
        );
        let start = usize::try_from(end.length).unwrap_or(usize::MAX);
        let tail = bytes.get(start..).unwrap_or_default();
        let whole = walked.is_ok() && look_ahead(&header, start, tail, &end).is_ok();
        let file_length = bytes.len() as u64;
        good = Good { segment: number, end, header: Some(header), file_length };
        if !whole {
            break;
        }
    }
    Ok(good)
}

fn has_anchor(names: Vec<String>) -> bool {
    names.iter().any(|name| name == crate::log::recover::ANCHOR_FILE)
}

/// The youngest first, so that what is left is a log without a gap whenever this stops.
fn move_away(directory: &Path, target: &Path, good: &Good, behind: &[u64]) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    let sync = |path: &Path| fs::File::open(path).and_then(|file| file.sync_all());
    fs::DirBuilder::new().mode(0o700).create(target).map_err(io("make a directory"))?;
    if good.header.is_some() && good.file_length > good.end.length {
        let name = file_name(good.segment);
        fs::copy(directory.join(&name), target.join(&name)).map_err(io("copy a segment"))?;
        sync(&target.join(&name)).map_err(io("sync the copy"))?;
    }
    for number in behind.iter().rev() {
        let name = file_name(*number);
        fs::rename(directory.join(&name), target.join(&name)).map_err(io("move a segment"))?;
        sync(directory).map_err(io("sync the directory"))?;
    }
    let index = directory.join("index");
    if index.exists() {
        fs::rename(index, target.join("index")).map_err(io("move the index"))?;
    }
    let anchor = directory.join(crate::log::recover::ANCHOR_FILE);
    if good.header.is_none() && anchor.exists() {
        fs::rename(anchor, target.join("anchor")).map_err(io("move the anchor"))?;
    }
    sync(target).and_then(|()| sync(directory)).map_err(io("sync the directory"))
}

/// Begins the next segment, whose header states where the damaged one ends, with a record of it.
fn begin_again(disk: Arc<Directory>, good: &Good, plan: &Repair, name: &str) -> Result<(), Error> {
    // With nothing left a new log begins by itself.
    let Some(header) = &good.header else { return Ok(()) };
    let disk: Arc<dyn Disk> = disk;
    let spares = Arc::new(Spares::new(Arc::clone(&disk), header.length, true));
    spares.resume(good.segment + 1);
    let discarded = good.file_length.saturating_sub(good.end.length);
    let start = Start {
        store: header.store,
        previous: good.segment,
        previous_length: good.end.length,
        last_sequence: good.end.last_sequence,
        chain: good.end.chain,
        discarded,
    };
    let now = crate::clock::wall_ms();
    let room = Arc::new(AtomicU64::new(0));
    let mut tail = Tail::begin(disk, spares, header.length, &start, now, room)
        .map_err(io("begin a segment"))?;
    let note = serde_json::json!({
        "segment": good.segment,
        "length": good.end.length,
        "last_sequence": good.end.last_sequence,
        "discarded_bytes": discarded,
        "repaired": true,
        "found": plan.damage.to_string(),
        "moved_segments": plan.moved_segments,
        "removed_to": name,
    });
    let draft = Draft {
        kind: Kind::RecoveryNote,
        invocation: [0; 16],
        at_ms: now,
        payload: note.to_string().into_bytes(),
        attachment: None,
    };
    tail.append(std::iter::once(&draft), now, &mut Vec::new()).map_err(io("write the record"))?;
    Ok(())
}
