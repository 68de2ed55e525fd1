//! `affiant serve`: everything in the foreground, until a signal.

use super::Context;
use crate::cli::Listen;
use crate::home::Home;
use crate::output;
use crate::server::{IN_USE, Server, is_in_use};
use policy::Policy;
use policy::vault::Status;
use std::path::Path;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// What a locked vault means.
pub(super) const LOCKED: &str = "the vault is locked: calls that need a credential or keep a result \
                                 get VAULT_LOCKED until `affiant vault unlock`";

/// Says that the home's policy file is not what is in force, if it is not: a file has to be applied.
pub(super) fn unapplied(home: &Home, policy: &Policy) -> Option<String> {
    let file = std::fs::read(home.policy_file()).ok()?;
    let version = policy.snapshot().version();
    let applied = policy.source_text(version).ok()?.unwrap_or_default();
    if file == applied.as_bytes() {
        return None;
    }
    let file = home.policy_file();
    let history = policy.history().ok()?;
    let source = history.into_iter().find(|one| one.version == version);
    let from = source.filter(|one| Path::new(&one.file) != file).map(|one| match one.rollback_of {
        Some(earlier) => format!(" as the text of version {earlier}"),
        None => format!(" and was applied from {}", one.file),
    });
    Some(format!(
        "{} differs from version {version}, which is in force{}: `affiant policy diff` says how, \
         `affiant policy apply` puts the file in its place",
        file.display(),
        from.unwrap_or_default()
    ))
}

pub(super) async fn serve(context: &Context, listen: &Listen) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let server = match Server::start(&context.home, listen).await {
        Err(error) if listen.for_runs && is_in_use(&error) => return Ok(ExitCode::from(IN_USE)),
        started => started?,
    };
    let listening = server.listening;
    if context.json {
        output::line(&serde_json::json!({ "ready": listening }).to_string());
    } else {
        if let Some(http) = listening.http {
            output::line(&format!("ready http {http}"));
        }
        if let Some(https) = listening.https {
            output::line(&format!("ready https {https}"));
        }
        if let Some(ssh) = listening.ssh {
            output::line(&format!("ready ssh {ssh}"));
        }
        if let Some(console) = listening.console {
            output::line(&format!(
                "ready console {console} (a page at http://{console}/, bearer token in {})",
                context.home.console_token().display()
            ));
        }
        output::line(&format!("ready control {}", context.home.socket().display()));
    }
    if server.state().policy.vault().status() == Status::Locked {
        output::note(&format!("affiant: {LOCKED}"));
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = server.state().users.deserted(), if listen.for_runs => break,
            // Every request reads the newest snapshot anyway; the signal says which one that is.
            _ = hangup.recv() => {
                let version = server.state().policy.snapshot().version();
                tracing::info!("policy version {version} is in force");
                if let Some(differs) = unapplied(&context.home, &server.state().policy) {
                    tracing::warn!("{differs}");
                }
            }
        }
    }
    if !listen.for_runs {
        tracing::info!("draining: a second signal ends the process at once");
    }
    tokio::select! {
        () = server.stop() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::FAILURE),
        _ = interrupt.recv() => Ok(ExitCode::FAILURE),
    }
}
