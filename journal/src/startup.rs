//! The opening of a journal: lock, recovery, index, threads, interrupted calls.

use crate::append;
use crate::checkpoint::Signer;
use crate::clock::wall_ms;
use crate::contract::{Body, DeliveryFailed, InvocationId, Outcome, Sequence, Source};
use crate::core::{Core, Counters, Feed};
use crate::enqueue::{Part, Wait};
use crate::guard::Recent;
use crate::index::{self, Index};
use crate::ledger::{self, Ledger};
use crate::log::BLOCK;
use crate::log::disk::{Directory, Disk};
use crate::log::read::Segments;
use crate::log::recover::{Found, Survey, recover, survey};
use crate::log::spares::Spares;
use crate::log::tail::{Tail, frame_limit};
use crate::open::Error;
use crate::options::{Options, Recovery};
use crate::projection::State;
use crate::queue::{Mode, Queue};
use crate::replay::Replay;
use crate::result::ResultKey;
use crate::writer::{Log, Writer};
use crate::{projector, reopen, writer};
use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// The shortest segment: the longest frame must fit.
const MIN_SEGMENT: u64 = 256 << 10;

impl From<index::Error> for Error {
    fn from(source: index::Error) -> Self {
        Self::Index { step: "the use", source: Box::new(source) }
    }
}

/// Opens a journal in its directory.
pub(crate) fn open(
    options: &Options,
    key: Option<ResultKey>,
) -> Result<(Arc<Core>, Recovery), Error> {
    let (directory, lock) = Directory::lock(&options.directory, options.durable)?;
    open_on(Arc::new(directory), Some(lock), options, key, false)
}

/// Opens a journal on any disk; the index is in the directory of the options. With `inline`, spare
/// segments are made where they are needed, without a thread.
pub(crate) fn open_on(
    disk: Arc<dyn Disk>,
    lock: Option<fs::File>,
    options: &Options,
    key: Option<ResultKey>,
    inline: bool,
) -> Result<(Arc<Core>, Recovery), Error> {
    if options.segment_bytes < MIN_SEGMENT || !options.segment_bytes.is_multiple_of(BLOCK as u64) {
        return Err(Error::Options("a segment has at least 256 KiB, in whole blocks of 4 KiB"));
    }
    let survey = survey(&*disk)?;
    let signer = Signer::open(&options.directory)?;
    if let Some(anchor) = &survey.anchor {
        signer.verifying().open(&anchor.note)?;
    }
    let path = options.directory.join("index");
    let (index, found, mut recovery) = index_and_log(&*disk, &survey, &path, options.durable)?;
    let horizon = u64::try_from(options.guard_horizon.as_millis()).unwrap_or(u64::MAX);
    let open = index.open_invocations()?;
    let counted = index.counted(ledger::oldest_ms(wall_ms()))?;
    let spares = Arc::new(Spares::new(Arc::clone(&disk), options.segment_bytes, inline));
    let core = Arc::new(Core {
        segments: Segments::new(Arc::clone(&disk)),
        disk,
        segment_bytes: options.segment_bytes,
        frame_limit: frame_limit(options.segment_bytes),
        spares,
        room: Arc::new(AtomicU64::new(0)),
        queue: Queue::new(found.start.last_sequence + 1),
        durable: AtomicU64::new(found.start.last_sequence),
        writer: Mutex::new(Writer::new(found.end())),
        overlay: DashMap::new(),
        recent: Mutex::new(Recent::default()),
        index: RwLock::new(Some(index)),
        retiring: RwLock::new(()),
        files: Mutex::new(()),
        first_segment: AtomicU64::new(survey.headers.first().map_or(1, |first| first.segment)),
        retention: options.retention,
        guard_horizon_ms: AtomicU64::new(horizon),
        leases: Mutex::new(crate::lease::Table::default()),
        parked: crate::held::Parked::default(),
        ledger: Arc::new(Ledger::restored(counted)),
        tally: crate::tally::Counter::default(),
        clock: crate::clock::Clock::default(),
        signer,
        directory: options.directory.clone(),
        feed: Mutex::new(Feed::default()),
        feed_work: Condvar::new(),
        reserved: AtomicU64::new(0),
        counters: Counters::default(),
        key: RwLock::new(key),
        lock: Mutex::new(lock),
        closed: watch::Sender::new(false),
    });
    start_threads(&core, &survey, &found)?;
    let ended = end_open(&core, &open, &mut recovery);
    if ended.is_err() {
        core.begin_close();
    }
    ended?;
    Ok((core, recovery))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop).map_err(Error::Thread)
}

fn start_threads(core: &Arc<Core>, survey: &Survey, found: &Found) -> Result<(), Error> {
    if !core.spares.is_inline() {
        let spares = Arc::clone(&core.spares);
        spawn("journal-spares", move || spares.run())?;
    }
    let begun = begin(core, survey, found);
    if begun.is_err() {
        core.spares.stop();
    }
    begun
}

fn begin(core: &Arc<Core>, survey: &Survey, found: &Found) -> Result<(), Error> {
    let tail: Tail = reopen::start(core, &survey.unused, found)?;
    let last = tail.last_sequence();
    core.durable.store(last, Ordering::Release);
    core.queue.begin(last + 1);
    // A recovery note needs no place in the index.
    core.counters.indexed.store(last, Ordering::Release);
    core.writer.lock().log = Log::Live { tail: Box::new(tail), store: found.start.store };
    let shared = Arc::clone(core);
    spawn("journal-index", move || projector::run(&shared))?;
    let shared = Arc::clone(core);
    spawn("journal-writer", move || writer::run(&shared))
}

/// Opens the index and brings it up to date from the log; rebuilds it when it can't be used.
fn index_and_log(
    disk: &dyn Disk,
    survey: &Survey,
    path: &Path,
    durable: bool,
) -> Result<(Index, Found, Recovery), Error> {
    match Index::open(path, durable).map_err(Error::from) {
        Ok(index) => match bring_up(disk, survey, &index, false) {
            Ok((found, recovery)) => return Ok((index, found, recovery)),
            Err(Error::Index { source, .. }) => {
                tracing::warn!(%source, "the index can't be used; it is rebuilt from the log");
                index.close();
            }
            Err(other) => {
                index.close();
                return Err(other);
            }
        },
        Err(error) => tracing::warn!(%error, "the index can't be opened; it is rebuilt"),
    }
    fs::remove_dir_all(path).map_err(|source| Error::Io { step: "remove the index", source })?;
    let index = Index::open(path, durable)?;
    match bring_up(disk, survey, &index, true) {
        Ok((found, recovery)) => Ok((index, found, recovery)),
        Err(error) => {
            index.close();
            Err(error)
        }
    }
}

fn bring_up(
    disk: &dyn Disk,
    survey: &Survey,
    index: &Index,
    emptied: bool,
) -> Result<(Found, Recovery), Error> {
    let store = survey.headers.first().map(|header| header.store);
    let mut watermark = index.watermark()?;
    let foreign = watermark.as_ref().is_some_and(|seen| store.is_some_and(|s| s != seen.store));
    if foreign {
        tracing::warn!("the index belongs to another log; it is rebuilt");
        watermark = None;
    }
    if watermark.is_none() {
        index.clear()?;
    }
    let rebuilt = emptied || foreign || watermark.is_none() && store.is_some();
    let mut replay = Replay::new(index, survey, store.unwrap_or_default());
    let found = recover(disk, survey, watermark.as_ref(), &mut |position, record| {
        replay.take(position, record)
    })?;
    replay.finish(&found.end())?;
    let recovery = Recovery {
        last_sequence: Sequence(found.start.last_sequence),
        discarded_bytes: found.start.discarded,
        replayed: found.replayed,
        rebuilt,
        ..Recovery::default()
    };
    Ok((found, recovery))
}

/// Ends what the last run left open, and waits until that is durable (contract J-7). What waits for a
/// person goes on waiting.
fn end_open(core: &Arc<Core>, open: &[InvocationId], recovery: &mut Recovery) -> Result<(), Error> {
    let mut last = Sequence(0);
    for id in open {
        if crate::held::pin(core, *id).map_err(|_| append::Error::NotFound)? {
            continue;
        }
        let entry = core.entry(*id).map_err(|_| append::Error::NotFound)?;
        let Some(entry) = entry else { continue };
        let (state, verdict) = {
            let state = entry.state.lock();
            (state.live.state(), state.live.interrupted(core.clock.latest_ms()))
        };
        let body = match (state, verdict) {
            (State::Committed(_), _) => {
                recovery.undelivered.push(*id);
                Body::DeliveryFailed(DeliveryFailed { length_bytes: 0 })
            }
            (_, Some(verdict)) => {
                match verdict.outcome() {
                    Outcome::NotAttempted => recovery.not_attempted.push(*id),
                    Outcome::Unknown | Outcome::Rejected | Outcome::Committed => {
                        recovery.unknown.push(*id);
                    }
                }
                Body::InvocationEnded(Box::new(reopen::interrupted(verdict)))
            }
            (_, None) => {
                core.release_entry(&entry);
                continue;
            }
        };
        let part = Part::Event(Source::Recovered, body);
        let appended = core.append(&entry, None, vec![part], Wait::Later);
        core.release_entry(&entry);
        last = appended?.sequence;
    }
    while core.durable() < last {
        if core.queue.lock().mode != Mode::Open {
            return Err(append::Error::Indeterminate.into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
