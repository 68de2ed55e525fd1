//! Looks at frames in a stream of bytes (RFC 9113 section 4.1) without taking part: where a message
//! began and ended, what a GOAWAY said, and which field blocks are longer than a head may be.

use crate::head;
use dashmap::DashSet;
use std::sync::Arc;

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A frame of a message on this stream began: HEADERS, CONTINUATION or DATA.
    Begun(u32),
    /// HEADERS that do not end the stream passed in full.
    Headers(u32),
    /// A frame with END_STREAM passed in full.
    EndStream(u32),
    /// So many bytes of a stream that goes on.
    Data(u32, u32),
    /// A GOAWAY: the last stream that the peer may have acted on.
    GoAway(u32),
    /// A frame that neither asks nor carries anything, but costs the one who reads it: a reset, a ping that
    /// wants an answer, a priority.
    Idle,
    /// Settings, which cost as much.
    Settings,
    /// The answer to a setting or to a ping.
    Ack,
    /// The field block of the stream, so far as it passed, is longer than [`BLOCK_BYTES`].
    LongBlock(u32),
}

/// Bytes of a field block at most: a head in literals, padded (RFC 9113 section 6.2).
const BLOCK_BYTES: usize = head::MAX_BYTES + 512;

/// Streams with a field block that is too long on the wire. The library says of such a head that it is
/// malformed, and of such trailers nothing: it leaves fields out. Each id here cost its peer the bytes of
/// a whole head.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongBlocks(Arc<DashSet<u32>>);

impl LongBlocks {
    /// Takes note of a stream.
    pub(crate) fn add(&self, id: u32) {
        self.0.insert(id);
    }

    /// Whether the stream had one.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.0.contains(&id)
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
/// The client's preface (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;

/// Follows one direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Bytes to let pass first: the client's preface.
    skip: usize,
    /// The frame's header and the first four bytes behind it.
    start: [u8; 13],
    have: usize,
    /// Payload bytes to come, once the header is there.
    left: usize,
    /// Bytes of the field block that passed.
    block: usize,
}

impl Frames {
    /// Follows what a client sends from its first byte on.
    pub(crate) fn of_client() -> Self {
        Self { skip: PREFACE_BYTES, ..Self::default() }
    }

    /// Looks at what passed.
    pub(crate) fn see(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Seen)) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = bytes.get(skipped..).unwrap_or_default();
        while let Some((byte, rest)) = bytes.split_first() {
            if self.have < 9 {
                self.put(*byte);
                bytes = rest;
                if self.have == 9 {
                    let [a, b, c, kind, _, d, e, f, g, ..] = self.start;
                    self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                    if matches!(kind, DATA | HEADERS | CONTINUATION) {
                        tell(Seen::Begun(u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff));
                    }
                }
            } else {
                let taken = self.left.min(bytes.len());
                let (payload, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
                for byte in payload.iter().take(self.start.len() - self.have) {
                    self.put(*byte);
                }
                self.left -= taken;
                bytes = rest;
            }
            if self.have >= 9 && self.left == 0 {
                if let Some(id) = self.long_block() {
                    tell(Seen::LongBlock(id));
                }
                if let Some(seen) = self.seen() {
                    tell(seen);
                }
                self.have = 0;
            }
        }
    }

    fn put(&mut self, byte: u8) {
        if let Some(place) = self.start.get_mut(self.have) {
            *place = byte;
            self.have += 1;
        }
    }

    /// The stream of a field block that grew too long with this frame.
    fn long_block(&mut self) -> Option<u32> {
        let [x, y, z, kind, _, a, b, c, d, ..] = self.start;
        let length = u32::from_be_bytes([0, x, y, z]) as usize;
        self.block = match kind {
            HEADERS => length,
            CONTINUATION => self.block.saturating_add(length),
            _ => return None,
        };
        (self.block > BLOCK_BYTES).then_some(u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff)
    }

    fn seen(&self) -> Option<Seen> {
        let [x, y, z, kind, flags, a, b, c, d, e, f, g, h] = self.start;
        let id = |bytes| u32::from_be_bytes(bytes) & 0x7fff_ffff;
        match kind {
            DATA | HEADERS if flags & END_STREAM != 0 => Some(Seen::EndStream(id([a, b, c, d]))),
            DATA => Some(Seen::Data(id([a, b, c, d]), id([0, x, y, z]))),
            HEADERS => Some(Seen::Headers(id([a, b, c, d]))),
            // On a stream it is malformed, and proves nothing (RFC 9113 section 6.8).
            GOAWAY if self.have == 13 && id([a, b, c, d]) == 0 => {
                Some(Seen::GoAway(id([e, f, g, h])))
            }
            PRIORITY | RST_STREAM => Some(Seen::Idle),
            SETTINGS if flags & ACK == 0 => Some(Seen::Settings),
            PING if flags & ACK == 0 => Some(Seen::Idle),
            SETTINGS | PING => Some(Seen::Ack),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [length.get(1..).expect("four"), &[kind, flags], &id.to_be_bytes(), payload].concat()
    }

    /// C-6: frames are found however they are cut; a GOAWAY on a stream is none.
    #[test]
    fn c_6_frames_are_found_however_they_are_cut() {
        let bytes = [
            frame(4, 0, 0, &[0; 18]),
            frame(HEADERS, 4, 1, b"abc"),
            frame(DATA, 0, 1, &[7; 300]),
            frame(DATA, END_STREAM, 1, b""),
            frame(CONTINUATION, 0, 7, b"c"),
            frame(GOAWAY, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0, b'd']),
            frame(GOAWAY, 0, 1, &[0; 8]),
            frame(HEADERS, 5, 3, b"x"),
            frame(SETTINGS, ACK, 0, b""),
            frame(PING, ACK, 0, &[0; 8]),
        ]
        .concat();
        // One that is cut has begun.
        let cut = frame(HEADERS, 4, 9, b"abc");
        let mut begun = Vec::new();
        Frames::default().see(cut.get(..9).expect("a header"), |one| begun.push(one));
        assert_eq!(begun, [Seen::Begun(9)]);
        for pace in [1, 2, 7, 9, 13, 100, bytes.len()] {
            let (mut frames, mut seen) = (Frames::default(), Vec::new());
            bytes.chunks(pace).for_each(|piece| frames.see(piece, |one| seen.push(one)));
            let expected = [
                Seen::Settings,
                Seen::Begun(1),
                Seen::Headers(1),
                Seen::Begun(1),
                Seen::Data(1, 300),
                Seen::Begun(1),
                Seen::EndStream(1),
                Seen::Begun(7),
                Seen::GoAway(5),
                Seen::Begun(3),
                Seen::EndStream(3),
                Seen::Ack,
                Seen::Ack,
            ];
            assert_eq!(seen, expected, "{pace}");
        }
    }

    /// The length of a field block is that of all of its frames.
    #[test]
    fn long_field_blocks_are_found() {
        let full = vec![0; 1 << 14];
        let block = |id, last: usize| {
            let more = frame(CONTINUATION, 0, id, &full).repeat(3);
            [frame(HEADERS, 1, id, &full), more, frame(CONTINUATION, 4, id, &vec![0; last])]
                .concat()
        };
        let fits = BLOCK_BYTES - 4 * full.len();
        let bytes = [block(1, fits), block(3, fits + 1), frame(HEADERS, 5, 5, b"x")].concat();
        let mut seen = Vec::new();
        Frames::default().see(&bytes, |one| seen.push(one));
        seen.retain(|one| !matches!(one, Seen::Begun(_)));
        let ended = Seen::EndStream;
        assert_eq!(seen, [ended(1), ended(3), Seen::LongBlock(3), ended(5)]);
    }
}
