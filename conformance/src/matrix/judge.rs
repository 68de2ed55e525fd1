//! Compares what the broker claims with what both ends saw.

#![allow(clippy::indexing_slicing, reason = "a JSON value gives null for a name it does not hold")]

use super::Dialect;
use super::plan::Row;
use super::play::Observed;
use crate::case::{Expected, MARK, Pairing, Shape, Truth, expect};
use crate::fields::{self, ERROR_TYPES};
use crate::http::{Answer, End, Received};
use journal::contract::{Outcome, Retry};
use serde_json::Value;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A claim that the facts refute.
    Lie,
    /// A fact that was there and was not told.
    Shrug,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub kind: Kind,
    /// What it is.
    pub what: String,
}

struct Judge<'a> {
    row: &'a Row,
    seen: &'a Observed,
    expected: Vec<Expected>,
    findings: Vec<Finding>,
}

pub(super) fn judge(row: &Row, seen: &Observed, dialect: Dialect) -> Vec<Finding> {
    let truth = row.case.truth(&row.shape);
    let expected = expect(&truth, row.shape.method, row.contract);
    let mut judge = Judge { row, seen, expected, findings: Vec::new() };
    judge.counts(&truth);
    judge.relayed();
    match dialect {
        Dialect::Affiant => judge.affiant(),
        Dialect::Plain => judge.plain(),
    }
    judge.findings
}

impl Judge<'_> {
    fn lie(&mut self, what: impl Into<String>) {
        self.findings.push(Finding { kind: Kind::Lie, what: what.into() });
    }

    fn shrug(&mut self, what: impl Into<String>) {
        self.findings.push(Finding { kind: Kind::Shrug, what: what.into() });
    }

    /// D-7: at most once, and not at all where nothing may be sent.
    fn counts(&mut self, truth: &Truth) {
        if self.seen.dispatches > 1 {
            self.lie(format!("D-7: the request arrived {} times", self.seen.dispatches));
        }
        if let Some(what) = self.seen.altered {
            self.lie(format!("D-7: the origin got {what}"));
        }
        if self.seen.early_data {
            self.lie("C-9: bytes came as TLS early data");
        }
        let passed = self.received().is_some_and(|got| got.status == 101);
        let socket = self.row.shape.pairing.is_websocket();
        if socket && !passed && self.seen.stray_bytes > 0 {
            self.lie("S-6: what was meant for a WebSocket went to an origin that did not switch");
        }
        if matches!(truth, Truth::Untouched(_)) && self.seen.dispatches > 0 {
            self.lie("S-6: the request went to a peer that had to be refused");
        }
    }

    fn received(&self) -> Option<&Received> {
        match &self.seen.answer {
            Answer::Response(received) => Some(received),
            Answer::Nothing(_) => None,
        }
    }

    fn whole_relay(&self) -> Option<&Received> {
        self.received().filter(|got| got.end == End::Whole && got.field(MARK).is_some())
    }

    /// S-2: what looks like the origin's whole answer is the origin's whole answer.
    fn relayed(&mut self) {
        let Some(got) = self.whole_relay().cloned() else { return };
        let mut content = got.content.as_slice();
        // Whoever takes part in a WebSocket may say at its end that it ended (RFC 6455 section 7).
        if got.status == 101
            && let Some(at) = content.windows(2).position(|bytes| bytes.starts_with(&[0x88]))
        {
            content = content.get(..at).unwrap_or_default();
        }
        let (status, content) = (got.status, String::from_utf8_lossy(content).into_owned());
        let answers: Vec<_> = self.expected.iter().filter_map(|e| e.answer.clone()).collect();
        if answers.is_empty() {
            self.lie("S-2: a cut or malformed answer was passed on as whole");
        } else if !answers.contains(&(status, content.clone())) {
            self.lie(format!("S-2: the answer was changed on its way: {status} {content:?}"));
        }
        let told = got.trailer("grpc-status").or_else(|| got.field("grpc-status"));
        let told = told.map(str::to_owned);
        if let Truth::Grpc { status, .. } = self.row.case.truth(&self.row.shape)
            && told != Some(status.to_string())
        {
            self.lie(format!("S-9: the status {status} arrived as {told:?}"));
        }
    }

    /// The honest answers with this outcome.
    fn fitting(&self, outcome: Outcome) -> Vec<Expected> {
        self.expected.iter().filter(|e| e.outcome == outcome).cloned().collect()
    }

    /// Judges a claimed outcome; gives the honest answers that it can mean.
    fn outcome(&mut self, outcome: Outcome, said_by: &str) -> Vec<Expected> {
        let fitting = self.fitting(outcome);
        let settled = self.expected.iter().all(|e| e.outcome != Outcome::Unknown);
        if !fitting.is_empty() {
        } else if outcome == Outcome::Unknown && settled {
            let known: Vec<_> = self.expected.iter().map(|e| e.outcome.as_str()).collect();
            self.shrug(format!("{said_by}: unknown, where it is known: {known:?}"));
        } else {
            let known: Vec<_> = self.expected.iter().map(|e| e.outcome.as_str()).collect();
            self.lie(format!("{said_by}: {outcome}, where it is {known:?}"));
        }
        let touched = self.seen.dispatches > 0 || self.seen.stray_bytes > 0;
        if outcome == Outcome::NotAttempted && touched {
            self.lie(format!(
                "D-1: {said_by}: not_attempted, and the origin read from the request"
            ));
        }
        fitting
    }

    fn affiant(&mut self) {
        let Some(got) = self.received().cloned() else {
            // RST_STREAM may overtake the head of a stream that is cut as it begins: the caller sees
            // a failure and no claim.
            let overtaken = self.row.shape.pairing.caller_speaks_http2()
                && self.row.shape.streamed
                && self.expected.iter().all(|expected| expected.answer.is_none());
            if !overtaken {
                self.shrug(format!("no response at all: {:?}", self.seen.answer));
            }
            return;
        };
        let Some(field) = got.field("affiant-outcome") else {
            self.shrug("E-4: no Affiant-Outcome");
            return;
        };
        let said = match fields::outcome(field) {
            Ok(said) => said,
            Err(error) => return self.lie(format!("E-4: {error}")),
        };
        let Some(record) = self.seen.record.clone() else {
            self.shrug("no record of the invocation");
            return;
        };
        self.proxy_status(&got, &record);
        self.record(&record);
        let on_record = record["error"]["outcome"].as_str().unwrap_or_default().to_owned();
        let streams = self.row.shape.streamed && got.field(MARK).is_some();
        if !streams {
            if said.outcome.as_str() != on_record {
                self.lie(format!("M-6: the answer says {}, the record {on_record}", said.outcome));
            }
        } else if said.outcome != Outcome::Unknown {
            self.lie(format!("E-4: a stream began with {}", said.outcome));
        } else if got.end == End::Whole {
            let trailer = got.trailer("affiant-outcome").map(fields::outcome);
            match trailer {
                Some(Ok(last)) if last.outcome.as_str() == on_record => {}
                Some(last) => self.lie(format!("E-4: trailers {last:?}, record {on_record}")),
                None => self.shrug("E-4: a stream ended without the outcome in its trailers"),
            }
        }
        self.delivery(&got, &record);
    }

    /// What the record claims: outcome, phase, instruction, code, evidence.
    fn record(&mut self, record: &Value) {
        let text = |name: &str| record["error"][name].as_str().unwrap_or_default().to_owned();
        let Ok(outcome) = text("outcome").parse::<Outcome>() else {
            return self.lie(format!("M-2: the outcome on record is {:?}", text("outcome")));
        };
        let fitting = self.outcome(outcome, "record");
        if fitting.is_empty() {
            return;
        }
        let (phase, retry, code) = (text("phase"), text("retry"), text("code"));
        if !fitting.iter().any(|e| e.phase.as_str() == phase) {
            self.lie(format!("M-1: phase {phase}"));
        }
        if !fitting.iter().any(|e| e.retry.iter().any(|r| r.as_str() == retry)) {
            let what =
                format!("M-6: retry {retry}, expected {:?}", fitting.first().map(|e| &e.retry));
            if permits(&retry) { self.lie(what) } else { self.shrug(what) }
        }
        if !fitting.iter().any(|e| e.codes.iter().any(|c| c.as_str() == code)) {
            let wanted = fitting.first().map(|e| &e.codes);
            self.shrug(format!("code {code}, expected {wanted:?}"));
        }
        let evidence = &record["evidence"];
        let claims = |name: &str| evidence[name] == true;
        if !fitting.iter().any(|e| e.dispatched == claims("dispatch_started")) {
            self.lie(format!("D-1: dispatch_started is {}", evidence["dispatch_started"]));
        }
        if !fitting.iter().any(|e| e.complete == claims("response_complete")) {
            self.lie(format!("S-1: response_complete is {}", evidence["response_complete"]));
        }
        let head = claims("response_headers_received");
        if !fitting.iter().any(|e| e.head.is_none_or(|expected| expected == head)) {
            let what = format!("D-2: response_headers_received is {head}");
            if head { self.lie(what) } else { self.shrug(what) }
        }
        let reused = evidence["connection_reused"] == true;
        if self.seen.dispatches > 0 && self.seen.reused != reused {
            self.lie(format!("E-2: connection_reused is {reused}"));
        }
    }

    /// E-4: the hop's own member is there, well formed, with a registered error type, which says of an
    /// answer of the broker's own what the code on record says.
    fn proxy_status(&mut self, got: &Received, record: &Value) {
        let hops = got.field("proxy-status").map(fields::proxy_status);
        match hops {
            None => self.shrug("E-4: no Proxy-Status"),
            Some(Err(error)) => self.lie(format!("E-4: Proxy-Status: {error}")),
            Some(Ok(hops)) => {
                let code = record["error"]["code"].as_str().unwrap_or_default();
                let own = got.field(MARK).is_none();
                if own && hops.last().is_none_or(|hop| hop.error.is_none()) {
                    self.shrug("E-4: an answer of the broker's own without an error type");
                }
                for error in hops.into_iter().filter_map(|hop| hop.error) {
                    if !ERROR_TYPES.iter().any(|(name, _)| *name == error) {
                        self.lie(format!("RFC 9209: no such error type: {error}"));
                    } else if own && !fields::error_types(code).contains(&error.as_str()) {
                        self.lie(format!("RFC 9209: {error} beside the code {code}"));
                    }
                }
            }
        }
    }

    /// S-2, E-1: a settled answer arrives as it was; anything else is told in the envelope or cut.
    fn delivery(&mut self, got: &Received, record: &Value) {
        let settled = record["evidence"]["response_complete"] == true;
        let relayed = got.field(MARK).is_some();
        if settled && !(relayed && got.end == End::Whole) {
            self.shrug("R-1: a complete answer did not reach the caller whole");
        }
        if settled || relayed {
            return;
        }
        let retry = record["error"]["retry"].as_str().unwrap_or_default();
        if self.row.shape.pairing == Pairing::Grpc {
            return self.status_of_grpc(got, record, permits(retry));
        }
        if got.status < 500 {
            self.lie(format!("S-7: an answer of the broker's own with status {}", got.status));
        }
        if !Shape::bodied(&self.row.shape) {
            return;
        }
        self.words(&String::from_utf8_lossy(&got.content));
        let envelope: Option<Value> = serde_json::from_slice(&got.content).ok();
        match envelope {
            Some(envelope) if envelope["error"]["outcome"] == record["error"]["outcome"] => {}
            Some(envelope) => self.lie(format!("E-1: envelope and record differ: {envelope}")),
            None => self.shrug("E-1: no envelope"),
        }
        if !permits(retry) && got.field("x-should-retry") != Some("false") {
            self.lie("K-11: no x-should-retry: false beside an outcome that must not be repeated");
        }
    }

    /// E-3: words of libraries and of the system stay out of what callers get.
    fn words(&mut self, text: &str) {
        for word in ["os error", "rustls", "h2::", "hyper", "tokio", "Errno", "Os {"] {
            if text.contains(word) {
                self.lie(format!("E-3: {word:?} in an answer of the broker's own: {text}"));
            }
        }
    }

    /// E-1, K-11: an answer of the broker's own to a call of gRPC is a status alone, and UNAVAILABLE, which
    /// clients repeat, only where that is allowed.
    fn status_of_grpc(&mut self, got: &Received, record: &Value, permitted: bool) {
        self.words(got.field("grpc-message").unwrap_or_default());
        let alone = got.content.is_empty() && got.trailers.is_empty() && got.end == End::Whole;
        let status = got.field("grpc-status").and_then(|status| status.parse::<u8>().ok());
        let (200, true, Some(status)) = (got.status, alone, status) else {
            return self.shrug(format!("E-1: no status of gRPC alone in the head: {got:?}"));
        };
        let unknown = record["error"]["outcome"] == "unknown";
        match (permitted, status) {
            (true, 8 | 14) => {}
            (false, 2) if unknown => {}
            (false, 3 | 7 | 9 | 12 | 15 | 16) if !unknown => {}
            _ => self.lie(format!("K-11: status {status} of gRPC where repeats are {permitted}")),
        }
        if !permitted && got.field("grpc-retry-pushback-ms") != Some("-1") {
            self.lie("K-11: no pushback beside an outcome that must not be repeated");
        }
    }

    /// A broker that knows no outcomes: its status, framing and Proxy-Status are its claims.
    fn plain(&mut self) {
        if self.whole_relay().is_some() {
            return;
        }
        let own = self.received().filter(|got| got.field(MARK).is_none()).cloned();
        let proof = own.as_ref().and_then(|got| got.field("proxy-status")).is_some_and(|field| {
            fields::proxy_status(field).is_ok_and(|hops| {
                hops.into_iter()
                    .filter_map(|hop| hop.error)
                    .any(|error| ERROR_TYPES.iter().any(|(name, proves)| *proves && *name == error))
            })
        });
        let claimed = if proof { Outcome::NotAttempted } else { Outcome::Unknown };
        self.outcome(claimed, "answer");
    }
}

/// Whether an instruction permits an automatic repeat.
fn permits(retry: &str) -> bool {
    matches!(retry.parse(), Ok(Retry::Backoff | Retry::SameIdempotencyKey))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Contract, Method, cases};
    use std::sync::Arc;

    fn row(case: &str) -> Row {
        let case = cases().into_iter().find(|c| c.name == case).expect("a case of that name");
        let pairing = Pairing::Http1;
        let shape =
            Shape { pairing, method: Method::Post, tls: false, reused: false, streamed: false };
        Row { case: Arc::new(case), shape, contract: Contract::Plain }
    }

    fn received(status: u16, fields: &[(&str, &str)], content: &str) -> Answer {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Answer::Response(Received {
            status,
            fields: fields.iter().map(owned).collect(),
            content: content.into(),
            trailers: Vec::new(),
            end: End::Whole,
        })
    }

    fn observed(answer: Answer, dispatches: usize) -> Observed {
        let effects = dispatches;
        let (stray_bytes, altered, reused, record) = (0, None, false, None);
        let early_data = false;
        Observed { answer, dispatches, effects, stray_bytes, early_data, altered, reused, record }
    }

    fn kinds(case: &str, seen: &Observed, dialect: Dialect) -> Vec<Kind> {
        judge(&row(case), seen, dialect).into_iter().map(|finding| finding.kind).collect()
    }

    /// D-7, S-2: what a proxy without outcomes does wrong.
    #[test]
    fn plain_brokers_are_judged_by_status_framing_and_count() {
        let held = r#"{"result":"0123456789"}"#;
        let marked = [(MARK, "1")];
        let plain = |case, answer, count| kinds(case, &observed(answer, count), Dialect::Plain);
        assert_eq!(plain("length", received(200, &marked, held), 1), []);
        assert_eq!(plain("length", received(200, &marked, held), 2), [Kind::Lie]);
        assert_eq!(plain("length", received(200, &marked, "{\"result"), 1), [Kind::Lie]);
        assert_eq!(plain("length", received(502, &[], ""), 1), [Kind::Shrug]);
        assert_eq!(plain("closed_in_length", received(200, &marked, "{\"res"), 1), [Kind::Lie]);
        assert_eq!(plain("closed_in_length", received(502, &[], ""), 1), []);
        assert_eq!(plain("refused", received(502, &[], ""), 0), [Kind::Shrug]);
        let status = [("Proxy-Status", "p;error=connection_refused")];
        assert_eq!(plain("refused", received(502, &status, ""), 0), []);
        // Both that it is not so, and that the origin read from it.
        let claimed = plain("applied_closed", received(502, &status, ""), 1);
        assert_eq!(claimed, [Kind::Lie, Kind::Lie]);
    }

    fn affiant(outcome: &str, retry: &str, code: &str, dispatched: bool) -> Observed {
        let phase = if dispatched { "remote_execution" } else { "connection_setup" };
        let record = serde_json::json!({
            "error": { "outcome": outcome, "retry": retry, "code": code, "phase": phase },
            "evidence": {
                "dispatch_started": dispatched, "response_complete": false,
                "response_headers_received": false, "connection_reused": false,
            },
        });
        let said = format!("{outcome};phase={phase};retry={retry};code={code};invocation=\"x\"");
        let fields = [
            ("Affiant-Outcome", said.as_str()),
            ("Proxy-Status", "affiant;error=connection_terminated"),
            ("x-should-retry", "false"),
        ];
        let answer = received(502, &fields, &record.to_string());
        Observed { record: Some(record), ..observed(answer, 1) }
    }

    /// D-1, M-6: what Affiant itself would be convicted of.
    #[test]
    fn d_1_m_6_false_claims_on_record_are_lies() {
        let code = "REMOTE_OUTCOME_UNKNOWN";
        let judged = |seen: &Observed| kinds("applied_closed", seen, Dialect::Affiant);
        assert_eq!(judged(&affiant("unknown", "reconcile", code, true)), []);
        assert_eq!(judged(&affiant("unknown", "backoff", code, true)), [Kind::Lie]);
        assert_eq!(judged(&affiant("unknown", "never", code, true)), [Kind::Shrug]);
        // The wrong code, and the error type of another one.
        let other = judged(&affiant("unknown", "reconcile", "OK", true));
        assert_eq!(other, [Kind::Lie, Kind::Shrug]);
        assert!(judged(&affiant("committed", "never", "OK", true)).contains(&Kind::Lie));
        assert!(judged(&affiant("not_attempted", "backoff", code, false)).contains(&Kind::Lie));
        let mut differing = affiant("unknown", "reconcile", code, true);
        let other = affiant("rejected", "reconcile", code, true);
        differing.answer = other.answer;
        assert!(judged(&differing).contains(&Kind::Lie), "answer and record differ");
        let mut twice = affiant("unknown", "reconcile", code, true);
        twice.dispatches = 2;
        assert_eq!(judged(&twice), [Kind::Lie]);
    }
}
