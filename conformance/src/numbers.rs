//! Numbers that look random and that a seed repeats.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of `CONFORMANCE_SEED`, which repeats a run, or a new one.
#[must_use]
pub fn seed() -> u64 {
    let given = std::env::var("CONFORMANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    })
}

/// A sequence of numbers (xorshift, Marsaglia 2003).
pub struct Numbers(u64);

impl Numbers {
    /// Seeded; a seed of zero would stay there.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next one, from 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 8) % (end.max(1) as u64)).unwrap_or_default()
    }

    /// One of them; `None` of nothing.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len())).copied()
    }
}
