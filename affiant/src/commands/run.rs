//! `affiant run -- CMD`: a command whose every call goes through the proxy.

mod host;

use super::Context;
use crate::cli::Run;
use crate::{bundle, environment, output};
use anyhow::{Context as _, bail};
use host::Host;
use policy::{Policy, Snapshot};
use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) async fn run(context: &Context, arguments: Run) -> anyhow::Result<ExitCode> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        bail!("name the command after `--`");
    };
    // The environment and the store's key are of no use to the command (contract I-2).
    crate::hardening::forbid_dumps();
    context.home.require()?;
    let mut host = Host::join(context).await?;
    let http = host.listening.http.context(
        "the server of this home has no proxy in clear text, which a run needs: --http is off",
    )?;
    let policy = Policy::open(context.home.path()).context("open the policy store")?;
    let ca = proxy::Ca::load(&context.home.ca()).context("read the CA")?;
    let bundle = bundle::write(&context.home, ca.certificate_pem())?;
    let wgetrc = bundle::write_wgetrc(&context.home, &bundle)?;
    let mut signals = Signals::new()?;
    let session = policy
        .add_session(&arguments.agent)
        .with_context(|| format!("give agent {:?} a token for this run", arguments.agent))?;
    let url = proxy_url("http", &arguments.agent, &session.token, http)?;

    let mut command = tokio::process::Command::new(program);
    for name in &hidden_variables(&policy.snapshot(), &arguments.hide) {
        output::note(&format!("affiant: the command does not get {name}"));
        command.env_remove(name);
    }
    let began = time::OffsetDateTime::now_utc();
    let child = command
        .args(rest)
        .envs(environment::all(&url, &arguments.no_proxy, &bundle))
        .env("SYSTEM_WGETRC", wgetrc)
        .env("AFFIANT_AGENT", &arguments.agent)
        // The home holds the vault's key; a command has no use for its path.
        .env_remove("AFFIANT_HOME")
        .env_remove("CREDENTIALS_DIRECTORY")
        .spawn();
    let code = match child {
        Ok(child) => {
            let mut exit = std::pin::pin!(signals.pass_on_until_exit(child));
            let status = tokio::select! {
                status = &mut exit => status,
                () = host.lost() => exit.await,
            };
            status.map(exit_code)
        }
        Err(error) => {
            output::note(&format!("affiant: start {}: {error}", program.display()));
            Ok(not_started(&error))
        }
    };
    if let Err(error) = policy.remove_session(&session) {
        output::note(&format!("affiant: the token of this run could not be withdrawn: {error}"));
    }
    for line in host.to_look_at(&arguments.agent, began).await {
        output::note(&line);
    }
    host.leave(&mut signals).await;
    code
}

/// What the command would inherit although the broker takes secrets from there (contract I-2): the
/// server may be in this very process, with this environment.
fn hidden_variables(snapshot: &Snapshot, more: &[String]) -> Vec<String> {
    let from_policy = snapshot.secret_variables().into_iter();
    let names: BTreeSet<&str> = from_policy.chain(more.iter().map(String::as_str)).collect();
    let is_set = |name: &&&str| std::env::var_os(name).is_some();
    names.iter().filter(is_set).map(|name| (*name).to_owned()).collect()
}

pub(super) fn proxy_url(
    scheme: &str,
    agent: &str,
    token: &policy::Secret,
    address: SocketAddr,
) -> anyhow::Result<String> {
    let token = std::str::from_utf8(token.expose()).context("read the token")?;
    Ok(format!("{scheme}://{agent}:{token}@{address}"))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The status by which shells say that a command is not there, or can't be run.
fn not_started(error: &std::io::Error) -> ExitCode {
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// The signals that are passed on to the command.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for one that ends this process.
    async fn ending(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.quit.recv() => {}
        }
    }

    async fn pass_on_until_exit(&mut self, mut child: Child) -> anyhow::Result<ExitStatus> {
        use rustix::process::Signal;
        // A terminal sends these to its whole foreground group: the command has them already.
        let from_terminal = std::io::stdin().is_terminal();
        loop {
            let received = tokio::select! {
                status = child.wait() => return status.context("wait for the command"),
                _ = self.terminate.recv() => Signal::TERM,
                _ = self.hangup.recv() => Signal::HUP,
                _ = self.user1.recv() => Signal::USR1,
                _ = self.user2.recv() => Signal::USR2,
                _ = self.interrupt.recv() => if from_terminal { continue } else { Signal::INT },
                _ = self.quit.recv() => if from_terminal { continue } else { Signal::QUIT },
            };
            let pid = child
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid
                && let Err(error) = rustix::process::kill_process(pid, received)
            {
                tracing::warn!("the command could not be signalled: {error}");
            }
        }
    }
}
