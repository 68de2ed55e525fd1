//! `affiant approval`: list, approve, deny.

use super::Context;
use crate::cli::Approval;
use crate::control::client::Client;
use crate::output::{self, Negative};
use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

pub(super) async fn approval(context: &Context, command: Approval) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&context.home).await?;
    match command {
        Approval::List => list(context, &client).await,
        Approval::Show { id, output } => one(context, &client, &id, output.as_deref()).await,
        Approval::Approve { id } => decide(context, &client, &id, "approve").await,
        Approval::Deny { id } => decide(context, &client, &id, "deny").await,
    }
}

async fn decide(
    context: &Context,
    client: &Client,
    id: &str,
    what: &str,
) -> anyhow::Result<ExitCode> {
    let id: journal::contract::InvocationId =
        id.parse().with_context(|| format!("{id:?} is no invocation id"))?;
    let body = Bytes::from(json!({ "by": output::who() }).to_string());
    let path = format!("/v1/approvals/{id}/{what}");
    let response = client.expect(Method::POST, &path, body).await?;
    let decided: Value = serde_json::from_slice(response.body()).context("read the answer")?;
    if context.json {
        output::json(&decided)?;
    } else if what == "approve" {
        let until = decided.get("expires_at_ms").and_then(Value::as_u64).unwrap_or_default();
        let until = output::time(until);
        output::line(&format!("{id} is approved; as bound, it can be sent once, until {until}"));
    } else {
        output::line(&format!("{id} is denied; nothing is sent"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, client: &Client) -> anyhow::Result<ExitCode> {
    let answer = client.json("/v1/approvals").await?;
    if context.json {
        output::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let waiting = answer.get("approvals").and_then(Value::as_array);
    for held in waiting.into_iter().flatten() {
        show(held);
    }
    Ok(ExitCode::SUCCESS)
}

/// One question, with all of its request.
async fn one(
    context: &Context,
    client: &Client,
    id: &str,
    output: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let answer = client.json("/v1/approvals").await?;
    let waiting = answer.get("approvals").and_then(Value::as_array);
    let held = waiting
        .into_iter()
        .flatten()
        .find(|held| held.get("invocation_id").and_then(Value::as_str) == Some(id));
    let held = held.ok_or_else(|| Negative(format!("no call {id} waits")))?;
    let is_whole = held.pointer("/request/is_whole").and_then(Value::as_bool).unwrap_or(true);
    let whole = if is_whole {
        None
    } else {
        let path = format!("/v1/approvals/{id}/request");
        let answer = client.expect(Method::GET, &path, Bytes::new()).await?;
        Some(String::from_utf8_lossy(answer.body()).into_owned())
    };
    match (output, &whole) {
        (Some(file), Some(whole)) => {
            std::fs::write(file, whole).with_context(|| format!("write {}", file.display()))?;
        }
        (Some(_), None) => {
            let words = "all of this request is in the list: there is no more to write";
            return Err(Negative(words.to_owned()).into());
        }
        (None, _) if context.json => {
            output::json(&json!({ "approval": held, "whole": whole }))?;
        }
        (None, _) => {
            show(held);
            if let Some(whole) = whole {
                output::line("");
                whole.lines().for_each(|line| output::line(&plain(line)));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => plain(text),
        Some(other) => other.to_string(),
    }
}

/// An agent's text for a terminal: what controls it is shown, not obeyed.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_format(c) {
            plain.extend(c.escape_unicode());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Characters that change how others are drawn, or are not drawn (Unicode's category Cf, as far as it
/// is in use): with them a text can look like another.
fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// One question: who wants what, and all that is covered by the approval.
fn show(held: &Value) {
    let at = |pointer| held.pointer(pointer).and_then(Value::as_u64).map(output::time);
    output::line(&format!("{}  {}", text(held, "/invocation_id"), text(held, "/state")));
    line("agent", text(held, "/agent"));
    line("action", format!("{} {}", text(held, "/action"), text(held, "/target")));
    line(
        "route",
        format!("{}, policy version {}", text(held, "/route"), text(held, "/policy_version")),
    );
    if held.pointer("/credential/id").is_some() {
        let [id, version, mode] =
            ["id", "version", "mode"].map(|name| text(held, &format!("/credential/{name}")));
        line("credential", format!("{id} version {version}, {mode}"));
    }
    if held.pointer("/unsendable").is_some_and(Value::is_string) {
        line("not sent", text(held, "/unsendable"));
    }
    line("fingerprint", text(held, "/fingerprint"));
    let denied = held.pointer("/denied_before").and_then(Value::as_u64).unwrap_or_default();
    if denied > 0 {
        line("denied", format!("{} before, this very request", times(denied)));
    }
    line("until", at("/expires_at_ms").unwrap_or_default());
    if held.get("request_error").is_some() {
        line("request", text(held, "/request_error"));
    }
    if held.pointer("/request/target").is_some() {
        show_http(held);
    }
    if held.pointer("/request/command").is_some() {
        show_ssh(held);
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn line(label: &str, value: String) {
    output::line(&format!("  {label:<11} {value}"));
}

fn show_http(held: &Value) {
    line("request", format!("{} {}", text(held, "/request/method"), text(held, "/request/target")));
    let uncovered: Vec<&str> = held
        .pointer("/request/headers_not_covered")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for field in held.pointer("/request/headers").and_then(Value::as_array).into_iter().flatten() {
        let name = text(field, "/0");
        let open = uncovered.iter().any(|one| name.eq_ignore_ascii_case(one));
        let open = if open { "  (may differ when it is sent)" } else { "" };
        line("header", format!("{name}: {}{open}", text(field, "/1")));
    }
    let more = held.pointer("/request/headers_not_shown").and_then(Value::as_u64);
    if let Some(more) = more.filter(|more| *more > 0) {
        line("header", format!("(and {more} more that are not shown)"));
    }
    if held.pointer("/request/content").is_some() {
        let length = text(held, "/request/content/length_bytes");
        let digest = held.pointer("/request/content/digest").and_then(Value::as_str);
        line(
            "content",
            format!("{length} bytes{}", digest.map_or(String::new(), |d| format!(", {d}"))),
        );
        if held.pointer("/request/content/is_text") == Some(&Value::Bool(false)) {
            line("", "(no text: told by its length and digest alone)".to_owned());
        } else {
            line("", text(held, "/request/content/text"));
        }
    }
    show_cut(held);
}

fn show_cut(held: &Value) {
    if held.pointer("/request/is_whole") == Some(&Value::Bool(false)) {
        let id = text(held, "/invocation_id");
        line("", format!("(cut: `affiant approval show {id}` shows all of it)"));
    }
}

fn show_ssh(held: &Value) {
    line("command", text(held, "/request/command"));
    show_cut(held);
    let variables = held.pointer("/request/variables").and_then(Value::as_array);
    for variable in variables.into_iter().flatten() {
        line("variable", format!("{}={}", text(variable, "/0"), text(variable, "/1")));
    }
    if held.pointer("/request/terminal").and_then(Value::as_bool) == Some(true) {
        line("terminal", "yes".to_owned());
    }
    line("not covered", text(held, "/request/not_covered"));
}
