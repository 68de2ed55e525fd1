//! Pairs of rules that could tie, without comparing each rule with each other one.
//!
//! A rule shows marks: beginnings and ends of texts that an action has to have. Two rules of which
//! neither mark begins the other can't meet. Of all marks the one that tells most rules apart is used;
//! what it does not tell apart is compared pair by pair, so the number of pairs grows with what rules
//! really share.

use super::MOST_TIES;
use crate::document::Names;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

/// What a mark is of: a part of the action, and from which end it is read.
pub(super) type Part = (u8, String, bool);

/// A rule with its marks. A part that it does not name is open to every text.
pub(super) struct Rule<'a> {
    pub(super) index: usize,
    pub(super) agents: &'a Names,
    marks: HashMap<Part, Vec<Vec<u8>>>,
}

impl<'a> Rule<'a> {
    pub(super) fn new(index: usize, agents: &'a Names) -> Self {
        Self { index, agents, marks: HashMap::new() }
    }

    /// Marks a part by patterns, any of which may match it.
    pub(super) fn mark<'p>(
        &mut self,
        kind: u8,
        name: &str,
        patterns: impl Iterator<Item = &'p str> + Clone,
    ) {
        let beginnings = patterns.clone().map(beginning).collect();
        self.marks.insert((kind, name.to_owned(), false), beginnings);
        self.marks.insert((kind, name.to_owned(), true), patterns.map(end).collect());
    }
}

/// What every text of a pattern begins with; a text without a star is closed by a byte of its own.
fn beginning(pattern: &str) -> Vec<u8> {
    match pattern.split_once('*') {
        Some((before, _)) => before.as_bytes().to_vec(),
        None => pattern.bytes().chain([0]).collect(),
    }
}

/// The same from the end.
fn end(pattern: &str) -> Vec<u8> {
    let mirrored: String = pattern.chars().rev().collect();
    beginning(&mirrored)
}

/// Who a list of rules is for.
#[derive(PartialEq, Eq, Hash)]
enum For<'a> {
    All,
    Everyone,
    Agent(&'a str),
}

/// Rules by a mark.
#[derive(Default)]
struct Marked {
    rules: BTreeMap<Vec<u8>, Vec<usize>>,
    lengths: BTreeSet<usize>,
}

impl Marked {
    fn put(&mut self, mark: &[u8], index: usize) {
        self.lengths.insert(mark.len());
        self.rules.entry(mark.to_vec()).or_default().push(index);
    }

    /// The rules whose mark begins this one, or is begun by it.
    fn near<'m>(&'m self, mark: &'m [u8]) -> impl Iterator<Item = usize> + 'm {
        let shorter = self.lengths.range(..mark.len());
        let shorter = shorter.filter_map(|&length| self.rules.get(mark.get(..length)?));
        let longer = self.rules.range(mark.to_vec()..);
        let longer = longer.take_while(|(other, _)| other.starts_with(mark)).map(|(_, list)| list);
        shorter.chain(longer).flatten().copied()
    }
}

/// Calls with every pair that shares an agent and that the best mark does not tell apart, until told
/// to stop. A pair may come more than once.
fn pairs(
    rules: &[Rule<'_>],
    mut each: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let part = best(rules);
    let open = [Vec::new()];
    let mut seen: HashMap<For<'_>, Marked> = HashMap::new();
    for rule in rules {
        let marks = part.as_ref().and_then(|part| rule.marks.get(part)).map_or(&open[..], |m| m);
        let mut lists = Vec::new();
        match rule.agents {
            None => lists.push(For::All),
            Some(names) => {
                lists.extend(names.iter().map(|name| For::Agent(name)));
                lists.push(For::Everyone);
            }
        }
        for marked in lists.iter().filter_map(|list| seen.get(list)) {
            for other in marks.iter().flat_map(|mark| marked.near(mark)) {
                each(other, rule.index)?;
            }
        }
        if rule.agents.is_none() {
            lists.push(For::Everyone);
        } else {
            lists.pop();
            lists.push(For::All);
        }
        for list in lists {
            let marked = seen.entry(list).or_default();
            marks.iter().for_each(|mark| marked.put(mark, rule.index));
        }
    }
    ControlFlow::Continue(())
}

/// Puts pairs of rules that tie, by number, into a set, until it holds as many as are told.
pub(super) fn ties(
    rules: &[Rule<'_>],
    tied: &mut BTreeSet<(usize, usize)>,
    tie: impl Fn(usize, usize) -> bool,
) -> ControlFlow<()> {
    pairs(rules, |one, other| {
        if tie(one, other) {
            tied.insert((one.min(other), one.max(other)));
        }
        if tied.len() < MOST_TIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// The part whose marks differ most.
fn best(rules: &[Rule<'_>]) -> Option<Part> {
    let mut different: HashMap<&Part, BTreeSet<&[u8]>> = HashMap::new();
    for (part, marks) in rules.iter().flat_map(|rule| &rule.marks) {
        different.entry(part).or_default().extend(marks.iter().map(Vec::as_slice));
    }
    let most = different.into_iter().max_by_key(|(part, marks)| (marks.len(), *part));
    most.map(|(part, _)| part.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob;
    use proptest::prelude::*;

    fn found(rules: &[(Option<Vec<&str>>, &str)]) -> BTreeSet<(usize, usize)> {
        let agents: Vec<Names> = rules
            .iter()
            .map(|(names, _)| names.as_ref().map(|n| n.iter().map(|&n| n.to_owned()).collect()))
            .collect();
        let rules: Vec<_> = rules
            .iter()
            .zip(&agents)
            .enumerate()
            .map(|(index, ((_, pattern), agents))| {
                let mut rule = Rule::new(index, agents);
                rule.mark(0, "", std::iter::once(*pattern));
                rule
            })
            .collect();
        let mut found = BTreeSet::new();
        let ended = pairs(&rules, |one, other| {
            found.insert((one, other));
            ControlFlow::Continue(())
        });
        assert!(ended.is_continue());
        found
    }

    #[test]
    fn rules_that_cannot_meet_are_not_compared() {
        let all = |patterns: &[&'static str]| {
            found(&patterns.iter().map(|&p| (None, p)).collect::<Vec<_>>()).len()
        };
        assert_eq!(all(&["a1*", "a2*", "a3*", "a4*"]), 0);
        assert_eq!(all(&["*a1", "*a2", "*a3", "*a4"]), 0);
        assert_eq!(all(&["a", "ab", "abc"]), 0);
        assert_eq!(all(&["a*", "ab", "abc"]), 2);
        assert_eq!(found(&[(Some(vec!["x"]), "a"), (Some(vec!["y"]), "a")]).len(), 0);
        assert_eq!(found(&[(Some(vec!["x"]), "a"), (None, "a")]).len(), 1);
        assert_eq!(found(&[(None, "a"), (Some(vec!["x"]), "a")]).len(), 1);
    }

    proptest! {
        /// No pair is left out that shares an agent and a text.
        #[test]
        fn every_pair_that_meets_is_found(rules in proptest::collection::vec(
            (proptest::option::of(proptest::sample::subsequence(vec!["x", "y"], 1..=2)), "[ab*]{0,4}"),
            0..8,
        )) {
            let rules: Vec<_> = rules.iter().map(|(a, p)| (a.clone(), p.as_str())).collect();
            let found = found(&rules);
            for (i, (agents, pattern)) in rules.iter().enumerate() {
                for (j, (others, other)) in rules.iter().enumerate().skip(i + 1) {
                    let share = agents.as_ref().zip(others.as_ref())
                        .is_none_or(|(a, b)| a.iter().any(|name| b.contains(name)));
                    if share && glob::meet(pattern.as_bytes(), other.as_bytes()) {
                        prop_assert!(found.contains(&(i, j)), "{pattern} {other}");
                    }
                }
            }
        }
    }
}
