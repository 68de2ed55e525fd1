//! The walk over one segment: rules 4 and 5 of recovery.

use super::format::{BLOCK, FRAME_HEADER, FrameView, Header, Position, RecordView, padded};
use crate::contract::Sequence;
use crate::verify::Damage;

/// Where a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    /// Bytes of the file that hold good frames, header included.
    pub(crate) length: u64,
    /// Good frames.
    pub(crate) frames: u64,
    /// The last sequence.
    pub(crate) last_sequence: u64,
    /// The chain value there.
    pub(crate) chain: [u8; 32],
    /// Bytes behind them up to the last block that is not zero.
    pub(crate) torn_bytes: u64,
}

impl End {
    /// Before the first frame.
    pub(crate) const fn of_empty(header: &Header) -> Self {
        Self {
            length: BLOCK as u64,
            frames: 0,
            last_sequence: header.first_sequence.saturating_sub(1),
            chain: header.chain_in,
            torn_bytes: 0,
        }
    }
}

/// Walks the frames of a segment and calls `visit` for every record.
///
/// Stops where the checksum of a frame fails. If any block behind that place holds a frame of this
/// segment, the place is inside acknowledged data: damage (rule 5). What has a good checksum and
/// still does not follow (number, sequence, chain) can't come from a torn write either: damage.
pub(crate) fn walk<E: From<Damage>>(
    header: &Header,
    bytes: &[u8],
    visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), E>,
) -> Result<End, E> {
    let mut end = walk_good(header, bytes, visit)?;
    let offset = usize::try_from(end.length).unwrap_or(usize::MAX);
    let tail = bytes.get(offset..).unwrap_or_default();
    look_ahead(header, offset, tail, &end)?;
    let zeros = [0; BLOCK];
    let last = tail.chunks(BLOCK).rposition(|block| zeros.get(..block.len()) != Some(block));
    let used = last.map_or(0, |last| (last + 1) * BLOCK);
    end.torn_bytes = used as u64;
    Ok(end)
}

/// [`walk`] without a look behind the first bad frame: for who reads beside a writer, which may be
/// in the middle of a frame.
pub(crate) fn walk_good<E: From<Damage>>(
    header: &Header,
    bytes: &[u8],
    visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), E>,
) -> Result<End, E> {
    let mut end = End::of_empty(header);
    walk_frames(header, bytes, visit, &mut end)?;
    Ok(end)
}

/// Walks until a frame's checksum fails, or anything else does; either way `end` is the end of the
/// last good frame.
pub(crate) fn walk_frames<E: From<Damage>>(
    header: &Header,
    bytes: &[u8],
    visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), E>,
    end: &mut End,
) -> Result<(), E> {
    let mut offset = BLOCK;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let Some(frame) = FrameView::decode(rest, &header.salt, header.segment, offset as u64)
        else {
            break;
        };
        let mut next = *end;
        walk_frame(header, offset, &frame, &mut next, visit)?;
        offset += padded(frame.length);
        *end = End { length: offset as u64, ..next };
    }
    Ok(())
}

fn walk_frame<E: From<Damage>>(
    header: &Header,
    offset: usize,
    frame: &FrameView<'_>,
    end: &mut End,
    visit: &mut dyn FnMut(Position, &RecordView<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let damage = |end: &End, what| Damage {
        segment: header.segment,
        offset: offset as u64,
        frame: end.frames + 1,
        sequence: Sequence(end.last_sequence),
        what,
    };
    if frame.number != end.frames + 1 {
        return Err(damage(end, "the frame has the wrong number").into());
    }
    if frame.first_sequence != end.last_sequence + 1 {
        return Err(damage(end, "the frame's sequence does not follow").into());
    }
    if !end.chain.starts_with(&frame.chain_prefix) {
        return Err(damage(end, "the frame does not follow the chain").into());
    }
    let mut place = 0;
    let mut count = 0;
    while let Some(rest) = frame.body.get(place..).filter(|rest| !rest.is_empty()) {
        let record =
            RecordView::decode(rest).ok_or_else(|| damage(end, "a record can't be read"))?;
        if record.sequence != end.last_sequence + 1 {
            return Err(damage(end, "a record's sequence does not follow").into());
        }
        if !record.links(&end.chain) {
            return Err(damage(end, "a record does not follow the chain").into());
        }
        let position = Position {
            segment: header.segment,
            frame: offset as u64,
            frame_length: frame.length as u32,
            offset: (FRAME_HEADER + place) as u32,
            length: record.length as u32,
        };
        visit(position, &record)?;
        end.last_sequence = record.sequence;
        end.chain = record.chain;
        place += record.length;
        count += 1;
    }
    if count != frame.count {
        return Err(damage(end, "the frame has the wrong number of records").into());
    }
    end.frames += 1;
    Ok(())
}

/// Rule 5: a frame behind the first bad one was written after it, so the bad one was acknowledged.
pub(crate) fn look_ahead(
    header: &Header,
    offset: usize,
    tail: &[u8],
    end: &End,
) -> Result<(), Damage> {
    for (n, start) in (0..tail.len()).step_by(BLOCK).enumerate().skip(1) {
        let at = (offset + n * BLOCK) as u64;
        let block = tail.get(start..).unwrap_or_default();
        if FrameView::decode(block, &header.salt, header.segment, at).is_some() {
            return Err(Damage {
                segment: header.segment,
                offset: offset as u64,
                frame: end.frames + 1,
                sequence: Sequence(end.last_sequence),
                what: "the frame is bad although later ones are good: acknowledged data is damaged",
            });
        }
    }
    Ok(())
}
