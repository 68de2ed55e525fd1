//! Budgets of an agent: how many calls and bytes in how much time. Pure: the clock is an argument.
//!
//! Time slides: a limit holds in every minute, hour and day, not from one full hour to the next. It
//! is counted in buckets of a sixtieth of the span (a day: a ninety-sixth), so a call stops counting
//! up to one bucket late, and never early.

use std::collections::VecDeque;

/// What an agent may use. An absent key bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Calls begun in any minute.
    pub calls_per_minute: Option<u64>,
    /// Calls begun in any hour.
    pub calls_per_hour: Option<u64>,
    /// Calls begun in any day.
    pub calls_per_day: Option<u64>,
    /// Calls under way at the same time.
    pub concurrent_calls: Option<u64>,
    /// Content bytes, sent and received, of the calls that ended in any hour.
    pub bytes_per_hour: Option<u64>,
    /// The same for any day.
    pub bytes_per_day: Option<u64>,
}

impl Budget {
    /// Both budgets at once: of each key the smaller number.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            calls_per_minute: least(self.calls_per_minute, other.calls_per_minute),
            calls_per_hour: least(self.calls_per_hour, other.calls_per_hour),
            calls_per_day: least(self.calls_per_day, other.calls_per_day),
            concurrent_calls: least(self.concurrent_calls, other.concurrent_calls),
            bytes_per_hour: least(self.bytes_per_hour, other.bytes_per_hour),
            bytes_per_day: least(self.bytes_per_day, other.bytes_per_day),
        }
    }
}

/// A budget that leaves no room for one more call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent's budget is spent: {key} = {limit}")]
pub struct Spent {
    /// The key of policy.
    pub key: &'static str,
    /// Its number.
    pub limit: u64,
    /// When there is room again, in milliseconds since 1970.
    pub not_before_ms: u64,
}

/// How long a caller waits for another call to end, where nobody knows.
const MOMENT_MS: u64 = 1000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// How long a call can count at all, in milliseconds.
pub const LONGEST_MS: u64 = DAY_MS + DAY_MS / 96;

/// A sum over a span of time that slides.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    span_ms: u64,
    bucket_ms: u64,
    /// Begin of the bucket and what fell into it, oldest first.
    buckets: VecDeque<(u64, u64)>,
}

impl Window {
    const fn new(span_ms: u64, bucket_ms: u64) -> Self {
        Self { span_ms, bucket_ms, buckets: VecDeque::new() }
    }

    /// When a bucket stops counting.
    const fn end_of(&self, begin_ms: u64) -> u64 {
        begin_ms.saturating_add(self.bucket_ms).saturating_add(self.span_ms)
    }

    fn add(&mut self, at_ms: u64, amount: u64) {
        let begin = at_ms - at_ms % self.bucket_ms;
        match self.buckets.binary_search_by_key(&begin, |(begin, _)| *begin) {
            Ok(place) => {
                if let Some((_, sum)) = self.buckets.get_mut(place) {
                    *sum = sum.saturating_add(amount);
                }
            }
            Err(place) => self.buckets.insert(place, (begin, amount)),
        }
    }

    fn take_back(&mut self, at_ms: u64, amount: u64) {
        let begin = at_ms - at_ms % self.bucket_ms;
        if let Some((_, sum)) = self.buckets.iter_mut().find(|(known, _)| *known == begin) {
            *sum = sum.saturating_sub(amount);
        }
    }

    /// When one more fits under the limit; `None`: now.
    fn room_at(&mut self, now_ms: u64, limit: u64) -> Option<u64> {
        while self.buckets.front().is_some_and(|(begin, _)| self.end_of(*begin) <= now_ms) {
            self.buckets.pop_front();
        }
        let mut left: u64 = self.buckets.iter().map(|(_, sum)| *sum).sum();
        if left < limit {
            return None;
        }
        let freed = self.buckets.iter().find_map(|(begin, sum)| {
            left = left.saturating_sub(*sum);
            (left < limit).then(|| self.end_of(*begin))
        });
        Some(freed.unwrap_or_else(|| now_ms.saturating_add(self.span_ms)))
    }
}

/// What one agent used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    minute: Window,
    hour: Window,
    day: Window,
    hour_bytes: Window,
    day_bytes: Window,
    running: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            minute: Window::new(MINUTE_MS, MINUTE_MS / 60),
            hour: Window::new(HOUR_MS, HOUR_MS / 60),
            day: Window::new(DAY_MS, DAY_MS / 96),
            hour_bytes: Window::new(HOUR_MS, HOUR_MS / 60),
            day_bytes: Window::new(DAY_MS, DAY_MS / 96),
            running: 0,
        }
    }
}

impl Usage {
    /// Counts one more call, if the budget has room for it.
    ///
    /// # Errors
    /// [`Spent`] with the key that is used up for the longest; nothing is counted then.
    pub fn begin(&mut self, budget: &Budget, now_ms: u64) -> Result<(), Spent> {
        let mut spent: Option<Spent> = None;
        let mut hold = |key, limit, not_before_ms: u64| {
            if spent.is_none_or(|other| other.not_before_ms < not_before_ms) {
                spent = Some(Spent { key, limit, not_before_ms });
            }
        };
        for (key, limit, window) in [
            ("calls_per_minute", budget.calls_per_minute, &mut self.minute),
            ("calls_per_hour", budget.calls_per_hour, &mut self.hour),
            ("calls_per_day", budget.calls_per_day, &mut self.day),
            ("bytes_per_hour", budget.bytes_per_hour, &mut self.hour_bytes),
            ("bytes_per_day", budget.bytes_per_day, &mut self.day_bytes),
        ] {
            let Some(limit) = limit else { continue };
            if let Some(at_ms) = window.room_at(now_ms, limit) {
                hold(key, limit, at_ms);
            }
        }
        if let Some(limit) = budget.concurrent_calls.filter(|limit| self.running >= *limit) {
            hold("concurrent_calls", limit, now_ms.saturating_add(MOMENT_MS));
        }
        if let Some(spent) = spent {
            return Err(spent);
        }
        self.count(now_ms);
        self.running += 1;
        Ok(())
    }

    /// Ends a call that [`Usage::begin`] counted. One that was not dispatched counts no more.
    pub fn end(&mut self, began_ms: u64, used: Option<u64>, now_ms: u64) {
        self.running = self.running.saturating_sub(1);
        match used {
            Some(bytes) => self.count_bytes(now_ms, bytes),
            None => {
                for window in [&mut self.minute, &mut self.hour, &mut self.day] {
                    window.take_back(began_ms, 1);
                }
            }
        }
    }

    /// Counts a call of an earlier process, from the record.
    pub fn restore(&mut self, at_ms: u64, bytes: u64) {
        self.count(at_ms);
        self.count_bytes(at_ms, bytes);
    }

    fn count(&mut self, at_ms: u64) {
        for window in [&mut self.minute, &mut self.hour, &mut self.day] {
            window.add(at_ms, 1);
        }
    }

    fn count_bytes(&mut self, at_ms: u64, bytes: u64) {
        self.hour_bytes.add(at_ms, bytes);
        self.day_bytes.add(at_ms, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_764_476_760_000;

    fn per_minute(limit: u64) -> Budget {
        Budget { calls_per_minute: Some(limit), ..Budget::default() }
    }

    #[test]
    fn a_minute_slides_and_says_when_there_is_room() {
        let mut usage = Usage::default();
        let budget = per_minute(2);
        assert_eq!(usage.begin(&budget, START), Ok(()));
        assert_eq!(usage.begin(&budget, START + 30_000), Ok(()));
        let spent = Spent { key: "calls_per_minute", limit: 2, not_before_ms: START + 61_000 };
        assert_eq!(usage.begin(&budget, START + 59_000), Err(spent));
        assert_eq!(usage.begin(&budget, START + 60_999), Err(spent));
        assert_eq!(usage.begin(&budget, START + 61_000), Ok(()));
        let next = Spent { not_before_ms: START + 91_000, ..spent };
        assert_eq!(usage.begin(&budget, START + 61_000), Err(next));
    }

    #[test]
    fn what_was_not_dispatched_counts_no_more() {
        let mut usage = Usage::default();
        let budget = per_minute(1);
        usage.begin(&budget, START).unwrap();
        usage.end(START, None, START + 5);
        assert_eq!(usage.begin(&budget, START + 6), Ok(()));
        usage.end(START + 6, Some(10), START + 7);
        assert!(usage.begin(&budget, START + 8).is_err());
    }

    #[test]
    fn calls_under_way_and_bytes_are_bounded() {
        let mut usage = Usage::default();
        let budget = Budget {
            concurrent_calls: Some(1),
            bytes_per_hour: Some(100),
            bytes_per_day: Some(1000),
            ..Budget::default()
        };
        usage.begin(&budget, START).unwrap();
        let busy = Spent { key: "concurrent_calls", limit: 1, not_before_ms: START + 1000 };
        assert_eq!(usage.begin(&budget, START), Err(busy));
        usage.end(START, Some(99), START);
        usage.begin(&budget, START).unwrap();
        usage.end(START, Some(1), START);
        let full = usage.begin(&budget, START).unwrap_err();
        assert_eq!((full.key, full.not_before_ms), ("bytes_per_hour", START + 61 * 60_000));
        assert_eq!(usage.begin(&budget, START + 61 * 60_000), Ok(()));
    }

    #[test]
    fn a_restart_counts_the_same_from_the_record() {
        let (mut live, mut restored) = (Usage::default(), Usage::default());
        let budget =
            Budget { calls_per_day: Some(9), bytes_per_day: Some(900), ..Budget::default() };
        for n in 0..9 {
            let at_ms = START + n * HOUR_MS;
            live.begin(&budget, at_ms).unwrap();
            live.end(at_ms, Some(n), at_ms);
        }
        for n in (0..9).rev() {
            restored.restore(START + n * HOUR_MS, n);
        }
        assert_eq!(live, restored);
        let spent = restored.begin(&budget, START + 9 * HOUR_MS).unwrap_err();
        assert_eq!(
            (spent.key, spent.not_before_ms),
            ("calls_per_day", START - 660_000 + LONGEST_MS)
        );
    }

    #[test]
    fn of_two_budgets_the_smaller_numbers_hold() {
        let both = per_minute(5).and(Budget { calls_per_day: Some(9), ..per_minute(3) });
        assert_eq!(both, Budget { calls_per_day: Some(9), ..per_minute(3) });
        assert_eq!(Usage::default().begin(&per_minute(0), START).unwrap_err().limit, 0);
    }
}
