//! Finding out later: one question to the origin about a call in doubt (contract K-7).
//!
//! The question is an invocation of its own, linked to the call; it goes to the call's own origin, with
//! the credential of the call's route. What the whole answer shows by the route's conditions is
//! appended to the call as evidence of a second observer, and the call's own record stays as it is
//! (contract J-3). An answer that shows nothing is noted, and changes nothing; one that can't be seen in whole
//! shows nothing.

use crate::deliver::Outbound;
use crate::engine::{Job, Known, Prepared, dispatch_record};
use crate::fingerprint::{Content, fingerprint};
use crate::head::{self, Fields, Framing, Request};
use crate::incoming::Incoming;
use crate::proxy::Shared;
use crate::respond::Refusal;
use crate::target::Target;
use bytes::Bytes;
use journal::action::{self, Action, QueryError as Error, Reconciled};
use journal::contract::{InvocationId, KeepResult, Operation, Outcome};
use journal::{Admission, Guard, Invocation, State};
use policy::repeat::{JobRule, Names, ReconcileRule};
use policy::{HttpGrant, Limits};
use std::sync::Arc;
use std::time::Duration;

/// Content of an answer that is looked at.
const ANSWER_BYTES: usize = 1 << 20;
/// How long an origin may take for a connection, and for an answer: one that is silent holds up no
/// other question for longer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// The grant of a call's route as it is now, where the route still leads to the call's origin.
pub(crate) fn grant_of(shared: &Shared, first: &Invocation) -> Option<HttpGrant> {
    let route = first.preflight()?.route.as_ref()?;
    let agent = first.accepted().agent.as_deref()?;
    let target = Target::absolute(&first.accepted().target).ok()?;
    let Target { scheme, authority, .. } = &target;
    let host = authority.host.to_string();
    let origin = (*scheme, host.as_str(), authority.port);
    shared.policy.snapshot().http_route(route, agent, origin, target.path())
}

/// The same with its rule.
pub(crate) fn rule_of(shared: &Shared, first: &Invocation) -> Option<(HttpGrant, ReconcileRule)> {
    let grant = grant_of(shared, first)?;
    let rule = if first.accepted().is_job() {
        grant.job.as_ref().map(JobRule::as_reconcile)?
    } else {
        grant.reconcile.clone()?
    };
    Some((grant, rule))
}

/// Asks once about the action that the invocation belongs to.
pub(crate) async fn once(shared: &Arc<Shared>, id: InvocationId) -> Result<Reconciled, Error> {
    let action = Action::load(&shared.journal, id)?;
    action.check_askable()?;
    let first = &action.first;
    let (grant, rule) = rule_of(shared, first).ok_or(Error::NoRule)?;
    let names = Names {
        idempotency_key: first.operation().idempotency.map(|key| key.key),
        invocation_id: first.id().to_string(),
        request_id: action.attempts().find_map(|attempt| attempt.evidence().remote_request_id),
    };
    let path = if first.accepted().is_job() {
        status_path(shared, first.id()).await?
    } else {
        rule.target(&names).map_err(|error| Error::Nameless(error.to_string()))?
    };
    let (query, content) = ask(shared, first, grant, &rule.method, &path).await?;
    let complete = matches!(query.state(), State::Committed(_));
    let shows = query.status().filter(|_| complete).and_then(|status| {
        let done = rule.shows(status, &content?)?;
        Some(if done { Outcome::Committed } else { Outcome::Rejected })
    });
    action.settle_by_query(&shared.journal, &query, shows).await?;
    Ok(Reconciled { query, shows })
}

/// Where the status of a job is asked, as the service named it.
async fn status_path(shared: &Shared, job: InvocationId) -> Result<String, Error> {
    let stored = action::stored(&shared.journal, job).await.map_err(Error::Stored)?;
    let head = crate::stored::restore(&stored.head).ok_or(Error::Malformed)?;
    let target = Target::absolute(&head.target).map_err(|_| Error::Malformed)?;
    Ok(target.path_and_query)
}

/// Sends the question. Gives it back settled, whatever came of it, with the content of the origin's answer,
/// where there is one that could be read in whole.
async fn ask(
    shared: &Arc<Shared>,
    first: &Invocation,
    grant: HttpGrant,
    method: &str,
    path: &str,
) -> Result<(Invocation, Option<Vec<u8>>), Error> {
    let head = question(first, method, path)?;
    let target = Target::absolute(&head.target).map_err(|_| Error::Malformed)?;
    let fingerprint = fingerprint(&head, &target, &[], &Content::Whole(&[], &Fields::default()));
    let mut out = Outbound::kept(ANSWER_BYTES);
    let mut job = Job {
        shared,
        tunnel: None,
        head,
        framing: Framing::Empty,
        incoming: Incoming::stored(Bytes::new()),
        out: &mut out,
        keep_alive: false,
        known: Known {
            agent: first.accepted().agent.clone(),
            target: Some(target.recorded()),
            fingerprint: Some(fingerprint),
            retries: Some(first.id()),
            ..Known::default()
        },
        again: None,
    };
    let prepared = Prepared {
        target,
        grant: asking(grant, first),
        snapshot: shared.policy.snapshot(),
        fingerprint,
        partial: false,
        operation: Operation { idempotent: true, idempotency: None },
        ahead: Vec::new(),
        budget: None,
    };
    let (id, answered) = job.question(first.id(), &prepared).await?;
    let query = shared.journal.invocation(id)?.ok_or(Error::NotFound)?;
    let content = out.into_kept().filter(|_| answered).and_then(|kept| {
        let end = kept.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        Some(kept.get(end..)?.to_vec())
    });
    Ok((query, content))
}

/// The request that asks, at the origin of the call.
fn question(first: &Invocation, method: &str, path: &str) -> Result<Request, Error> {
    let origin = Target::absolute(&first.accepted().target).map_err(|_| Error::Malformed)?;
    let (scheme, authority) = (origin.scheme, origin.authority.to_string());
    let default = format!(":{}", scheme.default_port());
    let host = authority.strip_suffix(&default).unwrap_or(&authority);
    let text =
        format!("{method} {scheme}://{host}{path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n");
    let mut head = head::request(&Bytes::from(text)).map_err(|_| Error::Malformed)?;
    // The answer comes without chunks, and is read as it is.
    head.version = head::Version::Http10;
    Ok(head)
}

/// What the question is allowed: the call's route, with an answer that is short and comes soon.
fn asking(grant: HttpGrant, first: &Invocation) -> HttpGrant {
    let bounded = &grant.limits;
    let limits = Limits {
        connect_timeout: bounded.connect_timeout.min(ANSWER_TIME),
        response_timeout: bounded.response_timeout.min(ANSWER_TIME),
        idle_timeout: bounded.idle_timeout.min(ANSWER_TIME),
        ..bounded.clone()
    };
    HttpGrant {
        limits,
        idempotent: Some(true),
        idempotency: None,
        repeat_window: None,
        retry: None,
        reconcile: None,
        // The question is policy's own, not the agent's: nobody is asked, and it counts for nothing.
        approval: None,
        job: None,
        batch: None,
        // The agent may not be allowed to ask this by itself, so it does not get to read the
        // answer either; of its own job it does.
        keep: if first.accepted().is_job() { KeepResult::Full } else { KeepResult::Digest },
        keep_bytes: ANSWER_BYTES as u64,
        ..grant
    }
}

impl Job<'_> {
    /// Takes the question through the same course as any other call; and whether what was sent back is the
    /// origin's answer, and not one of the broker's own in its place.
    async fn question(
        &mut self,
        about: InvocationId,
        prepared: &Prepared,
    ) -> Result<(InvocationId, bool), Error> {
        let id = self.shared.journal.new_id();
        let accepted = self.accepted(false, Some(about));
        let mut call = match self.shared.journal.admit(id, accepted, Guard::default())? {
            Admission::New(call) => call,
            Admission::Mismatch
            | Admission::SameRequest(_)
            | Admission::Held(_)
            | Admission::Spent(_)
            | Admission::InDoubt(_)
            | Admission::Settled(_) => return Err(Error::Malformed),
        };
        if let Err(error) = call.preflight(self.bound(prepared)) {
            return Ok((self.record_refusal(Some(call), &Refusal::Journal(error)).await.0, false));
        }
        let ready = match self.connect(&mut call, prepared).await {
            Ok(ready) => ready,
            Err(refusal) => return Ok((self.record_refusal(Some(call), &refusal).await.0, false)),
        };
        match call.dispatch(dispatch_record(&ready.idle, prepared.fingerprint, 1)).await {
            Ok(proof) => {
                let finished = self.exchange(call, prepared, ready, Vec::new(), proof).await;
                // Nothing but a result that was handed over whole is left pending.
                Ok((id, finished.pending.is_some()))
            }
            Err(error) => {
                Ok((self.record_refusal(Some(call), &Refusal::Journal(error)).await.0, false))
            }
        }
    }
}
