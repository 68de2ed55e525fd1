//! `affiant secret`: set, rotate, list, rm. Values come from stdin or a prompt, never from argv.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output::{self, Negative};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use policy::secrets::{Label, Standing, Version};
use policy::vault::Status;
use policy::{Policy, Secret};
use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Longest value that is read, in bytes.
const LIMIT: u64 = 64 * 1024;

pub(super) async fn secret(context: &Context, command: cli::Secret) -> anyhow::Result<ExitCode> {
    let store = context.home.open_policy()?;
    match command {
        cli::Secret::Set(wanted) => set(context, &store, wanted).await,
        cli::Secret::Rotate(wanted) => {
            let name = &wanted.name;
            if store.list_secrets()?.iter().all(|entry| entry.name != *name) {
                return Err(Negative(format!(
                    "there is no secret {name:?} to rotate: `affiant secret set {name}`"
                ))
                .into());
            }
            set(context, &store, wanted).await
        }
        cli::Secret::List => list(context, &store),
        cli::Secret::Versions { name } => versions(context, &store, &name),
        cli::Secret::Rm { name } => {
            if store.list_secrets()?.iter().all(|entry| entry.name != name) {
                let words =
                    format!("there is no secret {name:?}; `affiant secret list` lists them");
                return Err(Negative(words).into());
            }
            store.remove_secret(&name)?;
            output::line(&format!("removed secret {name:?}"));
            let snapshot = store.snapshot();
            for (credential, _) in
                snapshot.vault_secrets().into_iter().filter(|(_, needed)| *needed == name)
            {
                output::note(&format!(
                    "affiant: credential {credential:?} of policy version {} needs it: calls with it \
                     get SECRET_MISSING until `affiant secret set {name}`",
                    snapshot.version()
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn set(
    context: &Context,
    store: &Policy,
    wanted: cli::SecretValue,
) -> anyhow::Result<ExitCode> {
    let cli::SecretValue { name, tag: tags } = wanted;
    let (name, label) = (name.as_str(), Label { by: output::who(), tags });
    let what = format!("value of {name}");
    let version = match store.vault().status() {
        Status::Unlocked => store.set_secret_as(name, &read_value(&what, false)?, &label)?,
        Status::Locked => match unlocked_server(context).await {
            Some(server) => {
                set_by_server(&server, name, &read_value(&what, false)?, &label).await?
            }
            None => {
                let (passphrase, value) = read_both(&what)?;
                store.vault().unlock(Some(&passphrase)).context("unlock the vault")?;
                store.set_secret_as(name, &value, &label)?
            }
        },
    };
    output::line(&format!("secret {name:?} has version {version}"));
    Ok(ExitCode::SUCCESS)
}

/// The server of this home, if its vault is open.
async fn unlocked_server(context: &Context) -> Option<Client> {
    let server = Client::running(&context.home).await?;
    let state = server.json("/v1/vault").await.ok()?;
    (state.get("vault")?.as_str()? == "unlocked").then_some(server)
}

async fn set_by_server(
    server: &Client,
    name: &str,
    value: &Secret,
    label: &Label,
) -> anyhow::Result<u64> {
    let body = Bytes::copy_from_slice(value.expose());
    let [name, by, tags] = [name, &label.by, &label.tags.join(",")].map(super::inv::encode);
    let path = format!("/v1/secrets/{name}?by={by}&tags={tags}");
    let answer = server.expect(Method::PUT, &path, body).await?;
    let answer: serde_json::Value = serde_json::from_slice(answer.body())?;
    answer.get("version").and_then(serde_json::Value::as_u64).context("read the new version")
}

/// Passphrase and value: two prompts, or the first line of stdin and the rest.
fn read_both(what: &str) -> anyhow::Result<(Secret, Secret)> {
    if std::io::stdin().is_terminal() {
        let passphrase = prompt("passphrase or key of the vault: ")?;
        return Ok((passphrase, read_value(what, false)?));
    }
    let input = read_value("passphrase and value", false)?;
    let mut parts = input.expose().splitn(2, |byte| *byte == b'\n');
    match (parts.next(), parts.next()) {
        (Some(passphrase), Some(value)) if !value.is_empty() => {
            Ok((Secret::new(passphrase.to_vec()), Secret::new(value.to_vec())))
        }
        _ => bail!(
            "the vault is locked: unlock a running server's (`affiant vault unlock`), or give the \
             passphrase as the first line of stdin and the value after it"
        ),
    }
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

/// What is known of each version; never a value.
fn versions(context: &Context, store: &Policy, name: &str) -> anyhow::Result<ExitCode> {
    let versions = store.secret_versions(name).map_err(|error| {
        if matches!(error, policy::secrets::Error::Unknown) {
            let words = format!("there is no secret {name:?}; `affiant secret list` lists them");
            return anyhow::Error::new(Negative(words));
        }
        error.into()
    })?;
    if context.json {
        let rows = versions.iter().map(|(version, standing)| {
            let Version { version, set_at_ms, by, tags } = version;
            serde_json::json!({
                "version": version,
                "set_at_ms": set_at_ms,
                "by": by,
                "tags": tags,
                "standing": standing,
            })
        });
        output::json(&rows.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["VERSION", "SET", "BY", "STANDING", "TAGS"].map(str::to_owned).to_vec()];
    for (version, standing) in versions {
        let standing = match standing {
            Standing::Current => "current",
            Standing::Kept => "kept for calls bound to it",
            Standing::Gone => "gone",
        };
        rows.push(vec![
            version.version.to_string(),
            output::time(version.set_at_ms),
            version.by,
            standing.to_owned(),
            version.tags.join(" "),
        ]);
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
