//! Commands that a person has to approve: asked, waited for, and taken up again (contract V-6).
//!
//! What is approved is agent, user, host, the exact command or kind of session, the variables that go
//! along, and whether there is a terminal. Input comes after, so it is not covered, and the person is
//! told so.

use super::admit::same_id;
use super::refusal::{Refusal, end_refused, not_recorded, refuse};
use super::{Job, Side, bound, go_on, login_over};
use crate::downstream::Downstream;
use crate::request::Request;
use crate::spool::Spool;
use crate::stored;
use bytes::Bytes;
use journal::contract::{Accepted, Code, InvocationId, Preflight, Retry, Verdict};
use journal::{Call, Invocation, Question, Resumed};
use policy::{Approval, Denial, Screened, SshGrant};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

/// Bytes of a command that the list shows; all of a longer one is stored beside.
const SHOWN_COMMAND: usize = 4096;

/// Who waits.
pub(super) struct Caller {
    pub(super) job: Job,
    pub(super) downstream: Downstream,
    pub(super) spool: Spool,
    pub(super) accepted: Accepted,
}

/// The refusal of what was not approved.
pub(super) fn mismatch() -> Refusal {
    let verdict = Verdict::approval_mismatch();
    let message = "What would be sent is not what was approved; nothing was sent.";
    Refusal::new(verdict, message, Some("approval"))
}

/// Asks a person about a bound call, and waits.
pub(super) async fn ask(caller: Caller, mut call: Call, grant: SshGrant) {
    let Some(approval) = grant.approval else { return };
    let Caller { job, downstream, .. } = caller;
    let journal = &job.shared.journal;
    if journal.holds_enough(Some(&job.destination.agent.name)) {
        let verdict = Verdict::budget_spent();
        let message = "As many calls as one agent may have wait for an approval already.";
        let refusal = Refusal::new(verdict, message, Some("approval"));
        return end_refused(call, downstream, refusal).await;
    }
    let id = call.id();
    let (shown, is_whole) = shown(&job, &grant);
    let shown = shown.to_string();
    let question = Question {
        fingerprint: job.fingerprint(),
        lasts: approval.expire,
        shown: shown.as_bytes(),
    };
    // V-6: what is approved can be read to its end.
    let kept = if is_whole { Ok(()) } else { stored::keep_asked(&mut call, &job) };
    let asked = match kept {
        Ok(()) => call.hold(question).await,
        Err(error) => {
            return end_refused(call, downstream, not_asked(&error)).await;
        }
    };
    match asked {
        Ok(_) => {
            let caller = Caller { job, downstream, spool: caller.spool, accepted: caller.accepted };
            wait(caller, id, grant, approval, true).await;
        }
        Err(error) => {
            refuse(&job.shared, downstream, caller.accepted, not_asked(&error)).await;
        }
    }
}

/// The refusal of what nobody could be asked about.
fn not_asked(error: &journal::append::Error) -> Refusal {
    if !matches!(error, journal::append::Error::Locked) {
        return not_recorded(error);
    }
    let verdict = Verdict::not_injected(Retry::AfterCorrection, Code::VaultLocked);
    let message = "The vault is locked; an operator unlocks it with `affiant vault unlock`.";
    Refusal::new(verdict, message, Some("credential"))
}

/// Waits with a repeat for the decision on the command that it repeats.
pub(super) async fn join(
    mut caller: Caller,
    held: &Invocation,
    decision: Result<SshGrant, Denial>,
) {
    caller.accepted.link = Some(held.id());
    let (refusal, grant) = match decision {
        Ok(grant) if grant.approval.is_some() => (None, Some(grant)),
        // Policy asks for no approval any more, so this is another call than what was asked.
        Ok(_) => (Some(mismatch()), None),
        Err(denial) => (Some(denial.into()), None),
    };
    if let Some(refusal) = refusal {
        caller.accepted.caller_id = false;
        refuse(&caller.job.shared, caller.downstream, caller.accepted, refusal).await;
    } else if let Some(grant) = grant
        && let Some(approval) = grant.approval
    {
        wait(caller, held.id(), grant, approval, false).await;
    }
}

/// Waits until the command can go on, or has to be answered. `first`: this channel began it.
async fn wait(caller: Caller, id: InvocationId, grant: SshGrant, approval: Approval, first: bool) {
    let Caller { job, mut downstream, spool, mut accepted } = caller;
    let deadline = Instant::now() + approval.wait;
    let shared = job.shared.clone();
    let mut stopping = shared.stopping();
    let mut told = false;
    loop {
        let snapshot = shared.policy.snapshot();
        let budget = snapshot.budget(&job.destination.agent.name);
        let now: Preflight = bound(&job, &grant, snapshot.version());
        let resumed = shared.journal.resume(id, &now, budget.as_ref()).await;
        let held = match (resumed, job.check_login()) {
            // Approved: what is not sent any more ends the call itself.
            // V-1, V-6: an approval is of the agent, by the token, that asked.
            (Ok(Resumed::Go(call)), _) if !is_of_today(&call, &job) => {
                return end_refused(call, downstream, login_over()).await;
            }
            (Ok(Resumed::Go(call)), _) => {
                return go_on(&job, Side { downstream, spool }, call, &grant, None).await;
            }
            // V-1: who waits on over an ended login is told nothing of the call.
            (_, Err(refusal)) => {
                (accepted.link, accepted.caller_id) = (Some(id), false);
                return refuse(&shared, downstream, accepted, refusal).await;
            }
            (Ok(Resumed::Spent(spent)), Ok(())) => {
                accepted.caller_id = false;
                return refuse(&shared, downstream, accepted, spent.into()).await;
            }
            (Ok(Resumed::Over(earlier)), Ok(())) => {
                if first && earlier.is_settled() && !earlier.is_dispatched() {
                    return downstream.fail(&earlier.envelope()).await;
                }
                return same_id(&shared, downstream, spool, accepted, *earlier).await;
            }
            (Ok(Resumed::Waits(held)), Ok(())) => held,
            (Err(error), Ok(())) => {
                return refuse(&shared, downstream, accepted, not_recorded(&error)).await;
            }
        };
        if !std::mem::replace(&mut told, true) {
            tell(&job, &mut downstream, id).await;
        }
        let in_time = tokio::select! {
            decided = timeout_at(deadline, shared.journal.decided(id)) => decided.is_ok(),
            _ = stopping.wait_for(|stopping| *stopping) => false,
            () = downstream.gone() => false,
        };
        if !in_time {
            return downstream.fail(&held.envelope()).await;
        }
    }
}

/// Whether the agent that asked is the one of that name today, by the same token.
fn is_of_today(call: &Call, job: &Job) -> bool {
    let asked_at_ms = call.invocation().accepted_at_ms();
    job.shared.policy.asked(&job.destination.agent.name, asked_at_ms)
}

/// Tells people at a terminal or in a log why nothing happens.
async fn tell(job: &Job, downstream: &mut Downstream, id: InvocationId) {
    match job.request {
        Request::Exec(_) | Request::Shell => {
            let end = if job.preparation.terminal.is_some() { "\r\n" } else { "\n" };
            let line = format!("affiant: {id} waits for the approval of a person{end}");
            downstream.send(Some(1), Bytes::from(line)).await;
        }
        // Nothing but the protocol's own bytes is read there.
        Request::Subsystem(_) | Request::Forward { .. } => {}
    }
}

/// The command as a person is shown it, without the secrets that stand in it; the injected credential
/// is not part of it. And whether that is all of it.
fn shown(job: &Job, grant: &SshGrant) -> (serde_json::Value, bool) {
    let Job { request, preparation, .. } = job;
    let screen = job.shared.policy.screen();
    let command = match request {
        Request::Exec(command) => Some(command),
        Request::Shell | Request::Subsystem(_) | Request::Forward { .. } => None,
    };
    let screened = command.map(|command| screen.command(command));
    let mut hidden = screened.as_ref().map_or(0, |screened| screened.hidden);
    let variables = preparation.variables.iter().map(|(name, value)| {
        let Screened { text, hidden: more } = screen.header(name.as_bytes(), value.as_bytes());
        hidden += more;
        (name, text)
    });
    let variables: Vec<_> = variables.collect();
    let is_whole = screened.as_ref().is_none_or(|screened| screened.text.len() <= SHOWN_COMMAND);
    let text = screened.map(|screened| {
        let end = screened.text.floor_char_boundary(SHOWN_COMMAND);
        let more = if is_whole { "" } else { "..." };
        format!("{}{more}", screened.text.get(..end).unwrap_or_default())
    });
    let shown = json!({
        "command": text,
        "is_whole": is_whole,
        "hidden": hidden,
        "variables": variables,
        "terminal": preparation.terminal.is_some(),
        "not_covered": "input",
        "inject": grant.credential.as_ref().map(|credential| credential.inject.mode()),
    });
    (shown, is_whole)
}
