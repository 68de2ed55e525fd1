//! How much callers that nobody knows may write into the journal. Each refusal is on record (contract
//! V-1), and who has no token could fill the disk by asking: so those of a gateway share an allowance, and the
//! next record says how many were left out.

use crate::append;
use crate::call::Call;
use crate::contract::{Accepted, Body, Noted, Source};
use crate::guard::{Admission, Guard};
use crate::live::Journal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One more is recorded after so many seconds.
const SECONDS: u64 = 1;

/// The name of the note that says how many refusals before this one have no record.
const NOTE: &str = "refused_without_a_record";

/// The allowance of all strangers at a gateway together.
#[derive(Debug)]
pub struct Strangers(Mutex<State>);

#[derive(Debug)]
struct State {
    burst: u32,
    left: u32,
    since: Instant,
    /// Refused since the last record.
    unrecorded: u64,
}

impl Default for Strangers {
    fn default() -> Self {
        Self::new(Self::BURST)
    }
}

/// Leave to record one refusal. What it does not come to say is counted for the next one.
struct Leave<'s> {
    strangers: &'s Strangers,
    /// Whether the refusal itself is on record.
    is_recorded: bool,
    /// Refused without a record, and not told yet.
    left_out: u64,
}

impl Leave<'_> {
    /// The refusal is on record; how many before it are not, if any.
    const fn recorded(&mut self) -> Option<u64> {
        self.is_recorded = true;
        if self.left_out > 0 { Some(self.left_out) } else { None }
    }

    /// The record says how many.
    const fn told(&mut self) {
        self.left_out = 0;
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let owed = self.left_out + u64::from(!self.is_recorded);
        if owed > 0 {
            self.strangers.state().unrecorded += owed;
        }
    }
}

impl Strangers {
    /// Refusals in a row that are recorded one by one, where nothing else is said.
    pub const BURST: u32 = 1000;

    /// An allowance of so many refusals in a row.
    #[must_use]
    pub fn new(burst: u32) -> Self {
        let since = Instant::now();
        Self(Mutex::new(State { burst, left: burst, since, unrecorded: 0 }))
    }

    /// Takes a call on record that is to be refused because nobody knows its caller, if there is room. What is
    /// left out is counted, and the next one says so.
    ///
    /// # Errors
    /// [`append::Error`]; the refusal counts as left out.
    pub fn admit(
        &self,
        journal: &Journal,
        accepted: Accepted,
    ) -> Result<Option<Call>, append::Error> {
        let Some(mut leave) = self.take(Instant::now()) else { return Ok(None) };
        let Admission::New(call) = journal.admit(journal.new_id(), accepted, Guard::default())?
        else {
            return Ok(None);
        };
        if let Some(left_out) = leave.recorded() {
            let noted = Noted { name: NOTE.to_owned(), detail: left_out.to_string() };
            match journal.record(call.id(), Source::TransportObserved, Body::Noted(noted)) {
                Ok(_queued) => leave.told(),
                Err(error) => tracing::warn!(%error, "a count of refusals was not recorded"),
            }
        }
        Ok(Some(call))
    }

    /// Leave to record a refusal, if there is room.
    fn take(&self, now: Instant) -> Option<Leave<'_>> {
        let mut state = self.state();
        let earned = now.saturating_duration_since(state.since).as_secs() / SECONDS;
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            state.left = state.left.saturating_add(earned).min(state.burst);
            state.since = now;
        }
        match state.left.checked_sub(1) {
            Some(left) => {
                state.left = left;
                let left_out = std::mem::take(&mut state.unrecorded);
                Some(Leave { strangers: self, is_recorded: false, left_out })
            }
            None => {
                state.unrecorded += 1;
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Records a refusal whole; how many it says were left out.
    fn record(strangers: &Strangers, now: Instant) -> Option<u64> {
        let mut leave = strangers.take(now)?;
        let left_out = leave.recorded();
        leave.told();
        Some(left_out.unwrap_or_default())
    }

    /// V-1: a flood is counted, not written; who comes after it finds the count.
    #[test]
    fn v_1_a_flood_of_strangers_is_counted() {
        let strangers = Strangers::default();
        let start = Instant::now();
        let recorded = (0..5000).filter(|_| record(&strangers, start).is_some()).count();
        assert_eq!(recorded, Strangers::BURST as usize);
        let later = start + Duration::from_secs(2);
        assert_eq!(record(&strangers, later), Some(4000));
        assert_eq!(record(&strangers, later), Some(0));
        assert_eq!(record(&strangers, later), None);
        let much_later = later + Duration::from_secs(86_400);
        assert_eq!(record(&strangers, much_later), Some(1));
        let recorded = (0..5000).filter(|_| record(&strangers, much_later).is_some()).count();
        assert_eq!(recorded, Strangers::BURST as usize - 1);
    }

    /// V-1: a count that could not be written is not lost, nor is the refusal that was to say it.
    #[test]
    fn v_1_what_was_not_written_is_counted_on() {
        let strangers = Strangers::default();
        let now = Instant::now();
        // The record failed, then a record without its note.
        drop(strangers.take(now));
        let mut noteless = strangers.take(now).expect("leave");
        assert_eq!(noteless.recorded(), Some(1));
        drop(noteless);
        assert_eq!(record(&strangers, now), Some(1));
        assert_eq!(record(&strangers, now), Some(0));
    }
}
