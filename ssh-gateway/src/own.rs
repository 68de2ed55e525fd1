//! The gateway's own commands, `ssh AGENT@GATEWAY inv ...`: reads of the agent's own invocations, and
//! what the record lets be done with them (contract E-5, R-3, T-2). None of them is an invocation, so
//! none is recorded; what `retry` and `reconcile` send is.
//!
//! Exit status 0: done; 1: asked for properly, but the answer is no; 2: wrong usage.

use crate::channel;
use crate::control::Control;
use crate::downstream::{Downstream, End};
use crate::gateway::Shared;
use crate::jump::LOGIN_OVER;
use crate::request::{Agent, Request};
use crate::spool::{Inlet, spool};
use bytes::Bytes;
use http::Method;
use russh::Channel;
use russh::server::{Handle, Msg};
use std::sync::Arc;

const USAGE: &str = "\
This is the SSH gateway of Affiant.
  ssh -J AGENT@GATEWAY USER@TARGET COMMAND   runs a command through it
  ssh 'USER%TARGET'@GATEWAY COMMAND          the same without a jump
  ssh AGENT@GATEWAY inv list [--outcome O] [--phase P] [--code C] [--since T] [--limit N] [--cursor C]
  ssh AGENT@GATEWAY inv show ID [--wait 10s]
  ssh AGENT@GATEWAY inv events ID
  ssh AGENT@GATEWAY inv result ID [--stream stdout|stderr] [--from BYTE]
  ssh AGENT@GATEWAY inv decide ID
  ssh AGENT@GATEWAY inv retry ID
  ssh AGENT@GATEWAY inv reconcile ID
  ssh AGENT@GATEWAY inv ack ID
";

/// What a command prints, and its exit status.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    stdout: Bytes,
    stderr: Bytes,
    status: u32,
}

impl Answer {
    fn refused(status: u32, text: impl Into<Bytes>) -> Self {
        Self { stderr: text.into(), status, stdout: Bytes::new() }
    }
}

/// One request of the control API.
#[derive(Debug, PartialEq, Eq)]
struct Ask {
    method: Method,
    path: String,
    /// Where to resume a result.
    from: Option<u64>,
    /// Whether it asks for a stored result, as it is.
    is_result: bool,
    /// Whether it asks for one stream of it.
    names_stream: bool,
}

/// Serves one session channel of an agent.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    inlet: Inlet,
    agent: Agent,
    channel: Channel<Msg>,
    handle: Handle,
) {
    let (mut read, write) = channel.split();
    let Some((request, preparation)) = channel::prepare(&mut read).await else { return };
    let (spool, attendance) = spool(read, inlet, shared.standing(&agent));
    // None of the commands reads anything.
    drop(spool);
    let has_terminal = preparation.terminal.is_some();
    let stall = shared.options.client_stall;
    let mut downstream = Downstream::new(write, handle, attendance, stall, has_terminal);
    let answer = if shared.is_current(&agent) {
        answer(shared.control.as_deref(), &agent.name, &request).await
    } else {
        Answer::refused(1, format!("affiant: {LOGIN_OVER}\n"))
    };
    downstream.send(None, lines(answer.stdout, has_terminal)).await;
    downstream.send(Some(1), lines(answer.stderr, has_terminal)).await;
    if downstream.end(&End::Status(answer.status)).await.is_none() {
        tracing::debug!("an answer of the gateway's own did not arrive; it can be asked again");
    }
    downstream.close().await;
}

/// Line ends for a terminal, which nothing else makes here.
fn lines(text: Bytes, has_terminal: bool) -> Bytes {
    if !has_terminal {
        return text;
    }
    let mut shown = Vec::with_capacity(text.len());
    for byte in text {
        if byte == b'\n' {
            shown.push(b'\r');
        }
        shown.push(byte);
    }
    Bytes::from(shown)
}

async fn answer(control: Option<&dyn Control>, agent: &str, request: &Request) -> Answer {
    let text = match request {
        Request::Shell => return Answer { stdout: USAGE.into(), ..Answer::default() },
        Request::Subsystem(_) | Request::Forward { .. } => {
            return Answer::refused(2, "affiant: the gateway itself has no subsystems; jump on\n");
        }
        Request::Exec(command) => String::from_utf8_lossy(command),
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    if matches!(words.as_slice(), [] | ["help" | "--help"]) {
        return Answer { stdout: USAGE.into(), ..Answer::default() };
    }
    let ask = match parse(&words) {
        Ok(ask) => ask,
        Err(error) => return Answer::refused(2, format!("affiant: {error}\n{USAGE}")),
    };
    match control {
        Some(control) => perform(control, agent, ask).await,
        None => Answer::refused(1, "affiant: this gateway runs without a control API\n"),
    }
}

/// Reads a command line. Values go into the path of a request, so only plain ones are taken.
fn parse(words: &[&str]) -> Result<Ask, String> {
    let ["inv", verb, rest @ ..] = words else {
        return Err("the gateway's own commands begin with `inv`".to_owned());
    };
    let known: &[&str] = match *verb {
        "list" => &["--outcome", "--phase", "--code", "--since", "--limit", "--cursor"],
        "show" => &["--wait"],
        "result" => &["--from", "--stream"],
        "events" | "decide" | "retry" | "reconcile" | "ack" => &[],
        other => return Err(format!("there is no command `inv {}`", shown(other))),
    };
    let mut path = "/v1/invocations".to_owned();
    let mut rest = rest;
    if *verb != "list" {
        let [id, more @ ..] = rest else { return Err(format!("`inv {verb}` needs an id")) };
        let is_id =
            id.starts_with("act_") && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_id {
            return Err("an invocation id looks like act_01J9Z...".to_owned());
        }
        path = format!("{path}/{id}");
        rest = more;
    }
    path.push_str(match *verb {
        "events" => "/events",
        "result" => "/result",
        "decide" => "/decision",
        "retry" => "/retry",
        "reconcile" => "/reconcile",
        "ack" => "/ack",
        _ => "",
    });
    let (mut query, mut from, mut names_stream) = (Vec::new(), None, false);
    while let [name, more @ ..] = rest {
        let [value, more @ ..] = more else { return Err(format!("{} needs a value", shown(name))) };
        if !known.contains(name) {
            return Err(format!("`inv {verb}` has no option {}", shown(name)));
        }
        if *name == "--from" {
            from = Some(value.parse().map_err(|_| "--from takes a number of bytes")?);
        } else {
            names_stream |= *name == "--stream";
            query.push(format!("{}={}", name.trim_start_matches('-'), plain(value)?));
        }
        rest = more;
    }
    if !query.is_empty() {
        path = format!("{path}?{}", query.join("&"));
    }
    let acts = matches!(*verb, "ack" | "retry" | "reconcile");
    let method = if acts { Method::POST } else { Method::GET };
    Ok(Ask { method, path, from, is_result: *verb == "result", names_stream })
}

/// A value that can stand in a query.
fn plain(value: &str) -> Result<String, String> {
    let is_plain =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'+' | b'=');
    if !value.bytes().all(is_plain) {
        return Err(format!("{} is no value", shown(value)));
    }
    Ok(value.replace('+', "%2B").replace('=', "%3D"))
}

/// A word of the client, fit for a message.
fn shown(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(40).collect()
}

async fn perform(control: &dyn Control, agent: &str, ask: Ask) -> Answer {
    let Some(response) = call(control, agent, &ask).await else {
        return Answer::refused(1, "affiant: the control API can't be asked that\n");
    };
    if !response.status().is_success() {
        let status = if response.status() == http::StatusCode::BAD_REQUEST { 2 } else { 1 };
        return Answer::refused(status, problem(response.body()));
    }
    let is_ssh = response.headers().get("affiant-result").is_some_and(|kind| kind == "ssh");
    if !ask.is_result {
        return Answer { stdout: pretty(response.body()), ..Answer::default() };
    }
    let mut answer = Answer { stdout: response.into_body(), ..Answer::default() };
    if is_ssh && ask.from.is_none() && !ask.names_stream {
        let stderr = Ask { path: format!("{}?stream=stderr", ask.path), ..ask };
        if let Some(response) = call(control, agent, &stderr).await
            && response.status().is_success()
        {
            answer.stderr = response.into_body();
        }
    }
    answer
}

async fn call(control: &dyn Control, agent: &str, ask: &Ask) -> Option<http::Response<Bytes>> {
    let uri = format!("http://affiant.internal{}", ask.path);
    let mut request = http::Request::builder().method(ask.method.clone()).uri(uri);
    if let Some(from) = ask.from {
        request = request.header(http::header::RANGE, format!("bytes={from}-"));
    }
    Some(control.call(agent, request.body(Bytes::new()).ok()?).await)
}

/// JSON as people read it.
fn pretty(body: &Bytes) -> Bytes {
    let shown = serde_json::from_slice::<serde_json::Value>(body)
        .and_then(|value| serde_json::to_string_pretty(&value));
    shown.map_or_else(|_| body.clone(), |text| Bytes::from(format!("{text}\n")))
}

/// A problem document in one line.
fn problem(body: &Bytes) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| value.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
    let code = text("code").unwrap_or_else(|| "REFUSED".to_owned());
    let detail = text("detail").or_else(|| text("title")).unwrap_or_default();
    format!("affiant: {code}: {detail}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<&str, &str>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let parsed = parse(&words).map(|ask| format!("{} {}", ask.method, ask.path));
        assert_eq!(parsed, expected.map(str::to_owned).map_err(str::to_owned), "{line}");
    }

    #[test]
    fn commands_become_requests_and_nothing_else_does() {
        check("inv list", Ok("GET /v1/invocations"));
        let list = "inv list --outcome unknown --since 2026-01-01T00:00:00+01:00";
        check(list, Ok("GET /v1/invocations?outcome=unknown&since=2026-01-01T00:00:00%2B01:00"));
        check("inv show act_01", Ok("GET /v1/invocations/act_01"));
        check("inv decide act_01", Ok("GET /v1/invocations/act_01/decision"));
        check("inv result act_01 --from 7", Ok("GET /v1/invocations/act_01/result"));
        let stderr = "inv result act_01 --stream stderr --from 7";
        check(stderr, Ok("GET /v1/invocations/act_01/result?stream=stderr"));
        check("inv ack act_01", Ok("POST /v1/invocations/act_01/ack"));
        check("inv retry act_01", Ok("POST /v1/invocations/act_01/retry"));
        check("inv reconcile act_01", Ok("POST /v1/invocations/act_01/reconcile"));
        check("inv show act_01/../../vault", Err("an invocation id looks like act_01J9Z..."));
        check("inv show", Err("`inv show` needs an id"));
        check("inv list --agent other", Err("`inv list` has no option --agent"));
        check("inv list --since a&b", Err("a&b is no value"));
        check("inv attest act_01", Err("there is no command `inv attest`"));
        check("uname -a", Err("the gateway's own commands begin with `inv`"));
    }
}
