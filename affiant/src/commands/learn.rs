//! `affiant policy learn`: a draft policy from the calls on record.

use super::{Context, inv};
use crate::control::client::Client;
use crate::output;
use anyhow::Context as _;
use policy::learn::{Seen, draft};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

/// The code of a refusal that a rule would have prevented.
const DENIED: &str = "TARGET_NOT_ALLOWED";

pub(super) async fn learn(
    context: &Context,
    agent: Option<String>,
    since: Option<String>,
    denied: bool,
    file: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&context.home).await?;
    let mut query = vec![("gateway", "http".to_owned()), ("limit", "500".to_owned())];
    query.extend(agent.map(|agent| ("agent", agent)));
    query.extend(since.map(|since| ("since", since)));
    let mut observed = query.clone();
    observed.push(("would_be_denied", "true".to_owned()));
    let mut seen = BTreeSet::new();
    collect(&client, observed, &mut seen, |_| true).await?;
    if denied {
        query.push(("phase", "validation".to_owned()));
        let by_policy = |item: &Value| item.pointer("/error/code") == Some(&DENIED.into());
        collect(&client, query, &mut seen, by_policy).await?;
    }
    let draft = draft(&seen);
    for target in &draft.left_out {
        output::note(&format!("no rule can name {target}"));
    }
    match file {
        None => output::print(&draft.text),
        Some(file) => output::new_file(file, draft.text.as_bytes())
            .with_context(|| format!("write {}", file.display()))?,
    }
    output::note(&format!("{} routes from {} different calls", draft.routes, seen.len()));
    output::note(
        "the draft has routes alone: what else is in force ([defaults], [[trust]], [[parent]], \
         [[credential]] and the routes there are) is not in it, so put them there, and do not apply \
         it in its place",
    );
    Ok(if draft.routes > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads all pages of a list.
async fn collect(
    client: &Client,
    mut query: Vec<(&str, String)>,
    seen: &mut BTreeSet<Seen>,
    wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    loop {
        let page = client.json(&inv::list_path(&query)).await?;
        for item in page.get("invocations").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
            let call = text("agent").zip(text("action")).zip(text("target"));
            if let Some(((agent, method), target)) = call.filter(|_| wanted(item)) {
                seen.insert(Seen { agent, method, target });
            }
        }
        let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(()) };
        query.retain(|(name, _)| *name != "cursor");
        query.push(("cursor", next.to_owned()));
    }
}
