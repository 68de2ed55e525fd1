//! `affiant policy`: check, apply, show, history, rollback, test, diff, explain.

use super::{Context, learn};
use crate::cli;
use crate::control::client::Client;
use crate::output::{self, Negative};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use policy::call::{Call, Rest};
use policy::diff::{Change, What};
use policy::expect::{Checked, Expectations};
use policy::{Policy, Snapshot};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) async fn policy(context: &Context, command: cli::Policy) -> anyhow::Result<ExitCode> {
    match command {
        cli::Policy::Check { file } => check(context, &named(context, file)),
        cli::Policy::Apply { file } => {
            let code = apply(context, &named(context, file)).await?;
            note_waiting(context).await;
            Ok(code)
        }
        cli::Policy::Show { number } => {
            let store = open(context)?;
            let version = number.unwrap_or_else(|| store.snapshot().version());
            let text = store
                .source_text(version)?
                .ok_or_else(|| Negative(format!("there is no policy version {version}")))?;
            output::print(&text);
            Ok(ExitCode::SUCCESS)
        }
        cli::Policy::History => history(context),
        cli::Policy::Rollback { number } => {
            let store = open(context)?;
            if let Some(text) = store.source_text(number)? {
                prepare(context, &text).await;
            }
            let new = store.rollback(number, &output::who())?;
            output::line(&format!("policy version {new} is in force (the text of {number})"));
            note_waiting(context).await;
            Ok(ExitCode::SUCCESS)
        }
        cli::Policy::Test { file, policy } => test(context, &file, policy.as_deref()),
        cli::Policy::Diff { before, after } => diff(context, before, after),
        cli::Policy::Learn { agent, since, denied, output } => {
            learn::learn(context, agent, since, denied, output.as_deref()).await
        }
        cli::Policy::Explain { agent, header, body, call } => {
            explain(context, &agent, &header, body, &call)
        }
    }
}

fn open(context: &Context) -> anyhow::Result<Policy> {
    context.home.require()?;
    Policy::open(context.home.path()).context("open the policy store")
}

fn named(context: &Context, file: Option<PathBuf>) -> PathBuf {
    file.unwrap_or_else(|| context.home.policy_file())
}

fn read(file: &Path) -> anyhow::Result<String> {
    let bytes =
        std::fs::read(file).with_context(|| format!("read the policy {}", file.display()))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = good.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let start = good.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let before = String::from_utf8_lossy(good.get(start..).unwrap_or_default());
        let column = before.chars().count() + 1;
        let file = file.display();
        Negative(format!("{file}:{line}:{column}: this is not UTF-8; save the file as UTF-8"))
            .into()
    })
}

fn report(context: &Context, diagnostics: &[policy::Diagnostic]) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&diagnostics)?;
    } else {
        for diagnostic in diagnostics {
            output::note(&diagnostic.to_string());
        }
    }
    Ok(ExitCode::FAILURE)
}

fn check(context: &Context, file: &Path) -> anyhow::Result<ExitCode> {
    let text = read(file)?;
    match Policy::check(&text, &file.display().to_string()) {
        Err(diagnostics) => report(context, &diagnostics),
        Ok(snapshot) if context.json => {
            output::json(&snapshot.warnings())?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(snapshot) => {
            // A policy can be checked where there is no home.
            let store = context.home.require().is_ok().then(|| open(context)).transpose()?;
            warn(&snapshot, store.as_ref())?;
            output::line(&format!("{} is a valid policy", file.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What is sound but doubtful, and what the policy names that the store does not have.
fn warn(snapshot: &Snapshot, store: Option<&Policy>) -> anyhow::Result<()> {
    for warning in snapshot.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    for absent in snapshot.absent() {
        let whose = absent.credential.map(|id| format!("credential {id:?}: ")).unwrap_or_default();
        output::note(&format!("warning: {whose}{}", absent.what));
    }
    let Some(store) = store else { return Ok(()) };
    let known = store.list_agents()?;
    for name in snapshot.agents() {
        if known.iter().all(|agent| agent.name != name) {
            output::note(&format!("warning: the policy names agent {}", unknown_agent(&name)));
        }
    }
    let kept = store.list_secrets()?;
    for (credential, name) in snapshot.vault_secrets() {
        if kept.iter().all(|secret| secret.name != name) {
            output::note(&format!("warning: {}", no_secret(credential, name)));
        }
    }
    Ok(())
}

/// Says what a credential lacks that a call is to get.
fn note_missing(snapshot: &Snapshot, store: &Policy, credential: &str) -> anyhow::Result<()> {
    let kept = store.list_secrets()?;
    let unset = snapshot
        .vault_secrets()
        .into_iter()
        .filter(|(id, name)| *id == credential && kept.iter().all(|secret| secret.name != *name));
    for (id, name) in unset {
        output::note(&format!("warning: {}", no_secret(id, name)));
    }
    let absent = snapshot.absent().into_iter();
    for absent in absent.filter(|absent| absent.credential.as_deref() == Some(credential)) {
        output::note(&format!("warning: credential {credential:?}: {}", absent.what));
    }
    Ok(())
}

fn no_secret(credential: &str, name: &str) -> String {
    format!("credential {credential:?} has no secret yet: `affiant secret set {name}`")
}

fn unknown_agent(name: &str) -> String {
    format!("{name:?}, which does not exist: `affiant agent add {name}`")
}

async fn apply(context: &Context, file: &Path) -> anyhow::Result<ExitCode> {
    let text = read(file)?;
    let name = file.display().to_string();
    let store = open(context)?;
    let snapshot = match Policy::check(&text, &name) {
        Ok(snapshot) => snapshot,
        Err(diagnostics) => return report(context, &diagnostics),
    };
    prepare(context, &text).await;
    let before = store.snapshot();
    let version = store.apply(&text, &name, &output::who())?;
    warn(&snapshot, Some(&store))?;
    let changes = policy::diff::diff(&before, &snapshot);
    if context.json {
        output::json(&serde_json::json!({ "version": version, "changes": changes.len() }))?;
    } else {
        output::line(&format!("policy version {version} is in force: {}", in_short(&changes)));
    }
    Ok(ExitCode::SUCCESS)
}

/// How many rules of which kind differ, and what became of `egress`: that is what opens and closes most.
fn in_short(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nothing differs from the version before".to_owned();
    }
    let mut numbers: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut parts = Vec::new();
    for change in changes {
        let what = match change.what {
            What::Added => "added",
            What::Removed => "removed",
            What::Changed => "changed",
        };
        *numbers.entry((change.kind, what)).or_default() += 1;
        for key in change.keys.iter().filter(|key| key.key == "egress") {
            let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
            parts.push(format!("egress {} -> {}", shown(&key.before), shown(&key.after)));
        }
    }
    let counted = numbers.iter().map(|((kind, what), number)| format!("{number} {kind} {what}"));
    parts.extend(counted);
    parts.join(", ")
}

/// Has a running server compile the text before it is in force. Without that, the first call does.
async fn prepare(context: &Context, text: &str) {
    let Some(client) = Client::running(&context.home).await else { return };
    let text = Bytes::copy_from_slice(text.as_bytes());
    if let Err(error) = client.expect(Method::POST, "/v1/policy/prepare", text).await {
        tracing::debug!("the server compiles the policy at its next call: {error:#}");
    }
}

/// Says what a new version means for calls that wait for a person: they are bound to the version under
/// which the person was asked (contract V-5).
async fn note_waiting(context: &Context) {
    // Without a server nothing is asked; a vault that is locked shows no questions.
    let Some(client) = Client::running(&context.home).await else { return };
    let Ok(answer) = client.json("/v1/approvals").await else { return };
    let waiting = answer.get("approvals").and_then(|list| list.as_array()).map_or(0, Vec::len);
    if waiting > 0 {
        output::note(&format!(
            "warning: {waiting} held calls were asked about under the version before: they can't be \
             sent any more (APPROVAL_MISMATCH), and their callers have to ask anew"
        ));
    }
}

fn history(context: &Context) -> anyhow::Result<ExitCode> {
    let entries = open(context)?.history()?;
    if context.json {
        output::json(&entries)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["VERSION", "APPLIED", "BY", "DIGEST"].map(str::to_owned).to_vec()];
    for entry in entries {
        rows.push(vec![
            entry.version.to_string(),
            output::time(entry.applied_at_ms),
            entry.who,
            entry.digest.to_string(),
        ]);
    }
    output::table(&rows);
    Ok(ExitCode::SUCCESS)
}

fn test(context: &Context, file: &Path, judged: Option<&Path>) -> anyhow::Result<ExitCode> {
    let expectations = match Expectations::read(&read(file)?, &file.display().to_string()) {
        Ok(expectations) => expectations,
        Err(diagnostics) => return report(context, &diagnostics),
    };
    let checked = match judged {
        None => expectations.check(&open(context)?.snapshot()),
        Some(path) => match Policy::check(&read(path)?, &path.display().to_string()) {
            Ok(snapshot) => expectations.check(&snapshot),
            Err(diagnostics) => return report(context, &diagnostics),
        },
    };
    let failed = checked.iter().filter(|c| !c.holds()).count();
    if context.json {
        output::json(&checked)?;
    } else {
        for one in checked.iter().filter(|c| !c.holds()) {
            output::line(&one.to_string());
        }
        output::line(&format!("{} of {} expectations hold", checked.len() - failed, checked.len()));
    }
    Ok(if checked.iter().all(Checked::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn diff(context: &Context, before: Option<String>, after: Option<u64>) -> anyhow::Result<ExitCode> {
    let version = before.as_deref().and_then(|text| text.parse::<u64>().ok());
    let (old, new) = match (version, after) {
        (Some(old), Some(new)) => {
            let store = open(context)?;
            (of_version(&store, old)?, of_version(&store, new)?)
        }
        (Some(old), None) => {
            let store = open(context)?;
            let newest = store.snapshot().version();
            (of_version(&store, old)?, of_version(&store, newest)?)
        }
        (None, Some(_)) => bail!("give two version numbers, or a policy file alone"),
        (None, None) => {
            let file = named(context, before.map(PathBuf::from));
            let newest = open(context)?.snapshot();
            match Policy::check(&read(&file)?, &file.display().to_string()) {
                Ok(new) => ((*newest).clone(), new),
                Err(diagnostics) => return report(context, &diagnostics),
            }
        }
    };
    let changes = policy::diff::diff(&old, &new);
    if context.json {
        output::json(&changes)?;
    } else if changes.is_empty() {
        output::line("nothing differs");
    } else {
        for change in &changes {
            output::line(&change.to_string());
        }
    }
    Ok(if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The compiled policy of a version.
fn of_version(store: &Policy, version: u64) -> anyhow::Result<Snapshot> {
    let text = store
        .source_text(version)?
        .with_context(|| format!("there is no policy version {version}"))?;
    Policy::check(&text, "policy")
        .map_err(|_| anyhow::anyhow!("version {version} is not understood by this program"))
}

fn explain(
    context: &Context,
    agent: &str,
    headers: &[String],
    body: Option<String>,
    call: &[String],
) -> anyhow::Result<ExitCode> {
    let call = Call::from_words(call)?;
    let mut fields = Vec::with_capacity(headers.len());
    for header in headers {
        let (name, value) = header.split_once(':').context("write --header \"NAME: VALUE\"")?;
        fields.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    let body = body.map(|text| match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("read {file}")),
        None => Ok(text),
    });
    let rest = Rest { headers: fields, body: body.transpose()? };
    let store = open(context)?;
    if store.list_agents()?.iter().all(|known| known.name != agent) {
        output::note(&format!("warning: --agent is {}", unknown_agent(agent)));
    }
    let snapshot = store.snapshot();
    let explanation = call.explain(&snapshot, agent, &rest);
    if let Some(credential) = &explanation.credential {
        note_missing(&snapshot, &store, credential)?;
    }
    if context.json {
        output::json(&explanation)?;
    } else {
        output::line(&explanation.to_string());
    }
    Ok(if explanation.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
