//! The lines of a preset with their patterns parsed, and what a route makes of them.

use super::{Line, Mint, Preset, Repeat};
use crate::repeat::{JOB_ID, JobRule};
use crate::{Details, HttpGrant, IdempotencyRule, glob, key, path};
use std::sync::Arc;

/// A preset as one route applies it.
#[derive(Debug, Clone)]
pub(crate) struct Contract {
    /// The preset.
    pub preset: &'static Preset,
    lines: Arc<[(Vec<path::Pattern>, &'static Line)]>,
    /// Whether the route has a word of its own on repeating; then the lines are not asked about it.
    pub overridden: bool,
    /// Whether calls without a key get one of the broker's, where a line has a place for it.
    pub generate: bool,
    /// Whether the route has a word against the jobs of the lines.
    pub without_jobs: bool,
    scope: String,
}

/// A call that a line may cover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub method: &'a str,
    /// In normal form, as the path is.
    pub host: &'a str,
    pub path: &'a str,
    pub details: &'a Details<'a>,
}

impl Call<'_> {
    fn is_at(&self, pattern: &str) -> bool {
        is_host(pattern, self.host)
    }

    /// Whether a member of `Anthropic-Beta` matches.
    fn uses(&self, beta: &str) -> bool {
        let named = self.details.headers.iter();
        let named = named.filter(|(name, _)| name.eq_ignore_ascii_case(b"anthropic-beta"));
        named
            .flat_map(|(_, value)| value.split(|byte| *byte == b','))
            .any(|member| glob::matches(beta.as_bytes(), member.trim_ascii(), |_| true))
    }
}

fn is_host(pattern: &str, host: &str) -> bool {
    glob::matches(pattern.as_bytes(), host.as_bytes(), |byte| byte != b'.')
}

/// The places of a preset that hand out credentials, as one route leaves them out.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftOut {
    hosts: Vec<&'static str>,
    paths: Vec<path::Pattern>,
}

impl LeftOut {
    /// What is left out by a route that names a host, or a path, or neither.
    pub(crate) fn of(preset: &'static Preset, names_host: bool, names_path: bool) -> Self {
        let mut left = Self::default();
        for mint in preset.mints {
            match mint {
                Mint::Host(host) if !names_host => left.hosts.push(host),
                Mint::Path(path) if !names_path => left.paths.extend(path::Pattern::parse(path)),
                Mint::Host(_) | Mint::Path(_) => {}
            }
        }
        left
    }

    /// Whether a host is left out.
    pub(crate) fn has_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|pattern| is_host(pattern, host))
    }

    /// Whether a path is.
    pub(crate) fn has_path(&self, path: &str) -> bool {
        self.paths.iter().any(|pattern| pattern.matches(path))
    }
}

impl Contract {
    /// Applies a preset to a route. The account behind the credential bounds what a key means.
    pub(crate) fn new(preset: &'static Preset, credential: Option<&str>) -> Self {
        let parsed = |line: &'static Line| {
            let patterns = line.paths.iter().filter_map(|p| path::Pattern::parse(p).ok());
            (patterns.collect(), line)
        };
        let scope = match credential {
            Some(credential) => format!("{}/{credential}", preset.name),
            None => preset.name.to_owned(),
        };
        let lines = preset.lines.iter().map(parsed).collect();
        Self { preset, lines, overridden: false, generate: false, without_jobs: false, scope }
    }

    /// With the route's own word: whether it has one on repeats, whether it adds keys, and whether it
    /// leaves out the jobs.
    pub(crate) fn under(self, overridden: bool, generate: bool, without_jobs: bool) -> Self {
        Self { overridden, generate, without_jobs, ..self }
    }

    /// The line that covers a call.
    pub(crate) fn line(&self, call: &Call<'_>) -> Option<&'static Line> {
        let covers = |(patterns, line): &&(Vec<path::Pattern>, &'static Line)| {
            line.covers(call) && patterns.iter().any(|pattern| pattern.matches(call.path))
        };
        self.lines.iter().find(covers).map(|(_, line)| *line)
    }

    /// Puts the contract of a call into the grant.
    pub(crate) fn apply(&self, grant: &mut HttpGrant, call: &Call<'_>) {
        grant.preset = Some(self.preset.name);
        let Some(line) = self.line(call) else { return };
        if grant.job.is_none() && !self.without_jobs {
            grant.job = line.job.map(JobRule::from);
        }
        if self.overridden {
            return;
        }
        match &line.repeat {
            Repeat::Harmless => grant.idempotent = Some(true),
            Repeat::NotPromised => grant.idempotent = Some(false),
            Repeat::WithKey(key) => {
                grant.idempotent = Some(false);
                let scope = match line.hosts {
                    [] => self.scope.clone(),
                    // Each region has keys of its own.
                    _ => format!("{}/{}", self.scope, call.host),
                };
                grant.idempotency = Some(IdempotencyRule {
                    place: key.place.clone(),
                    actions: key.actions.iter().map(|&action| action.to_owned()).collect(),
                    scope,
                    retention: key.retention(),
                    contract: key.contract,
                    generate: self.generate,
                });
            }
        }
    }

    /// The shape of the job whose status resource is there.
    pub(crate) fn job_at(&self, path: &str) -> Option<JobRule> {
        if self.without_jobs {
            return None;
        }
        let jobs = self.lines.iter().filter_map(|(_, line)| line.job);
        let leads = |template: &str| {
            let (before, after) = template.split_once(JOB_ID)?;
            path.strip_prefix(before)?.strip_suffix(after).filter(|id| !id.contains('/'))
        };
        jobs.into_iter().find(|job| leads(job.path).is_some()).map(JobRule::from)
    }
}

impl Line {
    /// Whether it covers a call, paths aside.
    fn covers(&self, call: &Call<'_>) -> bool {
        let mut targets = call.details.headers.iter().filter_map(|(name, value)| {
            name.eq_ignore_ascii_case(b"x-amz-target").then(|| std::str::from_utf8(value).ok())?
        });
        let (target, second) = (targets.next(), targets.next());
        let action = || call.details.query.is_some_and(key::names_an_action);
        (self.methods.is_empty() || self.methods.contains(&call.method))
            && (!self.action || action())
            && (self.betas.is_empty() || self.betas.iter().any(|beta| call.uses(beta)))
            && (self.hosts.is_empty() || self.hosts.iter().any(|host| call.is_at(host)))
            && (self.targets.is_empty()
                || (second.is_none() && target.is_some_and(|t| self.targets.contains(&t))))
    }
}
