//! One file a verb.

mod agent;
mod approval;
mod ca;
mod demo;
mod doctor;
mod init;
mod inv;
mod journal;
mod learn;
mod play;
mod policy;
mod run;
mod secret;
mod serve;
mod ssh_config;
mod vault;

use crate::cli::{Cli, Command};
use crate::home::Home;
use std::path::PathBuf;
use std::process::ExitCode;

/// What every command is given.
pub(crate) struct Context {
    pub(crate) home: Home,
    pub(crate) json: bool,
    /// The filter of the log, if one was given.
    pub(crate) log: Option<String>,
}

/// Runs the command. Exit codes: 0 done, 1 the thing asked for is so but negative, 2 wrong usage
/// or a failure.
pub(crate) async fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    if matches!(cli.command, Command::Demo) {
        return demo::demo(cli.json).await;
    }
    let context =
        Context { home: Home::resolve(cli.home.map(PathBuf::from))?, json: cli.json, log: cli.log };
    match cli.command {
        Command::Init(arguments) => init::init(&context, &arguments),
        Command::Serve(listen) => serve::serve(&context, &listen).await,
        Command::Run(arguments) => run::run(&context, arguments).await,
        Command::Demo => demo::demo(context.json).await,
        Command::Policy(command) => policy::policy(&context, command).await,
        Command::Secret(command) => secret::secret(&context, command).await,
        Command::Vault(command) => vault::vault(&context, command).await,
        Command::Agent(command) => agent::agent(&context, command).await,
        Command::Approval(command) => approval::approval(&context, command).await,
        Command::Inv(command) => inv::inv(&context, command).await,
        Command::Journal(command) => journal::journal(&context, command).await,
        Command::SshConfig(arguments) => ssh_config::ssh_config(&context, &arguments).await,
        Command::Ca(command) => ca::ca(&context, command),
        Command::Doctor => doctor::doctor(&context).await,
    }
}
