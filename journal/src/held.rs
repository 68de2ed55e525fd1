//! Held calls: parked until a person decides, and taken up again at most once (contract V-6).
//!
//! ```text
//!  Call::hold ──► parked ──► Journal::decide ──► Journal::resume ──► a Call again ──► dispatch
//!                   ▲                                                    │ given up before dispatch
//!                   └────────────────────────────────────────────────────┘
//! ```
//!
//! What is parked is in the log, and only pinned in memory so that it can be waited for. The right
//! to go on is one flag under the entry's lock, so of two callers one dispatches. What is shown to
//! the person is encrypted: a log is no place for the content of requests.

mod shown;

use crate::append::Error;
use crate::call::{Call, EVENT_RESERVE, durable};
use crate::contract::{
    Accepted, ApprovalDecided, ApprovalRequested, ApprovalState, Body, Budget, Digest, Ended,
    InvocationId, Preflight, Ruling, Source, Spent, Verdict, is_bound_alike,
};
use crate::core::Core;
use crate::enqueue::{Part, Queued, Wait};
use crate::entry::Entry;
use crate::live::Journal;
use crate::projection::Invocation;
use crate::{admission, read};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Calls of one agent that may wait at the same time: more than a person looks through.
pub const MAX_HELD: usize = 100;

/// Denials that are remembered. People make them, so this is many.
const MAX_DENIALS: usize = 4096;

/// The question that holds a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question<'a> {
    /// The request that is shown, and no other.
    pub fingerprint: Digest,
    /// How long it can be decided, and once more how long an approval can be used.
    pub lasts: Duration,
    /// What the person is shown; stored encrypted.
    pub shown: &'a [u8],
}

/// What a held call may do now.
#[must_use]
pub enum Resumed {
    /// It is approved, but a budget of its agent leaves no room for it now.
    Spent(Spent),
    /// It is approved, and goes on in this call.
    Go(Call),
    /// Nobody decided yet.
    Waits(Box<Invocation>),
    /// It went on elsewhere, or has ended: the record answers.
    Over(Box<Invocation>),
}

/// Why a decision was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    /// Caller: no such call waits for a person.
    #[error("no call of this id waits for a person")]
    NotHeld,
    /// Caller: it was decided before.
    #[error("it is decided already, by {0}")]
    Decided(String),
    /// Caller: the time for it is over.
    #[error("the time to decide it is over")]
    Expired,
    /// Local: the decision could not be recorded.
    #[error("the decision could not be recorded")]
    Append(#[from] Error),
}

/// The calls that wait, pinned in memory.
pub(crate) struct Parked {
    entries: Mutex<HashMap<InvocationId, Arc<Entry>>>,
    /// What was denied by this process, newest last: for whom, and which request.
    denials: Mutex<VecDeque<(Option<String>, Digest)>>,
    /// Counts questions asked, so that somebody can tell people.
    asked: watch::Sender<u64>,
}

impl Default for Parked {
    fn default() -> Self {
        Self { entries: Mutex::default(), denials: Mutex::default(), asked: watch::Sender::new(0) }
    }
}

impl Parked {
    fn denied(&self, invocation: &Invocation) {
        let Some(approval) = invocation.approval() else { return };
        let agent = invocation.accepted().agent.clone();
        let mut denials = self.denials.lock();
        if denials.len() >= MAX_DENIALS {
            denials.pop_front();
        }
        denials.push_back((agent, approval.requested.fingerprint));
    }
}

fn ended(verdict: Verdict, message: &str) -> Body {
    Body::InvocationEnded(Box::new(Ended {
        verdict,
        message: message.to_owned(),
        field: Some("approval".to_owned()),
        not_before_ms: None,
        observation: None,
    }))
}

fn expired() -> Body {
    let verdict = Verdict::approval_expired();
    ended(verdict, "The approval was not given, or not used, in time; nothing was sent.")
}

fn mismatch() -> Body {
    let verdict = Verdict::approval_mismatch();
    ended(
        verdict,
        "Policy or credential changed since the person was asked, so this is not what was \
         approved; nothing was sent. Submit it as a new invocation.",
    )
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Pins an invocation that an earlier process left waiting. False when it does not wait.
pub(crate) fn pin(core: &Core, id: InvocationId) -> Result<bool, read::Error> {
    let Some(entry) = core.entry(id)? else { return Ok(false) };
    let held = entry.state.lock().live.is_held();
    if held {
        core.parked.entries.lock().insert(id, entry);
    } else {
        core.release_entry(&entry);
    }
    Ok(held)
}

/// Unpins an invocation that waits for nobody any more.
pub(crate) fn unpin_if_over(core: &Core, entry: &Arc<Entry>) {
    if entry.state.lock().live.is_held() {
        return;
    }
    let removed = core.parked.entries.lock().remove(&entry.id);
    if let Some(entry) = removed {
        core.release_entry(&entry);
    }
}

/// Pins an invocation that recovery found waiting. False when it does not wait.
pub(crate) fn keep(core: &Core, entry: &Arc<Entry>) -> bool {
    if !entry.state.lock().live.is_held() {
        return false;
    }
    let before = core.parked.entries.lock().insert(entry.id, Arc::clone(entry));
    if before.is_none() {
        entry.state.lock().users += 1;
    }
    true
}

impl Core {
    fn parked(&self, id: InvocationId) -> Option<Arc<Entry>> {
        self.parked.entries.lock().get(&id).cloned()
    }
}

impl Call {
    /// Holds the call until a person decides: the question is durable when this returns, and the
    /// call is over as far as this connection goes.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Locked`] when what is to be shown can't be encrypted.
    pub async fn hold(mut self, question: Question<'_>) -> Result<Invocation, Error> {
        // Base64 of it, and the frame.
        self.reserve_events(2 * question.shown.len() as u64 + 4096)?;
        let (core, entry) = self.shared();
        let key = core.key.read().clone().ok_or(Error::Locked)?;
        let shown = shown::seal(&key, entry.id, question.shown).ok_or(Error::Locked)?;
        let requested = ApprovalRequested {
            fingerprint: question.fingerprint,
            expires_at_ms: core.clock.now_ms().saturating_add(millis(question.lasts)),
            lasts_ms: millis(question.lasts),
            shown: Some(shown),
        };
        let body = Body::ApprovalRequested(Box::new(requested));
        self.append_waited(body).await?;
        entry.state.lock().users += 1;
        core.parked.entries.lock().insert(entry.id, Arc::clone(&entry));
        let view = entry.state.lock().view(core.durable());
        core.parked.asked.send_modify(|count| *count += 1);
        Ok(view)
    }
}

impl Journal {
    /// The calls that wait for a person, or for their caller after an approval; oldest first.
    #[must_use]
    pub fn held(&self) -> Vec<Invocation> {
        let core = self.core();
        let limit = core.durable();
        let entries: Vec<_> = core.parked.entries.lock().values().cloned().collect();
        let mut held: Vec<_> = entries.iter().map(|entry| entry.state.lock().view(limit)).collect();
        held.retain(Invocation::is_held);
        held.sort_unstable_by_key(Invocation::first_sequence);
        held
    }

    /// Whether an agent has as many calls waiting as it may have ([`MAX_HELD`]).
    #[must_use]
    pub fn holds_enough(&self, agent: Option<&str>) -> bool {
        let held = self.held();
        held.iter().filter(|held| held.accepted().agent.as_deref() == agent).count() >= MAX_HELD
    }

    /// How often the same request of the same agent was denied before, since this process started; of
    /// the last 4,096 denials.
    #[must_use]
    pub fn denied_before(&self, held: &Invocation) -> usize {
        let Some(approval) = held.approval() else { return 0 };
        let (agent, asked) = (&held.accepted().agent, approval.requested.fingerprint);
        let denials = self.core().parked.denials.lock();
        denials.iter().filter(|(whose, denied)| *denied == asked && whose == agent).count()
    }

    /// Changes whenever a call begins to wait.
    #[must_use]
    pub fn asked(&self) -> watch::Receiver<u64> {
        self.core().parked.asked.subscribe()
    }

    /// What a person is shown of a held call.
    ///
    /// # Errors
    /// [`crate::result::Error`]: not kept, locked, or damaged.
    pub fn shown(&self, held: &Invocation) -> Result<Vec<u8>, crate::result::Error> {
        use crate::result::Error;
        let sealed = held.approval().and_then(|approval| approval.requested.shown.as_deref());
        let sealed = sealed.ok_or(Error::NotKept)?;
        let key = self.core().key.read().clone().ok_or(Error::Locked)?;
        shown::open(&key, held.id(), sealed).ok_or(Error::Damaged)
    }

    /// Waits until a held call is decided or over, and that is durable.
    pub async fn decided(&self, id: InvocationId) {
        loop {
            let Some(entry) = self.core().parked(id) else { return };
            let woken = entry.settled.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let view = entry.state.lock().view(self.core().durable());
            let asked = view.approval().filter(|_| view.is_held());
            if asked.is_none_or(|approval| approval.decided.is_some()) {
                return;
            }
            woken.await;
        }
    }

    /// Takes a person's decision, once. Durable when it returns.
    ///
    /// # Errors
    /// [`DecideError`].
    pub async fn decide(
        &self,
        id: InvocationId,
        approve: bool,
        by: &str,
    ) -> Result<Invocation, DecideError> {
        let core = self.core();
        core.check_health()?;
        let entry = core.parked(id).ok_or(DecideError::NotHeld)?;
        let queued = queue_decision(core, &entry, approve, by)?;
        durable(queued.receiver).await?;
        let view = entry.state.lock().view(core.durable());
        if !approve {
            core.parked.denied(&view);
        }
        unpin_if_over(core, &entry);
        Ok(view)
    }

    /// Goes on with a held call if it is approved, still bound to the same (contract V-5), and
    /// nobody else goes on with it. What can't go on any more is ended, durably.
    ///
    /// # Errors
    /// [`Error`]; the call is held as before then.
    pub async fn resume(
        &self,
        id: InvocationId,
        now: &Preflight,
        budget: Option<&Budget>,
    ) -> Result<Resumed, Error> {
        let core = self.core();
        core.check_health()?;
        let Some(entry) = core.parked(id) else {
            let known = core.view(id).map_err(|_| admission::index_failed())?;
            return Ok(Resumed::Over(Box::new(known.ok_or(Error::NotFound)?)));
        };
        let at_ms = core.clock.now_ms();
        let end = {
            let mut state = entry.state.lock();
            let view = state.view(core.durable());
            let state_now = view.approval().map(|approval| approval.state_at(at_ms));
            if state.is_taken || !view.is_held() {
                return Ok(Resumed::Over(Box::new(view)));
            }
            let alike = view.preflight().is_some_and(|asked| is_bound_alike(asked, now));
            match state_now {
                Some(ApprovalState::Pending) if alike => return Ok(Resumed::Waits(Box::new(view))),
                Some(ApprovalState::Approved) if alike => {
                    state.is_taken = true;
                    None
                }
                Some(ApprovalState::Expired) => Some(expired()),
                Some(ApprovalState::Pending | ApprovalState::Approved) => Some(mismatch()),
                Some(ApprovalState::Denied) | None => return Ok(Resumed::Over(Box::new(view))),
            }
        };
        match end {
            None => take_up(core, &entry, budget),
            Some(body) => {
                let part = Part::Event(Source::TransportObserved, body);
                durable(core.append(&entry, None, vec![part], Wait::Later)?.receiver).await?;
                unpin_if_over(core, &entry);
                let view = entry.state.lock().view(core.durable());
                Ok(Resumed::Over(Box::new(view)))
            }
        }
    }

    /// Ends the held calls whose time is over. Nobody needs to wait: until then [`Journal::resume`]
    /// and [`Journal::decide`] refuse them by their time.
    ///
    /// # Errors
    /// [`Error`]; the rest is ended by a later pass.
    pub fn expire_held(&self) -> Result<(), Error> {
        let core = self.core();
        let at_ms = core.clock.now_ms();
        let entries: Vec<_> = core.parked.entries.lock().values().cloned().collect();
        for entry in entries {
            let is_over = {
                let state = entry.state.lock();
                let state_now = state.live.approval().map(|approval| approval.state_at(at_ms));
                state.live.is_held() && !state.is_taken && state_now == Some(ApprovalState::Expired)
            };
            if is_over {
                let part = Part::Event(Source::TransportObserved, expired());
                core.append(&entry, None, vec![part], Wait::No).map(drop)?;
            }
            unpin_if_over(core, &entry);
        }
        Ok(())
    }
}

/// Queues the decision; with a denial, the end that follows from it.
fn queue_decision(
    core: &Core,
    entry: &Arc<Entry>,
    approve: bool,
    by: &str,
) -> Result<Queued, DecideError> {
    let at_ms = core.clock.now_ms();
    let approval = {
        let state = entry.state.lock();
        let held = state.live.is_held();
        state.live.approval().filter(|_| held).cloned().ok_or(DecideError::NotHeld)?
    };
    if let Some(decided) = approval.decided {
        return Err(DecideError::Decided(decided.by));
    }
    if approval.requested.expires_at_ms <= at_ms {
        return Err(DecideError::Expired);
    }
    let ruling = if approve {
        Ruling::Approved { until_ms: at_ms.saturating_add(approval.requested.lasts_ms) }
    } else {
        Ruling::Denied
    };
    let decided = Body::ApprovalDecided(ApprovalDecided { by: by.to_owned(), ruling });
    let mut parts = vec![Part::Event(Source::OperatorAttested, decided)];
    if !approve {
        let verdict = Verdict::approval_denied();
        let body = ended(verdict, "A person refused the call; nothing was sent.");
        parts.push(Part::Event(Source::OperatorAttested, body));
    }
    core.append(entry, None, parts, Wait::Later).map_err(|error| match error {
        // Of two decisions at once, the log has the first.
        Error::Illegal(_) => DecideError::Decided("another decision at the same time".to_owned()),
        other @ (Error::Unavailable(_)
        | Error::Indeterminate
        | Error::TooLarge { .. }
        | Error::NotFound
        | Error::Locked
        | Error::Closed) => DecideError::Append(other),
    })
}

/// A call again, with room of its own. The flag was set by who comes here.
fn take_up(
    core: &Arc<Core>,
    entry: &Arc<Entry>,
    budget: Option<&Budget>,
) -> Result<Resumed, Error> {
    let give_back = || entry.state.lock().is_taken = false;
    core.reserve(EVENT_RESERVE).inspect_err(|_| give_back())?;
    let agent = entry.state.lock().live.accepted().agent.clone().unwrap_or_default();
    let counted =
        budget.map(|budget| core.ledger.begin(&agent, budget, core.clock.now_ms())).transpose();
    let counted = match counted {
        Ok(counted) => counted,
        Err(spent) => {
            core.release(EVENT_RESERVE);
            give_back();
            return Ok(Resumed::Spent(spent));
        }
    };
    entry.state.lock().users += 1;
    let epoch = core.queue.lock().epoch;
    let call = Call::new(Arc::clone(core), Arc::clone(entry), epoch, EVENT_RESERVE, counted);
    Ok(Resumed::Go(call))
}

/// An earlier call that an equal submission joins: held, with the same agent and request.
pub(crate) fn joined(core: &Core, accepted: &Accepted) -> Option<Invocation> {
    let entries: Vec<_> = core.parked.entries.lock().values().cloned().collect();
    let limit = core.durable();
    let mut held: Vec<Invocation> = entries
        .iter()
        .map(|entry| entry.state.lock().view(limit))
        .filter(|held| held.is_held() && crate::guard::is_same(held.accepted(), accepted))
        .collect();
    held.sort_unstable_by_key(Invocation::first_sequence);
    held.into_iter().next()
}
