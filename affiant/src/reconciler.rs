//! The background reconciler: asks about calls in doubt whose routes let it (contract K-7).
//!
//! It remembers nothing: what it asked about a call, and when, is on record as notes of that call; so
//! is that a call can't be asked about, which then waits for a person. It asks each origin one question
//! at a time, [`AT_ONCE`] origins at most, and not more than [`PER_SECOND`] a second, whatever the
//! number of calls: an origin that is silent holds up nobody else's.

use crate::control::{Engines, InDoubt, in_doubt};
use journal::action::{INCONCLUSIVE, NOT_ASKABLE, UNANSWERED};
use journal::contract::{Body, Noted, Source};
use journal::{Invocation, Journal};
use policy::repeat::Pace;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause between two looks at what is in doubt.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same when there is much of it.
const LOOK_EVERY_BUSY: Duration = Duration::from_secs(30);
const BUSY: usize = 500;
/// Questions a second at most.
const PER_SECOND: u32 = 5;

/// Origins that are asked at the same time at most.
const AT_ONCE: usize = 16;
/// The pause after questions without an answer doubles with each, so often at most.
const DOUBLINGS: usize = 6;

/// Runs until the server goes down. Questions that are out then are given up.
pub(crate) async fn run(journal: Journal, engines: Engines, mut shutdown: watch::Receiver<bool>) {
    let mut questions = Questions::default();
    tokio::select! {
        () = look_and_ask(&journal, &engines, &mut questions) => {}
        _ = shutdown.wait_for(|down| *down) => {}
    }
    questions.out.shutdown().await;
}

/// Questions that are out.
#[derive(Default)]
struct Questions {
    out: JoinSet<String>,
    /// The origins that they went to.
    origins: HashSet<String>,
    leave: Leave,
}

/// Spreads questions: [`PER_SECOND`] at most, whenever they come.
#[derive(Default)]
struct Leave {
    /// When the newest question left, or leaves.
    newest: Option<Instant>,
}

impl Leave {
    /// When a question that comes now leaves.
    fn next(&mut self, now: Instant) -> Instant {
        let free = self.newest.map(|newest| newest + Duration::from_secs(1) / PER_SECOND);
        let at = free.map_or(now, |free| free.max(now));
        self.newest = Some(at);
        at
    }
}

impl Questions {
    /// Whether a question can go to the origin.
    fn is_free(&mut self, origin: &str) -> bool {
        self.reap();
        self.out.len() < AT_ONCE && !self.origins.contains(origin)
    }

    /// Sends one to an origin that is free, as soon as there is leave.
    async fn send(&mut self, origin: String, question: impl Future<Output = ()> + Send + 'static) {
        sleep_until(self.leave.next(Instant::now())).await;
        self.origins.insert(origin.clone());
        self.out.spawn(async move {
            question.await;
            origin
        });
    }

    fn reap(&mut self) {
        while let Some(ended) = self.out.try_join_next() {
            match ended {
                Ok(origin) => drop(self.origins.remove(&origin)),
                Err(error) => {
                    tracing::error!("a question ended badly: {error}");
                    if self.out.is_empty() {
                        self.origins.clear();
                    }
                }
            }
        }
    }
}

/// What one question at a time goes to: scheme and authority, as records have them.
fn origin_of(first: &Invocation) -> String {
    first.accepted().target.split('/').take(3).collect::<Vec<_>>().join("/")
}

async fn look_and_ask(journal: &Journal, engines: &Engines, questions: &mut Questions) {
    let mut pause = LOOK_EVERY;
    loop {
        sleep(pause).await;
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
            let origin = origin_of(&first);
            if !questions.is_free(&origin) || !is_due(journal, engines, &first) {
                continue;
            }
            let (journal, engines) = (journal.clone(), engines.clone());
            let question = async move { ask(&journal, &engines, &first).await };
            questions.send(origin, question).await;
        }
    }
}

/// What was asked about a call, by its own record.
struct Asked {
    pace: Pace,
    /// Questions whose answer decided nothing.
    inconclusive: usize,
    /// Questions without an answer since the last one that had one, and before.
    unanswered: (usize, usize),
    last_ms: Option<u64>,
}

impl Asked {
    /// Whether more questions follow.
    fn goes_on(&self) -> bool {
        let most = self.pace.max_queries as usize;
        let (since, before) = self.unanswered;
        self.inconclusive < most && since + before < most
    }
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
    let mut asked = Asked { pace, inconclusive: 0, unanswered: (0, 0), last_ms: None };
    for (_, event) in &events {
        if noted(&event.body, INCONCLUSIVE) {
            let (since, before) = asked.unanswered;
            (asked.inconclusive, asked.unanswered) = (asked.inconclusive + 1, (0, since + before));
        } else if noted(&event.body, UNANSWERED) {
            asked.unanswered.0 += 1;
        } else {
            continue;
        }
        asked.last_ms = Some(event.at_ms);
    }
    Some(asked)
}

/// Whether the broker asks about the call by itself, now or later.
pub(crate) fn goes_on(journal: &Journal, engines: &Engines, first: &Invocation) -> bool {
    asked(journal, engines, first).is_some_and(|asked| asked.goes_on())
}

/// Whether the route wants a question about the call now.
fn is_due(journal: &Journal, engines: &Engines, first: &Invocation) -> bool {
    let Some(asked) = asked(journal, engines, first) else { return false };
    let last = asked.last_ms.or(first.ended_at_ms()).unwrap_or_default();
    let every = u64::try_from(asked.pace.every.as_millis()).unwrap_or(u64::MAX);
    let pause = every.saturating_mul(1 << asked.unanswered.0.min(DOUBLINGS));
    asked.goes_on() && last.saturating_add(pause) <= journal.now_ms()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// K-7: however questions come, at once, evenly, or after a rest, no second has more than five; and none
    /// waits where there is room.
    #[test]
    fn k_7_no_second_has_more_than_five_questions() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        for (pauses_ms, last_ms) in [
            (vec![0; 23], 4_400),
            (vec![150; 23], 4_400),
            (vec![200; 23], 4_400),
            (vec![350; 23], 22 * 350),
            ([vec![0; 8], vec![10_000], vec![0; 8]].concat(), 10_000 + 8 * 200),
        ] {
            let mut leave = Leave::default();
            let mut now = start;
            let mut left = Vec::new();
            for (n, pause_ms) in pauses_ms.iter().enumerate() {
                now += if n == 0 { Duration::ZERO } else { ms(*pause_ms) };
                left.push(leave.next(now).duration_since(start));
            }
            for at in &left {
                let second = left.iter().filter(|other| (*at..*at + ms(1_000)).contains(*other));
                assert!(second.count() <= 5, "{left:?}");
            }
            assert_eq!(left.last(), Some(&ms(last_ms)), "{pauses_ms:?}: {left:?}");
        }
    }
}
