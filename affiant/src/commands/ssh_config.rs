//! `affiant ssh-config`: the lines that make stock OpenSSH go through the gateway.

use super::Context;
use crate::cli::{Place, SshConfig};
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
    let Place { host, port } = match &arguments.gateway {
        Some(place) => place.clone(),
        None => match Client::listening(&context.home).await? {
            Some(listening) => {
                listening.ssh.context("the server has no SSH gateway: --ssh is off")?.into()
            }
            None => SocketAddr::from(([127, 0, 0, 1], 7722)).into(),
        },
    };
    let identity =
        ssh_gateway::Identity::open(&context.home.ssh()).context("read the SSH identity")?;
    // The key is what a client in batch mode logs in with.
    identity.agent_key(&arguments.agent).context("make the agent's login key")?;
    let snapshot = Policy::open(context.home.path()).context("open the policy store")?.snapshot();
    output::print(&ssh_gateway::client_config(&ssh_gateway::ClientConfig {
        directory: identity.directory(),
        host: &host,
        port,
        agent: &arguments.agent,
        targets: &snapshot.ssh_hosts(),
    }));
    Ok(ExitCode::SUCCESS)
}
