//! How much callers that nobody knows may write into the journal. Each refusal is on record (contract
//! V-1), and who has no token could fill the disk by asking: so they share an allowance, and the next
//! record says how many were left out.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Refusals in a row that are recorded one by one.
const BURST: u32 = 1000;
/// One more is recorded after so many seconds.
const SECONDS: u64 = 1;

/// The allowance of all strangers together.
pub(crate) struct Strangers(Mutex<State>);

struct State {
    left: u32,
    since: Instant,
    /// Refused since the last record.
    unrecorded: u64,
}

impl Default for Strangers {
    fn default() -> Self {
        Self(Mutex::new(State { left: BURST, since: Instant::now(), unrecorded: 0 }))
    }
}

impl Strangers {
    /// Whether a refusal is recorded: then how many before it were not.
    pub(crate) fn take(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.saturating_duration_since(state.since).as_secs() / SECONDS;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            state.left = state.left.saturating_add(earned).min(BURST);
            state.since = now;
        }
        match state.left.checked_sub(1) {
            Some(left) => {
                state.left = left;
                Some(std::mem::take(&mut state.unrecorded))
            }
            None => {
                state.unrecorded += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// V-1: a flood is counted, not written; who comes after it finds the count.
    #[test]
    fn v_1_a_flood_of_strangers_is_counted() {
        let strangers = Strangers::default();
        let start = Instant::now();
        let recorded = (0..5000).filter(|_| strangers.take(start).is_some()).count();
        assert_eq!(recorded, BURST as usize);
        let later = start + Duration::from_secs(2);
        assert_eq!(strangers.take(later), Some(4000));
        assert_eq!(strangers.take(later), Some(0));
        assert_eq!(strangers.take(later), None);
        let much_later = later + Duration::from_secs(86_400);
        assert_eq!(strangers.take(much_later), Some(1));
        let recorded = (0..5000).filter(|_| strangers.take(much_later).is_some()).count();
        assert_eq!(recorded, BURST as usize - 1);
    }
}
