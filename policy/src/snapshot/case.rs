//! What a path reads as to a service whose paths have no case: as rules spell its parts, and in lower
//! case.
//!
//! Only what rules name is spelt otherwise, so a path that no rule has in another case reads as
//! itself. A text with `*` inside a part of a path is met in lower case only.

use crate::path::Pattern;
use std::collections::{BTreeSet, HashMap};

/// How rules spell the parts of paths.
#[derive(Debug, Clone, Default)]
pub(super) struct Spellings {
    /// By the part in lower case.
    parts: HashMap<String, BTreeSet<String>>,
    has_capitals: bool,
}

impl Spellings {
    /// Takes in a path of policy.
    pub(super) fn add(&mut self, pattern: &Pattern) {
        let parts = pattern.as_str().split('/').filter(|part| !part.contains('*'));
        for part in parts.filter(|part| part.bytes().any(|c| c.is_ascii_alphabetic())) {
            self.has_capitals |= has_capitals(part);
            self.parts.entry(part.to_ascii_lowercase()).or_default().insert(part.to_owned());
        }
    }

    /// The other spellings of a path in normal form.
    pub(super) fn readings(&self, path: &str) -> Vec<String> {
        if !self.has_capitals && !has_capitals(path) {
            return Vec::new();
        }
        let respelt = |pick: fn(&BTreeSet<String>, &str) -> Option<String>| {
            let part = |part: &str| {
                let known = self.parts.get(&part.to_ascii_lowercase());
                known.and_then(|known| pick(known, part)).unwrap_or_else(|| part.to_owned())
            };
            path.split('/').map(part).collect::<Vec<_>>().join("/")
        };
        // A part that is spelt as some rule has it may be left so while others change, or not.
        let unknown =
            respelt(|known, part| known.first().filter(|_| !known.contains(part)).cloned());
        let other = respelt(|known, part| known.iter().find(|known| *known != part).cloned());
        let mut readings = vec![unknown, other, path.to_ascii_lowercase()];
        readings.retain(|reading| reading != path);
        readings.dedup();
        readings
    }
}

fn has_capitals(text: &str) -> bool {
    text.bytes().any(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_rules_name_is_spelt_otherwise() {
        let mut spellings = Spellings::default();
        spellings.add(&Pattern::parse("/v1/admin/*/x*").unwrap());
        let readings = |path: &str, spellings: &Spellings| spellings.readings(path);
        assert!(readings("/v1/admin/7", &spellings).is_empty());
        assert_eq!(readings("/V1/Admin/Ab", &spellings), ["/v1/admin/Ab", "/v1/admin/ab"]);
        assert_eq!(readings("/other/Ab", &spellings), ["/other/ab"]);
        spellings.add(&Pattern::parse("/Admin/**").unwrap());
        let found = readings("/v1/admin", &spellings);
        assert_eq!(found, ["/v1/Admin"]);
        assert_eq!(readings("/ADMIN", &spellings), ["/Admin", "/admin"]);
    }
}
