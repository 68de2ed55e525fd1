//! The tables `[[budget]]`: what agents may use.

use super::reader::{Fields, Reader};
use super::{Names, read_agents, read_name, title};
use journal::contract::Budget;
use std::collections::BTreeMap;

pub(super) const KNOWN: &[&str] = &[
    "name",
    "agents",
    "calls_per_minute",
    "calls_per_hour",
    "calls_per_day",
    "concurrent_calls",
    "bytes_per_hour",
    "bytes_per_day",
];

/// One `[[budget]]`. Each of its agents has the whole of it.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) agents: Names,
    pub(crate) budget: Budget,
}

/// Reads all budgets.
pub(super) fn read(reader: &Reader<'_>, root: &Fields<'_, '_>) -> Vec<Named> {
    const MOST: u64 = 1 << 50;
    let mut seen = BTreeMap::new();
    let mut budgets = Vec::new();
    for (table, span) in root.tables("budget") {
        let fields = Fields::new(reader, table, span, title("budget", table, "name"), KNOWN);
        let name = read_name(&fields, &mut seen);
        let agents = read_agents(&fields);
        let budget = Budget {
            calls_per_minute: fields.number("calls_per_minute", 0, MOST),
            calls_per_hour: fields.number("calls_per_hour", 0, MOST),
            calls_per_day: fields.number("calls_per_day", 0, MOST),
            concurrent_calls: fields.number("concurrent_calls", 0, MOST),
            bytes_per_hour: fields.size("bytes_per_hour"),
            bytes_per_day: fields.size("bytes_per_day"),
        };
        if budget == Budget::default() {
            fields.doubtful("name", "bounds nothing", Some("calls_per_hour = 500".to_owned()));
        }
        budgets.extend(name.map(|name| Named { name, agents, budget }));
    }
    budgets
}
