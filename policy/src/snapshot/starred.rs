//! Rules whose paths begin alike and go on with stars, found by a text further on.
//!
//! ```text
//! /v1/*/reports/**   by `reports` at place 2     the last whole text in front of a `**`, else
//! /v1/*/inv-*        by what begins at place 2   the last text that begins there, else
//! /v1/**             in the rest                 nothing
//! ```

use super::order::Bucket;
use crate::document::Names;
use crate::path::Pattern;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Rules of one beginning.
#[derive(Debug, Clone, Default)]
pub(super) struct Starred {
    places: BTreeMap<usize, Place>,
    rest: Bucket,
}

/// Rules by what stands at one place of the path.
#[derive(Debug, Clone, Default)]
struct Place {
    whole: HashMap<String, Bucket>,
    /// By length, so that each is one look-up.
    beginnings: BTreeMap<usize, HashMap<String, Bucket>>,
}

impl Starred {
    /// Adds a rule; rules are added in ascending order.
    pub(super) fn push(&mut self, index: usize, pattern: &Pattern, agents: &Names) {
        let parts = pattern.as_str().split('/').take_while(|part| *part != "**").enumerate();
        let parts: Vec<(usize, &str)> = parts.collect();
        let whole = parts.iter().rfind(|(_, part)| !part.contains('*') && !part.is_empty());
        let beginning = || {
            let begins = parts.iter().rev().filter_map(|(place, part)| {
                let (before, _) = part.split_once('*')?;
                (!before.is_empty()).then_some((*place, before))
            });
            begins.into_iter().next()
        };
        let prefix = pattern.prefix().split('/').count();
        let bucket = match whole.filter(|(place, _)| *place >= prefix) {
            Some(&(place, part)) => {
                let place = self.places.entry(place).or_default();
                place.whole.entry(part.to_owned()).or_default()
            }
            None => match beginning() {
                Some((place, before)) => {
                    let place = self.places.entry(place).or_default();
                    let known = place.beginnings.entry(before.len()).or_default();
                    known.entry(before.to_owned()).or_default()
                }
                None => &mut self.rest,
            },
        };
        bucket.push(index, agents);
    }

    /// The first rule for the agent and the path that the test accepts.
    pub(super) fn first(
        &self,
        agent: &str,
        path: &str,
        accept: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut parts = path.split('/').enumerate().peekable();
        let placed = self.places.iter().filter_map(|(wanted, place)| {
            // Places come in ascending order, so the path is gone through once.
            while parts.next_if(|(at, _)| at < wanted).is_some() {}
            let (_, part) = parts.peek().filter(|(at, _)| at == wanted)?;
            place.first(agent, part, &accept)
        });
        placed.chain(self.rest.first(agent, &accept)).min()
    }

    /// All rules, ascending.
    pub(super) fn rules(&self) -> BTreeSet<usize> {
        let places = self.places.values().flat_map(Place::buckets);
        places.chain([&self.rest]).flat_map(Bucket::rules).collect()
    }
}

impl Place {
    fn first(&self, agent: &str, part: &str, accept: &impl Fn(usize) -> bool) -> Option<usize> {
        let begun =
            self.beginnings.iter().filter_map(|(&length, known)| known.get(part.get(..length)?));
        let buckets = self.whole.get(part).into_iter().chain(begun);
        buckets.filter_map(|bucket| bucket.first(agent, accept)).min()
    }

    fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.whole.values().chain(self.beginnings.values().flat_map(HashMap::values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The rule that is found is the one that a look at all of them finds.
        #[test]
        fn the_index_finds_what_a_scan_finds(
            patterns in proptest::collection::vec("/v(/(a|b|ab|\\*|a\\*|ab\\*|\\*b)){1,3}(/\\*\\*)?(/b)?", 1..12),
            path in "/v(/[ab]{1,2}){0,5}",
        ) {
            let patterns: Vec<Pattern> =
                patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
            let mut by_prefix: HashMap<String, Starred> = HashMap::new();
            for (index, pattern) in patterns.iter().enumerate() {
                by_prefix.entry(pattern.prefix()).or_default().push(index, pattern, &None);
            }
            let matches = |index: usize| patterns[index].matches(&path);
            for (prefix, starred) in &by_prefix {
                let scanned = starred.rules().into_iter().find(|&index| matches(index));
                prop_assert_eq!(starred.first("a", &path, matches), scanned, "{}", prefix);
            }
        }
    }
}
