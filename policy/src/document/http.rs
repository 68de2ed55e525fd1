//! The tables `[[route]]`.

use super::reader::{Fields, Reader};
use super::{
    HostPlace, HttpRoute, Names, Shared, conditions, key, parent, read_agents, read_approval,
    read_credential, read_host, read_name, read_preset, repeat, terms, title, value,
};
use crate::condition::Conditions;
use crate::grant::FRAMING;
use crate::host::{Pattern, is_private_literal};
use crate::preset::{Contract, LeftOut, Preset};
use crate::{Credential, HttpGrant, Inject, Scheme, path};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const KNOWN: &[&str] = &[
    "name",
    "agents",
    "preset",
    "match",
    "credential",
    "agent_header",
    "refuse_headers",
    "strip_headers",
    "idempotent",
    "idempotency",
    "approval",
    "result",
    "limits",
    "retry",
    "reconcile",
    "job",
    "batch",
    "repeat_guard",
    "private_addresses",
    "parent",
    "intercept",
];

pub(super) const MATCH: &[&str] =
    &["scheme", "host", "port", "methods", "path", "headers", "query", "body"];

/// Reads all routes.
pub(super) fn read(reader: &Reader<'_>, root: &Fields<'_, '_>, shared: &Shared) -> Vec<HttpRoute> {
    let mut seen = BTreeMap::new();
    let mut routes = Vec::new();
    for (table, span) in root.tables("route") {
        let fields = Fields::new(reader, table, span, title("route", table, "name"), KNOWN);
        let name = read_name(&fields, &mut seen);
        routes.extend(read_route(&fields, name, shared));
    }
    routes
}

fn read_route(fields: &Fields<'_, '_>, name: Option<String>, shared: &Shared) -> Option<HttpRoute> {
    let agents = read_agents(fields);
    let terms = terms::read(fields, &shared.terms, false);
    let credential = read_http_credential(fields, shared);
    let preset = read_preset(fields);
    let headers = read_header_rules(fields, credential.as_ref(), preset.is_some());
    let (idempotency, generate) = key::read(fields, name.as_deref(), preset.is_some());
    let approval = read_approval(fields, shared);
    let (retry, reconcile) = repeat::read(fields, terms.keep);
    refuse_retry(fields, approval.is_some() && retry.is_some());
    let (job, without_jobs) = repeat::read_job(fields, preset.is_some());
    let idempotent = fields.truth("idempotent");
    let target = read_target(fields, preset.is_some())?;
    let (Match { scheme, port, methods, path, conditions, hosts }, name) =
        (read_match(&target, preset)?, name?);
    let private_addresses = terms.private_addresses.unwrap_or(false);
    if let Some(credential) = &credential {
        warn_of_exposure(fields, &target, scheme, &hosts, credential);
        warn_of_other_hosts(fields, &hosts, shared.presets.get(&credential.id));
    }
    warn_of_private_host(&target, &hosts, private_addresses);
    key::check_generated(fields, idempotency.as_ref(), credential.as_ref());
    let overridden = idempotent.is_some() || idempotency.is_some();
    let contract = preset.map(|preset| {
        let credential = credential.as_ref().map(|c| c.id.as_str());
        Contract::new(preset, credential).under(overridden, generate, without_jobs)
    });
    let grant = HttpGrant {
        route: Some(name.clone()),
        would_deny: None,
        credential,
        idempotent,
        idempotency,
        keep: terms.keep,
        keep_bytes: terms.keep_bytes,
        keep_total_bytes: terms.keep_total_bytes,
        keep_for: terms.keep_for,
        limits: terms.limits,
        private_addresses,
        repeat_window: terms.repeat_window,
        forbidden_headers: headers.forbidden,
        stripped_headers: headers.stripped,
        preset: preset.map(|p| p.name),
        intercept: read_intercept(fields, &target),
        approval,
        parent: None,
        retry,
        reconcile,
        job,
        batch: repeat::read_batch(fields),
    };
    Some(HttpRoute {
        name,
        place: fields.place(),
        agents,
        scheme,
        hosts,
        port,
        methods,
        path,
        conditions,
        grant,
        preset: contract,
        left_out: preset.map(|preset| left_out(preset, &target)).unwrap_or_default(),
        parent: parent::of_route(fields, shared),
    })
}

/// Which calls a route is for.
struct Match {
    scheme: Scheme,
    port: u16,
    methods: Names,
    path: Option<path::Pattern>,
    conditions: Conditions,
    hosts: Vec<Pattern>,
}

fn read_match(target: &Fields<'_, '_>, preset: Option<&'static Preset>) -> Option<Match> {
    let clear = target.word("scheme", &["https", "http"]) == Some(1);
    let scheme = if clear { Scheme::Http } else { Scheme::Https };
    Some(Match {
        scheme,
        port: read_port(target, scheme),
        methods: read_methods(target),
        path: read_path(target, preset),
        conditions: conditions::read(target),
        hosts: read_hosts(target, preset)?,
    })
}

/// What hands out credentials and is not named by the route.
fn left_out(preset: &'static Preset, target: &Fields<'_, '_>) -> LeftOut {
    LeftOut::of(preset, target.has("host"), target.has("path"))
}

fn read_port(target: &Fields<'_, '_>, scheme: Scheme) -> u16 {
    let port = target.number("port", 1, 65_535).and_then(|port| u16::try_from(port).ok());
    port.unwrap_or_else(|| scheme.default_port())
}

/// An approval is for one call; whoever wants another one asks again.
fn refuse_retry(fields: &Fields<'_, '_>, is_wrong: bool) {
    if is_wrong {
        fields.wrong("retry", "an approval is for one call, so nothing can be sent again", None);
    }
}

/// The key `intercept`. A tunnel that is not looked into has no methods, paths or headers, and no
/// place for a credential.
fn read_intercept(fields: &Fields<'_, '_>, target: &Fields<'_, '_>) -> bool {
    if fields.truth("intercept") != Some(false) {
        return true;
    }
    for key in [
        "credential",
        "preset",
        "idempotent",
        "idempotency",
        "retry",
        "reconcile",
        "job",
        "batch",
        "agent_header",
        "refuse_headers",
        "strip_headers",
    ] {
        if fields.has(key) {
            fields.wrong(key, "needs a route that is intercepted", None);
        }
    }
    for key in ["methods", "path", "headers", "query", "body"] {
        if target.has(key) {
            target.wrong(key, "needs a route that is intercepted", None);
        }
    }
    if target.word("scheme", &["https", "http"]) == Some(1) {
        target.wrong("scheme", "has nothing to intercept; leave intercept out", None);
    }
    false
}

/// What becomes of header fields of the agent's.
#[derive(Default)]
struct HeaderRules {
    forbidden: Vec<String>,
    stripped: Vec<String>,
}

/// The keys `agent_header`, `refuse_headers` and `strip_headers`. What a credential sets is not the
/// agent's to set, and neither is `Authorization` beside it: a service could go by that.
fn read_header_rules(
    fields: &Fields<'_, '_>,
    credential: Option<&Credential>,
    preset: bool,
) -> HeaderRules {
    let mut rules = HeaderRules {
        forbidden: read_patterns(fields, "refuse_headers"),
        stripped: read_patterns(fields, "strip_headers"),
    };
    let word = fields.word("agent_header", &["refuse", "replace", "pass"]);
    let Some(credential) = credential else { return rules };
    let own: Vec<_> = credential.inject.own_headers().into_iter().map(str::to_owned).collect();
    let authorization = "authorization".to_owned();
    let mode = credential.inject.mode();
    // Where the agent writes a placeholder is its own choice.
    let beside = (mode != "placeholder" && !own.contains(&authorization)).then_some(authorization);
    match word {
        Some(0) => rules.forbidden.extend(own.into_iter().chain(beside)),
        // The credential's own fields take the place of the agent's.
        Some(1) => rules.stripped.extend(beside),
        Some(_) if beside.is_none() => {
            let message = "\"pass\" is for credentials that are no Authorization themselves";
            fields.wrong("agent_header", message, None);
        }
        Some(_) => rules.forbidden.extend(own),
        // Client libraries of the services behind presets send a key, or a signature, of their own.
        None if preset || mode == "sigv4" => rules.stripped.extend(beside),
        None => rules.forbidden.extend(own.into_iter().chain(beside)),
    }
    rules
}

/// A list of names of header fields, with stars.
fn read_patterns(fields: &Fields<'_, '_>, key: &str) -> Vec<String> {
    let mut patterns = Vec::new();
    for name in fields.texts(key).unwrap_or_default() {
        let pattern = name.value.to_ascii_lowercase();
        if !value::is_token(&pattern) || pattern.bytes().all(|c| c == b'*') {
            fields.wrong_at(name.offset, key, "is not the name of a header field");
        } else if FRAMING.contains(&pattern.as_str()) {
            let message =
                format!("{pattern} frames or routes the message and has rules of its own");
            fields.wrong_at(name.offset, key, message);
        } else {
            patterns.push(pattern);
        }
    }
    patterns
}

/// The key `match`, which a preset makes optional.
fn read_target<'r, 't>(fields: &Fields<'r, 't>, preset: bool) -> Option<Fields<'r, 't>> {
    if !fields.has("match") && !fields.has("preset") {
        let hint = "write match = { host = \"api.example.com\" }".to_owned();
        fields.wrong("match", "is missing", Some(hint));
    }
    if preset { fields.table_or_empty("match", MATCH) } else { fields.table("match", MATCH) }
}

/// The key `host`, or the hosts of the preset.
fn read_hosts(target: &Fields<'_, '_>, preset: Option<&Preset>) -> Option<Vec<Pattern>> {
    match preset {
        Some(Preset { name, hosts: [], .. }) if !target.has("host") => {
            let hint = Some("name the registry that you use".to_owned());
            target.wrong("host", format!("preset {name:?} names no host: write match.host"), hint);
            None
        }
        Some(preset) if !target.has("host") => {
            Some(preset.hosts.iter().filter_map(|host| Pattern::parse(host).ok()).collect())
        }
        Some(_) | None => Some(vec![read_host(target, HostPlace::Match)?]),
    }
}

/// A host that policy would refuse by its address.
fn warn_of_private_host(target: &Fields<'_, '_>, hosts: &[Pattern], allowed: bool) {
    if let [Pattern::Exact(host)] = hosts
        && !allowed
        && is_private_literal(host)
    {
        let hint = Some("add private_addresses = \"allow\" to the route".to_owned());
        target.doubtful("host", "is a private address, which policy refuses", hint);
    }
}

/// A credential that is meant for one service and goes to another.
fn warn_of_other_hosts(
    fields: &Fields<'_, '_>,
    hosts: &[Pattern],
    preset: Option<&&'static Preset>,
) {
    // One without hosts goes where the route says.
    let Some(preset) = preset.filter(|preset| !preset.hosts.is_empty()) else { return };
    let own: Vec<_> = preset.hosts.iter().filter_map(|host| Pattern::parse(host).ok()).collect();
    let covered = |host: &Pattern| match host {
        Pattern::Exact(name) => own.iter().any(|own| own.matches(name)),
        Pattern::Under(_) => own.contains(host),
    };
    if !hosts.iter().all(covered) {
        let message = format!("hands the credential of {:?} to another host", preset.name);
        fields.doubtful("credential", message, None);
    }
}

fn warn_of_exposure(
    fields: &Fields<'_, '_>,
    target: &Fields<'_, '_>,
    scheme: Scheme,
    hosts: &[Pattern],
    credential: &Credential,
) {
    let id = &credential.id;
    if scheme == Scheme::Http && credential.inject == Inject::Mtls {
        target.wrong("scheme", "has no handshake for a client certificate; use https", None);
    }
    if scheme == Scheme::Http {
        let message = format!("sends credential {id:?} in clear text");
        target.doubtful("scheme", message, Some("use https".to_owned()));
    }
    for host in hosts {
        let Pattern::Under(suffix) = host else { continue };
        if suffix.contains('.') {
            continue;
        }
        let message = format!("hands credential {id:?} to every host under {suffix:?}");
        fields.doubtful("credential", message, None);
    }
}

fn read_http_credential(fields: &Fields<'_, '_>, shared: &Shared) -> Option<Credential> {
    let credential = read_credential(fields, shared)?;
    if matches!(
        credential.inject,
        Inject::SshKey | Inject::Password | Inject::KeyboardInteractive | Inject::SshCertificate
    ) {
        let mode = credential.inject.mode();
        fields.wrong("credential", format!("{mode:?} is injected by SSH routes only"), None);
        return None;
    }
    Some(credential)
}

/// Methods that services take: those of RFC 9110 section 9.3, RFC 5789, and of WebDAV and its kin.
const METHODS: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LIST",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "VERSION-CONTROL",
];

fn read_methods(target: &Fields<'_, '_>) -> Names {
    let mut methods = BTreeSet::new();
    for method in target.texts("methods")? {
        let text = method.value;
        if !value::is_token(text) {
            target.wrong_at(method.offset, "methods", "is not a method");
        } else if text.bytes().any(|c| c.is_ascii_lowercase()) {
            let upper = text.to_ascii_uppercase();
            let message = format!("methods are case-sensitive; write {upper:?}");
            target.wrong_at(method.offset, "methods", message);
        } else if text == "CONNECT" {
            let message = "tunnels are opened for the routes inside of them; leave CONNECT out";
            target.wrong_at(method.offset, "methods", message);
        } else {
            if !METHODS.contains(&text) {
                let hint = match value::nearest(text, METHODS.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => "a service can have methods of its own; then all is well".to_owned(),
                };
                let message = format!("no method of that name is known: {text:?}");
                target.doubtful_at(method.offset, "methods", &message, hint);
            }
            methods.insert(text.to_owned());
        }
    }
    Some(methods)
}

fn read_path(target: &Fields<'_, '_>, preset: Option<&Preset>) -> Option<path::Pattern> {
    if let Some(path) = preset.and_then(|preset| preset.path).filter(|_| !target.has("path")) {
        return path::Pattern::parse(path).ok();
    }
    let text = target.text("path")?.value;
    match path::Pattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let hint = text.contains('?').then(|| "the query is not matched".to_owned());
            target.wrong("path", error, hint);
            None
        }
    }
}
