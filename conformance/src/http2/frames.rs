//! Frames (RFC 9113 section 4.1) and field blocks. What is sent uses no table and no Huffman code;
//! what is read needs a decoder of HPACK.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The types of frames.
pub mod kind {
    /// DATA
    pub const DATA: u8 = 0;
    /// HEADERS
    pub const HEADERS: u8 = 1;
    /// RST_STREAM
    pub const RST_STREAM: u8 = 3;
    /// SETTINGS
    pub const SETTINGS: u8 = 4;
    /// PUSH_PROMISE
    pub const PUSH_PROMISE: u8 = 5;
    /// PING
    pub const PING: u8 = 6;
    /// GOAWAY
    pub const GOAWAY: u8 = 7;
    /// WINDOW_UPDATE
    pub const WINDOW_UPDATE: u8 = 8;
    /// CONTINUATION
    pub const CONTINUATION: u8 = 9;
}

/// The flag END_STREAM, and ACK of SETTINGS and PING.
pub(super) const END_STREAM: u8 = 1;
/// The flag END_HEADERS.
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The longest frame that an endpoint takes unless it says otherwise.
const LONGEST: usize = 1 << 14;

/// One frame.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// Reads one; `None` when the peer ended before it.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut head = [0; 9];
        match from.read_exact(&mut head).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Ok(Some(Self { kind, flags, stream: u32::from_be_bytes(stream) & !(1 << 31), payload }))
    }

    pub(super) const fn ends_stream(&self) -> bool {
        self.flags & END_STREAM != 0
    }

    pub(super) const fn ends_headers(&self) -> bool {
        self.flags & END_HEADERS != 0
    }

    /// The payload without padding and priority.
    pub(super) fn content(&self) -> &[u8] {
        let mut content = self.payload.as_slice();
        if self.flags & PADDED != 0
            && let Some((padding, rest)) = content.split_first()
        {
            content = rest.get(..rest.len().saturating_sub(usize::from(*padding))).unwrap_or(rest);
        }
        if self.kind == kind::HEADERS && self.flags & PRIORITY != 0 {
            content = content.get(5..).unwrap_or_default();
        }
        content
    }
}

/// The bytes of a frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut bytes = length.get(1..).unwrap_or_default().to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A field block: each line literal, never indexed, with its name (RFC 7541 section 6.2.3).
pub(super) fn block<'a>(lines: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in lines {
        block.push(0x10);
        for text in [name, value] {
            length(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541 section 5.1).
fn length(length: usize, to: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(127) else {
        return to.push(u8::try_from(length).unwrap_or_default());
    };
    to.push(127);
    while rest >= 128 {
        to.push(u8::try_from(rest % 128).unwrap_or_default() | 128);
        rest /= 128;
    }
    to.push(u8::try_from(rest).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541: another implementation reads what is written here.
    #[test]
    fn a_block_is_read_by_another_decoder() {
        let long = "x".repeat(40_000);
        let lines = [(":status", "200"), ("x-long", long.as_str()), ("x-empty", "")];
        let decoded = loona_hpack::Decoder::new().decode(&block(lines));
        let expected: Vec<_> =
            lines.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).into();
        assert_eq!(decoded.ok(), Some(expected));
    }
}
