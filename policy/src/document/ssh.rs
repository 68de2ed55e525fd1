//! The tables `[[ssh]]`.

use super::reader::{Fields, Reader};
use super::{
    Allow, HostPlace, Names, Shared, SshRoute, command, read_agents, read_approval,
    read_credential, read_host, read_name, terms, title, value,
};
use crate::{Credential, Inject, Onward, SshGrant, host};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) const KNOWN: &[&str] = &[
    "name",
    "agents",
    "match",
    "address",
    "host_keys",
    "credential",
    "allow",
    "shell",
    "idempotent",
    "release",
    "compare",
    "approval",
    "result",
    "limits",
    "retry",
    "reconcile",
    "repeat_guard",
    "private_addresses",
    "known_hosts",
    "intercept",
    "env",
    "forward_to",
    "kill_on_cancel",
    "completion",
    "source_address",
];

pub(super) const MATCH: &[&str] = &["host", "port", "users", "commands"];

/// What a command may take where the text says nothing: builds and backups are quiet for long.
const COMMAND_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads all SSH routes.
pub(super) fn read(reader: &Reader<'_>, root: &Fields<'_, '_>, shared: &Shared) -> Vec<SshRoute> {
    let mut seen = BTreeMap::new();
    let mut routes = Vec::new();
    for (table, span) in root.tables("ssh") {
        let fields = Fields::new(reader, table, span, title("ssh", table, "name"), KNOWN);
        let name = read_name(&fields, &mut seen);
        routes.extend(read_route(&fields, name, shared));
    }
    routes
}

fn read_route(fields: &Fields<'_, '_>, name: Option<String>, shared: &Shared) -> Option<SshRoute> {
    let agents = read_agents(fields);
    let allow = read_allow(fields);
    let any_shell = fields.word("shell", &["plain", "any"]) == Some(1);
    let grant = read_grant(fields, name.as_deref(), shared);
    if allow.forward && !fields.has("forward_to") {
        let message = "\"forward\" without `forward_to` leads to wherever the target gets";
        let hint = "write forward_to = [\"db.example:5432\"], or [\"*\"] if that is meant";
        fields.doubtful("allow", message, Some(hint.to_owned()));
    }
    if !fields.has("match") {
        let hint = "write match = { host = \"prod-1\", users = [\"deploy\"] }".to_owned();
        fields.wrong("match", "is missing", Some(hint));
    }
    let target = fields.table("match", MATCH)?;
    let port = target.number("port", 1, 65_535).and_then(|p| u16::try_from(p).ok()).unwrap_or(22);
    let users = read_users(&target);
    let commands = read_commands(&target);
    if commands.is_some() && allow.shell {
        let message = "restricts nothing, since the route allows a shell as well";
        target.doubtful("commands", message, None);
    }
    let (host, name, place) = (read_host(&target, HostPlace::Match)?, name?, fields.place());
    Some(SshRoute { name, place, agents, host, port, users, commands, any_shell, allow, grant })
}

/// What the route gives to what it lets through.
fn read_grant(fields: &Fields<'_, '_>, name: Option<&str>, shared: &Shared) -> SshGrant {
    let mut terms = terms::read(fields, &shared.terms, true);
    if !terms.response_stated {
        terms.limits.response_timeout = COMMAND_TIME;
    }
    let credential = read_ssh_credential(fields, shared);
    let approval = read_approval(fields, shared);
    let source_address = read_sources(fields, credential.as_ref());
    let command = command::read(fields, name, approval.is_some());
    let intercept = fields.truth("intercept").unwrap_or(true);
    refuse_inside_keys(fields, intercept);
    let known_hosts = fields.text("known_hosts").map(|text| text.value.to_owned());
    let host_keys = read_host_keys(fields, intercept && known_hosts.is_none());
    SshGrant {
        route: name.unwrap_or_default().to_owned(),
        address: read_address(fields),
        host_keys,
        known_hosts,
        intercept,
        env: read_patterns(fields, "env"),
        forward_to: read_onward(fields),
        kill_on_cancel: fields.truth("kill_on_cancel").unwrap_or(false),
        completion: fields.text("completion").map(|text| text.value.to_owned()),
        credential,
        source_address,
        idempotent: fields.truth("idempotent").unwrap_or(false),
        release: command.release,
        refused_status: command.refused,
        retry: command.retry,
        reconcile: command.reconcile,
        keep: terms.keep,
        keep_bytes: terms.keep_bytes,
        keep_total_bytes: terms.keep_total_bytes,
        keep_for: terms.keep_for,
        limits: terms.limits,
        output_bytes: terms.output_bytes,
        repeat_window: terms.repeat_window,
        // An SSH route names its target and pins its key: it may lead to a private address unless
        // it says otherwise itself.
        private_addresses: !fields.has("private_addresses")
            || terms.private_addresses == Some(true),
        approval,
    }
}

fn read_ssh_credential(fields: &Fields<'_, '_>, shared: &Shared) -> Option<Credential> {
    let credential = read_credential(fields, shared)?;
    if credential.inject.header_name().is_some() {
        let mode = credential.inject.mode();
        let hint = Some("SSH routes take \"ssh-key\" and \"password\"".to_owned());
        fields.wrong("credential", format!("{mode:?} is injected by HTTP routes only"), hint);
        return None;
    }
    Some(credential)
}

fn read_allow(fields: &Fields<'_, '_>) -> Allow {
    let Some(list) = fields.texts("allow") else {
        return Allow { exec: true, ..Allow::default() };
    };
    let mut allow = Allow::default();
    for member in list {
        match member.value {
            "exec" => allow.exec = true,
            "shell" => allow.shell = true,
            "forward" => allow.forward = true,
            "sftp" => {
                allow.subsystems.insert("sftp".to_owned());
            }
            other => match other.strip_prefix("subsystem:") {
                Some(name) if value::is_name(name, 64, b"@") => {
                    allow.subsystems.insert(name.to_owned());
                }
                Some(_) | None => {
                    let known = ["exec", "shell", "sftp", "subsystem:NAME", "forward"];
                    fields.no_word(&member, "allow", &known);
                }
            },
        }
    }
    allow
}

/// A relayed jump is not looked into: what needs that can't be asked for beside it.
fn refuse_inside_keys(fields: &Fields<'_, '_>, intercept: bool) {
    if intercept {
        return;
    }
    let inside = [
        "credential",
        "allow",
        "host_keys",
        "known_hosts",
        "env",
        "forward_to",
        "kill_on_cancel",
        "completion",
        "source_address",
        "idempotent",
        "release",
        "compare",
        "retry",
        "reconcile",
        "shell",
    ];
    for key in inside.into_iter().filter(|key| fields.has(key)) {
        fields.wrong(key, "needs a session that ends at the gateway (intercept = true)", None);
    }
}

/// The key `source_address`: from where a minted certificate can be used.
fn read_sources(fields: &Fields<'_, '_>, credential: Option<&Credential>) -> Vec<String> {
    let Some(list) = fields.texts("source_address") else { return Vec::new() };
    if credential.is_none_or(|credential| credential.inject != Inject::SshCertificate) {
        let hint = "it stands in the certificate that inject = \"ssh-certificate\" mints";
        fields.wrong("source_address", "has no certificate to stand in", Some(hint.to_owned()));
    }
    let mut sources = Vec::new();
    for source in list {
        let (address, bits) = match source.value.split_once('/') {
            Some((address, bits)) => (address, bits.parse::<u8>().ok()),
            None => (source.value, Some(0)),
        };
        let most = match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(_)) => Some(32),
            Ok(std::net::IpAddr::V6(_)) => Some(128),
            Err(_) => None,
        };
        if most.zip(bits).is_some_and(|(most, bits)| bits <= most) {
            sources.push(source.value.to_owned());
        } else {
            fields.wrong_at(source.offset, "source_address", "is no address and no network");
        }
    }
    sources
}

/// The key `forward_to`.
fn read_onward(fields: &Fields<'_, '_>) -> Option<Vec<Onward>> {
    let mut patterns = Vec::new();
    for pattern in fields.texts("forward_to")? {
        match Onward::parse(pattern.value) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => fields.wrong_at(pattern.offset, "forward_to", error),
        }
    }
    Some(patterns)
}

/// A list of patterns with `*`.
fn read_patterns(fields: &Fields<'_, '_>, key: &str) -> Option<Vec<String>> {
    let mut patterns = Vec::new();
    for pattern in fields.texts(key)? {
        if pattern.value.is_empty() || pattern.value.chars().any(|c| c.is_control() || c == ' ') {
            fields.wrong_at(pattern.offset, key, "is not a pattern");
        } else {
            patterns.push(pattern.value.to_owned());
        }
    }
    Some(patterns)
}

fn read_host_keys(fields: &Fields<'_, '_>, needed: bool) -> Vec<String> {
    if !fields.has("host_keys") && !needed {
        return Vec::new();
    }
    if !fields.has("host_keys") {
        let hint = "`ssh-keyscan HOST` prints them; compare with the host's own before you pin";
        fields.doubtful("host_keys", "is missing: calls will be refused", Some(hint.to_owned()));
        return Vec::new();
    }
    let mut keys = Vec::new();
    for line in fields.texts("host_keys").unwrap_or_default() {
        match value::public_key(line.value) {
            Ok(key) => keys.push(key),
            Err(error) => fields.wrong_at(line.offset, "host_keys", error),
        }
    }
    keys
}

/// The key `address`, as `host:port` with IPv6 in brackets.
fn read_address(fields: &Fields<'_, '_>) -> Option<String> {
    let text = fields.text("address")?.value;
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        Some(_) | None => (text, None),
    };
    let port = port.map_or(Some(22), |p| p.parse::<u16>().ok().filter(|&p| p != 0));
    match (host::normalize(name), port) {
        (Ok(name), Some(port)) if name.contains(':') => Some(format!("[{name}]:{port}")),
        (Ok(name), Some(port)) => Some(format!("{name}:{port}")),
        (Err(error), _) => {
            fields.wrong("address", error, Some("as in \"10.0.0.4:22\"".to_owned()));
            None
        }
        (Ok(_), None) => {
            fields.wrong("address", "the port is to be a number from 1 to 65535", None);
            None
        }
    }
}

fn read_users(target: &Fields<'_, '_>) -> Names {
    let mut users = BTreeSet::new();
    for user in target.texts("users")? {
        let text = user.value;
        if text.is_empty() || text.len() > 128 || text.chars().any(char::is_control) {
            target.wrong_at(user.offset, "users", "is not a login name");
        } else {
            users.insert(text.to_owned());
        }
    }
    Some(users)
}

fn read_commands(target: &Fields<'_, '_>) -> Option<BTreeSet<String>> {
    let mut commands = BTreeSet::new();
    for command in target.texts("commands")? {
        if command.value.is_empty() || command.value.contains('\0') {
            target.wrong_at(command.offset, "commands", "is not a command");
        } else {
            commands.insert(command.value.to_owned());
        }
    }
    Some(commands)
}

#[cfg(test)]
#[path = "ssh_tests.rs"]
mod tests;
