//! The time of the journal: one source for what is recorded and for what expires.
//!
//! The wall clock is read when the journal is opened. From there on time is what really passed, sleep
//! of the machine included: a wall clock that jumps, forward or back, changes no record's time,
//! shortens no window and extends no key (contract K-5, K-11).
//!
//! A key is judged by the latest time that anything says, because a key that is over has to stay over:
//! a wall clock that is ahead of what passed may be right (a virtual machine that stood still), so it
//! counts, and once it was ahead it counts for as long as the process lives. Across a restart only the
//! log is there: a wall clock that stands before the newest record was set back by nobody knows how
//! much, and every key counts as expired.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The clock that counts what passes, sleep included, and can't be set.
#[cfg(target_os = "linux")]
const PASSING: ClockId = ClockId::Boottime;
/// On macOS it counts sleep as well.
#[cfg(not(target_os = "linux"))]
const PASSING: ClockId = ClockId::Monotonic;

/// Milliseconds since some moment before this process began.
fn passed_ms() -> u64 {
    let now = clock_gettime(PASSING);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000)
}

/// A wall clock this far ahead is said to be ahead.
const NOTABLE_MS: u64 = 60_000;

/// What the clocks of the machine say.
#[derive(Debug, Clone, Copy)]
struct Reading {
    wall_ms: u64,
    passed_ms: u64,
}

impl Reading {
    fn now() -> Self {
        Self { wall_ms: wall_ms(), passed_ms: passed_ms() }
    }
}

/// The time of one open journal.
pub(crate) struct Clock {
    opened: Reading,
    /// How far the wall clock was ever ahead of what passed.
    ahead_ms: AtomicU64,
    /// The wall clock stood before the newest record when the journal was opened.
    is_behind: AtomicBool,
}

impl Default for Clock {
    fn default() -> Self {
        Self::opened_at(Reading::now())
    }
}

impl Clock {
    const fn opened_at(opened: Reading) -> Self {
        Self { opened, ahead_ms: AtomicU64::new(0), is_behind: AtomicBool::new(false) }
    }

    /// Takes note of the newest record that was there when the journal was opened.
    pub(crate) fn hold_against(&self, newest_ms: u64) {
        // What recovery itself recorded is newer than the opening, and no sign of anything.
        if newest_ms > self.now_ms() {
            tracing::warn!("the clock stands before the newest record: all keys count as expired");
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    /// The time now, in milliseconds since 1970: the wall clock at the opening, and what passed since.
    pub(crate) fn now_ms(&self) -> u64 {
        self.at(passed_ms())
    }

    /// The time to judge the expiry of a key by, in milliseconds since 1970. Never earlier than
    /// [`Clock::now_ms`], and never earlier than it was before.
    pub(crate) fn latest_ms(&self) -> u64 {
        self.latest_at(Reading::now())
    }

    const fn at(&self, passed_ms: u64) -> u64 {
        self.opened.wall_ms.saturating_add(passed_ms.saturating_sub(self.opened.passed_ms))
    }

    fn latest_at(&self, reading: Reading) -> u64 {
        if self.is_behind.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        let now_ms = self.at(reading.passed_ms);
        let ahead_ms = reading.wall_ms.saturating_sub(now_ms);
        let before_ms = self.ahead_ms.fetch_max(ahead_ms, Ordering::Relaxed);
        if ahead_ms > before_ms.saturating_add(NOTABLE_MS) {
            tracing::warn!(
                ahead_ms,
                "the wall clock jumped forward: keys count as older from here on"
            );
        }
        now_ms.saturating_add(ahead_ms.max(before_ms))
    }
}

impl crate::Call {
    /// The time of the journal; see [`crate::Journal::now_ms`].
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.core.clock.now_ms()
    }

    /// The time to judge the expiry of a key by; see [`crate::Journal::latest_ms`].
    #[must_use]
    pub fn latest_ms(&self) -> u64 {
        self.core.clock.latest_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_764_476_760_000;
    const HOUR: u64 = 3_600_000;

    fn clock() -> Clock {
        Clock::opened_at(Reading { wall_ms: START, passed_ms: 500 })
    }

    /// `passed` after the opening, under a wall clock that is off by so much.
    fn reading(passed: u64, off: i64) -> Reading {
        let wall_ms = (START + passed).saturating_add_signed(off);
        Reading { wall_ms, passed_ms: 500 + passed }
    }

    /// K-5, K-11: no jump moves the time of records and windows; it is what passed.
    #[test]
    fn k_5_time_is_what_passed() {
        let clock = clock();
        for passed in [0, 1, HOUR, 30 * 24 * HOUR] {
            assert_eq!(clock.at(500 + passed), START + passed);
        }
        assert_eq!(clock.at(0), START, "what passes never goes back");
        let live = Clock::default();
        let before = live.now_ms();
        assert!(before >= live.opened.wall_ms && live.now_ms() >= before);
        assert!(live.latest_ms() >= before);
    }

    /// K-5: every history of jumps: an expiry is judged no later than what passed says, is never taken
    /// back, and a jump back changes nothing.
    #[test]
    fn k_5_no_jump_extends_or_resets_an_expiry() {
        let jumps: [i64; 7] = [0, -1, 1, 86_400_000, -86_400_000, 3_600_000, -3_600_000];
        for a in jumps {
            for b in jumps {
                for c in jumps {
                    let clock = clock();
                    let mut before = 0;
                    for (n, off) in [0, a, b, c, 0].into_iter().enumerate() {
                        let passed = u64::try_from(n).unwrap() * 1000;
                        let latest = clock.latest_at(reading(passed, off));
                        assert!(latest >= START + passed, "{a} {b} {c}: a key was extended");
                        assert!(latest >= before, "{a} {b} {c}: an expiry was taken back");
                        before = latest;
                    }
                    let ahead = u64::try_from([a, b, c].into_iter().max().unwrap().max(0)).unwrap();
                    assert_eq!(before, START + 4000 + ahead, "{a} {b} {c}");
                }
            }
        }
    }

    /// K-5: over a restart, a wall clock that stands before the log extends nothing.
    #[test]
    fn k_5_a_clock_behind_the_log_extends_nothing() {
        let clock = clock();
        clock.hold_against(START - 1000);
        assert_eq!(clock.latest_at(reading(7, 0)), START + 7);
        let live = Clock::default();
        live.hold_against(live.now_ms() + 60_000);
        assert_eq!(live.latest_ms(), u64::MAX);
    }
}
