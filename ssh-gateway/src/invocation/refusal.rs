//! Calls that end before dispatch: what they are told, and their record.

use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::respond;
use journal::contract::{
    Accepted, Code, Ended, Envelope, Evidence, InvocationId, Retry, Spent, Verdict,
};
use journal::{Admission, Call, Guard};
use policy::Denial;

/// A refusal: what it says, and which field can be corrected.
pub(crate) struct Refusal {
    verdict: Verdict,
    message: String,
    field: Option<String>,
    not_before_ms: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(verdict: Verdict, message: impl Into<String>, field: Option<&str>) -> Self {
        let (message, field) = (message.into(), field.map(str::to_owned));
        Self { verdict, message, field, not_before_ms: None }
    }

    pub(super) fn into_ended(self) -> Ended {
        let Self { verdict, message, field, not_before_ms } = self;
        Ended { verdict, message, field, not_before_ms, observation: None }
    }
}

impl From<Spent> for Refusal {
    fn from(spent: Spent) -> Self {
        Self {
            verdict: Verdict::budget_spent(),
            message: sentence(&spent.to_string()),
            field: Some(format!("budget.{}", spent.key)),
            not_before_ms: Some(spent.not_before_ms),
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let verdict = denial.verdict();
        let (message, field) = (denial.message, Some(denial.field));
        Self { verdict, message, field, not_before_ms: None }
    }
}

/// A refusal with a record of its own.
pub(crate) async fn refuse(
    shared: &Shared,
    downstream: Downstream,
    accepted: Accepted,
    refusal: Refusal,
) {
    let envelope = record_refusal(shared, accepted, refusal.into_ended()).await;
    downstream.fail(&envelope).await;
}

/// Records a call that ends where it began.
pub(crate) async fn record_refusal(shared: &Shared, accepted: Accepted, ended: Ended) -> Envelope {
    let (verdict, message) = (ended.verdict, ended.message.clone());
    let journal = &shared.journal;
    let admitted = match accepted.agent {
        None => shared.strangers.admit(journal, accepted),
        Some(_) => match journal.admit(journal.new_id(), accepted, Guard::default()) {
            Ok(Admission::New(call)) => Ok(Some(call)),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        },
    };
    match admitted {
        Ok(Some(mut call)) => match call.end(ended).await {
            Ok(_settled) => return call.invocation().envelope(),
            Err(error) => tracing::error!(%error, "a refusal is not on record"),
        },
        Ok(None) => tracing::debug!("a refusal is counted, and not on record"),
        Err(error) => tracing::error!(%error, "a refusal is not on record"),
    }
    respond::unrecorded(journal.new_id(), verdict, &message, Evidence::default())
}

pub(super) async fn unavailable(
    downstream: Downstream,
    id: InvocationId,
    error: &journal::append::Error,
) {
    tracing::error!(%id, %error, "the journal can't take a call");
    let verdict = Verdict::refused(Retry::Backoff, Code::JournalUnavailable);
    let message = "The journal can't take the record of this command, so it was not sent.";
    let envelope = respond::unrecorded(id, verdict, message, Evidence::default());
    downstream.fail(&envelope).await;
}

/// Ends a call that was not dispatched.
pub(crate) async fn end_refused(mut call: Call, downstream: Downstream, refusal: Refusal) {
    let (verdict, message) = (refusal.verdict, refusal.message.clone());
    let envelope = match call.end(refusal.into_ended()).await {
        Ok(_settled) => call.invocation().envelope(),
        Err(error) => {
            tracing::error!(id = %call.id(), %error, "the end of a call is not on record");
            respond::unrecorded(call.id(), verdict, &message, call.invocation().evidence())
        }
    };
    downstream.fail(&envelope).await;
}

/// A message that begins with a capital and ends with a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(Some('.')).collect()
}

pub(crate) fn not_recorded(error: &journal::append::Error) -> Refusal {
    tracing::error!(%error, "an event before dispatch is not on record");
    let verdict = Verdict::not_injected(Retry::Backoff, Code::JournalUnavailable);
    Refusal::new(verdict, "The journal can't take the record, so nothing was sent.", None)
}
