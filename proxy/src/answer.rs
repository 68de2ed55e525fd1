//! Answers of the broker's own: refusals before dispatch, broken exchanges after it, and repeats
//! that are answered from the record.

use crate::deliver::{self, Delivery, Ours};
use crate::engine::{BACKOFF_MS, Job, Prepared};
use crate::grpc;
use crate::handover::{Pending, record};
use crate::head::{self, Fields, Received, Response};
use crate::record::{restore_head, restore_trailers};
use crate::render::Status;
use crate::request;
use crate::request::Tunnel;
use crate::respond::{Account, Broken, Refusal};
use journal::contract::{
    Body, Digest, Ended, Envelope, Evidence, InvocationId, Observation, Outcome, Problem,
    RepeatAnswered, Retry, Verdict,
};
use journal::{Admission, Call, Guard, Invocation, Journal, State, append, result};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Content that is read for the sake of the connection after a refusal, at most.
const DRAIN_BYTES: u64 = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// So much of a stored result is copied behind its head.
const TOGETHER_BYTES: usize = 256 * 1024;
/// How long a repeat by id waits for the call that is under way.
const WAIT_IN_FLIGHT: Duration = Duration::from_secs(10);

/// The stated time of an instruction to try again later.
pub(crate) fn not_before(verdict: Verdict, now_ms: u64) -> Option<u64> {
    (verdict.retry() == Retry::Backoff).then(|| now_ms.saturating_add(BACKOFF_MS))
}

/// Length and digest of the content that an invocation sent, if it sent all of it.
fn sent_content(journal: &Journal, id: InvocationId) -> Option<(u64, Digest)> {
    let events = journal.events(id).ok()?;
    events.into_iter().find_map(|(_, event)| match event.body {
        Body::RequestSent(sent) => Some((sent.length_bytes, sent.digest)),
        Body::ActionAccepted(_)
        | Body::PreflightValidated(_)
        | Body::ApprovalRequested(_)
        | Body::ApprovalDecided(_)
        | Body::CredentialAuthorized(_)
        | Body::RequestStored(_)
        | Body::SetupAttempted(_)
        | Body::DispatchStarted(_)
        | Body::DispatchWithdrawn(_)
        | Body::RemoteResponseStarted(_)
        | Body::BatchMembers(_)
        | Body::MembersJudged(_)
        | Body::JobTracked(_)
        | Body::RemoteResponseComplete(_)
        | Body::ResultCommitted(_)
        | Body::InvocationEnded(_)
        | Body::ResultDelivered(_)
        | Body::DeliveryFailed(_)
        | Body::ResultExpired(_)
        | Body::RepeatAnswered(_)
        | Body::Noted(_)
        | Body::LeaseAcquired(_)
        | Body::LeaseRenewed(_)
        | Body::LeaseUsed(_)
        | Body::LeaseReleased(_) => None,
    })
}

/// A stored result, read.
pub(crate) struct Stored {
    head: Response,
    content: Vec<u8>,
    trailers: Fields,
}

/// What an answer leaves behind.
pub(crate) struct Finished {
    /// Whether the connection can go on.
    pub(crate) keep: bool,
    pub(crate) pending: Option<Pending>,
}

impl Job<'_> {
    /// Answers that nothing was dispatched, and records it.
    pub(crate) async fn refuse(&mut self, call: Option<Call>, refusal: &Refusal) -> Finished {
        let content_lost = matches!(refusal, Refusal::Content(_) | Refusal::Head(_));
        let (_, envelope) = self.record_refusal(call, refusal).await;
        if let Some(finished) = self.retried().await {
            return finished;
        }
        self.problem(&envelope, refusal.account(), content_lost, false).await
    }

    /// Records that nothing was dispatched; the envelope says it.
    pub(crate) async fn record_refusal(
        &mut self,
        call: Option<Call>,
        refusal: &Refusal,
    ) -> (InvocationId, Envelope) {
        let verdict = refusal.verdict(self.shared.journal.latest_ms());
        if matches!(refusal, Refusal::Spent(_)) {
            // The caller's id is for the call that comes when there is room again.
            self.known.caller_id = None;
        }
        let ended = Ended {
            verdict,
            message: refusal.to_string(),
            field: refusal.field(),
            not_before_ms: refusal
                .not_before_ms()
                .or_else(|| not_before(verdict, self.shared.journal.now_ms())),
            observation: None,
        };
        let follow = refusal.follow().map(Invocation::id);
        let call = match call {
            Some(call) => Some(call),
            None => self.take_on_record(follow.or(self.known.retries)),
        };
        let envelope = self.end(call, ended, follow).await;
        (envelope.invocation_id, envelope)
    }

    /// Answers that a dispatched call has no deciding result, and records it.
    pub(crate) async fn broken(
        &mut self,
        mut call: Call,
        error: &Broken,
        verdict: Verdict,
        (length_bytes, begun): (u64, bool),
        next_hop: &str,
    ) -> Finished {
        let ended = Ended {
            verdict,
            message: error.to_string(),
            field: None,
            not_before_ms: not_before(verdict, call.now_ms()),
            observation: Some(Observation { length_bytes, cause: error.cause(), recording: None }),
        };
        let account = Account { hop: Some(next_hop.to_owned()), ..error.account(verdict) };
        // A head that came is told whatever came behind it.
        let received_status = account.received_status.or(call.invocation().evidence().status);
        let account = Account { received_status, ..account };
        if begun {
            // S-2: the caller sees that the response is cut. Chunks show it by the last one missing;
            // without chunks only a reset does.
            if self.head.version == head::Version::Http10 {
                self.out.abort();
            }
            if let Err(error) = call.end(ended).await {
                tracing::error!(%error, id = %call.id(), "an end was not recorded");
            }
            self.out.begun().await;
            return Finished { keep: false, pending: None };
        }
        if verdict.outcome() == Outcome::Rejected {
            return self.rejected(call, &ended, account).await;
        }
        let envelope = self.end(Some(call), ended, None).await;
        match self.retried().await {
            Some(finished) => finished,
            None => self.problem(&envelope, account, false, false).await,
        }
    }

    /// Answers that the origin's protocol says that nothing was processed (contract C-6).
    async fn rejected(&mut self, mut call: Call, ended: &Ended, account: Account) -> Finished {
        if let Err(error) =
            call.reject(ended.verdict, ended.not_before_ms, Some(&ended.message)).await
        {
            tracing::error!(%error, id = %call.id(), "a refusal was not recorded");
        }
        let mut envelope = call.invocation().envelope();
        envelope.error.message.clone_from(&ended.message);
        drop(call);
        match self.retried().await {
            Some(finished) => finished,
            None => self.problem(&envelope, account, false, false).await,
        }
    }

    /// Answers that there is a result on record, and that it is not to be seen.
    pub(crate) async fn withheld(
        &mut self,
        mut call: Call,
        coding: Option<&'static str>,
        next_hop: &str,
    ) -> Finished {
        call.delivery_failed(0);
        let account = Account {
            hop: Some(next_hop.to_owned()),
            received_status: call.invocation().evidence().status,
            ..Account::undecodable(coding)
        };
        let envelope = call.invocation().envelope();
        self.problem(&envelope, account, false, false).await
    }

    /// A record for a call that is refused before it was admitted.
    fn take_on_record(&mut self, link: Option<InvocationId>) -> Option<Call> {
        if self.known.agent.is_none() {
            // What was refused before it was asked who calls is an agent's all the same.
            self.known.agent = self.identity().map(|identity| identity.agent().to_owned());
        }
        if self.known.target.is_none() {
            let target = request::target(&self.head, self.tunnel).map(|target| target.recorded());
            self.known.target = target.ok().or_else(|| self.tunnel.map(Tunnel::recorded));
        }
        let journal = &self.shared.journal;
        let admitted = match self.known.agent {
            None => self.shared.strangers.admit(journal, self.accepted(false, link)),
            Some(_) => self.admit_refused(link),
        };
        admitted
            .inspect_err(|error| tracing::warn!(%error, "a refusal was not recorded"))
            .unwrap_or_default()
    }

    /// An agent's refused call, under the caller's id where that can be its own.
    fn admit_refused(&self, link: Option<InvocationId>) -> Result<Option<Call>, append::Error> {
        let journal = &self.shared.journal;
        let admit = |id, caller_id| {
            let admitted = journal.admit(id, self.accepted(caller_id, link), Guard::default())?;
            Ok(if let Admission::New(call) = admitted { Some(call) } else { None })
        };
        // A refused repeat must not look like the invocation that it repeats.
        if let Some(id) = self.known.caller_id
            && link.is_none()
            && self.known.fingerprint.is_some()
            && let Some(call) = admit(id, true)?
        {
            return Ok(Some(call));
        }
        admit(journal.new_id(), false)
    }

    /// Records the end and gives the envelope, from the record where there is one.
    async fn end(
        &mut self,
        call: Option<Call>,
        ended: Ended,
        follow: Option<InvocationId>,
    ) -> Envelope {
        let mut id = None;
        let mut evidence = Evidence::default();
        if let Some(mut call) = call {
            id = Some(call.id());
            match call.end(ended.clone()).await {
                Ok(_) => return call.invocation().envelope(),
                Err(error) => {
                    tracing::error!(%error, id = %call.id(), "an end was not recorded");
                    // Without a durable dispatch nothing was sent, whatever was queued.
                    if ended.verdict.outcome() != Outcome::NotAttempted {
                        evidence = call.invocation().evidence();
                    }
                }
            }
        }
        Envelope {
            invocation_id: id.unwrap_or_else(|| self.unrecorded_id()),
            error: Problem {
                verdict: ended.verdict,
                message: ended.message,
                field: ended.field,
                not_before_ms: ended.not_before_ms,
                follow,
            },
            evidence,
        }
    }

    /// The id of an answer without a record. The caller's own only if nothing is on record under it: of
    /// what is, this answer knows nothing (contract D-1, J-3).
    fn unrecorded_id(&self) -> InvocationId {
        let journal = &self.shared.journal;
        let unused = |id: &InvocationId| matches!(journal.invocation(*id), Ok(None));
        self.known.caller_id.filter(unused).unwrap_or_else(|| journal.new_id())
    }

    /// Sends an envelope. `content_lost`: where the next request begins is not known; `replayed`: it
    /// is that of an earlier invocation.
    pub(crate) async fn problem(
        &mut self,
        envelope: &Envelope,
        account: Account,
        content_lost: bool,
        replayed: bool,
    ) -> Finished {
        let verdict = envelope.error.verdict;
        let keep = self.keep_alive && !content_lost && self.can_drain();
        let ours = Ours {
            verdict,
            id: envelope.invocation_id,
            replayed,
            status: Status {
                error: Some(account.error),
                details: Some(&envelope.error.message),
                next_hop: account.hop.as_deref(),
                received_status: account.received_status,
                extra: &account.extra,
                earlier: account.earlier.as_deref(),
            },
            keep_alive: keep,
            pseudonym: &self.shared.pseudonym,
            received: Received::By(head::Version::Http11),
        };
        let now_ms = self.shared.journal.now_ms();
        let version = self.head.version;
        let bytes = if self.out.is_stream() && grpc::is_call(&self.head) {
            deliver::status_alone(account.status, version, envelope, &ours, now_ms)
        } else {
            let with_content = self.head.method != "HEAD";
            deliver::problem(account.status, version, envelope, &ours, with_content, now_ms)
        };
        let sent = self.out.send(&bytes).await;
        Finished { keep: keep && sent.is_ok() && self.drain().await, pending: None }
    }

    /// Whether what is left of the content may be read for the sake of the connection. That of a stranger
    /// is not.
    fn can_drain(&self) -> bool {
        let long = self.incoming.declared().is_some_and(|length| length > DRAIN_BYTES);
        let worth = self.known.agent.is_some() && !long && !request::expects_continue(&self.head);
        self.incoming.is_ended() || (worth && !self.shared.is_cut())
    }

    /// Reads what is left of short content behind the answer, so that the connection can go on. The caller
    /// may wait for that answer before it sends more.
    async fn drain(&mut self) -> bool {
        if self.incoming.is_ended() {
            return true;
        }
        let limit = self.incoming.length() + DRAIN_BYTES;
        let incoming = &mut self.incoming;
        let reading = timeout(DRAIN_TIME, async {
            while incoming.length() <= limit {
                match incoming.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            false
        });
        matches!(self.shared.unless_cut(reading).await, Some(Ok(true)))
    }

    /// Answers what the journal took for a repeat. Of long content the fingerprint saw only the
    /// beginning, so the whole is compared with what was sent: nobody is told `committed` of content
    /// that begins alike (contract K-3, K-10, K-11).
    pub(crate) async fn repeat(
        &mut self,
        prepared: &Prepared,
        earlier: Box<Invocation>,
        by_id: bool,
    ) -> Finished {
        if !prepared.partial {
            return self.replay(earlier, by_id).await;
        }
        let earlier = self.settled(earlier).await;
        if earlier.verdict().outcome() == Outcome::NotAttempted {
            // True of every content: nothing was sent.
            return self.replay(earlier, by_id).await;
        }
        let shared = Arc::clone(self.shared);
        let whole = shared.unless_cut(self.whole(prepared.grant.limits.request_bytes)).await;
        let whole = match whole.unwrap_or(Err(Refusal::ShuttingDown)) {
            Ok(whole) => whole,
            Err(refusal) => return self.refuse(None, &refusal).await,
        };
        match sent_content(&self.shared.journal, earlier.id()) {
            Some(sent) if sent == whole => self.replay(earlier, by_id).await,
            Some(_) if by_id => self.refuse(None, &Refusal::Mismatch).await,
            Some(_) | None => self.refuse(None, &Refusal::InDoubtBeginning(earlier)).await,
        }
    }

    /// Reads the content to its end; its length and digest.
    async fn whole(&mut self, limit_bytes: u64) -> Result<(u64, Digest), Refusal> {
        while self.incoming.next().await.map_err(Refusal::Content)?.is_some() {
            if self.incoming.length() > limit_bytes {
                return Err(Refusal::PayloadLimit { limit_bytes });
            }
        }
        Ok(self.incoming.so_far())
    }

    /// Answers a repeat from the record of the earlier invocation; dispatches nothing (contract
    /// K-10, K-11).
    pub(crate) async fn replay(&mut self, earlier: Box<Invocation>, by_id: bool) -> Finished {
        let earlier = self.settled(earlier).await;
        let asked = earlier.id();
        // What its retries brought answers for it.
        let earlier = match self.shared.journal.answering((*earlier).clone()) {
            Ok(answering) => Box::new(answering),
            Err(_) => earlier,
        };
        let id = earlier.id();
        record(&self.shared.journal, id, Body::RepeatAnswered(RepeatAnswered { by_id }));
        let stored = match earlier.state() {
            State::Committed(verdict) => self.stored(id).await.map(|stored| (verdict, stored)),
            State::Accepted
            | State::Validated
            | State::Authorized
            | State::Dispatched
            | State::Ended(_) => Err(result::Error::Incomplete),
        };
        match stored {
            Ok((verdict, stored)) => self.send_stored([asked, id], verdict, &stored, true).await,
            Err(result::Error::Locked) => self.refuse(None, &Refusal::VaultLocked).await,
            Err(_) => {
                let account = Account::of(earlier.verdict());
                self.problem(&earlier.envelope(), account, false, true).await
            }
        }
    }

    async fn settled(&self, earlier: Box<Invocation>) -> Box<Invocation> {
        if earlier.is_settled() {
            return earlier;
        }
        let id = earlier.id();
        // Whether it settled in time is seen by reading it again.
        let waiting = self.shared.unless_cut(self.shared.journal.changed(id));
        drop(timeout(WAIT_IN_FLIGHT, waiting).await);
        match self.shared.journal.invocation(id) {
            Ok(Some(now)) => Box::new(now),
            Ok(None) | Err(_) => earlier,
        }
    }

    /// Reads a stored result; off the async workers, because it reads files.
    pub(crate) async fn stored(&self, id: InvocationId) -> Result<Stored, result::Error> {
        let journal = self.shared.journal.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut stored = journal.result(id)?;
            let head = stored.head().and_then(restore_head).ok_or(result::Error::Damaged)?;
            let trailers = restore_trailers(stored.trailers()).ok_or(result::Error::Damaged)?;
            Ok(Stored { head, content: stored.read_to_end()?, trailers })
        });
        read.await.map_err(|_| result::Error::Damaged)?
    }

    /// The recorded answer of an invocation whose own was held back.
    pub(crate) async fn answer_as_recorded(&mut self, id: InvocationId) -> Finished {
        let Ok(Some(invocation)) = self.shared.journal.invocation(id) else {
            return self.refuse(None, &Refusal::Internal).await;
        };
        match self.stored(id).await {
            Ok(stored) => self.send_stored([id, id], invocation.verdict(), &stored, false).await,
            Err(_) => {
                let account = Account::of(invocation.verdict());
                self.problem(&invocation.envelope(), account, false, false).await
            }
        }
    }

    /// Sends a stored result. `ids`: the invocation that the caller knows, and the attempt that holds
    /// the result.
    pub(crate) async fn send_stored(
        &mut self,
        ids: [InvocationId; 2],
        verdict: Verdict,
        stored: &Stored,
        replayed: bool,
    ) -> Finished {
        let [asked, _] = ids;
        let keep = self.keep_alive && self.can_drain();
        let Stored { head, content, trailers } = stored;
        let bodiless = head::is_bodiless(&self.head.method, head.status);
        let has_trailers = trailers.iter().next().is_some();
        let delivery = if bodiless {
            Delivery::AsDeclared
        } else if has_trailers && self.head.version == head::Version::Http11 {
            Delivery::HeldChunks
        } else {
            Delivery::Length(content.len() as u64)
        };
        let ours = Ours {
            verdict,
            id: asked,
            replayed,
            status: Status { received_status: Some(head.status), ..Status::default() },
            keep_alive: keep,
            pseudonym: &self.shared.pseudonym,
            received: Received::By(head::Version::Http11),
        };
        let mut bytes = deliver::head(head, self.head.version, delivery, &ours);
        let content = if bodiless { &[][..] } else { content };
        let mut end = Vec::new();
        if delivery == Delivery::HeldChunks {
            if !content.is_empty() {
                bytes.extend_from_slice(&deliver::chunk_size(content.len()));
                end.extend_from_slice(b"\r\n");
            }
            end.extend_from_slice(&deliver::last_chunk(trailers, None));
        }
        // A short one leaves in one write with its head.
        let (first, rest) = content.split_at(content.len().min(TOGETHER_BYTES));
        bytes.extend_from_slice(first);
        if rest.is_empty() {
            bytes.append(&mut end);
        }
        let mut sent = true;
        for part in [&bytes[..], rest, &end] {
            sent = sent && self.out.send(part).await.is_ok();
        }
        let journal = self.shared.journal.clone();
        let pending = Pending::of_record(ids, replayed, journal, self.out.sent);
        if !sent {
            pending.fail();
            return Finished { keep: false, pending: None };
        }
        Finished { keep: keep && self.drain().await, pending: Some(pending) }
    }
}
