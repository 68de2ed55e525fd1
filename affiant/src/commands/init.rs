//! `affiant init`: the home with CA, SSH identity, vault, policy store and journal.

use super::Context;
use crate::cli::Init;
use crate::home::{Home, write_file};
use crate::{bundle, output};
use anyhow::Context as _;
use policy::vault::Mode;
use policy::{Policy, Secret};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::ExitCode;

/// The agent that `affiant run` uses by default.
pub(crate) const DEFAULT_AGENT: &str = "local";

pub(super) fn init(context: &Context, arguments: &Init) -> anyhow::Result<ExitCode> {
    let fresh = !context.home.ca().exists();
    let passphrase = if arguments.passphrase && fresh {
        Some(super::secret::read_value("passphrase of the vault", true)?)
    } else {
        None
    };
    if arguments.passphrase
        && !fresh
        && context.home.open_policy()?.vault().mode() != Mode::Passphrase
    {
        output::note(
            "this home's vault has no passphrase; `affiant vault rotate --passphrase` gives it one",
        );
        return Ok(ExitCode::FAILURE);
    }
    let created = create(&context.home, passphrase.as_ref())?;
    let home = context.home.path().display();
    if created {
        output::line(&format!("created the home {home}"));
        output::line("next:");
        output::line(
            "  affiant secret set NAME                 a credential, from stdin or a prompt",
        );
        output::line(&format!(
            "  $EDITOR {}    say who may call what",
            context.home.policy_file().display()
        ));
        output::line("  affiant policy apply                    put it in force");
        output::line("  affiant run -- CMD                      run an agent behind the proxy");
    } else {
        output::line(&format!("the home {home} is complete; nothing was changed"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates what is missing of the home; returns whether anything was.
pub(crate) fn create(home: &Home, passphrase: Option<&Secret>) -> anyhow::Result<bool> {
    home.create()?;
    let mut created = false;
    if !home.path().join("policy").exists() {
        created = true;
    }
    let store = Policy::init(home.path(), passphrase).context("create policy store and vault")?;
    if store.list_agents()?.iter().all(|agent| agent.name != DEFAULT_AGENT) && created {
        // The token is not kept: `affiant run` makes one for each run.
        drop(store.add_agent(DEFAULT_AGENT).context("add the agent \"local\"")?);
    }
    if !home.policy_file().exists() {
        write_file(&home.policy_file(), 0o600, policy::STARTER.as_bytes())?;
        created = true;
    }
    if store.snapshot().version() == 0 {
        let text = std::fs::read_to_string(home.policy_file())?;
        store
            .apply(&text, &home.policy_file().display().to_string(), "affiant init")
            .context("apply the starter policy")?;
    }
    if !home.ssh().exists() {
        ssh_gateway::Identity::open(&home.ssh()).context("create the SSH identity")?;
        created = true;
    }
    if !home.ca().exists() {
        create_ca(home).context("create the CA")?;
        created = true;
    }
    let ca = proxy::Ca::load(&home.ca()).context("read the CA")?;
    bundle::write(home, ca.certificate_pem())?;
    Ok(created)
}

/// The CA comes last and by a rename: `Home::require` takes it for the sign of a complete home.
fn create_ca(home: &Home) -> anyhow::Result<()> {
    let unready = home.path().join("ca.new");
    if unready.exists() {
        std::fs::remove_dir_all(&unready)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(&unready)?;
    proxy::Ca::create(&unready)?;
    Ok(std::fs::rename(&unready, home.ca())?)
}
