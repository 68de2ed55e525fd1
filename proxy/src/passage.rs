//! Connections that stop being exchanges: WebSockets, and tunnels that policy leaves alone. What
//! passes inside is not judged, so its outcome is `unknown` by nature; on record are the opening, the
//! bytes each way, and how it ended.

use crate::access::{ACCESS_OVER, Access, Asked};
use crate::answer::Finished;
use crate::deliver::{self, Ours};
use crate::engine::Job;
use crate::engine::{Prepared, dispatch_record};
use crate::fingerprint::{Content, fingerprint};
use crate::head::{Fields, Received, Response, Version};
use crate::hello::{Fault, Hello, OTHER_NAME, UNREADABLE};
use crate::proxy::Shared;
use crate::pump::{BROKER_STOPPED, CALLER_BROKE, CLOSED, Passed, pump};
use crate::redact::Redactor;
use crate::render::Status;
use crate::respond::Refusal;
use crate::target::{Authority, Scheme, Target};
use crate::upstream::dial::Plan;
use crate::upstream::exchange::{self, Opened};
use crate::upstream::versions::Offer;
use journal::contract::{
    Code, Ended, KeepResult, Observation, Operation, Preflight, Verdict, after_unknown,
};
use journal::{Admission, Call, Guard};
use policy::{HttpGrant, Snapshot};

/// A call whose connection goes on without a frame of ours.
pub(crate) struct Passage<'a> {
    pub(crate) call: Call,
    pub(crate) next_hop: &'a str,
    pub(crate) redactor: Redactor,
    pub(crate) prepared: &'a Prepared,
}

impl Job<'_> {
    /// Hands a WebSocket over and passes it on to its end.
    pub(crate) async fn upgraded(
        &mut self,
        passage: Passage<'_>,
        head: &Response,
        origin: Option<Opened>,
    ) -> Finished {
        let Passage { mut call, next_hop, mut redactor, prepared } = passage;
        let operation = &prepared.operation;
        let (caller, origin_speaks) = (self.out.is_stream(), head.status != 101);
        call.note("upgraded", versions(caller, origin_speaks));
        let bytes =
            deliver::switching(head, &self.opening(&call, operation, next_hop, Some(head.status)));
        let identity = self.identity();
        let sent = self.out.open(&bytes).await;
        let passed = match (sent, self.incoming.take_rest().zip(origin)) {
            (Ok(()), Some((caller, origin))) => {
                // A quiet WebSocket is no fault: only the bound of a whole response applies.
                let idle = prepared.grant.limits.response_timeout;
                let asked = Asked::Opening { head: &self.head, target: &prepared.target };
                let access = Access { policy: &self.shared.policy, identity, asked };
                let stop = stopped(self.shared, &access);
                pump(caller, self.out, origin, None, &mut redactor, idle, stop).await
            }
            (Ok(()) | Err(_), _) => Passed { to_origin: 0, to_caller: 0, cause: CALLER_BROKE },
        };
        if redactor.found() {
            call.note("redacted", "the origin sent the credential back");
        }
        if passed.cause != CLOSED {
            self.out.begun().await;
        }
        let message = "The connection became a WebSocket; what passed inside is not judged.";
        close(call, operation, passed, message).await
    }

    /// Opens the tunnel that policy does not want intercepted, and passes it on to its end. A tunnel
    /// that can't be opened is refused as any other call.
    pub(crate) async fn pass_through(
        &mut self,
        authority: &Authority,
        snapshot: &Snapshot,
        grant: &HttpGrant,
    ) -> Finished {
        let target = Target {
            scheme: Scheme::Https,
            authority: authority.clone(),
            written_authority: None,
            path_and_query: String::new(),
        };
        let none = Fields::default();
        let fingerprint = fingerprint(&self.head, &target, &[], &Content::Whole(&[], &none));
        self.known.fingerprint = Some(fingerprint);
        let id = self.known.caller_id.unwrap_or_else(|| self.shared.journal.new_id());
        let accepted = self.accepted(self.known.caller_id.is_some(), None);
        // Opening another tunnel to the same place is no repeat of what passed in an earlier one.
        let agent = self.known.agent.as_deref().unwrap_or_default();
        let guard = Guard { budget: snapshot.budget(agent), ..Guard::default() };
        let mut call = match self.shared.journal.admit(id, accepted, guard) {
            Ok(Admission::New(call)) => call,
            Ok(Admission::Spent(spent)) => {
                return self.refuse(None, &Refusal::Spent(spent)).await;
            }
            Ok(
                Admission::SameRequest(earlier)
                | Admission::Settled(earlier)
                | Admission::Held(earlier),
            ) => {
                return self.replay(earlier, true).await;
            }
            Ok(Admission::InDoubt(earlier)) => {
                return self.refuse(None, &Refusal::InDoubt(earlier)).await;
            }
            Ok(Admission::Mismatch) => return self.refuse(None, &Refusal::Mismatch).await,
            Err(error) => return self.refuse(None, &Refusal::Journal(error)).await,
        };
        let operation = Operation { idempotent: false, idempotency: None };
        let opened = self.shared.unless_cut(self.tunnel_to(&mut call, authority, snapshot, grant));
        let idle = match opened.await.unwrap_or(Err(Refusal::ShuttingDown)) {
            Ok(idle) => idle,
            Err(refusal) => return self.refuse(Some(call), &refusal).await,
        };
        let next_hop = idle.peer().address.to_string();
        // D-1: what the caller sends inside goes to the origin at once.
        let origin = match call.dispatch(dispatch_record(&idle, fingerprint, 1)).await {
            Ok(proof) => exchange::into_tunnel(idle, proof),
            Err(error) => return self.refuse(Some(call), &Refusal::Journal(error)).await,
        };
        call.note("tunnel_opened", &next_hop);
        let identity = self.identity();
        let bytes = deliver::established(&self.opening(&call, &operation, &next_hop, None));
        let sent = self.out.open(&bytes).await;
        let mut hello = Hello::to(&authority.host);
        let mut passed = match (sent, self.incoming.take_rest().zip(origin)) {
            (Ok(()), Some((caller, origin))) => {
                let (mut redactor, idle) = (Redactor::default(), grant.limits.response_timeout);
                let asked = Asked::Tunnel(authority);
                let access = Access { policy: &self.shared.policy, identity, asked };
                let stop = stopped(self.shared, &access);
                let begin = Some(&mut hello);
                pump(caller, self.out, origin, begin, &mut redactor, idle, stop).await
            }
            (Ok(()) | Err(_), _) => Passed { to_origin: 0, to_caller: 0, cause: CALLER_BROKE },
        };
        if let Some(fault) = hello.fault() {
            if let Fault::OtherName(name) = fault {
                call.note("other_name", name);
            }
            // The end says it, too, to a client that is gone.
            if self.out.send(&fault.alert()).await.is_ok() {
                passed.to_caller += fault.alert().len() as u64;
            }
        }
        let message = "The tunnel was not intercepted; what passed inside is not judged.";
        close(call, &operation, passed, message).await
    }

    async fn tunnel_to(
        &self,
        call: &mut Call,
        authority: &Authority,
        snapshot: &Snapshot,
        grant: &HttpGrant,
    ) -> Result<exchange::Idle, Refusal> {
        call.preflight(Preflight {
            policy_version: snapshot.version(),
            would_deny: grant.would_deny,
            route: grant.route.clone(),
            credential: None,
            idempotent: false,
            idempotency: None,
            keep: KeepResult::None,
            keep_seconds: 0,
            keep_total_bytes: None,
        })
        .map_err(Refusal::Journal)?;
        let parent = self.parent(call, snapshot, grant).await?;
        call.authorize(None).map_err(Refusal::Journal)?;
        let plan = Plan {
            // TLS is the caller's own.
            scheme: Scheme::Http,
            authority,
            private_addresses: grant.private_addresses,
            trust: &[],
            timeout: grant.limits.connect_timeout,
            offer: Offer::Http11,
            rounds: 1,
            parent: parent.as_ref(),
            tunnel: true,
            client: None,
        };
        self.dialled(call, &plan).await
    }

    /// What our fields say while the end is open (contract E-4).
    fn opening<'s>(
        &'s self,
        call: &Call,
        operation: &Operation,
        next_hop: &'s str,
        received_status: Option<u16>,
    ) -> Ours<'s> {
        Ours {
            verdict: Verdict::unknown(after_unknown(operation, call.latest_ms()), Code::InFlight),
            id: call.id(),
            replayed: false,
            status: Status { received_status, next_hop: Some(next_hop), ..Status::default() },
            keep_alive: true,
            pseudonym: &self.shared.pseudonym,
            received: Received::By(Version::Http11),
        }
    }
}

/// What was opened; which sides have it on a stream of HTTP/2 (RFC 8441).
const fn versions(caller: bool, origin: bool) -> &'static str {
    match (caller, origin) {
        (false, false) => "websocket",
        (true, false) => "websocket, over HTTP/2 to the caller",
        (false, true) => "websocket, over HTTP/2 to the origin",
        (true, true) => "websocket, over HTTP/2 on both sides",
    }
}

/// Waits until the passage has to end: for the broker, or for its agent.
async fn stopped(shared: &Shared, access: &Access<'_>) -> &'static str {
    tokio::select! {
        () = shared.cut_off() => BROKER_STOPPED,
        () = access.over() => ACCESS_OVER,
    }
}

/// Records the end.
async fn close(mut call: Call, operation: &Operation, passed: Passed, message: &str) -> Finished {
    let detail = format!(
        "{} bytes to the origin, {} bytes to the caller",
        passed.to_origin, passed.to_caller
    );
    call.note("passed", &detail);
    let retry = after_unknown(operation, call.latest_ms());
    let code = match passed.cause {
        BROKER_STOPPED => Code::BrokerRestarted,
        _ => Code::RemoteOutcomeUnknown,
    };
    let verdict = Verdict::unknown(retry, code);
    let message = match passed.cause {
        ACCESS_OVER => {
            "The access of the agent, or policy's word for it, ended, and the connection with it."
        }
        OTHER_NAME => {
            "The TLS inside the tunnel asked for another host than the tunnel's; nothing was sent to it."
        }
        UNREADABLE => "What the tunnel began with can't be read as TLS; nothing of it was sent.",
        _ => message,
    };
    let ended = Ended {
        verdict,
        message: message.to_owned(),
        field: None,
        not_before_ms: crate::answer::not_before(verdict, call.now_ms()),
        observation: Some(Observation {
            length_bytes: passed.to_caller,
            cause: passed.cause.to_owned(),
            recording: None,
        }),
    };
    if let Err(error) = call.end(ended).await {
        tracing::error!(%error, id = %call.id(), "an end was not recorded");
    }
    Finished { keep: false, pending: None }
}
