//! Where records lie, as one value of the index.
//!
//! Numbers are LEB128: seven bits a byte, low ones first, the high bit set on all but the last.
//!
//! ```text
//! byte     kind of the record; 128 more when its frame is that of the record before
//! number   its sequence, less that before (the first: less the lowest, which is in the key)
//!          of another frame: segment, offset of the frame, length of the frame
//! number   offset in the frame
//! number   length
//! ```

use crate::contract::Sequence;
use crate::log::{Kind, Position};

/// Set when segment and frame are those of the record before.
const SAME_FRAME: u8 = 0x80;

type Record = (Sequence, Kind, Position);

/// Appends the places of records, any and in any order.
pub(super) fn encode(lowest: Sequence, records: &[Record], out: &mut Vec<u8>) {
    let mut sequence = lowest.0;
    let mut before: Option<&Position> = None;
    for (next, kind, at) in records {
        let frame = |of: &Position| (of.segment, of.frame, of.frame_length);
        let same = before.is_some_and(|before| frame(before) == frame(at));
        out.push(kind.code() | if same { SAME_FRAME } else { 0 });
        put(next.0.wrapping_sub(sequence), out);
        if !same {
            put(at.segment, out);
            put(at.frame, out);
            put(at.frame_length.into(), out);
        }
        put(at.offset.into(), out);
        put(at.length.into(), out);
        (sequence, before) = (next.0, Some(at));
    }
}

/// Adds the records of a value. `None`: it is none that [`encode`] makes.
pub(super) fn decode(lowest: Sequence, mut value: &[u8], records: &mut Vec<Record>) -> Option<()> {
    let mut sequence = lowest.0;
    let mut before: Option<Position> = None;
    while let Some((head, rest)) = value.split_first() {
        value = rest;
        let kind = Kind::from_code(head & !SAME_FRAME)?;
        sequence = sequence.wrapping_add(take(&mut value)?);
        let (segment, frame, frame_length) = if head & SAME_FRAME == 0 {
            (take(&mut value)?, take(&mut value)?, take_short(&mut value)?)
        } else {
            let before = before?;
            (before.segment, before.frame, before.frame_length)
        };
        let (offset, length) = (take_short(&mut value)?, take_short(&mut value)?);
        let at = Position { segment, frame, frame_length, offset, length };
        records.push((Sequence(sequence), kind, at));
        before = Some(at);
    }
    Some(())
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(value: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = value.split_first()?;
        *value = rest;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_short(value: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(value)?).ok()
}
