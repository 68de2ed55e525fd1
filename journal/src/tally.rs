//! Counts of settled invocations, for metrics (contract T-5). Since the journal was opened; evidence is
//! in the log alone.

use crate::contract::{Code, Gateway, Outcome, Phase, Source};
use crate::projection::Invocation;
use parking_lot::Mutex;

/// Upper bounds of the classes of durations, in milliseconds.
pub const BOUNDS_MS: [u64; 14] =
    [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000];

/// What is counted apart. Closed enumerations alone, so that no caller can make one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    /// Where the broker stopped.
    pub phase: Phase,
    /// What is known of remote execution.
    pub outcome: Outcome,
    /// The stable reason.
    pub code: Code,
    /// Which gateway took the call.
    pub gateway: Gateway,
}

/// How long calls of one gateway took to their outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durations {
    /// Calls per class of [`BOUNDS_MS`], not cumulated; the last one is above all bounds.
    pub classes: [u64; BOUNDS_MS.len() + 1],
    /// Their sum.
    pub sum_ms: u64,
}

/// All counts at one moment.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Invocations by what they settled as, each counted once, when it settled first.
    pub settled: Vec<(Labels, u64)>,
    /// Invocations that late evidence decided, by its source and the outcome.
    pub decided_late: Vec<(Source, Outcome, u64)>,
    /// Durations by gateway and outcome.
    pub durations: Vec<(Gateway, Outcome, Durations)>,
}

/// The counts of one journal. There are few of each, so they are looked for one by one.
#[derive(Default)]
pub(crate) struct Counter(Mutex<Tally>);

impl Counter {
    /// Counts an invocation that a new event has settled.
    pub(crate) fn settled(&self, invocation: &Invocation, source: Source) {
        let verdict = invocation.verdict();
        let (outcome, gateway) = (verdict.outcome(), invocation.accepted().gateway);
        let mut tally = self.0.lock();
        if matches!(source, Source::RemoteQuery | Source::OperatorAttested) {
            let known = |(s, o, _): &&mut (Source, Outcome, u64)| (*s, *o) == (source, outcome);
            match tally.decided_late.iter_mut().find(known) {
                Some((_, _, count)) => *count += 1,
                None => tally.decided_late.push((source, outcome, 1)),
            }
            return;
        }
        let labels = Labels { phase: verdict.phase(), outcome, code: verdict.code(), gateway };
        match tally.settled.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, count)) => *count += 1,
            None => tally.settled.push((labels, 1)),
        }
        let took = invocation.ended_at_ms().unwrap_or_default();
        let took = took.saturating_sub(invocation.accepted_at_ms());
        let known = |(g, o, _): &&mut (Gateway, Outcome, Durations)| (*g, *o) == (gateway, outcome);
        match tally.durations.iter_mut().find(known) {
            Some((_, _, durations)) => durations.add(took),
            None => {
                let mut durations = Durations::default();
                durations.add(took);
                tally.durations.push((gateway, outcome, durations));
            }
        }
    }

    /// All counts.
    pub(crate) fn all(&self) -> Tally {
        self.0.lock().clone()
    }
}

impl Durations {
    fn add(&mut self, took_ms: u64) {
        let class = BOUNDS_MS.partition_point(|bound| *bound < took_ms);
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
        self.sum_ms += took_ms;
    }
}
