//! Stored results: numbered, encrypted chunks with a completeness marker (contract R-4).
//!
//! A chunk is one record: its description is chained, its cipher text is an attachment that the
//! chain covers by its hash. A result is complete when `RESULT_COMMITTED` names it.

mod key;

use crate::contract::{Digest, InvocationId, ResultRef, Sequence};
use crate::core::Core;
use crate::log::format::Attachment;
use crate::log::{Draft, Kind, Position, unique};
use ring::aead::{Aad, LessSafeKey, Nonce};
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;

pub use key::ResultKey;
pub(crate) use key::{Made, Purpose};

/// Content bytes of a full chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of a chunk's description.
const DESCRIPTION: usize = 28;

/// Which part of a result a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// HTTP: JSON `{"status":200,"headers":[["name","value"]]}`. Not part of length and digest.
    Head,
    /// HTTP: content.
    Content,
    /// SSH: standard output.
    Stdout,
    /// SSH: standard error.
    Stderr,
    /// HTTP: the trailer section, JSON `[["name","value"]]`. Goes last. Not part of length and digest.
    Trailers,
}

impl Stream {
    /// Whether it counts in the result's length and digest.
    pub(crate) const fn is_content(self) -> bool {
        match self {
            Self::Content | Self::Stdout | Self::Stderr => true,
            Self::Head | Self::Trailers => false,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Head => 0,
            Self::Content => 1,
            Self::Stdout => 2,
            Self::Stderr => 3,
            Self::Trailers => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Head),
            1 => Some(Self::Content),
            2 => Some(Self::Stdout),
            3 => Some(Self::Stderr),
            4 => Some(Self::Trailers),
            _ => None,
        }
    }
}

/// Why a stored result can't be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Caller: the invocation is not on record.
    #[error("the invocation is not on record")]
    NotFound,
    /// Caller: it is settled, and no result is kept.
    #[error("no result of this invocation is kept")]
    NotKept,
    /// Caller: no complete result is on record (yet).
    #[error("no complete result of this invocation is on record")]
    Incomplete,
    /// Caller: the route's retention is over.
    #[error("the result has expired")]
    Expired,
    /// Local: the vault is locked.
    #[error("the result is encrypted, and the vault is locked")]
    Locked,
    /// Local: the stored bytes are not what was stored, or the key is another one.
    #[error("the stored result does not verify")]
    Damaged,
    /// Local: the log could not be read.
    #[error(transparent)]
    Read(#[from] crate::read::Error),
}

/// What stands in front of a chunk's cipher text, in clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Description {
    stream: Stream,
    made: Made,
    number: u32,
    length: u32,
    salt: [u8; 16],
}

impl Description {
    fn encode(&self) -> [u8; DESCRIPTION] {
        let mut out = [0; DESCRIPTION];
        let fields = [self.stream.code()]
            .into_iter()
            .chain(self.made.encode())
            .chain(self.number.to_le_bytes())
            .chain(self.length.to_le_bytes())
            .chain(self.salt);
        for (to, from) in out.iter_mut().zip(fields) {
            *to = from;
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let ([stream, made @ ..], rest) = bytes.split_first_chunk::<4>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let salt = <[u8; 16]>::try_from(rest).ok()?;
        Some(Self {
            stream: Stream::from_code(*stream)?,
            made: Made::decode(*made)?,
            number: u32::from_le_bytes(*number),
            length: u32::from_le_bytes(*length),
            salt,
        })
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        for (to, from) in nonce.iter_mut().zip(self.number.to_le_bytes()) {
            *to = from;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// What the cipher authenticates beside the content: whose chunk, which number, which stream.
    fn context(&self, id: InvocationId) -> Vec<u8> {
        let mut context = id.to_bytes().to_vec();
        context.extend_from_slice(&self.encode());
        context
    }
}

/// Makes the chunks of one result.
pub(crate) struct Sealer {
    id: InvocationId,
    key: LessSafeKey,
    made: Made,
    salt: [u8; 16],
    stream: Stream,
    pending: Vec<u8>,
    chunks: u32,
    length_bytes: u64,
    digest: Sha256,
}

impl Sealer {
    pub(crate) fn new(key: &ResultKey, id: InvocationId) -> Option<Self> {
        let (salt, made) = (unique().ok()?, Made::Under(key.newest()?));
        Some(Self {
            id,
            key: key.derive(made, Purpose::Chunks, &salt, id)?,
            made,
            salt,
            stream: Stream::Head,
            pending: Vec::new(),
            chunks: 0,
            length_bytes: 0,
            digest: Sha256::new(),
        })
    }

    /// Takes bytes and gives the chunks that became full.
    pub(crate) fn push(
        &mut self,
        stream: Stream,
        mut bytes: &[u8],
        at_ms: u64,
    ) -> Option<Vec<Draft>> {
        let mut full = Vec::new();
        if stream != self.stream {
            full.extend(self.seal(at_ms)?);
            self.stream = stream;
        }
        if stream.is_content() {
            self.digest.update(bytes);
            self.length_bytes += bytes.len() as u64;
        }
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.pending.len().min(CHUNK_BYTES);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() >= CHUNK_BYTES {
                full.extend(self.seal(at_ms)?);
            }
        }
        Some(full)
    }

    /// The last chunk, and what names the whole.
    pub(crate) fn finish(mut self, at_ms: u64) -> Option<(Option<Draft>, ResultRef)> {
        let last = self.seal(at_ms)?;
        let digest = Digest(self.digest.finalize().into());
        let (chunks, length_bytes) = (self.chunks, self.length_bytes);
        Some((last, ResultRef { chunks, length_bytes, digest }))
    }

    /// Encrypts what is pending; the outer `None` says that the cipher failed.
    fn seal(&mut self, at_ms: u64) -> Option<Option<Draft>> {
        if self.pending.is_empty() {
            return Some(None);
        }
        let mut bytes = std::mem::take(&mut self.pending);
        let description = Description {
            stream: self.stream,
            made: self.made,
            number: self.chunks,
            length: u32::try_from(bytes.len()).ok()?,
            salt: self.salt,
        };
        let context = Aad::from(description.context(self.id));
        self.key.seal_in_place_append_tag(description.nonce(), context, &mut bytes).ok()?;
        self.chunks = self.chunks.checked_add(1)?;
        Some(Some(Draft {
            kind: Kind::Chunk,
            invocation: self.id.to_bytes(),
            at_ms,
            payload: description.encode().to_vec(),
            attachment: Some(Attachment::new(bytes)),
        }))
    }
}

/// A chunk, decrypted.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) number: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Decrypts one chunk record; `None` when it is not what was stored.
pub(crate) fn open_chunk(
    key: &ResultKey,
    id: InvocationId,
    payload: &[u8],
    attachment: &[u8],
) -> Option<Opened> {
    let description = Description::decode(payload)?;
    let key = key.derive(description.made, Purpose::Chunks, &description.salt, id)?;
    let mut bytes = attachment.to_vec();
    let context = Aad::from(description.context(id));
    let length = key.open_in_place(description.nonce(), context, &mut bytes).ok()?.len();
    bytes.truncate(length);
    let whole = length as u64 == u64::from(description.length);
    let Description { stream, number, .. } = description;
    whole.then_some(Opened { stream, number, bytes })
}

/// A complete stored result; chunks are read, verified and decrypted one at a time.
pub struct StoredResult {
    core: Arc<Core>,
    id: InvocationId,
    reference: ResultRef,
    head: Option<Vec<u8>>,
    trailers: Option<Vec<u8>>,
    key: ResultKey,
    opener: Option<([u8; 16], LessSafeKey)>,
    chunks: VecDeque<(u32, Sequence, Position)>,
    leave_out: u64,
    /// Of everything handed out; checked at the end when nothing was left out.
    digest: Option<Sha256>,
}

impl std::fmt::Debug for StoredResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredResult").field("id", &self.id).finish_non_exhaustive()
    }
}

impl StoredResult {
    /// Begins to read. `records` are those of the result, in order.
    pub(crate) fn open(
        core: Arc<Core>,
        id: InvocationId,
        reference: ResultRef,
        records: &[(Sequence, Kind, Position)],
        key: ResultKey,
    ) -> Result<Self, Error> {
        let chunks: VecDeque<_> = records
            .iter()
            .filter(|(_, kind, _)| *kind == Kind::Chunk)
            .zip(0_u32..)
            .map(|((sequence, _, position), number)| (number, *sequence, *position))
            .collect();
        if chunks.len() as u64 != u64::from(reference.chunks) {
            return Err(Error::Damaged);
        }
        let mut result = Self {
            core,
            id,
            reference,
            head: None,
            trailers: None,
            key,
            opener: None,
            chunks,
            leave_out: 0,
            digest: Some(Sha256::new()),
        };
        result.read_head()?;
        result.read_trailers()?;
        Ok(result)
    }

    fn read_head(&mut self) -> Result<(), Error> {
        while let Some(next) = self.chunks.front().copied() {
            if self.describe(next)?.stream != Stream::Head {
                break;
            }
            let (_, bytes) = self.decrypt(next)?;
            self.head.get_or_insert_default().extend_from_slice(&bytes);
            self.chunks.pop_front();
        }
        Ok(())
    }

    fn read_trailers(&mut self) -> Result<(), Error> {
        let mut at = self.chunks.len();
        while let Some(before) = at.checked_sub(1)
            && let Some(chunk) = self.chunks.get(before).copied()
            && self.describe(chunk)?.stream == Stream::Trailers
        {
            at = before;
        }
        for chunk in self.chunks.split_off(at) {
            let (_, bytes) = self.decrypt(chunk)?;
            self.trailers.get_or_insert_default().extend_from_slice(&bytes);
        }
        Ok(())
    }

    /// The invocation.
    #[must_use]
    pub const fn id(&self) -> InvocationId {
        self.id
    }

    /// Number of chunks, length and digest of the content.
    #[must_use]
    pub const fn reference(&self) -> &ResultRef {
        &self.reference
    }

    /// The bytes stored as [`Stream::Head`], if any.
    #[must_use]
    pub fn head(&self) -> Option<&[u8]> {
        self.head.as_deref()
    }

    /// The bytes stored as [`Stream::Trailers`], if any.
    #[must_use]
    pub fn trailers(&self) -> Option<&[u8]> {
        self.trailers.as_deref()
    }

    /// Content bytes in all, without head and trailers.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.reference.length_bytes
    }

    /// Leaves out the first `offset_bytes` of the content: [`StoredResult::next_chunk`] begins
    /// there (HTTP `Range`). The digest of the whole is not checked then; each chunk still is.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn skip(&mut self, offset_bytes: u64) -> Result<(), Error> {
        if offset_bytes == 0 {
            return Ok(());
        }
        self.digest = None;
        self.leave_out += offset_bytes;
        while let Some(next) = self.chunks.front().copied() {
            let length = u64::from(self.describe(next)?.length);
            if length > self.leave_out {
                break;
            }
            self.leave_out -= length;
            self.chunks.pop_front();
        }
        Ok(())
    }

    /// The next verified piece of content, or `None` at the end. Head and trailers are not among them.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn next_chunk(&mut self) -> Result<Option<(Stream, Vec<u8>)>, Error> {
        let Some(next) = self.chunks.pop_front() else {
            let digest = self.digest.take().map(|hash| Digest(hash.finalize().into()));
            return match digest {
                Some(digest) if digest != self.reference.digest => Err(Error::Damaged),
                Some(_) | None => Ok(None),
            };
        };
        let (stream, mut bytes) = self.decrypt(next)?;
        if self.leave_out > 0 {
            let cut = usize::try_from(self.leave_out).unwrap_or(usize::MAX).min(bytes.len());
            bytes.drain(..cut);
            self.leave_out = 0;
        }
        if let Some(digest) = &mut self.digest {
            digest.update(&bytes);
        }
        Ok(Some((stream, bytes)))
    }

    /// Everything that is left, in the order of arrival, whatever the stream.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn read_to_end(&mut self) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some((_, bytes)) = self.next_chunk()? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    fn describe(
        &self,
        (number, sequence, position): (u32, Sequence, Position),
    ) -> Result<Description, Error> {
        let description = self
            .core
            .segments
            .alone(&position, sequence, |record| Description::decode(record.payload))?;
        if description.number == number { Ok(description) } else { Err(Error::Damaged) }
    }

    fn decrypt(
        &mut self,
        (number, sequence, position): (u32, Sequence, Position),
    ) -> Result<(Stream, Vec<u8>), Error> {
        let id = self.id.to_bytes();
        let (description, bytes) = self.core.segments.alone(&position, sequence, |record| {
            let description = Description::decode(record.payload)?;
            if record.lost_attachment() {
                return Some((description, None));
            }
            let attachment = record.sound_attachment()?;
            (record.invocation == id).then(|| (description, Some(attachment.to_vec())))
        })?;
        let mut bytes = bytes.ok_or(Error::Expired)?;
        if description.number != number {
            return Err(Error::Damaged);
        }
        let salt = description.salt;
        if self.opener.as_ref().is_none_or(|(known, _)| *known != salt) {
            let key = self.key.derive(description.made, Purpose::Chunks, &salt, self.id);
            let key = key.ok_or(Error::Damaged)?;
            self.opener = Some((salt, key));
        }
        let Some((_, key)) = &self.opener else { return Err(Error::Damaged) };
        let context = Aad::from(description.context(self.id));
        let length = key
            .open_in_place(description.nonce(), context, &mut bytes)
            .map_err(|_| Error::Damaged)?
            .len();
        bytes.truncate(length);
        if length as u64 != u64::from(description.length) {
            return Err(Error::Damaged);
        }
        Ok((description.stream, bytes))
    }
}
