//! What the caller was told, what is on record after the restart and what the far end counted.

use super::{Blow, Got, Stage};
use crate::case::MARK;
use crate::fields;
use crate::http::{Answer, End, Received};
use journal::contract::Outcome;
use serde_json::Value;

impl Stage {
    /// What was told, what is on record and what was counted agree. Gives the outcome on record.
    pub(super) fn compare(
        &self,
        path: &str,
        got: &Got,
        record: Option<&Value>,
        blow: Blow,
        findings: &mut Vec<String>,
    ) -> Option<Outcome> {
        let (count, effects) = (self.far.count(path), self.far.effects(path));
        if count > 1 {
            findings.push(format!("D-7: dispatched {count} times"));
        }
        let text = |pointer| record.and_then(|r| r.pointer(pointer)).and_then(Value::as_str);
        let outcome: Option<Outcome> = text("/error/outcome").and_then(|text| text.parse().ok());
        let fits = match outcome {
            None | Some(Outcome::NotAttempted) => count == 0,
            Some(Outcome::Committed | Outcome::Rejected) => effects == 1,
            Some(Outcome::Unknown) => true,
        };
        if !fits {
            findings
                .push(format!("J-7: {outcome:?} on record, {count} requests, {effects} effects"));
        }
        // M-3: what only the process knew permits nothing after it. Neither a POST nor a command is
        // known to be repeatable here.
        let permits = matches!(text("/error/retry"), Some("backoff" | "same_idempotency_key"));
        if outcome == Some(Outcome::Unknown) && permits {
            findings.push(format!("M-3: unknown, and on record {:?}", text("/error/retry")));
        }
        if record.is_some() && text("/state") != Some("settled") {
            findings.push(format!("J-2: after the restart it is {:?}", text("/state")));
        }
        if let Some(told) = got.told {
            let fits = match told {
                // What is on record may be less than what was true: after a failed sync nobody
                // knows which of the last events a restart will find.
                Outcome::NotAttempted => {
                    let weaker = matches!(outcome, None | Some(Outcome::NotAttempted))
                        || (blow != Blow::Kill && outcome == Some(Outcome::Unknown));
                    count == 0 && weaker
                }
                Outcome::Committed | Outcome::Rejected => outcome == Some(told),
                Outcome::Unknown => {
                    matches!(outcome, Some(Outcome::Unknown | Outcome::Committed))
                }
            };
            if !fits {
                findings.push(format!("J-7: told {told}, on record {outcome:?}, {count} requests"));
            }
        }
        outcome
    }
}

/// The outcome that a whole answer told at its end.
pub(crate) fn told(answer: &Answer) -> Option<Outcome> {
    let Answer::Response(got) = answer else { return None };
    let whole = |got: &Received| got.end == End::Whole;
    let field = got.trailer("affiant-outcome").or_else(|| {
        // A stream's head says `unknown` until its trailers say more.
        let streams = got.field("transfer-encoding").is_some() && got.field(MARK).is_some();
        got.field("affiant-outcome").filter(|_| !streams)
    });
    field.filter(|_| whole(got)).and_then(|field| fields::outcome(field).ok()).map(|s| s.outcome)
}
