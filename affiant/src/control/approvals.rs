//! Calls that wait for a person: what is asked, and the decision. Agents see their own; deciding is
//! for operators, so nobody approves a call of its own.

use super::operator::operators_only;
use super::{Caller, Problem, ProblemCode, State};
use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::header;
use journal::contract::{Gateway, InvocationId, Ruling};
use journal::{DecideError, Invocation};
use policy::{Obstacle, Policy, Screen};
use serde::Deserialize;
use serde_json::{Value, json};
use ssh_gateway::StoredCommand;
use std::sync::Arc;

/// Longest name of who decided.
const LONGEST_NAME: usize = 100;

/// A held call as records and policy have it: nothing of its content. `unsendable`: what it is bound
/// to has changed since the person was asked.
pub(crate) fn describe(held: &Invocation, policy: &Policy) -> Option<Value> {
    let approval = held.approval()?;
    let (accepted, bound) = (held.accepted(), held.preflight());
    let decided = approval.decided.as_ref();
    let (state, expires_at_ms) = match decided.map(|decided| decided.ruling) {
        None => ("pending", approval.requested.expires_at_ms),
        Some(Ruling::Approved { until_ms }) => ("approved", until_ms),
        Some(Ruling::Denied) => ("denied", approval.requested.expires_at_ms),
    };
    let obstacle = obstacle(held, policy);
    let state = if obstacle.is_some() { "unsendable" } else { state };
    Some(json!({
        "invocation_id": held.id(),
        "state": state,
        "unsendable": obstacle.map(|obstacle| obstacle.to_string()),
        "gateway": accepted.gateway,
        "agent": accepted.agent,
        "action": accepted.action,
        "target": accepted.target,
        "route": bound.and_then(|bound| bound.route.clone()),
        "policy_version": bound.map(|bound| bound.policy_version),
        "credential": bound.and_then(|bound| bound.credential.clone()),
        "fingerprint": approval.requested.fingerprint,
        "requested_at_ms": approval.requested_at_ms,
        "expires_at_ms": expires_at_ms,
        "decided_by": decided.map(|decided| decided.by.clone()),
    }))
}

/// What keeps a call from being sent, as long as it is held.
fn obstacle(held: &Invocation, policy: &Policy) -> Option<Obstacle> {
    let bound = held.preflight().filter(|_| held.is_held())?;
    policy.obstacle(held.accepted().agent.as_deref(), bound)
}

/// The same with the request itself, without secrets, for who decides.
pub(crate) fn describe_whole(state: &State, held: &Invocation) -> Option<Value> {
    let mut value = describe(held, &state.policy)?;
    let shown =
        state.journal.shown(held).map_err(|error| error.to_string()).and_then(|text| {
            serde_json::from_slice::<Value>(&text).map_err(|error| error.to_string())
        });
    let (name, shown) = match shown {
        Ok(shown) => ("request", shown),
        Err(error) => ("request_error", Value::from(error)),
    };
    let fields = value.as_object_mut()?;
    fields.insert(name.to_owned(), shown);
    fields.insert("denied_before".to_owned(), state.journal.denied_before(held).into());
    Some(value)
}

/// `GET /v1/approvals`: what waits, oldest first.
pub(super) async fn list(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let held = state.journal.held();
    let approvals: Vec<Value> = match &caller {
        Caller::Operator => held.iter().filter_map(|held| describe_whole(&state, held)).collect(),
        Caller::Agent(agent) => held
            .iter()
            .filter(|held| held.accepted().agent.as_ref() == Some(agent))
            .filter_map(|held| describe(held, &state.policy))
            .collect(),
    };
    Json(json!({ "approvals": approvals })).into_response()
}

/// `GET /v1/approvals/{id}/request`: all of a request that is too long for the list, without secrets.
pub(super) async fn request(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let none = || Problem::new(ProblemCode::NoSuchApproval, DecideError::NotHeld.to_string());
    let id: InvocationId = id.parse().map_err(|_| none())?;
    let held = state.journal.held().into_iter().find(|held| held.id() == id).ok_or_else(none)?;
    let stored =
        journal::action::stored(&state.journal, id).await.map_err(|error| match error {
            journal::result::Error::NotKept => {
                Problem::new(ProblemCode::NoResult, "all of this request is in the list")
            }
            journal::result::Error::Locked => {
                Problem::new(ProblemCode::VaultLocked, error.to_string())
            }
            error @ (journal::result::Error::NotFound
            | journal::result::Error::Incomplete
            | journal::result::Error::Expired
            | journal::result::Error::Damaged
            | journal::result::Error::Read(_)) => {
                Problem::new(ProblemCode::Internal, error.to_string())
            }
        })?;
    let screen = state.policy.screen();
    let text = match held.accepted().gateway {
        Gateway::Http => whole(&screen, &stored.head, &stored.content),
        Gateway::Ssh => whole_command(&screen, &stored.head).ok_or_else(|| {
            Problem::new(ProblemCode::Internal, "the stored command can't be read".to_owned())
        })?,
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// A request as text: its line, its fields, and its content.
fn whole(screen: &Screen, head: &[u8], content: &[u8]) -> String {
    let mut text = String::new();
    let mut types = Vec::new();
    for (n, line) in head.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| *byte == b':').filter(|_| n > 0);
        match colon.and_then(|colon| line.split_at_checked(colon)) {
            Some((name, value)) => {
                let value = value.get(1..).unwrap_or_default().trim_ascii();
                if name.eq_ignore_ascii_case(b"content-type") {
                    types.push(value);
                }
                let shown = screen.header(name, value).text;
                text.push_str(&format!("{}: {shown}\n", String::from_utf8_lossy(name)));
            }
            None if line.is_empty() => {}
            None => text.push_str(&format!("{}\n", screen.target(line).text)),
        }
    }
    text.push('\n');
    let content_type = if let [only] = types[..] { Some(only) } else { None };
    match std::str::from_utf8(content) {
        Ok(content) => text.push_str(&screen.content(content_type, content).text),
        Err(_) => text.push_str(&format!("({} bytes that are no text)", content.len())),
    }
    text
}

/// A command as text: its length, its variables, and itself. No value can look like a line of its own.
fn whole_command(screen: &Screen, head: &[u8]) -> Option<String> {
    let StoredCommand { command, variables } = StoredCommand::read(head)?;
    let mut text = format!("command of {} bytes\n", command.len());
    for (name, value) in &variables {
        let shown = screen.header(name.as_bytes(), value.as_bytes()).text;
        text.push_str(&format!("variable {}\n", json!([name, shown])));
    }
    text.push('\n');
    text.push_str(&screen.command(&command).text);
    Some(text)
}

/// What may stand in the body of a decision.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    /// Who decides, for the record.
    by: Option<String>,
}

/// `POST /v1/approvals/{id}/approve`.
pub(super) async fn approve(
    state: Extract<Arc<State>>,
    caller: Extension<Caller>,
    id: Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    decide(state, caller, id, &body, true).await
}

/// `POST /v1/approvals/{id}/deny`.
pub(super) async fn deny(
    state: Extract<Arc<State>>,
    caller: Extension<Caller>,
    id: Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    decide(state, caller, id, &body, false).await
}

async fn decide(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: &[u8],
    approve: bool,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let invalid = |error: String| Problem::new(ProblemCode::InvalidParameter, error);
    let decision: Decision = match body {
        [] => Decision::default(),
        text => serde_json::from_slice(text).map_err(|error| invalid(error.to_string()))?,
    };
    let by = decision.by.unwrap_or_else(|| "operator".to_owned());
    if by.is_empty() || by.len() > LONGEST_NAME || by.chars().any(char::is_control) {
        return Err(invalid(format!("`by` is a text of 1 to {LONGEST_NAME} characters")));
    }
    let none = || Problem::new(ProblemCode::NoSuchApproval, DecideError::NotHeld.to_string());
    let id: InvocationId = id.parse().map_err(|_| none())?;
    // To deny it is as good as ever; to approve it would say what is not so.
    let held = state.journal.held().into_iter().find(|held| approve && held.id() == id);
    if let Some(obstacle) = held.and_then(|held| obstacle(&held, &state.policy)) {
        let detail = format!("{id} can't be sent, so there is nothing to approve: {obstacle}");
        return Err(Problem::new(ProblemCode::Unsendable, detail));
    }
    let decided = state.journal.decide(id, approve, &by).await.map_err(|error| match &error {
        DecideError::NotHeld => none(),
        DecideError::Decided(_) => Problem::new(ProblemCode::AlreadyDecided, error.to_string()),
        DecideError::Expired => Problem::new(ProblemCode::ApprovalExpired, error.to_string()),
        DecideError::Append(cause) => {
            Problem::new(ProblemCode::Internal, format!("{error}: {cause}"))
        }
    })?;
    Ok(Json(describe(&decided, &state.policy)).into_response())
}
