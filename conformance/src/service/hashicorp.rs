//! The HTTP API of HashiCorp Vault, as far as secrets are read from it: AppRole and token login, KV
//! version 2, dynamic credentials with their leases, namespaces.

use super::{Call, Reply, Service, locked};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
struct Ledger {
    /// Tokens that are good.
    tokens: Vec<String>,
    logins: usize,
    token_seconds: u64,
    leases: BTreeMap<String, u64>,
    lease_seconds: u64,
    renewals: Vec<String>,
    revoked: Vec<String>,
    reads: Vec<String>,
    sealed: bool,
    /// Whether a lease grows by a renewal, or has reached its maximum.
    grows: bool,
    kv: String,
}

/// A running server: token `hvs.root`, role `role` with the secret `role-secret`, namespace `team`.
pub struct Hashicorp {
    service: Service,
    ledger: Arc<Mutex<Ledger>>,
}

impl Hashicorp {
    /// The token that is always there.
    pub const TOKEN: &str = "hvs.root";

    /// Starts it.
    ///
    /// # Errors
    /// What the operating system says of the socket.
    pub fn start(tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        let ledger = Arc::new(Mutex::new(Ledger {
            tokens: vec![Self::TOKEN.to_owned()],
            logins: 0,
            token_seconds: 3600,
            leases: BTreeMap::new(),
            lease_seconds: 3600,
            renewals: Vec::new(),
            revoked: Vec::new(),
            reads: Vec::new(),
            sealed: false,
            grows: true,
            kv: "canary-kv-1".to_owned(),
        }));
        let kept = Arc::clone(&ledger);
        let service =
            Service::start(tls, Arc::new(move |call: &Call| Some(locked(&kept).answer(call))))?;
        Ok(Self { service, ledger })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// How long leases are from now on, and whether a renewal makes them longer.
    pub fn set_lease(&self, seconds: u64, grows: bool) {
        let mut ledger = locked(&self.ledger);
        (ledger.lease_seconds, ledger.grows) = (seconds, grows);
    }

    /// Seals or unseals it.
    pub fn set_sealed(&self, sealed: bool) {
        locked(&self.ledger).sealed = sealed;
    }

    /// Ends every token that came of a login.
    pub fn end_logins(&self) {
        locked(&self.ledger).tokens.truncate(1);
    }

    /// Paths that were read, in order.
    #[must_use]
    pub fn reads(&self) -> Vec<String> {
        locked(&self.ledger).reads.clone()
    }

    /// Leases that were renewed, and those that were revoked.
    #[must_use]
    pub fn leases(&self) -> (Vec<String>, Vec<String>) {
        let ledger = locked(&self.ledger);
        (ledger.renewals.clone(), ledger.revoked.clone())
    }

    /// How often a role logged in.
    #[must_use]
    pub fn logins(&self) -> usize {
        locked(&self.ledger).logins
    }
}

fn refused(status: u16, why: &str) -> Reply {
    Reply::json(status, &json!({ "errors": [why] }))
}

impl Ledger {
    fn answer(&mut self, call: &Call) -> Reply {
        if self.sealed {
            return refused(503, "Vault is sealed");
        }
        if call.field("x-vault-request") != Some("true") {
            return refused(400, "no X-Vault-Request");
        }
        if call.field("x-vault-namespace") != Some("team") {
            return refused(404, "no handler for route");
        }
        let (method, target) = (call.method.as_str(), call.target.as_str());
        if (method, target) == ("POST", "/v1/auth/approle/login") {
            return self.login(call);
        }
        let token = call.field("x-vault-token").unwrap_or_default();
        if !self.tokens.iter().any(|known| known == token) {
            return refused(403, "permission denied");
        }
        match (method, target) {
            ("GET", path) => self.read(path),
            ("PUT", "/v1/sys/leases/renew") => self.renew(call),
            ("PUT", "/v1/sys/leases/revoke") => self.revoke(call),
            ("PUT", "/v1/auth/token/renew-self") => Reply::json(200, &self.auth(token)),
            (_, _) => refused(405, "unsupported operation"),
        }
    }

    fn login(&mut self, call: &Call) -> Reply {
        let expected = json!({ "role_id": "role", "secret_id": "role-secret" });
        if call.json() != Some(expected) {
            return refused(400, "invalid role or secret ID");
        }
        self.logins += 1;
        let token = format!("hvs.login-{}", self.logins);
        self.tokens.push(token.clone());
        Reply::json(200, &self.auth(&token))
    }

    fn auth(&self, token: &str) -> Value {
        json!({
            "request_id": "r", "lease_id": "", "renewable": false, "lease_duration": 0,
            "data": null, "wrap_info": null, "warnings": null,
            "auth": { "client_token": token, "lease_duration": self.token_seconds, "renewable": true },
        })
    }

    fn read(&mut self, path: &str) -> Reply {
        self.reads.push(path.to_owned());
        let unleased = |data: Value| json!({ "lease_id": "", "renewable": false, "lease_duration": 0, "data": data, "auth": null });
        match path {
            "/v1/secret/data/pay" => Reply::json(
                200,
                &unleased(json!({
                    "data": { "token": self.kv, "port": 8443, "more": { "x": 1 } },
                    "metadata": { "version": 3, "destroyed": false },
                })),
            ),
            "/v1/kv/old" => Reply::json(200, &unleased(json!({ "token": "canary-kv-one" }))),
            "/v1/database/creds/app" => {
                let number = self.leases.len() + 1;
                let id = format!("database/creds/app/{number}");
                self.leases.insert(id.clone(), self.lease_seconds);
                Reply::json(
                    200,
                    &json!({
                        "lease_id": id, "renewable": true, "lease_duration": self.lease_seconds,
                        "data": { "username": format!("app-{number}"), "password": "canary:pass" },
                        "auth": null,
                    }),
                )
            }
            "/v1/secret/data/closed" => refused(403, "permission denied"),
            _ => Reply::json(404, &json!({ "errors": [] })),
        }
    }

    /// The lease that a request is about.
    fn named(&self, call: &Call) -> Option<String> {
        let id = call.json()?.get("lease_id")?.as_str()?.to_owned();
        self.leases.contains_key(&id).then_some(id)
    }

    fn renew(&mut self, call: &Call) -> Reply {
        let Some(id) = self.named(call) else { return refused(400, "lease not found") };
        self.renewals.push(id.clone());
        let seconds = if self.grows { self.lease_seconds } else { 0 };
        Reply::json(
            200,
            &json!({ "lease_id": id, "renewable": true, "lease_duration": seconds, "data": null }),
        )
    }

    fn revoke(&mut self, call: &Call) -> Reply {
        let Some(id) = self.named(call) else { return refused(400, "lease not found") };
        self.leases.insert(id.clone(), 0);
        self.revoked.push(id);
        Reply::empty(204)
    }
}
