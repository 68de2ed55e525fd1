//! The broker's own retries, while the caller waits: for routes that opt in (contract T-1).
//!
//! The pause grows, is jittered, and is never shorter than what the remote asked for. A pause that
//! would end after the caller's patience is not begun; the caller gets the answer that stands.

use crate::access::Caller;
use crate::answer::Finished;
use crate::engine::Job;
use crate::proxy::Shared;
use crate::respond::Account;
use crate::retry;
use journal::action::{Action, Error};
use journal::contract::{InvocationId, Outcome, Retry};
use journal::{Call, Invocation, Outstanding, State};
use policy::HttpGrant;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The first pause, before jitter.
const FIRST: Duration = Duration::from_millis(200);
/// The longest one that is not asked for.
const LONGEST: Duration = Duration::from_secs(10);

/// Leave to retry while the caller waits. An equal request counts as one in flight as long as it is
/// there (contract K-11).
pub(crate) struct Again {
    pub(crate) first: InvocationId,
    pub(crate) within: Duration,
    _outstanding: Option<Outstanding>,
}

/// Leave to retry while the caller waits, if the route gives it and the request is stored.
pub(crate) fn may_retry(call: &Call, grant: &HttpGrant) -> Option<Again> {
    let rule = grant.retry.as_ref().filter(|rule| rule.automatic)?;
    call.invocation().request()?;
    Some(Again { first: call.id(), within: rule.within, _outstanding: call.outstanding() })
}

/// The pause before the `n`th retry, 0 for the first: half of it is chance.
pub(crate) fn pause(n: u32, chance: u8) -> Duration {
    let whole = FIRST.saturating_mul(1 << n.min(16)).min(LONGEST);
    whole / 2 + (whole / 2).mul_f64(f64::from(chance) / 255.0)
}

/// A number by chance; without randomness the longest pause is as good.
pub(crate) fn chance() -> u8 {
    let mut byte = [u8::MAX; 1];
    if SystemRandom::new().fill(&mut byte).is_err() {
        return u8::MAX;
    }
    let [byte] = byte;
    byte
}

/// Retries until the action stands settled, may not be retried, or time or the caller's access is up.
/// False when no attempt was made.
async fn automatically(shared: &Arc<Shared>, again: &Again, caller: Caller<'_>) -> bool {
    let until = Instant::now() + again.within;
    let mut made = false;
    for n in 0_u32.. {
        let Ok(action) = Action::load(&shared.journal, again.first) else { break };
        let standing = action.standing();
        match action.check(false) {
            Ok(_) | Err(Error::TooEarly { .. }) => {}
            Err(_) => break,
        }
        let asked =
            standing.not_before_ms.map_or(0, |at| at.saturating_sub(shared.journal.now_ms()));
        let pause = pause(n, chance()).max(Duration::from_millis(asked));
        if Instant::now() + pause >= until {
            break;
        }
        if shared.unless_cut(sleep(pause)).await.is_none() || caller.identity().is_none() {
            break;
        }
        match attempt(shared, again.first).await {
            Ok(attempt) => {
                made = true;
                if !is_worth_another(&attempt) {
                    break;
                }
            }
            Err(Error::TooEarly { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, id = %again.first, "no further attempt was made");
                break;
            }
        }
    }
    made
}

/// An attempt that failed for a reason which time does not mend ends the automation.
fn is_worth_another(attempt: &Invocation) -> bool {
    let verdict = attempt.verdict();
    match verdict.retry() {
        Retry::Backoff | Retry::SameIdempotencyKey => verdict.outcome() != Outcome::Committed,
        Retry::Never | Retry::AfterCorrection | Retry::Reconcile | Retry::FetchResult => false,
    }
}

/// Boxed: an attempt is an exchange like the one that it follows.
fn attempt(
    shared: &Arc<Shared>,
    first: InvocationId,
) -> Pin<Box<dyn Future<Output = Result<Invocation, Error>> + Send + '_>> {
    Box::pin(retry::once(shared, first, "automatic"))
}

impl Job<'_> {
    /// Answers a call whose refusal was kept from the caller: by what retries bring, else by it.
    pub(crate) async fn refused(&mut self, call: Call) -> Finished {
        let id = call.id();
        drop(call);
        match self.retried().await {
            Some(finished) => finished,
            None => self.answer_as_recorded(id).await,
        }
    }

    /// Retries as far as the route lets the broker, and answers. `None` when no attempt was made:
    /// the first one's own answer holds.
    pub(crate) async fn retried(&mut self) -> Option<Finished> {
        let again = self.again.take()?;
        let shared = Arc::clone(self.shared);
        let made = automatically(&shared, &again, self.caller()).await;
        let first = again.first;
        // What is handed over now can be asked for anew.
        drop(again);
        if !made {
            return None;
        }
        let action = Action::load(&shared.journal, first).ok()?;
        let standing = action.standing();
        let answering = shared.journal.answering(action.first.clone()).ok()?;
        if let State::Committed(_) = answering.state()
            && let Ok(stored) = self.stored(answering.id()).await
        {
            let ids = [first, answering.id()];
            return Some(self.send_stored(ids, standing.verdict, &stored, false).await);
        }
        let mut envelope = action.first.envelope();
        envelope.error.verdict = standing.verdict;
        envelope.error.not_before_ms = standing.not_before_ms;
        envelope.error.message = format!("{} Retries did not decide it.", envelope.error.message);
        let account = Account::of(envelope.error.verdict);
        Some(self.problem(&envelope, account, false, false).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause grows to its bound, and is never shorter than half of it.
    #[test]
    fn pauses_grow_and_are_jittered() {
        let ms = |n, chance| pause(n, chance).as_millis();
        assert_eq!([ms(0, 0), ms(0, 255), ms(1, 0), ms(1, 255)], [100, 200, 200, 400]);
        assert_eq!([ms(5, 0), ms(6, 0), ms(6, 255), ms(40, 255)], [3200, 5000, 10_000, 10_000]);
    }
}
