//! Presets: reviewed remote contracts of public services, each line with the document it rests on.
//!
//! A preset says where a service lives, how its credential is attached, and which of its calls are
//! repeatable. It grants nothing: a route that names it still decides who may call what. What no
//! document promises is not promised here; then the meaning of the method stands (contract S-4).

mod compiled;
mod page;
mod table;

use crate::Inject;
use crate::recipe::{Recipe, Sigv4};
use crate::repeat::{JOB_EVERY, JOB_QUERIES, JobRule, Shows};
use journal::contract::{KeyPlace, RemoteContract};
use std::fmt;
use std::time::Duration;

pub(crate) use compiled::{Call, Contract, LeftOut};
pub use page::reference;
pub use table::PRESETS;

/// What is known of one service.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name in policy.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Where it lives; `*.` stands for every name below. Empty: it says nothing of that, and a route
    /// names the host.
    pub hosts: &'static [&'static str],
    /// The paths of its API, where the host serves more than that.
    pub path: Option<&'static str>,
    /// How the credential is attached.
    pub attach: Attach,
    /// What the secret is.
    pub secret: &'static str,
    /// The document on hosts and authentication.
    pub source: Source,
    /// What hands out credentials: a route leaves it out unless it names the place itself.
    pub mints: &'static [Mint],
    /// Which calls are repeatable; the first line that covers a call decides.
    pub lines: &'static [Line],
    /// What a user should know beside that; empty: nothing.
    pub note: &'static str,
}

/// A place whose answers are credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mint {
    /// A pattern of hosts, a star for one label. The route names it by `match.host`.
    Host(&'static str),
    /// A pattern of paths. The route names it by `match.path`.
    Path(&'static str),
}

/// How a service takes its credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`; the secret is `user:password`.
    Basic,
    /// A header of its own, lower case, with the secret alone.
    Header(&'static str),
    /// AWS Signature Version 4.
    Sigv4,
}

/// The contract of some calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The methods; empty: every method.
    pub methods: &'static [&'static str],
    /// Patterns of paths.
    pub paths: &'static [&'static str],
    /// Patterns of hosts, a star for one label; empty: every host of the preset.
    pub hosts: &'static [&'static str],
    /// Values of `X-Amz-Target`, by which JSON protocols of AWS name an operation; empty: whatever it
    /// says.
    pub targets: &'static [&'static str],
    /// Patterns of members of `Anthropic-Beta`, one of which has to be there; empty: whatever it says.
    pub betas: &'static [&'static str],
    /// Whether it covers only what names an `Action` in the query.
    pub action: bool,
    /// Whether repeating is harmless.
    pub repeat: Repeat,
    /// The job that such a call starts.
    pub job: Option<Job>,
    /// Why, in a few words.
    pub why: &'static str,
    /// The document that says so.
    pub source: Source,
}

/// A job that a service names in a response of 200, 201 or 202, and its status resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// A JSON pointer to its id in the response.
    pub pointer: &'static str,
    /// Where its status resource is, with `{id}`.
    pub path: &'static str,
    /// A JSON pointer to its state in there.
    pub state: &'static str,
    /// The states of a job that is done.
    pub done: &'static [&'static str],
    /// The states of a job that failed.
    pub failed: &'static [&'static str],
}

/// Whether repeating a call is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repeat {
    /// It is.
    Harmless,
    /// It is not, or nobody promises that it is, whatever the method.
    NotPromised,
    /// With the same key, and not without.
    WithKey(Key),
}

/// The key contract of a service (contract K-1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Where it stands.
    pub place: KeyPlace,
    /// The operations that take it, by the parameter or form field `Action`; empty: every call.
    pub actions: &'static [&'static str],
    /// How long the first result is kept at least, minutes.
    pub retention_minutes: u64,
    /// Whether the document promises all of K-1.
    pub contract: RemoteContract,
}

/// A public document, and how far it was consulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its address.
    pub url: &'static str,
    /// The day, as `2026-11-30`.
    pub date: &'static str,
    /// Whether its words were read on that day; else the line was written from knowledge of it.
    pub read: bool,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.read { "read" } else { "from knowledge," };
        write!(f, "{how} {}", self.date)
    }
}

impl Preset {
    /// The preset of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// How its credential is attached.
    #[must_use]
    pub fn inject(&self) -> Inject {
        match self.attach {
            Attach::Bearer => Inject::Bearer,
            Attach::Basic => Inject::Basic,
            Attach::Header(name) => Inject::Header { name: name.to_owned(), format: None },
            Attach::Sigv4 => Inject::Recipe(Box::new(Recipe::Sigv4(Sigv4::default()))),
        }
    }
}

impl Key {
    /// How long the first result is kept at least.
    #[must_use]
    pub const fn retention(&self) -> Duration {
        Duration::from_secs(self.retention_minutes * 60)
    }
}

impl From<Job> for JobRule {
    fn from(job: Job) -> Self {
        let Job { pointer, path, state, done, failed } = job;
        let shows = |states: &[&str]| Shows {
            status: Some(200),
            pointer: Some(state.to_owned()),
            equals: states.iter().map(|&state| state.to_owned()).collect(),
        };
        Self {
            headers: Vec::new(),
            pointer: Some(pointer.to_owned()),
            path: Some(path.to_owned()),
            done: shows(done),
            failed: (!failed.is_empty()).then(|| shows(failed)),
            every: JOB_EVERY,
            max_queries: JOB_QUERIES,
        }
    }
}

#[cfg(test)]
#[path = "preset_tests.rs"]
mod tests;
