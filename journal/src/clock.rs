//! The clock by which expiries are judged: the wall clock, held against time that really passed.
//!
//! A wall clock can be set back, and a key would then seem to live longer than the remote keeps it
//! (contract K-5). Within one process the monotonic clock bounds that from below. Across a restart
//! only the log is there: a wall clock that stands before the newest record was set back by nobody
//! knows how much, and every key counts as expired.

use crate::core::now_ms;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Judges expiries. Never earlier than the time that passed since the journal was opened.
pub(crate) struct Clock {
    opened_ms: u64,
    opened: Instant,
    /// The wall clock stood before the newest record when the journal was opened.
    is_behind: AtomicBool,
}

impl Default for Clock {
    fn default() -> Self {
        Self { opened_ms: now_ms(), opened: Instant::now(), is_behind: AtomicBool::new(false) }
    }
}

impl Clock {
    /// Takes note of the newest record that was there when the journal was opened.
    pub(crate) fn hold_against(&self, newest_ms: u64) {
        // What recovery itself recorded is newer than the opening, and no sign of anything.
        if newest_ms > now_ms() {
            tracing::warn!("the clock stands before the newest record: all keys count as expired");
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    /// The time to judge an expiry by, in milliseconds since 1970.
    pub(crate) fn latest_ms(&self) -> u64 {
        if self.is_behind.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        let passed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        now_ms().max(self.opened_ms.saturating_add(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K-5: a wall clock behind the log, or behind the time that passed, extends nothing.
    #[test]
    fn k_5_a_clock_that_was_set_back_extends_nothing() {
        let clock = Clock::default();
        clock.hold_against(now_ms() - 1000);
        assert!(clock.latest_ms() >= clock.opened_ms && clock.latest_ms() < u64::MAX);
        clock.hold_against(now_ms() + 60_000);
        assert_eq!(clock.latest_ms(), u64::MAX);
        // As after a wall clock that was set back by an hour while the process runs.
        let ahead = now_ms() + 3_600_000;
        let clock = Clock { opened_ms: ahead, ..Clock::default() };
        assert!(clock.latest_ms() >= ahead);
    }
}
