//! What origins said of the versions of HTTP, so that the next connection offers the right ones.
//!
//! Each caller's version goes on where the origin speaks it: the names of HTTP/1.1 keep their case,
//! and gRPC keeps its frames. Where the origin speaks only the other one, that one is used.

use crate::target::Authority;
use dashmap::DashMap;
use std::time::{Duration, Instant};

/// Origins remembered at most.
const ORIGINS: usize = 4096;
/// How long an origin's word holds.
const HOLDS: Duration = Duration::from_secs(3600);

/// What a TLS handshake offers (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    /// `http/1.1` alone.
    Http11,
    /// `h2` first, then `http/1.1`.
    Http2,
}

/// What an origin said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// `HTTP_1_1_REQUIRED` (RFC 9113 section 7).
    Http11Required,
    /// It took no handshake without `h2`.
    Http2Only,
}

/// The origins' words.
#[derive(Default)]
pub(crate) struct Versions {
    words: DashMap<Authority, (Word, Instant)>,
}

impl Versions {
    /// What to offer the origin for a caller that speaks HTTP/2 or not.
    pub(crate) fn offer(&self, authority: &Authority, caller_http2: bool) -> Offer {
        let word = self.words.get(authority).filter(|word| word.1.elapsed() < HOLDS);
        match (word.map(|word| word.0), caller_http2) {
            (Some(Word::Http2Only), _) | (None, true) => Offer::Http2,
            (Some(Word::Http11Required), _) | (None, false) => Offer::Http11,
        }
    }

    /// Remembers an origin's word.
    pub(crate) fn learn(&self, authority: &Authority, word: Word) {
        if self.words.len() >= ORIGINS && !self.words.contains_key(authority) {
            self.words.retain(|_, word| word.1.elapsed() < HOLDS);
            if self.words.len() >= ORIGINS {
                return;
            }
        }
        self.words.insert(authority.clone(), (word, Instant::now()));
    }
}
