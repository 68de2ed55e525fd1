//! The use of budgets in this process, begun from what the index holds of earlier ones.

use crate::contract::{Budget, LONGEST_MS, Spent, Usage};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// What agents used.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<String, Usage>>);

/// A call that counts until it ends.
pub(crate) struct Counted {
    ledger: Arc<Ledger>,
    agent: String,
    began_ms: u64,
}

impl Ledger {
    /// Takes calls of earlier processes: agent, time of dispatch, bytes.
    pub(crate) fn restored(calls: impl IntoIterator<Item = (String, u64, u64)>) -> Self {
        let mut agents: HashMap<String, Usage> = HashMap::new();
        for (agent, at_ms, bytes) in calls {
            agents.entry(agent).or_default().restore(at_ms, bytes);
        }
        Self(Mutex::new(agents))
    }

    /// Counts one more call of the agent, if its budget has room.
    pub(crate) fn begin(
        self: &Arc<Self>,
        agent: &str,
        budget: &Budget,
        now_ms: u64,
    ) -> Result<Counted, Spent> {
        let mut agents = self.0.lock();
        agents.entry(agent.to_owned()).or_default().begin(budget, now_ms)?;
        Ok(Counted { ledger: Arc::clone(self), agent: agent.to_owned(), began_ms: now_ms })
    }
}

impl Counted {
    /// Ends the call: dispatched, with the bytes that passed, or not.
    pub(crate) fn end(self, used: Option<u64>, now_ms: u64) {
        let mut agents = self.ledger.0.lock();
        if let Some(usage) = agents.get_mut(&self.agent) {
            usage.end(self.began_ms, used, now_ms);
        }
    }
}

/// Up to when calls count at all.
pub(crate) const fn oldest_ms(now_ms: u64) -> u64 {
    now_ms.saturating_sub(LONGEST_MS)
}
