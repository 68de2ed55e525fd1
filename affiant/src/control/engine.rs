//! Acting on invocations: retry, an operator's statement, and what waits for a person.

use super::answer::{Problem, ProblemCode};
use super::invocations::{describe, find, internal, invalid};
use super::operator::operators_only;
use super::{Caller, State};
use crate::reconciler;
use axum::body::Bytes;
use axum::extract::{Path, Query, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use journal::contract::{Code, Decision, ResultCommitted, Retry, Source, Verdict};
use journal::{Invocation, Journal, Standing};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Longest note of an operator.
const MAX_NOTE: usize = 1024;

/// The members that a standing adds to an answer.
pub(super) fn standing_members(standing: &Standing) -> Value {
    json!({
        "decision": standing.decision,
        "outcome": standing.verdict.outcome(),
        "retry": standing.verdict.retry(),
        "code": standing.verdict.code(),
        "not_before_ms": standing.not_before_ms,
        "decided_by": standing.by,
        "attempts": standing.attempts,
        "max_attempts": standing.max_attempts,
    })
}

/// The first attempt of the action that an invocation of the caller belongs to.
fn find_first(journal: &Journal, caller: &Caller, id: &str) -> Result<Invocation, Problem> {
    let found = find(journal, caller, id)?;
    journal.first_attempt(found).map_err(|error| internal(&error))
}

/// `GET /v1/invocations/{id}/decision`: rule T-2 on the record, budget and expiry included.
pub(super) async fn decision(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let first = find_first(&state.journal, &caller, &id)?;
    if !first.is_settled() && !first.is_held() {
        let detail = "the call is under way: ask again with ?wait=10s on the invocation itself";
        return Err(Problem::new(ProblemCode::NotSettled, detail));
    }
    let standing = state.journal.standing(&first).map_err(|error| internal(&error))?;
    let mut value = standing_members(&standing);
    if let Some(members) = value.as_object_mut() {
        members.insert("invocation_id".to_owned(), json!(first.id()));
    }
    Ok(Json(value).into_response())
}

/// `POST /v1/invocations/{id}/retry`: one more attempt, if the instruction allows it (contract T-2).
pub(super) async fn retry(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let first = find_first(&state.journal, &caller, &id)?;
    let engines = state.engines.get().cloned().ok_or_else(no_server)?;
    let holder = match &caller {
        Caller::Operator => "operator".to_owned(),
        Caller::Agent(agent) => format!("agent {agent}"),
    };
    let first_id = first.id();
    // Apart: an attempt goes on to its end when its caller goes away.
    let attempt = tokio::spawn(async move { engines.retry(&first, &holder).await });
    let attempt = attempt.await.map_err(|error| internal(&error))?.map_err(|e| refused(&e))?;
    let first = find(&state.journal, &caller, &first_id.to_string())?;
    let standing = state.journal.standing(&first).map_err(|error| internal(&error))?;
    let body = json!({
        "invocation_id": first_id,
        "attempt": describe(&attempt, &state.policy),
        "standing": standing_members(&standing),
    });
    Ok(Json(body).into_response())
}

fn no_server() -> Problem {
    Problem::new(ProblemCode::NoServer, "no server runs on this home: start `affiant serve`")
}

/// Why nothing was sent.
fn refused(error: &journal::action::Error) -> Problem {
    use journal::action::Error;
    let code = match error {
        Error::NotAllowed(standing) => {
            return Problem::new(ProblemCode::RetryNotAllowed, error.to_string())
                .with(standing_members(standing));
        }
        Error::TooEarly { .. } => ProblemCode::RetryTooEarly,
        Error::UnderWay(_) | Error::Repeated(_) | Error::Held { .. } => ProblemCode::RetryUnderWay,
        Error::NotFound => ProblemCode::NoSuchInvocation,
        Error::NotStored => ProblemCode::RequestNotStored,
        Error::PolicyChanged => ProblemCode::PolicyChanged,
        Error::Stored(journal::result::Error::Locked) => ProblemCode::VaultLocked,
        Error::Stored(journal::result::Error::Expired) => ProblemCode::ResultExpired,
        Error::Stored(_) | Error::Journal(_) | Error::Read(_) => return internal(error),
    };
    Problem::new(code, error.to_string())
}

/// `POST /v1/invocations/{id}/reconcile`: asks the remote what happened (contract K-7).
pub(super) async fn reconcile(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let first = find_first(&state.journal, &caller, &id)?;
    let engines = state.engines.get().cloned().ok_or_else(no_server)?;
    let first_id = first.id();
    let asked = tokio::spawn(async move { engines.reconcile(&first).await });
    let asked = asked.await.map_err(|error| internal(&error))?.map_err(|e| not_asked(&e))?;
    let first = find(&state.journal, &caller, &first_id.to_string())?;
    let standing = state.journal.standing(&first).map_err(|error| internal(&error))?;
    let body = json!({
        "invocation_id": first_id,
        "shows": asked.shows,
        "query": describe(&asked.query, &state.policy),
        "standing": standing_members(&standing),
    });
    Ok(Json(body).into_response())
}

/// Why nothing was asked.
fn not_asked(error: &journal::action::QueryError) -> Problem {
    use journal::action::QueryError as Error;
    let code = match error {
        Error::NotInDoubt => ProblemCode::NotInDoubt,
        Error::UnderWay(_) => ProblemCode::RetryUnderWay,
        Error::NoRule | Error::Nameless(_) | Error::Malformed => ProblemCode::NotReconcilable,
        Error::NotFound => ProblemCode::NoSuchInvocation,
        Error::Stored(journal::result::Error::Locked) => ProblemCode::VaultLocked,
        Error::Stored(journal::result::Error::Expired) => ProblemCode::ResultExpired,
        Error::Stored(_) | Error::Journal(_) | Error::Read(_) => return internal(error),
    };
    Problem::new(code, error.to_string())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    outcome: String,
    note: String,
}

/// `POST /v1/invocations/{id}/attest`: an operator states what happened (contract J-3, J-5). It
/// settles every attempt of the action that is in doubt, and nothing else.
pub(super) async fn attest(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let statement: Statement =
        serde_json::from_slice(&body).map_err(|error| invalid("body", error))?;
    let verdict = match statement.outcome.as_str() {
        "committed" => Verdict::committed(Retry::Never, Code::Ok),
        "rejected" => Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected),
        _ => return Err(invalid("outcome", "committed or rejected")),
    };
    let note = statement.note.trim();
    if note.is_empty() || note.len() > MAX_NOTE || note.chars().any(char::is_control) {
        return Err(invalid("note", "one line of 1 to 1024 bytes that says how you know"));
    }
    let first = find_first(&state.journal, &caller, &id)?;
    let late = ResultCommitted { note: Some(note.to_owned()), ..ResultCommitted::of(verdict) };
    let retries = state.journal.retries(&first).map_err(|error| internal(&error))?;
    let attempts: Vec<_> = std::iter::once(&first).chain(&retries).collect();
    let settled = state.journal.settle_doubt(&attempts, Source::OperatorAttested, &late).await;
    if !settled.map_err(|error| internal(&error))? {
        let detail = "only an unknown outcome can be stated; this one is on record already";
        return Err(Problem::new(ProblemCode::NotInDoubt, detail));
    }
    let first = find(&state.journal, &caller, &first.id().to_string())?;
    Ok(Json(describe(&first, &state.policy)).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitingQuery {
    limit: Option<usize>,
}

/// `GET /v1/waiting`: calls in doubt whose decision is `RECONCILE`, newest first.
pub(super) async fn waiting(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<WaitingQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| invalid("query", error.body_text()))?;
    let limit = match query.limit.unwrap_or(100) {
        limit @ 1..=500 => limit,
        _ => return Err(invalid("limit", "from 1 to 500")),
    };
    let agent = match caller {
        Caller::Operator => None,
        Caller::Agent(agent) => Some(agent),
    };
    let (journal, engines) = (state.journal.clone(), state.engines.get().cloned());
    let found = tokio::task::spawn_blocking(move || {
        // What the broker still asks about by itself waits for nobody else.
        let waits = |first: &Invocation| {
            !engines.as_ref().is_some_and(|engines| reconciler::goes_on(&journal, engines, first))
        };
        Ok::<_, journal::read::Error>(in_doubt(&journal, agent.as_deref(), limit, waits)?.found)
    });
    let found = found.await.map_err(|error| internal(&error))?.map_err(|e| internal(&e))?;
    let invocations: Vec<Value> = found
        .iter()
        .map(|(invocation, standing)| {
            let mut value = describe(invocation, &state.policy);
            if let Some(members) = value.as_object_mut() {
                members.insert("standing".to_owned(), standing_members(standing));
            }
            value
        })
        .collect();
    Ok(Json(json!({ "invocations": invocations })).into_response())
}

/// Whether a call is a passage that nobody looks into: in doubt by nature, with nothing to find out.
fn is_passage(action: &str) -> bool {
    matches!(action, "CONNECT" | "relay") || action.starts_with("forward:")
}

/// A look at what is in doubt.
pub(crate) struct InDoubt {
    /// What was wanted of it.
    pub(crate) found: Vec<(Invocation, Standing)>,
    /// How many invocations were looked at.
    pub(crate) looked_at: usize,
}

/// First attempts of actions in doubt whose decision is `RECONCILE` and that are wanted, newest first,
/// so many at most.
pub(crate) fn in_doubt(
    journal: &Journal,
    agent: Option<&str>,
    limit: usize,
    wanted: impl Fn(&Invocation) -> bool,
) -> Result<InDoubt, journal::read::Error> {
    let mut seen = HashSet::new();
    let mut look = InDoubt { found: Vec::new(), looked_at: 0 };
    journal.in_doubt(|invocation| {
        look.looked_at += 1;
        let accepted = invocation.accepted();
        let ours = agent.is_none_or(|agent| accepted.agent.as_deref() == Some(agent));
        if is_passage(&accepted.action) || !ours {
            return Ok(ControlFlow::Continue(()));
        }
        // An attempt in doubt is listed by the first attempt of its action.
        let first = journal.first_attempt(invocation)?;
        if seen.insert(first.id()) {
            let standing = journal.standing(&first)?;
            if standing.decision == Decision::Reconcile && wanted(&first) {
                look.found.push((first, standing));
            }
        }
        Ok(if look.found.len() < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        })
    })?;
    Ok(look)
}
