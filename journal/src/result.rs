//! Stored results: numbered, encrypted chunks with a completeness marker (contract R-4).

use crate::contract::{InvocationId, ResultRef};
use zeroize::Zeroizing;

/// The key that results are encrypted under. Zeroed when dropped, never printed.
#[derive(Clone)]
pub struct ResultKey(
    #[expect(dead_code, reason = "first delivery of the API")] Zeroizing<[u8; 32]>,
);

impl ResultKey {
    /// Takes 32 bytes of key material, from the vault.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

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

/// A complete stored result; chunks are read, verified and decrypted one at a time.
pub struct StoredResult {
    id: InvocationId,
    reference: ResultRef,
    head: Option<Vec<u8>>,
}

impl StoredResult {
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

    /// Content bytes in all, without the head.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.reference.length_bytes
    }

    /// Leaves out the first `offset_bytes` of the content: [`StoredResult::next_chunk`] begins
    /// there (HTTP `Range`).
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn skip(&mut self, _offset_bytes: u64) -> Result<(), Error> {
        todo!()
    }

    /// The next verified piece of content, or `None` at the end. The head does not come again.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn next_chunk(&mut self) -> Result<Option<(Stream, Vec<u8>)>, Error> {
        todo!()
    }

    /// Everything that is left, in the order of arrival, whatever the stream.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Read`].
    pub fn read_to_end(&mut self) -> Result<Vec<u8>, Error> {
        todo!()
    }
}
