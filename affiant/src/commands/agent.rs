//! `affiant agent`: add, list, rotate, rm.

use super::Context;
use crate::cli;
use crate::control::client::Client;
use crate::output;
use anyhow::Context as _;
use policy::agent::Rotation;
use policy::{Policy, Secret};
use std::net::SocketAddr;
use std::process::ExitCode;

pub(super) async fn agent(context: &Context, command: cli::Agent) -> anyhow::Result<ExitCode> {
    context.home.require()?;
    let store = Policy::open(context.home.path()).context("open the policy store")?;
    match command {
        cli::Agent::Add { name, lasts } => {
            let token = store.add_agent_for(&name, lasts)?;
            show_token(context, &name, &token).await
        }
        cli::Agent::Rotate { name, overlap, lasts } => {
            let token = store.rotate_agent_with(&name, Rotation { overlap, lasts })?;
            remove_login_key(context, &name)?;
            show_token(context, &name, &token).await
        }
        cli::Agent::List => list(context, &store),
        cli::Agent::Rm { name } => {
            store.remove_agent(&name)?;
            remove_login_key(context, &name)?;
            output::line(&format!("removed agent {name:?}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The SSH login key stands for the token, so it goes with it. `affiant ssh-config` makes a new one.
fn remove_login_key(context: &Context, name: &str) -> anyhow::Result<()> {
    let identity =
        ssh_gateway::Identity::open(&context.home.ssh()).context("read the SSH identity")?;
    identity.remove_agent_key(name).context("remove the agent's SSH login key")
}

/// The one time that a token is shown.
async fn show_token(context: &Context, name: &str, token: &Secret) -> anyhow::Result<ExitCode> {
    let (scheme, address) = proxy_address(context).await;
    let url = super::run::proxy_url(scheme, name, token, address)?;
    if context.json {
        let token = std::str::from_utf8(token.expose())?;
        output::json(&serde_json::json!({ "agent": name, "token": token, "proxy": url }))?;
    } else {
        output::line(&format!(
            "agent {name:?}; the token is shown this once, inside the proxy URL:"
        ));
        output::line(&format!("  {url}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The running server's proxy, in clear text if it has both, else the default address.
async fn proxy_address(context: &Context) -> (&'static str, SocketAddr) {
    let listening = Client::listening(&context.home).await.ok().flatten();
    let served = listening.and_then(|listening| {
        let in_clear_text = listening.http.map(|address| ("http", address));
        in_clear_text.or_else(|| listening.https.map(|address| ("https", address)))
    });
    served.unwrap_or(("http", ([127, 0, 0, 1], 7780).into()))
}

/// Whether the time that the agent was given is over.
pub(super) fn has_ended(agent: &policy::agent::Info) -> bool {
    let now = time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
    agent.expires_at_ms.is_some_and(|ends| i128::from(ends) <= now)
}

fn list(context: &Context, store: &Policy) -> anyhow::Result<ExitCode> {
    let agents = store.list_agents()?;
    if context.json {
        output::json(&agents)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["NAME", "ADDED", "ACCESS ENDS", "OLD TOKEN UNTIL"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for agent in agents {
        let mut ends = agent.expires_at_ms.map_or_else(|| "never".to_owned(), output::time);
        if has_ended(&agent) {
            ends.push_str(" (has ended)");
        }
        let old = agent.old_token_until_ms.map_or_else(|| "-".to_owned(), output::time);
        rows.push(vec![agent.name, output::time(agent.added_at_ms), ends, old]);
    }
    output::table(&rows);
    Ok(ExitCode::SUCCESS)
}
