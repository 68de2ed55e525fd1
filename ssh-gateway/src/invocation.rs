//! One session channel from request to settled outcome: admit, decide, inject, connect, dispatch,
//! relay, settle, deliver. Each step is one function; every way out leaves a record and an answer.

mod certificate;
mod held;
mod settle;

use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::jump::LOGIN_OVER;
use crate::keep::Keeper;
use crate::redact::Needles;
use crate::relay::Relay;
use crate::repeat::{self, Match, Resolution};
use crate::replay;
use crate::request::{Destination, Preparation, Request};
use crate::respond;
use crate::seen::Seen;
use crate::spool::Spool;
use crate::upstream::{self, Login, Plan, Ready, Running, Started};
use journal::contract::{
    Accepted, Code, CredentialUse, Dispatch, Ended, Envelope, Evidence, Gateway, InvocationId,
    Outcome, Preflight, Retry, Spent, Verdict,
};
use journal::{Admission, Call, Guard, Invocation};
use policy::{Credential, Denial, Inject, Policy, Secret, SshGrant};
use russh::keys::decode_secret_key;
use std::sync::Arc;
use std::time::SystemTime;

/// One request on one channel.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) destination: Arc<Destination>,
    pub(crate) request: Request,
    pub(crate) preparation: Preparation,
}

/// A refusal: what it says, and which field can be corrected.
pub(crate) struct Refusal {
    verdict: Verdict,
    message: String,
    field: Option<String>,
    not_before_ms: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(verdict: Verdict, message: impl Into<String>, field: Option<&str>) -> Self {
        let (message, field) = (message.into(), field.map(str::to_owned));
        Self { verdict, message, field, not_before_ms: None }
    }

    fn into_ended(self) -> Ended {
        let Self { verdict, message, field, not_before_ms } = self;
        Ended { verdict, message, field, not_before_ms, observation: None }
    }
}

impl From<Spent> for Refusal {
    fn from(spent: Spent) -> Self {
        Self {
            verdict: Verdict::refused(Retry::Backoff, Code::BudgetSpent),
            message: sentence(&spent.to_string()),
            field: Some(format!("budget.{}", spent.key)),
            not_before_ms: Some(spent.not_before_ms),
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let verdict = denial.verdict();
        let (message, field) = (denial.message, Some(denial.field));
        Self { verdict, message, field, not_before_ms: None }
    }
}

/// Runs the request to its end. The client gets its answer, and the journal its record.
pub(crate) async fn run(job: Job, downstream: Downstream, spool: Spool) {
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: Some(job.destination.agent.name.clone()),
        action: job.request.action(),
        target: job.destination.target(),
        command: job.request.command(),
        fingerprint: Some(job.request.fingerprint(&job.destination)),
        caller_id: false,
        counted: false,
        link: None,
    };
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
    if !job.shared.is_current(&job.destination.agent) {
        let verdict = Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated);
        let refusal = Refusal::new(verdict, LOGIN_OVER, None);
        return refuse(&job.shared, downstream, accepted, refusal).await;
    }
    admit(job, downstream, spool, accepted, id).await;
}

/// Puts the call on record, or finds the earlier one that answers (contract K-10, K-11).
async fn admit(
    job: Job,
    downstream: Downstream,
    mut spool: Spool,
    mut accepted: Accepted,
    caller_id: Option<InvocationId>,
) {
    let shared = Arc::clone(&job.shared);
    let snapshot = shared.policy.snapshot();
    let decision = snapshot.ssh(&job.request.to_action(&job.destination));
    accepted.caller_id = caller_id.is_some();
    let id = caller_id.unwrap_or_else(|| shared.journal.new_id());
    let guard = Guard {
        window: guard_window(&job.request, &decision),
        key: None,
        join: decision.as_ref().is_ok_and(|grant| grant.approval.is_some()),
        budget: decision.is_ok().then(|| snapshot.budget(&job.destination.agent.name)).flatten(),
    };
    let unguarded = Guard { budget: guard.budget, ..Guard::default() };
    let admit = || shared.journal.admit(id, accepted.clone(), guard.clone());
    let mut admitted = admit();
    while let Ok(Admission::Settled(earlier)) = &admitted {
        if !shared.deliveries.decided(earlier.id()).await {
            break;
        }
        admitted = admit();
    }
    match admitted {
        Ok(Admission::New(call)) => {
            carry_out(job, downstream, spool, call, decision, snapshot.version()).await;
        }
        Ok(Admission::Held(held)) => {
            let side = held::Caller { job, downstream, spool, accepted };
            held::join(side, &held, decision).await;
        }
        Ok(Admission::Spent(spent)) => {
            // The caller's id is for the call that comes when there is room again.
            accepted.caller_id = false;
            refuse(&shared, downstream, accepted, spent.into()).await;
        }
        Ok(Admission::SameRequest(earlier)) => {
            same_id(&shared, downstream, spool, accepted, *earlier).await;
        }
        Ok(Admission::Settled(_) | Admission::InDoubt(_)) => {
            match repeat::resolve(&shared.journal, &mut spool, &accepted, guard.window).await {
                Resolution::Same(earlier) if earlier.verdict().outcome() == Outcome::Committed => {
                    replay::answer(&shared, downstream, *earlier, false).await;
                }
                Resolution::Same(earlier) | Resolution::Unclear(earlier) => {
                    in_doubt(&shared, downstream, accepted, &earlier).await;
                }
                // Every earlier one had other input.
                Resolution::Fresh => match shared.journal.admit(id, accepted.clone(), unguarded) {
                    Ok(Admission::New(call)) => {
                        carry_out(job, downstream, spool, call, decision, snapshot.version()).await;
                    }
                    Ok(Admission::Spent(spent)) => {
                        accepted.caller_id = false;
                        refuse(&shared, downstream, accepted, spent.into()).await;
                    }
                    Ok(_) => tracing::error!(%id, "an admission without a guard was refused"),
                    Err(error) => unavailable(downstream, id, &error).await,
                },
            }
        }
        Ok(Admission::Mismatch) => mismatch(&shared, downstream, accepted).await,
        Err(error) => unavailable(downstream, id, &error).await,
    }
}

/// A repeat that names the invocation (contract K-10): answered from the record if its input is
/// the same as well.
async fn same_id(
    shared: &Shared,
    mut downstream: Downstream,
    mut spool: Spool,
    accepted: Accepted,
    earlier: Invocation,
) {
    let earlier = replay::settled(shared, &mut downstream, earlier).await;
    let claims = matches!(earlier.verdict().outcome(), Outcome::Committed | Outcome::Rejected);
    match repeat::compare(&shared.journal, &mut spool, &earlier).await {
        Match::Other => mismatch(shared, downstream, accepted).await,
        Match::Unclear if claims => in_doubt(shared, downstream, accepted, &earlier).await,
        Match::Same | Match::Unclear => replay::answer(shared, downstream, earlier, true).await,
    }
}

async fn mismatch(shared: &Shared, downstream: Downstream, mut accepted: Accepted) {
    let verdict = Verdict::refused(Retry::AfterCorrection, Code::IdempotencyMismatch);
    let message = "This invocation id belongs to another request, or to other input; use a new id.";
    let refusal = Refusal::new(verdict, message, Some("request.env.AFFIANT_INVOCATION"));
    accepted.caller_id = false;
    refuse(shared, downstream, accepted, refusal).await;
}

async fn in_doubt(
    shared: &Shared,
    downstream: Downstream,
    mut accepted: Accepted,
    earlier: &Invocation,
) {
    let verdict = Verdict::refused(earlier.verdict().retry(), Code::InDoubtDuplicate);
    let state = match (earlier.is_settled(), earlier.verdict().outcome()) {
        (false, _) => "is under way",
        (true, Outcome::Unknown) => "is in doubt",
        (true, Outcome::Committed | Outcome::Rejected | Outcome::NotAttempted) => {
            "was carried out, and whether its input was the same can't be told"
        }
    };
    let message = format!(
        "An equal command {state}: follow {}. A second effect that is meant takes a new \
         AFFIANT_INVOCATION.",
        earlier.id()
    );
    accepted.link = Some(earlier.id());
    accepted.caller_id = false;
    refuse(shared, downstream, accepted, Refusal::new(verdict, message, None)).await;
}

/// The window of the guard against hidden repeats. A shell or a subsystem is a conversation, not an
/// action that a client repeats.
fn guard_window(
    request: &Request,
    decision: &Result<SshGrant, Denial>,
) -> Option<std::time::Duration> {
    match (request, decision) {
        (Request::Exec(_), Ok(grant)) if !grant.idempotent => grant.repeat_window,
        (
            Request::Exec(_) | Request::Shell | Request::Subsystem(_) | Request::Forward { .. },
            Ok(_) | Err(_),
        ) => None,
    }
}

/// A refusal with a record of its own.
pub(crate) async fn refuse(
    shared: &Shared,
    downstream: Downstream,
    accepted: Accepted,
    refusal: Refusal,
) {
    let envelope = record_refusal(shared, accepted, refusal.into_ended()).await;
    downstream.fail(&respond::lines(&envelope)).await;
}

/// Records a call that ends where it began.
pub(crate) async fn record_refusal(shared: &Shared, accepted: Accepted, ended: Ended) -> Envelope {
    let id = shared.journal.new_id();
    let (verdict, message) = (ended.verdict, ended.message.clone());
    let admitted = shared.journal.admit(id, accepted, Guard::default());
    if let Ok(Admission::New(mut call)) = admitted {
        match call.end(ended).await {
            Ok(_settled) => return call.invocation().envelope(),
            Err(error) => tracing::error!(%id, %error, "a refusal is not on record"),
        }
    } else {
        tracing::error!(%id, "a refusal is not on record");
    }
    respond::unrecorded(id, verdict, &message, Evidence::default())
}

async fn unavailable(downstream: Downstream, id: InvocationId, error: &journal::append::Error) {
    tracing::error!(%id, %error, "the journal can't take a call");
    let verdict = Verdict::refused(Retry::Backoff, Code::JournalUnavailable);
    let message = "The journal can't take the record of this command, so it was not sent.";
    let envelope = respond::unrecorded(id, verdict, message, Evidence::default());
    downstream.fail(&respond::lines(&envelope)).await;
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
    let bound = bound(&job, &grant, policy_version);
    if let Err(error) = call.preflight(bound) {
        return end_refused(call, downstream, not_recorded(&error)).await;
    }
    if grant.approval.is_some() {
        let accepted = call.invocation().accepted().clone();
        let side = held::Caller { job, downstream, spool, accepted };
        return held::ask(side, call, grant).await;
    }
    go_on(job, downstream, spool, call, grant).await;
}

/// A bound call, approved where that is needed: to dispatch and to its end.
async fn go_on(job: Job, downstream: Downstream, spool: Spool, mut call: Call, grant: SshGrant) {
    let prepared = async {
        let (login, needles) = authorize(&job, &mut call, &grant).await?;
        let ready = connect(&job, &mut call, &grant, &login).await?;
        Ok((needles, ready))
    };
    let (needles, ready) = match prepared.await {
        Ok(prepared) => prepared,
        Err(refusal) => return end_refused(call, downstream, refusal).await,
    };
    if downstream.is_gone() {
        ready.abandon().await;
        let verdict = Verdict::not_connected(Retry::Backoff, Code::CallerGone);
        let refusal = Refusal::new(verdict, "The client left before the command was sent.", None);
        return end_refused(call, downstream, refusal).await;
    }
    if ready.terminal_refused() {
        call.note("TERMINAL_REFUSED", "the target gave no terminal; the command runs without");
    }
    let dispatch = Dispatch {
        attempt: 1,
        connection: job.shared.next_connection(),
        reused: false,
        address: ready.address().to_string(),
        peer: ready.peer(),
        fingerprint: job.request.fingerprint(&job.destination),
    };
    // From here on the target may hear of the command, and not before this is durable (D-1, D-3).
    let dispatched = match call.dispatch(dispatch).await {
        Ok(dispatched) => dispatched,
        Err(journal::append::Error::Illegal(_)) if call.invocation().is_held() => {
            ready.abandon().await;
            return end_refused(call, downstream, held::mismatch()).await;
        }
        Err(error) => {
            ready.abandon().await;
            tracing::error!(id = %call.id(), %error, "DISPATCH_STARTED is not on record");
            let verdict = Verdict::not_connected(Retry::Backoff, Code::JournalUnavailable);
            let message = "The journal can't take the dispatch record, so nothing was sent.";
            return end_refused(call, downstream, Refusal::new(verdict, message, None)).await;
        }
    };
    match ready.start(dispatched, &job.request).await {
        Started::Running(running) => {
            let side = Side { downstream, spool, needles };
            relay(&job, call, &grant, *running, side).await;
        }
        Started::Refused => {
            let seen = Seen { accepted: Some(false), closed: true, ..Seen::default() };
            settle::settle(&job.shared.deliveries, call, downstream, seen, "REFUSED").await;
        }
        Started::Lost(cause) => {
            settle::settle(&job.shared.deliveries, call, downstream, Seen::default(), cause).await;
        }
    }
}

/// The client's side of a command, and what must not pass there.
struct Side {
    downstream: Downstream,
    spool: Spool,
    needles: Needles,
}

/// Relays a request under way, and settles it.
async fn relay(job: &Job, mut call: Call, grant: &SshGrant, mut running: Running, side: Side) {
    let Side { mut downstream, spool, needles } = side;
    let options = &job.shared.options;
    let lifetime = job.request.lifetime(job.preparation.terminal.is_some());
    let Job { destination, request, preparation, .. } = job;
    let keeper = Keeper::new(destination, request, preparation, grant, &needles);
    let relay = Relay::new(&mut call, &mut downstream, grant, options, lifetime, keeper, &needles);
    let seen = relay.run(&mut running, spool).await;
    let cause = running.cause();
    // The target's side is over whatever comes; its close needs nobody to wait for it.
    let closing = tokio::spawn(running.finish());
    settle::settle(&job.shared.deliveries, call, downstream, seen, cause).await;
    drop(closing.await);
}

/// Ends a call that was not dispatched.
pub(crate) async fn end_refused(mut call: Call, downstream: Downstream, refusal: Refusal) {
    let (verdict, message) = (refusal.verdict, refusal.message.clone());
    let envelope = match call.end(refusal.into_ended()).await {
        Ok(_settled) => call.invocation().envelope(),
        Err(error) => {
            tracing::error!(id = %call.id(), %error, "the end of a call is not on record");
            respond::unrecorded(call.id(), verdict, &message, call.invocation().evidence())
        }
    };
    downstream.fail(&respond::lines(&envelope)).await;
}

/// What a call is bound to (contract V-5).
fn bound(job: &Job, grant: &SshGrant, policy_version: u64) -> Preflight {
    let policy = &job.shared.policy;
    Preflight {
        policy_version,
        would_deny: None,
        route: Some(grant.route.clone()),
        credential: grant.credential.as_ref().map(|credential| policy.bind(credential)),
        idempotent: grant.idempotent,
        idempotency: None,
        keep: grant.keep,
        keep_seconds: grant.keep_for.as_secs(),
        keep_total_bytes: grant.keep_total_bytes,
    }
}

/// Gets the credential of a bound call.
async fn authorize(
    job: &Job,
    call: &mut Call,
    grant: &SshGrant,
) -> Result<(Login, Needles), Refusal> {
    let bound = call.bound_credential();
    let (login, needles) = match grant.credential.as_ref().zip(bound.as_ref()) {
        None => (Login::None, Needles::default()),
        Some((credential, bound)) => {
            let secret = secret_of(&job.shared.policy, credential, bound).await;
            let secret = secret.map_err(unusable)?;
            login(job, call.id(), credential, secret)?
        }
    };
    call.authorize(bound).map_err(|error| not_recorded(&error))?;
    Ok((login, needles))
}

/// The secret of a credential; a slow source is asked off the threads that serve other calls.
async fn secret_of(
    policy: &Arc<Policy>,
    credential: &Credential,
    bound: &CredentialUse,
) -> Result<Secret, policy::credential::Error> {
    if !credential.is_slow() {
        return policy.credential_bound(credential, bound);
    }
    let (policy, credential, bound) = (Arc::clone(policy), credential.clone(), bound.clone());
    tokio::task::spawn_blocking(move || policy.credential_bound(&credential, &bound))
        .await
        .unwrap_or(Err(policy::credential::Error::SourceFailed("the broker is stopping")))
}

fn unusable(error: policy::credential::Error) -> Refusal {
    Refusal::new(error.verdict(), sentence(&error.to_string()), Some("target.credential"))
}

fn login(
    job: &Job,
    id: InvocationId,
    credential: &Credential,
    secret: Secret,
) -> Result<(Login, Needles), Refusal> {
    match &credential.inject {
        Inject::Password | Inject::KeyboardInteractive => {
            if secret.expose_text().is_none() {
                let why = "a password has to be UTF-8 text";
                return Err(unusable(policy::credential::Error::Unreadable(why)));
            }
            let needles = Needles::password(&secret);
            let asks = credential.inject == Inject::KeyboardInteractive;
            let login = if asks { Login::Answer(secret) } else { Login::Password(secret) };
            Ok((login, needles))
        }
        Inject::SshKey => {
            let key = private_key(&secret).map_err(unusable)?;
            Ok((Login::Key(Arc::new(key)), Needles::key(&secret)))
        }
        Inject::SshCertificate => {
            let authority = private_key(&secret).map_err(unusable)?;
            let user = &job.destination.user;
            let with_terminal = job.preparation.terminal.is_some();
            let with_forwarding = matches!(job.request, Request::Forward { .. });
            let wanted = certificate::Wanted { id, user, with_terminal, with_forwarding };
            let minted = certificate::mint(&authority, &wanted, SystemTime::now());
            let (key, certificate) = minted.map_err(|error| {
                tracing::error!(%id, %error, "no user certificate could be made");
                let why = "no certificate can be made with it";
                unusable(policy::credential::Error::Unreadable(why))
            })?;
            let login = Login::Certificate(Arc::new(key), Box::new(certificate));
            Ok((login, Needles::key(&secret)))
        }
        Inject::Bearer
        | Inject::Token(_)
        | Inject::Mtls
        | Inject::Basic
        | Inject::Header { .. }
        | Inject::Recipe(_)
        | Inject::Unsupported(_) => {
            let why = "this mode of injection for SSH; use `ssh-key`, `ssh-certificate`, \
                       `password` or `keyboard-interactive`";
            Err(unusable(policy::credential::Error::Unsupported(why)))
        }
    }
}

fn private_key(secret: &Secret) -> Result<russh::keys::PrivateKey, policy::credential::Error> {
    let unreadable = policy::credential::Error::Unreadable;
    let text = secret.expose_text().ok_or(unreadable("a private key has to be PEM text"))?;
    decode_secret_key(text, None)
        .map_err(|_| unreadable("it is no private key in PEM form, or it has a passphrase"))
}

/// A message that begins with a capital and ends with a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(Some('.')).collect()
}

pub(crate) fn not_recorded(error: &journal::append::Error) -> Refusal {
    tracing::error!(%error, "an event before dispatch is not on record");
    let verdict = Verdict::not_injected(Retry::Backoff, Code::JournalUnavailable);
    Refusal::new(verdict, "The journal can't take the record, so nothing was sent.", None)
}

/// Sets up a connection of this command's own; every try is recorded.
async fn connect(
    job: &Job,
    call: &mut Call,
    grant: &SshGrant,
    login: &Login,
) -> Result<Ready, Refusal> {
    let plan = Plan {
        options: &job.shared.options,
        grant,
        host: &job.destination.host,
        port: job.destination.port,
        user: &job.destination.user,
        login,
        preparation: &job.preparation,
        session_channel: !matches!(job.request, Request::Forward { .. }),
    };
    let mut record = |attempt| {
        if let Err(error) = call.setup_attempted(attempt) {
            tracing::warn!(%error, "SETUP_ATTEMPTED is not on record");
        }
    };
    upstream::open(&plan, &mut record).await.map_err(|error| {
        tracing::debug!(error = &error as &dyn std::error::Error, "connection setup");
        Refusal::new(error.verdict(), sentence(&error.to_string()), error.field())
    })
}
