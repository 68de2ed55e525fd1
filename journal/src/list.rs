//! Lists of invocations: memory and index merged, newest first.

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

struct Builder<'a> {
    filter: &'a Filter,
    limit: usize,
    page: Page,
    scanned: usize,
    last: Sequence,
    full: bool,
}

impl Builder<'_> {
    /// Takes the next invocation; false when the page is full.
    fn take(&mut self, sequence: Sequence, invocation: Invocation) -> bool {
        self.scanned += 1;
        self.last = sequence;
        if matches(self.filter, &invocation) {
            self.page.invocations.push(invocation);
        }
        self.full = self.page.invocations.len() >= self.limit || self.scanned >= SCAN_LIMIT;
        !self.full
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
    let limit = match filter.limit {
        0 => DEFAULT_LIMIT,
        limit => limit.min(MAX_LIMIT),
    };
    let mut builder =
        Builder { filter, limit, page: Page::default(), scanned: 0, last: below, full: false };
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
    while !builder.full
        && let Some((sequence, invocation)) = held.pop_last()
    {
        builder.take(sequence, invocation);
    }
    if builder.full {
        builder.page.next = Some(builder.last.to_string());
    }
    Ok(builder.page)
}
