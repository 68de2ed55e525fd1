//! The compiled policy of one version: pure decisions over an immutable index.

mod case;
mod denial;
mod explain;
mod http;
mod near;
mod order;
mod ssh;
mod starred;
mod target;

use crate::condition::Doubt;
use crate::diagnostic::Kind;
use crate::document::approvals::Approvals;
use crate::document::reader::{Place, Reader};
use crate::document::{self, Defaults, Egress, HttpRoute, SshRoute, Trust, budget};
use crate::parent::ParentRule;
use crate::preset::Call;
use crate::{
    Body, Credential, Denial, Details, Diagnostic, Explanation, HttpAction, HttpGrant, Scheme,
    SshAction, SshGrant, host,
};
pub(crate) use denial::approval_pending;
use denial::{normal_host, not_allowed, shown, trace_refused, undecided};
use journal::contract::{Budget, Code};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// The compiled policy of one version. Immutable; every invocation is bound to one (contract V-5).
///
/// Invariant: the decision does not depend on the order of the rules in the text. Two rules that
/// could decide the same action are ordered by how narrow they are, or the text is refused.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    version: u64,
    defaults: Defaults,
    http: http::Index,
    ssh: ssh::Index,
    trust: Vec<Trust>,
    approvals: Approvals,
    budgets: Vec<budget::Named>,
    credentials: Vec<Credential>,
    parents: Vec<ParentRule>,
    warnings: Vec<Diagnostic>,
}

/// Two rules that can decide the same action and neither of which is narrower.
struct Tie {
    kind: &'static str,
    one: (String, Place),
    other: (String, Place),
}

/// So many ties are told of; of a text with more, the rest after these are mended.
const MOST_TIES: usize = 100;

/// The rule's name in answers where no route decides.
const EGRESS: &str = "defaults.egress";

/// Why content that nobody has read can't be judged.
const UNREAD: &str = "it was not read";

/// What the search for the deciding route comes to.
enum Found<'a> {
    /// The narrowest route that matches.
    Route(&'a HttpRoute),
    /// A route that would decide if the request met its conditions, and why that can't be said. A
    /// wider route is not asked: what can't be judged is not allowed by another rule.
    Undecided(&'a HttpRoute, Doubt),
    /// No route matches.
    None,
}

impl Snapshot {
    /// Reads and compiles a text.
    pub(crate) fn compile(text: &str, file: &str, version: u64) -> Result<Self, Vec<Diagnostic>> {
        Self::compile_by(Reader::new(text, file), text, version)
    }

    /// Compiles a text of the store.
    pub(crate) fn compile_in_force(text: &str, version: u64) -> Result<Self, Vec<Diagnostic>> {
        Self::compile_by(Reader::of_text_in_force(text, "policy"), text, version)
    }

    fn compile_by(reader: Reader<'_>, text: &str, version: u64) -> Result<Self, Vec<Diagnostic>> {
        let document = document::read(text, &reader);
        let (http, mut ties) = http::Index::build(document.http);
        let (ssh, more) = ssh::Index::build(document.ssh);
        ties.extend(more);
        for tie in ties {
            let Tie { kind, one, other } = tie;
            let later = one.1.line > other.1.line;
            let (first, second) = if later { (other, one) } else { (one, other) };
            let message = format!(
                "{kind} {:?} and {kind} {:?} (line {}) can match the same action, and neither is narrower",
                second.0, first.0, first.1.line
            );
            let hint = "narrow one of them by path, conditions, methods or agents (SSH: users, commands, agents)";
            reader.find(Kind::Tie, None, second.1, message, Some(hint.to_owned()));
        }
        let warnings = reader.finish()?;
        let document::Document {
            defaults, trust, approvals, budgets, credentials, parents, ..
        } = document;
        Ok(Self {
            version,
            defaults,
            http,
            ssh,
            trust,
            approvals,
            budgets,
            credentials,
            parents,
            warnings,
        })
    }

    /// The version in the store; 0 when the text was only checked, or no policy was applied yet
    /// (then everything is denied).
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    pub(crate) const fn at_version(mut self, version: u64) -> Self {
        self.version = version;
        self
    }

    /// Findings that do not prevent the policy from being applied.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// Whether the agent may open a tunnel there at all: some route leads there, or egress is open.
    ///
    /// # Errors
    /// [`Denial`] with `TARGET_NOT_ALLOWED` or `INVALID_TARGET`.
    pub fn tunnel(&self, agent: &str, host: &str, port: u16) -> Result<(), Denial> {
        let host = normal_host(host)?;
        if self.http.leads_to(agent, &host, port) {
            return Ok(());
        }
        match self.defaults.egress {
            Egress::Deny => Err(self.http.refuse_tunnel(agent, &host, port)),
            Egress::Allow | Egress::Observe => Ok(()),
        }
    }

    /// The terms of a tunnel that is not looked into, if that is what the route for this host says.
    /// The narrowest host decides; where routes of that host differ, the tunnel is intercepted.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn opaque(&self, agent: &str, host: &str, port: u16) -> Result<Option<HttpGrant>, Denial> {
        let host = normal_host(host)?;
        match self.http.opaque(agent, &host, port) {
            Some(route) if route.grant.approval.is_some() => Err(approval_pending(&route.name)),
            Some(route) => {
                let parent = route.parent.as_ref().and_then(|rule| rule.for_host(&host));
                Ok(Some(HttpGrant { parent, ..route.grant.clone() }))
            }
            None => Ok(None),
        }
    }

    /// Decides one HTTP action without headers, query and content. The most specific matching route wins; nothing matching is denied
    /// unless `egress` is `"allow"` or `"observe"`.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn http(&self, action: &HttpAction<'_>) -> Result<HttpGrant, Denial> {
        self.http_with(action, &Details { body: Body::Absent, ..Details::default() })
    }

    /// Whether conditions on the content take part in the decision, so that it has to be read first.
    #[must_use]
    pub fn looks_at_body(&self, action: &HttpAction<'_>, details: &Details<'_>) -> bool {
        if !self.http.looks_at_body() {
            return false;
        }
        let details = Details { body: Body::Unreadable(UNREAD), ..*details };
        let target = self.http.target(action, details);
        target.is_ok_and(|target| match self.http.find(&target) {
            Found::Undecided(_, doubt) => doubt.field == Doubt::body(UNREAD).field,
            Found::Route(_) | Found::None => false,
        })
    }

    /// Whether a condition of some route looks at the field of that name, or at one that a service may take
    /// it for.
    #[must_use]
    pub fn decides_by_header(&self, name: &str) -> bool {
        self.http.decides_by_header(name)
    }

    /// As [`Snapshot::http`], with what conditions on headers, query and content look at.
    ///
    /// # Errors
    /// [`Denial`]; also where a condition on content would take part and the content can't be judged.
    pub fn http_with(
        &self,
        action: &HttpAction<'_>,
        details: &Details<'_>,
    ) -> Result<HttpGrant, Denial> {
        let target = self.http.target(action, *details)?;
        match self.http.find(&target) {
            Found::Route(route) => {
                let parent = route.parent.as_ref().and_then(|rule| rule.for_host(&target.host));
                let call = target.call();
                let grant = route.grant_for(&call);
                if target.method == "TRACE" && grant.credential.is_some() {
                    return Err(trace_refused(&route.name));
                }
                let grant_of = |method| route.grant_for(&Call { method, ..call });
                if !target.other_methods().all(|m| grant_of(m).is_idempotent(m)) {
                    return Ok(HttpGrant { parent, idempotent: Some(false), ..grant });
                }
                Ok(HttpGrant { parent, ..grant })
            }
            Found::Undecided(route, doubt) => Err(undecided(&route.name, doubt)),
            Found::None => match self.defaults.egress {
                Egress::Deny => Err(self.http.refuse(&target)),
                Egress::Allow | Egress::Observe => match self.http.reads_as(&target) {
                    Some((route, doubt)) => Err(undecided(&route.name, doubt)),
                    None => {
                        let is_observed = self.defaults.egress == Egress::Observe;
                        let would_deny = is_observed.then(|| self.http.refuse(&target).code);
                        let mut grant = self.open_egress(&target.host, would_deny);
                        if !target.other_methods().all(|method| grant.is_idempotent(method)) {
                            grant.idempotent = Some(false);
                        }
                        Ok(grant)
                    }
                },
            },
        }
    }

    /// Whether the agent may reach the SSH target with some user and request.
    ///
    /// # Errors
    /// [`Denial`] with `TARGET_NOT_ALLOWED` or `INVALID_TARGET`.
    pub fn ssh_target(&self, agent: &str, host: &str, port: u16) -> Result<(), Denial> {
        let host = normal_host(host)?;
        if self.ssh.leads_to(agent, &host, port) {
            return Ok(());
        }
        Err(self.ssh.refuse_target(agent, &host, port))
    }

    /// Decides one SSH action. `egress = "allow"` does not open SSH: without a route there is no
    /// host key to verify.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn ssh(&self, action: &SshAction<'_>) -> Result<SshGrant, Denial> {
        let host = normal_host(action.host)?;
        match self.ssh.find(action, &host) {
            Some(route) => match self.ssh.held_back(route, action, &host) {
                Some(other) => Err(undecided(&other.name, Doubt::COMMAND)),
                None => Ok(route.grant.clone()),
            },
            None => Err(self.ssh.refuse(action, &host)),
        }
    }

    /// Whether a jump of the agent is relayed as it is (`intercept = false`), and on which terms. A
    /// route that ends sessions at the gateway goes before one of the same host that does not.
    ///
    /// # Errors
    /// [`Denial`] when such a route asks for an approval.
    pub fn ssh_relay(
        &self,
        agent: &str,
        host: &str,
        port: u16,
    ) -> Result<Option<SshGrant>, Denial> {
        let host = normal_host(host)?;
        match self.ssh.relay(agent, &host, port) {
            Some(route) if route.grant.approval.is_some() => Err(approval_pending(&route.name)),
            Some(route) => Ok(Some(route.grant.clone())),
            None => Ok(None),
        }
    }

    /// What the agent may use: of each key the smallest number of all budgets for it. `None`: it is
    /// not counted.
    #[must_use]
    pub fn budget(&self, agent: &str) -> Option<Budget> {
        let own = self.budgets.iter().filter(|named| order::admits(&named.agents, agent));
        own.map(|named| named.budget).reduce(Budget::and)
    }

    /// Where questions for approval are posted.
    #[must_use]
    pub fn webhook(&self) -> Option<&str> {
        self.approvals.webhook.as_deref()
    }

    /// The longest window in which an equal request is held back (contract K-11).
    #[must_use]
    pub fn longest_guard(&self) -> Duration {
        let http = self.http.routes().iter().filter_map(|route| route.grant.repeat_window);
        let ssh = self.ssh.routes().iter().filter_map(|route| route.grant.repeat_window);
        http.chain(ssh).chain(self.defaults.terms.repeat_window).max().unwrap_or_default()
    }

    /// Explains the decision on an HTTP action.
    #[must_use]
    pub fn explain_http(&self, action: &HttpAction<'_>) -> Explanation {
        explain::http(self, action, &Details { body: Body::Absent, ..Details::default() })
    }

    /// As [`Snapshot::explain_http`], with what conditions look at.
    #[must_use]
    pub fn explain_http_with(&self, action: &HttpAction<'_>, details: &Details<'_>) -> Explanation {
        explain::http(self, action, details)
    }

    /// Explains the decision on an SSH action.
    #[must_use]
    pub fn explain_ssh(&self, action: &SshAction<'_>) -> Explanation {
        explain::ssh(self, action)
    }

    /// Files with certificates that are trusted for the host beside the system's roots.
    #[must_use]
    pub fn trust_for(&self, host: &str) -> Vec<PathBuf> {
        let Ok(host) = host::normalize(host) else { return Vec::new() };
        let files = self.trust.iter().filter(|t| t.host.matches(&host));
        files.map(|t| t.ca_file.clone()).collect()
    }

    /// Host names and ports of all SSH routes whose host is a plain name, for `affiant ssh-config`.
    #[must_use]
    pub fn ssh_hosts(&self) -> Vec<(String, u16)> {
        self.ssh.hosts().into_iter().collect()
    }

    /// All credentials, by id.
    #[must_use]
    pub fn credentials(&self) -> &[Credential] {
        &self.credentials
    }

    /// The variables of the broker's environment that credentials take secrets from: nothing that an
    /// agent's process should inherit.
    #[must_use]
    pub fn secret_variables(&self) -> BTreeSet<&str> {
        self.credentials.iter().flat_map(Credential::variables).collect()
    }

    /// The secrets that the vault has to hold, with the credential that needs each.
    #[must_use]
    pub fn vault_secrets(&self) -> Vec<(&str, &str)> {
        let all = self.credentials.iter();
        all.flat_map(|c| c.vault_names().map(|name| (c.id.as_str(), name))).collect()
    }

    /// Names of all agents that routes and budgets mention.
    #[must_use]
    pub fn agents(&self) -> Vec<String> {
        let routes = self.http.routes().iter().flat_map(|r| &r.agents);
        let ssh = self.ssh.routes().iter().flat_map(|r| &r.agents);
        let budgets = self.budgets.iter().flat_map(|b| &b.agents);
        let names: BTreeSet<&String> = routes.chain(ssh).chain(budgets).flatten().collect();
        names.into_iter().cloned().collect()
    }

    pub(crate) const fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub(crate) fn parents(&self) -> &[ParentRule] {
        &self.parents
    }

    pub(crate) fn http_routes(&self) -> &[HttpRoute] {
        self.http.routes()
    }

    pub(crate) fn ssh_routes(&self) -> &[SshRoute] {
        self.ssh.routes()
    }

    pub(crate) fn trust(&self) -> &[Trust] {
        &self.trust
    }

    /// The grant of a route by its name, if it lets the agent reach the origin: for questions about a
    /// call that the route let through earlier (contract K-7). A route that leads elsewhere by now has
    /// no say there, and its credential none to see (contract C-7). Of what its preset says of single
    /// calls, the shape of the job at `path` is in it.
    #[must_use]
    pub fn http_route(
        &self,
        name: &str,
        agent: &str,
        (scheme, host, port): (Scheme, &str, u16),
        path: &str,
    ) -> Option<HttpGrant> {
        let host = normal_host(host).ok()?;
        let leads = |r: &HttpRoute| {
            r.scheme == scheme
                && r.port == port
                && r.hosts.iter().any(|p| p.matches(&host))
                && !r.left_out.has_host(&host)
        };
        let route = self.http.routes().iter().find(|r| r.name == name)?;
        let leads = leads(route) && order::admits(&route.agents, agent);
        let job = || route.preset.as_ref().and_then(|contract| contract.job_at(path));
        leads.then(|| HttpGrant {
            parent: route.parent.as_ref().and_then(|rule| rule.for_host(&host)),
            job: route.grant.job.clone().or_else(job),
            ..route.grant.clone()
        })
    }

    /// [`Snapshot::http_route`] for an SSH route (contract K-9), which names users as well: as another one
    /// nobody logs in with its credential (contract V-1).
    #[must_use]
    pub fn ssh_route(
        &self,
        name: &str,
        agent: &str,
        (user, host, port): (&str, &str, u16),
    ) -> Option<SshGrant> {
        let host = normal_host(host).ok()?;
        let route = self.ssh.routes().iter().find(|r| r.name == name)?;
        let leads =
            route.port == port && route.host.matches(&host) && order::admits(&route.users, user);
        (leads && order::admits(&route.agents, agent)).then(|| route.grant.clone())
    }

    fn open_egress(&self, host: &str, would_deny: Option<Code>) -> HttpGrant {
        let terms = self.defaults.terms.clone();
        HttpGrant {
            route: None,
            would_deny,
            credential: None,
            idempotent: None,
            idempotency: None,
            keep: terms.keep,
            keep_bytes: terms.keep_bytes,
            keep_total_bytes: terms.keep_total_bytes,
            keep_for: terms.keep_for,
            limits: terms.limits,
            private_addresses: terms.private_addresses.unwrap_or(false),
            repeat_window: terms.repeat_window,
            forbidden_headers: Vec::new(),
            stripped_headers: Vec::new(),
            preset: None,
            intercept: true,
            approval: None,
            parent: self.defaults.parent.as_ref().and_then(|rule| rule.for_host(host)),
            retry: None,
            reconcile: None,
            job: None,
            batch: None,
        }
    }

    pub(crate) const fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    pub(crate) fn budgets(&self) -> &[budget::Named] {
        &self.budgets
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
