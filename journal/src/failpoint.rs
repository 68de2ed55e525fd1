//! Places where a test build ends itself, between every two durable transitions (contract X-2).
//!
//! They exist where debug assertions are on, so in the binary that the tests build anyway, and in no
//! release. A cargo feature would do the same with a second build of every crate above this one.

use crate::contract::InvocationId;
use crate::queue::Item;
use std::str::FromStr;

/// Where, in the course of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is about to be queued.
    Queue,
    /// Its batch is about to be written.
    Write,
    /// Its batch is written and not synced.
    Sync,
    /// Its batch is durable, and nobody was told.
    Tell,
    /// It is queued, or durable where that is waited for, and its call goes on.
    Act,
}

/// One place: the stage, the event's name, the invocation; as text `sync:DISPATCH_STARTED:act_...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failpoint {
    stage: Stage,
    event: String,
    id: InvocationId,
}

/// The text names no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a failpoint is STAGE:EVENT:ID, with a stage of queue, write, sync, tell or act")]
pub struct Malformed;

impl FromStr for Failpoint {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(Malformed);
        let stage = match next()? {
            "queue" => Stage::Queue,
            "write" => Stage::Write,
            "sync" => Stage::Sync,
            "tell" => Stage::Tell,
            "act" => Stage::Act,
            _ => return Err(Malformed),
        };
        let event = next()?.to_owned();
        Ok(Self { stage, event, id: next()?.parse().map_err(|_| Malformed)? })
    }
}

#[cfg(debug_assertions)]
mod armed {
    use super::Failpoint;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;

    pub(super) static POINT: OnceLock<Failpoint> = OnceLock::new();
    /// Whether the batch that is being written holds the event.
    pub(super) static IN_BATCH: AtomicBool = AtomicBool::new(false);

    /// Ends the process as `kill -9` does: nothing is flushed, nothing is told.
    pub(super) fn strike() -> ! {
        let own = rustix::process::getpid();
        let _ended = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        std::process::abort()
    }
}

/// Sets the one place where this process ends. A second one changes nothing.
#[cfg(debug_assertions)]
pub fn arm(point: Failpoint) {
    drop(armed::POINT.set(point));
}

/// An event of a call reached a stage.
#[inline]
pub(crate) fn event(stage: Stage, id: InvocationId, name: &str) {
    #[cfg(debug_assertions)]
    if armed::POINT.get().is_some_and(|p| p.stage == stage && p.id == id && p.event == name) {
        armed::strike();
    }
    #[cfg(not(debug_assertions))]
    let _unused = (stage, id, name);
}

/// A batch reached a stage.
#[inline]
pub(crate) fn batch(stage: Stage, batch: &[Item]) {
    #[cfg(debug_assertions)]
    if let Some(point) = armed::POINT.get() {
        let name = format!("\"{}\"", point.event).into_bytes();
        let holds = batch.iter().any(|item| {
            item.draft.invocation == point.id.to_bytes()
                && item.draft.payload.windows(name.len()).any(|window| window == name)
        });
        if stage == Stage::Write {
            let synced = holds && point.stage == Stage::Sync;
            armed::IN_BATCH.store(synced, std::sync::atomic::Ordering::Release);
        }
        if holds && point.stage == stage {
            armed::strike();
        }
    }
    #[cfg(not(debug_assertions))]
    let _unused = (stage, batch);
}

/// The batch is written and not synced.
#[inline]
pub(crate) fn written() {
    #[cfg(debug_assertions)]
    if armed::IN_BATCH.load(std::sync::atomic::Ordering::Acquire) {
        armed::strike();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_text() {
        let id = InvocationId::from_parts(1_764_476_760_000, 7);
        let point: Result<Failpoint, _> = format!("sync:DISPATCH_STARTED:{id}").parse();
        let event = "DISPATCH_STARTED".to_owned();
        assert_eq!(point, Ok(Failpoint { stage: Stage::Sync, event, id }));
        for text in ["", "sync", "sync:X", "soon:X:act_1", "sync:X:nobody"] {
            assert_eq!(text.parse::<Failpoint>(), Err(Malformed), "{text}");
        }
    }
}
