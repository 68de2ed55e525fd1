//! `affiant vault`: status, unlock, lock of the running server's vault.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output;
use anyhow::bail;
use bytes::Bytes;
use http::Method;
use std::process::ExitCode;

pub(super) async fn vault(context: &Context, command: cli::Vault) -> anyhow::Result<ExitCode> {
    let client = Client::connect(&context.home).await?;
    let answer = match command {
        cli::Vault::Status => client.json("/v1/vault").await?,
        cli::Vault::Unlock => {
            require_server(&client)?;
            let passphrase = super::secret::read_value("passphrase of the vault", false)?;
            let body = Bytes::copy_from_slice(passphrase.expose());
            let response = client.expect(Method::POST, "/v1/vault/unlock", body).await?;
            serde_json::from_slice(response.body())?
        }
        cli::Vault::Lock => {
            require_server(&client)?;
            let response = client.expect(Method::POST, "/v1/vault/lock", Bytes::new()).await?;
            serde_json::from_slice(response.body())?
        }
    };
    if context.json {
        output::json(&answer)?;
    } else {
        let status = answer.get("vault").and_then(|v| v.as_str()).unwrap_or("unknown");
        output::line(&format!("the vault is {status}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn require_server(client: &Client) -> anyhow::Result<()> {
    match client {
        Client::Socket(_) => Ok(()),
        Client::Local(_) => bail!("no server runs for this home: start `affiant serve` first"),
    }
}
