//! The audit of a soak: every call as its caller saw it, as it is on record and as it was counted.

use super::traffic::Made;
use super::{Soak, Soaked};
use crate::http::{Answer, Request};
use crate::peer::Counts;
use crate::subject::{Error, Serving};
use journal::contract::Outcome;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// Outcome and state of records, by id.
type Records = HashMap<String, (String, String)>;

/// Everything that was done and counted since the soak began.
#[derive(Default)]
pub(super) struct Books {
    made: Vec<Made>,
    counts: HashMap<String, Counts>,
}

impl Books {
    fn count(&self, path: &str) -> Counts {
        self.counts.get(path).copied().unwrap_or_default()
    }

    fn add(&mut self, counts: HashMap<String, Counts>) {
        for (path, more) in counts {
            let all = self.counts.entry(path).or_default();
            all.requests += more.requests;
            all.effects += more.effects;
        }
    }
}

impl Soak {
    /// Compares the calls of a round with records and counts.
    pub(super) fn audit(
        &mut self,
        serving: &Serving,
        made: Vec<Made>,
        soaked: &mut Soaked,
    ) -> Result<(), Error> {
        soaked.rounds += 1;
        self.take_counts();
        let records = self.records(serving, made.len())?;
        for call in &made {
            soaked.calls += 1;
            soaked.told += usize::from(call.told.is_some());
            self.compare(call, &records, soaked);
        }
        self.books.made.extend(made);
        Ok(())
    }

    /// The final audit: every call since the beginning once more, whatever came after it, and nothing
    /// counted that nobody asked for.
    pub(super) fn audit_all(
        &mut self,
        serving: &Serving,
        soaked: &mut Soaked,
    ) -> Result<(), Error> {
        self.take_counts();
        let records = self.records(serving, usize::MAX)?;
        let mut unasked: HashMap<&str, Counts> =
            self.books.counts.iter().map(|(path, count)| (path.as_str(), *count)).collect();
        for call in &self.books.made {
            self.compare(call, &records, soaked);
            unasked.remove(call.path.as_str());
            let outcome = records.get(&call.id).map_or("none", |(outcome, _)| outcome);
            *soaked.outcomes.entry(outcome.to_owned()).or_default() += 1;
        }
        let unasked = unasked.into_iter();
        soaked.findings.extend(unasked.map(|(path, count)| format!("{path}: {count:?}, unasked")));
        soaked.on_record = records.len();
        Ok(())
    }

    fn take_counts(&mut self) {
        self.books.add(self.clear.take_counts());
        self.books.add(self.secure.take_counts());
        self.books.add(self.target.take_counts());
    }

    fn compare(&self, call: &Made, records: &Records, soaked: &mut Soaked) {
        let (count, record) = (self.books.count(&call.path), records.get(&call.id));
        let lost = call.told.is_some_and(|told| told != Outcome::NotAttempted);
        soaked.lost += usize::from(record.is_none() && lost);
        if let Some(what) = disagreement(call, count, record) {
            let Made { id, path, told } = call;
            soaked.findings.push(format!("{path} {id}: {what}; told {told:?}, {count:?}"));
        }
    }

    /// Outcome and state of the newest records, so many at least.
    fn records(&self, serving: &Serving, wanted: usize) -> Result<Records, Error> {
        let caller = self.home.caller(serving.http, Duration::from_secs(30));
        let mut records = HashMap::new();
        let mut cursor = String::new();
        // Calls that were cut before they were admitted have no record, so the end may come first.
        while records.len() < wanted.saturating_add(500) {
            let request = Request {
                method: "GET",
                tls: false,
                authority: "affiant.internal".to_owned(),
                path: format!("/v1/invocations?limit=500{cursor}"),
                fields: Vec::new(),
                content: None,
                early: None,
            };
            let page: Value = match self.runtime.block_on(caller.call(&request)) {
                Answer::Response(got) if got.status == 200 => serde_json::from_slice(&got.content)
                    .map_err(|error| Error::Unexpected(format!("the list: {error}")))?,
                other @ (Answer::Response(_) | Answer::Nothing(_)) => {
                    return Err(Error::Unexpected(format!("the list: {other:?}")));
                }
            };
            let all = page.get("invocations").and_then(Value::as_array);
            for record in all.into_iter().flatten() {
                let text = |pointer| {
                    record.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                records.insert(text("/invocation_id"), (text("/error/outcome"), text("/state")));
            }
            match page.get("next").and_then(Value::as_str) {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        Ok(records)
    }
}

/// What does not agree about a call, if anything.
fn disagreement(call: &Made, count: Counts, record: Option<&(String, String)>) -> Option<String> {
    if count.requests > 1 {
        return Some("D-7: dispatched again".to_owned());
    }
    let Some((outcome, state)) = record else {
        let nothing = count.requests == 0;
        return (!nothing).then(|| "J-7: dispatched, and not on record".to_owned());
    };
    if state != "settled" {
        return Some(format!("J-2: {state} after a restart"));
    }
    let Ok(outcome) = outcome.parse::<Outcome>() else {
        return Some(format!("M-2: outcome {outcome}"));
    };
    let fits = match outcome {
        Outcome::NotAttempted => count.requests == 0,
        Outcome::Committed | Outcome::Rejected => count.effects == 1,
        Outcome::Unknown => true,
    };
    if !fits {
        return Some(format!("J-7: {outcome} on record"));
    }
    // A told `unknown` may have been settled since: by the broker itself, never by a guess.
    let fits = match call.told {
        None | Some(Outcome::Unknown) => true,
        Some(told) => told == outcome,
    };
    (!fits).then(|| format!("J-7: {outcome} on record"))
}
