//! The `affiant` binary: arguments and environment come in here and go no further down.

mod bundle;
mod cli;
mod commands;
mod control;
mod environment;
mod hardening;
mod home;
mod logging;
mod output;
mod reconciler;
mod run_log;
mod server;
mod webhook;

#[cfg(debug_assertions)]
use anyhow::Context as _;
use std::process::ExitCode;

/// A call takes some 200 small allocations, many of them freed by another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::parse();
    let logging = cli.run_log().and_then(|log| logging::init(cli.log.as_deref(), log));
    if let Err(error) = logging {
        return output::fail(&error);
    }
    #[cfg(debug_assertions)]
    if let Err(error) = arm_failpoint() {
        return output::fail(&error);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output::fail(&anyhow::Error::new(error).context("start the runtime")),
    };
    let code = match runtime.block_on(commands::execute(cli)) {
        Ok(code) => code,
        Err(error) => output::fail(&error),
    };
    // Blocking reads of a terminal must not hold the process back.
    runtime.shutdown_background();
    code
}

/// The place where a test build ends itself, if `AFFIANT_FAILPOINT` names one.
#[cfg(debug_assertions)]
fn arm_failpoint() -> anyhow::Result<()> {
    if let Ok(text) = std::env::var("AFFIANT_FAILPOINT") {
        journal::failpoint::arm(text.parse().context("AFFIANT_FAILPOINT")?);
    }
    Ok(())
}
