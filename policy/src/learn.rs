//! A draft policy from calls that were seen: hosts, methods and paths, generalised with care.
//!
//! A draft allows every call that it was made from, and is meant to be read before it is applied. It
//! names no credential: what a service is called with is for people to say.

use crate::call::{CONNECT, Call};
use crate::host::{self, is_private_literal};
use crate::preset::PRESETS;
use crate::{Scheme, path};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// One call that was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// Who called.
    pub agent: String,
    /// The method.
    pub method: String,
    /// The target as records have it: `https://host[:port]/path`.
    pub target: String,
}

/// A draft, and what could not be part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The policy text.
    pub text: String,
    /// How many routes it has.
    pub routes: usize,
    /// Targets that no route can be written for.
    pub left_out: BTreeSet<String>,
}

/// From so many different texts at one place of a path on, the place is taken for a variable.
const VARIANTS: usize = 8;
/// From so many names below one on, the names are taken for variables.
const NAMES: usize = 4;
/// Deeper paths are cut.
const DEPTH: usize = 8;

/// A place that calls lead to.
type Site = (String, Scheme, u16);
/// The names of agents by method.
type Callers = BTreeMap<String, BTreeSet<String>>;

/// Writes a draft from calls.
#[must_use]
pub fn draft(seen: &BTreeSet<Seen>) -> Draft {
    let mut sites: BTreeMap<Site, Node> = BTreeMap::new();
    let mut tunnels: BTreeMap<Site, BTreeSet<String>> = BTreeMap::new();
    let mut left_out = BTreeSet::new();
    for call in seen {
        match place(call) {
            None => {
                left_out.insert(call.target.clone());
            }
            Some((site, _)) if call.method == CONNECT => {
                tunnels.entry(site).or_default().insert(call.agent.clone());
            }
            Some((site, path)) => sites.entry(site).or_default().add(&segments(&path), call),
        }
    }
    let mut routes = Vec::new();
    for ((host, _, port), mut agents) in tunnels {
        // What was seen inside is narrower, and opens the tunnel as well.
        if let Some(node) = sites.get(&(host.clone(), Scheme::Https, port)) {
            let mut inside = Callers::new();
            node.all_callers(&mut inside);
            agents.retain(|agent| inside.values().all(|known| !known.contains(agent)));
        }
        if !agents.is_empty() {
            routes.push(route(&host, Scheme::Https, port, None, &agents));
        }
    }
    for ((host, scheme, port), mut node) in under_wildcards(sites) {
        node.generalise(0);
        let mut paths = BTreeMap::new();
        node.collect(String::new(), &mut paths);
        for (path, callers) in paths {
            for (agents, methods) in by_agents(callers) {
                routes.push(route(&host, scheme, port, Some((&path, &methods)), &agents));
            }
        }
    }
    let mut text = String::from(
        "# A draft by `affiant policy learn`: what was seen, generalised. Read it before you apply it:\n\
         # drop what should not be, narrow what is too wide, and name the credentials. These are routes\n\
         # alone: put them into the policy in force, whose [defaults], [[trust]], [[parent]] and routes\n\
         # are not repeated here, and end with egress = \"deny\" there.\n",
    );
    for (number, route) in routes.iter().enumerate() {
        text.push_str(&route.replace("{number}", &(number + 1).to_string()));
    }
    Draft { text, routes: routes.len(), left_out }
}

/// Where a call leads, with its path in normal form; none if no rule can name it.
fn place(call: &Seen) -> Option<(Site, String)> {
    let words = [call.method.as_str(), call.target.as_str()];
    let Ok(Call::Http { scheme, host, port, path, .. }) = Call::from_words(&words) else {
        return None;
    };
    let usable = |text: &str| text.bytes().all(|c| c.is_ascii_graphic() && c != b'"' && c != b'\\');
    let host = host::normalize(&host).ok()?;
    // What is a host to some servers is decided by more than the path.
    if path::behind_authority(&path).is_some() {
        return None;
    }
    let path = path::normalize(&path).ok().filter(|path| usable(path) && !path.contains('*'))?;
    let method = crate::document::value::is_token(&call.method)
        && !call.method.bytes().any(|c| c.is_ascii_lowercase());
    let agent = crate::document::value::is_name(&call.agent, 64, b"");
    (method && agent).then_some(((host, scheme, port), path))
}

/// The segments of a path in normal form; what varies by nature as a star.
fn segments(path: &str) -> Vec<String> {
    let rest = path.strip_prefix('/').unwrap_or(path);
    rest.split('/').map(|s| if is_identifier(s) { "*".to_owned() } else { s.to_owned() }).collect()
}

/// Whether a segment names one thing of many: a number, a UUID, a digest, a random text, a token.
fn is_identifier(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let letters = segment.bytes().filter(u8::is_ascii_alphabetic).count();
    let hex = segment.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-');
    let numeric = digits > 0 && letters == 0 && digits + 1 >= segment.len();
    // Versions of an API (`v1`, `2010-04-01`, `v1beta1`) are short, or have no letters and dashes.
    let hexadecimal = hex && segment.len() >= 12 && digits >= 2;
    let random = segment.len() >= 16 && digits >= 4 && letters >= 4 && !segment.contains('.');
    numeric || hexadecimal || random || crate::screen::has_form_of_credential(segment.as_bytes())
}

/// What was called below one place of a path.
#[derive(Debug, Clone, Default)]
struct Node {
    callers: Callers,
    children: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, segments: &[String], call: &Seen) {
        match segments.split_first() {
            None => {
                let agents = self.callers.entry(call.method.clone()).or_default();
                agents.insert(call.agent.clone());
            }
            Some((first, rest)) => {
                self.children.entry(first.clone()).or_default().add(rest, call);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (method, agents) in other.callers {
            self.callers.entry(method).or_default().extend(agents);
        }
        for (segment, node) in other.children {
            self.children.entry(segment).or_default().merge(node);
        }
    }

    /// Takes places with many variants for variables. What stands in front of a query or at the end
    /// of a path with a slash (an empty segment) is none.
    fn generalise(&mut self, depth: usize) {
        let named = self.children.keys().filter(|s| !s.is_empty()).count();
        if named > VARIANTS {
            let all = std::mem::take(&mut self.children);
            for (segment, node) in all {
                let place = if segment.is_empty() { segment } else { "*".to_owned() };
                self.children.entry(place).or_default().merge(node);
            }
        }
        if depth + 1 >= DEPTH {
            let mut below = Callers::new();
            for node in self.children.values() {
                node.all_callers(&mut below);
            }
            self.children.clear();
            if !below.is_empty() {
                let rest = Self { callers: below, children: BTreeMap::new() };
                self.children.insert("**".to_owned(), rest);
            }
        }
        self.children.values_mut().for_each(|node| node.generalise(depth + 1));
    }

    fn all_callers(&self, into: &mut Callers) {
        for (method, agents) in &self.callers {
            into.entry(method.clone()).or_default().extend(agents.iter().cloned());
        }
        self.children.values().for_each(|node| node.all_callers(into));
    }

    fn collect(&self, path: String, into: &mut BTreeMap<String, Callers>) {
        if !self.callers.is_empty() {
            into.insert(path.clone(), self.callers.clone());
        }
        for (segment, node) in &self.children {
            node.collect(format!("{path}/{segment}"), into);
        }
    }
}

/// Hosts of which there are many below one name become one wildcard. Only names of three labels and
/// more are taken for that: everybody registers names below shorter ones.
fn under_wildcards(sites: BTreeMap<Site, Node>) -> BTreeMap<Site, Node> {
    let parent = |host: &str| {
        let (_, parent) = host.split_once('.')?;
        let labels = parent.split('.').count();
        let address = host.contains(':') || host.parse::<std::net::Ipv4Addr>().is_ok();
        (labels >= 3 && !address).then(|| parent.to_owned())
    };
    let mut below: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (host, ..) in sites.keys() {
        if let Some(parent) = parent(host) {
            below.entry(parent).or_default().insert(host);
        }
    }
    let many: BTreeSet<String> =
        below.into_iter().filter(|(_, names)| names.len() >= NAMES).map(|(name, _)| name).collect();
    let mut merged: BTreeMap<Site, Node> = BTreeMap::new();
    for ((host, scheme, port), node) in sites {
        let host = match parent(&host).filter(|parent| many.contains(parent)) {
            Some(parent) => format!("*.{parent}"),
            None => host,
        };
        merged.entry((host, scheme, port)).or_default().merge(node);
    }
    merged
}

/// Methods that the same agents use, together.
fn by_agents(callers: Callers) -> BTreeMap<BTreeSet<String>, BTreeSet<String>> {
    let mut groups: BTreeMap<BTreeSet<String>, BTreeSet<String>> = BTreeMap::new();
    for (method, agents) in callers {
        groups.entry(agents).or_default().insert(method);
    }
    groups
}

/// A route; without path and methods only the opening of the tunnel is known.
fn route(
    host: &str,
    scheme: Scheme,
    port: u16,
    inside: Option<(&str, &BTreeSet<String>)>,
    agents: &BTreeSet<String>,
) -> String {
    let list = |names: &BTreeSet<String>| {
        let quoted: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let mut text = String::from("\n");
    let known = PRESETS.iter().find(|preset| preset.hosts.contains(&host));
    if let Some(preset) = known {
        let name = preset.name;
        text.push_str(&format!("# preset = \"{name}\" knows this service; see docs/presets.md\n"));
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let label: String = host.chars().map(plain).collect();
    let label: String = label.trim_matches(['-', '.']).chars().take(48).collect();
    let mut target = format!("host = {host:?}");
    match inside {
        Some((path, methods)) => {
            target.push_str(&format!(", methods = {}, path = {path:?}", list(methods)));
        }
        None => text.push_str(
            "# Only tunnels were seen, which were not opened: methods and paths are not known, so all\n\
             # are allowed here. `egress = \"observe\"` learns them.\n",
        ),
    }
    if scheme == Scheme::Http {
        target = format!("scheme = \"http\", {target}");
    }
    if port != scheme.default_port() {
        target.push_str(&format!(", port = {port}"));
    }
    let written = write!(
        text,
        "[[route]]\nname = \"learned-{{number}}-{label}\"\nagents = {}\nmatch = {{ {target} }}\n",
        list(agents)
    );
    debug_assert!(written.is_ok(), "a text takes every write");
    if is_private_literal(host) {
        text.push_str("private_addresses = \"allow\"\n");
    }
    text
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
