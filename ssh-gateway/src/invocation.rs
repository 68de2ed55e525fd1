//! One session channel from request to settled outcome: admit, decide, inject, connect, dispatch,
//! relay, settle, deliver. Each step is one function; every way out leaves a record and an answer.

mod admit;
mod certificate;
mod credential;
mod held;
mod question;
mod refusal;
mod retry;
mod settle;

pub(crate) use question::{ask, rule_of};
pub(crate) use refusal::{Refusal, end_refused, not_recorded, record_refusal, refuse, sentence};
pub(crate) use retry::Repeater;

use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::jump::LOGIN_OVER;
use crate::keep::Keeper;
use crate::redact::Needles;
use crate::relay::Relay;
use crate::request::{Destination, Preparation, Request};
use crate::seen::{Seen, Stop};
use crate::spool::Spool;
use crate::stored;
use crate::upstream::{self, Login, Plan, Ready, Running, Started};
use journal::action::Leave;
use journal::contract::{
    Accepted, Code, Dispatch, Fingerprint, Gateway, Idempotency, InvocationId, Operation,
    Preflight, Retry, Verdict,
};
use journal::{Call, Dispatched, append, lease};
use policy::{Denial, SshGrant};
use std::sync::Arc;

/// One request on one channel.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) destination: Arc<Destination>,
    pub(crate) request: Request,
    pub(crate) preparation: Preparation,
}

impl Job {
    /// The call as it goes on record.
    fn accepted(&self, link: Option<InvocationId>) -> Accepted {
        Accepted {
            gateway: Gateway::Ssh,
            agent: Some(self.destination.agent.name.clone()),
            action: self.request.action(),
            target: self.destination.target(),
            command: self.request.command(),
            fingerprint: Some(self.fingerprint()),
            caller_id: false,
            counted: false,
            link,
        }
    }

    /// What makes it the same as another one.
    fn fingerprint(&self) -> Fingerprint {
        self.request.fingerprint(&self.destination, &self.preparation)
    }

    /// Refuses who was removed, or got a new token, since the login. A command can wait for long
    /// between its request and its dispatch, so this is asked again after each wait.
    fn check_login(&self) -> Result<(), Refusal> {
        if self.shared.is_current(&self.destination.agent) {
            return Ok(());
        }
        Err(login_over())
    }
}

/// The refusal of somebody whose login does not hold any more.
fn login_over() -> Refusal {
    let verdict = Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated);
    Refusal::new(verdict, LOGIN_OVER, None)
}

/// Runs the request to its end. The client gets its answer, and the journal its record.
pub(crate) async fn run(job: Job, downstream: Downstream, spool: Spool) {
    let accepted = job.accepted(None);
    let id = match job.preparation.invocation.as_deref().map(str::parse::<InvocationId>) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(error)) => {
            let verdict = Verdict::refused(Retry::AfterCorrection, Code::InvalidInvocationId);
            let field = Some("request.env.AFFIANT_INVOCATION");
            let refusal = Refusal::new(verdict, format!("{error}."), field);
            return refuse(&job.shared, downstream, accepted, refusal).await;
        }
    };
    if job.shared.is_stopping() {
        let verdict = Verdict::refused(Retry::Backoff, Code::ShuttingDown);
        let refusal = Refusal::new(verdict, "The gateway is going down; try later.", None);
        return refuse(&job.shared, downstream, accepted, refusal).await;
    }
    if let Err(refusal) = job.check_login() {
        return refuse(&job.shared, downstream, accepted, refusal).await;
    }
    admit::admit(job, downstream, spool, accepted, id).await;
}

/// A call on record: to dispatch if everything before holds, and to its end.
async fn carry_out(
    job: Job,
    downstream: Downstream,
    spool: Spool,
    mut call: Call,
    decision: Result<SshGrant, Denial>,
    policy_version: u64,
) {
    let grant = match decision {
        Ok(grant) => grant,
        Err(denial) => return end_refused(call, downstream, denial.into()).await,
    };
    if job.preparation.is_cut {
        call.note("VARIABLES_CUT", "more variables came than are taken: 64, and 64 KiB");
    }
    let bound = bound(&job, &grant, policy_version);
    if let Err(error) = call.preflight(bound) {
        return end_refused(call, downstream, not_recorded(&error)).await;
    }
    if grant.approval.is_some() {
        let accepted = call.invocation().accepted().clone();
        let side = held::Caller { job, downstream, spool, accepted };
        return held::ask(side, call, grant).await;
    }
    go_on(&job, Side { downstream, spool }, call, &grant, None).await;
}

/// The client's side of a command.
struct Side {
    downstream: Downstream,
    spool: Spool,
}

/// A bound call, approved where that is needed: to dispatch and to its end. `leave`: a retry.
async fn go_on(
    job: &Job,
    mut side: Side,
    mut call: Call,
    grant: &SshGrant,
    leave: Option<Leave<'_>>,
) {
    let operation = leave.map_or(call.id(), |leave| leave.action.first.id());
    let prepared = async {
        // A person may have taken their time to approve it.
        job.check_login()?;
        let (login, needles) = credential::authorize(job, &mut call, grant).await?;
        if leave.is_none() {
            stored::keep(&mut call, &mut side.spool, job, grant).await;
        }
        let ready = connect(job, &mut call, grant, &login, operation).await?;
        Ok((needles, ready))
    };
    let (needles, ready) = match prepared.await {
        Ok(prepared) => prepared,
        Err(refusal) => return end_refused(call, side.downstream, refusal).await,
    };
    if let Err(refusal) = check_caller(job, &side) {
        ready.abandon().await;
        return end_refused(call, side.downstream, refusal).await;
    }
    if ready.terminal_refused() {
        call.note("TERMINAL_REFUSED", "the target gave no terminal; the command runs without");
    }
    let dispatch = Dispatch {
        attempt: leave.map_or(1, |leave| leave.number()),
        connection: job.shared.next_connection(),
        reused: false,
        address: ready.address().to_string(),
        peer: ready.peer(),
        fingerprint: job.fingerprint(),
    };
    // From here on the target may hear of the command, and not before this is durable (D-1, D-3).
    match dispatch_now(&mut call, dispatch, leave).await {
        Ok(dispatched) => start(job, side, call, grant, (ready, needles, dispatched)).await,
        Err(refusal) => {
            ready.abandon().await;
            end_refused(call, side.downstream, refusal).await;
        }
    }
}

/// Whether there is still somebody to send it for: the credential and the connection took time.
fn check_caller(job: &Job, side: &Side) -> Result<(), Refusal> {
    job.check_login()?;
    if side.downstream.is_gone() {
        let verdict = Verdict::not_connected(Retry::Backoff, Code::CallerGone);
        return Err(Refusal::new(verdict, "The client left before the command was sent.", None));
    }
    Ok(())
}

/// Makes the dispatch durable, under its lease where it is a retry (contract K-6).
async fn dispatch_now(
    call: &mut Call,
    dispatch: Dispatch,
    leave: Option<Leave<'_>>,
) -> Result<Dispatched, Refusal> {
    let dispatched = match leave {
        None => call.dispatch(dispatch).await.map_err(lease::Error::Append),
        Some(leave) => {
            call.dispatch_under(leave.lease, leave.standing.not_after_ms, dispatch).await
        }
    };
    dispatched.map_err(|error| match error {
        lease::Error::Append(append::Error::Illegal(_)) if call.invocation().is_held() => {
            held::mismatch()
        }
        lease::Error::Append(error) => {
            tracing::error!(id = %call.id(), %error, "DISPATCH_STARTED is not on record");
            let verdict = Verdict::not_connected(Retry::Backoff, Code::JournalUnavailable);
            let message = "The journal can't take the dispatch record, so nothing was sent.";
            Refusal::new(verdict, message, None)
        }
        lease::Error::Held { .. } | lease::Error::Over(_) => {
            let verdict = Verdict::in_doubt_duplicate(Retry::Reconcile);
            let message = "Another worker took the right to this attempt; nothing was sent.";
            Refusal::new(verdict, message, None)
        }
    })
}

/// Sends the request, and sees it to its end.
async fn start(
    job: &Job,
    mut side: Side,
    call: Call,
    grant: &SshGrant,
    (ready, needles, dispatched): (Ready, Needles, Dispatched),
) {
    let deliveries = &job.shared.deliveries;
    let patience = grant.limits.connect_timeout;
    let left = side.downstream.gone();
    match ready.start(dispatched, &job.request, patience, left).await {
        Started::Running(running) => relay(job, call, grant, *running, (side, needles)).await,
        Started::Refused => {
            let seen = Seen { accepted: Some(false), closed: true, ..Seen::default() };
            settle::settle(deliveries, call, side.downstream, seen, "REFUSED").await;
        }
        Started::Lost(cause) => {
            settle::settle(deliveries, call, side.downstream, Seen::default(), cause).await;
        }
        Started::Left => {
            let stop = Stop::ClientGone(side.downstream.absence());
            let seen = Seen { stop: Some(stop), ..Seen::default() };
            settle::settle(deliveries, call, side.downstream, seen, "CALLER_GONE").await;
        }
        Started::NotOpened => {
            let seen = Seen { stop: Some(Stop::NotOpened), ..Seen::default() };
            settle::settle(deliveries, call, side.downstream, seen, "NOT_OPENED").await;
        }
    }
}

/// Relays a request under way, and settles it.
async fn relay(
    job: &Job,
    mut call: Call,
    grant: &SshGrant,
    mut running: Running,
    (side, needles): (Side, Needles),
) {
    let Side { mut downstream, spool } = side;
    let options = &job.shared.options;
    let lifetime = job.request.lifetime(job.preparation.terminal.is_some());
    let Job { destination, request, preparation, .. } = job;
    let keeper = Keeper::new(destination, request, preparation, grant, &needles);
    let relay = Relay::new(
        &mut call,
        &mut downstream,
        grant,
        options,
        lifetime,
        (keeper, &needles),
        (spool.overflow(), job.shared.cutting()),
    );
    let seen = relay.run(&mut running, spool).await;
    let cause = match seen.stop {
        Some(Stop::GatewayEnds) => "BROKER_STOPPED",
        Some(_) | None => running.cause(),
    };
    // The target's side is over whatever comes; its close needs nobody to wait for it.
    let closing = tokio::spawn(running.finish());
    settle::settle(&job.shared.deliveries, call, downstream, seen, cause).await;
    drop(closing.await);
}

/// What the route's contract says of repeating the command (contract K-1, K-9).
fn operation(job: &Job, grant: &SshGrant) -> Operation {
    let idempotency = grant.release.as_ref().and_then(|rule| {
        let Request::Exec(command) = &job.request else { return None };
        let retention = u64::try_from(rule.retention.as_millis()).unwrap_or(u64::MAX);
        Some(Idempotency {
            key: rule.id_of(command)?,
            scope: rule.scope.clone(),
            fingerprint: job.fingerprint(),
            expires_at_ms: job.shared.journal.now_ms().saturating_add(retention),
            remote_contract: rule.contract,
            added_as: None,
        })
    });
    Operation { idempotent: grant.is_idempotent(), idempotency }
}

/// What a call is bound to (contract V-5).
fn bound(job: &Job, grant: &SshGrant, policy_version: u64) -> Preflight {
    let policy = &job.shared.policy;
    let operation = operation(job, grant);
    Preflight {
        policy_version,
        would_deny: None,
        route: Some(grant.route.clone()),
        credential: grant.credential.as_ref().map(|credential| policy.bind(credential)),
        idempotent: operation.idempotent,
        idempotency: operation.idempotency,
        keep: grant.keep,
        keep_seconds: grant.keep_for.as_secs(),
        keep_total_bytes: grant.keep_total_bytes,
    }
}

/// Sets up a connection of this command's own; every try is recorded.
async fn connect(
    job: &Job,
    call: &mut Call,
    grant: &SshGrant,
    login: &Login,
    operation: InvocationId,
) -> Result<Ready, Refusal> {
    let plan = Plan {
        options: &job.shared.options,
        grant,
        host: &job.destination.host,
        port: job.destination.port,
        user: &job.destination.user,
        login,
        preparation: &job.preparation,
        operation,
        session_channel: !matches!(job.request, Request::Forward { .. }),
    };
    let mut record = |attempt| {
        if let Err(error) = call.setup_attempted(attempt) {
            tracing::warn!(%error, "SETUP_ATTEMPTED is not on record");
        }
    };
    upstream::open(&plan, &mut record).await.map_err(|error| {
        // Its source can quote what the target sent (contract I-2).
        tracing::debug!(%error, "connection setup");
        Refusal::new(error.verdict(), sentence(&error.to_string()), error.field())
    })
}
