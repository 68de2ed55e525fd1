//! Secrets from HashiCorp Vault: KV and dynamic ones with their leases.
//!
//! ```text
//! value at hand? ─ yes ─► lease near its end? ─ no ──────────────────────────────► use it
//!      │ no                      │ yes: renew ─ longer ─────────────────────────► use it
//!      ▼                         ▼ not longer
//!   log in (AppRole) ─► read ─► new value; the lease of the one before is revoked ─► use it
//! ```
//!
//! One call asks, the others wait for what it gets. A lease that is replaced or left at a stop is
//! revoked; one that can't be revoked ends by itself.

use super::Error;
use super::remote::{Answer, Ask, ask};
use crate::hashicorp::{Field, Hashicorp, Login, Server};
use crate::{Policy, Secret};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroize as _;

/// A value without a lease is read anew after this time.
const UNLEASED: Duration = Duration::from_secs(60);

/// What the server answers to reads, renewals and logins.
#[derive(Deserialize)]
struct Answered {
    #[serde(default)]
    lease_id: String,
    #[serde(default)]
    lease_duration: u64,
    #[serde(default)]
    renewable: bool,
    #[serde(default)]
    data: Option<Map<String, Value>>,
    #[serde(default)]
    auth: Option<Auth>,
}

#[derive(Deserialize)]
struct Auth {
    client_token: String,
    #[serde(default)]
    lease_duration: u64,
    #[serde(default)]
    renewable: bool,
}

/// How long something of the server's is good.
struct Lease {
    id: String,
    from: Instant,
    life: Duration,
    renewable: bool,
}

impl Lease {
    fn new(id: String, seconds: u64, renewable: bool) -> Self {
        // A century is for ever.
        let life = Duration::from_secs(seconds.min(100 * 365 * 86_400));
        Self { id, from: Instant::now(), life, renewable }
    }

    fn is_alive(&self) -> bool {
        self.from.elapsed() < self.life
    }

    /// Whether a third of its life or more is left.
    fn is_young(&self) -> bool {
        self.from.elapsed() < self.life / 3 * 2
    }
}

/// The fields of a value; zeroed when dropped.
struct Fields(Map<String, Value>);

impl Drop for Fields {
    fn drop(&mut self) {
        for (_, value) in &mut self.0 {
            if let Value::String(text) = value {
                text.zeroize();
            }
        }
    }
}

/// A value at hand.
struct Held {
    fields: Fields,
    lease: Lease,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    failed: Option<(Instant, Error)>,
}

/// What was read of one server.
#[derive(Default)]
struct Session {
    /// The token of a login.
    login: Mutex<Option<(Secret, Lease)>>,
    values: Mutex<HashMap<String, Arc<Mutex<State>>>>,
}

/// What was read of all servers.
#[derive(Default)]
pub(crate) struct Book(Mutex<Vec<(Arc<Server>, Arc<Session>)>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    fn session(&self, server: &Arc<Server>) -> Arc<Session> {
        let mut sessions = locked(&self.0);
        if let Some((_, session)) = sessions.iter().find(|(known, _)| known == server) {
            return Arc::clone(session);
        }
        let session = Arc::new(Session::default());
        sessions.push((Arc::clone(server), Arc::clone(&session)));
        session
    }
}

/// One server, and how it is asked.
struct Conversation<'a> {
    policy: &'a Policy,
    server: &'a Server,
    session: &'a Session,
    address: String,
    namespace: Option<String>,
    trust: Vec<PathBuf>,
}

impl Policy {
    /// The secret at a path of a server.
    pub(super) fn leased_secret(&self, wanted: &Hashicorp) -> Result<Secret, Error> {
        let asked = Instant::now();
        let session = self.leased.session(&wanted.server);
        let slot = Arc::clone(locked(&session.values).entry(wanted.path.clone()).or_default());
        let mut state = locked(&slot);
        let fresh = state.held.as_ref().is_some_and(|held| held.lease.from >= asked);
        if !fresh && !state.held.as_ref().is_some_and(|held| held.lease.is_young()) {
            if let Some((at, error)) = &state.failed
                && *at >= asked
            {
                return Err(error.clone());
            }
            let renewed = Conversation::with(self, &wanted.server, &session)
                .and_then(|conversation| conversation.renew_or_read(&wanted.path, &mut state));
            if let Err(error) = renewed {
                state.failed = Some((Instant::now(), error.clone()));
                // What is at hand is good to the end of its lease.
                let good = state.held.as_ref().is_some_and(|held| held.lease.is_alive());
                if !good {
                    return Err(error);
                }
            }
        }
        let held = state.held.as_ref().ok_or(Error::Missing)?;
        secret_of(&held.fields.0, &wanted.field)
    }

    /// Gives back what sources lent: every lease is revoked, as far as its server can be reached.
    /// For a stop in good order.
    pub fn release_leases(&self) {
        for (server, session) in std::mem::take(&mut *locked(&self.leased.0)) {
            let Ok(conversation) = Conversation::with(self, &server, &session) else { continue };
            let slots: Vec<_> = locked(&session.values).drain().map(|(_, slot)| slot).collect();
            for slot in slots {
                if let Some(held) = locked(&slot).held.take() {
                    conversation.revoke(&held.lease);
                }
            }
        }
    }
}

/// What of a value is the secret.
fn secret_of(fields: &Map<String, Value>, field: &Field) -> Result<Secret, Error> {
    let one = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Null) | None => Err(Error::Missing),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            Err(Error::Unreadable("the field of its store is no text"))
        }
    };
    let secret = match field {
        Field::Named(name) => Secret::from(one(name)?),
        Field::Joined(parts, last) => {
            let parts = parts.iter().map(|(before, name)| Ok((before, Secret::from(one(name)?))));
            let parts = parts.collect::<Result<Vec<_>, Error>>()?;
            let mut pieces: Vec<&[u8]> = Vec::with_capacity(parts.len() * 2 + 1);
            for (before, value) in &parts {
                pieces.extend([before.as_bytes(), value.expose()]);
            }
            pieces.push(last.as_bytes());
            Secret::new(pieces.concat())
        }
    };
    if secret.is_empty() { Err(Error::Missing) } else { Ok(secret) }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl<'a> Conversation<'a> {
    fn with(policy: &'a Policy, server: &'a Server, session: &'a Session) -> Result<Self, Error> {
        let address = server.address.clone().or_else(|| environment("VAULT_ADDR"));
        let address = address.ok_or(Error::SourceUnset("the address of its store is not set"))?;
        if !super::may_carry_secrets(&address) {
            return Err(Error::SourceUnset("the address of its store is not https"));
        }
        let ca_file =
            server.ca_file.clone().or_else(|| environment("VAULT_CACERT").map(Into::into));
        Ok(Self {
            policy,
            server,
            session,
            address: address.trim_end_matches('/').to_owned(),
            namespace: server.namespace.clone().or_else(|| environment("VAULT_NAMESPACE")),
            trust: ca_file.into_iter().chain(super::trust_of(policy, &address)).collect(),
        })
    }

    fn renew_or_read(&self, path: &str, state: &mut State) -> Result<(), Error> {
        if let Some(held) = &mut state.held
            && held.lease.renewable
            && self.renew(&mut held.lease)
        {
            return Ok(());
        }
        let held = self.read(path)?;
        if let Some(before) = state.held.replace(held) {
            self.revoke(&before.lease);
        }
        Ok(())
    }

    /// Renews a lease; answers whether it is young again.
    fn renew(&self, lease: &mut Lease) -> bool {
        let content = serde_json::json!({
            "lease_id": lease.id,
            "increment": lease.life.as_secs(),
        });
        let answer = self.call("PUT", "sys/leases/renew", Some(content));
        let answered = answer.ok().filter(|a| a.status == 200).and_then(|a| a.json::<Answered>());
        let Some(answered) = answered else { return false };
        let renewed = Lease::new(lease.id.clone(), answered.lease_duration, answered.renewable);
        // At its maximum a lease grows no longer, however often it is renewed.
        let longer = renewed.life > lease.life / 3;
        if longer {
            *lease = renewed;
        }
        longer
    }

    fn read(&self, path: &str) -> Result<Held, Error> {
        let mut answer = self.call("GET", path, None)?;
        if answer.status == 403 && matches!(self.server.login, Login::AppRole { .. }) {
            // The token of the login may have ended before its time.
            *locked(&self.session.login) = None;
            answer = self.call("GET", path, None)?;
        }
        let answered: Answered = accepted(&answer)?;
        let data = answered.data.ok_or(Error::Missing)?;
        let lease = match (answered.lease_id.is_empty(), answered.lease_duration) {
            (true, _) | (_, 0) => Lease {
                id: answered.lease_id,
                ..Lease::new(String::new(), UNLEASED.as_secs(), false)
            },
            (false, seconds) => Lease::new(answered.lease_id, seconds, answered.renewable),
        };
        Ok(Held { fields: Fields(of_kv(data)), lease })
    }

    fn revoke(&self, lease: &Lease) {
        if lease.id.is_empty() {
            return;
        }
        let content = serde_json::json!({ "lease_id": lease.id });
        let revoked = self.call("PUT", "sys/leases/revoke", Some(content));
        if !revoked.is_ok_and(|answer| answer.status == 204 || answer.status == 200) {
            tracing::warn!("a lease of a secret could not be revoked; it ends by itself");
        }
    }

    /// The token that shows who we are.
    fn token(&self) -> Result<Secret, Error> {
        let (mount, role_id, secret_id) = match &self.server.login {
            Login::Environment => {
                let token = environment("VAULT_TOKEN").map(Secret::from);
                return token.ok_or(NO_TOKEN);
            }
            Login::Token(source) => return login_secret(self.policy.newest_of(source)),
            Login::AppRole { mount, role_id, secret_id } => (mount, role_id, secret_id),
        };
        let mut login = locked(&self.session.login);
        if let Some((token, lease)) = &mut *login {
            if lease.is_young() {
                return Ok(token.clone());
            }
            // A new login would end what the token before was lent; so it is renewed first.
            let token = token.clone();
            if lease.renewable && self.renew_login(&token, lease) {
                return Ok(token);
            }
        }
        let content = Secret::from(
            serde_json::json!({
                "role_id": role_id,
                "secret_id": login_secret(self.policy.newest_of(secret_id))?.expose_text(),
            })
            .to_string(),
        );
        let path = format!("auth/{mount}/login");
        let answer = self.send("POST", &path, None, Some(content))?;
        let auth = accepted::<Answered>(&answer)?.auth;
        let auth = auth.ok_or(Error::SourceFailed("its store gave no token"))?;
        let token = Secret::from(auth.client_token);
        let lease = Lease::new(String::new(), auth.lease_duration, auth.renewable);
        *login = Some((token.clone(), lease));
        Ok(token)
    }

    fn renew_login(&self, token: &Secret, lease: &mut Lease) -> bool {
        let answer = self.send("PUT", "auth/token/renew-self", Some(token), None);
        let answered = answer.ok().filter(|a| a.status == 200).and_then(|a| a.json::<Answered>());
        let Some(auth) = answered.and_then(|answered| answered.auth) else { return false };
        let renewed = Lease::new(String::new(), auth.lease_duration, auth.renewable);
        let longer = renewed.life > lease.life / 3;
        if longer {
            *lease = renewed;
        }
        longer
    }

    fn call(
        &self,
        method: &'static str,
        path: &str,
        content: Option<Value>,
    ) -> Result<Answer, Error> {
        let token = self.token()?;
        let content = content.map(|content| Secret::from(content.to_string()));
        self.send(method, path, Some(&token), content)
    }

    fn send(
        &self,
        method: &'static str,
        path: &str,
        token: Option<&Secret>,
        content: Option<Secret>,
    ) -> Result<Answer, Error> {
        let mut fields = vec![("x-vault-request", Secret::from("true"))];
        fields.extend(token.map(|token| ("x-vault-token", token.clone())));
        let namespace = self.namespace.as_deref().map(Secret::from);
        fields.extend(namespace.map(|namespace| ("x-vault-namespace", namespace)));
        let url = format!("{}/v1/{path}", self.address);
        let content = content.map(|content| ("application/json", content));
        ask(Ask { method, url: &url, fields, content, trust: &self.trust })
    }
}

/// What shows the store who we are is not there: another fault than a secret that the store lacks.
const NO_TOKEN: Error = Error::SourceUnset("the token or secret id for its store is not set");

fn login_secret(secret: Result<Secret, Error>) -> Result<Secret, Error> {
    secret.map_err(|error| if error == Error::Missing { NO_TOKEN } else { error })
}

/// The fields of a value: those of the version, where the store is KV version 2.
fn of_kv(mut data: Map<String, Value>) -> Map<String, Value> {
    let versioned = data.get("metadata").and_then(|m| m.get("version")).is_some();
    if versioned && let Some(Value::Object(inner)) = data.remove("data") {
        return inner;
    }
    data
}

/// What the server answered, or why not, in words that hold nothing of the answer.
fn accepted<'a, T: Deserialize<'a>>(answer: &'a Answer) -> Result<T, Error> {
    match answer.status {
        200 => {
            answer.json().ok_or(Error::SourceFailed("its store gave no answer that can be read"))
        }
        400 => Err(Error::SourceDenied("its store does not take the request or the login")),
        403 => Err(Error::SourceDenied("its store does not let us read it")),
        404 => Err(Error::Missing),
        503 => Err(Error::SourceFailed("its store is sealed or in maintenance")),
        _ => Err(Error::SourceFailed("its store failed")),
    }
}
