//! Bytes of headers, frames and records, by explicit offsets. Layouts are in `FORMAT.md`.

use sha2::{Digest as _, Sha256};

/// The unit of padding: no acknowledged block is ever written again.
pub(crate) const BLOCK: usize = 4096;
/// Bytes of a frame's header.
pub(crate) const FRAME_HEADER: usize = 64;
/// The longest payload or attachment of a record.
pub(crate) const MAX_PART: usize = 96 << 10;

const SEGMENT_MAGIC: [u8; 8] = *b"AFJSEG\x00\x01";
const FRAME_MAGIC: u32 = 0x314d_4641;
const VERSION: u32 = 1;
const HEADER_CRC: usize = 144;
const RECORD_HEADER: usize = 48;
const FLAG_ATTACHMENT: u8 = 1;
const FLAG_REMOVED: u8 = 2;
const SCHEMA: u16 = 1;
const CHAIN_TAG: &[u8] = b"affiant journal chain v1\0";
const GENESIS_TAG: &[u8] = b"affiant journal genesis v1\0";

/// The value that a chain begins with.
pub(crate) fn genesis(store: &[u8; 16]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(GENESIS_TAG);
    hash.update(store);
    hash.finalize().into()
}

/// Reads little-endian fields at explicit offsets.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// Rounds up to whole blocks.
pub(crate) const fn padded(length: usize) -> usize {
    length.div_ceil(BLOCK) * BLOCK
}

/// Block 0 of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The store that the segment belongs to.
    pub(crate) store: [u8; 16],
    /// Its number: 1, 2, 3 ...
    pub(crate) segment: u64,
    /// Part of every checksum in it.
    pub(crate) salt: [u8; 16],
    /// The sequence of its first record.
    pub(crate) first_sequence: u64,
    /// The chain value before that record.
    pub(crate) chain_in: [u8; 32],
    /// The segment before it; 0 for none.
    pub(crate) previous: u64,
    /// Where that one ends. What lies behind was never acknowledged.
    pub(crate) previous_length: u64,
    /// The last sequence in it.
    pub(crate) previous_last: u64,
    /// Length of the file when it was made.
    pub(crate) length: u64,
    /// Wall clock, milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// Bytes that recovery cut off the segment before it.
    pub(crate) discarded: u64,
}

impl Header {
    /// The block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.extend_from_slice(&SEGMENT_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(BLOCK as u32).to_le_bytes());
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.first_sequence.to_le_bytes());
        out.extend_from_slice(&self.chain_in);
        for field in [
            self.previous,
            self.previous_length,
            self.previous_last,
            self.length,
            self.created_ms,
            self.discarded,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(BLOCK, 0);
        out
    }

    /// Reads a block; `None` unless it is the header of a segment in this format.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        if array::<8>(block, 0)? != SEGMENT_MAGIC
            || u32_at(block, HEADER_CRC)? != crc32c::crc32c(block.get(..HEADER_CRC)?)
            || u32_at(block, 8)? != VERSION
            || u32_at(block, 12)? as usize != BLOCK
        {
            return None;
        }
        Some(Self {
            store: array(block, 16)?,
            segment: u64_at(block, 32)?,
            salt: array(block, 40)?,
            first_sequence: u64_at(block, 56)?,
            chain_in: array(block, 64)?,
            previous: u64_at(block, 96)?,
            previous_length: u64_at(block, 104)?,
            previous_last: u64_at(block, 112)?,
            length: u64_at(block, 120)?,
            created_ms: u64_at(block, 128)?,
            discarded: u64_at(block, 136)?,
        })
    }
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An event of an invocation, as JSON.
    Event,
    /// A piece of a stored result: description as payload, cipher text as attachment.
    Chunk,
    /// What recovery cut off, as JSON.
    RecoveryNote,
    /// The state of an invocation whose earlier records leave with their segment, as JSON.
    CarriedForward,
}

impl Kind {
    /// The byte in records and in the index.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Event => 1,
            Self::Chunk => 2,
            Self::RecoveryNote => 3,
            Self::CarriedForward => 4,
        }
    }

    /// The kind of a byte.
    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Event),
            2 => Some(Self::Chunk),
            3 => Some(Self::RecoveryNote),
            4 => Some(Self::CarriedForward),
            _ => None,
        }
    }
}

/// A record that has no sequence yet. Its attachment is hashed where it is made, not by the writer.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) kind: Kind,
    pub(crate) invocation: [u8; 16],
    pub(crate) at_ms: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) attachment: Option<Attachment>,
}

/// Bytes that the chain covers only by their hash.
#[derive(Debug, Clone)]
pub(crate) struct Attachment {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: [u8; 32],
}

impl Attachment {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let hash = Sha256::digest(&bytes).into();
        Self { bytes, hash }
    }
}

impl Draft {
    /// Bytes of the encoded record.
    pub(crate) fn length(&self) -> usize {
        let attachment = self.attachment.as_ref().map_or(0, |attached| attached.bytes.len() + 32);
        RECORD_HEADER + 32 + self.payload.len() + attachment
    }

    /// Appends the record to `out` and gives the new chain value.
    pub(crate) fn encode(&self, sequence: u64, chain: &[u8; 32], out: &mut Vec<u8>) -> [u8; 32] {
        let attached = self.attachment.as_ref();
        let mut head = [0_u8; RECORD_HEADER];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = head.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
            at += bytes.len();
        };
        put(&(self.length() as u32).to_le_bytes());
        put(&[self.kind.code(), if attached.is_some() { FLAG_ATTACHMENT } else { 0 }]);
        put(&SCHEMA.to_le_bytes());
        put(&sequence.to_le_bytes());
        put(&self.invocation);
        put(&self.at_ms.to_le_bytes());
        put(&(self.payload.len() as u32).to_le_bytes());
        put(&(attached.map_or(0, |attached| attached.bytes.len()) as u32).to_le_bytes());
        let hash = attached.map(|attached| &attached.hash);
        let next = link(chain, &head, hash, &self.payload);
        out.extend_from_slice(&head);
        if let Some(hash) = hash {
            out.extend_from_slice(hash);
        }
        out.extend_from_slice(&next);
        out.extend_from_slice(&self.payload);
        if let Some(attached) = attached {
            out.extend_from_slice(&attached.bytes);
        }
        next
    }
}

/// The next chain value. Leaves out the record's length and the flag that says that its attachment
/// was removed, so that an attachment can go while the chain still verifies.
fn link(
    chain: &[u8; 32],
    head: &[u8; RECORD_HEADER],
    attachment: Option<&[u8; 32]>,
    payload: &[u8],
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(CHAIN_TAG);
    hash.update(chain);
    let [_, _, _, _, kind, flags, rest @ ..] = head;
    hash.update([*kind, *flags & !FLAG_REMOVED]);
    hash.update(rest);
    if let Some(attachment) = attachment {
        hash.update(attachment);
    }
    hash.update(payload);
    hash.finalize().into()
}

/// A record as it lies in a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordView<'a> {
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    pub(crate) invocation: [u8; 16],
    pub(crate) at_ms: u64,
    pub(crate) payload: &'a [u8],
    pub(crate) attachment: Option<&'a [u8]>,
    /// The chain value with this record.
    pub(crate) chain: [u8; 32],
    /// Bytes of the whole record.
    pub(crate) length: usize,
    head: [u8; RECORD_HEADER],
    attachment_hash: Option<[u8; 32]>,
}

impl<'a> RecordView<'a> {
    /// Reads the record at the beginning of the bytes. Structure only; see [`RecordView::links`].
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let head: [u8; RECORD_HEADER] = array(bytes, 0)?;
        let length = u32_at(&head, 0)? as usize;
        let body = bytes.get(RECORD_HEADER..length)?;
        let [kind, flags] = array::<2>(&head, 4)?;
        if flags & !(FLAG_ATTACHMENT | FLAG_REMOVED) != 0
            || array(&head, 6)? != SCHEMA.to_le_bytes()
        {
            return None;
        }
        let payload_length = u32_at(&head, 40)? as usize;
        let attachment_length = u32_at(&head, 44)? as usize;
        let (attachment_hash, body) = if flags & FLAG_ATTACHMENT != 0 {
            let (hash, body) = body.split_first_chunk::<32>()?;
            (Some(*hash), body)
        } else {
            (None, body)
        };
        let (chain, body) = body.split_first_chunk::<32>()?;
        let (payload, rest) = body.split_at_checked(payload_length)?;
        // A removed attachment leaves its place behind, so that no record after it moves.
        if rest.len() != attachment_length {
            return None;
        }
        let attachment = match attachment_hash {
            Some(_) if flags & FLAG_REMOVED == 0 => Some(rest),
            Some(_) | None => None,
        };
        Some(Self {
            kind: Kind::from_code(kind)?,
            sequence: u64_at(&head, 8)?,
            invocation: array(&head, 16)?,
            at_ms: u64_at(&head, 32)?,
            payload,
            attachment,
            chain: *chain,
            length,
            head,
            attachment_hash,
        })
    }

    /// Whether it had an attachment that was removed.
    pub(crate) const fn lost_attachment(&self) -> bool {
        self.attachment.is_none() && self.attachment_hash.is_some()
    }

    /// Whether the record follows the chain value.
    pub(crate) fn links(&self, chain: &[u8; 32]) -> bool {
        link(chain, &self.head, self.attachment_hash.as_ref(), self.payload) == self.chain
    }

    /// The attachment, if it is there and hashes to what the chain covers.
    pub(crate) fn sound_attachment(&self) -> Option<&'a [u8]> {
        let attachment = self.attachment?;
        let hash: [u8; 32] = Sha256::digest(attachment).into();
        (Some(hash) == self.attachment_hash).then_some(attachment)
    }
}

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    /// Offset of its frame in the file.
    pub(crate) frame: u64,
    /// Bytes of that frame without padding.
    pub(crate) frame_length: u32,
    /// Offset of the record in the frame.
    pub(crate) offset: u32,
    /// Bytes of the record.
    pub(crate) length: u32,
}

/// A frame's header, without magic and checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameHead {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) count: u32,
    pub(crate) chain_in: [u8; 32],
    pub(crate) at_ms: u64,
}

/// Begins a frame: leaves room for its header.
pub(crate) fn begin_frame(out: &mut Vec<u8>) {
    out.clear();
    out.resize(FRAME_HEADER, 0);
}

/// Fills in the header of a frame whose records follow in `out`, and pads it to whole blocks.
/// Gives its length without padding.
pub(crate) fn finish_frame(
    out: &mut Vec<u8>,
    salt: &[u8; 16],
    segment: u64,
    offset: u64,
    head: &FrameHead,
) -> u32 {
    let length = out.len();
    let body = (length - FRAME_HEADER) as u32;
    let durable = head.first_sequence.saturating_sub(1);
    let mut bytes = Vec::with_capacity(FRAME_HEADER - 8);
    bytes.extend_from_slice(&head.number.to_le_bytes());
    bytes.extend_from_slice(&head.first_sequence.to_le_bytes());
    bytes.extend_from_slice(&head.count.to_le_bytes());
    bytes.extend_from_slice(&body.to_le_bytes());
    bytes.extend(head.chain_in.iter().take(16));
    bytes.extend_from_slice(&head.at_ms.to_le_bytes());
    bytes.extend_from_slice(&durable.to_le_bytes());
    if let Some(place) = out.get_mut(8..FRAME_HEADER) {
        place.copy_from_slice(&bytes);
    }
    let crc = frame_crc(salt, segment, offset, out.get(8..).unwrap_or_default());
    if let Some(place) = out.first_chunk_mut::<8>() {
        let [m0, m1, m2, m3] = FRAME_MAGIC.to_le_bytes();
        let [c0, c1, c2, c3] = crc.to_le_bytes();
        *place = [m0, m1, m2, m3, c0, c1, c2, c3];
    }
    out.resize(padded(length), 0);
    length as u32
}

/// Removes the attachment of a record inside of a frame: a flag is set, the bytes become zeros. The
/// frame's checksum has to be made anew: [`reseal_frame`].
pub(crate) fn remove_attachment(record: &mut [u8]) {
    let attachment = u32_at(record, 44).unwrap_or_default() as usize;
    let start = record.len().saturating_sub(attachment);
    if let Some(place) = record.get_mut(start..) {
        place.fill(0);
    }
    if let Some(flags) = record.get_mut(5) {
        *flags |= FLAG_REMOVED;
    }
}

/// Makes the checksum of a frame anew, after [`remove_attachment`].
pub(crate) fn reseal_frame(frame: &mut [u8], salt: &[u8; 16], segment: u64, offset: u64) {
    let crc = frame_crc(salt, segment, offset, frame.get(8..).unwrap_or_default());
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

fn frame_crc(salt: &[u8; 16], segment: u64, offset: u64, rest: &[u8]) -> u32 {
    let mut place = [0_u8; 32];
    let parts = salt.iter().copied().chain(segment.to_le_bytes()).chain(offset.to_le_bytes());
    for (to, from) in place.iter_mut().zip(parts) {
        *to = from;
    }
    crc32c::crc32c_append(crc32c::crc32c(&place), rest)
}

/// Whether any block looks like the beginning of a frame, checksum aside: for a file whose salt is
/// not known.
pub(crate) fn has_frames(bytes: &[u8]) -> bool {
    bytes.chunks(BLOCK).any(|block| u32_at(block, 0) == Some(FRAME_MAGIC))
}

/// A frame whose checksum holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameView<'a> {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) count: u32,
    pub(crate) chain_prefix: [u8; 16],
    /// The records.
    pub(crate) body: &'a [u8],
    /// Bytes of the frame without padding.
    pub(crate) length: usize,
}

impl<'a> FrameView<'a> {
    /// Reads the frame at the beginning of the bytes, which lie at `offset` of the segment. `None`
    /// unless magic, length and checksum hold.
    pub(crate) fn decode(
        bytes: &'a [u8],
        salt: &[u8; 16],
        segment: u64,
        offset: u64,
    ) -> Option<Self> {
        if u32_at(bytes, 0)? != FRAME_MAGIC {
            return None;
        }
        let length = FRAME_HEADER.checked_add(u32_at(bytes, 28)? as usize)?;
        let frame = bytes.get(..length)?;
        if u32_at(frame, 4)? != frame_crc(salt, segment, offset, frame.get(8..)?) {
            return None;
        }
        Some(Self {
            number: u64_at(frame, 8)?,
            first_sequence: u64_at(frame, 16)?,
            count: u32_at(frame, 24)?,
            chain_prefix: array(frame, 32)?,
            body: frame.get(FRAME_HEADER..)?,
            length,
        })
    }
}
