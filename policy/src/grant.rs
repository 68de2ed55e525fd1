//! What the decision hands out: a grant with everything that a gateway needs, or a denial.

use crate::batch::BatchRule;
use crate::command::{CommandQuery, CommandRetry, ReleaseRule};
use crate::repeat::{JobRule, ReconcileRule, RetryRule};
use crate::snapshot::approval_pending;
use crate::{Grant, Hashicorp, IdempotencyRule, Inject, Login, Mint, Onward, Parent, glob};
use journal::contract::{Code, KeepResult, Retry, Verdict};
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Leave for one HTTP action, and what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGrant {
    /// The deciding route; none under `egress = "allow"`.
    pub route: Option<String>,
    /// Under `egress = "observe"`: the code that the action would have been refused with.
    pub would_deny: Option<Code>,
    /// What is injected.
    pub credential: Option<Credential>,
    /// The route's word on idempotency; none leaves it to the method (contract S-4).
    pub idempotent: Option<bool>,
    /// The remote's idempotency contract (contract K-1).
    pub idempotency: Option<IdempotencyRule>,
    /// What is kept of the result.
    pub keep: KeepResult,
    /// Content bytes kept at most.
    pub keep_bytes: u64,
    /// Bytes of results that the route keeps in total; none: no bound.
    pub keep_total_bytes: Option<u64>,
    /// How long it is kept.
    pub keep_for: Duration,
    /// Bounds on size and time.
    pub limits: Limits,
    /// Whether loopback, private and link-local addresses may be dialled.
    pub private_addresses: bool,
    /// The window of the guard against hidden repeats (contract K-11); none: the guard is off.
    pub repeat_window: Option<Duration>,
    /// Patterns over lower-case names of header fields that the agent may not send.
    pub forbidden_headers: Vec<String>,
    /// Patterns over lower-case names of header fields of the agent's that do not go on.
    pub stripped_headers: Vec<String>,
    /// The preset that the route names, whose contract is already part of this grant.
    pub preset: Option<&'static str>,
    /// Whether tunnels of the route are looked into; false: bytes pass as they are.
    pub intercept: bool,
    /// How the call waits for a person; none: nobody is asked.
    pub approval: Option<Approval>,
    /// The upstream proxy that the call goes through.
    pub parent: Option<Parent>,
    /// Whether and how often a call may be sent again; none: its request is not stored.
    pub retry: Option<RetryRule>,
    /// How the outcome of a call is found out later.
    pub reconcile: Option<ReconcileRule>,
    /// How the members of a batch are found.
    pub batch: Option<BatchRule>,
    /// How a job that a call started is followed.
    pub job: Option<JobRule>,
}

/// Leave for one SSH action, and what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshGrant {
    /// The deciding route.
    pub route: String,
    /// Where the name leads, `host:port`; none: the name itself.
    pub address: Option<String>,
    /// Pinned host keys, each `algorithm base64`, without comment. Empty: none is pinned.
    pub host_keys: Vec<String>,
    /// Host keys as lines of `known_hosts`, beside the pinned ones.
    pub known_hosts: Option<String>,
    /// Whether sessions end at the gateway. If not, a jump is relayed as it is: nothing is injected,
    /// and the outcome is unknown by nature.
    pub intercept: bool,
    /// Patterns of the variables that pass; none: language and terminal.
    pub env: Option<Vec<String>>,
    /// Where forwardings may lead; none: anywhere.
    pub forward_to: Option<Vec<Onward>>,
    /// Whether a command ends with its client.
    pub kill_on_cancel: bool,
    /// A pattern that the last line of stdout meets when the command is done, for targets that
    /// report no exit status (contract S-8).
    pub completion: Option<String>,
    /// What is injected.
    pub credential: Option<Credential>,
    /// From where a certificate minted for a session can be used, as addresses and networks; empty:
    /// from everywhere.
    pub source_address: Vec<String>,
    /// The route's word on idempotency; see [`SshGrant::is_idempotent`].
    pub idempotent: bool,
    /// The release id that commands carry (contract K-9).
    pub release: Option<ReleaseRule>,
    /// The exit status of an atomic compare that found another state than the command expects: it
    /// changed nothing (contract K-9).
    pub refused_status: Option<u32>,
    /// Whether and how often a command may be sent again; none: it is not stored.
    pub retry: Option<CommandRetry>,
    /// How the outcome of a command is found out later.
    pub reconcile: Option<CommandQuery>,
    /// What is kept of the result.
    pub keep: KeepResult,
    /// Output bytes kept at most.
    pub keep_bytes: u64,
    /// Bytes of results that the route keeps in total; none: no bound.
    pub keep_total_bytes: Option<u64>,
    /// How long it is kept.
    pub keep_for: Duration,
    /// Bounds on size and time.
    pub limits: Limits,
    /// Output bytes (stdout and stderr together) read at most; none: no bound.
    pub output_bytes: Option<u64>,
    /// The window of the guard against hidden repeats (contract K-11); none: the guard is off.
    pub repeat_window: Option<Duration>,
    /// Whether loopback, private and link-local addresses may be dialled.
    pub private_addresses: bool,
    /// How the call waits for a person; none: nobody is asked.
    pub approval: Option<Approval>,
}

/// How a call waits for a person (contract V-6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// How long the caller's connection waits for the decision.
    pub wait: Duration,
    /// How long the question stands, and how long an approval can be used.
    pub expire: Duration,
}

impl SshGrant {
    /// Whether a command is known to be idempotent: by the route's word, or because it compares
    /// before it changes anything, in one step (contract K-9).
    #[must_use]
    pub const fn is_idempotent(&self) -> bool {
        self.idempotent || self.refused_status.is_some()
    }

    /// Whether a variable of this name passes to the target.
    #[must_use]
    pub fn passes_variable(&self, name: &str) -> bool {
        match &self.env {
            None => matches!(name, "LANG" | "TERM") || name.starts_with("LC_"),
            Some(list) => {
                list.iter().any(|p| glob::matches(p.as_bytes(), name.as_bytes(), |_| true))
            }
        }
    }

    /// Whether the last line of stdout says that the command is done; none: the route has no such
    /// marker.
    #[must_use]
    pub fn is_completed_by(&self, last_line: &[u8]) -> Option<bool> {
        let pattern = self.completion.as_ref()?;
        Some(glob::matches(pattern.as_bytes(), last_line, |_| true))
    }
}

/// A credential by reference: what would be injected, never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Its id in policy.
    pub id: String,
    /// Where the secret comes from.
    pub secret: SecretRef,
    /// How it is attached.
    pub inject: Inject,
}

impl Credential {
    /// All that it takes secrets from: its own, one of the client that exchanges it, and what shows a
    /// server of secrets who we are.
    pub(crate) fn sources(&self) -> Vec<&SecretRef> {
        let mut sources = vec![&self.secret];
        if let Inject::Token(token) = &self.inject
            && let Mint::Oauth2(server) = &token.from
            && let Grant::RefreshToken(Some(client)) = &server.grant
        {
            sources.push(client);
        }
        let servers = sources.iter().filter_map(|source| match source {
            SecretRef::Hashicorp(wanted) => match &wanted.server.login {
                Login::Environment => None,
                Login::Token(source) | Login::AppRole { secret_id: source, .. } => Some(source),
            },
            SecretRef::Vault(_)
            | SecretRef::Env(_)
            | SecretRef::File(_)
            | SecretRef::Agent(_)
            | SecretRef::Exec(_) => None,
        });
        let logins: Vec<_> = servers.collect();
        sources.extend(logins);
        sources
    }

    /// The names in the vault that it needs.
    pub(crate) fn vault_names(&self) -> impl Iterator<Item = &str> {
        self.sources().into_iter().filter_map(|source| match source {
            SecretRef::Vault(name) => Some(name.as_str()),
            SecretRef::Env(_)
            | SecretRef::File(_)
            | SecretRef::Agent(_)
            | SecretRef::Exec(_)
            | SecretRef::Hashicorp(_) => None,
        })
    }

    /// The variables of the broker's environment that it takes secrets from.
    pub(crate) fn variables(&self) -> Vec<&str> {
        let from_sources = self.sources().into_iter().flat_map(|source| match source {
            SecretRef::Env(name) => vec![name.as_str()],
            SecretRef::Hashicorp(wanted) => match wanted.server.login {
                Login::Environment => vec!["VAULT_TOKEN"],
                Login::Token(_) | Login::AppRole { .. } => Vec::new(),
            },
            // What the command-line client of 1Password signs in with.
            SecretRef::Exec(words) if words.first().is_some_and(|program| is_op(program)) => {
                vec!["OP_SERVICE_ACCOUNT_TOKEN", "OP_CONNECT_TOKEN"]
            }
            SecretRef::Vault(_) | SecretRef::File(_) | SecretRef::Agent(_) | SecretRef::Exec(_) => {
                Vec::new()
            }
        });
        from_sources.collect()
    }

    /// Whether getting what is injected can take long enough to matter to other calls of a thread.
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        self.secret.is_slow() || matches!(self.inject, Inject::Token(_))
    }
}

fn is_op(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "op")
}

/// Where a secret comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretRef {
    /// The vault, by name.
    Vault(String),
    /// An environment variable of the broker (`env:NAME`).
    Env(String),
    /// A file that the broker can read (`file:PATH`), without one trailing line end.
    File(PathBuf),
    /// An SSH agent, by the path of its socket (`agent:PATH`): what is in it never leaves it.
    Agent(PathBuf),
    /// A program's output (`exec:WORDS`, or the list `exec`): the program and its arguments.
    Exec(Vec<String>),
    /// HashiCorp Vault (`vault:PATH#FIELD`).
    Hashicorp(Box<Hashicorp>),
}

impl SecretRef {
    /// The kind of source in one word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Vault(_) => "vault",
            Self::Env(_) => "env",
            Self::File(_) => "file",
            Self::Agent(_) => "agent",
            Self::Exec(_) => "exec",
            Self::Hashicorp(_) => "hashicorp",
        }
    }

    /// Whether getting the secret can take long.
    const fn is_slow(&self) -> bool {
        matches!(self, Self::Exec(_) | Self::Hashicorp(_))
    }
}

/// Bounds on size and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Request content bytes at most (SSH: stdin bytes).
    pub request_bytes: u64,
    /// For resolving, connecting and the handshakes together.
    pub connect_timeout: Duration,
    /// From the last request byte to the end of the response (SSH: to the exit status).
    pub response_timeout: Duration,
    /// Between two reads that bring something.
    pub idle_timeout: Duration,
    /// From the head of a response of unknown length to where it is no longer waited for its end
    /// before the caller gets anything (HTTP).
    pub hold_time: Duration,
}

impl HttpGrant {
    /// Whether an operation of this method is known to be idempotent: the route's word, else the
    /// method's own meaning (contract S-4; RFC 9110 section 9.2.2).
    #[must_use]
    pub fn is_idempotent(&self, method: &str) -> bool {
        self.idempotent
            .unwrap_or(matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"))
    }

    /// Whether a field of the agent's goes no further. What frames or routes the message always does.
    #[must_use]
    pub fn strips(&self, name: &str) -> bool {
        names(&self.stripped_headers, name).is_some()
    }

    /// Whether a field of a trailer section goes no further: nobody can be told any more that it was
    /// refused.
    #[must_use]
    pub fn drops_trailer(&self, name: &str) -> bool {
        self.strips(name) || names(&self.forbidden_headers, name).is_some()
    }

    /// Refuses to open what nobody can be shown, where a person has to approve (contract V-6).
    ///
    /// # Errors
    /// [`Denial`] with `APPROVAL_PENDING` and the field `approval`.
    pub fn check_shown(&self) -> Result<(), Denial> {
        match self.approval {
            Some(_) => Err(approval_pending(self.route.as_deref().unwrap_or_default())),
            None => Ok(()),
        }
    }

    /// Refuses a header that the agent may not send on the route (contract V-1).
    ///
    /// `sent` are the field names of the request, in any case.
    ///
    /// # Errors
    /// [`Denial`] with `HEADER_FORBIDDEN` and the field `request.headers.<name>`.
    pub fn check_headers<'a>(&self, sent: impl IntoIterator<Item = &'a str>) -> Result<(), Denial> {
        for name in sent {
            let Some(known) = names(&self.forbidden_headers, name) else { continue };
            let rule = self.route.clone().unwrap_or_default();
            return Err(Denial {
                code: Code::HeaderForbidden,
                field: format!("request.headers.{known}"),
                message: format!(
                    "Route {rule:?} takes no header {known} of an agent; send the request without it."
                ),
                rule,
            });
        }
        Ok(())
    }
}

/// With `-` for each `_`; nearly no text has one, and this runs for every field of every call.
fn dashed(text: &str) -> Cow<'_, str> {
    if text.contains('_') { Cow::Owned(text.replace('_', "-")) } else { Cow::Borrowed(text) }
}

/// The name in lower case, if a pattern names it. What frames or routes a message has rules of its own.
/// To some services `_` is `-`, as in [`crate::is_same_field`].
fn names(patterns: &[String], name: &str) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let read = dashed(&name);
    let matches =
        |pattern: &String| glob::matches(dashed(pattern).as_bytes(), read.as_bytes(), |_| true);
    (!FRAMING.contains(&name.as_str()) && patterns.iter().any(matches)).then_some(name)
}

/// Fields that frame or route the message; a secret in one of them would break it.
pub(crate) const FRAMING: [&str; 11] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-connection",
];

/// A refusal by policy. Holds no secret and no reference to one (contract V-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The stable reason.
    pub code: Code,
    /// The path of the field that the caller can correct (contract V-2).
    pub field: String,
    /// One sentence for people.
    pub message: String,
    /// The rule that decided: a route's name, or `defaults.egress`.
    pub rule: String,
}

impl Denial {
    /// The verdict that a denial gives: `validation`, `not_attempted` (contract V-1).
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        Verdict::refused(Retry::AfterCorrection, self.code)
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Denial {}
