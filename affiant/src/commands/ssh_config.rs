//! `affiant ssh-config`: the lines that make stock OpenSSH go through the gateway.

use super::Context;
use crate::cli::SshConfig;
use crate::control::client::Client;
use crate::output;
use anyhow::Context as _;
use policy::Policy;
use std::net::SocketAddr;
use std::process::ExitCode;

pub(super) async fn ssh_config(
    context: &Context,
    arguments: &SshConfig,
) -> anyhow::Result<ExitCode> {
    context.home.require()?;
    let gateway = match arguments.gateway {
        Some(address) => address,
        None => running_gateway(context).await?.unwrap_or(([127, 0, 0, 1], 7722).into()),
    };
    let identity =
        ssh_gateway::Identity::open(&context.home.ssh()).context("read the SSH identity")?;
    // The key is what a client in batch mode logs in with.
    identity.agent_key(&arguments.agent).context("make the agent's login key")?;
    let snapshot = Policy::open(context.home.path()).context("open the policy store")?.snapshot();
    output::print(&ssh_gateway::client_config(&ssh_gateway::ClientConfig {
        directory: identity.directory(),
        host: &gateway.ip().to_string(),
        port: gateway.port(),
        agent: &arguments.agent,
        targets: &snapshot.ssh_hosts(),
    }));
    Ok(ExitCode::SUCCESS)
}

async fn running_gateway(context: &Context) -> anyhow::Result<Option<SocketAddr>> {
    if tokio::net::UnixStream::connect(context.home.socket()).await.is_err() {
        return Ok(None);
    }
    let health = Client::Socket(context.home.socket()).json("/v1/health").await?;
    let address = health.pointer("/listening/ssh").and_then(|value| value.as_str());
    Ok(address.and_then(|text| text.parse().ok()))
}
