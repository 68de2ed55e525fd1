//! The server that runs share: whoever comes first starts it, and it ends with the last of them.
//!
//! It is a process of its own, so that it outlives the run that started it while others use it.

use super::Signals;
use crate::commands::{Context, inv};
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

/// Calls of one kind are counted up to here.
const ENOUGH: usize = 1_000;
/// How many of them one answer lists at most.
const PAGE: &str = "500";

/// Every call.
const ANY: fn(&Value) -> bool = |_| true;
/// What nobody may just repeat. What was passed on unjudged is `unknown` by nature.
const IN_DOUBT: fn(&Value) -> bool = |call| {
    let text = |pointer| call.pointer(pointer).and_then(Value::as_str);
    text("/error/retry") == Some("reconcile") && text("/error/code") != Some("NOT_JUDGED")
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

    /// What of the agent's calls since a time did not come to its end, one line a kind.
    pub(super) async fn to_look_at(&self, agent: &str, since: time::OffsetDateTime) -> Vec<String> {
        let format = &time::format_description::well_known::Rfc3339;
        let Ok(since) = since.format(format) else { return Vec::new() };
        let mut lines = Vec::new();
        for (outcome, words, counts) in [
            ("not_attempted", ["call was not attempted", "calls were not attempted"], ANY),
            ("unknown", ["call ended in doubt", "calls ended in doubt"], IN_DOUBT),
        ] {
            let page = async |cursor: Option<String>| {
                let mut query = vec![("outcome", outcome), ("agent", agent), ("since", &since)];
                query.push(("limit", PAGE));
                query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let query: Vec<_> =
                    query.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
                self.client.json(&inv::list_path(&query)).await
            };
            let number = match counted(counts, page).await {
                Ok(0) => continue,
                Ok(1) => format!("1 {}", words[0]),
                Ok(number) if number < ENOUGH => format!("{number} {}", words[1]),
                Ok(_) => format!("{ENOUGH} {} or more", words[1]),
                Err(error) => {
                    lines
                        .push(format!("affiant: the calls of this run can't be listed: {error:#}"));
                    break;
                }
            };
            lines.push(format!(
                "affiant: {number}: affiant inv list --agent {agent} --outcome {outcome}"
            ));
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

/// How many calls of a list count, or [`ENOUGH`]. A page without one is not its end.
async fn counted(
    counts: fn(&Value) -> bool,
    page: impl AsyncFn(Option<String>) -> anyhow::Result<Value>,
) -> anyhow::Result<usize> {
    let mut number = 0;
    let mut cursor = None;
    loop {
        let listed = page(cursor).await?;
        let calls = listed.get("invocations").and_then(Value::as_array);
        number += calls.map_or(0, |calls| calls.iter().filter(|call| counts(call)).count());
        cursor = listed.get("next").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || number >= ENOUGH {
            return Ok(number.min(ENOUGH));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::RefCell;

    /// J-1: what ended in doubt is told wherever it stands in the list, and what can be repeated does not count.
    #[tokio::test]
    async fn j_1_the_end_of_a_run_looks_behind_pages_without_a_match() {
        let call = |code, retry| json!({ "error": { "code": code, "retry": retry } });
        let asked = RefCell::new(Vec::new());
        let pages = async |cursor: Option<String>| {
            asked.borrow_mut().push(cursor.clone());
            Ok(match cursor.as_deref() {
                None => json!({ "invocations": [], "next": "a" }),
                Some("a") => json!({
                    "invocations": [call("NOT_JUDGED", "reconcile"), call("TIMEOUT", "backoff")],
                    "next": "b",
                }),
                _ => json!({ "invocations": [call("TIMEOUT", "reconcile")], "next": null }),
            })
        };
        assert_eq!(counted(IN_DOUBT, pages).await.expect("a list"), 1);
        assert_eq!(asked.take(), [None, Some("a".to_owned()), Some("b".to_owned())]);
        assert_eq!(counted(ANY, pages).await.expect("a list"), 3);
        // Of a list without an end it looks at enough.
        let full = vec![call("TIMEOUT", "never"); 300];
        let endless = async |_| Ok(json!({ "invocations": full, "next": "more" }));
        assert_eq!(counted(ANY, endless).await.expect("a list"), ENOUGH);
    }
}
