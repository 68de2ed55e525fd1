//! Finds the deciding route of an HTTP action.
//!
//! ```text
//! host (exact, else the longest `*.` suffix) ─► scheme and port ─► path (exact, else the longest
//! literal prefix, then the narrower rest, else no condition) ─► more conditions ─► methods ─► agents
//! ```
//!
//! Each step is from narrow to wide; a level that has no match gives way to the next wider one.

use super::case::Spellings;
use super::order::{self, Bucket, Relation, admits, breadth, relate};
use super::starred::Starred;
use super::target::Target;
use super::{Found, Tie, near, not_allowed, shown};
use crate::condition::{self, Doubt, Unmet};
use crate::document::HttpRoute;
use crate::field::is_same_field;
use crate::host::{self, Pattern};
use crate::{Denial, Details, HttpAction, Scheme, path};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// All routes, found by host.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Narrowest first among those that one step can't tell apart.
    routes: Vec<HttpRoute>,
    exact: HashMap<String, Site>,
    under: HashMap<String, Site>,
    spellings: Spellings,
    /// Whether any route has conditions on the content.
    looks_at_body: bool,
    /// The fields that conditions of routes look at, in lower case.
    headers: BTreeSet<String>,
}

/// The routes of one host or suffix.
#[derive(Debug, Clone, Default)]
struct Site {
    all: Vec<usize>,
    ports: HashMap<(Scheme, u16), Paths>,
}

impl Site {
    fn add(&mut self, index: usize, route: &HttpRoute) {
        self.all.push(index);
        let paths = self.ports.entry((route.scheme, route.port)).or_default();
        match &route.path {
            None => paths.any.push(index, &route.agents),
            Some(p) if p.is_literal() => {
                let bucket = paths.literal.entry(p.as_str().to_owned()).or_default();
                bucket.push(index, &route.agents);
            }
            Some(p) => {
                let starred = paths.starred.entry(p.prefix()).or_default();
                starred.push(index, p, &route.agents);
            }
        }
    }
}

/// The routes of one scheme, host and port.
#[derive(Debug, Clone, Default)]
struct Paths {
    /// Paths without a star.
    literal: HashMap<String, Bucket>,
    /// Patterns by their literal prefix.
    starred: HashMap<String, Starred>,
    /// Routes without a condition on the path.
    any: Bucket,
}

impl Index {
    /// Normalises an action, with what a server may take its path for instead.
    pub(super) fn target<'a>(
        &self,
        action: &HttpAction<'a>,
        details: Details<'a>,
    ) -> Result<Target<'a>, Denial> {
        let mut target = Target::of(action, details)?;
        target.readings.extend(target.behind_authority.clone());
        let all = std::iter::once(&target.path).chain(&target.readings);
        let respelt: Vec<_> = all.flat_map(|path| self.spellings.readings(path)).collect();
        target.readings.extend(respelt);
        Ok(target)
    }

    /// Builds the index, and finds the ties.
    pub(super) fn build(mut routes: Vec<HttpRoute>) -> (Self, Vec<Tie>) {
        routes.sort_by_cached_key(|r| {
            let rank = r.path.as_ref().map(path::Pattern::rank);
            (
                Reverse(rank),
                r.conditions.breadth(),
                breadth(&r.methods),
                breadth(&r.agents),
                r.name.clone(),
            )
        });
        let mut index = Self::default();
        for (i, route) in routes.iter().enumerate() {
            if let Some(path) = &route.path {
                index.spellings.add(path);
            }
            index.looks_at_body |= route.conditions.looks_at_body();
            index.headers.extend(route.conditions.headers.keys().cloned());
            for host in &route.hosts {
                let site = match host {
                    Pattern::Exact(name) => index.exact.entry(name.clone()).or_default(),
                    Pattern::Under(suffix) => index.under.entry(suffix.clone()).or_default(),
                };
                site.add(i, route);
            }
        }
        index.routes = routes;
        let ties = index.ties();
        (index, ties)
    }

    fn ties(&self) -> Vec<Tie> {
        let mut tied: BTreeSet<(usize, usize)> = BTreeSet::new();
        let sites = self.exact.values().chain(self.under.values());
        for paths in sites.flat_map(|s| s.ports.values()) {
            let starred = paths.starred.values().map(Starred::rules);
            let others = paths.literal.values().chain([&paths.any]).map(Bucket::rules);
            for rules in starred.chain(others) {
                if self.ties_of(rules, &mut tied).is_break() {
                    break;
                }
            }
        }
        let name = |i: usize| self.routes.get(i).map(|r| (r.name.clone(), r.place));
        tied.into_iter()
            .filter_map(|(a, b)| name(a).zip(name(b)))
            .map(|(one, other)| Tie { kind: "route", one, other })
            .collect()
    }

    /// The ties among rules of one bucket, until there are enough.
    fn ties_of(
        &self,
        rules: BTreeSet<usize>,
        tied: &mut BTreeSet<(usize, usize)>,
    ) -> ControlFlow<()> {
        // Only patterns that are as narrow as each other, with the same texts at the same places, tie.
        let mut alike: HashMap<(path::Rank, Vec<&str>), Vec<near::Rule<'_>>> = HashMap::new();
        for index in rules {
            let Some(route) = self.routes.get(index) else { continue };
            let key = route.path.as_ref().map(|path| (path.rank(), path.fixed()));
            alike.entry(key.unwrap_or_default()).or_default().push(marked(index, route));
        }
        let tie = |one, other| {
            let pair = self.routes.get(one).zip(self.routes.get(other));
            pair.is_some_and(|(one, other)| ties(one, other))
        };
        alike.values().try_for_each(|rules| near::ties(rules, tied, tie))
    }

    /// Whether a condition of some route looks at the field.
    pub(super) fn decides_by_header(&self, name: &str) -> bool {
        self.headers.iter().any(|known| is_same_field(name.as_bytes(), known.as_bytes()))
    }

    /// Whether any route has conditions on the content.
    pub(super) const fn looks_at_body(&self) -> bool {
        self.looks_at_body
    }

    /// All routes.
    pub(super) fn routes(&self) -> &[HttpRoute] {
        &self.routes
    }

    /// The sites that cover a host, the narrowest first.
    fn sites<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s Site> {
        let under = host::suffixes(host).filter_map(|suffix| self.under.get(suffix));
        self.exact.get(host).into_iter().chain(under)
    }

    /// The routes whose host covers the given one.
    pub(super) fn of_host<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s HttpRoute> {
        let all = self.sites(host).flat_map(|s| &s.all).filter_map(|&i| self.routes.get(i));
        all.filter(|route| !route.left_out.has_host(host))
    }

    /// What to add where a host or path is left out because it hands out credentials.
    fn hint(&self, host: &str, target: Option<&Target<'_>>) -> &'static str {
        let mut all = self.sites(host).flat_map(|s| &s.all).filter_map(|&i| self.routes.get(i));
        let left_out = |route: &HttpRoute| {
            route.left_out.has_host(host)
                || target.is_some_and(|target| leaves_out(route, target, &target.path))
        };
        if all.any(left_out) {
            " A preset leaves out what hands out credentials, unless the route names it by match.host or match.path."
        } else {
            ""
        }
    }

    /// The deciding route. Where method or path can be read in another way, and another route would
    /// decide then, neither does: spelling opens nothing.
    pub(super) fn find(&self, target: &Target<'_>) -> Found<'_> {
        let found = self.decide(target);
        if let Found::Route(route) = found {
            let covers = |reading: &str| route.path.as_ref().is_none_or(|p| p.matches(reading));
            let is_other = |found: Option<&HttpRoute>| found.is_none_or(|r| r.name != route.name);
            for method in &target.methods {
                if is_other(self.search(target, method, &target.path)) {
                    return Found::Undecided(route, Doubt::METHOD);
                }
            }
            if let Some(reading) = &target.behind_authority
                && is_other(self.search(target, target.method, reading))
            {
                return Found::Undecided(route, Doubt::PATH);
            }
            for reading in target.readings.iter().filter(|reading| covers(reading)) {
                for method in target.every_method() {
                    let found = self.search(target, method, reading);
                    if let Some(other) = found.filter(|found| found.name != route.name) {
                        return Found::Undecided(other, Doubt::PATH);
                    }
                }
            }
        }
        found
    }

    /// The route that would decide on another reading of the method or the path, and which.
    pub(super) fn reads_as(&self, target: &Target<'_>) -> Option<(&HttpRoute, Doubt)> {
        let by_method = target.other_methods().map(|method| (method, &target.path, Doubt::METHOD));
        let by_path = target.readings.iter().flat_map(|reading| {
            target.every_method().map(move |method| (method, reading, Doubt::PATH))
        });
        by_method.chain(by_path).find_map(|(method, path, doubt)| {
            self.search(target, method, path).map(|route| (route, doubt))
        })
    }

    /// What method and path as they are come to.
    fn decide(&self, target: &Target<'_>) -> Found<'_> {
        let Some(route) = self.search(target, target.method, &target.path) else {
            return Found::None;
        };
        match route.conditions.unmet(&target.details, &target.content) {
            Some(Unmet::Unjudged(doubt)) => Found::Undecided(route, doubt),
            Some(Unmet::Header(_) | Unmet::Query(_) | Unmet::Body(_)) | None => Found::Route(route),
        }
    }

    /// The narrowest route that matches with this method and path, or that can't be judged.
    fn search(&self, target: &Target<'_>, method: &str, path: &str) -> Option<&HttpRoute> {
        // What the conditions of a route can't judge ends the search like a match.
        let accept = |i: usize| {
            self.routes.get(i).is_some_and(|route| {
                admits(&route.methods, method)
                    && !route.left_out.has_host(&target.host)
                    && !leaves_out(route, target, path)
                    && route.path.as_ref().is_none_or(|p| p.matches(path))
                    && (route.conditions.is_empty()
                        || match route.conditions.unmet(&target.details, &target.content) {
                            None | Some(Unmet::Unjudged(_)) => true,
                            Some(Unmet::Header(_) | Unmet::Query(_) | Unmet::Body(_)) => false,
                        })
            })
        };
        self.sites(&target.host)
            .filter_map(|site| site.ports.get(&(target.scheme, target.port)))
            .find_map(|paths| {
                let literal = paths.literal.get(path);
                let mut starred = prefixes(path).filter_map(|p| paths.starred.get(p));
                literal
                    .and_then(|bucket| bucket.first(target.agent, accept))
                    .or_else(|| starred.find_map(|rules| rules.first(target.agent, path, accept)))
                    .or_else(|| paths.any.first(target.agent, accept))
            })
            .and_then(|i| self.routes.get(i))
    }

    /// Whether some route leads the agent to the host and port.
    pub(super) fn leads_to(&self, agent: &str, host: &str, port: u16) -> bool {
        self.of_host(host).any(|r| r.port == port && admits(&r.agents, agent))
    }

    /// The route that leaves tunnels to the host alone.
    pub(super) fn opaque(&self, agent: &str, host: &str, port: u16) -> Option<&HttpRoute> {
        let of_site = |site: &Site| -> Vec<usize> {
            let routes = site.all.iter().copied().filter(|&i| {
                self.routes.get(i).is_some_and(|r| r.port == port && admits(&r.agents, agent))
            });
            routes.collect()
        };
        let narrowest = self.sites(host).map(of_site).find(|routes| !routes.is_empty())?;
        let mut routes = narrowest.iter().filter_map(|&i| self.routes.get(i));
        let first = routes.next()?;
        let alone = !first.grant.intercept && routes.all(|route| !route.grant.intercept);
        alone.then_some(first)
    }

    /// Says why no tunnel is opened.
    pub(super) fn refuse_tunnel(&self, agent: &str, host: &str, port: u16) -> Denial {
        let known = self.of_host(host).any(|r| admits(&r.agents, agent));
        let field = if known { "target.port" } else { "target.host" };
        let (agent, place, hint) = (shown(agent), bracketed(host), self.hint(host, None));
        not_allowed(
            field,
            format!("No route lets agent {agent} open a tunnel to {place}:{port}.{hint}"),
        )
    }

    /// Says how far the action got: the first condition that none of the agent's routes meets.
    pub(super) fn refuse(&self, target: &Target<'_>) -> Denial {
        let stage = self.of_host(&target.host).filter_map(|r| mismatch(r, target)).max();
        let (agent, scheme, port) = (shown(target.agent), target.scheme, target.port);
        let place = format!("{scheme}://{}:{port}", bracketed(&target.host));
        let (field, what) = match stage {
            None | Some(Mismatch::Agent) => ("target.host", "reach".to_owned()),
            Some(Mismatch::Scheme) => ("target.scheme", format!("use {scheme} at")),
            Some(Mismatch::Port) => ("target.port", "reach".to_owned()),
            Some(Mismatch::Path) => ("target.path", "use this path of".to_owned()),
            Some(Mismatch::Method) => {
                ("method", format!("use {} on this path of", shown(target.method)))
            }
            Some(Mismatch::Query) => ("target.query", "send this query to".to_owned()),
            Some(Mismatch::Header) => ("request.headers", "send these headers to".to_owned()),
            Some(Mismatch::Body) => ("request.body", "send this content to".to_owned()),
        };
        let hint = self.hint(&target.host, Some(target));
        not_allowed(field, format!("No route lets agent {agent} {what} {place}.{hint}"))
    }
}

/// The first condition of a route that an action does not meet, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mismatch {
    Agent,
    Scheme,
    Port,
    Path,
    Method,
    Query,
    Header,
    Body,
}

/// Compares a route whose host covers the target's with the rest of the action.
pub(super) fn mismatch(route: &HttpRoute, target: &Target<'_>) -> Option<Mismatch> {
    if !admits(&route.agents, target.agent) {
        Some(Mismatch::Agent)
    } else if route.scheme != target.scheme {
        Some(Mismatch::Scheme)
    } else if route.port != target.port {
        Some(Mismatch::Port)
    } else if !route.path.as_ref().is_none_or(|p| p.matches(&target.path))
        || leaves_out(route, target, &target.path)
    {
        Some(Mismatch::Path)
    } else if !admits(&route.methods, target.method) {
        Some(Mismatch::Method)
    } else {
        let unmet = route.conditions.unmet(&target.details, &target.content);
        unmet.map(|unmet| match unmet {
            Unmet::Header(_) => Mismatch::Header,
            Unmet::Query(_) => Mismatch::Query,
            Unmet::Body(_) | Unmet::Unjudged(_) => Mismatch::Body,
        })
    }
}

/// Whether a route leaves out a path, however a server may read it.
fn leaves_out(route: &HttpRoute, target: &Target<'_>, path: &str) -> bool {
    let mut readings = target.readings.iter().map(String::as_str).chain([path]);
    readings.any(|reading| route.left_out.has_path(reading))
}

/// A route with what tells it from others of its bucket.
fn marked(index: usize, route: &HttpRoute) -> near::Rule<'_> {
    let mut rule = near::Rule::new(index, &route.agents);
    let globs = route.path.as_ref().map(path::Pattern::globs).unwrap_or_default();
    for (place, glob) in globs.into_iter().enumerate() {
        rule.mark(0, &place.to_string(), std::iter::once(glob));
    }
    let conditions = &route.conditions;
    for (kind, wanted) in [(1, &conditions.headers), (2, &conditions.query)] {
        for (name, patterns) in wanted {
            rule.mark(kind, name, patterns.iter().map(String::as_str));
        }
    }
    for (pointer, literals) in &conditions.body {
        let texts: Vec<String> = literals.iter().map(condition::Literal::mark).collect();
        rule.mark(3, pointer, texts.iter().map(String::as_str));
    }
    if let Some(methods) = &route.methods {
        rule.mark(4, "", methods.iter().map(String::as_str));
    }
    rule
}

/// Whether two routes of one bucket can decide the same action with neither narrower.
fn ties(a: &HttpRoute, b: &HttpRoute) -> bool {
    if a.conditions.relate(&b.conditions) == condition::Relation::Ordered {
        return false;
    }
    let methods = relate(&a.methods, &b.methods);
    let agents = relate(&a.agents, &b.agents);
    if a.conditions != b.conditions {
        // Conditions that cross leave methods and agents nothing to order.
        let apart = [methods, agents].contains(&Relation::Disjoint);
        return !apart && same_paths(a, b);
    }
    if methods == Relation::Disjoint || !order::tied(methods, agents) {
        return false;
    }
    same_paths(a, b)
}

/// Whether two routes of one bucket are as narrow as each other by path, and some path meets both.
fn same_paths(a: &HttpRoute, b: &HttpRoute) -> bool {
    match (&a.path, &b.path) {
        (Some(x), Some(y)) => x.rank() == y.rank() && x.meets(y),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// The path and what stands before each of its slashes, the longest first.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path.starts_with('/').then_some(path);
    std::iter::from_fn(move || {
        let current = rest?;
        rest = current.rsplit_once('/').map(|(head, _)| head);
        Some(current)
    })
}

/// A host as it stands in front of a port.
pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}
