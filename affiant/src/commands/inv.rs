//! `affiant inv`: list, show, events, result, play, decide, retry, reconcile, attest, waiting, ack.

use super::Context;
use crate::cli::Inv;
use crate::control::client::{Client, refusal};
use crate::output;
use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use journal::contract::Code;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

pub(super) async fn inv(context: &Context, command: Inv) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&context.home).await?;
    match command {
        Inv::List { outcome, phase, code, all, agent, would_be_denied, since, limit, cursor } => {
            let not_code = left_out(outcome.as_deref(), code.as_deref(), all);
            let query = given([
                ("outcome", outcome),
                ("phase", phase),
                ("code", code),
                ("not_code", not_code),
                ("agent", agent),
                ("would_be_denied", would_be_denied.then(|| "true".to_owned())),
                ("since", since),
            ]);
            print_list(context, &listed(&client, &query, usize::from(limit), cursor).await?)
        }
        Inv::Show { id, wait } => {
            let wait = wait.map(|wait| format!("?wait={wait}")).unwrap_or_default();
            let state = client.json(&format!("{}{wait}", path(&id, "")?)).await?;
            show(context, &state)
        }
        Inv::Events { id } => {
            let events = client.json(&path(&id, "/events")?).await?;
            if context.json {
                output::json(&events)?;
            } else {
                print_events(&events);
            }
            Ok(ExitCode::SUCCESS)
        }
        Inv::Result { .. } if context.json => {
            bail!(
                "the stored content is written as it was received, without --json: `affiant inv show --json ID` has the record"
            )
        }
        Inv::Result { id, output, from, stream } => {
            let wanted = Wanted { id: &id, from, stream: stream.as_deref() };
            result(&client, &wanted, output.as_deref()).await
        }
        Inv::Play { id, speed } => {
            let recording =
                client.expect(Method::GET, &path(&id, "/recording")?, Bytes::new()).await?;
            super::play::play(recording.body(), speed)?;
            Ok(ExitCode::SUCCESS)
        }
        Inv::Decide { id } => decide(context, &client, &id).await,
        Inv::Retry { id } => {
            let body = client.act(&path(&id, "/retry")?, Bytes::new()).await?;
            print_attempt(context, &body)
        }
        Inv::Reconcile { id } => {
            let body = client.act(&path(&id, "/reconcile")?, Bytes::new()).await?;
            print_reconciled(context, &body)
        }
        Inv::Attest { id, outcome, note } => {
            let statement = serde_json::json!({ "outcome": outcome, "note": note });
            let state = client.act(&path(&id, "/attest")?, statement.to_string().into()).await?;
            show(context, &state)
        }
        Inv::Waiting => {
            let page = client.json("/v1/waiting").await?;
            print_list(context, &page)
        }
        Inv::Ack { id } => {
            client.expect(Method::POST, &path(&id, "/ack")?, Bytes::new()).await?;
            output::line("delivery is on record");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The code that a list leaves out. `unknown` is the list to look at: what no fault ended is `unknown` by
/// nature, and lost nothing.
fn left_out(outcome: Option<&str>, code: Option<&str>, all: bool) -> Option<String> {
    let is_to_look_at = outcome == Some("unknown") && code.is_none() && !all;
    is_to_look_at.then(|| Code::NotJudged.as_str().to_owned())
}

/// The parameters that have a value.
fn given<const N: usize>(
    wanted: [(&'static str, Option<String>); N],
) -> Vec<(&'static str, String)> {
    wanted.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

async fn decide(context: &Context, client: &Client, id: &str) -> anyhow::Result<ExitCode> {
    let decision = client.json(&path(id, "/decision")?).await?;
    if context.json {
        output::json(&decision)?;
    } else {
        output::line(text(&decision, "/decision"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The id is checked here, so that it can stand in a path.
fn path(id: &str, rest: &str) -> anyhow::Result<String> {
    let id: journal::contract::InvocationId =
        id.parse().with_context(|| format!("{id:?} is no invocation id"))?;
    Ok(format!("/v1/invocations/{id}{rest}"))
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("-")
}

async fn listed(
    client: &Client,
    query: &[(&str, String)],
    limit: usize,
    cursor: Option<String>,
) -> anyhow::Result<Value> {
    let page = async |limit: usize, cursor: Option<String>| {
        let mut query = query.to_vec();
        query.push(("limit", limit.to_string()));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        client.json(&list_path(&query)).await
    };
    gathered(limit, cursor, page).await
}

/// So many of a list. A page ends where enough was looked through, whether or not anything was found: it goes
/// on from there, until the list is full or at its end.
async fn gathered(
    limit: usize,
    mut cursor: Option<String>,
    page: impl AsyncFn(usize, Option<String>) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let mut found = Vec::new();
    loop {
        let mut next = page(limit.saturating_sub(found.len()), cursor).await?;
        if let Some(Value::Array(more)) = next.get_mut("invocations").map(Value::take) {
            found.extend(more);
        }
        cursor = next.get("next").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || found.len() >= limit {
            if let Some(all) = next.get_mut("invocations") {
                *all = Value::Array(found);
            }
            return Ok(next);
        }
    }
}

fn print_attempt(context: &Context, body: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(body)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (label, pointer) in [
        ("attempt", "/attempt/invocation_id"),
        ("outcome", "/attempt/error/outcome"),
        ("code", "/attempt/error/code"),
        ("decision", "/standing/decision"),
    ] {
        output::line(&format!("{label:<11} {}", text(body, pointer)));
    }
    Ok(ExitCode::SUCCESS)
}

/// An answer that decides nothing is a negative one.
fn print_reconciled(context: &Context, body: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(body)?;
    } else {
        let shows = body.get("shows").and_then(Value::as_str).unwrap_or("nothing");
        output::line(&format!("{:<11} {}", "query", text(body, "/query/invocation_id")));
        output::line(&format!("{:<11} {shows}", "shows"));
        output::line(&format!("{:<11} {}", "decision", text(body, "/standing/decision")));
    }
    let decided = body.get("shows").is_some_and(Value::is_string);
    Ok(if decided { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_list(context: &Context, page: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![
        ["INVOCATION", "TIME", "AGENT", "ACTION", "TARGET", "PHASE", "OUTCOME", "RETRY", "CODE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for item in page.get("invocations").and_then(Value::as_array).into_iter().flatten() {
        let at = item.pointer("/accepted_at_ms").and_then(Value::as_u64).unwrap_or_default();
        let column = |pointer| text(item, pointer).to_owned();
        rows.push(vec![
            column("/invocation_id"),
            output::time(at),
            column("/agent"),
            column("/action"),
            column("/target"),
            column("/error/phase"),
            column("/error/outcome"),
            column("/error/retry"),
            column("/error/code"),
        ]);
    }
    output::table(&rows);
    if let Some(next) = page.get("next").and_then(Value::as_str) {
        output::note(&format!("more: --cursor {next}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The path of a list with its parameters.
pub(super) fn list_path(query: &[(&str, String)]) -> String {
    let mut path = String::from("/v1/invocations");
    for (n, (name, value)) in query.iter().enumerate() {
        path.push(if n == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.push_str(&encode(value));
    }
    path
}

/// Percent-encodes for a path segment or a query value.
pub(super) fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn show(context: &Context, state: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(state)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (label, pointer) in [
        ("invocation", "/invocation_id"),
        ("agent", "/agent"),
        ("action", "/action"),
        ("target", "/target"),
        ("route", "/route"),
        ("credential", "/credential/id"),
        ("state", "/state"),
        ("phase", "/error/phase"),
        ("outcome", "/error/outcome"),
        ("retry", "/error/retry"),
        ("code", "/error/code"),
        ("observed", "/would_be_denied"),
        ("message", "/error/message"),
        ("note", "/note"),
    ] {
        output::line(&format!("{label:<11} {}", text(state, pointer)));
    }
    for (label, value) in circumstances(state) {
        output::line(&format!("{label:<11} {value}"));
    }
    let notes = state.get("notes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !notes.is_empty() {
        output::line("notes");
    }
    for note in notes {
        output::line(&format!("  {:<26} {}", text(note, "/name"), text(note, "/detail")));
    }
    output::line("evidence");
    if let Some(evidence) = state.get("evidence").and_then(Value::as_object) {
        for (name, value) in evidence {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            output::line(&format!("  {name:<26} {value}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is no text of the record: when, how long, under which version, and whether the result was received.
fn circumstances(state: &Value) -> Vec<(&'static str, String)> {
    let number = |pointer| state.pointer(pointer).and_then(Value::as_u64);
    let mut lines = Vec::new();
    if let Some(version) = number("/policy_version") {
        lines.push(("policy", format!("version {version}")));
    }
    if let Some(began) = number("/accepted_at_ms") {
        lines.push(("time", output::time(began)));
        let took = number("/ended_at_ms").map(|ended| ended.saturating_sub(began));
        lines.extend(took.map(|took| ("duration", format!("{took} ms"))));
    }
    // Of what was not attempted there is no result that could be received.
    if text(state, "/error/outcome") != "not_attempted" {
        lines.push(("delivery", text(state, "/delivery").to_owned()));
    }
    lines
}

fn print_events(events: &Value) {
    let mut rows = vec![["SEQ", "TIME", "EVENT", "SOURCE", "DATA"].map(str::to_owned).to_vec()];
    for event in events.get("events").and_then(Value::as_array).into_iter().flatten() {
        let number = |name| event.get(name).and_then(Value::as_u64).unwrap_or_default();
        rows.push(vec![
            number("sequence").to_string(),
            output::time(number("at_ms")),
            text(event, "/event").to_owned(),
            text(event, "/source").to_owned(),
            event
                .get("data")
                .filter(|data| !data.is_null())
                .map(Value::to_string)
                .unwrap_or_default(),
        ]);
    }
    output::table(&rows);
}

/// Which part of a stored result is wanted.
struct Wanted<'a> {
    id: &'a str,
    from: Option<u64>,
    stream: Option<&'a str>,
}

/// Writes the stored content as it was received: to the file, or to stdout (and stderr, for SSH,
/// unless a part is asked for).
async fn result(
    client: &Client,
    wanted: &Wanted<'_>,
    file: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let query = wanted.stream.map(|stream| format!("?stream={stream}")).unwrap_or_default();
    let whole = path(wanted.id, "/result")?;
    let response = client.read_from(&format!("{whole}{query}"), wanted.from).await?;
    let Some(kind) = response.headers().get("affiant-result") else {
        return Err(refusal(response.status(), response.body()));
    };
    let over_ssh = kind.as_bytes() == b"ssh";
    output::note(&match response.headers().get("affiant-exit") {
        Some(exit) if over_ssh => {
            format!("ended with {}", String::from_utf8_lossy(exit.as_bytes()))
        }
        _ => format!("status {}", response.status()),
    });
    write_content(response.body(), file)?;
    if over_ssh && wanted.stream.is_none() && wanted.from.is_none() {
        let stderr = client.read_from(&format!("{whole}?stream=stderr"), None).await?;
        std::io::Write::write_all(&mut std::io::stderr().lock(), stderr.body())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_content(content: &[u8], file: Option<&Path>) -> anyhow::Result<()> {
    match file {
        Some(file) => {
            output::new_file(file, content).with_context(|| format!("write {}", file.display()))
        }
        None => std::io::Write::write_all(&mut std::io::stdout().lock(), content)
            .context("write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::RefCell;

    /// J-1: a page without a match is not the end of a list: what is looked for further back is found.
    #[tokio::test]
    async fn j_1_a_list_goes_on_behind_pages_without_a_match() {
        let asked = RefCell::new(Vec::new());
        let pages = async |limit: usize, cursor: Option<String>| {
            asked.borrow_mut().push((limit, cursor.clone()));
            Ok(match cursor.as_deref() {
                Some("start") => json!({ "invocations": [], "next": "a" }),
                Some("a") => json!({ "invocations": [1, 2], "next": "b" }),
                Some("b") => json!({ "invocations": [], "next": "c" }),
                _ => json!({ "invocations": [3], "next": null, "head": 9 }),
            })
        };
        let start = Some("start".to_owned());
        let all = gathered(50, start.clone(), pages).await.expect("a list");
        assert_eq!(all, json!({ "invocations": [1, 2, 3], "next": null, "head": 9 }));
        let cursors = [(50, "start"), (50, "a"), (48, "b"), (48, "c")];
        assert_eq!(asked.take(), cursors.map(|(limit, at)| (limit, Some(at.to_owned()))));
        // A full page says where to go on.
        let some = gathered(2, start, pages).await.expect("a list");
        assert_eq!(some, json!({ "invocations": [1, 2], "next": "b" }));
    }
}
