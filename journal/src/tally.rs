//! Counts of settled invocations, for metrics (contract T-5). Since the journal was opened; evidence is
//! in the log alone.

use crate::contract::{Code, Gateway, Outcome, Phase, Source};
use crate::projection::Invocation;
use parking_lot::Mutex;
use std::collections::BTreeMap;

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

#[derive(Default)]
struct Counts {
    settled: BTreeMap<[&'static str; 4], (Option<Labels>, u64)>,
    late: BTreeMap<[&'static str; 2], (Option<(Source, Outcome)>, u64)>,
    durations: BTreeMap<[&'static str; 2], (Option<(Gateway, Outcome)>, Durations)>,
}

/// The counts of one journal.
#[derive(Default)]
pub(crate) struct Counter(Mutex<Counts>);

impl Counter {
    /// Counts an invocation that a new event has settled.
    pub(crate) fn settled(&self, invocation: &Invocation, source: Source) {
        let verdict = invocation.verdict();
        let (outcome, gateway) = (verdict.outcome(), invocation.accepted().gateway);
        let mut counts = self.0.lock();
        let late = matches!(source, Source::RemoteQuery | Source::OperatorAttested);
        if late {
            let count = counts.late.entry([source.as_str(), outcome.as_str()]).or_default();
            *count = (Some((source, outcome)), count.1 + 1);
            return;
        }
        let (phase, code) = (verdict.phase(), verdict.code());
        let names = [phase.as_str(), outcome.as_str(), code.as_str(), gateway.as_str()];
        let count = counts.settled.entry(names).or_default();
        *count = (Some(Labels { phase, outcome, code, gateway }), count.1 + 1);
        let took = invocation.ended_at_ms().unwrap_or_default();
        let took = took.saturating_sub(invocation.accepted_at_ms());
        let class = BOUNDS_MS.partition_point(|bound| *bound < took);
        let entry = counts.durations.entry([gateway.as_str(), outcome.as_str()]).or_default();
        entry.0 = Some((gateway, outcome));
        if let Some(count) = entry.1.classes.get_mut(class) {
            *count += 1;
        }
        entry.1.sum_ms += took;
    }

    /// All counts.
    pub(crate) fn all(&self) -> Tally {
        let counts = self.0.lock();
        let settled = counts.settled.values();
        let late = counts.late.values();
        let durations = counts.durations.values();
        Tally {
            settled: settled.filter_map(|(labels, n)| Some(((*labels)?, *n))).collect(),
            decided_late: late
                .filter_map(|(labels, n)| labels.map(|(source, outcome)| (source, outcome, *n)))
                .collect(),
            durations: durations
                .filter_map(|(labels, d)| labels.map(|(g, o)| (g, o, d.clone())))
                .collect(),
        }
    }
}
