//! The frames that come on a WebSocket (RFC 6455 section 5), without the credential in what they carry
//! (contract I-4).
//!
//! ```text
//!  head ──► data ──► head ──► control ──► head ──► data (last) ──► head
//!            └─────── one message, one text ────────┘
//! ```
//!
//! A replacement is as long as what it replaces, so heads and lengths stay. What may be the beginning of the
//! credential waits: inside a frame until the origin goes on, because nobody can use half a frame; behind one
//! until the next frame of its message, with the control frames between them. Only a few bytes there go on
//! after a pause, and what follows them is replaced all the same.

use crate::redact::Redactor;
use bytes::BytesMut;
use std::ops::Range;
use zeroize::Zeroizing;

/// Control frames that wait behind a possible beginning of the credential, at most.
const MAX_WAITING: usize = 64 * 1024;
/// Content of a control frame at most (RFC 6455 section 5.5).
const MAX_CONTROL: u64 = 125;

/// What came is no frame that a server may send where no extension is agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came on the WebSocket is no sequence of frames")]
pub(crate) struct Malformed;

/// What comes on one WebSocket.
pub(crate) struct Frames<'a> {
    redactor: &'a mut Redactor,
    /// What came and did not go on.
    pending: BytesMut,
    /// How much of it is read.
    at: usize,
    within: Within,
    /// Whether a message waits for its next frame.
    is_open: bool,
    /// Where the bytes lie that may be the beginning of the credential.
    held: Vec<Range<usize>>,
    /// Those in front of them that went on.
    out: Zeroizing<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Within {
    Head,
    /// So much is still to come of a frame of a message.
    Data {
        left: u64,
        is_last: bool,
    },
    /// A whole one is waited for.
    Control {
        length: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Begins,
    Continues,
    Control,
}

struct Head {
    kind: Kind,
    is_last: bool,
    content: u64,
    length: usize,
}

impl Head {
    /// None: more has to come. Reserved bits and kinds belong to extensions, and a mask to clients.
    fn read(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        if first & 0x70 != 0 || second & 0x80 != 0 {
            return Err(Malformed);
        }
        let kind = match first & 0x0f {
            0 => Kind::Continues,
            1 | 2 => Kind::Begins,
            8..=10 => Kind::Control,
            _ => return Err(Malformed),
        };
        let (content, more) = match second & 0x7f {
            126 => match rest.first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        Ok(Some(Self { kind, is_last: first & 0x80 != 0, content, length: 2 + more }))
    }
}

impl<'a> Frames<'a> {
    /// From the first frame on.
    pub(crate) fn new(redactor: &'a mut Redactor) -> Self {
        Self {
            redactor,
            pending: BytesMut::new(),
            at: 0,
            within: Within::Head,
            is_open: false,
            held: Vec::new(),
            out: Zeroizing::default(),
        }
    }

    /// Takes what came; gives what may go on.
    ///
    /// # Errors
    /// [`Malformed`], and so is what never ends to come between two frames of a message.
    pub(crate) fn push(&mut self, bytes: BytesMut) -> Result<BytesMut, Malformed> {
        if self.pending.is_empty() {
            self.pending = bytes;
        } else {
            self.pending.extend_from_slice(&bytes);
        }
        while self.step()? {}
        let clear = self.held.first().map_or(self.at, |held| held.start);
        let passing = self.pass(clear);
        if self.pending.len() > MAX_WAITING { Err(Malformed) } else { Ok(passing) }
    }

    /// Whether bytes wait that are to go on soon: a few, which are most likely no credential, behind a
    /// frame that is whole.
    pub(crate) fn is_waiting(&self) -> bool {
        let beginning = self.out.len() + self.held.iter().map(Range::len).sum::<usize>();
        let is_between = match self.within {
            Within::Head | Within::Control { .. } => true,
            Within::Data { .. } => false,
        };
        is_between && !self.held.is_empty() && beginning < self.redactor.few_bytes()
    }

    /// Lets those go on. They still count as a beginning: what follows is replaced all the same.
    pub(crate) fn release(&mut self) -> BytesMut {
        for held in std::mem::take(&mut self.held) {
            self.out.extend_from_slice(self.pending.get(held).unwrap_or_default());
        }
        self.pass(self.at)
    }

    /// The end of what comes: what waited goes on.
    pub(crate) fn finish(&mut self) -> BytesMut {
        self.held.clear();
        std::mem::take(&mut self.pending)
    }

    fn pass(&mut self, clear: usize) -> BytesMut {
        self.at -= clear;
        for held in &mut self.held {
            *held = held.start - clear..held.end - clear;
        }
        self.pending.split_to(clear)
    }

    /// Reads on; whether there is more to read.
    fn step(&mut self) -> Result<bool, Malformed> {
        match self.within {
            Within::Head => {
                let unread = self.pending.get(self.at..).unwrap_or_default();
                let Some(head) = Head::read(unread)? else { return Ok(false) };
                self.at += head.length;
                self.within = self.behind(&head)?;
            }
            Within::Control { length } => {
                let content = self.pending.get_mut(self.at..self.at + length);
                let Some(content) = content else { return Ok(false) };
                self.redactor.in_place(content);
                self.at += length;
                self.within = Within::Head;
            }
            Within::Data { left, is_last } => {
                let there = self.pending.len() - self.at;
                let taken = usize::try_from(left).map_or(there, |left| left.min(there));
                if taken == 0 && left > 0 {
                    return Ok(false);
                }
                let left = left - taken as u64;
                self.search(self.at..self.at + taken, left == 0 && is_last);
                self.at += taken;
                self.within = if left == 0 { Within::Head } else { Within::Data { left, is_last } };
            }
        }
        Ok(true)
    }

    /// What the head says of what follows it.
    fn behind(&mut self, head: &Head) -> Result<Within, Malformed> {
        match head.kind {
            Kind::Control if head.is_last && head.content <= MAX_CONTROL => {
                let length = usize::try_from(head.content).map_err(|_| Malformed)?;
                Ok(Within::Control { length })
            }
            Kind::Begins | Kind::Continues if self.is_open == (head.kind == Kind::Continues) => {
                self.is_open = !head.is_last;
                Ok(Within::Data { left: head.content, is_last: head.is_last })
            }
            Kind::Control | Kind::Begins | Kind::Continues => Err(Malformed),
        }
    }

    /// Replaces in what came of a message, with what was held of it before. `ends`: nothing follows.
    fn search(&mut self, came: Range<usize>, ends: bool) {
        let whole = match self.held.as_slice() {
            [] if self.out.is_empty() => Some(came.clone()),
            [held] if self.out.is_empty() && held.end == came.start => Some(held.start..came.end),
            _ => None,
        };
        let Some(whole) = whole else { return self.search_apart(came, ends) };
        let text = self.pending.get_mut(whole).unwrap_or_default();
        self.redactor.in_place(text);
        let open = if ends { 0 } else { self.redactor.open_suffix(text) };
        self.held.clear();
        if open > 0 {
            self.held.push(came.end - open..came.end);
        }
    }

    /// The same of a text that does not lie in one piece.
    fn search_apart(&mut self, came: Range<usize>, ends: bool) {
        self.held.push(came);
        let out_bytes = self.out.len();
        let length = out_bytes + self.held.iter().map(Range::len).sum::<usize>();
        let mut text = Zeroizing::new(Vec::with_capacity(length));
        text.extend_from_slice(&self.out);
        for held in &self.held {
            text.extend_from_slice(self.pending.get(held.clone()).unwrap_or_default());
        }
        if self.redactor.in_place(&mut text) {
            let mut rest = text.get(out_bytes..).unwrap_or_default();
            for held in &self.held {
                let Some((part, behind)) = rest.split_at_checked(held.len()) else { break };
                if let Some(place) = self.pending.get_mut(held.clone()) {
                    place.copy_from_slice(part);
                }
                rest = behind;
            }
        }
        let open = if ends { 0 } else { self.redactor.open_suffix(&text) };
        let clear = length - open;
        let out = text.get(clear.min(out_bytes)..out_bytes).unwrap_or_default();
        self.out = Zeroizing::new(out.to_vec());
        let mut clear = clear.saturating_sub(out_bytes);
        self.held.retain_mut(|held| {
            let passed = clear.min(held.len());
            held.start += passed;
            clear -= passed;
            held.start < held.end
        });
    }
}

#[cfg(test)]
mod tests;
