//! `GET /v1/metrics`: counters in the text format of Prometheus, for operators (contract T-5).
//!
//! Labels are closed enumerations of the contract and nothing else: no name of an agent, a target or a
//! route, and no secret, can become one.

use super::operator::operators_only;
use super::{Caller, Problem, State};
use axum::Extension;
use axum::extract::State as Extract;
use axum::response::{IntoResponse, Response};
use http::header;
use journal::tally::{BOUNDS_MS, Durations, Tally};
use journal::{Journal, Stats};
use std::fmt::{Display, Write as _};
use std::sync::Arc;

/// The media type of the format, version 0.0.4.
const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /v1/metrics`.
pub(super) async fn metrics(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let unlocked = state.policy.vault().status() == policy::vault::Status::Unlocked;
    let version = state.policy.snapshot().version();
    let text = page(&state.journal, unlocked, version);
    Ok(([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

/// The page under way. Writing to a text does not fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, text: impl Display) {
        if writeln!(self.0, "{text}").is_err() {
            tracing::error!("a line of the metrics could not be formatted");
        }
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }
}

fn page(journal: &Journal, unlocked: bool, policy_version: u64) -> String {
    let mut page = Page::default();
    invocations(&mut page, &journal.tally());
    of_journal(&mut page, &journal.stats());
    let help = "1 when the vault is open.";
    page.single("affiant_vault_unlocked", "gauge", help, u8::from(unlocked));
    let help = "The version of the policy in force.";
    page.single("affiant_policy_version", "gauge", help, policy_version);
    page.0
}

fn invocations(page: &mut Page, tally: &Tally) {
    let name = "affiant_invocations_total";
    let help = "Invocations by what they settled as first, since the start.";
    page.head(name, "counter", help);
    for (labels, count) in &tally.settled {
        let (phase, outcome) = (labels.phase, labels.outcome);
        let (code, gateway) = (labels.code, labels.gateway);
        page.line(format_args!(
            "{name}{{phase=\"{phase}\",outcome=\"{outcome}\",code=\"{code}\",gateway=\"{gateway}\"}} {count}"
        ));
    }
    let name = "affiant_late_evidence_total";
    let help = "Invocations in doubt that later evidence decided.";
    page.head(name, "counter", help);
    for (source, outcome, count) in &tally.decided_late {
        page.line(format_args!("{name}{{source=\"{source}\",outcome=\"{outcome}\"}} {count}"));
    }
    let name = "affiant_invocation_duration_seconds";
    let help = "From acceptance to the first outcome.";
    page.head(name, "histogram", help);
    for (gateway, outcome, durations) in &tally.durations {
        histogram(page, name, &format!("gateway=\"{gateway}\",outcome=\"{outcome}\""), durations);
    }
}

fn histogram(page: &mut Page, name: &str, labels: &str, durations: &Durations) {
    let mut below = 0;
    for (bound, count) in BOUNDS_MS.iter().zip(&durations.classes) {
        below += count;
        let bound = seconds(*bound);
        page.line(format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}"));
    }
    let all: u64 = durations.classes.iter().sum();
    page.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {all}"));
    page.line(format_args!("{name}_sum{{{labels}}} {}", seconds(durations.sum_ms)));
    page.line(format_args!("{name}_count{{{labels}}} {all}"));
}

/// Milliseconds as seconds, exactly.
fn seconds(ms: u64) -> String {
    let (whole, rest) = (ms / 1000, ms % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

fn of_journal(page: &mut Page, stats: &Stats) {
    let healthy = u8::from(stats.healthy);
    let help = "1 while the journal takes records.";
    page.single("affiant_journal_healthy", "gauge", help, healthy);
    for (name, help, value) in [
        ("appends", "Records appended.", stats.appends),
        ("syncs", "Batches written and synced.", stats.syncs),
        ("written_bytes", "Bytes written to the log.", stats.written_bytes),
        ("reopened", "Recoveries without a restart.", stats.reopened),
    ] {
        page.single(&format!("affiant_journal_{name}_total"), "counter", help, value);
    }
    for (name, help, value) in [
        ("available_bytes", "Bytes that calls can still reserve.", stats.available_bytes),
        ("reserved_bytes", "Bytes reserved for calls under way.", stats.reserved_bytes),
        ("durable_sequence", "The last durable sequence.", stats.durable_sequence.0),
    ] {
        page.single(&format!("affiant_journal_{name}"), "gauge", help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-5: classes are cumulated, and seconds are exact.
    #[test]
    fn t_5_a_histogram_is_cumulative() {
        let mut durations = Durations { sum_ms: 5007, ..Durations::default() };
        durations.classes[0] = 2;
        durations.classes[14] = 1;
        let mut page = Page::default();
        histogram(&mut page, "d", "a=\"b\"", &durations);
        let lines: Vec<_> = page.0.lines().collect();
        assert_eq!(lines[0], "d_bucket{a=\"b\",le=\"0.005\"} 2");
        assert_eq!(lines[13], "d_bucket{a=\"b\",le=\"300\"} 2");
        assert_eq!(lines[14], "d_bucket{a=\"b\",le=\"+Inf\"} 3");
        assert_eq!(&lines[15..], ["d_sum{a=\"b\"} 5.007", "d_count{a=\"b\"} 3"]);
    }
}
