//! Packets of the file transfer protocol and the fields in them (draft-ietf-secsh-filexfer-02 sections 3
//! and 5), bounded: of a packet only the beginning is kept.

/// Kept of a packet: two long paths fit.
pub(super) const HEAD_BYTES: usize = 10 << 10;
/// Kept of a packet with file content: the handle and the numbers.
const CONTENT_HEAD_BYTES: usize = 512;
/// Longer packets are none. OpenSSH's limit is 256 KiB; others are more generous.
const MAX_PACKET_BYTES: u32 = 64 << 20;
/// Bytes of a handle (section 6.2 of the draft).
pub(super) const MAX_HANDLE_BYTES: usize = 256;
/// Bytes of a path in a record.
pub(super) const MAX_PATH_BYTES: usize = 1024;

/// A request with file content.
pub(super) const WRITE: u8 = 6;
/// A reply with file content.
pub(super) const DATA: u8 = 103;

/// One direction, cut into packets.
#[derive(Debug, Default)]
pub(super) struct Packets {
    length: [u8; 4],
    length_have: usize,
    left_bytes: u32,
    wanted_bytes: usize,
    pub(super) head: Vec<u8>,
    pub(super) is_broken: bool,
}

impl Packets {
    /// Takes the next bytes, and hands the beginning of each packet that became complete to `each`.
    pub(super) fn push(&mut self, mut data: &[u8], mut each: impl FnMut(&[u8])) {
        while !data.is_empty() && !self.is_broken {
            if self.left_bytes == 0 {
                let Some((byte, rest)) = data.split_first() else { return };
                data = rest;
                if let Some(slot) = self.length.get_mut(self.length_have) {
                    *slot = *byte;
                }
                self.length_have += 1;
                if self.length_have == self.length.len() {
                    self.begin();
                }
                continue;
            }
            let take = data.len().min(usize::try_from(self.left_bytes).unwrap_or(usize::MAX));
            let (now, rest) = data.split_at(take);
            data = rest;
            self.left_bytes -= u32::try_from(take).unwrap_or(self.left_bytes);
            self.keep(now);
            if self.left_bytes == 0 {
                each(&self.head);
            }
        }
    }

    fn begin(&mut self) {
        self.length_have = 0;
        self.head.clear();
        self.wanted_bytes = HEAD_BYTES;
        self.left_bytes = u32::from_be_bytes(self.length);
        if self.left_bytes == 0 || self.left_bytes > MAX_PACKET_BYTES {
            self.is_broken = true;
        }
    }

    fn keep(&mut self, data: &[u8]) {
        if self.head.is_empty() && matches!(data.first(), Some(&(WRITE | DATA))) {
            self.wanted_bytes = CONTENT_HEAD_BYTES;
        }
        let room = self.wanted_bytes.saturating_sub(self.head.len());
        self.head.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
    }
}

/// The fields of a packet, in order (RFC 4251 section 5).
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*bytes))
    }

    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn path(&mut self) -> Option<String> {
        self.string().map(shown)
    }

    pub(super) fn handle(&mut self) -> Option<Vec<u8>> {
        let handle = self.string()?;
        (handle.len() <= MAX_HANDLE_BYTES).then(|| handle.to_vec())
    }
}

/// A path for a record: as text, cut where it is too long.
pub(super) fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path.get(..MAX_PATH_BYTES).unwrap_or(path)).into_owned();
    if path.len() > MAX_PATH_BYTES { format!("{text}...") } else { text }
}
