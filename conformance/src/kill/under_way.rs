//! Kills in the middle of calls, for any proxy that the suite can start. The origin has applied the
//! effect and not answered yet; afterwards the broker is asked what became of the call, and one that
//! can't tell has lost it. Affiant is killed at random moments of calls and commands as well.

use super::{Scene, Stage, new_id};
use crate::baseline::Baseline;
use crate::http::{Answer, Caller, Origin, Request, Script, Step};
use crate::numbers::Numbers;
use crate::pki::Authority;
use crate::subject::{Error, Home, io};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// Kills that may come too late for a call, before it is left out.
const MISSES: u32 = 8;

/// What is killed at random moments, in turn.
const SCENES: [Scene; 4] = [
    Scene::Http { tls: false, streamed: false },
    Scene::Ssh { streamed: false },
    Scene::Http { tls: true, streamed: true },
    Scene::Ssh { streamed: true },
];

/// Kills, and calls that nobody can tell of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kills {
    /// Kills.
    pub kills: u32,
    /// Calls whose effect happened and of which neither the answer nor a record says anything, or says
    /// something else than what was counted.
    pub lost: u32,
    /// What did not agree.
    pub findings: Vec<String>,
}

impl Kills {
    fn add(&mut self, findings: Vec<String>) {
        self.kills += 1;
        self.lost += u32::from(!findings.is_empty());
        self.findings.extend(findings);
    }
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

/// Kills Affiant so many times in calls that wait for their answer, and as often at moments that the
/// seed decides; its records are asked after a restart.
///
/// # Errors
/// [`Error`] when it can't be started or asked.
pub fn affiant(binary: &Path, kills: u32, seed: u64) -> Result<Kills, Error> {
    let mut all = unanswered(binary, kills)?;
    let mut stages = Vec::new();
    for scene in SCENES {
        stages.push((scene, Stage::new(binary, scene)?));
    }
    let mut numbers = Numbers::new(seed);
    let turns = stages.len();
    for turn in 0..usize::try_from(kills).unwrap_or_default() {
        let Some((scene, stage)) = stages.get_mut(turn % turns) else { continue };
        // A part of the time that the warm-up took, which dials. When the call was over by then, the
        // next moment comes earlier; only a call that was under way counts.
        let mut latest = 1.0;
        for _ in 0..MISSES {
            let part = latest * numbers.below(1_000) as f64 / 1_000.0;
            let strike = stage.kill_at(part)?;
            if strike.hit || !strike.findings.is_empty() {
                let said = |finding: String| format!("{scene:?} at {part}: {finding}");
                all.add(strike.findings.into_iter().map(said).collect());
                break;
            }
            latest /= 2.0;
        }
    }
    Ok(all)
}

/// Kills in calls whose effect has happened and that wait for their answer.
fn unanswered(binary: &Path, kills: u32) -> Result<Kills, Error> {
    let home = Home::new(binary)?;
    home.policy("[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n")?;
    let origin = origin()?;
    let mut all = Kills::default();
    let mut serving = home.serve(&[])?;
    for number in 1..=kills {
        let caller = home.caller(serving.http, PATIENCE);
        let answer = struck(caller, &origin, number, || serving.kill())?;
        serving = home.serve(&[])?;
        let path = format!("/struck/{number}");
        let known = tells(&answer) || is_on_record(&home, &path)?;
        all.add(if known { Vec::new() } else { vec![format!("{path} is not on record")] });
    }
    Ok(all)
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
pub fn baseline(baseline: Baseline, kills: u32) -> Result<Kills, Error> {
    let origin = origin()?;
    let authority = Authority::new("origins");
    let authority = authority.map_err(|error| Error::Unexpected(error.to_string()))?;
    let mut all = Kills::default();
    for number in 1..=kills {
        let running = baseline.start(authority.pem())?;
        let caller = running.broker.caller.clone();
        let answer = struck(caller, &origin, number, || drop(running))?;
        let lost = format!("/struck/{number}: {answer:?}");
        all.add(if tells(&answer) { Vec::new() } else { vec![lost] });
    }
    Ok(all)
}
