//! Lists of invocations: memory and index merged, newest first.
//!
//! Only what a page may hold is looked at. It ends at its limit, after [`SCAN_LIMIT`] invocations, or, since a
//! time, where so many in a row are too old that everything further back is taken to be.

use crate::contract::Sequence;
use crate::core::{Core, closed};
use crate::options::{Filter, Page};
use crate::projection::Invocation;
use crate::read::Error;
use std::collections::BTreeMap;

/// Invocations looked at for one page.
const SCAN_LIMIT: usize = 10_000;
const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 1_000;
/// How far clocks of different starts may differ: what is older than the time that is asked for by more than this
/// is too old. The order is that of sequences, never of times (contract J-4).
const CLOCK_SLACK_MS: u64 = 24 * 3_600_000;
/// Invocations in a row that are too old where a list ends: fewer may be those of a clock that was wrong.
const MAX_TOO_OLD: usize = 1_000;

fn matches(filter: &Filter, invocation: &Invocation) -> bool {
    let verdict = invocation.verdict();
    filter.agent.as_ref().is_none_or(|agent| invocation.accepted().agent.as_ref() == Some(agent))
        && filter.gateway.is_none_or(|gateway| invocation.accepted().gateway == gateway)
        && (!filter.would_be_denied
            || invocation.preflight().is_some_and(|preflight| preflight.would_deny.is_some()))
        && filter.since_ms.is_none_or(|since| invocation.accepted_at_ms() >= since)
        && filter.outcome.is_none_or(|outcome| verdict.outcome() == outcome)
        && filter.phase.is_none_or(|phase| verdict.phase() == phase)
        && filter.code.is_none_or(|code| verdict.code() == code)
        && filter.not_code != Some(verdict.code())
}

/// Whether a page takes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Open,
    /// The page ends; the list goes on.
    Full,
    /// The list ends: what comes behind is older than what is asked for.
    Over,
}

struct Builder<'a> {
    filter: &'a Filter,
    limit: usize,
    page: Page,
    scanned: usize,
    /// So many of the last ones in a row.
    too_old: usize,
    last: Sequence,
    course: Course,
}

impl<'a> Builder<'a> {
    fn new(filter: &'a Filter, below: Sequence) -> Self {
        let limit = match filter.limit {
            0 => DEFAULT_LIMIT,
            limit => limit.min(MAX_LIMIT),
        };
        let page = Page::default();
        Self { filter, limit, page, scanned: 0, too_old: 0, last: below, course: Course::Open }
    }

    /// Takes the next invocation; false when the page takes no more.
    fn take(&mut self, sequence: Sequence, invocation: Invocation) -> bool {
        let oldest = self.filter.since_ms.map_or(0, |since| since.saturating_sub(CLOCK_SLACK_MS));
        let is_too_old = invocation.accepted_at_ms() < oldest;
        self.too_old = if is_too_old { self.too_old + 1 } else { 0 };
        self.scanned += 1;
        self.last = sequence;
        if matches(self.filter, &invocation) {
            self.page.invocations.push(invocation);
        }
        if self.too_old >= MAX_TOO_OLD {
            self.course = Course::Over;
        } else if self.page.invocations.len() >= self.limit || self.scanned >= SCAN_LIMIT {
            self.course = Course::Full;
        }
        self.course == Course::Open
    }

    fn finish(mut self) -> Page {
        self.page.next = match self.course {
            Course::Full => Some(self.last.to_string()),
            Course::Open | Course::Over => None,
        };
        self.page
    }
}

/// One page.
pub(crate) fn page(core: &Core, filter: &Filter) -> Result<Page, Error> {
    let below = match &filter.cursor {
        Some(cursor) => Sequence(cursor.parse().map_err(|_| Error::Cursor)?),
        None => Sequence(u64::MAX),
    };
    let durable = core.durable();
    let mut held = BTreeMap::new();
    for entry in &core.overlay {
        let mut state = entry.state.lock();
        if state.live.first_sequence() < below
            && let Some(view) = state.catch_up(durable)
        {
            held.insert(view.first_sequence(), Invocation::clone(view));
        }
    }
    let mut builder = Builder::new(filter, below);
    let index = core.index.read();
    index.as_ref().ok_or_else(closed)?.newest(below, &mut |sequence, invocation| {
        while let Some(newest) = held.last_entry().filter(|entry| *entry.key() > sequence) {
            let (newer, invocation) = newest.remove_entry();
            if !builder.take(newer, invocation) {
                return false;
            }
        }
        let invocation = held.remove(&sequence).unwrap_or(invocation);
        builder.take(sequence, invocation)
    })?;
    while builder.course == Course::Open
        && let Some((sequence, invocation)) = held.pop_last()
    {
        builder.take(sequence, invocation);
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Accepted, Body, Event, Fact, Gateway, InvocationId, Source};

    const NOW_MS: u64 = 1_764_476_760_000;
    const HOUR_MS: u64 = 3_600_000;

    /// The invocation that was accepted so many hours ago.
    fn aged(hours: u64) -> Invocation {
        let at_ms = NOW_MS - hours * HOUR_MS;
        let accepted = Accepted {
            gateway: Gateway::Http,
            agent: Some("coder".to_owned()),
            action: "GET".to_owned(),
            target: "https://a.example:443/".to_owned(),
            command: None,
            fingerprint: None,
            caller_id: false,
            counted: false,
            link: None,
        };
        let body = Body::ActionAccepted(Fact::from(accepted));
        let invocation = InvocationId::from_parts(at_ms, u128::from(hours));
        let event = Event { invocation, at_ms, source: Source::TransportObserved, body };
        Invocation::start(Sequence(1), &event).unwrap()
    }

    /// Feeds invocations of these ages, newest first. Gives how many were taken before the page took no more, the
    /// hours of those on it, and its cursor.
    fn listed(since_hours: Option<u64>, ages: &[u64]) -> (usize, Vec<u64>, Option<String>) {
        let since_ms = since_hours.map(|hours| NOW_MS - hours * HOUR_MS);
        let filter = Filter { since_ms, limit: 3, ..Filter::default() };
        let mut builder = Builder::new(&filter, Sequence(u64::MAX));
        let sequences = (1..=ages.len() as u64).rev().map(|n| Sequence(n * 10));
        let taken = sequences.zip(ages).take_while(|(at, age)| builder.take(*at, aged(**age)));
        let taken = taken.count();
        let page = builder.finish();
        let hours = |found: &Invocation| (NOW_MS - found.accepted_at_ms()) / HOUR_MS;
        (taken, page.invocations.iter().map(hours).collect(), page.next)
    }

    /// J-4: a list since a time ends where a thousand in a row are older by more than a day, and has no next
    /// page; a clock that was wrong for fewer hides nothing.
    #[test]
    fn j_4_a_list_since_a_time_ends_behind_many_that_are_too_old() {
        let run = |before: &[u64], too_old: usize, behind: &[u64]| {
            [before, vec![26; too_old].as_slice(), behind].concat()
        };
        assert_eq!(listed(Some(1), &run(&[0, 1, 2], 1_000, &[0])), (1_002, vec![0, 1], None));
        assert_eq!(listed(Some(1), &run(&[0, 1], 999, &[0, 1])), (1_001, vec![0, 1, 0], cursor(1)));
        // A day is not yet too old: the row begins anew.
        let twice = run(&run(&[0], 999, &[25]), 999, &[1]);
        assert_eq!(listed(Some(1), &twice), (2_001, vec![0, 1], None));
        assert_eq!(listed(Some(1), &[900]), (1, vec![], None));
        // Without a time nothing is too old, and a full page goes on.
        assert_eq!(listed(None, &[0, 900, 26, 1]), (2, vec![0, 900, 26], cursor(1)));
        assert_eq!(listed(None, &run(&[], 1_500, &[])).0, 2);
        assert_eq!(listed(Some(1), &[0, 1, 0, 26]), (2, vec![0, 1, 0], cursor(1)));
    }

    /// What goes on behind the page, where so many are left.
    fn cursor(left: u64) -> Option<String> {
        Some(((left + 1) * 10).to_string())
    }
}
