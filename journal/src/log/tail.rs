//! The end of the log: one frame, one write, one sync per batch.
//!
//! After any error the tail is unusable for good. There is no retry: after a failed sync Linux
//! marks the pages clean, and a second sync would succeed without having written anything.

use super::disk::{Disk, File};
use super::format::{BLOCK, Draft, FrameHead, Header, Position, padded};
use super::recover::Watermark;
use super::spares::Spares;
use super::{format, random};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest frame: its sync costs about 2 ms, a shorter one wastes flushes.
const MAX_FRAME: u64 = 1 << 20;

/// Where a new segment begins: what recovery or the segment before it ended with.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) store: [u8; 16],
    pub(crate) previous: u64,
    pub(crate) previous_length: u64,
    pub(crate) last_sequence: u64,
    pub(crate) chain: [u8; 32],
    pub(crate) discarded: u64,
}

/// The end of the log.
pub(crate) struct Tail {
    disk: Arc<dyn Disk>,
    spares: Arc<Spares>,
    header: Header,
    file: Arc<dyn File>,
    offset: u64,
    frames: u64,
    last_sequence: u64,
    chain: [u8; 32],
    buffer: Vec<u8>,
    failed: bool,
    /// Bytes left in the segment, for the reservation.
    room: Arc<AtomicU64>,
}

/// The longest frame of a store with such segments.
pub(crate) fn frame_limit(segment_bytes: u64) -> u64 {
    MAX_FRAME.min(segment_bytes / 4).max(2 * format::MAX_PART as u64 + BLOCK as u64)
}

impl Tail {
    /// Begins a new segment. Recovery never appends to an old one (rule 8).
    ///
    /// # Errors
    /// Why the segment could not be begun.
    pub(crate) fn begin(
        disk: Arc<dyn Disk>,
        spares: Arc<Spares>,
        segment_bytes: u64,
        start: &Start,
        at_ms: u64,
        room: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let spare = spares.take()?;
        let header = Self::write_header(&spare, segment_bytes, start, at_ms)?;
        let tail = Self {
            disk,
            spares,
            file: spare.file,
            offset: BLOCK as u64,
            frames: 0,
            last_sequence: start.last_sequence,
            chain: start.chain,
            buffer: Vec::new(),
            failed: false,
            room,
            header,
        };
        tail.seal_previous();
        tail.publish_room();
        Ok(tail)
    }

    fn write_header(
        spare: &super::spares::Spare,
        segment_bytes: u64,
        start: &Start,
        at_ms: u64,
    ) -> io::Result<Header> {
        let header = Header {
            store: start.store,
            segment: spare.segment,
            salt: random()?,
            first_sequence: start.last_sequence + 1,
            chain_in: start.chain,
            previous: start.previous,
            previous_length: start.previous_length,
            previous_last: start.last_sequence,
            length: segment_bytes,
            created_ms: at_ms,
            discarded: start.discarded,
        };
        spare.file.write_at(&header.encode(), 0)?;
        spare.file.sync()?;
        Ok(header)
    }

    /// Gives back the zeros behind the end of the segment before this one. The end is durable in
    /// this segment's header, so nothing depends on the cut.
    fn seal_previous(&self) {
        if self.header.previous == 0 {
            return;
        }
        let cut = self
            .disk
            .open(&super::file_name(self.header.previous))
            .and_then(|file| file.truncate(self.header.previous_length));
        if let Err(error) = cut {
            tracing::warn!(%error, segment = self.header.previous, "a sealed segment was not cut");
        }
    }

    fn publish_room(&self) {
        let left = self.header.length.saturating_sub(self.offset);
        self.room.store(left, Ordering::Relaxed);
    }

    /// The sequence of the last record.
    pub(crate) const fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Up to where it is durable.
    pub(crate) const fn watermark(&self, store: [u8; 16]) -> Watermark {
        Watermark { store, sequence: self.last_sequence, chain: self.chain }
    }

    /// The segment that is written now.
    pub(crate) const fn segment(&self) -> u64 {
        self.header.segment
    }

    /// Writes one frame with the drafts in order and syncs it. They are durable when it returns.
    /// Gives their positions and the bytes written.
    ///
    /// # Errors
    /// Anything: the tail is poisoned then, and only recovery says what is on disk.
    pub(crate) fn append<'a>(
        &mut self,
        drafts: impl ExactSizeIterator<Item = &'a Draft>,
        at_ms: u64,
        positions: &mut Vec<Position>,
    ) -> io::Result<u64> {
        if self.failed {
            return Err(io::Error::other("the log failed before"));
        }
        let result = self.append_frame(drafts, at_ms, positions);
        self.failed = result.is_err();
        result
    }

    fn append_frame<'a>(
        &mut self,
        drafts: impl ExactSizeIterator<Item = &'a Draft>,
        at_ms: u64,
        positions: &mut Vec<Position>,
    ) -> io::Result<u64> {
        positions.clear();
        let count = drafts.len();
        let head = FrameHead {
            number: 0,
            first_sequence: self.last_sequence + 1,
            count: count as u32,
            chain_in: self.chain,
            at_ms,
        };
        let mut chain = self.chain;
        let mut sequence = self.last_sequence;
        let mut buffer = std::mem::take(&mut self.buffer);
        format::begin_frame(&mut buffer);
        for draft in drafts {
            let offset = buffer.len();
            sequence += 1;
            chain = draft.encode(sequence, &chain, &mut buffer);
            positions.push(Position {
                segment: 0,
                frame: 0,
                frame_length: 0,
                offset: offset as u32,
                length: (buffer.len() - offset) as u32,
            });
        }
        if self.offset + padded(buffer.len()) as u64 > self.header.length {
            self.roll(at_ms)?;
        }
        let head = FrameHead { number: self.frames + 1, ..head };
        let (segment, offset) = (self.header.segment, self.offset);
        let length = format::finish_frame(&mut buffer, &self.header.salt, segment, offset, &head);
        for position in positions.iter_mut() {
            position.segment = segment;
            position.frame = offset;
            position.frame_length = length;
        }
        if offset + buffer.len() as u64 > self.header.length {
            return Err(io::Error::other("the frame is longer than a segment"));
        }
        self.file.write_past_cache(&buffer, offset)?;
        crate::failpoint::written();
        self.file.sync()?;
        self.offset += buffer.len() as u64;
        self.frames += 1;
        self.last_sequence = sequence;
        self.chain = chain;
        let written = buffer.len() as u64;
        self.buffer = buffer;
        self.publish_room();
        Ok(written)
    }

    /// Goes over to the next segment, whose header makes the end of this one durable.
    fn roll(&mut self, at_ms: u64) -> io::Result<()> {
        let spare = self.spares.take()?;
        let start = Start {
            store: self.header.store,
            previous: self.header.segment,
            previous_length: self.offset,
            last_sequence: self.last_sequence,
            chain: self.chain,
            discarded: 0,
        };
        self.header = Self::write_header(&spare, self.header.length, &start, at_ms)?;
        self.file = spare.file;
        self.offset = BLOCK as u64;
        self.frames = 0;
        self.seal_previous();
        self.publish_room();
        Ok(())
    }
}
