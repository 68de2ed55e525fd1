//! Results as a table, JSON and JUnit.

use super::judge::{Finding, Kind};
use super::play::Held;
use crate::subject::Error;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
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

/// A row that was played, of whatever protocol.
pub struct Played {
    /// The row's id.
    pub id: String,
    /// The contract rules and RFC sections that it holds.
    pub rule: &'static str,
    /// How long it took.
    pub took: Duration,
    /// How often the request arrived.
    pub dispatches: usize,
    /// How often its effect was applied.
    pub effects: usize,
    /// The outcome on record, if the broker has records.
    pub outcome: Option<String>,
    /// Whether it asked for a connection that was used before, and did not get one.
    pub missed_reuse: bool,
    /// Lies and shrugs.
    pub findings: Vec<Finding>,
}

/// What a run of the matrix gave.
#[derive(Default)]
pub struct Report {
    /// The broker's name.
    pub broker: String,
    /// Every row that was played, by id.
    pub played: Vec<Played>,
    /// Rows that this broker could not be asked.
    pub skipped: usize,
    /// The whole run.
    pub took: Duration,
    /// Ports that no other row may be served at while this run goes on.
    pub(super) held: Vec<Held>,
}

impl Played {
    fn worst(&self) -> Option<Kind> {
        self.findings.iter().map(|finding| finding.kind).min()
    }

    /// One test case.
    fn junit(&self) -> String {
        let (name, rule) = (escaped(&self.id), escaped(self.rule));
        let took = self.took.as_secs_f64();
        let mut out =
            format!("  <testcase classname=\"{rule}\" name=\"{name}\" time=\"{took:.3}\"");
        if self.findings.is_empty() {
            return out + "/>\n";
        }
        out.push_str(">\n");
        for finding in &self.findings {
            let kind = format!("{:?}", finding.kind).to_lowercase();
            let what = escaped(&finding.what);
            out.push_str(&format!("    <failure type=\"{kind}\">{what}</failure>\n"));
        }
        out + "  </testcase>\n"
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

/// Plays rows, so many at a time, each as a task of its own.
pub(crate) async fn at_a_time<T, F>(
    rows: impl IntoIterator<Item = F>,
    seats: usize,
) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let ended = |error: tokio::task::JoinError| Error::Unexpected(format!("a row ended: {error}"));
    futures::stream::iter(rows)
        .map(tokio::spawn)
        .buffer_unordered(seats.max(1))
        .map(|played| played.map_err(ended)?)
        .try_collect()
        .await
}

impl Report {
    /// Of rows in whatever order they were played.
    pub(crate) fn new(broker: String, mut played: Vec<Played>, took: Duration) -> Self {
        played.sort_by(|one, other| one.id.cmp(&other.id));
        Self { broker, played, took, ..Self::default() }
    }

    /// Takes in the rows of another run.
    pub fn merge(&mut self, other: Self) {
        self.played.extend(other.played);
        self.played.sort_by(|one, other| one.id.cmp(&other.id));
        self.held.extend(other.held);
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
        let missed = self.played.iter().filter(|played| played.missed_reuse);
        missed.map(|played| played.id.clone()).collect()
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut groups: BTreeMap<String, Vec<&Played>> = BTreeMap::new();
        for played in &self.played {
            // Pairing and shape; over SSH what is asked for and the route.
            let above = played.id.rsplit_once('/').map_or("", |(above, _)| above);
            let group = above.split('/').take(4).collect::<Vec<_>>().join("/");
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
                    out.push_str(&format!("{:?} {}: {}\n", finding.kind, played.id, finding.what));
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
                    "id": played.id,
                    "rule": played.rule,
                    "dispatches": played.dispatches,
                    "effects": played.effects,
                    "outcome": played.outcome,
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

    /// For continuous integration: one suite.
    #[must_use]
    pub fn junit(&self) -> String {
        let Tally { rows, lies, shrugs } = self.tally();
        let mut out = format!(
            "<testsuite name=\"{}\" tests=\"{rows}\" \
             failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escaped(&self.broker),
            lies + shrugs,
            self.skipped,
            self.took.as_secs_f64()
        );
        for played in &self.played {
            out.push_str(&played.junit());
        }
        out.push_str("</testsuite>\n");
        out
    }
}

impl Finding {
    /// For programs.
    fn json(&self) -> Value {
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
