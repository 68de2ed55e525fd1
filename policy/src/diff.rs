//! What differs between two policies: rules by name, conditions and terms by key.

mod credential;

use crate::batch::{BatchForm, BatchRule};
use crate::command::{CommandQuery, CommandRetry, CommandShows, ReleaseRule};
use crate::condition::Wanted;
use crate::document::approvals::Approvals;
use crate::document::terms::Terms;
use crate::document::{Defaults, HttpRoute, Names, SshRoute, budget};
use crate::host::Pattern;
use crate::parent::ParentRule;
use crate::repeat::{JobRule, Pace, ReconcileRule, RetryRule, Shows};
use crate::{IdempotencyRule, Limits, Parent, Snapshot};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// One rule that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `defaults`, `approvals`, `budget`, `credential`, `parent`, `route`, `ssh` or `trust`.
    pub kind: &'static str,
    /// The rule's name.
    pub name: String,
    /// What happened to it.
    pub what: What,
    /// The keys that differ.
    pub keys: Vec<Changed>,
}

/// What happened to a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Some of its keys differ.
    Changed,
}

/// A key that differs. References to secrets are shown, secrets are not known here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The key.
    pub key: &'static str,
    /// Before; none: it was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// After; none: it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

type Keys = BTreeMap<&'static str, String>;
type Rules = BTreeMap<(&'static str, String), Keys>;

/// Compares two policies by what they mean: order and spelling of the text count for nothing.
#[must_use]
pub fn diff(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let (before, after) = (before.rules(), after.rules());
    let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut changes = Vec::new();
    for rule in all {
        let (old, new) = (before.get(rule), after.get(rule));
        let what = match (old, new) {
            (None, _) => What::Added,
            (_, None) => What::Removed,
            (Some(old), Some(new)) if old != new => What::Changed,
            (Some(_), Some(_)) => continue,
        };
        let keys = changed(old.unwrap_or(&Keys::new()), new.unwrap_or(&Keys::new()));
        let (kind, name) = rule.clone();
        changes.push(Change { kind, name, what, keys });
    }
    changes
}

fn changed(old: &Keys, new: &Keys) -> Vec<Changed> {
    let all: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let differ = all.into_iter().filter(|key| old.get(key) != new.get(key));
    differ
        .map(|key| Changed { key, before: old.get(key).cloned(), after: new.get(key).cloned() })
        .collect()
}

impl Snapshot {
    fn rules(&self) -> Rules {
        let mut rules = Rules::new();
        rules.insert(("defaults", "defaults".to_owned()), defaults(self.defaults()));
        for one in self.credentials() {
            rules.insert(("credential", one.id.clone()), credential::keys(one));
        }
        for rule in self.parents() {
            rules.insert(("parent", rule.parent.name.clone()), parent(rule));
        }
        rules.insert(("approvals", "approvals".to_owned()), approvals(self.approvals()));
        for named in self.budgets() {
            rules.insert(("budget", named.name.clone()), budget(named));
        }
        for route in self.http_routes() {
            rules.insert(("route", route.name.clone()), http(route));
        }
        for route in self.ssh_routes() {
            rules.insert(("ssh", route.name.clone()), ssh(route));
        }
        for trust in self.trust() {
            let file = trust.ca_file.display().to_string();
            let name = format!("{} {file}", shown_host(&trust.host));
            rules.insert(("trust", name), Keys::new());
        }
        rules
    }
}

fn approvals(approvals: &Approvals) -> Keys {
    let mut keys = Keys::from([
        ("wait", time(approvals.terms.wait)),
        ("expire", time(approvals.terms.expire)),
    ]);
    keys.extend(approvals.webhook.clone().map(|webhook| ("webhook", webhook)));
    keys
}

fn budget(named: &budget::Named) -> Keys {
    let of = &named.budget;
    let mut keys = Keys::from([("agents", names(&named.agents))]);
    for (key, limit) in [
        ("calls_per_minute", of.calls_per_minute),
        ("calls_per_hour", of.calls_per_hour),
        ("calls_per_day", of.calls_per_day),
        ("concurrent_calls", of.concurrent_calls),
        ("bytes_per_hour", of.bytes_per_hour),
        ("bytes_per_day", of.bytes_per_day),
    ] {
        keys.extend(limit.map(|limit| (key, limit.to_string())));
    }
    keys
}

fn http(route: &HttpRoute) -> Keys {
    let grant = &route.grant;
    let mut keys = Keys::new();
    let mut put = |key, value: Option<String>| {
        keys.extend(value.map(|value| (key, value)));
    };
    put("agents", Some(names(&route.agents)));
    put("match.scheme", Some(route.scheme.to_string()));
    put("match.host", Some(joined(route.hosts.iter().map(shown_host))));
    put("match.port", Some(route.port.to_string()));
    put("match.methods", Some(names(&route.methods)));
    put("match.path", route.path.as_ref().map(|p| p.as_str().to_owned()));
    put("match.headers", wanted(&route.conditions.headers));
    put("match.query", wanted(&route.conditions.query));
    put("match.body", some(route.conditions.body_in_words()));
    put("approval", grant.approval.map(|_| "required".to_owned()));
    put("preset", grant.preset.map(str::to_owned));
    put("credential", grant.credential.as_ref().map(|c| c.id.clone()));
    put("forbidden headers", some(joined(grant.forbidden_headers.iter().cloned())));
    put("stripped headers", some(joined(grant.stripped_headers.iter().cloned())));
    put("idempotent", grant.idempotent.map(|truth| truth.to_string()));
    let of_preset = route.preset.as_ref().filter(|preset| preset.generate);
    let of_preset = of_preset.map(|_| format!("of the preset{GENERATE}"));
    put("idempotency", grant.idempotency.as_ref().map(idempotency).or(of_preset));
    put("parent", route.parent.as_ref().map(|rule| rule.parent.name.clone()));
    put("intercept", Some(grant.intercept.to_string()));
    put("retry", grant.retry.as_ref().map(retry));
    put("reconcile", grant.reconcile.as_ref().map(reconcile));
    let without = route.preset.as_ref().filter(|preset| preset.without_jobs);
    let without = without.map(|_| "none of the preset".to_owned());
    put("job", grant.job.as_ref().map(job).or(without));
    put("batch", grant.batch.as_ref().map(batch));
    put("private_addresses", Some(word(grant.private_addresses)));
    put("repeat_guard", Some(window(grant.repeat_window)));
    put("result.keep", Some(grant.keep.to_string()));
    put("result.max_bytes", Some(grant.keep_bytes.to_string()));
    put("result.max_bytes_total", grant.keep_total_bytes.map(|bytes| bytes.to_string()));
    put("result.ttl", Some(time(grant.keep_for)));
    put("limits", Some(http_limits(&grant.limits)));
    keys
}

fn ssh(route: &SshRoute) -> Keys {
    let grant = &route.grant;
    let mut keys = Keys::new();
    let mut put = |key, value: Option<String>| {
        keys.extend(value.map(|value| (key, value)));
    };
    let allow = &route.allow;
    let kinds = [("exec", allow.exec), ("shell", allow.shell), ("forward", allow.forward)];
    let kinds = kinds.into_iter().filter(|(_, on)| *on).map(|(kind, _)| kind.to_owned());
    let allowed = kinds.chain(allow.subsystems.iter().map(|name| format!("subsystem:{name}")));
    put("allow", Some(joined(allowed)));
    put("agents", Some(names(&route.agents)));
    put("match.host", Some(shown_host(&route.host)));
    put("match.port", Some(route.port.to_string()));
    put("match.users", Some(names(&route.users)));
    put("match.commands", Some(names(&route.commands)));
    put("shell", Some(if route.any_shell { "any" } else { "plain" }.to_owned()));
    put("approval", grant.approval.map(|_| "required".to_owned()));
    put("address", grant.address.clone());
    put("host_keys", some(joined(grant.host_keys.iter().cloned())));
    put("known_hosts", grant.known_hosts.clone());
    put("intercept", (!grant.intercept).then(|| "false".to_owned()));
    put("env", grant.env.as_ref().map(|list| joined(list.iter().cloned())));
    put("forward_to", grant.forward_to.as_ref().map(|l| joined(l.iter().map(ToString::to_string))));
    put("kill_on_cancel", grant.kill_on_cancel.then(|| "true".to_owned()));
    put("completion", grant.completion.clone());
    put("credential", grant.credential.as_ref().map(|c| c.id.clone()));
    put("source_address", some(joined(grant.source_address.iter().cloned())));
    put("idempotent", Some(grant.idempotent.to_string()));
    put("release", grant.release.as_ref().map(release));
    put("compare", grant.refused_status.map(|status| format!("refused by {status}")));
    put("retry", grant.retry.as_ref().map(command_retry));
    put("reconcile", grant.reconcile.as_ref().map(query));
    put("private_addresses", Some(word(grant.private_addresses)));
    put("repeat_guard", Some(window(grant.repeat_window)));
    put("result.keep", Some(grant.keep.to_string()));
    put("result.max_bytes", Some(grant.keep_bytes.to_string()));
    put("result.max_bytes_total", grant.keep_total_bytes.map(|bytes| bytes.to_string()));
    put("result.ttl", Some(time(grant.keep_for)));
    put("limits", Some(limits(&grant.limits)));
    put("limits.output_bytes", grant.output_bytes.map(|bytes| bytes.to_string()));
    keys
}

fn parent(rule: &ParentRule) -> Keys {
    let ParentRule { parent: Parent { name: _, scheme, host, port, credential }, direct } = rule;
    let mut keys = Keys::from([("url", format!("{scheme}://{}", bracketed(host, *port)))]);
    keys.extend(credential.as_ref().map(|credential| ("credential", credential.id.clone())));
    keys.insert("no_proxy", joined(direct.iter().map(ToString::to_string)));
    keys
}

fn bracketed(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn defaults(defaults: &Defaults) -> Keys {
    let Defaults { egress, place: _, terms, parent } = defaults;
    let Terms {
        keep,
        keep_bytes,
        keep_total_bytes,
        keep_for,
        limits: bounds,
        response_stated: _,
        output_bytes,
        repeat_window,
        private_addresses,
    } = terms;
    let mut keys = Keys::from([
        ("egress", egress.as_str().to_owned()),
        ("result.keep", keep.to_string()),
        ("result.max_bytes", keep_bytes.to_string()),
        ("result.ttl", time(*keep_for)),
        ("limits", http_limits(bounds)),
        ("repeat_guard", window(*repeat_window)),
    ]);
    keys.extend(parent.as_ref().map(|rule| ("parent", rule.parent.name.clone())));
    keys.extend(keep_total_bytes.map(|bytes| ("result.max_bytes_total", bytes.to_string())));
    keys.extend(output_bytes.map(|bytes| ("limits.output_bytes", bytes.to_string())));
    keys.insert("private_addresses", word(private_addresses.unwrap_or_default()));
    keys
}

const GENERATE: &str = ", a key of ours where there is none";

fn idempotency(rule: &IdempotencyRule) -> String {
    let IdempotencyRule { place, actions, scope, retention, contract, generate } = rule;
    let ours = if *generate { GENERATE } else { "" };
    let only = match actions.as_slice() {
        [] => String::new(),
        actions => format!(", Action {}", joined(actions.iter().cloned())),
    };
    format!("{place}{only}, scope {scope}, {}, {contract}{ours}", time(*retention))
}

fn retry(rule: &RetryRule) -> String {
    let RetryRule { max_attempts, automatic, within, lease } = rule;
    let by = if *automatic { "automatic" } else { "on request" };
    format!("{max_attempts} attempts, {by}, within {}, lease {}", time(*within), time(*lease))
}

fn command_retry(rule: &CommandRetry) -> String {
    let CommandRetry { max_attempts, lease } = rule;
    format!("{max_attempts} attempts, lease {}", time(*lease))
}

fn release(rule: &ReleaseRule) -> String {
    let ReleaseRule { before, after, scope, retention, contract } = rule;
    format!("{before}{{release_id}}{after}, scope {scope}, {}, {contract}", time(*retention))
}

fn reconcile(rule: &ReconcileRule) -> String {
    let ReconcileRule { method, path, committed, rejected, pace } = rule;
    let (committed, rejected) = (shows(committed.as_ref()), shows(rejected.as_ref()));
    format!("{method} {path}, committed {committed}, rejected {rejected}, {}", paced(pace))
}

fn query(rule: &CommandQuery) -> String {
    let CommandQuery { command, committed, rejected, pace } = rule;
    let (committed, rejected) = (ends(committed.as_ref()), ends(rejected.as_ref()));
    format!("{command}, committed {committed}, rejected {rejected}, {}", paced(pace))
}

fn paced(pace: &Pace) -> String {
    let Pace { automatic, every, max_queries } = pace;
    let by = if *automatic { "automatic" } else { "on request" };
    format!("{by}, every {}, {max_queries} queries", time(*every))
}

fn ends(shows: Option<&CommandShows>) -> String {
    let Some(CommandShows { exit_status, stdout, pointer, equals }) = shows else {
        return "never".to_owned();
    };
    let mut text = exit_status.map_or_else(|| "any".to_owned(), |status| status.to_string());
    if let Some(pattern) = stdout {
        text.push_str(&format!(" saying {pattern:?}"));
    }
    text.push_str(&led(pointer.as_deref(), equals));
    text
}

fn led(pointer: Option<&str>, equals: &[String]) -> String {
    match pointer {
        None => String::new(),
        Some(pointer) if equals.is_empty() => format!(" with {pointer}"),
        Some(pointer) => format!(" with {pointer} = {}", equals.join(" or ")),
    }
}

fn job(rule: &JobRule) -> String {
    let JobRule { headers, pointer, path, done, failed, every, max_queries } = rule;
    let named = pointer.clone().unwrap_or_else(|| headers.join(" or "));
    let named = path.as_ref().map_or(named.clone(), |path| format!("{named} at {path}"));
    let (done, failed) = (shows(Some(done)), shows(failed.as_ref()));
    let every = time(*every);
    format!("named by {named}, done {done}, failed {failed}, every {every}, {max_queries} queries")
}

fn batch(rule: &BatchRule) -> String {
    let atomic = if rule.is_atomic { ", atomic" } else { "" };
    match &rule.form {
        BatchForm::JsonRpc => format!("json-rpc{atomic}"),
        BatchForm::WebDav => format!("webdav{atomic}"),
        BatchForm::Members { requests, responses, id, status } => {
            let by = id.as_deref().unwrap_or("place");
            format!("members {requests:?} in {responses:?} by {by}, status {status}{atomic}")
        }
    }
}

fn shows(shows: Option<&Shows>) -> String {
    let Some(Shows { status, pointer, equals }) = shows else { return "never".to_owned() };
    let mut text = status.map_or_else(|| "any".to_owned(), |status| status.to_string());
    text.push_str(&led(pointer.as_deref(), equals));
    text
}

fn http_limits(bounds: &Limits) -> String {
    format!("{}, hold {}", limits(bounds), time(bounds.hold_time))
}

fn limits(limits: &Limits) -> String {
    // Nothing of SSH is held.
    let Limits { request_bytes, connect_timeout, response_timeout, idle_timeout, hold_time: _ } =
        limits;
    let (connect, response) = (time(*connect_timeout), time(*response_timeout));
    let idle = time(*idle_timeout);
    format!("request {request_bytes} B, connect {connect}, response {response}, idle {idle}")
}

fn names(names: &Names) -> String {
    names.as_ref().map_or_else(|| "every".to_owned(), |names| joined(names.iter().cloned()))
}

fn wanted(wanted: &Wanted) -> Option<String> {
    some(joined(wanted.iter().map(|(name, patterns)| format!("{name} = {}", patterns.join(" | ")))))
}

fn joined(list: impl Iterator<Item = String>) -> String {
    list.collect::<Vec<_>>().join(", ")
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn word(allowed: bool) -> String {
    if allowed { "allow" } else { "deny" }.to_owned()
}

fn window(window: Option<Duration>) -> String {
    window.map_or_else(|| "off".to_owned(), time)
}

fn time(duration: Duration) -> String {
    format!("{duration:?}")
}

fn shown_host(host: &Pattern) -> String {
    match host {
        Pattern::Exact(name) => name.clone(),
        Pattern::Under(suffix) => format!("*.{suffix}"),
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, what, keys } = self;
        let sign = match what {
            What::Added => '+',
            What::Removed => '-',
            What::Changed => '~',
        };
        if *kind == "defaults" {
            write!(f, "{sign} defaults")?;
        } else {
            write!(f, "{sign} {kind} {name}")?;
        }
        for Changed { key, before, after } in keys {
            let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".to_owned());
            match what {
                What::Added => write!(f, "\n    {key}: {}", side(after))?,
                What::Removed => write!(f, "\n    {key}: {}", side(before))?,
                What::Changed => write!(f, "\n    {key}: {} -> {}", side(before), side(after))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Snapshot {
        Snapshot::compile(text, "p", 0).unwrap_or_else(|e| panic!("{e:#?}"))
    }

    #[test]
    fn order_and_spelling_count_for_nothing() {
        let one = "[[route]]\nname = \"a\"\nmatch = { host = \"a.test\" }\n";
        let two = "[[route]]\nname = \"b\"\nmatch = { host = \"b.test\" }\n";
        let forward = compile(&format!("{one}{two}"));
        let backward = compile(&format!("# turned\n{two}{}", one.replace("a.test", "A.TEST.")));
        assert_eq!(diff(&forward, &backward), []);
        assert_eq!(diff(&forward, &forward), []);
    }

    /// A default that is written out is no change, and what is not written has a word of its own.
    #[test]
    fn defaults_are_compared_by_what_holds() {
        let written = "[defaults]\nprivate_addresses = \"deny\"\negress = \"deny\"\n\
                       repeat_guard = \"off\"\n";
        let allowed = compile("[defaults]\nprivate_addresses = \"allow\"\n");
        let (written, silent) = (compile(written), compile(""));
        let told = |before: &Snapshot, after: &Snapshot| -> Vec<String> {
            diff(before, after).iter().map(ToString::to_string).collect()
        };
        let guard = told(&written, &silent);
        assert_eq!(guard, told(&written, &compile("[defaults]\n")));
        assert!(guard.iter().all(|change| !change.contains("private_addresses")), "{guard:?}");
        let opened = ["~ defaults\n    private_addresses: deny -> allow"];
        assert_eq!(told(&silent, &allowed), opened);
        let closed = ["~ defaults\n    private_addresses: allow -> deny"];
        assert_eq!(told(&allowed, &silent), closed);
    }

    #[test]
    fn changes_are_told_by_rule_and_key() {
        let text = include_str!("example.toml");
        let before = compile(text);
        let after = compile(
            &text
                .replace("agents = [\"coder\"]\nmatch = { scheme", "match = { scheme")
                .replace("secret = \"pay-token\"", "secret = \"env:PAY\"")
                .replace("name = \"deploy\"", "name = \"ship\"")
                .replace("egress = \"deny\"", "egress = \"allow\""),
        );
        let changes = diff(&before, &after);
        let told: Vec<_> = changes.iter().map(ToString::to_string).collect();
        let start =
            "~ credential pay\n    secret: vault:pay-token -> env:PAY\n    settings: sha256:";
        assert!(told[0].starts_with(start), "{told:#?}");
        assert_eq!(told[1], "~ defaults\n    egress: deny -> allow");
        assert_eq!(told[2], "~ route payments.create\n    agents: coder -> every");
        assert!(told[3].starts_with("- ssh deploy\n"), "{told:#?}");
        assert!(told[4].starts_with("+ ssh ship\n"), "{told:#?}");
        assert!(told[4].contains("match.commands: /opt/deploy *"), "{told:#?}");
        assert_eq!(told.len(), 5, "{told:#?}");
    }
}
