//! From a decided call to a connection that can carry it: the record of what it is bound to, the
//! credential, the head, and the way to the origin. Nothing here can write to an origin.

use crate::batch;
use crate::engine::{Job, Prepared, Ready};
use crate::head::{Fault, Framing, Received};
use crate::inject::{Before, Injected};
use crate::key::Keyed;
use crate::outgoing;
use crate::request;
use crate::respond::Refusal;
use crate::target::{Authority, Error as TargetError, Host, Scheme};
use crate::upstream::dial::{self, Plan};
use crate::upstream::exchange::Idle;
use crate::upstream::parent::Parent;
use crate::upstream::pool::{self, Mark, Shown};
use crate::upstream::tls::{Client, TrustFile};
use crate::upstream::versions::{Offer, Word};
use journal::Call;
use journal::contract::{CredentialUse, Preflight};
use policy::recipe::Edits;
use policy::{Credential, HttpGrant, Policy, Secret, Snapshot, credential};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::timeout;

/// How often the addresses of an origin are tried where the route lets calls be retried.
const SETUP_ROUNDS: u32 = 3;

impl Job<'_> {
    /// What the call is bound to (contract V-5).
    pub(crate) fn bound(&self, prepared: &Prepared) -> Preflight {
        let grant = &prepared.grant;
        let policy = &self.shared.policy;
        Preflight {
            policy_version: prepared.snapshot.version(),
            would_deny: grant.would_deny,
            route: grant.route.clone(),
            credential: grant.credential.as_ref().map(|credential| policy.bind(credential)),
            idempotent: prepared.operation.idempotent,
            idempotency: prepared.operation.idempotency.clone(),
            keep: grant.keep,
            keep_seconds: grant.keep_for.as_secs(),
            keep_total_bytes: grant.keep_total_bytes,
        }
    }

    /// Gets the credential of a bound call, builds the head, sets up the connection; not beyond the time
    /// that a shutdown gives to what is under way.
    pub(crate) async fn connect(
        &self,
        call: &mut Call,
        prepared: &Prepared,
    ) -> Result<Ready, Refusal> {
        let set_up = self.shared.unless_cut(self.set_up(call, prepared)).await;
        set_up.unwrap_or(Err(Refusal::ShuttingDown))
    }

    async fn set_up(&self, call: &mut Call, prepared: &Prepared) -> Result<Ready, Refusal> {
        let bound = call.bound_credential();
        let (target, operation) = (&prepared.target, &prepared.operation);
        let keyed = Keyed::new(&self.head, target, self.framing, &prepared.ahead, operation);
        let keyed = keyed.map_err(Refusal::Key)?;
        let own = self.injected(prepared, &keyed, bound.as_ref()).await?;
        let parent = self.parent(call, &prepared.snapshot, &prepared.grant).await?;
        call.authorize(bound.clone()).map_err(Refusal::Journal)?;
        if let Some(condition) = request::condition(&self.head) {
            call.note("server_enforced_condition", condition);
        }
        batch::name_members(call, prepared);
        if let Some(rule) = prepared.grant.retry.as_ref().filter(|_| self.known.retries.is_none()) {
            self.store_request(call, prepared, rule);
        }
        let framing = own.injected.as_ref().map_or(keyed.framing, |injected| injected.framing);
        let edits = own.injected.as_ref().map(|injected| &injected.edits);
        let framing = self.room_for_trailers(framing, edits);
        let form = match (&parent, target.scheme) {
            (Some(parent), Scheme::Http) => {
                outgoing::Form::Absolute { authorization: parent.authorization.as_ref() }
            }
            (Some(_) | None, _) => outgoing::Form::Origin,
        };
        let (key, received) = (keyed.field, self.received());
        let also = outgoing::Also { key, pseudonym: &self.shared.pseudonym, received };
        let head = outgoing::head(&keyed.head, &keyed.target, framing, edits, form, &also);
        let (content, chunks, mut redactor) =
            own.injected.map(|i| (i.content, i.chunks, i.redactor)).unwrap_or_default();
        let content = content.or_else(|| keyed.content.map(|[content]| content));
        if let outgoing::Form::Absolute { authorization: Some(shown) } = form {
            redactor.also(shown);
        }
        let trust = prepared.snapshot.trust_for(&target.authority.host.to_string());
        let mut way = Way {
            key: pool::Key {
                scheme: target.scheme,
                authority: target.authority.clone(),
                agent: self.known.agent.clone().unwrap_or_default(),
                trust: TrustFile::all(&trust),
                shown: bound.map(|bound| Shown {
                    id: bound.id,
                    version: bound.version,
                    opened_with: own.client.as_ref().map(Client::mark),
                }),
                parent: parent.as_ref().map(Parent::through),
                offer: match target.scheme {
                    Scheme::Http => Offer::Http11,
                    Scheme::Https => {
                        self.shared.versions.offer(&target.authority, self.out.is_stream())
                    }
                },
            },
            trust,
            parent,
            client: own.client,
        };
        let idle = self.connection(call, prepared, &mut way).await?;
        match idle.fault(&head) {
            None => {}
            Some(Fault::Target) => return Err(Refusal::Target(TargetError::Form)),
            Some(fault) => return Err(Refusal::Head(fault)),
        }
        Ok(Ready { idle, key: way.key, head, framing, content, chunks, redactor })
    }

    /// How the request came.
    const fn received(&self) -> Received {
        match self.out.is_stream() {
            true => Received::InFrames,
            false => Received::By(self.head.version),
        }
    }

    /// What came in frames can have trailers behind a length; HTTP/1.1 has room for them in chunks alone.
    fn room_for_trailers(&self, framing: Framing, edits: Option<&Edits>) -> Framing {
        let announced = self.head.fields.has("trailer") && !self.incoming.is_ended();
        let came = self.incoming.trailers().iter().next().is_some();
        let ours = edits.is_some_and(|edits| edits.sets(b"content-length"));
        match framing {
            Framing::Length(_) if self.out.is_stream() && (announced || came) && !ours => {
                Framing::Chunked
            }
            Framing::Empty | Framing::Length(_) | Framing::Chunked | Framing::Close => framing,
        }
    }

    async fn injected(
        &self,
        prepared: &Prepared,
        keyed: &Keyed<'_>,
        bound: Option<&CredentialUse>,
    ) -> Result<Own, Refusal> {
        let before = Before {
            head: &keyed.head,
            target: &keyed.target,
            framing: keyed.framing,
            ahead: keyed.content.as_ref().map_or(&prepared.ahead, |content| content),
            whole: self.incoming.is_ended(),
        };
        let Some((credential, bound)) = prepared.grant.credential.as_ref().zip(bound) else {
            before.check_strays().map_err(Refusal::Credential)?;
            return Ok(Own { injected: None, client: None });
        };
        let secret = secret_of(&self.shared.policy, credential, bound).await;
        let secret = secret.map_err(Refusal::Credential)?;
        let certificate = credential.inject.client_certificate(&secret);
        let Some(certificate) = certificate.map_err(Refusal::Credential)? else {
            let injected = before.inject(credential, &secret).map_err(Refusal::Credential)?;
            return Ok(Own { injected: Some(injected), client: None });
        };
        before.check_strays().map_err(Refusal::Credential)?;
        if prepared.target.scheme == Scheme::Http {
            let what = "a client certificate without TLS";
            return Err(Refusal::Credential(credential::Error::Unsupported(what)));
        }
        let client = Client::new(&certificate).map_err(|_| {
            let why =
                "its private key is not the certificate's, or of a kind that is not supported";
            Refusal::Credential(credential::Error::Unreadable(why))
        })?;
        Ok(Own { injected: None, client: Some(client) })
    }

    /// The upstream proxy of the route, with the credential for it.
    pub(crate) async fn parent(
        &self,
        call: &mut Call,
        snapshot: &Snapshot,
        grant: &HttpGrant,
    ) -> Result<Option<Parent>, Refusal> {
        let Some(parent) = &grant.parent else { return Ok(None) };
        let host = match parent.host.parse::<IpAddr>() {
            Ok(address) => Host::Address(address),
            Err(_) => parent.host.parse().map_err(Refusal::Target)?,
        };
        let (mut authorization, mut shown) = (None, None);
        if let Some(credential) = &parent.credential {
            let bound = self.shared.policy.bind(credential);
            let secret = secret_of(&self.shared.policy, credential, &bound).await;
            let value = secret.and_then(|secret| credential.inject.header(&secret));
            // The route has another credential, or none: the record has to say whose this is.
            let (_, value) = value.map_err(|error| {
                let (name, id) = (&parent.name, &bound.id);
                call.note("parent", &format!("{name}: credential {id} can't be used"));
                Refusal::Credential(error)
            })?;
            let opened_with = Some(Mark::of(&value.expose()));
            authorization = Some(value);
            shown = Some(Shown { id: bound.id, version: bound.version, opened_with });
        }
        let authority = Authority { host, port: parent.port };
        let as_whom = shown
            .as_ref()
            .map(|as_whom: &Shown| format!(", credential {} v{}", as_whom.id, as_whom.version));
        let (name, scheme) = (&parent.name, parent.scheme);
        let as_whom = as_whom.unwrap_or_default();
        call.note("parent", &format!("{name}: {scheme}://{authority}{as_whom}"));
        let trust = snapshot.trust_for(&parent.host);
        let via = format!("{} {}", self.received().name(), self.shared.pseudonym);
        Ok(Some(Parent { scheme, authority, trust, authorization, shown, via }))
    }

    /// A connection for the call. One that carries many carries a WebSocket only where the origin
    /// takes an extended CONNECT (RFC 8441); elsewhere it goes over HTTP/1.1. Nothing is sent before.
    async fn connection(
        &self,
        call: &mut Call,
        prepared: &Prepared,
        way: &mut Way,
    ) -> Result<Idle, Refusal> {
        let patience = prepared.grant.limits.connect_timeout;
        let carries = async |idle: &Idle| {
            !request::is_upgrade(&self.head)
                || timeout(patience, idle.carries_websockets()).await.unwrap_or(false)
        };
        let mut idle = self.any_connection(call, prepared, way).await?;
        if carries(&idle).await {
            return Ok(idle);
        }
        let speaks_http11 = self.shared.versions.offer(&way.key.authority, false) == Offer::Http11;
        if speaks_http11 {
            call.note("websocket_over_http1", "the origin takes no extended CONNECT");
            way.key.offer = Offer::Http11;
            idle = self.any_connection(call, prepared, way).await?;
            if carries(&idle).await {
                return Ok(idle);
            }
        }
        let hop = idle.peer().address.to_string();
        let parent = way.parent.as_ref().map(|parent| Box::new(parent.authority.clone()));
        Err(Refusal::Dial(dial::Failure { error: dial::Error::NoWebSocket, hop, parent }))
    }

    async fn any_connection(
        &self,
        call: &mut Call,
        prepared: &Prepared,
        way: &mut Way,
    ) -> Result<Idle, Refusal> {
        let private_addresses = prepared.grant.private_addresses;
        let repeatable = prepared.operation.idempotent;
        let through = way.parent.is_some();
        let allowed = |address| through || dial::is_allowed(address, private_addresses);
        let patience = prepared.grant.limits.connect_timeout;
        if let Some(idle) = self.shared.pool.take(&way.key, repeatable, allowed)
            && let Ok(Ok(idle)) = timeout(patience, idle.ready()).await
        {
            return Ok(idle);
        }
        let plan = Plan {
            scheme: way.key.scheme,
            authority: &way.key.authority,
            private_addresses,
            trust: &way.trust,
            timeout: prepared.grant.limits.connect_timeout,
            offer: way.key.offer,
            rounds: if prepared.grant.retry.is_some() { SETUP_ROUNDS } else { 1 },
            parent: way.parent.as_ref(),
            tunnel: false,
            client: way.client.as_ref(),
        };
        let idle = self.dialled(call, &plan).await?;
        if idle.streams().is_some() && way.key.offer == Offer::Http11 {
            self.shared.versions.learn(&way.key.authority, Word::Http2Only);
            way.key.offer = Offer::Http2;
        }
        self.shared.pool.share(&way.key, &idle);
        let hop = idle.peer().address.to_string();
        let parent = way.parent.as_ref().map(|parent| Box::new(parent.authority.clone()));
        let failed = |error| Refusal::Dial(dial::Failure { error, hop, parent });
        match timeout(patience, idle.ready()).await {
            Ok(Ok(idle)) => Ok(idle),
            Ok(Err(error)) => Err(failed(dial::Error::of_set_up(error))),
            Err(_) => Err(failed(dial::Error::Timeout)),
        }
    }

    /// A new connection, each try on record.
    pub(crate) async fn dialled(&self, call: &mut Call, plan: &Plan<'_>) -> Result<Idle, Refusal> {
        let mut unrecorded = None;
        let dialled = self
            .shared
            .dialer
            .dial(plan, |attempt| {
                if let Err(error) = call.setup_attempted(attempt) {
                    unrecorded = Some(error);
                }
            })
            .await;
        match unrecorded {
            Some(error) => Err(Refusal::Journal(error)),
            None => dialled.map_err(Refusal::Dial),
        }
    }
}

/// The way to the origin.
struct Way {
    key: pool::Key,
    /// Files of extra roots.
    trust: Vec<PathBuf>,
    parent: Option<Parent>,
    client: Option<Client>,
}

/// What the call's own credential becomes.
struct Own {
    /// Changes of the request.
    injected: Option<Injected>,
    /// A certificate for the handshake.
    client: Option<Client>,
}

/// The secret of a credential; a slow source is asked off the threads that serve other calls.
async fn secret_of(
    policy: &Arc<Policy>,
    credential: &Credential,
    bound: &CredentialUse,
) -> Result<Secret, policy::credential::Error> {
    if let Some(secret) = policy.at_hand(credential, bound) {
        return Ok(secret);
    }
    if !credential.is_slow() {
        return policy.credential_bound(credential, bound);
    }
    let (policy, credential, bound) = (Arc::clone(policy), credential.clone(), bound.clone());
    tokio::task::spawn_blocking(move || policy.credential_bound(&credential, &bound))
        .await
        .unwrap_or(Err(policy::credential::Error::SourceFailed("the broker is stopping")))
}
