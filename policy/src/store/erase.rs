//! Overwrites what a change took out of use: LMDB frees pages and leaves their bytes in the file, and
//! with them what the change was to take away (a removed secret, a data key under a former master
//! key).
//!
//! It runs behind a durable commit, while the write lock is held, and writes to bytes only that no
//! version in use has: so it may be cut off at any point, and the next change goes on where it was.

use super::pages::{self, Survey};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Readers of a former version are over in microseconds, unless their process was stopped.
const PATIENCE: Duration = Duration::from_secs(2);
const LOCK_MAGIC: u32 = 0xBEEF_C0DE;
/// Of a reader's place in the lock file: the version that it reads, its process, padding.
const READER: usize = 64;
/// The version of a reader that reads nothing.
const IDLE: u64 = u64::MAX;

/// Why freed bytes stay in the file. What is in use is untouched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read or written.
    #[error("a file can't be used")]
    Io(#[from] io::Error),
    /// The store's file has something that is not known here.
    #[error("the store's file can't be read by its layout")]
    Layout(#[from] pages::Error),
    /// The lock file has something that is not known here.
    #[error("the store's lock file can't be read by its layout")]
    Lock,
    /// A reader holds on to what was freed.
    #[error("somebody still reads a former version")]
    Read,
}

/// LMDB's lock file. It stays open as long as the environment, and no other is opened before it is closed:
/// closing it gives up the locks that LMDB has on it in this process.
#[derive(Debug)]
pub(crate) struct Readers {
    file: File,
    slots: usize,
}

impl Readers {
    pub(crate) fn open(directory: &Path, slots: u32) -> io::Result<Self> {
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        Ok(Self { file: File::open(directory.join("lock.mdb"))?, slots })
    }

    /// Whether nobody reads a version before this one; so many places were given out. Behind them lies what
    /// earlier processes left, which LMDB does not look at either. Who begins to read now gets the newest.
    fn are_past(&self, transaction: u64, places: usize) -> Result<bool, Error> {
        let mut bytes = Vec::new();
        let length = usize::try_from(self.file.metadata()?.len()).map_err(|_| Error::Lock)?;
        bytes.resize(length, 0);
        self.file.read_exact_at(&mut bytes, 0)?;
        let magic = bytes.first_chunk().copied().map(u32::from_ne_bytes);
        let head = self.slots.checked_mul(READER).and_then(|table| length.checked_sub(table));
        let (Some(LOCK_MAGIC), Some(head)) = (magic, head.filter(|head| *head >= READER)) else {
            return Err(Error::Lock);
        };
        let readers = bytes.get(head..).unwrap_or_default().chunks_exact(READER);
        Ok(readers.take(places).filter_map(reading).all(|reading| reading >= transaction))
    }
}

/// The version that a place of the table reads.
fn reading(place: &[u8]) -> Option<u64> {
    let (version, rest) = place.split_first_chunk()?;
    let process = i32::from_ne_bytes(*rest.first_chunk()?);
    Some(u64::from_ne_bytes(*version)).filter(|version| process != 0 && *version != IDLE)
}

/// Overwrites all that is not in use. The caller holds the write lock and has changed nothing.
/// So many places for readers were given out.
pub(crate) fn erase(file: &File, readers: &Readers, places: usize) -> Result<(), Error> {
    let Survey { page_bytes, transaction, gaps, free, end } = pages::survey(file)?;
    let until = Instant::now() + PATIENCE;
    while !readers.are_past(transaction, places)? {
        if Instant::now() > until {
            return Err(Error::Read);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // Free pages at the end need not be there.
    let length = file.metadata()?.len();
    let behind = end..length.div_ceil(page_bytes);
    let unused = free.into_iter().chain(behind);
    let pages = unused.map(|page| page * page_bytes..((page + 1) * page_bytes).min(length));
    let mut wrote = false;
    for range in
        gaps.into_iter().chain(pages).filter(|range| range.start < range.end && range.end <= length)
    {
        wrote |= overwrite(file, range)?;
    }
    if wrote {
        file.sync_data()?;
    }
    Ok(())
}

/// Writes zeros where there are none; answers whether it had to.
fn overwrite(file: &File, range: Range<u64>) -> io::Result<bool> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or_default()];
    file.read_exact_at(&mut bytes, range.start)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(false);
    }
    bytes.fill(0);
    file.write_all_at(&bytes, range.start)?;
    Ok(true)
}
