//! `affiant vault`: status, unlock, lock of the running server's vault; change of the master key.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output;
use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use policy::Secret;
use policy::vault::{Mode, Protection, Rotated, Status};
use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;
use zeroize::Zeroizing;

pub(super) async fn vault(context: &Context, command: cli::Vault) -> anyhow::Result<ExitCode> {
    if let cli::Vault::Rotate(arguments) = command {
        let done = rotate(context, &arguments)?;
        // A server looks at its next call; asked, it looks now.
        if let Some(server) = Client::running(&context.home).await {
            match server.json("/v1/vault").await {
                Ok(state) if state.get("vault").and_then(|v| v.as_str()) == Some("locked") => {
                    output::note(&format!(
                        "affiant: of the running server, {}",
                        super::serve::LOCKED
                    ));
                }
                Ok(_) => {}
                Err(error) => {
                    output::note(&format!("the server follows at its next call: {error:#}"));
                }
            }
        }
        return Ok(done);
    }
    let client = Client::connect(&context.home).await?;
    let answer = match command {
        cli::Vault::Status => client.json("/v1/vault").await?,
        cli::Vault::Unlock => {
            require_server(&client)?;
            let present = client.json("/v1/vault").await?;
            let asks = !matches!(
                present.get("mode").and_then(|m| m.as_str()),
                Some("key_file" | "keyring")
            );
            let body = if asks {
                let given = super::secret::read_value("passphrase or key of the vault", false)?;
                Bytes::copy_from_slice(given.expose())
            } else {
                Bytes::new()
            };
            let response = client.expect(Method::POST, "/v1/vault/unlock", body).await?;
            serde_json::from_slice(response.body())?
        }
        cli::Vault::Lock => {
            require_server(&client)?;
            let response = client.expect(Method::POST, "/v1/vault/lock", Bytes::new()).await?;
            serde_json::from_slice(response.body())?
        }
        cli::Vault::Rotate(_) => bail!("the change of the key was not started"),
    };
    if context.json {
        output::json(&answer)?;
    } else {
        let status = answer.get("vault").and_then(|v| v.as_str()).unwrap_or("unknown");
        output::line(&format!("the vault is {status}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the master key in the store itself; a running server follows at its next call.
fn rotate(context: &Context, arguments: &cli::VaultRotate) -> anyhow::Result<ExitCode> {
    let store = context.home.open_policy()?;
    let mut answers = Answers::new()?;
    if store.vault().status() == Status::Locked && store.vault().mode() == Mode::Keyring {
        store.vault().unlock(None).context("unlock the vault")?;
    } else if store.vault().status() == Status::Locked {
        let given = answers.next("present passphrase or key of the vault", false)?;
        store.vault().unlock(Some(&given)).context("unlock the vault")?;
    }
    let mode = store.vault().mode();
    let chosen = arguments.key_file
        || arguments.passphrase
        || arguments.keyring
        || arguments.hand_out.is_some();
    let (passphrase, protection);
    let file = arguments.hand_out.clone();
    let keep = |key: &Secret| match &file {
        Some(file) => output::new_file(file, key.expose()),
        None => Err(std::io::Error::other("no file is named")),
    };
    if arguments.passphrase || (!chosen && mode == Mode::Passphrase) {
        passphrase = answers.next("new passphrase of the vault", true)?;
        protection = Protection::Passphrase(&passphrase);
    } else if file.is_some() {
        protection = Protection::Given(&keep);
    } else if arguments.keyring || (!chosen && mode == Mode::Keyring) {
        protection = Protection::Keyring;
    } else if !chosen && mode == Mode::Given {
        bail!("name the file for the new key: --hand-out FILE");
    } else {
        protection = Protection::KeyFile;
    }
    let rotated = store.rotate_vault(protection).context("change the vault's key")?;
    report(context, store.vault().mode(), rotated)
}

/// Says what a change of the key did. Status 1: it stands, and what the former key opens is still there.
fn report(context: &Context, mode: Mode, rotated: Rotated) -> anyhow::Result<ExitCode> {
    let Rotated { secrets, not_erased } = rotated;
    let not_erased = not_erased.map(|error| format!("{:#}", anyhow::Error::from(error)));
    let code = if not_erased.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if context.json {
        output::json(&serde_json::json!({
            "mode": mode, "moved": secrets, "erased": not_erased.is_none(), "reason": not_erased,
        }))?;
        return Ok(code);
    }
    output::line(&format!("the vault has a new key; {secrets} secret versions were moved to it"));
    match mode {
        Mode::KeyFile => {}
        Mode::Keyring => output::line("the key lies in the keyring; back that up with the home"),
        Mode::Passphrase => output::line("next: affiant vault unlock, if a server runs"),
        Mode::Given => output::line(
            "next: systemd-creds encrypt --name=affiant-vault-key FILE, LoadCredentialEncrypted= in \
             the unit, and remove FILE",
        ),
    }
    if let Some(reason) = not_erased {
        output::note(&format!(
            "what the former key opens is still in the store's file, because {reason}; the next change of \
             the store or start of a server overwrites it"
        ));
    }
    Ok(code)
}

/// What is asked for: on the terminal, or the lines of stdin.
enum Answers {
    Terminal,
    Lines(Vec<Secret>),
}

impl Answers {
    fn new() -> anyhow::Result<Self> {
        if std::io::stdin().is_terminal() {
            return Ok(Self::Terminal);
        }
        let mut text = Zeroizing::new(String::with_capacity(4096));
        std::io::stdin().lock().take(4096).read_to_string(&mut text).context("read stdin")?;
        Ok(Self::Lines(text.lines().rev().map(Secret::from).collect()))
    }

    fn next(&mut self, what: &str, twice: bool) -> anyhow::Result<Secret> {
        match self {
            Self::Terminal => super::secret::read_value(what, twice),
            Self::Lines(lines) => {
                let line = lines.pop().filter(|line| !line.is_empty());
                line.with_context(|| format!("stdin lacks a line with the {what}"))
            }
        }
    }
}

fn require_server(client: &Client) -> anyhow::Result<()> {
    match client {
        Client::Socket(_) => Ok(()),
        Client::Local(_) => bail!("no server runs for this home: start `affiant serve` first"),
    }
}
