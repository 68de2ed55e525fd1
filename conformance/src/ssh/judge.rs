//! Compares what a gateway claims with what both ends saw.

#![allow(clippy::indexing_slicing, reason = "a JSON value gives null for a name it does not hold")]

use super::cases::{Expected, expect};
use super::play::{Observed, Row};
use crate::matrix::{Finding, Kind};
use journal::contract::{Outcome, Retry};
use serde_json::Value;

/// What no gateway may do, whatever it tells.
fn arrived(seen: &Observed, find: &mut impl FnMut(Kind, String)) {
    if seen.requests > 1 {
        find(Kind::Lie, format!("D-7: the request arrived {} times", seen.requests));
    }
    if seen.altered {
        find(Kind::Lie, "D-7: the target got another request".to_owned());
    }
}

/// Judges a gateway that knows no outcomes, by the client's exit status and streams: a status of the
/// target's claims that the result is whole, and 255 claims that it is not known.
pub(super) fn plain(row: &Row, seen: &Observed) -> Vec<Finding> {
    let expected = expect(&row.case.truth, row.idempotent);
    let mut findings = Vec::new();
    let mut find = |kind, what: String| findings.push(Finding { kind, what });
    arrived(seen, &mut find);
    let results: Vec<_> = expected.iter().filter_map(|e| e.result.as_ref()).collect();
    let told = (seen.ran.status, seen.ran.stdout.as_slice());
    // The client adds lines of its own to stderr.
    if results.iter().any(|(status, stdout, _)| told == (Some(*status), stdout)) {
        return findings;
    }
    let claims = seen.ran.status.is_some_and(|status| status != 255);
    let open = expected.iter().any(|e| e.outcome == Outcome::Unknown);
    match (claims, results.is_empty()) {
        (true, true) => find(Kind::Lie, format!("S-8: told as a whole result: {}", shown(seen))),
        (true, false) => find(Kind::Lie, format!("R-1: the result was changed: {}", shown(seen))),
        (false, _) if open => {}
        (false, true) => {
            find(Kind::Shrug, format!("nothing ran, and it is not told: {}", shown(seen)));
        }
        (false, false) => {
            find(Kind::Shrug, format!("a whole result did not come through: {}", shown(seen)));
        }
    }
    findings
}

/// Compares what Affiant claims with what both ends saw.
pub(super) fn affiant(row: &Row, seen: &Observed) -> Vec<Finding> {
    let expected = expect(&row.case.truth, row.idempotent);
    let mut findings = Vec::new();
    let mut find = |kind, what: String| findings.push(Finding { kind, what });
    arrived(seen, &mut find);
    let ran = &seen.ran;
    let result = (ran.status, ran.stdout.as_slice(), ran.stderr.as_slice());
    let Some(record) = &seen.record else {
        find(Kind::Shrug, format!("no record; the client saw {}", shown(seen)));
        return findings;
    };
    let text = |name: &str| record["error"][name].as_str().unwrap_or_default().to_owned();
    let (outcome, retry, code) = (text("outcome"), text("retry"), text("code"));
    let fits = |e: &&Expected| e.outcome.as_str() == outcome;
    let fitting: Vec<&Expected> = expected.iter().filter(fits).collect();
    if fitting.is_empty() {
        let known = expected.iter().all(|e| e.outcome != Outcome::Unknown);
        let kind = if outcome == "unknown" && known { Kind::Shrug } else { Kind::Lie };
        let wanted: Vec<_> = expected.iter().map(|e| e.outcome.as_str()).collect();
        find(kind, format!("record: {outcome} {code}, where it is {wanted:?}; {}", shown(seen)));
        return findings;
    }
    if outcome == "not_attempted" && seen.requests > 0 {
        find(Kind::Lie, "D-1: not_attempted, and the target read the request".to_owned());
    }
    if !fitting.iter().any(|e| e.phase.as_str() == text("phase")) {
        find(Kind::Lie, format!("M-1: phase {}", text("phase")));
    }
    if !fitting.iter().any(|e| e.retry.iter().any(|r| r.as_str() == retry)) {
        let permits = matches!(retry.parse(), Ok(Retry::Backoff | Retry::SameIdempotencyKey));
        find(if permits { Kind::Lie } else { Kind::Shrug }, format!("M-6: retry {retry}"));
    }
    if !fitting.iter().any(|e| e.codes.iter().any(|c| c.as_str() == code)) {
        find(Kind::Shrug, format!("code {code}, expected {:?}", fitting.first().map(|e| &e.codes)));
    }
    let dispatched = record["evidence"]["dispatch_started"] == true;
    if !fitting.iter().any(|e| e.dispatched == dispatched) {
        find(Kind::Lie, format!("D-1: dispatch_started is {dispatched}"));
    }
    let wanted = fitting.iter().find_map(|e| e.result.as_ref());
    match wanted {
        Some((status, stdout, stderr)) => {
            if result != (Some(*status), stdout, stderr) {
                find(Kind::Lie, format!("R-1: the result was changed: {}", shown(seen)));
            }
        }
        None => told(row, seen, &outcome, &mut find),
    }
    findings
}

/// E-5: what is not committed is told on stderr, with exit status 255.
fn told(row: &Row, seen: &Observed, outcome: &str, find: &mut impl FnMut(Kind, String)) {
    if seen.ran.status != Some(255) {
        find(
            Kind::Lie,
            format!("E-5: exit status {:?} of a call that is {outcome}", seen.ran.status),
        );
    }
    let stderr = String::from_utf8_lossy(&seen.ran.stderr);
    let envelope = stderr.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    match envelope {
        Some(envelope) if envelope["error"]["outcome"] == outcome => {}
        Some(envelope) => find(Kind::Lie, format!("E-5: envelope and record differ: {envelope}")),
        // Nothing may follow the end of the streams (RFC 4254 section 5.3), which was passed on.
        None if row.case.streams_ended => {}
        None => find(Kind::Shrug, format!("E-5: no envelope: {stderr}")),
    }
}

fn shown(seen: &Observed) -> String {
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes.get(..bytes.len().min(300)).unwrap_or_default()).into_owned()
    };
    format!(
        "status {:?}, {} bytes of stdout, stderr {:?}",
        seen.ran.status,
        seen.ran.stdout.len(),
        text(&seen.ran.stderr)
    )
}
