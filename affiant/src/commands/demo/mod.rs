//! `affiant demo`: real calls through the real proxy and gateway, to peers inside this process.

mod caller;
mod origin;
mod stage;

use crate::output;
use anyhow::{Context as _, ensure};
use http::Method;
use journal::contract::InvocationId;
use serde::Serialize;
use serde_json::Value;
use stage::Stage;
use std::process::ExitCode;
use std::time::Duration;

/// Nothing in the demo may take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// One call of the demo: what was expected of it, and what the record says.
#[derive(Debug, Serialize)]
struct Row {
    call: &'static str,
    outcome: String,
    phase: String,
    retry: String,
    code: String,
    /// Effects that the remote itself counted for this call.
    effects: usize,
    invocation: String,
    as_expected: bool,
}

/// What the record and the remote have to say after a call.
struct Expected {
    outcome: &'static str,
    code: &'static str,
    effects: usize,
}

pub(super) async fn demo(json: bool) -> anyhow::Result<ExitCode> {
    let stage = Stage::set().await.context("set the stage")?;
    let rows =
        tokio::time::timeout(PATIENCE, perform(&stage)).await.context("the demo hangs")??;
    let all = rows.iter().all(|row| row.as_expected);
    if json {
        output::json(&serde_json::json!({ "rows": rows, "as_expected": all }))?;
    } else {
        print(&rows);
    }
    stage.clear().await;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn perform(stage: &Stage) -> anyhow::Result<Vec<Row>> {
    let mut rows = vec![
        committed(stage).await.context("a committed call")?,
        rejected(stage).await.context("a rejected call")?,
        denied(stage).await.context("a denied call")?,
        refused(stage).await.context("a refused connection")?,
    ];
    rows.extend(lost_answer(stage).await.context("a lost answer")?);
    rows.push(gone_caller(stage).await.context("a caller that goes away")?);
    rows.push(
        ssh(
            stage,
            "ssh: exit status 0",
            "echo deployed",
            0,
            Expected { outcome: "committed", code: "OK", effects: 1 },
        )
        .await?,
    );
    rows.push(
        ssh(
            stage,
            "ssh: channel closes without exit status",
            "vanish",
            255,
            Expected { outcome: "unknown", code: "REMOTE_RESULT_INCOMPLETE", effects: 1 },
        )
        .await?,
    );
    Ok(rows)
}

/// Reads the record of an invocation through the proxy, as the agent could.
async fn row(
    stage: &Stage,
    call: &'static str,
    invocation: &str,
    effects: usize,
    expected: &Expected,
) -> anyhow::Result<Row> {
    let url = format!("http://affiant.internal/v1/invocations/{invocation}?wait=10s");
    let answer = stage.caller.get(&url).await?;
    ensure!(answer.status == 200, "the record of {invocation} can't be read: {}", answer.status);
    let state: Value = serde_json::from_slice(&answer.body)?;
    let text = |name: &str| {
        let value = state.pointer(&format!("/error/{name}")).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let (outcome, code) = (text("outcome"), text("code"));
    let as_expected = outcome == expected.outcome
        && code == expected.code
        && effects == expected.effects
        && !answer.body.windows(stage.secret.len()).any(|part| part == stage.secret.as_bytes());
    Ok(Row {
        call,
        outcome,
        phase: text("phase"),
        retry: text("retry"),
        code,
        effects,
        invocation: invocation.to_owned(),
        as_expected,
    })
}

/// The invocation id in the `Affiant-Outcome` field.
fn invocation(answer: &caller::Answer) -> anyhow::Result<String> {
    let field = answer.headers.get("affiant-outcome").context("no Affiant-Outcome came")?;
    let (_, rest) = field.to_str()?.split_once("invocation=\"").context("no invocation id came")?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

async fn post(stage: &Stage, path: &str, body: &str) -> anyhow::Result<caller::Answer> {
    let origin = stage.origin.address;
    stage.caller.tunnel(origin).await?.send(caller::post(origin, path, body, None)?).await
}

async fn committed(stage: &Stage) -> anyhow::Result<Row> {
    let answer = post(stage, "/charges", r#"{"amount":42}"#).await?;
    ensure!(answer.status == 201, "the origin did not take the credential: {}", answer.status);
    let effects = stage.effects("/charges");
    let expected = Expected { outcome: "committed", code: "OK", effects: 1 };
    row(stage, "POST, credential injected, 201", &invocation(&answer)?, effects, &expected).await
}

async fn rejected(stage: &Stage) -> anyhow::Result<Row> {
    let answer = post(stage, "/invalid", "{}").await?;
    ensure!(answer.status == 422, "expected the origin's 422, got {}", answer.status);
    let effects = stage.effects("/invalid");
    let expected = Expected { outcome: "rejected", code: "REMOTE_REJECTED", effects: 0 };
    row(stage, "POST that the origin refuses, 422", &invocation(&answer)?, effects, &expected).await
}

async fn denied(stage: &Stage) -> anyhow::Result<Row> {
    let answer = stage.caller.get("http://elsewhere.example/").await?;
    ensure!(answer.status == 403, "expected a refusal by policy, got {}", answer.status);
    let expected = Expected { outcome: "not_attempted", code: "TARGET_NOT_ALLOWED", effects: 0 };
    row(stage, "GET that policy denies", &invocation(&answer)?, 0, &expected).await
}

async fn refused(stage: &Stage) -> anyhow::Result<Row> {
    let url = format!("http://{}/charges", stage.closed);
    let request = stage.caller.request(Method::POST, &url, "{}")?;
    let answer = stage.caller.plain().await?.send(request).await?;
    ensure!(answer.status == 502, "expected 502, got {}", answer.status);
    let expected = Expected { outcome: "not_attempted", code: "CONNECTION_REFUSED", effects: 0 };
    row(stage, "POST, connection refused", &invocation(&answer)?, 0, &expected).await
}

/// The origin applies the effect and closes. The client's own repeat is not dispatched (K-11).
async fn lost_answer(stage: &Stage) -> anyhow::Result<[Row; 2]> {
    let answer = post(stage, "/close", r#"{"amount":7}"#).await?;
    ensure!(answer.status == 502, "expected 502, got {}", answer.status);
    let id = invocation(&answer)?;
    let effects = stage.effects("/close");
    let expected = Expected { outcome: "unknown", code: "REMOTE_OUTCOME_UNKNOWN", effects: 1 };
    let first = row(stage, "POST, closed after the effect", &id, effects, &expected).await?;

    let again = post(stage, "/close", r#"{"amount":7}"#).await?;
    ensure!(again.status == 424, "expected 424, got {}", again.status);
    let repeats = stage.effects("/close") - effects;
    let expected = Expected { outcome: "not_attempted", code: "IN_DOUBT_DUPLICATE", effects: 0 };
    let call = "the same POST again, by a client that retries";
    let second = row(stage, call, &invocation(&again)?, repeats, &expected).await?;
    Ok([first, second])
}

/// The caller goes away; the result is read to its end and can be fetched (D-4, R-3).
async fn gone_caller(stage: &Stage) -> anyhow::Result<Row> {
    let id = stage.new_id().to_string();
    let origin = stage.origin.address;
    let request = caller::post(origin, "/slow", r#"{"job":1}"#, Some(&id))?;
    let ledger = &stage.origin.ledger;
    stage.caller.tunnel(origin).await?.abandon(request, ledger.slow_arrived.notified()).await?;
    ledger.slow_release.notify_one();
    let state = format!("http://affiant.internal/v1/invocations/{id}");
    stage.caller.get(&format!("{state}?wait=10s")).await?;
    let stored = stage.caller.get(&format!("{state}/result")).await?;
    ensure!(
        stored.status == 201 && stored.body.as_ref() == br#"{"id":"slow_1"}"#,
        "the stored result is not what the origin sent: {} {:?}",
        stored.status,
        stored.body
    );
    // The fetch is confirmed once our own host has acknowledged it, a moment after it was read.
    stage.settled_delivery(&id).await?;
    let effects = stage.effects("/slow");
    let expected = Expected { outcome: "committed", code: "OK", effects: 1 };
    row(stage, "POST, caller went away; result fetched by id", &id, effects, &expected).await
}

async fn ssh(
    stage: &Stage,
    call: &'static str,
    command: &str,
    status: u32,
    expected: Expected,
) -> anyhow::Result<Row> {
    let id: InvocationId = stage.new_id();
    let before = stage.target.effects();
    let client = stage.ssh_client().await.context(call)?;
    let ended = client.exec(command, b"", Some(id)).await.context(call)?;
    ensure!(ended.status == Some(status), "{call}: expected status {status}, got {ended:?}");
    row(stage, call, &id.to_string(), stage.target.effects() - before, &expected).await
}

fn print(rows: &[Row]) {
    output::line(
        "Real calls through proxy and gateway to peers inside this process; the agent held",
    );
    output::line("no credential. EFFECTS is what the remote itself counted.");
    output::line("");
    let mut table = vec![
        ["", "CALL", "OUTCOME", "PHASE", "RETRY", "CODE", "EFFECTS", "INVOCATION"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in rows {
        table.push(vec![
            if row.as_expected { "ok" } else { "FAILED" }.to_owned(),
            row.call.to_owned(),
            row.outcome.clone(),
            row.phase.clone(),
            row.retry.clone(),
            row.code.clone(),
            row.effects.to_string(),
            row.invocation.clone(),
        ]);
    }
    output::table(&table);
}
