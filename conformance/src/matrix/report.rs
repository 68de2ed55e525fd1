//! Results as a table, JSON and JUnit.

#![allow(clippy::indexing_slicing, reason = "a JSON value gives null for a name it does not hold")]

use super::judge::{Finding, Kind};
use super::play::Played;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Findings that the table prints in full, at most.
const SHOWN: usize = 40;

/// The two scores of some rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Rows played.
    pub rows: usize,
    /// Rows with a lie.
    pub lies: usize,
    /// Rows with a shrug and no lie.
    pub shrugs: usize,
}

/// What a run of the matrix gave.
pub struct Report {
    /// The broker's name.
    pub broker: String,
    /// Every row that was played, by id.
    pub played: Vec<Played>,
    /// Rows that this broker could not be asked.
    pub skipped: usize,
    /// The whole run.
    pub took: Duration,
}

impl Played {
    fn worst(&self) -> Option<Kind> {
        self.findings.iter().map(|finding| finding.kind).min()
    }
}

impl Tally {
    fn of<'a>(played: impl Iterator<Item = &'a Played>) -> Self {
        let mut tally = Self::default();
        for played in played {
            tally.rows += 1;
            match played.worst() {
                Some(Kind::Lie) => tally.lies += 1,
                Some(Kind::Shrug) => tally.shrugs += 1,
                None => {}
            }
        }
        tally
    }
}

impl Report {
    /// Takes in the rows of another run.
    pub fn merge(&mut self, other: Self) {
        self.played.extend(other.played);
        self.played.sort_by_key(|played| played.row.id());
        self.skipped += other.skipped;
        self.took += other.took;
    }

    /// The scores of the whole run.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally::of(self.played.iter())
    }

    /// Rows that asked for a reused connection and did not get one.
    #[must_use]
    pub fn not_reused(&self) -> Vec<String> {
        let missed = self.played.iter().filter(|p| {
            p.row.shape.reused
                && !p.observed.reused
                && !p.row.case.peer(&p.row.shape).closes_when_idle
        });
        missed.map(|played| played.row.id()).collect()
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut groups: BTreeMap<String, Vec<&Played>> = BTreeMap::new();
        for played in &self.played {
            let id = played.row.id();
            let group = id.split('/').take(4).collect::<Vec<_>>().join("/");
            groups.entry(group).or_default().push(played);
        }
        let mut out = format!("{:<28} {:>6} {:>6} {:>7}\n", "rows", "played", "lies", "shrugs");
        let mut line = |name: &str, tally: Tally| {
            let Tally { rows, lies, shrugs } = tally;
            // Writing to a string does not fail.
            writeln!(out, "{name:<28} {rows:>6} {lies:>6} {shrugs:>7}").is_ok()
        };
        for (group, played) in &groups {
            line(group, Tally::of(played.iter().copied()));
        }
        line(&self.broker, self.tally());
        let mut shown = 0;
        for played in &self.played {
            for finding in &played.findings {
                shown += 1;
                if shown <= SHOWN {
                    out.push_str(&format!(
                        "{:?} {}: {}\n",
                        finding.kind,
                        played.row.id(),
                        finding.what
                    ));
                }
            }
        }
        if shown > SHOWN {
            out.push_str(&format!("... and {} more findings\n", shown - SHOWN));
        }
        let seconds = self.took.as_secs_f64();
        out.push_str(&format!("{} rows skipped, {seconds:.1} s\n", self.skipped));
        out
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let Tally { rows, lies, shrugs } = self.tally();
        let all: Vec<Value> = self
            .played
            .iter()
            .map(|played| {
                let findings: Vec<Value> = played.findings.iter().map(Finding::json).collect();
                json!({
                    "id": played.row.id(),
                    "rule": played.row.case.rule,
                    "dispatches": played.observed.dispatches,
                    "effects": played.observed.effects,
                    "outcome": played.observed.record.as_ref().map(|r| r["error"]["outcome"].clone()),
                    "took_ms": u64::try_from(played.took.as_millis()).unwrap_or(u64::MAX),
                    "findings": findings,
                })
            })
            .collect();
        json!({
            "broker": self.broker,
            "rows": rows,
            "lies": lies,
            "shrugs": shrugs,
            "skipped": self.skipped,
            "played": all,
        })
    }

    /// For continuous integration.
    #[must_use]
    pub fn junit(&self) -> String {
        let Tally { rows, lies, shrugs } = self.tally();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{rows}\" \
             failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escaped(&self.broker),
            lies + shrugs,
            self.skipped,
            self.took.as_secs_f64()
        );
        for played in &self.played {
            let (id, rule) = (played.row.id(), played.row.case.rule);
            out.push_str(&junit_case(rule, &id, Some(played.took), &played.findings));
        }
        out.push_str("</testsuite>\n");
        out
    }
}

/// One row for continuous integration.
pub(crate) fn junit_case(
    rule: &str,
    id: &str,
    took: Option<Duration>,
    findings: &[Finding],
) -> String {
    let (name, rule) = (escaped(id), escaped(rule));
    let mut out = format!("  <testcase classname=\"{rule}\" name=\"{name}\"");
    if let Some(took) = took {
        out.push_str(&format!(" time=\"{:.3}\"", took.as_secs_f64()));
    }
    if findings.is_empty() {
        return out + "/>\n";
    }
    out.push_str(">\n");
    for finding in findings {
        let kind = format!("{:?}", finding.kind).to_lowercase();
        let what = escaped(&finding.what);
        out.push_str(&format!("    <failure type=\"{kind}\">{what}</failure>\n"));
    }
    out + "  </testcase>\n"
}

impl Finding {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "kind": format!("{:?}", self.kind).to_lowercase(), "what": self.what })
    }
}

/// Text for XML; what XML can't hold becomes a question mark.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c < ' ' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
