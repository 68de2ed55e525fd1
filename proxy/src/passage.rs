//! Connections that stop being exchanges: WebSockets, and tunnels that policy leaves alone. What
//! passes inside is not judged, so its outcome is `unknown` by nature; on record are the opening, the
//! bytes each way, and how it ended.

use crate::access::{Access, Asked};
use crate::answer::Finished;
use crate::deliver::{self, Ours};
use crate::engine::Job;
use crate::engine::{Prepared, dispatch_record};
use crate::fingerprint::{Content, fingerprint};
use crate::head::{Fields, Received, Response, Version};
use crate::hello::Hello;
use crate::proxy::Shared;
use crate::pump::{Cause, Passed, Pump};
use crate::redact::Redactor;
use crate::render::Status;
use crate::respond::Refusal;
use crate::target::{Authority, Scheme, Target};
use crate::upstream::dial::Plan;
use crate::upstream::exchange::{self, Opened};
use crate::upstream::versions::Offer;
use crate::websocket::frames::Frames;
use bytes::{Bytes, BytesMut};
use journal::contract::{
    Code, Ended, Fingerprint, KeepResult, Observation, Operation, Preflight, Verdict, after_unknown,
};
use journal::{Admission, Call, Guard};
use policy::{HttpGrant, Snapshot};
use unsent::Unsent;

mod unsent;

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
        let extended = head.fields.has("sec-websocket-extensions");
        let readable = redactor.is_active() && !extended;
        if redactor.is_active() && extended {
            call.note("redaction_skipped", "the caller and the origin agreed on an extension");
        }
        let bytes =
            deliver::switching(head, &self.opening(&call, operation, next_hop, Some(head.status)));
        let identity = self.identity();
        let sent = self.out.open(&bytes).await;
        let passed = match (sent, self.incoming.take_rest().zip(origin)) {
            (Ok(()), Some((caller, origin))) => {
                // A quiet WebSocket is no fault: only the bound of a whole response applies.
                let idle = prepared.grant.limits.response_timeout;
                let asked = Asked::Opening {
                    head: self.known.asked_as(&self.head),
                    target: &prepared.target,
                };
                let access = Access { policy: &self.shared.policy, identity, asked };
                let stop = stopped(self.shared, &access);
                let reading = (origin.reader, origin.early);
                let frames = readable.then(|| Frames::new(&mut redactor));
                let mut pump = Pump::new(self.out, reading, frames, idle, stop);
                let cause = pump.run(caller, BytesMut::new(), origin.writer).await;
                pump.passed(cause)
            }
            (Ok(()) | Err(_), _) => {
                Passed { to_origin: 0, to_caller: 0, cause: Cause::CallerBroke }
            }
        };
        if redactor.found() {
            call.note("redacted", "the origin sent the credential back");
        }
        if passed.cause != Cause::Closed {
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
        let opened = self.shared.unless_cut(self.tunnel_to(&mut call, authority, snapshot, grant));
        let idle = match opened.await.unwrap_or(Err(Refusal::ShuttingDown)) {
            Ok(idle) => idle,
            Err(refusal) => return self.refuse(Some(call), &refusal).await,
        };
        self.open_tunnel(call, (authority, grant), (idle, fingerprint)).await
    }

    /// Passes a tunnel on, from its opening to its end. Dispatch begins where the first bytes of the caller
    /// may go on (contract D-1): what is refused for the name inside was not attempted.
    async fn open_tunnel(
        &mut self,
        mut call: Call,
        (authority, grant): (&Authority, &HttpGrant),
        (idle, fingerprint): (exchange::Idle, Fingerprint),
    ) -> Finished {
        let operation = Operation { idempotent: false, idempotency: None };
        let next_hop = idle.peer().address.to_string();
        let dispatch = dispatch_record(&idle, fingerprint, 1);
        call.note("tunnel_opened", &next_hop);
        let identity = self.identity();
        let bytes = deliver::established(&self.opening(&call, &operation, &next_hop, None));
        let sent = self.out.open(&bytes).await;
        let mut hello = Hello::to(&authority.host);
        let ways = self.incoming.take_rest().zip(exchange::into_tunnel(idle));
        let passed = if let (Ok(()), Some((mut caller, (reader, way)))) = (sent, ways) {
            let asked = Asked::Tunnel(authority);
            let access = Access { policy: &self.shared.policy, identity, asked };
            let stop = stopped(self.shared, &access);
            let (reading, patience) = ((reader, Bytes::new()), grant.limits.response_timeout);
            let mut pump = Pump::new(self.out, reading, None, patience, stop);
            match pump.hello(&mut *caller, &mut hello).await {
                Ok(beginning) => match call.dispatch(dispatch).await {
                    Ok(proof) => {
                        let cause = pump.run(caller, beginning, way.open(proof)).await;
                        pump.passed(cause)
                    }
                    Err(error) => {
                        let passed = pump.passed(Cause::BrokerStopped);
                        return unsent::end(call, passed, &Unsent::Journal(error)).await;
                    }
                },
                Err(cause) => {
                    let passed = pump.passed(cause);
                    drop(pump);
                    return self.stopped_before(call, passed, &hello).await;
                }
            }
        } else {
            let passed = Passed { to_origin: 0, to_caller: 0, cause: Cause::CallerBroke };
            return self.stopped_before(call, passed, &hello).await;
        };
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
async fn stopped(shared: &Shared, access: &Access<'_>) -> Cause {
    tokio::select! {
        () = shared.cut_off() => Cause::BrokerStopped,
        () = access.over() => Cause::AccessOver,
    }
}

/// Ends what was dispatched. What passed decides nothing, and where it ended in order there is nothing to
/// look into either.
async fn close(call: Call, operation: &Operation, passed: Passed, message: &str) -> Finished {
    let retry = after_unknown(operation, call.latest_ms());
    let code = match passed.cause {
        Cause::Closed | Cause::CallerLeft => Code::NotJudged,
        Cause::BrokerStopped => Code::BrokerRestarted,
        Cause::BadFrames => Code::RemoteProtocolError,
        Cause::CallerBroke
        | Cause::OriginBroke
        | Cause::Idle
        | Cause::AccessOver
        | Cause::OtherName
        | Cause::Unreadable
        | Cause::CutHello => Code::RemoteOutcomeUnknown,
    };
    let verdict = Verdict::unknown(retry, code);
    let message = match passed.cause {
        Cause::AccessOver => {
            "The access of the agent, or policy's word for it, ended, and the connection with it."
        }
        Cause::Closed
        | Cause::CallerLeft
        | Cause::CallerBroke
        | Cause::OriginBroke
        | Cause::BadFrames
        | Cause::Idle
        | Cause::BrokerStopped
        | Cause::OtherName
        | Cause::Unreadable
        | Cause::CutHello => message,
    };
    let ended = Ended {
        verdict,
        message: message.to_owned(),
        field: None,
        not_before_ms: crate::answer::not_before(verdict, call.now_ms()),
        observation: Some(Observation {
            length_bytes: passed.to_caller,
            cause: passed.cause.as_str().to_owned(),
            recording: None,
        }),
    };
    record(call, passed, ended).await
}

/// Records the end, and how much passed.
async fn record(mut call: Call, passed: Passed, ended: Ended) -> Finished {
    let detail = format!(
        "{} bytes to the origin, {} bytes to the caller",
        passed.to_origin, passed.to_caller
    );
    call.note("passed", &detail);
    if let Err(error) = call.end(ended).await {
        tracing::error!(%error, id = %call.id(), "an end was not recorded");
    }
    Finished { keep: false, pending: None }
}
