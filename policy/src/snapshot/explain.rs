//! Explains a decision: the same search, told in words.

use super::target::Target;
use super::{EGRESS, Found, Snapshot, http, normal_host, ssh};
use crate::call::CONNECT;
use crate::command::ReleaseRule;
use crate::document::HttpRoute;
use crate::parent::ParentRule;
use crate::{
    Approval, Considered, Credential, Denial, Details, Explanation, HttpAction, HttpGrant,
    IdempotencyRule, Scheme, SshAction, SshGrant,
};
use journal::contract::{KeyPlace, RemoteContract};
use std::time::Duration;

/// How many routes that did not decide are named.
const CONSIDERED: usize = 50;

/// Explains an HTTP action.
pub(super) fn http(
    snapshot: &Snapshot,
    action: &HttpAction<'_>,
    details: &Details<'_>,
) -> Explanation {
    let place = match normal_host(action.host) {
        Ok(host) => format!("{}://{}:{}", action.scheme, http::bracketed(&host), action.port),
        Err(_) => "an unusable host".to_owned(),
    };
    let is_tunnel = action.method == CONNECT;
    let path = if is_tunnel { "" } else { action.path };
    let title = format!("{} {place}{path} as agent {}", action.method, action.agent);
    if let Some(explanation) = tunnel(snapshot, action, &title, is_tunnel) {
        return explanation;
    }
    let decision = snapshot.http_with(action, details);
    let mut explanation = begin(snapshot, title, decision.as_ref().err());
    let target = snapshot.http.target(action, *details);
    let found = target.as_ref().ok().and_then(|t| match snapshot.http.find(t) {
        Found::Route(route) | Found::Undecided(route, _) => Some(route),
        Found::None => None,
    });
    if let Ok(grant) = &decision {
        explanation.reason = match found {
            Some(_) => "the narrowest route that matches".to_owned(),
            None if grant.would_deny.is_some() => {
                "no route matches: it would be denied, and passes because egress is observed"
                    .to_owned()
            }
            None => "no route matches, and egress is open".to_owned(),
        };
        explanation.injects = grant.credential.as_ref().map(injection);
        explanation.credential = grant.credential.as_ref().map(|c| c.id.clone());
        explanation.would_deny = grant.would_deny;
        explanation.preset = grant.preset;
        explanation.idempotent = Some(grant.is_idempotent(action.method));
        explanation.key = grant.idempotency.as_ref().map(|rule| rule.place.to_string());
        explanation.terms = http_terms(grant, action.method);
        if let (Some(route), Ok(target)) = (found, &target) {
            explanation.terms.splice(0..1, repeat_terms(route, grant, target));
        }
        if let Ok(target) = &target {
            let rule = found.map_or(&snapshot.defaults.parent, |route| &route.parent);
            explanation.terms.extend(parent(rule.as_ref(), &target.host));
        }
    }
    if let Some(route) = found {
        explanation.rule.clone_from(&route.name);
        explanation.line = Some(route.place.line);
    } else {
        explanation.line = snapshot.defaults.place.map(|p| p.line);
    }
    if let Ok(target) = &target {
        explanation.considered = considered(snapshot, found, target);
    }
    explanation
}

/// The other routes of the host, and why they did not decide.
fn considered(
    snapshot: &Snapshot,
    found: Option<&HttpRoute>,
    target: &Target<'_>,
) -> Vec<Considered> {
    let others = snapshot.http.of_host(&target.host);
    let others = others.filter(|r| found.is_none_or(|f| f.name != r.name));
    let of = |route: &HttpRoute| Considered {
        route: route.name.clone(),
        line: route.place.line,
        reason: match http::mismatch(route, target) {
            None => "matches, but is wider",
            Some(http::Mismatch::Agent) => "is for other agents",
            Some(http::Mismatch::Scheme) => "is for the other scheme",
            Some(http::Mismatch::Port) => "is for another port",
            Some(http::Mismatch::Path) => "is for other paths",
            Some(http::Mismatch::Method) => "is for other methods",
            Some(http::Mismatch::Query) => "has a condition on the query",
            Some(http::Mismatch::Header) => "has a condition on headers",
            Some(http::Mismatch::Body) => "has a condition on the content",
        }
        .to_owned(),
    };
    others.take(CONSIDERED).map(of).collect()
}

/// Explains what becomes of the tunnel to the host, where that is all that is judged: it is left alone, it is
/// refused, or nothing but its opening is asked about.
fn tunnel(
    snapshot: &Snapshot,
    action: &HttpAction<'_>,
    title: &str,
    is_asked: bool,
) -> Option<Explanation> {
    let HttpAction { agent, host, port, .. } = *action;
    if action.scheme != Scheme::Https {
        return None;
    }
    let host = normal_host(host).ok()?;
    let route = snapshot.http.opaque(agent, &host, port);
    let denial = match (route, is_asked) {
        (Some(_), _) => snapshot.opaque(agent, &host, port).err(),
        (None, true) => snapshot.tunnel(agent, &host, port).err(),
        (None, false) => return None,
    };
    let mut explanation = begin(snapshot, title.to_owned(), denial.as_ref());
    explanation.line = snapshot.defaults.place.map(|p| p.line);
    if let Some(route) = route {
        explanation.rule.clone_from(&route.name);
        explanation.line = Some(route.place.line);
    }
    if denial.is_some() {
        return Some(explanation);
    }
    match route {
        Some(route) => {
            explanation.reason = "the narrowest host decides, by intercept = false".to_owned();
            explanation.terms.push(LEFT_ALONE.to_owned());
            explanation.terms.extend(parent(route.parent.as_ref(), &host));
        }
        None => {
            explanation.reason = "some call to this host may pass, or egress is open".to_owned();
            explanation.terms.push("each call inside is judged by itself; ask about it".to_owned());
        }
    }
    Some(explanation)
}

/// What holds for a tunnel that is not intercepted.
const LEFT_ALONE: &str = "the tunnel is left alone: nothing inside is seen, judged, injected or kept; \
                          its outcome is unknown";

/// Which upstream proxy a call goes through, or why it goes past it.
fn parent(rule: Option<&ParentRule>, host: &str) -> Option<String> {
    let rule = rule?;
    let name = &rule.parent.name;
    Some(match rule.for_host(host) {
        Some(_) => format!("through the upstream proxy {name:?}"),
        None => format!("past the upstream proxy {name:?}, by its no_proxy"),
    })
}

/// Explains an SSH action.
pub(super) fn ssh(snapshot: &Snapshot, action: &SshAction<'_>) -> Explanation {
    let host = normal_host(action.host);
    let place = host.as_ref().map_or("an unusable host", |h| h.as_str());
    let (user, port) = (action.user, action.port);
    let request = ssh::kind(&action.request);
    let place = format!("ssh://{user}@{}:{port}", http::bracketed(place));
    let title = format!("{request} at {place} as agent {}", action.agent);
    let decision = snapshot.ssh(action);
    let mut explanation = begin(snapshot, title, decision.as_ref().err());
    // No default opens SSH: without a route there is no rule.
    explanation.rule = "none".to_owned();
    let Ok(host) = host else { return explanation };
    let found = snapshot.ssh.find(action, &host);
    if let Ok(grant) = &decision {
        explanation.reason = "the narrowest SSH route that matches".to_owned();
        explanation.injects = grant.credential.as_ref().map(injection);
        explanation.credential = grant.credential.as_ref().map(|c| c.id.clone());
        explanation.idempotent = Some(grant.idempotent);
        explanation.terms = ssh_terms(grant);
    }
    if let Some(route) = found {
        explanation.rule.clone_from(&route.name);
        explanation.line = Some(route.place.line);
    }
    let others = snapshot.ssh.of_host(&host);
    let others = others.filter(|r| found.is_none_or(|f| f.name != r.name));
    explanation.considered = others
        .take(CONSIDERED)
        .map(|route| Considered {
            route: route.name.clone(),
            line: route.place.line,
            reason: match ssh::mismatch(route, action) {
                None => "matches, but is wider",
                Some(ssh::Mismatch::Agent) => "is for other agents",
                Some(ssh::Mismatch::Port) => "is for another port",
                Some(ssh::Mismatch::User) => "is for other users",
                Some(ssh::Mismatch::Request) => "does not allow this kind of request",
                Some(ssh::Mismatch::Command) => "is for other commands",
            }
            .to_owned(),
        })
        .collect();
    explanation
}

fn begin(snapshot: &Snapshot, action: String, denial: Option<&Denial>) -> Explanation {
    Explanation {
        allowed: denial.is_none(),
        action,
        policy_version: snapshot.version,
        rule: denial.map_or_else(|| EGRESS.to_owned(), |d| d.rule.clone()),
        line: None,
        code: denial.map(|d| d.code),
        would_deny: None,
        field: denial.map(|d| d.field.clone()),
        reason: denial.map(|d| d.message.clone()).unwrap_or_default(),
        injects: None,
        credential: None,
        preset: None,
        idempotent: None,
        key: None,
        terms: Vec::new(),
        considered: Vec::new(),
    }
}

fn injection(credential: &Credential) -> String {
    let Credential { id, secret, inject } = credential;
    match inject.header_name() {
        Some(name) => {
            format!("credential {id:?} ({}) as header {name}, {}", secret.kind(), inject.mode())
        }
        None => format!("credential {id:?} ({}), {}", secret.kind(), inject.mode()),
    }
}

fn http_terms(grant: &HttpGrant, method: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let known = if grant.is_idempotent(method) { "idempotent" } else { "not idempotent" };
    let by = if grant.idempotent.is_some() { "by policy" } else { "by its method" };
    terms.push(format!("{known}, {by}"));
    terms.push(match &grant.idempotency {
        Some(rule) => key(rule, grant.is_idempotent(method)),
        None => "no idempotency contract; a key is neither added nor trusted".to_owned(),
    });
    terms.extend(grant.job.as_ref().map(|job| {
        let by = match (&job.path, &job.pointer) {
            (Some(path), _) => format!("by questions to {path}"),
            (None, Some(pointer)) => format!("at the address in {pointer} of the response"),
            (None, None) => format!("at the address in header {}", job.headers.join(" or ")),
        };
        format!("a job that the call starts is followed {by}")
    }));
    terms.push(guard(grant.repeat_window));
    terms.extend(approval(grant.approval));
    terms.push(format!(
        "result: {}, up to {} bytes, for {}",
        grant.keep,
        grant.keep_bytes,
        seconds(grant.keep_for)
    ));
    terms.extend(grant.keep_total_bytes.map(total));
    let addresses = if grant.private_addresses { "may" } else { "may not" };
    terms.push(format!("private addresses {addresses} be dialled"));
    for header in &grant.forbidden_headers {
        terms.push(format!("a request with header {header} is refused"));
    }
    for header in &grant.stripped_headers {
        terms.push(format!("header {header} of the agent does not go on"));
    }
    terms
}

/// The key contract.
fn key(rule: &IdempotencyRule, idempotent: bool) -> String {
    let IdempotencyRule { place, actions, scope, retention, contract, generate } = rule;
    let place = match place {
        KeyPlace::Header(name) => format!("header {name}"),
        KeyPlace::Query(name) => format!("query parameter {name}"),
        KeyPlace::Form(name) => format!("form field {name}"),
        KeyPlace::Json(pointer) => format!("JSON content at {pointer}"),
    };
    let ours = if *generate && !idempotent { ", a key of ours where there is none" } else { "" };
    let contract = match contract {
        RemoteContract::Verified => "a repeat with the same key is safe",
        RemoteContract::Unverified => "a repeat is not promised to be safe",
    };
    let only = match actions.as_slice() {
        [] => String::new(),
        actions => format!(", if Action is {}", actions.join(" or ")),
    };
    let kept = seconds(*retention);
    format!("key in {place}{only}{ours}, scope {scope:?}, kept {kept}; {contract}")
}

/// What decides on repeating: the route, the line of its preset, or the method.
fn repeat_terms(route: &HttpRoute, grant: &HttpGrant, target: &Target<'_>) -> Vec<String> {
    let line = route.preset.as_ref().filter(|p| !p.overridden).and_then(|p| p.line(&target.call()));
    let by = match (line, grant.idempotent) {
        (Some(_), _) => "by the preset",
        (None, Some(_)) => "by the route",
        (None, None) => "by its method",
    };
    let known = if grant.is_idempotent(target.method) { "idempotent" } else { "not idempotent" };
    let mut terms = vec![format!("{known}, {by}")];
    if let Some(contract) = &route.preset {
        let name = contract.preset.name;
        terms.push(match line {
            Some(line) => {
                let source = line.source;
                format!("preset {name:?}: {} ({}, {source})", line.why, source.url)
            }
            None => format!("preset {name:?} has no line on this call, or the route overrides it"),
        });
    }
    terms
}

fn ssh_terms(grant: &SshGrant) -> Vec<String> {
    let mut terms = Vec::new();
    if let Some(address) = &grant.address {
        terms.push(format!("the name leads to {address}"));
    }
    terms.push(format!("{} host key(s) pinned", grant.host_keys.len()));
    terms.push(if grant.is_idempotent() { "idempotent" } else { "not idempotent" }.to_owned());
    if let Some(ReleaseRule { scope, retention, contract, .. }) = &grant.release {
        let retention = seconds(*retention);
        terms.push(format!("a release id, scope {scope:?}, kept {retention}, {contract} contract"));
    }
    if let Some(status) = grant.refused_status {
        terms.push(format!("compares before it changes: exit status {status} is a refusal"));
    }
    if let Some(retry) = &grant.retry {
        terms.push(format!("up to {} attempts, on request", retry.max_attempts));
    }
    if let Some(query) = &grant.reconcile {
        let by = if query.pace.automatic { "by itself" } else { "on request" };
        terms.push(format!("asks {by} with {:?} what became of a command", query.command));
    }
    terms.push(guard(grant.repeat_window));
    terms.extend(approval(grant.approval));
    let (keep, bytes, time) = (grant.keep, grant.keep_bytes, seconds(grant.keep_for));
    terms.push(format!("result: {keep}, up to {bytes} bytes, for {time}"));
    terms.extend(grant.keep_total_bytes.map(total));
    terms
}

fn approval(approval: Option<Approval>) -> Option<String> {
    let Approval { wait, expire } = approval?;
    let (wait, expire) = (seconds(wait), seconds(expire));
    Some(format!("a person approves each call; the caller waits {wait}, the question {expire}"))
}

fn total(bytes: u64) -> String {
    format!("results of the route: up to {bytes} bytes in total, the oldest go first")
}

fn guard(window: Option<Duration>) -> String {
    match window {
        Some(window) => format!("hidden repeats are held back for {}", seconds(window)),
        None => "hidden repeats are not held back".to_owned(),
    }
}

fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        s if s % 86_400 == 0 => format!("{}d", s / 86_400),
        s if s % 3_600 == 0 => format!("{}h", s / 3_600),
        s if s % 60 == 0 => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}
