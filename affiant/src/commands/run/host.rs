//! The server that runs share: whoever comes first starts it, and it ends with the last of them.
//!
//! It is a process of its own, so that it outlives the run that started it while others use it.

use super::Signals;
use crate::commands::Context;
use crate::control::Listening;
use crate::control::client::{Attached, Attachment, Client};
use crate::output;
use crate::run_log::{Reader, RunLog};
use crate::server::IN_USE;
use anyhow::{Context as _, bail};
use http::Method;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// How long a run waits for a server: one that ends takes its `--drain` first.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the server takes at most to see that a run left.
const GOODBYE: Duration = Duration::from_millis(250);
/// After how long it says what it waits for.
const SILENCE: Duration = Duration::from_secs(1);

/// Every call.
const ANY: fn(&Value) -> bool = |_| true;
/// What nobody may just repeat. Tunnels that are left alone are `unknown` by nature.
const IN_DOUBT: fn(&Value) -> bool = |call| {
    let text = |pointer| call.pointer(pointer).and_then(Value::as_str);
    text("/error/retry") == Some("reconcile") && text("/action") != Some("CONNECT")
};

/// The server of the home, as one run uses it.
pub(super) struct Host {
    pub(super) listening: Listening,
    client: Client,
    attachment: Attachment,
    /// If this run started it.
    process: Option<Process>,
}

impl Host {
    /// Uses the server that serves the home, or starts one.
    pub(super) async fn join(context: &Context) -> anyhow::Result<Self> {
        let home = &context.home;
        let until = Instant::now() + PATIENCE;
        let mut process: Option<Process> = None;
        while Instant::now() < until {
            match Client::attach(home).await? {
                Attached::To(attachment) => {
                    let listening = Client::listening(home).await?;
                    let listening = listening.context("the server ended again")?;
                    let client = Client::Socket(home.socket());
                    return Ok(Self { listening, client, attachment, process });
                }
                Attached::Ending => {}
                Attached::NoServer if process.is_none() => process = Some(Process::start(context)?),
                Attached::NoServer => {}
            }
            if let Some(started) = &mut process
                && let Some(status) = started.child.try_wait()?
            {
                // Another run, or a command that reads the records, was there first.
                if status.code() != Some(i32::from(IN_USE)) {
                    bail!("no server could be started: {}", started.log.rest().trim());
                }
                process = None;
            }
            sleep(PAUSE).await;
        }
        bail!("no server of {} became ready within {PATIENCE:?}", home.path().display())
    }

    /// Waits until the server is gone, and says so: what the command calls from then on goes nowhere.
    pub(super) async fn lost(&mut self) {
        self.attachment.lost().await;
        output::note(
            "affiant: the server ended; start the command anew to have its calls pass (its log is \
             runs.log in the home)",
        );
        if let Some(process) = &mut self.process {
            process.pass_on();
        }
    }

    /// What of the agent's calls since a time did not come to its end, one line a kind; each at least so many.
    pub(super) async fn to_look_at(&self, agent: &str, since: time::OffsetDateTime) -> Vec<String> {
        let format = &time::format_description::well_known::Rfc3339;
        let Ok(since) = since.format(format) else { return Vec::new() };
        let of = |outcome: &str| {
            format!("/v1/invocations?outcome={outcome}&limit=500&agent={agent}&since={since}")
        };
        let mut lines = Vec::new();
        for (outcome, words, counts) in [
            ("not_attempted", ["call was not attempted", "calls were not attempted"], ANY),
            ("unknown", ["call ended in doubt", "calls ended in doubt"], IN_DOUBT),
        ] {
            let listed = self.client.json(&of(outcome)).await.ok();
            let listed = listed.as_ref().and_then(|page| page.get("invocations")?.as_array());
            let number = listed.map_or(0, |all| all.iter().filter(|one| counts(one)).count());
            let [one, many] = words;
            if number > 0 {
                let words = if number == 1 { one } else { many };
                lines.push(format!(
                    "affiant: {number} {words}: affiant inv list --agent {agent} --outcome {outcome}"
                ));
            }
        }
        lines
    }

    /// Uses it no more. If this run started it and nobody else uses it, waits for its end: what comes
    /// next finds the home free.
    pub(super) async fn leave(self, signals: &mut Signals) {
        let Self { client, attachment, process, .. } = self;
        drop(attachment);
        let Some(mut process) = process else { return };
        let left = Instant::now();
        let mut is_said = false;
        loop {
            tokio::select! {
                _ = process.child.wait() => break,
                () = signals.ending() => break,
                () = sleep(PAUSE) => {}
            }
            // Shortly after it left, this run itself may still be counted.
            let others = left.elapsed() > GOODBYE && runs(&client).await.is_some_and(|n| n > 0);
            if others {
                output::note("affiant: the server goes on for other runs");
                break;
            }
            if left.elapsed() > SILENCE && !is_said {
                output::note(
                    "affiant: waiting for calls under way (Ctrl-C leaves them to the server)",
                );
                is_said = true;
            }
        }
        process.pass_on();
    }
}

async fn runs(client: &Client) -> Option<u64> {
    let health = client.call(Method::GET, "/v1/health", bytes::Bytes::new()).await.ok()?;
    let health: serde_json::Value = serde_json::from_slice(health.body()).ok()?;
    health.get("runs")?.as_u64()
}

/// A server that this run started.
struct Process {
    child: Child,
    log: Reader,
}

impl Process {
    fn start(context: &Context) -> anyhow::Result<Self> {
        let log = RunLog::open(context.home.path()).context("open the server's log")?;
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command.arg("--home").arg(context.home.path());
        if let Some(filter) = &context.log {
            command.args(["--log", filter]);
        }
        let child = command
            .args(["serve", "--for-runs", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.writer().context("share the server's log")?)
            // What a terminal sends to the command ends no server.
            .process_group(0)
            .spawn()
            .context("start a server")?;
        Ok(Self { child, log: log.into() })
    }

    /// Shows what the server said and was not shown yet.
    fn pass_on(&mut self) {
        self.log.rest().lines().for_each(output::note);
    }
}
