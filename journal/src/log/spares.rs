//! Segments that are zeroed and synced before use, so that a frame never allocates anything.
//!
//! A zero-filled file needs one device flush per sync on every file system, and a full disk can't
//! hit a frame: the blocks are there. This is the only thread of the log.

use super::disk::{Disk, File};
use super::file_name;
use super::format::BLOCK;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Spares that exist at all times.
const TARGET: usize = 2;
/// Bytes of zeros per write.
const PIECE: usize = 256 << 10;
/// How long the zeroing pauses per piece while a spare is there anyway.
const PACE: Duration = Duration::from_millis(2);
/// How long it waits after a failure.
const PAUSE: Duration = Duration::from_millis(500);

/// So old a measure of the free space is still good.
const FRESH_MS: u64 = 1000;

/// A zeroed, synced file.
pub(crate) struct Spare {
    pub(crate) segment: u64,
    pub(crate) file: Arc<dyn File>,
}

struct State {
    ready: VecDeque<Spare>,
    next: u64,
    failed: Option<io::ErrorKind>,
    stopped: bool,
    paused: bool,
    busy: bool,
}

/// The spares of one store.
pub(crate) struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    inline: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that more spares could take, above the floor; measured after each spare, and when it is asked
    /// for and was not for a while: others fill the disk, too.
    allocatable: AtomicU64,
    began: Instant,
    /// When that was measured last, in milliseconds since it began.
    measured_ms: AtomicU64,
}

impl Spares {
    /// With `inline`, [`Spares::take`] makes the spare itself and there is no thread: for tests that
    /// count calls.
    pub(crate) fn new(disk: Arc<dyn Disk>, segment_bytes: u64, inline: bool) -> Self {
        let spares = Self {
            disk,
            segment_bytes,
            inline,
            state: Mutex::new(State {
                ready: VecDeque::new(),
                next: 1,
                failed: None,
                stopped: false,
                paused: true,
                busy: false,
            }),
            changed: Condvar::new(),
            allocatable: AtomicU64::new(0),
            began: Instant::now(),
            measured_ms: AtomicU64::new(0),
        };
        spares.measure();
        spares
    }

    /// Whether spares are made without a thread.
    pub(crate) const fn is_inline(&self) -> bool {
        self.inline
    }

    /// Bytes ready for frames in spares, plus what could be allocated above the floor.
    pub(crate) fn capacity(&self, lost_per_segment: u64) -> u64 {
        let state = self.state.lock();
        let usable = self.segment_bytes.saturating_sub(BLOCK as u64 + lost_per_segment);
        let ready = (state.ready.len() as u64).saturating_mul(usable);
        if state.failed.is_some() {
            return ready;
        }
        drop(state);
        self.remeasure(self.began.elapsed());
        ready + self.allocatable.load(Ordering::Relaxed)
    }

    /// Measures anew what was measured too long ago.
    fn remeasure(&self, elapsed: Duration) {
        let now_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let last_ms = self.measured_ms.load(Ordering::Relaxed);
        let is_old = now_ms.saturating_sub(last_ms) >= FRESH_MS;
        let exchange = |to| {
            self.measured_ms.compare_exchange(last_ms, to, Ordering::Relaxed, Ordering::Relaxed)
        };
        if is_old && exchange(now_ms).is_ok() {
            self.measure();
        }
    }

    /// Takes the oldest spare; waits for one that is being made.
    ///
    /// # Errors
    /// Why none can be made.
    pub(crate) fn take(&self) -> io::Result<Spare> {
        let mut state = self.state.lock();
        if self.inline {
            let spare = self.zero(state.next, false)?;
            state.next += 1;
            return Ok(spare);
        }
        loop {
            if let Some(spare) = state.ready.pop_front() {
                self.changed.notify_all();
                return Ok(spare);
            }
            if let Some(kind) = state.failed {
                return Err(kind.into());
            }
            if state.stopped {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Forgets the spares and waits until nothing is being made. Their files are left to recovery.
    pub(crate) fn pause(&self) {
        let mut state = self.state.lock();
        state.paused = true;
        state.ready.clear();
        while state.busy {
            self.changed.wait(&mut state);
        }
        state.ready.clear();
    }

    /// Goes on with this number.
    pub(crate) fn resume(&self, next: u64) {
        let mut state = self.state.lock();
        state.next = next;
        state.failed = None;
        state.paused = false;
        self.changed.notify_all();
    }

    /// Ends the thread and waits until it touches nothing any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        while state.busy {
            self.changed.wait(&mut state);
        }
    }

    /// The thread: keeps the spares at their number until [`Spares::stop`].
    pub(crate) fn run(&self) {
        while let Some((segment, paced)) = self.next_to_make() {
            let made = if self.has_room() {
                self.zero(segment, paced)
            } else {
                Err(io::ErrorKind::StorageFull.into())
            };
            self.measure();
            let mut state = self.state.lock();
            state.busy = false;
            match made {
                Ok(spare) => {
                    state.next = segment + 1;
                    state.failed = None;
                    state.ready.push_back(spare);
                }
                Err(error) => {
                    if state.failed.is_none() && !state.paused && !state.stopped {
                        tracing::error!(%error, segment, "no spare segment could be made");
                    }
                    state.failed = Some(error.kind());
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits until a spare is missing. Gives its number and whether there is time; `None` at the
    /// end.
    fn next_to_make(&self) -> Option<(u64, bool)> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if state.paused || state.ready.len() >= TARGET {
                self.changed.wait(&mut state);
            } else if state.failed.is_some() {
                // Tried again whether or not somebody asks: a disk gets room by itself.
                if self.changed.wait_for(&mut state, PAUSE).timed_out() {
                    break;
                }
            } else {
                break;
            }
        }
        if state.stopped {
            return None;
        }
        state.busy = true;
        Some((state.next, !state.ready.is_empty()))
    }

    /// The floor that is left for everybody else on the disk.
    fn floor(&self) -> u64 {
        self.segment_bytes.saturating_mul(2)
    }

    fn has_room(&self) -> bool {
        let free = self.disk.free_bytes().unwrap_or(0);
        free >= self.segment_bytes.saturating_add(self.floor() / 4)
    }

    fn measure(&self) {
        let free = self.disk.free_bytes().unwrap_or(0);
        let room = free.saturating_sub(self.floor() + self.segment_bytes * TARGET as u64);
        self.allocatable.store(room, Ordering::Relaxed);
    }

    fn zero(&self, segment: u64, paced: bool) -> io::Result<Spare> {
        let name = file_name(segment);
        let file = self.disk.create(&name)?;
        let filled = self.fill(&*file, paced).and_then(|()| self.disk.sync_directory());
        match filled {
            Ok(()) => Ok(Spare { segment, file }),
            Err(error) => {
                // A part of a spare holds nothing; recovery removes what is left of it.
                if let Err(also) = self.disk.remove(&name) {
                    tracing::warn!(%also, segment, "a partial spare could not be removed");
                }
                Err(error)
            }
        }
    }

    fn fill(&self, file: &dyn File, paced: bool) -> io::Result<()> {
        let space = vec![0_u8; PIECE + BLOCK];
        let zeros = space.get(space.as_ptr().align_offset(BLOCK)..).unwrap_or_default();
        let mut offset = 0;
        while offset < self.segment_bytes {
            let piece = (self.segment_bytes - offset).min(PIECE as u64);
            let is_past_cache =
                file.write_past_cache(zeros.get(..piece as usize).unwrap_or(zeros), offset)?;
            offset += piece;
            if self.is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if paced && !self.is_wanted() {
                if !is_past_cache {
                    file.sync()?;
                }
                std::thread::sleep(PACE);
            }
        }
        file.sync()
    }

    fn is_over(&self) -> bool {
        if self.inline {
            return false;
        }
        let state = self.state.lock();
        state.stopped || state.paused
    }

    /// Whether somebody may be waiting for a spare.
    fn is_wanted(&self) -> bool {
        self.state.lock().ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::sim::Sim;

    /// space that others took meanwhile is promised to nobody.
    #[test]
    fn r_6_the_free_space_is_measured_again() {
        let sim = Sim::new();
        let spares = Spares::new(Arc::new(sim.clone()), 1 << 20, true);
        let before = spares.capacity(0);
        assert!(before > 1 << 30);
        sim.set_free(0);
        spares.remeasure(Duration::from_millis(FRESH_MS - 1));
        assert_eq!(spares.allocatable.load(Ordering::Relaxed), before);
        spares.remeasure(Duration::from_millis(FRESH_MS));
        assert_eq!(spares.capacity(0), 0);
    }
}
