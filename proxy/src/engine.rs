//! One call from its head to its dispatch: identity, validation, policy, record, credential,
//! connection. The order is the contract's; nothing here can write to an origin.
//!
//! ```text
//!  prepare ──► admit ──► authorise ──► connect ──► dispatch ──► relay
//!     └───────────┴───────────┴────────────┴───────────┘ refuse (not_attempted)
//! ```

use crate::access::Caller;
use crate::again::{Again, may_retry};
use crate::answer::Finished;
use crate::deliver::Outbound;
use crate::fingerprint::{Content, fingerprint};
use crate::grpc;
use crate::handover::Pending;
use crate::head;
use crate::head::{Framing, Request};
use crate::incoming::Incoming;
use crate::judge::Judged;
use crate::key::{Unnamed, key_in_content};
use crate::passage::Passage;
use crate::proxy::Shared;
use crate::redact::Redactor;
use crate::relay::upload::{self, upload};
use crate::relay::{self, Parts, Relay};
use crate::request::{self, Identity, Tunnel};
use crate::respond::Refusal;
use crate::target::{Scheme, Target};
use crate::upstream::exchange::{self, Idle};
use crate::upstream::pool;
use crate::upstream::versions::Word;
use crate::websocket::Opening;
use bytes::Bytes;
use journal::contract::{
    Accepted, Budget, Dispatch, Fingerprint, Gateway, InvocationId, KeepResult, Operation,
    RemoteContract,
};
use journal::{Admission, Call, Choice, Delivery, Dispatched, Guard, Key};
use policy::recipe::ChunkSigner;
use policy::{HttpGrant, Snapshot};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// How long a caller is asked to wait where nothing else says so.
pub(crate) const BACKOFF_MS: u64 = 1000;

/// How often, and at what distance, an unconfirmed delivery is looked at again.
const DELIVERY_TRIES: u32 = 10;
const DELIVERY_PAUSE: Duration = Duration::from_millis(10);

/// A call that is not decided yet, with the caller's connection.
pub(crate) struct Job<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) tunnel: Option<&'a Tunnel>,
    pub(crate) head: Request,
    pub(crate) framing: Framing,
    pub(crate) incoming: Incoming,
    pub(crate) out: &'a mut Outbound,
    /// Whether the caller's connection goes on after this call.
    pub(crate) keep_alive: bool,
    /// Filled in as far as the request could be read.
    pub(crate) known: Known,
    /// The broker may retry by itself while the caller waits.
    pub(crate) again: Option<Again>,
}

/// What is known of the request for its record.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) agent: Option<String>,
    /// The head as it came, where the route strips fields of it.
    pub(crate) asked: Option<Request>,
    pub(crate) caller_id: Option<InvocationId>,
    /// The first attempt, if this is a retry of it.
    pub(crate) retries: Option<InvocationId>,
    /// As it stands in records.
    pub(crate) target: Option<String>,
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl Known {
    /// The head as policy judges it, of the one that goes on.
    pub(crate) fn asked_as<'h>(&'h self, head: &'h Request) -> &'h Request {
        self.asked.as_ref().unwrap_or(head)
    }
}

/// What was found before the call went on record.
pub(crate) struct Prepared {
    pub(crate) target: Target,
    pub(crate) grant: HttpGrant,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) fingerprint: Fingerprint,
    /// Whether the fingerprint covers the beginning of the content only.
    pub(crate) partial: bool,
    pub(crate) operation: Operation,
    /// Content read ahead.
    pub(crate) ahead: Vec<Bytes>,
    /// What bounds the agent.
    pub(crate) budget: Option<Budget>,
}

/// What goes to the relay: everything for the exchange except leave to begin it.
pub(crate) struct Ready {
    pub(crate) idle: Idle,
    pub(crate) key: pool::Key,
    pub(crate) head: Zeroizing<Vec<u8>>,
    pub(crate) framing: Framing,
    /// The whole content, where injection changed it.
    pub(crate) content: Option<Bytes>,
    /// What changes content that is still on its way.
    pub(crate) chunks: Option<ChunkSigner>,
    pub(crate) redactor: Redactor,
}

impl Job<'_> {
    /// Takes the call from its head to its answer.
    pub(crate) async fn run(&mut self) -> Finished {
        let shared = Arc::clone(self.shared);
        let prepared = shared.unless_cut(self.prepare()).await;
        let mut prepared = match prepared.unwrap_or(Err(Refusal::ShuttingDown)) {
            Ok(prepared) => prepared,
            Err(refusal) => return self.refuse(None, &refusal).await,
        };
        let mut call = match self.begin(&prepared).await {
            Ok(call) => call,
            Err(finished) => return finished,
        };
        if self.identity().is_none() {
            // A person may have taken their time to approve it.
            return self.refuse(Some(call), &self.unauthenticated()).await;
        }
        call.bind_key(&mut prepared.operation);
        self.note_encoding(&mut call, &prepared.grant);
        let mut ready = match self.connect(&mut call, &prepared).await {
            Ok(ready) => ready,
            Err(refusal) => {
                self.again = may_retry(&call, &prepared.grant);
                return self.refuse(Some(call), &refusal).await;
            }
        };
        if self.identity().is_none() {
            return self.refuse(Some(call), &self.unauthenticated()).await;
        }
        self.again = may_retry(&call, &prepared.grant);
        let ahead = std::mem::take(&mut prepared.ahead);
        let ahead = ready.content.take().map_or(ahead, |content| vec![content]);
        // D-1: durable before the first byte. Nothing but the proof opens the connection.
        match call.dispatch(dispatch_record(&ready.idle, prepared.fingerprint, 1)).await {
            Ok(proof) => self.exchange(call, &prepared, ready, ahead, proof).await,
            Err(journal::append::Error::Illegal(_)) if call.invocation().is_held() => {
                self.refuse(Some(call), &Refusal::ApprovalMismatch).await
            }
            Err(error) => self.refuse(Some(call), &Refusal::Journal(error)).await,
        }
    }

    /// Takes the call on record and binds it, or answers: from an earlier one, or because a person
    /// has not approved it.
    async fn begin(&mut self, prepared: &Prepared) -> Result<Call, Finished> {
        let finished = match self.admit_when_delivered(prepared).await {
            Ok(Admission::New(mut call)) => {
                if let Some(approval) = prepared.grant.approval {
                    return self.hold(call, prepared, approval).await;
                }
                match call.preflight(self.bound(prepared)) {
                    Ok(()) => return Ok(call),
                    Err(error) => self.refuse(Some(call), &Refusal::Journal(error)).await,
                }
            }
            Ok(Admission::Held(held)) => return self.join(&held, prepared).await,
            Ok(Admission::SameRequest(earlier)) => self.repeat(prepared, earlier, true).await,
            Ok(Admission::Settled(earlier)) => self.repeat(prepared, earlier, false).await,
            Ok(Admission::Mismatch) => self.refuse(None, &Refusal::Mismatch).await,
            Ok(Admission::InDoubt(earlier)) => self.refuse(None, &Refusal::InDoubt(earlier)).await,
            Ok(Admission::Spent(spent)) => self.refuse(None, &Refusal::Spent(spent)).await,
            Err(refusal) => self.refuse(None, &refusal).await,
        };
        Err(finished)
    }

    /// Runs the exchange and answers.
    pub(crate) async fn exchange(
        &mut self,
        mut call: Call,
        prepared: &Prepared,
        ready: Ready,
        ahead: Vec<Bytes>,
        proof: Dispatched,
    ) -> Finished {
        // What the caller still owes is asked for only now, with policy's word and the record made.
        let asked = self.ask_for_content().await;
        let sent = Instant::now();
        let next_hop = ready.idle.peer().address.to_string();
        let (mut sender, mut receiver) = ready.idle.dispatch(proof);
        let in_frames = receiver.is_stream();
        let mut redactor = ready.redactor;
        let grant = &prepared.grant;
        // Field by field: the rest of the job is lent out below.
        let caller = Caller { policy: &self.shared.policy, head: &self.head, tunnel: self.tunnel };
        let caller = self.out.has_caller().then_some(caller);
        let bounds = upload::Bounds { limit_bytes: grant.limits.request_bytes, grant, caller };
        let content = upload::Content { framing: ready.framing, ahead, chunks: ready.chunks };
        let progress = AtomicU64::new(0);
        let ended = {
            let head = ready.head;
            let incoming = &mut self.incoming;
            let upload = upload(&mut sender, incoming, head, content, &bounds, &progress);
            tokio::pin!(upload);
            // With a credential, what could compress its echo is not offered on.
            let offers = grant.credential.is_none();
            let opening = Opening::of(&self.head, self.out.is_stream(), offers);
            let mut relay = Relay::new(Parts {
                call: &mut call,
                out: self.out,
                grant,
                operation: &prepared.operation,
                method: &self.head.method,
                version: self.head.version,
                keep_alive: self.keep_alive && asked.is_ok(),
                opening: opening.as_ref(),
                next_hop: &next_hop,
                through_parent: ready.key.parent.is_some() && ready.key.scheme == Scheme::Http,
                pseudonym: &self.shared.pseudonym,
                in_frames,
                hold_bytes: self.shared.options.hold_bytes,
                hold_refusal: self.again.is_some(),
                redactor: &mut redactor,
                progress: &progress,
                shared: self.shared,
                prepared,
                caller,
            });
            relay.run(upload, &mut receiver).await
        };
        if let relay::Ended::Switched(head) = ended {
            let passage = Passage { call, next_hop: &next_hop, redactor, prepared };
            let origin = exchange::into_upgraded(sender, receiver);
            return self.upgraded(passage, &head, origin).await;
        }
        if receiver.is_http11_required() {
            // For the calls after this one: what was sent is not sent again.
            self.shared.versions.learn(&ready.key.authority, Word::Http11Required);
        }
        if let relay::Ended::Broken { error, .. } = &ended
            && error.is_wait()
        {
            receiver.waited_in_vain();
        }
        self.note_refusal(&call, prepared, sent);
        relay::give_back(&self.shared.pool, ready.key, sender, receiver);
        self.ended(ended, call, prepared, &next_hop).await
    }

    /// Answers for what came of an exchange.
    async fn ended(
        &mut self,
        ended: relay::Ended,
        call: Call,
        prepared: &Prepared,
        next_hop: &str,
    ) -> Finished {
        match ended {
            relay::Ended::Switched(_) => Finished { keep: false, pending: None },
            relay::Ended::Refused => self.refused(call).await,
            relay::Ended::Withheld(coding) => self.withheld(call, coding, next_hop).await,
            relay::Ended::Settled { delivered, keep } => self.concluded(call, delivered, keep),
            relay::Ended::Answered { keep } => {
                Finished { keep: keep && self.incoming.is_ended(), pending: None }
            }
            relay::Ended::Broken { error, begun, length_bytes } => {
                let verdict = error.verdict(&prepared.operation, self.shared.journal.latest_ms());
                self.broken(call, &error, verdict, (length_bytes, begun), next_hop).await
            }
        }
    }

    /// The end of a call with a result on record.
    fn concluded(&self, call: Call, delivered: bool, keep: bool) -> Finished {
        let pending = Pending::new(call, self.shared.journal.clone(), self.out.sent);
        if !delivered {
            pending.fail();
            return Finished { keep: false, pending: None };
        }
        Finished { keep: keep && self.incoming.is_ended(), pending: Some(pending) }
    }

    /// A token that the origin refuses is not sent again; what was sent is not either (D-7).
    fn note_refusal(&self, call: &Call, prepared: &Prepared, sent: Instant) {
        let Some(credential) = &prepared.grant.credential else { return };
        if !matches!(credential.inject, policy::Inject::Token(_)) {
            return;
        }
        let invocation = call.invocation();
        let bound = invocation.preflight().and_then(|preflight| preflight.credential.as_ref());
        if invocation.evidence().status == Some(401)
            && let Some(bound) = bound
        {
            self.shared.policy.refused(credential, bound, sent);
        }
    }

    /// Validates the request and asks policy. No secret is touched and no name resolved.
    pub(crate) async fn prepare(&mut self) -> Result<Prepared, Refusal> {
        self.known.target = self.tunnel.map(Tunnel::recorded);
        self.known.caller_id = request::invocation_id(&self.head)?;
        // A request of our own carries no identity.
        request::refuse_loop(&self.head, &self.shared.pseudonym)?;
        let agent = self.identity().ok_or_else(|| self.unauthenticated())?.agent().to_owned();
        self.prepare_for(agent).await
    }

    /// Who calls, if policy still knows agent and token (contract V-1). A call can wait for long
    /// between its request and its dispatch, so this is asked again after each wait.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.caller().identity()
    }

    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller { policy: &self.shared.policy, head: &self.head, tunnel: self.tunnel }
    }

    /// Why nobody that policy knows calls.
    pub(crate) fn unauthenticated(&self) -> Refusal {
        if self.tunnel.is_some() || self.head.fields.has("proxy-authorization") {
            Refusal::AccessOver
        } else {
            Refusal::Unauthenticated
        }
    }

    /// [`Job::prepare`] for an agent that is known already.
    pub(crate) async fn prepare_for(&mut self, agent: String) -> Result<Prepared, Refusal> {
        let shared = Arc::clone(self.shared);
        self.known.agent = Some(agent.clone());
        let target = request::target(&self.head, self.tunnel)?;
        self.known.target = Some(target.recorded());
        request::check(&self.head)?;
        let snapshot = shared.policy.snapshot();
        let Judged { grant, ahead: read } = self.judge(&snapshot, &agent, &target).await?;
        let limit_bytes = grant.limits.request_bytes;
        if grant.keep == KeepResult::Full
            && shared.policy.vault().status() == policy::vault::Status::Locked
        {
            return Err(Refusal::VaultLocked);
        }
        if request::is_upgrade(&self.head) {
            grant.check_shown().map_err(Refusal::Denied)?;
        }
        let idempotent = grant.is_idempotent(&self.head.method);
        let in_head = self.key_in_head(&grant, &target)?;
        self.incoming.set_idle(grant.limits.idle_timeout);
        let guarded = (grant.repeat_window.is_some() && !idempotent)
            || in_head.is_some()
            || self.known.caller_id.is_some();
        let looked_at = grant.credential.as_ref().is_some_and(|c| c.inject.looks_at_content());
        let whole =
            looked_at || read.is_some() || grant.approval.is_some() || key_in_content(&grant);
        let guarded = guarded || whole || grant.retry.is_some() || grant.batch.is_some();
        let bare = self.incoming.is_ended();
        // A caller of gRPC may wait for the answer to its first message before it sends the next.
        let one_by_one = grpc::is_call(&self.head) && !whole;
        let ahead = match read {
            Some(ahead) => ahead,
            None if guarded => self.read_ahead(limit_bytes, one_by_one).await?,
            None => self.at_hand(limit_bytes).await?,
        };
        if grant.approval.is_some() && !self.incoming.is_ended() {
            return Err(Refusal::TooLongToApprove);
        }
        let slot = match in_head {
            Some(slot) => Some(slot),
            None => self.key_in_content(&grant, &target, &ahead)?,
        };
        let mut operation = self.operation(&grant, slot.as_ref());
        let replaced = grant.credential.as_ref().and_then(|c| c.inject.header_name());
        let first = if one_by_one { grpc::first_message(&ahead) } else { None };
        let content = if let Some(first) = &first {
            Content::Partial(first, None)
        } else if self.incoming.is_ended() && (guarded || bare) {
            Content::Whole(&ahead, self.incoming.trailers())
        } else if guarded {
            Content::Partial(&ahead, self.incoming.declared())
        } else {
            Content::Unread(self.incoming.declared())
        };
        let partial = matches!(content, Content::Partial(..));
        let unnamed = Unnamed::of(&grant, slot.as_ref(), &target, &ahead);
        let content = unnamed.content(content);
        let named_target = unnamed.target.as_ref().unwrap_or(&target);
        let replaced = [replaced, unnamed.header];
        let compared = self.compared(&snapshot);
        let fingerprint = fingerprint(&compared, named_target, &replaced, &content);
        if let Some(key) = &mut operation.idempotency {
            key.fingerprint = fingerprint;
            if partial {
                // K-3: what is not compared as a whole is not sent again under its key.
                key.remote_contract = RemoteContract::Unverified;
            }
        }
        self.known.fingerprint = Some(fingerprint);
        let budget = snapshot.budget(&agent);
        Ok(Prepared { target, grant, snapshot, fingerprint, partial, operation, ahead, budget })
    }

    /// Says in the record that the caller's choice of encodings did not go on.
    fn note_encoding(&self, call: &mut Call, grant: &HttpGrant) {
        let asked = self
            .head
            .fields
            .members("accept-encoding")
            .any(|member| !member.eq_ignore_ascii_case(b"identity"));
        if asked && grant.credential.is_some() {
            call.note("encoding_not_asked_for", "only what is not encoded can be redacted");
        }
    }

    /// Takes the call on record, unless an earlier one answers (contract K-3, K-10, K-11).
    pub(crate) fn admit(&self, prepared: &Prepared) -> Result<Admission, Refusal> {
        let guard = Guard {
            window: prepared.grant.repeat_window.filter(|_| !prepared.operation.idempotent),
            key: prepared.operation.idempotency.as_ref().map(|bound| Key {
                choice: match bound.added_as {
                    Some(_) => Choice::Fresh { by_fingerprint: !prepared.partial },
                    None => Choice::Given { by_fingerprint: !prepared.partial },
                },
                ..Key::from(bound)
            }),
            join: prepared.grant.approval.is_some(),
            others: Vec::new(),
            action: None,
            budget: prepared.budget,
        };
        let id = self.known.caller_id.unwrap_or_else(|| self.shared.journal.new_id());
        let agent = self.known.agent.as_deref().unwrap_or_default();
        let link = self.shared.redirects.origin_of(agent, &prepared.target);
        let accepted = self.accepted(self.known.caller_id.is_some(), link);
        self.shared.journal.admit(id, accepted, guard).map_err(Refusal::Journal)
    }

    /// As [`Job::admit`], but gives the delivery of an earlier equal call a moment to be confirmed:
    /// the caller may have its response, and mean a new action, before the transport says so.
    async fn admit_when_delivered(&self, prepared: &Prepared) -> Result<Admission, Refusal> {
        let is_guarded = prepared.grant.repeat_window.is_some() && !prepared.operation.idempotent;
        for _ in 0..DELIVERY_TRIES {
            if is_guarded {
                self.shared.unread.heard(prepared.fingerprint).await;
            }
            let admission = self.admit(prepared)?;
            match &admission {
                Admission::Settled(earlier) if earlier.delivery() == Delivery::Pending => {}
                Admission::New(_)
                | Admission::Held(_)
                | Admission::Spent(_)
                | Admission::SameRequest(_)
                | Admission::Mismatch
                | Admission::InDoubt(_)
                | Admission::Settled(_) => return Ok(admission),
            }
            tokio::time::sleep(DELIVERY_PAUSE).await;
        }
        self.admit(prepared)
    }

    /// The first record of the call.
    pub(crate) fn accepted(&self, caller_id: bool, link: Option<InvocationId>) -> Accepted {
        Accepted {
            gateway: Gateway::Http,
            agent: self.known.agent.clone(),
            action: self.head.method.clone(),
            target: self.known.target.clone().unwrap_or_default(),
            command: None,
            fingerprint: self.known.fingerprint,
            caller_id,
            counted: false,
            link,
        }
    }
}

/// The record of crossing the boundary.
pub(crate) fn dispatch_record(idle: &Idle, fingerprint: Fingerprint, attempt: u32) -> Dispatch {
    let peer = idle.peer();
    Dispatch {
        attempt,
        connection: peer.connection,
        reused: peer.reused,
        address: peer.address.to_string(),
        peer: peer.identity.clone(),
        fingerprint,
    }
}

/// The framing of a request, judged before anything else is.
pub(crate) fn framing(head: &Request) -> Result<Framing, Refusal> {
    head::request_framing(head).map_err(Refusal::Head)
}
