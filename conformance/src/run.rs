//! Plays the matrix as the arguments say.

use crate::arguments::{Arguments, Error as Usage, Subject};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use conformance::baseline::Baseline;
use conformance::http::{Answer, Caller, Origin, Request, Script};
use conformance::kill::under_way::{self, Kills};
use conformance::matrix::{Broker, Dialect, Plan, PlanError, Report, Row, Tally, rows};
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
    http: Report,
    ssh: Option<ssh::Report>,
    kills: Option<Kills>,
}

pub(crate) fn run(arguments: Arguments) -> Result<(String, u8), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut all = Vec::new();
    for subject in &arguments.subjects {
        let (http, ssh) = runtime.block_on(play(subject, &arguments))?;
        let kills = arguments.kills.map(|kills| killed(subject, kills)).transpose()?;
        all.push(Played { http, ssh, kills });
    }
    if let Some(file) = &arguments.json {
        let reports: Vec<_> = all
            .iter()
            .flat_map(|one| [Some(one.http.json()), one.ssh.as_ref().map(ssh::Report::json)])
            .flatten()
            .collect();
        write(file, &format!("{:#}\n", serde_json::Value::from(reports)))?;
    }
    if let Some(file) = &arguments.junit {
        let suites: String = all
            .iter()
            .map(|one| {
                let http = one.http.junit().lines().skip(1).collect::<Vec<_>>().join("\n");
                let ssh = one.ssh.as_ref().map(ssh::Report::junit).unwrap_or_default();
                format!("{http}\n{ssh}")
            })
            .collect();
        let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
        write(file, &format!("{head}\n<testsuites>\n{suites}</testsuites>\n"))?;
    }
    let mut text: String = all
        .iter()
        .map(|one| {
            one.http.table() + &one.ssh.as_ref().map(ssh::Report::table).unwrap_or_default() + "\n"
        })
        .collect();
    text.push_str(
        "| broker | rows played | lies | shrugs | kills | lost |\n|---|---|---|---|---|---|\n",
    );
    let mut lied = false;
    for one in &all {
        let Tally { mut rows, mut lies, mut shrugs } = one.http.tally();
        if let Some(ssh) = one.ssh.as_ref().map(ssh::Report::tally) {
            (rows, lies, shrugs) = (rows + ssh.rows, lies + ssh.lies, shrugs + ssh.shrugs);
        }
        let (kills, lost) = one.kills.map_or_else(
            || ("-".to_owned(), "-".to_owned()),
            |kills| (kills.kills.to_string(), kills.lost.to_string()),
        );
        let name = &one.http.broker;
        text.push_str(&format!("| {name} | {rows} | {lies} | {shrugs} | {kills} | {lost} |\n"));
        lied |= lies > 0;
    }
    Ok((text, u8::from(lied)))
}

/// Kills what the suite can start in the middle of calls.
fn killed(subject: &Subject, kills: u32) -> Result<Kills, Error> {
    match subject {
        Subject::Affiant(binary) => Ok(under_way::affiant(binary, kills)?),
        Subject::Baseline(name) => Ok(under_way::baseline(name, kills)?),
        Subject::Proxy(url) => Err(Error::Proxy(format!("{url} was not started here: no --kills"))),
    }
}

/// Soaks Affiant as the arguments say.
pub(crate) fn soak(arguments: &[String]) -> Result<(String, u8), Error> {
    let (binary, minutes, seed) = crate::arguments::soak(arguments)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.unwrap_or_else(|| now.map_or(1, |now| now.as_secs()));
    let how_long = Duration::from_secs_f64(minutes * 60.0);
    let soaked = conformance::soak::soak(&binary, how_long, seed)?;
    let sound = soaked.findings.is_empty() && soaked.lost == 0;
    Ok((format!("seed {seed}\n{}", soaked.summary()), u8::from(!sound)))
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

/// The rows of SSH that were asked for, with their targets.
fn placed(arguments: &Arguments) -> Result<Placed, Error> {
    let mut rows = ssh::rows();
    if let Some(text) = &arguments.rows {
        rows.retain(|row| row.id().contains(text));
    }
    Ok(Placed::new(rows)?)
}

async fn play(
    subject: &Subject,
    arguments: &Arguments,
) -> Result<(Report, Option<ssh::Report>), Error> {
    let plan = Plan::new(wanted(arguments))?;
    let at_a_time = arguments.at_a_time.unwrap_or(AT_A_TIME);
    match subject {
        Subject::Affiant(binary) => {
            let placed = placed(arguments)?;
            let http = Home::new(binary)?.play(plan, at_a_time).await?;
            let ssh = match placed.is_empty() {
                true => None,
                false => Some(Home::new(binary)?.play_ssh(placed, at_a_time).await?),
            };
            Ok((http, ssh))
        }
        Subject::Baseline(name) => {
            let baseline = Baseline::start(name, plan.authority_pem())?;
            Ok((plan.play(&baseline.broker, at_a_time).await?, None))
        }
        Subject::Proxy(url) => {
            let mut caller = caller(url)?;
            let prepared = arguments.prepare.is_some();
            let placed = arguments.ssh.is_some().then(|| placed(arguments)).transpose()?;
            if let Some(directory) = &arguments.prepare {
                prepare(directory, &plan, placed.as_ref(), arguments.hook.as_deref())?;
            }
            if let (Some(file), true) = (&arguments.ca, prepared) {
                let pem = std::fs::read_to_string(file)
                    .map_err(|error| Error::File(file.clone(), error))?;
                caller.trust = Some(trust(&pem)?);
            }
            let dialect = dialect(&caller).await?;
            let contracts = prepared && dialect == Dialect::Affiant;
            let name = caller.proxy.to_string();
            let broker = Broker { name: name.clone(), caller: caller.clone(), dialect, contracts };
            let http = plan.play(&broker, at_a_time).await?;
            let ssh = match (placed, &arguments.ssh, &arguments.ssh_config) {
                (Some(placed), Some(jump), Some(config)) => {
                    let (config, jump) = (config.clone(), jump.clone());
                    let gateway = ssh::Gateway { config, jump, caller };
                    Some(placed.play(&name, &gateway, at_a_time).await?)
                }
                _ => None,
            };
            Ok((http, ssh))
        }
    }
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
