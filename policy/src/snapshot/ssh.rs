//! Finds the deciding route of an SSH action.
//!
//! Narrow to wide: host (exact, else the longest `*.` suffix), users, command, agents.

use super::order::{Relation, admits, breadth, relate, tied};
use super::{Tie, http::bracketed, near, not_allowed, shown};
use crate::document::{Allow, SshRoute};
use crate::host::{self, Pattern};
use crate::{Denial, SshAction, SshGrant, SshRequest, glob};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// All SSH routes, found by host.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    routes: Vec<SshRoute>,
    exact: HashMap<String, Vec<usize>>,
    under: HashMap<String, Vec<usize>>,
}

/// How narrow the condition on a request is; greater is narrower.
type Rank = (u8, usize);

impl Index {
    /// Builds the index, and finds the ties.
    pub(super) fn build(routes: Vec<SshRoute>) -> (Self, Vec<Tie>) {
        let mut index = Self::default();
        for (i, route) in routes.iter().enumerate() {
            let list = match &route.host {
                Pattern::Exact(name) => index.exact.entry(name.clone()).or_default(),
                Pattern::Under(suffix) => index.under.entry(suffix.clone()).or_default(),
            };
            list.push(i);
        }
        index.routes = routes;
        let ties = index.ties();
        (index, ties)
    }

    fn ties(&self) -> Vec<Tie> {
        let mut tied: BTreeSet<(usize, usize)> = BTreeSet::new();
        for list in self.exact.values().chain(self.under.values()) {
            let routes = list.iter().filter_map(|&i| self.routes.get(i).map(|route| (i, route)));
            let rules: Vec<_> = routes.map(|(i, route)| marked(i, route)).collect();
            let tie = |one, other| {
                let pair = self.routes.get(one).zip(self.routes.get(other));
                pair.is_some_and(|(one, other)| ties(one, other))
            };
            if near::ties(&rules, &mut tied, tie).is_break() {
                break;
            }
        }
        let name = |i: usize| self.routes.get(i).map(|r| (r.name.clone(), r.place));
        let pairs = tied.into_iter().filter_map(|(a, b)| name(a).zip(name(b)));
        pairs.map(|(one, other)| Tie { kind: "ssh", one, other }).collect()
    }

    /// All routes.
    pub(super) fn routes(&self) -> &[SshRoute] {
        &self.routes
    }

    /// Plain host names with their ports.
    pub(super) fn hosts(&self) -> BTreeSet<(String, u16)> {
        let plain = |r: &SshRoute| match &r.host {
            Pattern::Exact(name) => Some((name.clone(), r.port)),
            Pattern::Under(_) => None,
        };
        self.routes.iter().filter_map(plain).collect()
    }

    /// The routes whose host covers the given one, in groups, the narrowest first.
    fn groups<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s Vec<usize>> {
        let under = host::suffixes(host).filter_map(|suffix| self.under.get(suffix));
        self.exact.get(host).into_iter().chain(under)
    }

    /// The routes whose host covers the given one.
    pub(super) fn of_host<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s SshRoute> {
        self.groups(host).flatten().filter_map(|&i| self.routes.get(i))
    }

    /// Whether some route leads the agent to the host and port.
    pub(super) fn leads_to(&self, agent: &str, host: &str, port: u16) -> bool {
        self.of_host(host).any(|r| r.port == port && admits(&r.agents, agent))
    }

    /// The route by which a jump is relayed as it is.
    pub(super) fn relay(&self, agent: &str, host: &str, port: u16) -> Option<&SshRoute> {
        self.groups(host).find_map(|group| {
            let routes = group.iter().filter_map(|&i| self.routes.get(i));
            let mut admitting =
                routes.filter(|r| r.port == port && admits(&r.agents, agent)).peekable();
            admitting.peek()?;
            Some(admitting.try_fold(None, |_, r| (!r.grant.intercept).then_some(Some(r))).flatten())
        })?
    }

    /// The deciding route.
    pub(super) fn find(&self, action: &SshAction<'_>, host: &str) -> Option<&SshRoute> {
        self.groups(host).find_map(|group| {
            let routes = group.iter().filter_map(|&i| self.routes.get(i));
            let matching = routes.filter(|r| mismatch(r, action).is_none());
            matching.min_by_key(|r| {
                let rank = rank(r, &action.request);
                (breadth(&r.users), Reverse(rank), breadth(&r.agents), r.name.clone())
            })
        })
    }

    /// The route that a person would have to approve by, if a command that `route` lets through may be
    /// one of its commands, spelt otherwise or as a part of a longer one.
    pub(super) fn held_back<'s>(
        &'s self,
        route: &SshRoute,
        action: &SshAction<'_>,
        host: &'s str,
    ) -> Option<&'s SshRoute> {
        let SshRequest::Exec(command) = action.request else { return None };
        if route.grant.approval.is_some() {
            return None;
        }
        let readings = readings(command);
        self.of_host(host).find(|other| {
            let shell = SshAction { request: SshRequest::Exec(b""), ..*action };
            let concerns = mismatch(other, &shell).is_none_or(|m| m == Mismatch::Command);
            let patterns = other.commands.iter().flatten();
            other.grant.approval.is_some()
                && concerns
                && patterns.into_iter().any(|pattern| {
                    readings.iter().any(|text| glob::matches(pattern.as_bytes(), text, |_| true))
                })
        })
    }

    /// Says why the target is out of reach.
    pub(super) fn refuse_target(&self, agent: &str, host: &str, port: u16) -> Denial {
        let known = self.of_host(host).any(|r| admits(&r.agents, agent));
        let field = if known { "target.port" } else { "target.host" };
        let (agent, host) = (shown(agent), bracketed(host));
        not_allowed(field, format!("No SSH route lets agent {agent} reach {host}:{port}."))
    }

    /// Says how far the action got. Does not repeat the command, which may hold secrets.
    pub(super) fn refuse(&self, action: &SshAction<'_>, host: &str) -> Denial {
        let stage = self.of_host(host).filter_map(|r| mismatch(r, action)).max();
        let (agent, user) = (shown(action.agent), shown(action.user));
        let place = format!("{}:{}", bracketed(host), action.port);
        match stage {
            None | Some(Mismatch::Agent | Mismatch::Port) => {
                self.refuse_target(action.agent, host, action.port)
            }
            Some(Mismatch::User) => not_allowed(
                "target.user",
                format!("No SSH route lets agent {agent} log in at {place} as {user}."),
            ),
            Some(Mismatch::Request) => not_allowed(
                "action",
                format!(
                    "No SSH route lets agent {agent} ask {place} for {}.",
                    kind(&action.request)
                ),
            ),
            Some(Mismatch::Command) => not_allowed(
                "command",
                format!("No SSH route lets agent {agent} run this command at {place} as {user}."),
            ),
        }
    }
}

/// The first condition of a route that an action does not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mismatch {
    Agent,
    Port,
    User,
    Request,
    Command,
}

/// Compares a route whose host covers the target's with the rest of the action.
pub(super) fn mismatch(route: &SshRoute, action: &SshAction<'_>) -> Option<Mismatch> {
    if !admits(&route.agents, action.agent) {
        return Some(Mismatch::Agent);
    }
    if route.port != action.port {
        return Some(Mismatch::Port);
    }
    if !admits(&route.users, action.user) {
        return Some(Mismatch::User);
    }
    if !route.grant.intercept {
        return Some(Mismatch::Request);
    }
    let allowed = match action.request {
        SshRequest::Exec(_) => route.allow.exec,
        SshRequest::Shell => route.allow.shell,
        SshRequest::Subsystem(name) => route.allow.subsystems.contains(name),
        SshRequest::Forward { host, port } => {
            route.allow.forward && forwards_to(&route.grant, host, port)
        }
    };
    if !allowed {
        return Some(Mismatch::Request);
    }
    rank(route, &action.request).is_none().then_some(Mismatch::Command)
}

/// Whether the route lets a forwarding lead there.
fn forwards_to(grant: &SshGrant, host: &str, port: u16) -> bool {
    grant.forward_to.as_ref().is_none_or(|list| list.iter().any(|p| p.covers(host, port)))
}

/// How narrow the route's condition on the request is, if the request meets it.
fn rank(route: &SshRoute, request: &SshRequest<'_>) -> Option<Rank> {
    let SshRequest::Exec(command) = request else { return Some((0, 0)) };
    let Some(patterns) = &route.commands else { return Some((0, 0)) };
    let star: glob::Allowed = if route.any_shell { |_| true } else { is_plain };
    let met = patterns.iter().filter(|p| glob::matches(p.as_bytes(), command, star));
    met.map(|p| pattern_rank(p)).max()
}

fn pattern_rank(pattern: &str) -> Rank {
    let (literal, bytes) = glob::rank(pattern.as_bytes());
    (if literal { 2 } else { 1 }, bytes)
}

/// Whether a byte means nothing to a shell that would let one command become two, quoted or not.
fn is_plain(byte: u8) -> bool {
    !matches!(
        byte,
        b';' | b'&' | b'|' | b'\n' | b'\r' | b'`' | b'$' | b'(' | b')' | b'<' | b'>' | b'\0'
    )
}

/// What a shell may run of a command, one simple command each: without blanks around it, and by the
/// name of its program without the path. What quotes, variables and interpreters make of a text is not
/// found out.
fn readings(command: &[u8]) -> Vec<Vec<u8>> {
    let whole = std::iter::once(command);
    let parts = whole.chain(command.split(|byte| !is_plain(*byte)));
    let mut readings = Vec::new();
    for part in parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty()) {
        let words = part.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let spaced = words.collect::<Vec<_>>().join(&b' ');
        let end = spaced.iter().position(|byte| *byte == b' ').unwrap_or(spaced.len());
        let slash = spaced.iter().take(end).rposition(|byte| *byte == b'/');
        let named = slash.and_then(|slash| spaced.get(slash + 1..)).map(<[u8]>::to_vec);
        readings.push(part.to_vec());
        readings.push(spaced);
        readings.extend(named);
    }
    readings
}

/// The kind of request in one word.
pub(super) fn kind(request: &SshRequest<'_>) -> String {
    match request {
        SshRequest::Exec(_) => "exec".to_owned(),
        SshRequest::Shell => "shell".to_owned(),
        SshRequest::Subsystem(name) => format!("subsystem {}", shown(name)),
        SshRequest::Forward { .. } => "forward".to_owned(),
    }
}

/// A route with what tells it from others of its host.
fn marked(index: usize, route: &SshRoute) -> near::Rule<'_> {
    let mut rule = near::Rule::new(index, &route.agents);
    rule.mark(0, "port", std::iter::once(route.port.to_string().as_str()));
    if let Some(users) = &route.users {
        rule.mark(1, "user", users.iter().map(String::as_str));
    }
    let Allow { shell, forward, subsystems, exec: _ } = &route.allow;
    // What else than commands is allowed is not told apart by them.
    if let Some(commands) =
        route.commands.as_ref().filter(|_| !shell && !forward && subsystems.is_empty())
    {
        rule.mark(2, "command", commands.iter().map(String::as_str));
    }
    rule
}

/// Whether two routes of one host can decide the same action with neither narrower.
fn ties(a: &SshRoute, b: &SshRoute) -> bool {
    if a.port != b.port {
        return false;
    }
    let users = relate(&a.users, &b.users);
    let agents = relate(&a.agents, &b.agents);
    if !tied(users, agents) {
        return false;
    }
    let (x, y) = (&a.allow, &b.allow);
    let beside_exec = (x.shell && y.shell)
        || (x.forward && y.forward)
        || !x.subsystems.is_disjoint(&y.subsystems);
    beside_exec || (x.exec && y.exec && commands_tie(a, b, users))
}

fn commands_tie(a: &SshRoute, b: &SshRoute, users: Relation) -> bool {
    let (Some(x), Some(y)) = (&a.commands, &b.commands) else {
        // One of them takes every command: the other is narrower, unless users cross.
        return users == Relation::Crossing || (a.commands.is_none() && b.commands.is_none());
    };
    x.iter().any(|p| {
        y.iter().any(|q| {
            (users == Relation::Crossing || pattern_rank(p) == pattern_rank(q))
                && glob::meet(p.as_bytes(), q.as_bytes())
        })
    })
}
