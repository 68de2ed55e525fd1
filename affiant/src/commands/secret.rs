//! `affiant secret`: set, rotate, list, rm. Values come from stdin or a prompt, never from argv.

use super::Context;
use crate::cli;
use crate::output::{self, Negative};
use anyhow::{Context as _, bail};
use policy::vault::Status;
use policy::{Policy, Secret};
use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Longest value that is read, in bytes.
const LIMIT: u64 = 64 * 1024;

pub(super) fn secret(context: &Context, command: cli::Secret) -> anyhow::Result<ExitCode> {
    let store = context.home.open_policy()?;
    match command {
        cli::Secret::Set { name } => set(&store, &name),
        cli::Secret::Rotate { name } => {
            if store.list_secrets()?.iter().all(|entry| entry.name != name) {
                return Err(Negative(format!(
                    "there is no secret {name:?} to rotate: `affiant secret set {name}`"
                ))
                .into());
            }
            set(&store, &name)
        }
        cli::Secret::List => list(context, &store),
        cli::Secret::Rm { name } => {
            store.remove_secret(&name)?;
            output::line(&format!("removed secret {name:?}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn set(store: &Policy, name: &str) -> anyhow::Result<ExitCode> {
    if store.vault().status() == Status::Locked {
        let passphrase = prompt("passphrase or key of the vault: ")?;
        store.vault().unlock(Some(&passphrase)).context("unlock the vault")?;
    }
    let value = read_value(&format!("value of {name}"), false)?;
    let version = store.set_secret(name, &value)?;
    output::line(&format!("secret {name:?} has version {version}"));
    Ok(ExitCode::SUCCESS)
}

fn list(context: &Context, store: &Policy) -> anyhow::Result<ExitCode> {
    let entries = store.list_secrets()?;
    if context.json {
        output::json(&entries)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["NAME", "VERSION", "SET"].map(str::to_owned).to_vec()];
    for entry in entries {
        rows.push(vec![entry.name, entry.version.to_string(), output::time(entry.set_at_ms)]);
    }
    output::table(&rows);
    Ok(ExitCode::SUCCESS)
}

/// Reads a secret value: from a prompt without echo on a terminal, else stdin to its end less one
/// line break.
pub(super) fn read_value(what: &str, twice: bool) -> anyhow::Result<Secret> {
    if std::io::stdin().is_terminal() {
        let first = prompt(&format!("{what}: "))?;
        if twice && prompt(&format!("{what}, again: "))?.expose() != first.expose() {
            bail!("the two entries differ: nothing was set");
        }
        return Ok(first);
    }
    let mut value = Zeroizing::new(Vec::new());
    std::io::stdin().lock().take(LIMIT + 1).read_to_end(&mut value).context("read stdin")?;
    if value.len() as u64 > LIMIT {
        bail!("the {what} is longer than {LIMIT} bytes");
    }
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    if value.is_empty() {
        bail!("the {what} is empty: nothing was set");
    }
    Ok(Secret::new(std::mem::take(&mut *value)))
}

/// Asks on the terminal itself, so that stdin can carry the value.
pub(super) fn prompt(question: &str) -> anyhow::Result<Secret> {
    let answer = rpassword::prompt_password(question)
        .context("no terminal to ask on: run this from a terminal, or give the value on stdin")?;
    if answer.is_empty() {
        bail!("nothing was entered");
    }
    Ok(Secret::new(answer.into_bytes()))
}
