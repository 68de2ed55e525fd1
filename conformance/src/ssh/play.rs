//! Plays the SSH rows: stock OpenSSH through the gateway to scripted targets, one of each row.

use super::cases::{Case, Truth, cases};
use super::client::{Ran, run};
use super::judge;
use super::target::{Target, user_key};
use crate::http::{Answer, Caller, Request};
use crate::matrix::{Played, Report, at_a_time};
use crate::subject::{Error, io};
use journal::contract::InvocationId;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

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

/// How the gateway is reached.
#[derive(Clone)]
pub struct Gateway {
    /// A configuration for `ssh` that trusts the gateway.
    pub config: PathBuf,
    /// `AGENT@HOST:PORT`, as `ssh -J` takes it.
    pub jump: String,
    /// How records are read, through the proxy of the same broker; a gateway without records is judged
    /// by its results alone.
    pub records: Option<Caller>,
}

/// What both sides saw of one row.
pub(super) struct Observed {
    pub(super) ran: Ran,
    pub(super) requests: usize,
    pub(super) altered: bool,
    pub(super) record: Option<Value>,
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
        for (number, (address, key)) in self.targets()?.into_iter().enumerate() {
            let idempotent = self.rows.get(number).is_some_and(|(row, _)| row.idempotent);
            text.push_str(&format!(
                "\n[[ssh]]\nname = \"row{number}\"\nmatch = {{ host = \"row{number}\", port = 22, \
                 users = [\"u\"], commands = [\"*\"] }}\naddress = \"{address}\"\n\
                 host_keys = [\"{key}\"]\ncredential = \"row\"\nidempotent = {idempotent}\n\
                 limits = {{ connect_timeout = \"4s\", response_timeout = \"4s\" }}\n\
                 allow = [\"exec\", \"shell\", \"subsystem:echo\"]\n"
            ));
        }
        Ok(text)
    }

    /// Where each row's target listens, and the host key that is pinned for it.
    ///
    /// # Errors
    /// When a port was lost.
    pub(super) fn targets(&self) -> std::io::Result<Vec<(SocketAddr, String)>> {
        let target = |(row, place): &(Row, Place)| {
            let (address, key) = match place {
                Place::Target(target) => (target.address(), target.host_key()),
                Place::Refusing(socket) => (socket.local_addr()?, self.other_key.clone()),
            };
            Ok((address, if row.case.other_key { self.other_key.clone() } else { key }))
        };
        self.rows.iter().map(target).collect()
    }

    /// Plays every row, so many at a time.
    ///
    /// # Errors
    /// [`Error`] when `ssh` can't be started.
    pub async fn play(
        self,
        broker: &str,
        gateway: &Gateway,
        seats: usize,
    ) -> Result<Report, Error> {
        let started = Instant::now();
        let rows = self.rows.into_iter().enumerate().map(|(number, (row, place))| {
            let gateway = gateway.clone();
            async move { play(number, &row, &place, &gateway).await }
        });
        let played = at_a_time(rows, seats).await?;
        Ok(Report::new(broker.to_owned(), played, started.elapsed()))
    }
}

async fn play(number: usize, row: &Row, place: &Place, gateway: &Gateway) -> Result<Played, Error> {
    let started = Instant::now();
    let observed = once(number, row, place, gateway).await?;
    let outcome = observed.record.as_ref().and_then(|record| record.pointer("/error/outcome"));
    Ok(Played {
        id: row.id(),
        rule: row.case.rule,
        took: started.elapsed(),
        dispatches: observed.requests,
        effects: match place {
            Place::Target(target) => target.effects(),
            Place::Refusing(_) => 0,
        },
        outcome: outcome.and_then(Value::as_str).map(str::to_owned),
        missed_reuse: false,
        findings: match gateway.records {
            Some(_) => judge::affiant(row, &observed),
            None => judge::plain(row, &observed),
        },
    })
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
    let record = match &gateway.records {
        Some(caller) => record(caller, id).await,
        None => None,
    };
    let altered = requests.iter().any(|request| *request != command.as_bytes());
    Ok(Observed { ran, requests: requests.len(), altered, record })
}

async fn record(caller: &Caller, id: InvocationId) -> Option<Value> {
    let request = Request {
        method: "GET",
        tls: false,
        authority: "affiant.internal".to_owned(),
        path: format!("/v1/invocations/{id}?wait=5s"),
        fields: Vec::new(),
        content: None,
        early: None,
    };
    match caller.call(&request).await {
        Answer::Response(got) if got.status == 200 => serde_json::from_slice(&got.content).ok(),
        Answer::Response(_) | Answer::Nothing(_) => None,
    }
}
