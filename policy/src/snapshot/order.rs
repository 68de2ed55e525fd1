//! How two conditions on names relate, and lists of rules by agent.

use crate::document::Names;
use std::collections::{BTreeSet, HashMap};

/// How two conditions on names relate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// No name meets both.
    Disjoint,
    /// The same names meet both.
    Equal,
    /// One lies within the other.
    Nested,
    /// They share names, and neither lies within the other.
    Crossing,
}

/// Relates two conditions.
pub(super) fn relate(a: &Names, b: &Names) -> Relation {
    match (a, b) {
        (None, None) => Relation::Equal,
        (None, Some(_)) | (Some(_), None) => Relation::Nested,
        (Some(a), Some(b)) if a == b => Relation::Equal,
        (Some(a), Some(b)) if a.is_disjoint(b) => Relation::Disjoint,
        (Some(a), Some(b)) if a.is_subset(b) || b.is_subset(a) => Relation::Nested,
        (Some(_), Some(_)) => Relation::Crossing,
    }
}

/// Relates two conditions, the first of which decides unless it is equal on both sides: whether
/// neither rule is narrower. `Crossing` and `Equal` throughout is a tie.
pub(super) fn tied(first: Relation, agents: Relation) -> bool {
    match (first, agents) {
        (Relation::Disjoint | Relation::Nested, _) | (_, Relation::Disjoint) => false,
        (Relation::Crossing, _) => true,
        (Relation::Equal, Relation::Nested) => false,
        (Relation::Equal, Relation::Equal | Relation::Crossing) => true,
    }
}

/// How many names meet a condition; fewer is narrower.
pub(super) fn breadth(names: &Names) -> usize {
    names.as_ref().map_or(usize::MAX, std::collections::BTreeSet::len)
}

/// Whether a name meets a condition.
pub(super) fn admits(names: &Names, name: &str) -> bool {
    names.as_ref().is_none_or(|names| names.contains(name))
}

/// Indexes of rules, narrowest first, found by agent.
#[derive(Debug, Clone, Default)]
pub(super) struct Bucket {
    everyone: Vec<usize>,
    by_agent: HashMap<String, Vec<usize>>,
}

impl Bucket {
    /// Adds a rule; rules are added in ascending order.
    pub(super) fn push(&mut self, index: usize, agents: &Names) {
        match agents {
            None => self.everyone.push(index),
            Some(names) => {
                for name in names {
                    self.by_agent.entry(name.clone()).or_default().push(index);
                }
            }
        }
    }

    /// The first rule for the agent that the test accepts.
    pub(super) fn first(&self, agent: &str, accept: impl Fn(usize) -> bool) -> Option<usize> {
        let own = self.by_agent.get(agent).map_or(&[][..], Vec::as_slice);
        let own = own.iter().copied().find(|&i| accept(i));
        let common = self.everyone.iter().copied().take_while(|&i| own.is_none_or(|o| i < o));
        let mut common = common;
        common.find(|&i| accept(i)).or(own)
    }

    /// All rules, ascending.
    pub(super) fn rules(&self) -> BTreeSet<usize> {
        self.everyone.iter().chain(self.by_agent.values().flatten()).copied().collect()
    }
}
