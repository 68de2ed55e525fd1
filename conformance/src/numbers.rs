//! Numbers that look random and that a seed repeats.

/// A sequence of numbers (xorshift, Marsaglia 2003).
pub(crate) struct Numbers(u64);

impl Numbers {
    /// Seeded; a seed of zero would stay there.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The next one, from 0 to below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (end.max(1) as u64)).unwrap_or_default()
    }

    /// One of them; `None` of nothing.
    pub(crate) fn pick(&mut self, of: &[&'static str]) -> Option<&'static str> {
        of.get(self.below(of.len())).copied()
    }
}
