//! Invocations: list, state, events, stored result, decision, acknowledgement.

use super::{Caller, Problem, ProblemCode, State};
use axum::extract::{Path, Query, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{HeaderMap, StatusCode};
use journal::contract::{
    Body, Confirmation, Delivered, Event, Gateway, InvocationId, Sequence, Source, SshEnd,
};
use journal::projection::{Delivery, Invocation};
use journal::{Filter, Journal, Stream};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Longest `?wait=`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Problem {
    tracing::error!("the journal could not be read: {error}");
    Problem::new(ProblemCode::Internal, format!("the journal could not be read: {error}"))
}

/// Reads the log on a thread of its own: the disk may take its time, and other calls do not wait for it.
async fn apart<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(read).await.map_err(|error| internal(&error))?
}

/// The invocation, if the caller may see it. What belongs to another agent is not there.
pub(super) fn find(journal: &Journal, caller: &Caller, id: &str) -> Result<Invocation, Problem> {
    let none = || {
        Problem::new(ProblemCode::NoSuchInvocation, "there is no such invocation of this caller")
    };
    let id: InvocationId = id.parse().map_err(|_| none())?;
    let invocation = journal.invocation(id).map_err(|e| internal(&e))?.ok_or_else(none)?;
    match caller {
        Caller::Operator => Ok(invocation),
        Caller::Agent(agent) if invocation.accepted().agent.as_ref() == Some(agent) => {
            Ok(invocation)
        }
        Caller::Agent(_) => Err(none()),
    }
}

/// Envelope and circumstances of one invocation.
pub(super) fn describe(invocation: &Invocation, policy: &policy::Policy) -> Value {
    let accepted = invocation.accepted();
    let mut value = json!(invocation.envelope());
    let more = json!({
        "state": match (invocation.is_settled(), invocation.is_held()) {
            (true, _) => "settled",
            (false, true) => "held",
            (false, false) => "in_flight",
        },
        "gateway": accepted.gateway,
        "agent": accepted.agent,
        "action": accepted.action,
        "target": accepted.target,
        "accepted_at_ms": invocation.accepted_at_ms(),
        "ended_at_ms": invocation.ended_at_ms(),
        "first_sequence": invocation.first_sequence(),
        "last_sequence": invocation.last_sequence(),
        "policy_version": invocation.preflight().map(|preflight| preflight.policy_version),
        "would_be_denied": invocation.preflight().and_then(|preflight| preflight.would_deny),
        "route": invocation.preflight().and_then(|preflight| preflight.route.clone()),
        "credential": invocation.preflight().and_then(|preflight| preflight.credential.clone()),
        "delivery": match invocation.delivery() {
            Delivery::Pending => "pending",
            Delivery::Failed => "failed",
            Delivery::Delivered(_) => "delivered",
        },
        "approval": super::approvals::describe(invocation, policy),
        "note": invocation.note(),
        "members": invocation.members(),
        "links": {
            "earlier": accepted.link,
            "retries": invocation.retries(),
            "job": invocation.job(),
            "observed_by": invocation.observed_by(),
        },
    });
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    outcome: Option<String>,
    phase: Option<String>,
    code: Option<String>,
    not_code: Option<String>,
    agent: Option<String>,
    gateway: Option<String>,
    #[serde(default)]
    would_be_denied: bool,
    since: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

pub(super) fn invalid(name: &str, error: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemCode::InvalidParameter, format!("parameter `{name}`: {error}"))
}

fn parse<T>(name: &str, value: Option<&str>) -> Result<Option<T>, Problem>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    value.map(|text| text.parse().map_err(|error| invalid(name, error))).transpose()
}

/// `GET /v1/invocations`: newest first.
pub(super) async fn list(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| invalid("query", error.body_text()))?;
    let agent = match caller {
        Caller::Operator => query.agent,
        Caller::Agent(agent) => Some(agent),
    };
    let filter = Filter {
        agent,
        outcome: parse("outcome", query.outcome.as_deref())?,
        phase: parse("phase", query.phase.as_deref())?,
        code: parse("code", query.code.as_deref())?,
        not_code: parse("not_code", query.not_code.as_deref())?,
        gateway: parse("gateway", query.gateway.as_deref())?,
        would_be_denied: query.would_be_denied,
        since_ms: query.since.as_deref().map(since).transpose()?,
        limit: match query.limit.map_or(Ok(50), |limit| limit.parse()) {
            Ok(limit @ 1..=500) => limit,
            Ok(_) | Err(_) => return Err(invalid("limit", "from 1 to 500")),
        },
        cursor: query.cursor,
    };
    let journal = state.journal.clone();
    let page = apart(move || {
        journal.list(&filter).map_err(|error| {
            let is_cursor = matches!(error, journal::read::Error::Cursor);
            if is_cursor { invalid("cursor", error) } else { internal(&error) }
        })
    });
    let page = page.await?;
    let invocations: Vec<Value> =
        page.invocations.iter().map(|i| describe(i, &state.policy)).collect();
    Ok(Json(json!({ "invocations": invocations, "next": page.next })).into_response())
}

/// RFC 3339, or an age: a number with `s`, `m`, `h`, `d` or `w`.
fn since(text: &str) -> Result<u64, Problem> {
    if let Some(age) = duration(text) {
        let age = time::Duration::try_from(age).ok();
        let at = age.and_then(|age| time::OffsetDateTime::now_utc().checked_sub(age));
        return at.and_then(millis).ok_or_else(|| invalid("since", "too long ago"));
    }
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(text, format)
        .ok()
        .and_then(millis)
        .ok_or_else(|| invalid("since", "give an RFC 3339 time, or an age such as 15m or 2d"))
}

fn millis(at: time::OffsetDateTime) -> Option<u64> {
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

fn duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// The events of an invocation.
async fn recorded(state: &State, id: InvocationId) -> Result<Vec<(Sequence, Event)>, Problem> {
    let journal = state.journal.clone();
    apart(move || journal.events(id).map_err(|error| internal(&error))).await
}

/// What the gateways noted of an invocation, in the order of the record.
async fn notes(state: &State, id: InvocationId) -> Result<Vec<Value>, Problem> {
    let events = recorded(state, id).await?;
    let noted = events.iter().filter_map(|(_, event)| {
        let Body::Noted(note) = &event.body else { return None };
        Some(json!({ "name": note.name, "detail": note.detail }))
    });
    Ok(noted.collect())
}

#[derive(Debug, Deserialize)]
pub(super) struct ShowQuery {
    wait: Option<String>,
}

/// `GET /v1/invocations/{id}`, with its notes; `?wait=10s` waits for settlement.
pub(super) async fn show(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ShowQuery>,
) -> Result<Response, Problem> {
    let mut invocation = find(&state.journal, &caller, &id)?;
    if let Some(wait) = query.wait {
        let wait = duration(&wait).ok_or_else(|| invalid("wait", "give a time such as 10s"))?;
        if !invocation.is_settled() {
            let settled = state.journal.changed(invocation.id());
            // Not settling in time is an answer as well: the state says so.
            let in_time = tokio::time::timeout(wait.min(LONGEST_WAIT), settled).await.is_ok();
            tracing::debug!("waited for {}: {in_time}", invocation.id());
            invocation = find(&state.journal, &caller, &id)?;
        }
    }
    let mut value = describe(&invocation, &state.policy);
    if let Some(object) = value.as_object_mut() {
        object.insert("notes".to_owned(), json!(notes(&state, invocation.id()).await?));
    }
    Ok(Json(value).into_response())
}

/// `GET /v1/invocations/{id}/events`.
pub(super) async fn events(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let invocation = find(&state.journal, &caller, &id)?;
    let events = recorded(&state, invocation.id()).await?;
    let events: Vec<Value> = events
        .iter()
        .map(|(sequence, event)| {
            let mut value = json!(event);
            if let Some(object) = value.as_object_mut() {
                object.insert("sequence".to_owned(), json!(sequence));
            }
            value
        })
        .collect();
    Ok(Json(json!({ "invocation_id": invocation.id(), "events": events })).into_response())
}

/// `POST /v1/invocations/{id}/ack`: the caller confirms receipt (contract R-5).
pub(super) async fn ack(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let invocation = find(&state.journal, &caller, &id)?;
    if matches!(invocation.delivery(), Delivery::Delivered(_)) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let body = Body::ResultDelivered(Delivered { confirmation: Confirmation::Acknowledged });
    match state.journal.record(invocation.id(), Source::TransportObserved, body) {
        Ok(ticket) => {
            ticket.durable().await.map_err(|e| internal(&e))?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Err(journal::append::Error::Illegal(_)) => Err(Problem::new(
            ProblemCode::NotSettled,
            "there is no settled result whose receipt could be confirmed",
        )),
        Err(error) => Err(internal(&error)),
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ResultQuery {
    stream: Option<String>,
}

/// The stored head of an HTTP response, as the proxy wrote it.
#[derive(Debug, Deserialize)]
struct StoredHead {
    status: u16,
    headers: Vec<(String, String)>,
}

/// `GET /v1/invocations/{id}/result`: the stored response with its status, its selected headers and
/// its content; `Range: bytes=N-` resumes. For SSH: stdout, or stderr with `?stream=stderr`; each has
/// a range of its own.
///
/// A read is a read: nothing is dispatched (contract R-3). A whole result that an agent's host
/// acknowledged counts as handed over; a part of one, or an answer that was only sent, does not.
pub(super) async fn result(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ResultQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let invocation = find(&state.journal, &caller, &id)?;
    let wanted = match query.stream.as_deref() {
        None => None,
        Some("stdout") => Some(Stream::Stdout),
        Some("stderr") => Some(Stream::Stderr),
        Some(_) => return Err(invalid("stream", "stdout or stderr")),
    };
    let over_ssh = invocation.accepted().gateway == Gateway::Ssh;
    let wanted = wanted.unwrap_or(if over_ssh { Stream::Stdout } else { Stream::Content });
    let offset = headers.get(http::header::RANGE).and_then(range_start);
    let journal = state.journal.clone();
    let id = invocation.id();
    let stored = apart(move || read_result(&journal, id, wanted, offset)).await?;
    let mut response = render(&invocation, stored, offset)?;
    let whole = offset.is_none() && wanted != Stream::Stderr;
    if matches!(caller, Caller::Agent(_)) && whole {
        let held = state.journal.answering(invocation).map_err(|error| internal(&error))?.id();
        response.extensions_mut().insert(proxy::Fetched { asked: id, held });
    }
    Ok(response)
}

/// `GET /v1/invocations/{id}/recording`: what was recorded of an SSH session, whatever its outcome; of
/// one in doubt that is no result (contract S-2), and its reading confirms nothing.
pub(super) async fn recording(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let invocation = find(&state.journal, &caller, &id)?;
    let (journal, id) = (state.journal.clone(), invocation.id());
    let stored = apart(move || {
        let mut stored = journal.recording(id).map_err(refused)?;
        let content = stored.read_to_end().map_err(refused)?;
        let (trailers, length_bytes) = (Vec::new(), content.len() as u64);
        Ok(Stored { head: None, trailers, length_bytes, content })
    });
    let stored = stored.await?;
    render(&invocation, stored, None)
}

struct Stored {
    head: Option<StoredHead>,
    trailers: Vec<(String, String)>,
    content: Vec<u8>,
    length_bytes: u64,
}

fn read_result(
    journal: &Journal,
    id: InvocationId,
    wanted: Stream,
    offset: Option<u64>,
) -> Result<Stored, Problem> {
    let mut stored = journal.result(id).map_err(refused)?;
    let head =
        stored.head().map(serde_json::from_slice).transpose().map_err(|error| internal(&error))?;
    let trailers = stored.trailers().map(serde_json::from_slice).transpose();
    let trailers = trailers.map_err(|error| internal(&error))?.unwrap_or_default();
    let start = offset.unwrap_or(0);
    let unsatisfiable = |length_bytes: u64| {
        let detail = format!("the stored content has {length_bytes} bytes");
        Err(Problem::new(ProblemCode::RangeNotSatisfiable, detail))
    };
    let mut content = Vec::new();
    let mut length_bytes = 0;
    if wanted == Stream::Content {
        length_bytes = stored.length_bytes();
        if offset.is_some() && start >= length_bytes {
            return unsatisfiable(length_bytes);
        }
        stored.skip(start).map_err(refused)?;
        content = stored.read_to_end().map_err(refused)?;
        return Ok(Stored { head, trailers, content, length_bytes });
    }
    // The streams of a command lie in the order of arrival: its own part is found by reading.
    while let Some((stream, chunk)) = stored.next_chunk().map_err(refused)? {
        if stream == wanted {
            let left_out = start.saturating_sub(length_bytes).min(chunk.len() as u64);
            let left_out = usize::try_from(left_out).unwrap_or(usize::MAX);
            content.extend_from_slice(chunk.get(left_out..).unwrap_or_default());
            length_bytes += chunk.len() as u64;
        }
    }
    if offset.is_some() && start >= length_bytes {
        return unsatisfiable(length_bytes);
    }
    Ok(Stored { head, trailers, content, length_bytes })
}

fn refused(error: journal::result::Error) -> Problem {
    use journal::result::Error;
    let code = match &error {
        Error::NotFound => ProblemCode::NoSuchInvocation,
        Error::NotKept => ProblemCode::NoResult,
        Error::Incomplete => ProblemCode::ResultIncomplete,
        Error::Expired => ProblemCode::ResultExpired,
        Error::Locked => ProblemCode::VaultLocked,
        Error::Damaged | Error::Read(_) => ProblemCode::Internal,
    };
    Problem::new(code, error.to_string())
}

/// `bytes=N-`: the one form that a resumed read needs. Other ranges are left aside, as RFC 9110 section
/// 14.2 lets a server do: the answer is the whole.
fn range_start(value: &http::HeaderValue) -> Option<u64> {
    value.to_str().ok()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
}

fn render(
    invocation: &Invocation,
    stored: Stored,
    offset: Option<u64>,
) -> Result<Response, Problem> {
    let outcome = proxy::render::affiant_outcome(invocation.verdict(), invocation.id(), true);
    let mut builder = Response::builder().header("affiant-outcome", outcome);
    match stored.head {
        Some(head) => {
            builder = builder.status(head.status).header("affiant-result", "http");
            for (name, value) in head.headers {
                let framing = ["content-length", "transfer-encoding", "connection", "trailer"];
                let is = |field: &&str| name.eq_ignore_ascii_case(field);
                // A part that is read here has a range of its own.
                let is_range = offset.is_some() && is(&"content-range");
                if !is_range && !framing.iter().any(is) {
                    let damaged = || refused(journal::result::Error::Damaged);
                    let bytes = bytes_of(&value).ok_or_else(damaged)?;
                    builder = builder.header(name, bytes);
                }
            }
        }
        None => {
            let content_type = match invocation.accepted().action.as_str() {
                "shell" => "application/x-asciicast",
                "subsystem:sftp" => "application/jsonl",
                _ => "application/octet-stream",
            };
            builder = builder
                .header("affiant-result", "ssh")
                .header(http::header::CONTENT_TYPE, content_type);
            if let Some(end) = invocation.evidence().ssh_end {
                builder = builder.header(
                    "affiant-exit",
                    match end {
                        SshEnd::ExitStatus(status) => format!("status {status}"),
                        SshEnd::ExitSignal(signal) => format!("signal {signal}"),
                    },
                );
            }
        }
    }
    // Not among the header fields: there they would mean something else (RFC 9110 section 6.5.1).
    for (name, value) in stored.trailers {
        let line = bytes_of(&format!("{name}: {value}"));
        let line = line.ok_or_else(|| refused(journal::result::Error::Damaged))?;
        builder = builder.header("affiant-trailer", line);
    }
    if let Some(offset) = offset {
        let length = stored.length_bytes;
        builder = builder
            .status(StatusCode::PARTIAL_CONTENT)
            .header(http::header::CONTENT_RANGE, format!("bytes {offset}-{}/{length}", length - 1));
    }
    builder.body(stored.content.into()).map_err(|error| internal(&error))
}

/// The bytes of a stored value: each is one character.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(character).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_times_are_read() {
        assert_eq!(duration("15m"), Some(Duration::from_secs(900)));
        assert_eq!(duration("2d"), Some(Duration::from_secs(172_800)));
        assert_eq!(duration("m"), None);
        assert_eq!(duration("18446744073709551615d"), None);
        assert_eq!(since("1970-01-01T00:00:01Z").ok(), Some(1000));
        assert!(since("yesterday").is_err());
    }

    /// a stored value has the bytes that the origin sent, whatever text they are.
    #[test]
    fn r_4_a_stored_value_has_its_bytes() {
        assert_eq!(bytes_of("caf\u{e9}\u{ff}"), Some(b"caf\xe9\xff".to_vec()));
        assert_eq!(bytes_of("\u{100}"), None);
    }

    #[test]
    fn only_an_open_range_is_taken() {
        let start = |text: &str| range_start(&text.parse().unwrap());
        assert_eq!(start("bytes=5-"), Some(5));
        assert_eq!(start("bytes=0-4"), None);
        assert_eq!(start("bytes=-5"), None);
        assert_eq!(start("items=5-"), None);
    }
}
