//! What is known of a connection of HTTP/2 beside the library that carries it: read off the wire.

use super::tls::Alert;
use crate::http2::frames::LongBlocks;
use dashmap::DashSet;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// What is known of the connection beside the library.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) closed: AtomicBool,
    /// The origin wants HTTP/1.1 (RFC 9113 section 7).
    pub(super) http11_required: AtomicBool,
    pub(super) going_away: AtomicBool,
    pub(super) last_stream: AtomicU32,
    /// Streams whose END_STREAM left and whose sender has not heard of it.
    pub(super) ended: DashSet<u32>,
    /// Streams whose receiver listens, and whether any part of an answer came on them.
    answered: Mutex<HashMap<u32, bool>>,
    pub(super) long_blocks: LongBlocks,
    /// How often something came on the connection.
    heard: AtomicU64,
    /// A call was given up while nothing at all came, and nothing has come since: whoever was on the other
    /// side may be gone without a word.
    silent: AtomicBool,
    /// The alert that refused the client's certificate before anything came.
    pub(super) refused: OnceLock<Alert>,
    /// Whether the origin's settings came.
    pub(super) settled: AtomicBool,
    /// Streams that exchanges have, or are about to open.
    places: AtomicUsize,
    /// Something of this changed.
    pub(super) changed: Notify,
}

impl Facts {
    /// Waits until the END_STREAM of our side was handed to the transport: the library takes what there is
    /// no room for yet.
    pub(super) async fn ended(&self, id: u32) -> io::Result<()> {
        loop {
            let changed = self.changed.notified();
            if self.ended.remove(&id).is_some() {
                return Ok(());
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            changed.await;
        }
    }

    /// Something came on the connection.
    pub(super) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::AcqRel);
        self.silent.store(false, Ordering::Release);
    }

    /// Whether anything came on the connection.
    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Acquire) > 0
    }

    /// Whether the connection takes no exchange any more, or may not before something comes on it.
    pub(super) fn is_over(&self) -> bool {
        [&self.closed, &self.going_away, &self.silent]
            .iter()
            .any(|fact| fact.load(Ordering::Acquire))
    }

    /// A part of an answer came on the stream.
    pub(super) fn answer_begun(&self, id: u32) {
        if let Some(answered) = self.answered().get_mut(&id) {
            *answered = true;
        }
    }

    /// Opens a stream by `open`, and listens on it before anything can come.
    pub(super) fn listened<T, E>(
        self: &Arc<Self>,
        open: impl FnOnce() -> Result<(T, u32), E>,
    ) -> Result<(T, Listened), E> {
        let mut answered = self.answered();
        let (opened, id) = open()?;
        answered.insert(id, false);
        drop(answered);
        let heard = self.heard.load(Ordering::Acquire);
        Ok((opened, Listened { id, heard, facts: Arc::clone(self) }))
    }

    /// Takes a place of so many, if one is free.
    pub(super) fn take_place(self: &Arc<Self>, limit: usize) -> Option<Taken> {
        let more = |taken: usize| (taken < limit).then_some(taken + 1);
        self.places.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Taken(Arc::clone(self)))
    }

    /// How many places are taken.
    pub(super) fn places_taken(&self) -> usize {
        self.places.load(Ordering::Acquire)
    }

    /// Whether a GOAWAY names the stream as one that was not processed.
    fn is_above_last(&self, id: u32) -> bool {
        self.going_away.load(Ordering::Acquire) && id > self.last_stream.load(Ordering::Acquire)
    }

    fn answered(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place for one stream, until it is dropped.
pub(super) struct Taken(Arc<Facts>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream that is listened on: whatever comes of an answer is noted before the library sees it.
pub(super) struct Listened {
    id: u32,
    /// How often something had come on the connection before.
    heard: u64,
    facts: Arc<Facts>,
}

impl Listened {
    /// Whether a GOAWAY names it as one that was not processed.
    pub(super) fn is_above_last(&self) -> bool {
        self.facts.is_above_last(self.id)
    }

    /// Whether a field block on it is too long.
    pub(super) fn has_long_block(&self) -> bool {
        self.facts.long_blocks.has(self.id)
    }

    /// The exchange was given up after a wait. Where nothing came on the whole connection meanwhile, no other
    /// exchange begins on it before something does.
    pub(super) fn waited_in_vain(&self) {
        if self.facts.heard.load(Ordering::Acquire) == self.heard {
            self.facts.silent.store(true, Ordering::Release);
        }
    }

    /// Whether any part of an answer came.
    pub(super) fn is_answered(&self) -> bool {
        self.facts.answered().get(&self.id).copied().unwrap_or(false)
    }
}

impl Drop for Listened {
    fn drop(&mut self) {
        self.facts.answered().remove(&self.id);
    }
}
