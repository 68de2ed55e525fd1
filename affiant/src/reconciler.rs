//! The background reconciler: asks about calls in doubt whose routes let it (contract K-7).
//!
//! It remembers nothing: what it asked about a call, and when, is on record as notes of that call; so
//! is that a call can't be asked about, which then waits for a person. It asks one question at a time,
//! and not more than [`PER_SECOND`] a second, whatever the number of calls.

use crate::control::{Engines, InDoubt, in_doubt};
use journal::action::{INCONCLUSIVE, NOT_ASKABLE};
use journal::contract::{Body, Noted, Source};
use journal::{Invocation, Journal};
use policy::repeat::Pace;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Pause between two looks at what is in doubt.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same when there is much of it.
const LOOK_EVERY_BUSY: Duration = Duration::from_secs(30);
const BUSY: usize = 500;
/// Questions a second at most.
const PER_SECOND: u32 = 5;

/// Runs until the server goes down.
pub(crate) async fn run(journal: Journal, engines: Engines, mut shutdown: watch::Receiver<bool>) {
    let mut pause = LOOK_EVERY;
    loop {
        let over = shutdown.wait_for(|down| *down);
        if tokio::time::timeout(pause, over).await.is_ok() {
            return;
        }
        let (looked, with) = (journal.clone(), engines.clone());
        let look = tokio::task::spawn_blocking(move || {
            in_doubt(&looked, None, usize::MAX, |first| goes_on(&looked, &with, first))
        });
        let InDoubt { found, looked_at } = match look.await {
            Ok(Ok(look)) => look,
            Ok(Err(error)) => {
                tracing::warn!("the calls in doubt could not be read: {error}");
                continue;
            }
            Err(error) => {
                tracing::error!("the look at calls in doubt ended badly: {error}");
                continue;
            }
        };
        pause = if looked_at > BUSY { LOOK_EVERY_BUSY } else { LOOK_EVERY };
        for (first, _) in found {
            if *shutdown.borrow() {
                return;
            }
            if is_due(&journal, &engines, &first) {
                ask(&journal, &engines, &first).await;
                tokio::time::sleep(Duration::from_secs(1) / PER_SECOND).await;
            }
        }
    }
}

/// What was asked about a call, by its own record.
struct Asked {
    pace: Pace,
    /// When questions that decided nothing were noted, in order.
    at_ms: Vec<u64>,
}

fn asked(journal: &Journal, engines: &Engines, first: &Invocation) -> Option<Asked> {
    let pace = engines.pace(first).filter(|pace| pace.automatic)?;
    let events = match journal.events(first.id()) {
        Ok(events) => events,
        Err(error) => {
            tracing::warn!("the events of {} could not be read: {error}", first.id());
            return None;
        }
    };
    let noted = |body: &Body, name| matches!(body, Body::Noted(n) if n.name == name);
    if events.iter().any(|(_, event)| noted(&event.body, NOT_ASKABLE)) {
        return None;
    }
    let at_ms = events.iter().filter(|(_, event)| noted(&event.body, INCONCLUSIVE));
    Some(Asked { pace, at_ms: at_ms.map(|(_, event)| event.at_ms).collect() })
}

/// Whether the broker asks about the call by itself, now or later.
pub(crate) fn goes_on(journal: &Journal, engines: &Engines, first: &Invocation) -> bool {
    asked(journal, engines, first)
        .is_some_and(|asked| asked.at_ms.len() < asked.pace.max_queries as usize)
}

/// Whether the route wants a question about the call now.
fn is_due(journal: &Journal, engines: &Engines, first: &Invocation) -> bool {
    let Some(Asked { pace, at_ms }) = asked(journal, engines, first) else { return false };
    let last = at_ms.last().copied().or(first.ended_at_ms()).unwrap_or_default();
    let every = u64::try_from(pace.every.as_millis()).unwrap_or(u64::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    at_ms.len() < pace.max_queries as usize && last.saturating_add(every) <= now
}

async fn ask(journal: &Journal, engines: &Engines, first: &Invocation) {
    let id = first.id();
    match engines.reconcile(first).await {
        Ok(asked) => tracing::info!(
            "asked about {id}: {}",
            asked.shows.map_or("nothing is shown", |outcome| outcome.as_str())
        ),
        Err(error) => {
            tracing::info!("{id} could not be asked about: {error}");
            if error.is_lasting() {
                let note = Noted { name: NOT_ASKABLE.to_owned(), detail: error.to_string() };
                let body = Body::Noted(note);
                match journal.record(id, Source::TransportObserved, body) {
                    Ok(ticket) => drop(ticket),
                    Err(error) => tracing::warn!("that is not on record: {error}"),
                }
            }
        }
    }
}
