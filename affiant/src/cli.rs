//! The command line.

mod records;
mod units;

pub(crate) use records::{Approval, Inv, Journal, Seal};
pub(crate) use units::{Listener, Place};

use crate::home::Home;
use crate::run_log::RunLog;
use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use units::{address, age, host_name, listener, place, size, span};

/// A forward proxy and SSH jump gateway for agents: it injects credentials that the agent never
/// sees, and reports what its records prove about every call.
#[derive(Debug, Parser)]
#[command(name = "affiant", version, propagate_version = true)]
pub(crate) struct Cli {
    /// The home: CA, vault, policy, journal [env: AFFIANT_HOME] [default: the platform's data directory
    /// + affiant]
    #[arg(long, global = true, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) home: Option<std::ffi::OsString>,
    /// Print records as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log filter, for example `info` or `affiant=debug`
    #[arg(long, global = true, env = "AFFIANT_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The log of a server for runs, which has no terminal.
    pub(crate) fn run_log(&self) -> anyhow::Result<Option<RunLog>> {
        if let Command::Serve(listen) = &self.command
            && listen.for_runs
        {
            let home = Home::resolve(self.home.clone().map(PathBuf::from))?;
            return Ok(Some(RunLog::open(home.path()).context("open the server's log")?));
        }
        Ok(None)
    }
}

/// Reads the arguments, or says what is wrong with them and ends.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let Some(words) = instead_of(error.kind(), std::env::args_os()) else { error.exit() };
        crate::output::note(words);
        std::process::exit(2)
    })
}

/// What is said instead of clap's words, which repeat the argument that is wrong: where secrets are
/// given, that may be a secret.
fn instead_of(
    kind: ErrorKind,
    mut arguments: impl Iterator<Item = impl AsRef<OsStr>>,
) -> Option<&'static str> {
    let harmless = matches!(
        kind,
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
    );
    let takes_secrets = |word: &OsStr| ["init", "secret", "vault"].iter().any(|name| word == *name);
    (!harmless && arguments.any(|word| takes_secrets(word.as_ref()))).then_some(
        "affiant: an argument too many, or one that is not known. Secrets and passphrases never stand \
         among the arguments: give them on stdin or at the prompt (a value that was typed here is in \
         the shell's history now). `--help` behind the command lists its arguments",
    )
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the home; safe to run twice
    Init(Init),
    /// Run proxy, SSH gateway and control API in the foreground
    Serve(Listen),
    /// Run a command with proxy and CA environment set; starts a server when none serves this home
    Run(Run),
    /// The main job on an embedded set-up with nothing installed and no network
    Demo,
    /// Policy: versioned snapshots
    #[command(subcommand)]
    Policy(Policy),
    /// Secrets of the vault
    #[command(subcommand)]
    Secret(Secret),
    /// The vault's state
    #[command(subcommand)]
    Vault(Vault),
    /// Who may call
    #[command(subcommand)]
    Agent(Agent),
    /// Calls that wait for the approval of a person
    #[command(subcommand)]
    Approval(Approval),
    /// Invocations
    #[command(subcommand)]
    Inv(Inv),
    /// The evidence log
    #[command(subcommand)]
    Journal(Journal),
    /// Print an OpenSSH client configuration that leads through the gateway
    SshConfig(SshConfig),
    /// The certificate authority
    #[command(subcommand)]
    Ca(Ca),
    /// Check the set-up as a user would need it
    Doctor,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Protect the vault by a passphrase (asked for, or read from stdin) instead of a key file
    #[arg(long)]
    pub(crate) passphrase: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Listen {
    /// Address of the HTTP proxy; port 0 takes a free one, `off` leaves it out
    #[arg(long, default_value = "127.0.0.1:7780", value_name = "ADDR", value_parser = listener)]
    pub(crate) http: Listener,
    /// Serve the HTTP proxy over TLS as well (`https://` as the scheme of the proxy's URL)
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) https: Option<SocketAddr>,
    /// A name or address that this listener's certificate is for; the home's CA signs it
    #[arg(long, value_name = "NAME", requires = "https", conflicts_with = "https_cert")]
    #[arg(default_values = ["localhost", "127.0.0.1", "::1"])]
    pub(crate) https_name: Vec<String>,
    /// A certificate chain (PEM) for this listener instead
    #[arg(long, value_name = "FILE", requires_all = ["https_key", "https"])]
    pub(crate) https_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["https_cert", "https"])]
    pub(crate) https_key: Option<PathBuf>,
    /// A DNS server to ask; may be given more than once [default: those of the system]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) name_server: Vec<SocketAddr>,
    /// Address of the SSH gateway; `off` leaves it out
    #[arg(long, default_value = "127.0.0.1:7722", value_name = "ADDR", value_parser = listener)]
    pub(crate) ssh: Listener,
    /// A name by which clients reach the SSH gateway, for its host certificate; may be given more than
    /// once [always in it: 127.0.0.1, localhost, ::1 and the address that a client connected to]
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    pub(crate) ssh_name: Vec<String>,
    /// Serve the control API for operators on this loopback address as well
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) console: Option<SocketAddr>,
    /// Drop evidence that is older, in whole segments, for example 90d [default: keep everything]
    #[arg(long, env = "AFFIANT_JOURNAL_MAX_AGE", value_name = "AGE", value_parser = age)]
    pub(crate) journal_max_age: Option<Duration>,
    /// Drop the oldest segments above this size, for example 20GiB [default: keep everything]
    #[arg(long, env = "AFFIANT_JOURNAL_MAX_SIZE", value_name = "SIZE", value_parser = size)]
    pub(crate) journal_max_size: Option<u64>,
    /// How long SIGTERM waits for calls under way before it cuts them
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = age)]
    pub(crate) drain: Duration,
    /// End with the last `affiant run` that uses this server
    #[arg(long, hide = true)]
    pub(crate) for_runs: bool,
    /// For benches only: acknowledge journal records before they are on disk
    #[arg(long, hide = true)]
    pub(crate) unsafe_no_sync: bool,
}

impl Listen {
    /// How long the journal keeps its segments.
    pub(crate) const fn retention(&self) -> journal::Retention {
        journal::Retention { max_age: self.journal_max_age, max_bytes: self.journal_max_size }
    }

    /// Both gateways on an address, everything else as by default.
    pub(crate) const fn on(address: SocketAddr) -> Self {
        Self {
            http: Listener::At(address),
            https: None,
            https_name: Vec::new(),
            https_cert: None,
            https_key: None,
            name_server: Vec::new(),
            ssh: Listener::At(address),
            ssh_name: Vec::new(),
            console: None,
            journal_max_age: None,
            journal_max_size: None,
            drain: Duration::from_secs(30),
            for_runs: false,
            unsafe_no_sync: false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The agent in whose name the command calls
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) agent: String,
    /// Hosts that are reached without the proxy, comma-separated (for example localhost,127.0.0.1)
    #[arg(long, default_value = "", value_name = "HOSTS")]
    pub(crate) no_proxy: String,
    /// A variable that the command does not get, beside those that policy takes secrets from; may be given
    /// more than once
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) hide: Vec<String>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Check a policy file without applying it
    Check {
        /// The policy file [default: policy.toml of the home]
        file: Option<PathBuf>,
    },
    /// Apply a policy file as the next snapshot
    Apply {
        /// The policy file [default: policy.toml of the home]
        file: Option<PathBuf>,
    },
    /// Print the current policy
    Show {
        /// Another version than the one in force
        #[arg(value_name = "N")]
        number: Option<u64>,
    },
    /// List the snapshots
    History,
    /// Make an earlier snapshot the next one
    Rollback {
        /// The version to go back to
        #[arg(value_name = "N")]
        number: u64,
    },
    /// Compare a policy with a file of expectations
    Test {
        /// The expectations
        file: PathBuf,
        /// The policy file to judge [default: the version in force]
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
    },
    /// Say what differs: the version in force and a file, or two versions
    Diff {
        /// A policy file [default: the home's], or the number of the earlier version
        before: Option<String>,
        /// The number of the later version
        after: Option<u64>,
    },
    /// Write a draft policy from the calls that passed under `egress = "observe"`
    Learn {
        /// Only calls of this agent
        #[arg(long)]
        agent: Option<String>,
        /// RFC 3339 time, or an age such as 15m, 6h, 2d
        #[arg(long)]
        since: Option<String>,
        /// Also take in calls that were denied
        #[arg(long)]
        denied: bool,
        /// Write the draft here instead of stdout; a file that exists is left alone
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Say which rule decides a call, and what would be injected
    Explain {
        /// The agent that calls
        #[arg(long)]
        agent: String,
        /// A header field of the request, for routes with conditions
        #[arg(long, value_name = "NAME: VALUE")]
        header: Vec<String>,
        /// The content of the request, for routes with conditions on it: JSON, or `@FILE`
        #[arg(long, value_name = "JSON")]
        body: Option<String>,
        /// METHOD URL, `ssh USER@HOST[:PORT] COMMAND`, `sftp USER@HOST`, `subsystem NAME USER@HOST`
        /// or `forward USER@HOST TO:PORT`
        #[arg(required = true, num_args = 2.., trailing_var_arg = true, value_names = ["METHOD", "URL"])]
        call: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Secret {
    /// Set a secret; the value comes from stdin or a prompt, never from the arguments
    Set(SecretValue),
    /// Set a new version of a secret that exists
    Rotate(SecretValue),
    /// List names and versions
    List,
    /// List the versions of a secret: when and by whom they were set, and their tags
    Versions {
        /// Its name
        name: String,
    },
    /// Remove a secret
    Rm {
        /// Its name
        name: String,
    },
}

/// A secret that gets a new version.
#[derive(Debug, Args)]
pub(crate) struct SecretValue {
    /// Its name
    pub(crate) name: String,
    /// A word on the new version that is no secret: a ticket, a key's id. May be given more than once
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Vault {
    /// Locked or unlocked
    Status,
    /// Unlock the running server's vault: with the passphrase, with the key that was handed out, or by
    /// the keyring
    Unlock,
    /// Lock the running server's vault
    Lock,
    /// Change the vault's master key; every secret is moved to the new one
    Rotate(VaultRotate),
}

/// Where the new master key comes from; without an option, from where the old one does.
#[derive(Debug, Args)]
pub(crate) struct VaultRotate {
    /// Keep it in a key file in the home
    #[arg(long)]
    pub(crate) key_file: bool,
    /// Protect it by a passphrase, asked for, or read from stdin: first the old one if there is one,
    /// then the new one on a line of its own
    #[arg(long, conflicts_with = "key_file")]
    pub(crate) passphrase: bool,
    /// Keep it in the keyring of the desktop (Secret Service), by the program `secret-tool`
    #[arg(long, conflicts_with_all = ["key_file", "passphrase"])]
    pub(crate) keyring: bool,
    /// Write it to this file and expect it at start as the systemd credential `affiant-vault-key`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key_file", "keyring", "passphrase"])]
    pub(crate) hand_out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Agent {
    /// Add an agent; prints its token and proxy URL once
    Add {
        /// Its name
        name: String,
        /// End its access after this time, for example 30d [default: never]
        #[arg(long, value_name = "TIME", value_parser = span)]
        lasts: Option<Duration>,
    },
    /// List the agents
    List,
    /// Give an agent a new token; the old one ends
    Rotate {
        /// Its name
        name: String,
        /// Let the old token work for so long, for example 1h
        #[arg(long, value_name = "TIME", value_parser = span)]
        overlap: Option<Duration>,
        /// End its access after this time [default: as the old token was to last]
        #[arg(long, value_name = "TIME", value_parser = span)]
        lasts: Option<Duration>,
    },
    /// Remove an agent
    Rm {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SshConfig {
    /// The agent that the configuration logs in as
    #[arg(long, default_value = "local", value_name = "NAME")]
    pub(crate) agent: String,
    /// Name or address and port of the SSH gateway [default: the running server's, else 127.0.0.1:7722]
    #[arg(long, value_name = "HOST:PORT", value_parser = place)]
    pub(crate) gateway: Option<Place>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ca {
    /// The CA certificate, PEM
    Cert,
    /// The path of a bundle that also holds the system's roots
    Bundle,
    /// Shell exports of the CA variables
    Env,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
