//! Plays the matrix as the arguments say.

use crate::arguments::{Arguments, Error as Usage, Subject};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use conformance::http::{Answer, Caller, Origin, Request, Script};
use conformance::kill::under_way::{self, Kills};
use conformance::matrix::{Broker, Dialect, LOOPBACK, Plan, PlanError, Report, Row, Tally, rows};
use conformance::numbers::seed;
use conformance::ssh::{self, Placed};
use conformance::subject::{self, Home, trust};
use std::io;
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rows at the same time.
const AT_A_TIME: usize = 24;
/// How long a proxy may take for a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// The matrix could not be played.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Usage(#[from] Usage),
    #[error("the rows could not be prepared")]
    Plan(#[from] PlanError),
    #[error("the proxy could not be used")]
    Subject(#[from] subject::Error),
    #[error("{0}")]
    Proxy(String),
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    #[error("the machine did not let it")]
    Io(#[from] io::Error),
}

/// What one subject gave.
struct Played {
    name: String,
    reports: Vec<Report>,
    kills: Option<Kills>,
}

pub(crate) fn run(arguments: Arguments) -> Result<(String, u8), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut all = Vec::new();
    for subject in &arguments.subjects {
        let reports = runtime.block_on(play(subject, &arguments))?;
        let name = reports.first().map(|report| report.broker.clone()).unwrap_or_default();
        let kills = match arguments.kills {
            Some(kills) => killed(subject, kills)?,
            None => None,
        };
        all.push(Played { name, reports, kills });
    }
    write_reports(&arguments, &all)?;
    let lied = all.iter().flat_map(|one| &one.reports).any(|report| report.tally().lies > 0);
    Ok((text(&all), u8::from(lied)))
}

/// As JSON and as JUnit, where they are wanted.
fn write_reports(arguments: &Arguments, all: &[Played]) -> Result<(), Error> {
    let reports = || all.iter().flat_map(|one| &one.reports);
    if let Some(file) = &arguments.json {
        let values: Vec<_> = reports().map(Report::json).collect();
        write(file, &format!("{:#}\n", serde_json::Value::from(values)))?;
    }
    if let Some(file) = &arguments.junit {
        let suites: String = reports().map(Report::junit).collect();
        let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
        write(file, &format!("{head}\n<testsuites>\n{suites}</testsuites>\n"))?;
    }
    Ok(())
}

/// For people: each report, and the table of the README.
fn text(all: &[Played]) -> String {
    let mut text = String::new();
    for one in all {
        for report in &one.reports {
            text.push_str(&report.table());
        }
        for finding in one.kills.iter().flat_map(|kills| &kills.findings) {
            text.push_str(&format!("lost: {finding}\n"));
        }
        text.push('\n');
    }
    text.push_str(
        "| broker | rows played | lies | shrugs | kills | lost |\n|---|---|---|---|---|---|\n",
    );
    for Played { name, reports, kills } in all {
        let mut sum = Tally::default();
        for Tally { rows, lies, shrugs } in reports.iter().map(Report::tally) {
            sum.rows += rows;
            sum.lies += lies;
            sum.shrugs += shrugs;
        }
        let Tally { rows, lies, shrugs } = sum;
        let (kills, lost) = kills.as_ref().map_or_else(
            || ("-".to_owned(), "-".to_owned()),
            |kills| (kills.kills.to_string(), kills.lost.to_string()),
        );
        text.push_str(&format!("| {name} | {rows} | {lies} | {shrugs} | {kills} | {lost} |\n"));
    }
    text
}

/// Kills what was started here in the middle of calls. A gateway that forwards keeps nothing that could
/// be lost.
fn killed(subject: &Subject, kills: u32) -> Result<Option<Kills>, Error> {
    match subject {
        Subject::Affiant(binary) => Ok(Some(under_way::affiant(binary, kills, seed())?)),
        Subject::Baseline(baseline) => Ok(Some(under_way::baseline(*baseline, kills)?)),
        Subject::OpenSsh | Subject::Jump(_) | Subject::Proxy(_) => Ok(None),
    }
}

/// Soaks Affiant as the arguments say.
pub(crate) fn soak(arguments: &[String]) -> Result<(String, u8), Error> {
    let (binary, soaking) = crate::arguments::soak(arguments)?;
    let soaked = conformance::soak::soak(&binary, soaking)?;
    let sound = soaked.findings.is_empty() && soaked.lost == 0;
    Ok((format!("seed {}\n{}", soaking.seed, soaked.summary()), u8::from(!sound)))
}

fn write(file: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(file, text).map_err(|error| Error::File(file.to_owned(), error))
}

fn wanted(arguments: &Arguments) -> Vec<Row> {
    let mut rows = rows();
    if let Some(text) = &arguments.rows {
        rows.retain(|row| row.id().contains(text));
    }
    rows
}

/// Whether a gateway knows what the routes of the plan's policy declare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Routes {
    Known,
    Unknown,
}

/// The rows of SSH that were asked for and mean something for the gateway, with their targets.
fn placed(arguments: &Arguments, routes: Routes) -> Result<Placed, Error> {
    let mut rows = ssh::rows();
    rows.retain(|row| routes == Routes::Known || !row.idempotent);
    if let Some(text) = &arguments.rows {
        rows.retain(|row| row.id().contains(text));
    }
    Ok(Placed::new(rows)?)
}

async fn play(subject: &Subject, arguments: &Arguments) -> Result<Vec<Report>, Error> {
    let seats = arguments.at_a_time.unwrap_or(AT_A_TIME);
    match subject {
        Subject::Affiant(binary) => {
            let plan = Plan::new(wanted(arguments))?;
            let placed = placed(arguments, Routes::Known)?;
            let mut reports = vec![Home::new(binary)?.play(plan, seats).await?];
            if !placed.is_empty() {
                reports.push(Home::new(binary)?.play_ssh(placed, seats).await?);
            }
            Ok(reports)
        }
        Subject::Baseline(baseline) => {
            let plan = Plan::new(wanted(arguments))?;
            let running = baseline.start(plan.authority_pem())?;
            Ok(vec![plan.play(&running.broker, seats).await?])
        }
        Subject::OpenSsh => {
            let placed = placed(arguments, Routes::Unknown)?;
            let jump = ssh::Jump::start().await?;
            let gateway = jump.gateway(&placed).await?;
            Ok(vec![placed.play("ssh -J through OpenSSH", &gateway, seats).await?])
        }
        Subject::Jump(at) => {
            let placed = placed(arguments, Routes::Unknown)?;
            let directory = tempfile::tempdir()?;
            let key = arguments.ssh_key.as_deref();
            let gateway = ssh::gateway(&placed, at, key, directory.path()).await?;
            Ok(vec![placed.play(at, &gateway, seats).await?])
        }
        Subject::Proxy(url) => running(url, arguments, seats).await,
    }
}

/// Plays against a proxy that runs already, and against the SSH gateway beside it.
async fn running(url: &str, arguments: &Arguments, seats: usize) -> Result<Vec<Report>, Error> {
    let plan = Plan::new(wanted(arguments))?;
    let mut caller = caller(url)?;
    let prepared = arguments.prepare.is_some();
    let placed = arguments.ssh.is_some().then(|| placed(arguments, Routes::Known)).transpose()?;
    if let Some(directory) = &arguments.prepare {
        prepare(directory, &plan, placed.as_ref(), arguments.hook.as_deref())?;
    }
    if let (Some(file), true) = (&arguments.ca, prepared) {
        let pem =
            std::fs::read_to_string(file).map_err(|error| Error::File(file.clone(), error))?;
        caller.trust = Some(trust(&pem)?);
    }
    let dialect = dialect(&caller).await?;
    let contracts = prepared && dialect == Dialect::Affiant;
    let name = caller.proxy.to_string();
    let broker = Broker {
        name: name.clone(),
        caller: caller.clone(),
        dialect,
        contracts,
        host: LOOPBACK,
        http2: true,
    };
    let mut reports = vec![plan.play(&broker, seats).await?];
    if let (Some(placed), Some(jump), Some(config)) =
        (placed, &arguments.ssh, &arguments.ssh_config)
    {
        let (config, jump) = (config.clone(), jump.clone());
        let gateway = ssh::Gateway { config, jump, records: Some(caller) };
        reports.push(placed.play(&format!("{name} over SSH"), &gateway, seats).await?);
    }
    Ok(reports)
}

/// `http://[user:password@]host:port`
fn caller(url: &str) -> Result<Caller, Error> {
    let wrong = || Error::Proxy(format!("{url} is not http://[user:password@]host:port"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let (identity, address) =
        rest.rsplit_once('@').map_or((None, rest), |(identity, at)| (Some(identity), at));
    let proxy = address.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)?;
    let authorization = identity.map(|identity| format!("Basic {}", STANDARD.encode(identity)));
    Ok(Caller { proxy, authorization, trust: None, patience: PATIENCE })
}

fn prepare(
    directory: &Path,
    plan: &Plan,
    placed: Option<&Placed>,
    hook: Option<&str>,
) -> Result<(), Error> {
    std::fs::create_dir_all(directory).map_err(|e| Error::File(directory.to_owned(), e))?;
    let directory = directory.canonicalize()?;
    let authority = directory.join("origins.pem");
    write(&authority, plan.authority_pem())?;
    let mut policy = plan.policy(&authority)?;
    if let Some(placed) = placed {
        policy.push_str(&placed.routes()?);
        write(&directory.join("row-key"), &placed.user_key)?;
    }
    write(&directory.join("policy.toml"), &policy)?;
    let Some(hook) = hook else { return Ok(()) };
    let status = std::process::Command::new("sh").args(["-c", hook]).status()?;
    if status.success() { Ok(()) } else { Err(Error::Proxy(format!("{hook}: {status}"))) }
}

/// Asks once, and looks whether outcomes are told.
async fn dialect(caller: &Caller) -> Result<Dialect, Error> {
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None)?;
    let request = Request {
        method: "GET",
        tls: false,
        authority: origin.address().to_string(),
        path: "/".to_owned(),
        fields: Vec::new(),
        content: None,
        early: None,
    };
    match caller.call(&request).await {
        Answer::Nothing(why) => Err(Error::Proxy(format!("the proxy does not answer: {why}"))),
        Answer::Response(got) if got.field("affiant-outcome").is_some() => Ok(Dialect::Affiant),
        Answer::Response(_) => Ok(Dialect::Plain),
    }
}
