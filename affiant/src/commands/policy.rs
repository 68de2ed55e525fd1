//! `affiant policy`: check, apply, show, history, rollback, explain.

use super::Context;
use crate::cli;
use crate::output;
use anyhow::{Context as _, bail};
use policy::{HttpAction, Policy, Scheme, SshAction, SshRequest};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn policy(context: &Context, command: cli::Policy) -> anyhow::Result<ExitCode> {
    match command {
        cli::Policy::Check { file } => check(context, &named(context, file)),
        cli::Policy::Apply { file } => apply(context, &named(context, file)),
        cli::Policy::Show { number } => {
            let store = open(context)?;
            let version = number.unwrap_or_else(|| store.snapshot().version());
            let text = store
                .source_text(version)?
                .with_context(|| format!("there is no policy version {version}"))?;
            output::print(&text);
            Ok(ExitCode::SUCCESS)
        }
        cli::Policy::History => history(context),
        cli::Policy::Rollback { number } => {
            let new = open(context)?.rollback(number, &who())?;
            output::line(&format!("policy version {new} is in force (the text of {number})"));
            Ok(ExitCode::SUCCESS)
        }
        cli::Policy::Explain { agent, call } => explain(context, &agent, &call),
    }
}

fn open(context: &Context) -> anyhow::Result<Policy> {
    context.home.require()?;
    Policy::open(context.home.path()).context("open the policy store")
}

fn named(context: &Context, file: Option<PathBuf>) -> PathBuf {
    file.unwrap_or_else(|| context.home.policy_file())
}

fn who() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "unknown".into())
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read the policy {}", file.display()))
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
        Ok(_) if context.json => {
            output::line("[]");
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => {
            output::line(&format!("{} is a valid policy", file.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn apply(context: &Context, file: &Path) -> anyhow::Result<ExitCode> {
    let text = read(file)?;
    let name = file.display().to_string();
    let store = open(context)?;
    if let Err(diagnostics) = Policy::check(&text, &name) {
        return report(context, &diagnostics);
    }
    let version = store.apply(&text, &name, &who())?;
    if context.json {
        output::json(&serde_json::json!({ "version": version }))?;
    } else {
        output::line(&format!("policy version {version} is in force"));
    }
    Ok(ExitCode::SUCCESS)
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

fn explain(context: &Context, agent: &str, call: &[String]) -> anyhow::Result<ExitCode> {
    let snapshot = open(context)?.snapshot();
    let explanation = match call {
        [kind, target, command @ ..] if kind == "ssh" => {
            let target = SshTarget::parse(target)?;
            let command = command.join(" ");
            let request = if command.is_empty() {
                SshRequest::Shell
            } else {
                SshRequest::Exec(command.as_bytes())
            };
            let SshTarget { user, host, port } = &target;
            snapshot.explain_ssh(&SshAction { agent, host, port: *port, user, request })
        }
        [method, url] => {
            let uri: http::Uri = url.parse().with_context(|| format!("{url:?} is no URL"))?;
            let scheme = match uri.scheme_str() {
                Some("https") => Scheme::Https,
                Some("http") => Scheme::Http,
                _ => bail!("{url:?}: name the whole URL, with http:// or https://"),
            };
            let host = uri.host().with_context(|| format!("{url:?} names no host"))?;
            let port = uri.port_u16().unwrap_or(scheme.default_port());
            let path = uri.path();
            snapshot.explain_http(&HttpAction { agent, scheme, host, port, method, path })
        }
        _ => bail!("give METHOD URL, or: ssh USER@HOST[:PORT] COMMAND"),
    };
    if context.json {
        output::json(&explanation)?;
    } else {
        output::line(&explanation.to_string());
    }
    Ok(if explanation.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct SshTarget {
    user: String,
    host: String,
    port: u16,
}

impl SshTarget {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (user, rest) = text.split_once('@').context("name the target as USER@HOST[:PORT]")?;
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().context("the port is no number")?),
            None => (rest, 22),
        };
        Ok(Self { user: user.to_owned(), host: host.to_owned(), port })
    }
}
