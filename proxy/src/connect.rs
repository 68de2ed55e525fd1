//! From a decided call to a connection that can carry it: the record of what it is bound to, the
//! credential, the head, and the way to the origin. Nothing here can write to an origin.

use crate::batch;
use crate::engine::{Job, Prepared, Ready};
use crate::inject::{Before, Injected};
use crate::outgoing;
use crate::request;
use crate::respond::Refusal;
use crate::target::{Error as TargetError, Scheme};
use crate::upstream::dial::{self, Plan};
use crate::upstream::exchange::Idle;
use crate::upstream::pool;
use crate::upstream::versions::{Offer, Word};
use journal::Call;
use journal::contract::{CredentialUse, Preflight};
use policy::{Credential, Policy, Secret};
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

    /// Gets the credential of a bound call, builds the head, sets up the connection.
    pub(crate) async fn connect(
        &self,
        call: &mut Call,
        prepared: &Prepared,
    ) -> Result<Ready, Refusal> {
        let bound = call.bound_credential();
        let injected = self.injected(prepared, bound.as_ref()).await?;
        call.authorize(bound.clone()).map_err(Refusal::Journal)?;
        if let Some(condition) = request::condition(&self.head) {
            call.note("server_enforced_condition", condition);
        }
        batch::name_members(call, prepared);
        if let Some(rule) = prepared.grant.retry.as_ref().filter(|_| self.known.retries.is_none()) {
            self.store_request(call, prepared, rule);
        }
        let target = &prepared.target;
        let framing = injected.as_ref().map_or(self.framing, |injected| injected.framing);
        let edits = injected.as_ref().map(|injected| &injected.edits);
        let head = outgoing::head(&self.head, target, framing, edits, &self.shared.pseudonym);
        let (content, chunks, redactor) =
            injected.map(|i| (i.content, i.chunks, i.redactor)).unwrap_or_default();
        let mut key = pool::Key {
            scheme: target.scheme,
            authority: target.authority.clone(),
            trust: prepared.snapshot.trust_for(&target.authority.host.to_string()),
            credential: bound.map(|bound| (bound.id, bound.version)),
            offer: match target.scheme {
                Scheme::Http => Offer::Http11,
                Scheme::Https => {
                    self.shared.versions.offer(&target.authority, self.out.is_stream())
                }
            },
        };
        let idle = self.connection(call, prepared, &mut key).await?;
        if !idle.can_carry(&head) {
            return Err(Refusal::Target(TargetError::Form));
        }
        Ok(Ready { idle, key, head, framing, content, chunks, redactor })
    }

    async fn injected(
        &self,
        prepared: &Prepared,
        bound: Option<&CredentialUse>,
    ) -> Result<Option<Injected>, Refusal> {
        let before = Before {
            head: &self.head,
            target: &prepared.target,
            framing: self.framing,
            ahead: &prepared.ahead,
            whole: self.incoming.is_ended(),
        };
        let Some((credential, bound)) = prepared.grant.credential.as_ref().zip(bound) else {
            before.check_strays().map_err(Refusal::Credential)?;
            return Ok(None);
        };
        let secret = secret_of(&self.shared.policy, credential, bound).await;
        let secret = secret.map_err(Refusal::Credential)?;
        before.inject(credential, &secret).map(Some).map_err(Refusal::Credential)
    }

    async fn connection(
        &self,
        call: &mut Call,
        prepared: &Prepared,
        key: &mut pool::Key,
    ) -> Result<Idle, Refusal> {
        let private_addresses = prepared.grant.private_addresses;
        let repeatable = prepared.operation.idempotent;
        let allowed = |address| dial::is_allowed(address, private_addresses);
        let patience = prepared.grant.limits.connect_timeout;
        if let Some(idle) = self.shared.pool.take(key, repeatable, allowed)
            && let Ok(Ok(idle)) = timeout(patience, idle.ready()).await
        {
            return Ok(idle);
        }
        let plan = Plan {
            scheme: key.scheme,
            authority: &key.authority,
            private_addresses,
            trust: &key.trust,
            timeout: prepared.grant.limits.connect_timeout,
            offer: key.offer,
            rounds: if prepared.grant.retry.is_some() { SETUP_ROUNDS } else { 1 },
        };
        let mut unrecorded = None;
        let dialled = dial::dial(&plan, &self.shared.trust, |attempt| {
            if let Err(error) = call.setup_attempted(attempt) {
                unrecorded = Some(error);
            }
        })
        .await;
        match unrecorded {
            Some(error) => Err(Refusal::Journal(error)),
            None => {
                let idle = dialled.map_err(Refusal::Dial)?;
                if idle.streams().is_some() && key.offer == Offer::Http11 {
                    self.shared.versions.learn(&key.authority, Word::Http2Only);
                    key.offer = Offer::Http2;
                }
                self.shared.pool.share(key, &idle);
                let ready = timeout(patience, idle.ready()).await;
                let ready = ready.map_err(|_| Refusal::Dial(dial::Error::Timeout))?;
                ready.map_err(|error| Refusal::Dial(dial::Error::Broken(error)))
            }
        }
    }
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
