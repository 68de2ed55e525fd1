//! A disk in memory that crashes: it keeps, drops or tears what was not synced, and fails the n-th
//! call.
//!
//! Model: a file has a durable image and a page cache. A write goes to the cache and is remembered
//! as pending; a sync applies what is pending to the durable image. A power cut keeps, per pending
//! write, nothing, all, a prefix of sectors or random sectors, and may leave garbage in one block
//! under write. A kill keeps the cache. A failed sync drops the pending writes and leaves the cache
//! looking clean, as Linux does. Creation and removal are durable only after a directory sync.

use super::disk::{Disk, File};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

const SECTOR: usize = 512;

/// A small generator; seeds make a run repeatable.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

#[derive(Debug, Default, Clone)]
struct Image {
    durable: Vec<u8>,
    cache: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    pending_length: Option<usize>,
    /// Whether the directory entry is durable.
    linked: bool,
    removed: bool,
    /// What the rename to this name would be undone to: the earlier name, and who had this one.
    renamed: Option<(String, Option<Box<Image>>)>,
}

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The machine stops before the call has an effect, and every later call fails.
    Crash,
    /// The call fails with EIO; the disk goes on.
    Fail,
    /// The call has its effect, and fails with EIO all the same; the disk goes on.
    FailLate,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Image>,
    calls: u64,
    faults: BTreeMap<u64, Fault>,
    crashed: bool,
    /// Whether every change is refused, and how many were.
    read_only: bool,
    refused: u64,
    free: u64,
    /// Whether reads at recovery see the cache although the device has something else.
    cached_reads: bool,
    /// Whether a sync at recovery does nothing.
    lazy_sync: bool,
}

/// The disk.
#[derive(Debug, Clone)]
pub(crate) struct Sim(Arc<Mutex<State>>);

struct SimFile {
    sim: Sim,
    name: String,
}

fn eio() -> io::Error {
    io::Error::other("simulated EIO")
}

impl Sim {
    pub(crate) fn new() -> Self {
        let state = State { free: 1 << 40, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Calls that change something, so far.
    pub(crate) fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    /// Makes the n-th changing call (1 is the first of the disk's life) fail.
    pub(crate) fn fault_at(&self, call: u64, fault: Fault) {
        self.0.lock().faults.insert(call, fault);
    }

    pub(crate) fn set_free(&self, free: u64) {
        self.0.lock().free = free;
    }

    /// Refuses every change from here on, as a file system that was remounted after an error does.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.0.lock().read_only = read_only;
    }

    /// Changes that were refused so.
    pub(crate) fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    pub(crate) fn set_cached_reads(&self, cached: bool) {
        self.0.lock().cached_reads = cached;
    }

    pub(crate) fn set_lazy_sync(&self, lazy: bool) {
        self.0.lock().lazy_sync = lazy;
    }

    /// Flips one bit of a file.
    pub(crate) fn flip(&self, name: &str, offset: usize, bit: u8) {
        let mut state = self.0.lock();
        let image = state.files.get_mut(name).unwrap();
        image.durable[offset] ^= 1 << bit;
        image.cache[offset] ^= 1 << bit;
    }

    /// The durable bytes of a file.
    pub(crate) fn durable(&self, name: &str) -> Vec<u8> {
        self.0.lock().files[name].durable.clone()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().files.keys().cloned().collect()
    }

    /// A copy of the disk as it is.
    pub(crate) fn copy(&self) -> Self {
        let state = self.0.lock();
        Self(Arc::new(Mutex::new(State {
            files: state.files.clone(),
            free: state.free,
            ..State::default()
        })))
    }

    /// The disk after the process was killed: the page cache survives.
    pub(crate) fn after_kill(&self) -> Self {
        let copy = self.copy();
        copy.0.lock().files.retain(|_, image| !image.removed);
        copy
    }

    /// The disk after a power cut.
    pub(crate) fn after_power_cut(&self, random: &mut Random) -> Self {
        let copy = self.copy();
        {
            let mut state = copy.0.lock();
            state.files.retain(|_, image| {
                let linked = image.linked || random.below(2) == 0;
                let removed = image.removed && random.below(2) == 0;
                linked && !removed
            });
            state.undo_renames(random);
            for image in state.files.values_mut() {
                image.cut(random);
            }
        }
        copy
    }

    fn change<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        self.change_or(act, |_| ())
    }

    /// Counts the call, applies a fault that is due, and acts.
    fn change_or<T>(
        &self,
        act: impl FnOnce(&mut State) -> io::Result<T>,
        on_fault: impl FnOnce(&mut State),
    ) -> io::Result<T> {
        let mut state = self.0.lock();
        if state.crashed {
            return Err(eio());
        }
        if state.read_only {
            state.refused += 1;
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        state.calls += 1;
        let call = state.calls;
        match state.faults.get(&call).copied() {
            None => act(&mut state),
            Some(Fault::Crash) => {
                state.crashed = true;
                // A write under way may reach the disk in part: it is pending.
                drop(act(&mut state));
                Err(eio())
            }
            Some(Fault::Fail) => {
                on_fault(&mut state);
                Err(eio())
            }
            Some(Fault::FailLate) => {
                act(&mut state)?;
                Err(eio())
            }
        }
    }
}

impl State {
    /// A rename is durable only after a directory sync: before, it may not have happened.
    fn undo_renames(&mut self, random: &mut Random) {
        let renamed: Vec<String> = self
            .files
            .iter()
            .filter(|(_, image)| image.renamed.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for name in renamed {
            let image = self.files.get_mut(&name).unwrap();
            let (from, before) = image.renamed.take().unwrap();
            if random.below(2) == 0 {
                let image = self.files.remove(&name).unwrap();
                self.files.insert(from, image);
                if let Some(before) = before {
                    self.files.insert(name, *before);
                }
            }
        }
    }
}

impl Image {
    fn cut(&mut self, random: &mut Random) {
        if let Some(length) = self.pending_length.take()
            && random.below(2) == 0
        {
            self.durable.resize(length, 0);
        }
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            let sectors = bytes.len().div_ceil(SECTOR);
            let mode = random.below(4);
            let prefix = random.below(sectors as u64 + 1) as usize;
            for n in 0..sectors {
                let keep = match mode {
                    0 => false,
                    1 => true,
                    2 => n < prefix,
                    _ => random.below(2) == 0,
                };
                if keep {
                    let end = ((n + 1) * SECTOR).min(bytes.len());
                    self.put(offset + n * SECTOR, &bytes[n * SECTOR..end]);
                }
            }
            if random.below(4) == 0 {
                let block = random.below(bytes.len().div_ceil(4096) as u64) as usize * 4096;
                let garbage: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
                self.put(offset + block, &garbage[..4096.min(bytes.len() - block)]);
            }
        }
        self.cache = self.durable.clone();
        self.linked = true;
        self.removed = false;
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if self.durable.len() < offset + bytes.len() {
            self.durable.resize(offset + bytes.len(), 0);
        }
        self.durable[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn flush(&mut self) {
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            self.put(offset, &bytes);
        }
        if let Some(length) = self.pending_length.take() {
            self.durable.resize(length, 0);
        }
    }
}

impl Disk for Sim {
    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        let files = state.files.iter().filter(|(_, image)| !image.removed);
        Ok(files.map(|(name, _)| name.clone()).collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.change(|state| {
            if state.files.get(name).is_some_and(|image| !image.removed) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.files.insert(name.to_owned(), Image::default());
            Ok(())
        })?;
        self.open(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let state = self.0.lock();
        if state.files.get(name).is_none_or(|image| image.removed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Arc::new(SimFile { sim: self.clone(), name: name.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            let mut image = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
            let before = state.files.remove(to).map(Box::new);
            image.renamed = Some((from.to_owned(), before));
            // The name is there whatever happens: as the old file or as the new one.
            image.linked = true;
            state.files.insert(to.to_owned(), image);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|state| {
            let image = state.files.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
            image.removed = true;
            Ok(())
        })
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.change(|state| {
            if state.crashed {
                return Ok(());
            }
            state.files.retain(|_, image| !image.removed);
            for image in state.files.values_mut() {
                image.linked = true;
                image.renamed = None;
            }
            Ok(())
        })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().free)
    }
}

impl File for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.sim.0.lock().files[&self.name].cache.len() as u64)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        self.sim.change(|state| {
            let image = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
            let grown = (offset + bytes.len()).saturating_sub(image.cache.len()) as u64;
            if state.free < grown {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.free -= grown;
            image.cache.resize(image.cache.len() + grown as usize, 0);
            image.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
            image.pending.push((offset, bytes.to_vec()));
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        let flush = |state: &mut State| {
            if state.crashed || state.lazy_sync {
                return Ok(());
            }
            let image = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
            image.flush();
            Ok(())
        };
        // The pages stay in the cache and look clean.
        let lose = |state: &mut State| {
            if let Some(image) = state.files.get_mut(&self.name) {
                image.pending.clear();
            }
        };
        self.sim.change_or(flush, lose)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        let state = self.sim.0.lock();
        let image = &state.files[&self.name];
        let from = image.cache.get(offset..offset + bytes.len());
        bytes.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn read_stable(&self, limit: u64) -> io::Result<Vec<u8>> {
        let state = self.sim.0.lock();
        let image = &state.files[&self.name];
        let bytes = if state.cached_reads { &image.cache } else { &image.durable };
        Ok(bytes[..bytes.len().min(limit as usize)].to_vec())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.sim.change(|state| {
            let image = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
            image.cache.resize(length as usize, 0);
            image.pending_length = Some(length as usize);
            Ok(())
        })
    }
}
