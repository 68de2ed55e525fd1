//! Kills in the middle of calls, for any proxy that the suite can start: the origin has applied the
//! effect and not answered yet. Afterwards the broker is asked what became of the call; one that
//! can't tell has lost it.

use super::new_id;
use crate::baseline::Baseline;
use crate::http::{Answer, Caller, Origin, Request, Script, Step};
use crate::subject::{Error, Home, io};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// Kills, and calls that nobody can tell of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kills {
    /// Kills.
    pub kills: u32,
    /// Calls whose effect happened and of which neither the answer nor a record says anything.
    pub lost: u32,
}

fn origin() -> Result<Origin, Error> {
    let steps = [Step::ReadBody, Step::Apply, Step::Stall];
    Origin::start(vec![Script::new("*", steps)], None).map_err(io("start an origin"))
}

/// Makes a call, ends the broker while the origin holds it, and gives what the caller got.
fn struck(
    caller: Caller,
    origin: &Origin,
    number: u32,
    kill: impl FnOnce(),
) -> Result<Answer, Error> {
    let path = format!("/struck/{number}");
    let request = Request {
        method: "POST",
        tls: false,
        authority: origin.address().to_string(),
        path: path.clone(),
        fields: vec![("Affiant-Invocation".to_owned(), new_id(number).to_string())],
        content: Some(b"amount=1".to_vec()),
        early: None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(io("make a runtime"))?;
    let call = runtime.spawn(async move { caller.call(&request).await });
    let until = std::time::Instant::now() + PATIENCE;
    while origin.effects(&path) == 0 {
        if std::time::Instant::now() > until {
            return Err(Error::Unexpected("the request did not reach the origin".to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    kill();
    runtime.block_on(call).map_err(|error| Error::Unexpected(error.to_string()))
}

/// Whether an answer says what became of the call.
fn tells(answer: &Answer) -> bool {
    super::told(answer).is_some()
}

/// Kills Affiant; its records are asked after a restart.
///
/// # Errors
/// [`Error`] when it can't be started or asked.
pub fn affiant(binary: &Path, kills: u32) -> Result<Kills, Error> {
    let home = Home::new(binary)?;
    home.policy("[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n")?;
    let origin = origin()?;
    let mut lost = 0;
    let mut serving = home.serve(&[])?;
    for number in 1..=kills {
        let caller = home.caller(serving.http, PATIENCE);
        let answer = struck(caller, &origin, number, || serving.kill())?;
        serving = home.serve(&[])?;
        let known = is_on_record(&home, &format!("/struck/{number}"))?;
        lost += u32::from(!tells(&answer) && !known);
    }
    Ok(Kills { kills, lost })
}

/// Whether the newest record is of that path, and says that the outcome is not known.
fn is_on_record(home: &Home, path: &str) -> Result<bool, Error> {
    let text = home.run(&["inv", "list", "--limit", "1", "--json"])?;
    let list: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| Error::Unexpected(format!("inv list: {error}")))?;
    let at = |pointer| list.pointer(pointer).and_then(serde_json::Value::as_str);
    let target = at("/invocations/0/target").unwrap_or_default();
    Ok(target.ends_with(path) && at("/invocations/0/error/outcome") == Some("unknown"))
}

/// Kills a baseline, which keeps no record: only its answer could tell.
///
/// # Errors
/// [`Error`] when it can't be started.
pub fn baseline(name: &str, kills: u32) -> Result<Kills, Error> {
    let origin = origin()?;
    let mut lost = 0;
    for number in 1..=kills {
        let baseline = Baseline::start(name, "")?;
        let caller = baseline.broker.caller.clone();
        let answer = struck(caller, &origin, number, || drop(baseline))?;
        lost += u32::from(!tells(&answer));
    }
    Ok(Kills { kills, lost })
}
