//! Answers that lie with their callers' hosts, read or not. A request that is equal to one of those calls asks
//! here before it is taken on (contract K-11): where the connection has ended meanwhile, its end says whether
//! the answer was read, and who serves the connection may not have come to hear of it.
//!
//! What is deliberately absent: a verdict. Who serves the connection takes the delivery back; here is only
//! waited for it.

use crate::carrier::Below;
use crate::stream::{Shared, WeakShared, Wire};
use journal::contract::Fingerprint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Who serves a connection that has ended says what that means long before this.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Where an answer was sent, as far as that says whether it was read.
#[derive(Clone)]
pub(crate) enum Connection {
    Wire(WeakShared<Wire>),
    /// What lies below HTTP/2.
    Below(Arc<Mutex<Below>>),
}

impl Connection {
    fn has_ended(&self) -> bool {
        match self {
            Self::Wire(wire) => wire.upgrade().is_some_and(|wire| wire.lock().has_ended()),
            Self::Below(below) => below.lock().unwrap_or_else(PoisonError::into_inner).has_ended(),
        }
    }
}

impl From<&Shared<Wire>> for Connection {
    fn from(wire: &Shared<Wire>) -> Self {
        Self::Wire(wire.downgrade())
    }
}

/// Whether a reset came, or the end of both directions. Takes nothing away: who serves the connection still
/// hears of it.
pub(crate) fn has_ended(tcp: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&tcp, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = PollFlags::ERR | PollFlags::HUP;
    // What can't be asked is not waited for.
    poll(&mut asked, Some(&now)).is_ok()
        && asked.iter().any(|asked| asked.revents().intersects(ended))
}

/// The answers of guarded calls that a reset takes back, by what their requests were.
#[derive(Default)]
pub(crate) struct Unread(Mutex<State>);

#[derive(Default)]
struct State {
    answers: HashMap<Fingerprint, Vec<(u64, Connection)>>,
    last: u64,
}

/// An answer is listed until this is dropped.
pub(crate) struct Listed {
    unread: Arc<Unread>,
    fingerprint: Fingerprint,
    number: u64,
}

impl Unread {
    /// Lists an answer.
    pub(crate) fn list(
        self: &Arc<Self>,
        fingerprint: Fingerprint,
        connection: Connection,
    ) -> Listed {
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        state.answers.entry(fingerprint).or_default().push((number, connection));
        Listed { unread: Arc::clone(self), fingerprint, number }
    }

    /// Waits until it is on record what the ends of connections mean that have ended by now.
    pub(crate) async fn heard(&self, fingerprint: Fingerprint) {
        let heard = async {
            while self.has_ended(fingerprint) {
                sleep(PAUSE).await;
            }
        };
        if timeout(PATIENCE, heard).await.is_err() {
            tracing::warn!("a connection has ended, and nobody said what became of its answer");
        }
    }

    /// Whether a connection with such an answer has ended. Under the lock: no handle on a connection outlives
    /// its listing.
    fn has_ended(&self, fingerprint: Fingerprint) -> bool {
        let state = self.state();
        let connections = state.answers.get(&fingerprint);
        connections.is_some_and(|all| all.iter().any(|(_, connection)| connection.has_ended()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut state = self.unread.state();
        let Some(connections) = state.answers.get_mut(&self.fingerprint) else { return };
        connections.retain(|(number, _)| *number != self.number);
        if connections.is_empty() {
            state.answers.remove(&self.fingerprint);
        }
    }
}
