//! The opening of a journal: lock, recovery, index, threads, interrupted calls.

use crate::append;
use crate::contract::{Body, DeliveryFailed, Event, InvocationId, Outcome, Sequence, Source};
use crate::core::{Core, Counters, Feed, Part, now_ms};
use crate::guard::Recent;
use crate::index::{self, Index, Update};
use crate::log::disk::{Directory, Disk};
use crate::log::read::Segments;
use crate::log::recover::{Found, Survey, Watermark, recover, survey};
use crate::log::spares::Spares;
use crate::log::tail::{Tail, frame_limit};
use crate::log::{BLOCK, Kind, Position, RecordView};
use crate::open::Error;
use crate::options::{Options, Recovery};
use crate::projection::{Invocation, State};
use crate::queue::{Mode, Queue};
use crate::result::ResultKey;
use crate::verify::Damage;
use crate::{projector, writer};
use dashmap::DashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;

/// The shortest segment: the longest frame must fit.
const MIN_SEGMENT: u64 = 256 << 10;
/// Invocations that a replay holds in memory before it writes them.
const REPLAY_LIMIT: usize = 20_000;

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
    let path = options.directory.join("index");
    let (index, found, mut recovery) = index_and_log(&*disk, &survey, &path, options.durable)?;
    let horizon = u64::try_from(options.guard_horizon.as_millis()).unwrap_or(u64::MAX);
    index.prune_guards(now_ms().saturating_sub(horizon))?;
    let open = index.open_invocations()?;
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
        overlay: DashMap::new(),
        recent: Mutex::new(Recent::default()),
        index: RwLock::new(Some(index)),
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
    let tail: Tail = writer::start(core, &survey.unused, found)?;
    let (store, next) = (found.start.store, tail.last_sequence() + 1);
    core.durable.store(tail.last_sequence(), std::sync::atomic::Ordering::Release);
    core.queue.begin(next);
    let shared = Arc::clone(core);
    spawn("journal-index", move || projector::run(&shared))?;
    let shared = Arc::clone(core);
    spawn("journal-writer", move || writer::run(&shared, tail, store))
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
    let mut replay = Replay { index, store: store.unwrap_or_default(), changed: HashMap::new() };
    let found = recover(disk, survey, watermark.as_ref(), &mut |position, record| {
        replay.take(position, record)
    })?;
    replay.flush(&Watermark {
        store: found.start.store,
        sequence: found.start.last_sequence,
        chain: found.start.chain,
    })?;
    let recovery = Recovery {
        last_sequence: Sequence(found.start.last_sequence),
        discarded_bytes: found.start.discarded,
        replayed: found.replayed,
        rebuilt,
        ..Recovery::default()
    };
    Ok((found, recovery))
}

/// Applies records to the index, as the projector does.
struct Replay<'a> {
    index: &'a Index,
    store: [u8; 16],
    changed: HashMap<InvocationId, Update>,
}

impl Replay<'_> {
    fn take(&mut self, position: Position, record: &RecordView<'_>) -> Result<(), Error> {
        let damage = |what| Damage {
            segment: position.segment,
            offset: position.frame + u64::from(position.offset),
            frame: 0,
            sequence: Sequence(record.sequence.saturating_sub(1)),
            what,
        };
        let id = InvocationId::from_bytes(record.invocation);
        let sequence = Sequence(record.sequence);
        match record.kind {
            Kind::RecoveryNote => return Ok(()),
            Kind::Chunk => {
                let update = self.update(id)?;
                let update = update.ok_or_else(|| damage("a chunk belongs to no invocation"))?;
                update.records.push((sequence, Kind::Chunk, position));
            }
            Kind::Event => {
                let event: Event = serde_json::from_slice(record.payload)
                    .map_err(|_| damage("an event can't be read"))?;
                match self.update(id)? {
                    // The index may hold more of an invocation than its watermark says.
                    Some(update) if sequence <= update.invocation.last_sequence() => {
                        update.records.push((sequence, Kind::Event, position));
                    }
                    Some(update) => {
                        let applied = update.invocation.apply(sequence, &event);
                        applied.map_err(|_| damage("an event is illegal"))?;
                        update.records.push((sequence, Kind::Event, position));
                    }
                    None => {
                        let invocation = Invocation::start(sequence, &event)
                            .map_err(|_| damage("an event is illegal"))?;
                        let records = vec![(sequence, Kind::Event, position)];
                        self.changed.insert(id, Update { invocation, records });
                    }
                }
            }
        }
        if self.changed.len() >= REPLAY_LIMIT {
            let mark = Watermark { store: self.store, sequence: sequence.0, chain: record.chain };
            self.flush(&mark)?;
        }
        Ok(())
    }

    fn update(&mut self, id: InvocationId) -> Result<Option<&mut Update>, Error> {
        use std::collections::hash_map::Entry as Slot;
        match self.changed.entry(id) {
            Slot::Occupied(slot) => Ok(Some(slot.into_mut())),
            Slot::Vacant(slot) => Ok(self
                .index
                .invocation(id)?
                .map(|invocation| slot.insert(Update { invocation, records: Vec::new() }))),
        }
    }

    fn flush(&mut self, mark: &Watermark) -> Result<(), Error> {
        let updates: Vec<Update> = self.changed.drain().map(|(_, update)| update).collect();
        Ok(self.index.apply(&updates, mark)?)
    }
}

/// Ends what the last run left open, and waits until that is durable (contract J-7).
fn end_open(core: &Arc<Core>, open: &[InvocationId], recovery: &mut Recovery) -> Result<(), Error> {
    let mut last = Sequence(0);
    for id in open {
        let entry = core.entry(*id).map_err(|_| append::Error::NotFound)?;
        let Some(entry) = entry else { continue };
        let (state, verdict) = {
            let state = entry.state.lock();
            (state.live.state(), state.live.interrupted(now_ms()))
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
                Body::InvocationEnded(Box::new(writer::interrupted(verdict)))
            }
            (_, None) => {
                core.release_entry(&entry);
                continue;
            }
        };
        let appended = core.append(&entry, None, vec![Part::Event(Source::Recovered, body)], false);
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
