//! Plays the SSH rows: stock OpenSSH through the gateway to scripted targets, one of each row.

#![allow(clippy::indexing_slicing, reason = "a JSON value gives null for a name it does not hold")]

use super::cases::{Case, Expected, Truth, cases, expect};
use super::client::run;
use super::target::{Target, user_key};
use crate::http::{Answer, Caller, Request};
use crate::matrix::{Finding, Kind, Tally};
use crate::subject::{Error, io};
use journal::contract::{InvocationId, Outcome, Retry};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One command takes so long at most.
const PATIENCE: Duration = Duration::from_secs(40);

/// What is asked of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A command.
    Exec,
    /// A shell without a terminal.
    Shell,
    /// A subsystem.
    Subsystem,
}

impl Asked {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Shell => "shell",
            Self::Subsystem => "subsystem",
        }
    }
}

/// One row.
#[derive(Clone)]
pub struct Row {
    /// What is played.
    pub case: Arc<Case>,
    /// What is asked for.
    pub asked: Asked,
    /// Whether the route declares its commands idempotent.
    pub idempotent: bool,
}

impl Row {
    /// The row's id: its place on every axis.
    #[must_use]
    pub fn id(&self) -> String {
        let contract = if self.idempotent { "idempotent" } else { "plain" };
        format!("ssh/{}/{contract}/{}", self.asked.as_str(), self.case.name)
    }
}

/// Every row: each case for a command on both kinds of route, and what comes after dispatch for a
/// shell and a subsystem as well. Where the target goes silent, only a command has a deadline: a shell
/// may be quiet for hours, and its user ends it.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases().into_iter().map(Arc::new) {
        let untouched = matches!(case.truth, Truth::Untouched(_));
        let silent = case.steps.last() == Some(&super::Step::Stall);
        for (asked, idempotent) in [
            (Asked::Exec, false),
            (Asked::Exec, true),
            (Asked::Shell, false),
            (Asked::Subsystem, false),
        ] {
            let plain_exec = asked == Asked::Exec && !idempotent;
            if plain_exec || !untouched && (asked == Asked::Exec || !silent) {
                rows.push(Row { case: Arc::clone(&case), asked, idempotent });
            }
        }
    }
    rows
}

/// What holds a row's port.
enum Place {
    Target(Target),
    /// Bound without listening.
    Refusing(TcpSocket),
}

/// Rows with their targets.
pub struct Placed {
    rows: Vec<(Row, Place)>,
    other_key: String,
    /// The private key that the gateway logs in with.
    pub user_key: String,
}

/// A row that was played.
pub struct Played {
    /// The row.
    pub row: Row,
    /// Lies and shrugs.
    pub findings: Vec<Finding>,
}

/// What a run gave.
pub struct Report {
    /// The gateway's name.
    pub broker: String,
    /// Every row that was played, by id.
    pub played: Vec<Played>,
}

/// How the gateway is reached.
#[derive(Clone)]
pub struct Gateway {
    /// A configuration for `ssh` that trusts the gateway.
    pub config: PathBuf,
    /// `AGENT@HOST:PORT`, as `ssh -J` takes it.
    pub jump: String,
    /// Reads records through the proxy.
    pub caller: Caller,
}

/// What both sides saw of one row.
struct Observed {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<i32>,
    requests: usize,
    altered: bool,
    record: Option<Value>,
}

impl Placed {
    /// Starts the targets in the current runtime.
    ///
    /// # Errors
    /// What the operating system says of sockets.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(rows: Vec<Row>) -> std::io::Result<Self> {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut placed = Vec::new();
        for row in rows {
            let place = if row.case.listens {
                let listener = TcpListener::bind(loopback)?;
                let steps = row.case.steps.clone();
                Place::Target(Target::spawn(listener, row.case.opening, steps)?)
            } else {
                let socket = TcpSocket::new_v4()?;
                socket.bind(loopback)?;
                Place::Refusing(socket)
            };
            placed.push((row, place));
        }
        let other = Target::spawn(TcpListener::bind(loopback)?, super::Opening::Serve, Vec::new())?;
        Ok(Self { rows: placed, other_key: other.host_key(), user_key: user_key()? })
    }

    /// How many rows it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The policy for Affiant; its vault needs [`Self::user_key`] under the name `row-key`.
    ///
    /// # Errors
    /// When a port was lost.
    pub fn policy(&self) -> std::io::Result<String> {
        Ok(format!("[defaults]\nprivate_addresses = \"allow\"\n{}", self.routes()?))
    }

    /// The credential and the routes of that policy.
    ///
    /// # Errors
    /// When a port was lost.
    pub fn routes(&self) -> std::io::Result<String> {
        let mut text =
            "\n[[credential]]\nid = \"row\"\nsecret = \"row-key\"\ninject = \"ssh-key\"\n"
                .to_owned();
        for (number, (row, place)) in self.rows.iter().enumerate() {
            let (address, key) = match place {
                Place::Target(target) => (target.address(), target.host_key()),
                Place::Refusing(socket) => (socket.local_addr()?, self.other_key.clone()),
            };
            let key = if row.case.other_key { &self.other_key } else { &key };
            text.push_str(&format!(
                "\n[[ssh]]\nname = \"row{number}\"\nmatch = {{ host = \"row{number}\", port = 22, \
                 users = [\"u\"], commands = [\"*\"] }}\naddress = \"{address}\"\n\
                 host_keys = [\"{key}\"]\ncredential = \"row\"\nidempotent = {}\n\
                 limits = {{ connect_timeout = \"4s\", response_timeout = \"4s\" }}\n\
                 allow = [\"exec\", \"shell\", \"subsystem:echo\"]\n",
                row.idempotent
            ));
        }
        Ok(text)
    }

    /// Plays every row, so many at a time.
    ///
    /// # Errors
    /// [`Error`] when `ssh` can't be started.
    pub async fn play(
        self,
        broker: &str,
        gateway: &Gateway,
        at_a_time: usize,
    ) -> Result<Report, Error> {
        let seats = Arc::new(Semaphore::new(at_a_time));
        let mut tasks = JoinSet::new();
        for (number, (row, place)) in self.rows.into_iter().enumerate() {
            let (seats, gateway) = (Arc::clone(&seats), gateway.clone());
            tasks.spawn(async move {
                let closed = |_| Error::Unexpected("the seats are gone".to_owned());
                let _seat = seats.acquire_owned().await.map_err(closed)?;
                let observed = once(number, &row, &place, &gateway).await?;
                let findings = judge(&row, &observed);
                Ok::<_, Error>(Played { row, findings })
            });
        }
        let mut played = Vec::new();
        while let Some(done) = tasks.join_next().await {
            played.push(done.map_err(|error| Error::Unexpected(error.to_string()))??);
        }
        played.sort_by_key(|played: &Played| played.row.id());
        Ok(Report { broker: broker.to_owned(), played })
    }
}

async fn once(
    number: usize,
    row: &Row,
    place: &Place,
    gateway: &Gateway,
) -> Result<Observed, Error> {
    let id = crate::kill::new_id(u32::try_from(number).unwrap_or(u32::MAX));
    let host = format!("row{number}");
    let command = match row.asked {
        Asked::Exec => format!("run {}", row.case.name),
        Asked::Shell => "shell".to_owned(),
        Asked::Subsystem => "echo".to_owned(),
    };
    let ran =
        run(gateway, &host, row.asked, &command, id, PATIENCE).await.map_err(io("run ssh"))?;
    let requests = match place {
        Place::Target(target) => target.requests(),
        Place::Refusing(_) => Vec::new(),
    };
    Ok(Observed {
        stdout: ran.stdout,
        stderr: ran.stderr,
        status: ran.status,
        requests: requests.len(),
        altered: requests.iter().any(|request| *request != command.as_bytes()),
        record: record(gateway, id).await,
    })
}

async fn record(gateway: &Gateway, id: InvocationId) -> Option<Value> {
    let request = Request {
        method: "GET",
        tls: false,
        authority: "affiant.internal".to_owned(),
        path: format!("/v1/invocations/{id}?wait=5s"),
        fields: Vec::new(),
        content: None,
        early: None,
    };
    match gateway.caller.call(&request).await {
        Answer::Response(got) if got.status == 200 => serde_json::from_slice(&got.content).ok(),
        Answer::Response(_) | Answer::Nothing(_) => None,
    }
}

/// Compares what the gateway claims with what both ends saw.
fn judge(row: &Row, seen: &Observed) -> Vec<Finding> {
    let expected = expect(&row.case.truth, row.idempotent);
    let mut findings = Vec::new();
    let mut find = |kind, what: String| findings.push(Finding { kind, what });
    if seen.requests > 1 {
        find(Kind::Lie, format!("D-7: the request arrived {} times", seen.requests));
    }
    if seen.altered {
        find(Kind::Lie, "D-7: the target got another request".to_owned());
    }
    let result = (seen.status, seen.stdout.as_slice(), seen.stderr.as_slice());
    let Some(record) = &seen.record else {
        find(Kind::Shrug, format!("no record; the client saw {}", shown(seen)));
        return findings;
    };
    let text = |name: &str| record["error"][name].as_str().unwrap_or_default().to_owned();
    let (outcome, retry, code) = (text("outcome"), text("retry"), text("code"));
    let fits = |e: &&Expected| e.outcome.as_str() == outcome;
    let fitting: Vec<&Expected> = expected.iter().filter(fits).collect();
    if fitting.is_empty() {
        let known = expected.iter().all(|e| e.outcome != Outcome::Unknown);
        let kind = if outcome == "unknown" && known { Kind::Shrug } else { Kind::Lie };
        let wanted: Vec<_> = expected.iter().map(|e| e.outcome.as_str()).collect();
        find(kind, format!("record: {outcome} {code}, where it is {wanted:?}; {}", shown(seen)));
        return findings;
    }
    if outcome == "not_attempted" && seen.requests > 0 {
        find(Kind::Lie, "D-1: not_attempted, and the target read the request".to_owned());
    }
    if !fitting.iter().any(|e| e.phase.as_str() == text("phase")) {
        find(Kind::Lie, format!("M-1: phase {}", text("phase")));
    }
    if !fitting.iter().any(|e| e.retry.iter().any(|r| r.as_str() == retry)) {
        let permits = matches!(retry.parse(), Ok(Retry::Backoff | Retry::SameIdempotencyKey));
        find(if permits { Kind::Lie } else { Kind::Shrug }, format!("M-6: retry {retry}"));
    }
    if !fitting.iter().any(|e| e.codes.iter().any(|c| c.as_str() == code)) {
        find(Kind::Shrug, format!("code {code}, expected {:?}", fitting.first().map(|e| &e.codes)));
    }
    let dispatched = record["evidence"]["dispatch_started"] == true;
    if !fitting.iter().any(|e| e.dispatched == dispatched) {
        find(Kind::Lie, format!("D-1: dispatch_started is {dispatched}"));
    }
    let wanted = fitting.iter().find_map(|e| e.result.as_ref());
    match wanted {
        Some((status, stdout, stderr)) => {
            if result != (Some(*status), stdout, stderr) {
                find(Kind::Lie, format!("R-1: the result was changed: {}", shown(seen)));
            }
        }
        None => told(row, seen, &outcome, &mut find),
    }
    findings
}

/// E-5: what is not committed is told on stderr, with exit status 255.
fn told(row: &Row, seen: &Observed, outcome: &str, find: &mut impl FnMut(Kind, String)) {
    if seen.status != Some(255) {
        find(Kind::Lie, format!("E-5: exit status {:?} of a call that is {outcome}", seen.status));
    }
    let stderr = String::from_utf8_lossy(&seen.stderr);
    let envelope = stderr.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    match envelope {
        Some(envelope) if envelope["error"]["outcome"] == outcome => {}
        Some(envelope) => find(Kind::Lie, format!("E-5: envelope and record differ: {envelope}")),
        // Nothing may follow the end of the streams (RFC 4254 section 5.3), which was passed on.
        None if row.case.streams_ended => {}
        None => find(Kind::Shrug, format!("E-5: no envelope: {stderr}")),
    }
}

fn shown(seen: &Observed) -> String {
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes.get(..bytes.len().min(300)).unwrap_or_default()).into_owned()
    };
    format!(
        "status {:?}, {} bytes of stdout, stderr {:?}",
        seen.status,
        seen.stdout.len(),
        text(&seen.stderr)
    )
}

impl Report {
    /// The scores of the whole run.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for played in &self.played {
            tally.rows += 1;
            match played.findings.iter().map(|finding| finding.kind).min() {
                Some(Kind::Lie) => tally.lies += 1,
                Some(Kind::Shrug) => tally.shrugs += 1,
                None => {}
            }
        }
        tally
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let Tally { rows, lies, shrugs } = self.tally();
        let all: Vec<Value> = self
            .played
            .iter()
            .map(|played| {
                let findings: Vec<Value> = played.findings.iter().map(Finding::json).collect();
                let (id, rule) = (played.row.id(), played.row.case.rule);
                serde_json::json!({ "id": id, "rule": rule, "findings": findings })
            })
            .collect();
        serde_json::json!({
            "broker": format!("{} over SSH", self.broker),
            "rows": rows,
            "lies": lies,
            "shrugs": shrugs,
            "played": all,
        })
    }

    /// For continuous integration.
    #[must_use]
    pub fn junit(&self) -> String {
        let Tally { rows, lies, shrugs } = self.tally();
        let mut out = format!(
            "<testsuite name=\"{} over SSH\" tests=\"{rows}\" failures=\"{}\">\n",
            self.broker,
            lies + shrugs
        );
        for played in &self.played {
            let (id, rule) = (played.row.id(), played.row.case.rule);
            out.push_str(&crate::matrix::junit_case(rule, &id, None, &played.findings));
        }
        out + "</testsuite>\n"
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let Tally { rows, lies, shrugs } = self.tally();
        let mut out = format!("{:<28} {rows:>6} {lies:>6} {shrugs:>7}\n", "ssh");
        for played in &self.played {
            for Finding { kind, what } in &played.findings {
                // Writing to a string does not fail.
                let _written = writeln!(out, "{kind:?} {}: {what}", played.row.id());
            }
        }
        out
    }
}
